"""The playbooks, run for real with a local connection against laid-out trees: bad input, plan, check mode, converge."""

import pathlib
import re
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries
from ansible_collections.gpufabric.rdma.tests.tools import running, tree


@pytest.fixture
def play(tmp_path):
    """play(playbook, hosts, *arguments): exit code and output; hosts are {name: variables}."""

    def run(playbook, hosts, *arguments, **environment):
        said = {} if any("k3s_bundle_dir" in variables for variables in hosts.values()) else {"cluster": False}
        nodes = {name: running.local(**said, **variables) for name, variables in hosts.items()}
        words, inventory = (f"gpufabric.rdma.{playbook}", *arguments), {"gpu_nodes": {"hosts": nodes}}
        own = {"ANSIBLE_SSH_TIMEOUT": "3", "PWD": str(tmp_path), **environment}
        code, output = running.play(tmp_path, *words, inventory=inventory, **own)
        assert "Traceback" not in output
        return code, output

    return run


@pytest.fixture
def node(tmp_path):
    """node(fixture): variables of a host with this tree; its services are left alone."""

    def lay_out(name, number=0, **variables):
        root = tree.lay_out(tree.load(name), tmp_path / f"{name}-{number}")
        return {"discovery_root": str(root), "limits_services": ["containerd"], **variables}

    return lay_out


def files(hosts):
    """{path: content} of all /etc that a run may write."""
    trees = [pathlib.Path(variables.get("discovery_root", "/nowhere"), "etc") for variables in hosts.values()]
    return {path: path.read_bytes() for etc in trees for path in etc.rglob("*") if path.is_file()}


NETWORK = {"name": "rail1", "type": "macvlan", "master": "nothing0"}


def test_all_problems_of_all_layers_and_hosts_come_in_one_list_before_anything_changes(play, node, tmp_path):
    cluster = {
        "k3s_bundle_dir": str(tmp_path / "nothing"),
        "k3s_cluster_cidr": "10.42.0.0/16",
        "k3s_service_cidr": "10.42.128.0/17",
        "cni_plugins_names": ["loopback", "bridge", "host-local", "portmap"],
        "multus_global_namespaces": ["kube-system"],
        "networks_attachments": [NETWORK],
    }
    wrong = {"discovery_expected_hcas": 8, "discovery_expected_ports": ["mlx5_7/1"]}
    nodes = {
        "good": node("h100-8x-cx7-ib"),
        "typo": node("h100-8x-cx7-ib", 1, kernel_modules_gpudirct="auto", rdma_netns_mode="private"),
        "wrong": node("gh200-cx7-roce", **wrong),
        "undefined": node("gh200-cx7-roce", 1, limits_memlock="{{ nobody_defines_this }}"),
        "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9},
        "ancient": {"ansible_connection": "local", "ansible_python_interpreter": str(tmp_path / "python")},
    }
    (tmp_path / "python").write_text("#!/bin/sh\necho SyntaxError: future feature annotations >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    clustered = {f"node{number}": node("h100-8x-cx7-ib", number + 2, **cluster) for number in (1, 2)}
    clustered["node2"]["rdma_netns_mode"] = "private"
    of_nodes = ("typo  variable kernel_modules_gpudirct", "typo  variable rdma_netns_mode", "wrong  HCA")
    of_nodes += ("wrong  discovery_expected_ports: mlx5_7/1", "undefined  variable limits_memlock", "away  connection")
    of_nodes += ("ancient  facts",)
    of_roles = ("node2  variable rdma_netns_mode", f"the controller  {tmp_path}/nothing/bundle.yml")
    of_roles += ("node1, node2  variable cni_plugins_names", "node1, node2  variable multus_global_namespaces")
    for hosts, lines in ((nodes, of_nodes), (clustered, of_roles)):
        before = files(hosts)
        code, output = play("site", hosts)
        assert code != 0
        _head, _said, listed = output.partition(" nothing has been changed.")
        assert [line for line in lines if f"\n{line}\n" not in listed] == [], output
        assert "Configure the nodes" not in output
        assert files(hosts) == before
        assert hosts is not nodes or "SyntaxError: future feature" in listed, "what the node printed is the reason"
    assert "nothing0" in listed
    assert output.count("k3s_service_cidr") == listed.count("k3s_service_cidr") > 0, "one list, not two"


def test_a_strategy_without_a_common_plan_is_refused(play, node):
    hosts = {f"node{number}": node("h100-8x-cx7-ib", number) for number in (1, 2)}
    before = files(hosts)
    code, output = play("host", hosts, ANSIBLE_STRATEGY="free")
    assert (code, files(hosts)) == (2, before), output
    assert "controller:strategy" in output, output


def test_a_run_writes_what_check_mode_announced_and_its_page_and_a_second_run_nothing(play, node, tmp_path):
    hosts = {f"node{number}": node("h100-8x-cx7-ib", number, limits_services=["k3s"]) for number in (1, 2)}
    root, before, page = hosts["node1"]["discovery_root"], files(hosts), tmp_path / "hosts-report.html"
    code, announced = play("site", hosts, "--check")
    assert (code, files(hosts), page.exists()) == (0, before, False), announced
    assert f"\nThe report would be {page}\n" in announced
    code, first = play("site", hosts)
    assert code == 0, first
    written = [
        str(path).removeprefix(root) for path in files(hosts) if path not in before and str(path).startswith(root)
    ]
    plan = announced.partition("PLAY [Configure the nodes")[0]
    assert written
    assert [path for path in written if path not in plan] == [], "the plan names each file"
    said = first.index(f"\nThe report is {page}\n")
    assert first.index("Verification on 2 nodes") < said < first.index("PLAY RECAP")
    assert [name for name in hosts if name not in page.read_text()] == []
    page.unlink()
    code, second = play("site", hosts, "-e", "report_written=false")
    assert (code, second.count("changed=0"), page.exists(), "report would be" in second) == (0, 2, False, False), second


def test_a_second_run_on_one_node_is_short(play, node, tmp_path):
    hosts = {"node1": node("h100-8x-cx7-ib", limits_services=["k3s"], cluster=False, k3s_bundle_dir=str(tmp_path))}
    code, first = play("host", hosts)
    assert code == 0, first
    for playbook, words, most in (("site", (), 122), ("verify", (), 75), ("drift", ("--check",), 60)):
        code, output = play(playbook, hosts, *words)
        assert (code, output.count("changed=0")) == (0, 1), output
        # Nodes do not print what a tree of files cannot show.
        told = re.sub(r"^Not verified\n.*?\n\n", "", output, flags=re.MULTILINE | re.DOTALL)
        assert len(told.splitlines()) <= most, told


def test_a_run_whose_checks_fail_ends_with_the_page_and_with_its_failure(play, node, tmp_path):
    """The page of such a run is the one that is needed."""
    hosts = {f"node{number}": node("h100-8x-cx7-ib", number, limits_services=["k3s"]) for number in (1, 2)}
    (port,) = pathlib.Path(hosts["node2"]["discovery_root"]).glob("sys/class/infiniband/mlx5_0/ports/1/state")
    port.write_text("1: DOWN\n")
    code, output = play("site", hosts, "-e", f"report_file={tmp_path}/new/page.html", "-e", "report_title='Rack A'")
    assert code == 2, output
    assert "of the checks failed" in output
    failed = re.findall(r"^(node\d) .* failed=(\d)", output, re.MULTILINE)
    assert failed == [("node1", "0"), ("node2", "1")], "each host fails by its own checks"
    assert f"\nThe report is {tmp_path}/new/page.html\n" in output
    assert "Rack A" in (tmp_path / "new/page.html").read_text()


@pytest.mark.parametrize("further", [{}, {"rdma_netns_mode": "private"}])
def test_a_page_that_could_not_be_written_is_in_the_list_before_anything_changes(play, node, tmp_path, further):
    (tmp_path / "file").write_text("no folder")
    hosts = {f"node{number}": node("h100-8x-cx7-ib", number, **further) for number in (1, 2)}
    before = files(hosts)
    code, output = play("site", hosts, "-e", f"report_file={tmp_path}/file/page.html")
    assert code != 0
    assert f"\nthe controller  the report {tmp_path}/file/page.html\n" in output, output
    assert "report_written to false" in output
    assert ("variable rdma_netns_mode" in output) == bool(further)
    assert files(hosts) == before
    code, output = play("host", hosts, "--check", "-e", f"report_file={tmp_path}/file/page.html")
    assert f"{tmp_path}/file" not in output, "host.yml writes none"


# --- a run over no node has checked nothing: it fails and names the group ---------------------------------------------

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Playbooks that run on the controller need no node.
WITHOUT_NODES = ["bundle", "import_policy", "report"]
PLAYBOOKS = sorted({path.stem for path in ROOT.glob("playbooks/*.yml")} - {*WITHOUT_NODES})


def run(tmp_path, playbook, inventory, *arguments, **options):
    """Output of a run that is refused before any node is called, in one line."""
    words = (f"gpufabric.rdma.{playbook}", *arguments)
    code, output = running.play(tmp_path, *words, inventory=inventory, **options)
    assert (code, "UNREACHABLE" in output) == (2, False), output
    return " ".join(output.split())


OTHERS = {"gpu_node": {"hosts": {"a": {"ansible_connection": "ssh", "ansible_host": "192.0.2.1"}}}}


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_inventory_without_the_group_is_refused(tmp_path, playbook):
    output = run(tmp_path, playbook, OTHERS)
    for text in ("group gpu_nodes", "at least one node", "hosts only in: gpu_node", "discovery_hosts"):
        assert text in output


@pytest.mark.parametrize(("inventory", "arguments", "words"), [
    ({"all": {"hosts": {}}}, (), ("group gpu_nodes", "no hosts")),
    ({**OTHERS, "gpu_nodes": {"hosts": {"b": {}}}}, ("--limit", "a"), ("group gpu_nodes", "none within --limit a")),
    (OTHERS, ("-e", "discovery_hosts=racks"), ("group racks", "hosts only in: gpu_node")),
    ({"racks": {"hosts": {"a": {}}, "vars": {"discovery_hosts": "racks"}}}, (), ("-e discovery_hosts=racks",)),
])  # fmt: skip
def test_each_way_to_no_node_is_named(tmp_path, inventory, arguments, words):
    output = run(tmp_path, "discover", inventory, *arguments)
    assert [text for text in words if text not in output] == [], output


@pytest.mark.parametrize("playbook", WITHOUT_NODES)
def test_a_limit_without_the_controller_is_refused_where_nothing_else_works(tmp_path, playbook):
    output = run(tmp_path, playbook, OTHERS, "--limit", "a", "-e", "policy_files=none.yaml")
    assert "--limit a: wanted localhost" in output


def test_a_policy_is_compared_with_nodes_or_refused(tmp_path):
    (tmp_path / "policy.yml").write_text("{}")
    output = run(tmp_path, "import_policy", OTHERS, "-e", "policy_files=policy.yml", "-e", "policy_hosts=gpu_nodes")
    assert "group gpu_nodes: wanted at least one node" in output
    assert not (tmp_path / "group_vars").exists()


def test_a_controller_without_netaddr_is_refused_before_any_node_is_called(tmp_path):
    """The cluster layer met it after the host layer had changed the nodes; the refusal is first in each playbook."""
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['netaddr'] = None\n")
    python = [sys.executable, "-m", "ansible", "playbook"]
    inventory = {"gpu_nodes": {"hosts": {"a": {"ansible_host": "192.0.2.1"}}}}
    output = run(tmp_path, "site", inventory, program=python, PYTHONPATH=str(tmp_path))
    assert "-m pip install netaddr" in output


@pytest.mark.parametrize(("said", "answer"), [
    ([{}], "site:cluster"),
    ([{"cluster": "maybe"}], "site:cluster-differs"),
    ([{"cluster": True}, {"cluster": 0}], "site:cluster-differs"),
    ([{"cluster": "no"}, {}], "what says so: host, cluster: false"),
    ([{"k3s_bundle_dir": "/srv/bundle"}], "what says so: host and cluster, k3s_bundle_dir"),
    ([{"cluster": "off", "k3s_bundle_dir": "/srv/bundle"}], "what says so: host, cluster: false"),
])  # fmt: skip
def test_site_says_which_layers_it_runs_or_asks_before_any_node_is_called(tmp_path, said, answer):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    inventory = {"gpu_nodes": {"hosts": {f"node{number}": {**away, **each} for number, each in enumerate(said)}}}
    _code, output = running.play(tmp_path, "gpufabric.rdma.site", inventory=inventory, ANSIBLE_SSH_TIMEOUT="2")
    assert answer in " ".join(output.split())
    assert ("Gather facts of the node" in output) is not answer.startswith("site:")


def test_a_controller_with_an_older_ansible_core_is_refused():
    assert [finding.id for finding in libraries.findings([], core="2.18.19")] == ["controller:ansible-core"]
    assert [libraries.findings([], core=core) for core in ("2.19.0", "2.20.1rc1", "2.21.4")] == [[], [], []]
