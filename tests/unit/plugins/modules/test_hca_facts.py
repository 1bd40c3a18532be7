"""The modules that read a node and test its fabric: hca_facts, node_facts, fabric_tests."""

import json
import pathlib

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import complete
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.modules import fabric_tests, hca_facts, node_facts
from ansible_collections.gpufabric.rdma.tests.tools import running, tree
from ansible_collections.gpufabric.rdma.tests.unit.plugins.modules.test_host_modules import call


@pytest.fixture
def run(capsys):
    def call(module, **options):
        with patch_module_args(options), pytest.raises(SystemExit) as end:
            module.main()
        return {**json.loads(capsys.readouterr().out), "rc": end.value.code}

    return call


@pytest.fixture
def root(tmp_path):
    return str(tree.lay_out(tree.load("rxe-and-siw"), tmp_path / "node"))


def test_the_facts_are_those_of_the_library_in_check_mode_too(run, root):
    found = run(hca_facts, root=root, software_hcas=True)
    facts = complete(gather(Tree(root), software_hcas=True), Tree(root))
    assert found["ansible_facts"] == {"rdma": facts}
    assert (found["rc"], found["changed"], found["forks"]) == (0, False, 0)
    assert [rail["hca"] for rail in facts["rails"]] == ["rxe1", "siw_eth2"]
    again = run(hca_facts, root=root, software_hcas=True, _ansible_check_mode=True)
    assert again["ansible_facts"] == found["ansible_facts"]


def test_a_subset_and_a_named_rail(run, root):
    found = run(hca_facts, root=root, gather_subset=["hcas", "rails", "!gids"], rails=[{"hca": "rxe0"}])
    rdma = found["ansible_facts"]["rdma"]
    assert "driver" not in rdma
    assert [(rail["hca"], rail["reason"]) for rail in rdma["rails"]] == [("rxe0", "named")]


BAD = [{"gather_subset": ["hca"]}, {"rails": [{}]}, {"rails": [{"hca": "a", "pci": "b"}]}, {"root": "/no/such/tree"}]


@pytest.mark.parametrize("options", BAD)
def test_bad_options_are_refused(run, root, options):
    assert run(hca_facts, **{"root": root, **options})["failed"]


def test_a_capture_is_a_fixture_and_changes_nothing(tmp_path):
    root = tree.lay_out(tree.load("efa"), tmp_path)
    found = running.module(hca_facts, check=True, capture={"name": "shown", "about": "one line"}, root=str(root))
    made = found["fixture"]
    assert (found["changed"], made["name"], made["about"]) == (False, "shown", "one line")
    assert made["provenance"]["kind"] == "captured"


def test_a_tree_of_files_has_facts_and_is_not_probed(run, root):
    found = run(node_facts, root=root, probe={"services": ["k3s"]}, rails=[{"hca": "mlx5_7"}])
    assert found["probe"] == {"char_devices": None, "memlock": {}, "plugins": {}, "tools": [], "loaded": []}
    assert found["changed"] is False


@pytest.mark.parametrize("state", ["started", "finished", "absent"])
def test_check_mode_starts_and_ends_nothing(run, monkeypatch, state):
    for name in ("start", "collect", "stop"):
        monkeypatch.setattr(fabric_tests.rounds, name, lambda *_given: pytest.fail("an effect in check mode"))
    assert run(fabric_tests, _ansible_check_mode=True, state=state)["changed"] is False


def test_a_process_that_cannot_be_ended_says_what_to_do(run, monkeypatch):
    def refuse(_root):
        raise ValueError("half a record")

    monkeypatch.setattr(fabric_tests.rounds, "stop", refuse)
    found = run(fabric_tests, state="absent")
    assert (found["failed"], "wanted absent, seen half a record. Next step: " in found["msg"]) == (True, True)


@pytest.mark.parametrize(("module", "options"), [(fabric_tests, {"state": "finished"}), (node_facts, {"probe": {}})])
def test_modules_that_came_meanwhile_are_told(run, monkeypatch, root, module, options):
    before, after = {"ib_core"}, {"ib_core", "rdma_ucm", "rdma_cm"}
    told = iter([after] if module is fabric_tests else [before, after])
    monkeypatch.setattr(module, "rdma_modules", lambda: next(told))
    done = {"results": [], "error": None, "modules": ["ib_core"]}
    monkeypatch.setattr(fabric_tests.rounds, "collect", lambda *_given: dict(done))
    found = run(module, **options, **({"root": root} if module is node_facts else {}))
    assert found.get("probe", found)["loaded"] == ["rdma_cm", "rdma_ucm"]


@pytest.fixture(params=["h100-8x-cx7-ib", "lab-rxe-debian12", "names-persistent"])
def machine(request, tmp_path):
    found = tree.lay_out(tree.load(request.param), tmp_path / "node")
    (found / "var/lib/rancher/k3s/server/db/etcd/member/snap").mkdir(parents=True)
    (found / "etc/cni/multus/net.d").mkdir(parents=True)
    (found / "etc/cni/multus/net.d/gpufabric-rdma-rail0.conf").write_text("{}")
    return found


def test_in_one_call_it_says_all_that_is_asked(machine):
    found = call(node_facts, machine, software_hcas=True, k3s={}, networks={}, firewall=True, runtime=True)
    assert found["ansible_facts"] == call(hca_facts, machine, software_hcas=True)["ansible_facts"]
    assert found["k3s"]["cluster"] is True
    assert list(found["networks"]["files"]) == ["gpufabric-rdma-rail0.conf"]
    assert found["firewall"]["bound"].keys() >= {"tcp", "udp"}
    assert found["runtime"] == {"source": None, "cdi": None}


def test_a_node_without_iptables_is_read(script):
    folder = pathlib.Path(script("tools/systemctl", "exit 1")).parent
    assert running.module(node_facts, path=str(folder), facts=False, k3s={})["k3s"]["iptables"] is None


def test_what_is_not_asked_is_not_read(machine):
    found = call(node_facts, machine)
    assert not {"k3s", "networks", "firewall", "runtime", "probe"} & found.keys()


def test_a_file_that_cannot_be_read_is_named(machine):
    (machine / "usr/local/bin/k3s").mkdir(parents=True)
    found = call(node_facts, machine, k3s={})
    assert "usr/local/bin/k3s: wanted a readable file, seen Is a directory" in found["msg"]
