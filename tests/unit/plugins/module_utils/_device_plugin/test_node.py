"""The device plugin on a node: other plugins found, files written and read back."""

from __future__ import annotations

import hashlib
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.tests.tools.device_plugin_wanted import WANTED

ROOT = pathlib.Path(__file__).resolve().parents[5]


def process(root, pid, program, *arguments, cgroup="0::/user.slice\n", config_text=None):
    folder = root / f"proc/{pid}"
    (folder / "root/k8s-rdma-shared-dev-plugin").mkdir(parents=True)
    (folder / "exe").symlink_to(program)
    (folder / "cmdline").write_text("\0".join(arguments) + "\0")
    (folder / "cgroup").write_text(cgroup)
    if config_text is not None:
        (folder / "root/k8s-rdma-shared-dev-plugin/config.json").write_text(config_text)


PLUGIN = "/bin/k8s-rdma-shared-dp"
LISTED = '{"CONFIGLIST": [{"ResourceName": "a"}, {"resourceName": "b"}]}'
POD = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n"


def test_plugins_are_seen_with_the_resources_of_the_config_they_were_started_with(tmp_path):
    process(tmp_path, 10, PLUGIN, PLUGIN, cgroup=POD, config_text=LISTED)
    process(tmp_path, 11, "/usr/bin/python3.11", "/opt/p/bin/python3", "-I", PLUGIN, cgroup=POD, config_text=LISTED)
    process(tmp_path, 12, PLUGIN, PLUGIN, "--config-file", "/etc/other.json", cgroup="0::/system.slice/x.service\n")
    process(tmp_path, 13, "/usr/bin/python3.11", "python3", "-I", "-B", planner.CODE, cgroup=f"0::/{planner.SERVICE}\n")
    process(tmp_path, 14, "/usr/bin/python3.11", "python3", "-I", PLUGIN, "check-config", "/c.json")
    process(tmp_path, 15, "/usr/bin/vim", "vim", PLUGIN)
    process(tmp_path, 16, "/usr/bin/k3s", "k3s")
    found = {rival["pid"]: rival for rival in node.read(str(tmp_path))["rivals"]}
    assert sorted(found) == [10, 11, 12]
    assert (found[10]["kind"], found[10]["pod"], found[10]["names"]) == (planner.GO, True, ["a", "b"])
    assert (found[11]["kind"], found[11]["pod"], found[11]["names"]) == (planner.OURS, True, ["a", "b"])
    assert (found[12]["pod"], found[12]["names"]) == (False, None)
    assert "/etc/other.json" in found[12]["config"]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ([], node.UPSTREAM_CONFIG),
        (["-config-file", "/a"], "/a"),
        (["--config-file=/b", "-use-cdi"], "/b"),
        (["-use-cdi", "-config-file"], node.UPSTREAM_CONFIG),
    ],
)
def test_the_config_of_another_plugin_is_found_as_go_reads_flags(arguments, path):
    assert node._config_path([PLUGIN, *arguments]) == path


@pytest.mark.parametrize("text", ["", "[]", "{", '{"configList": 5}', '{"configList": [5]}', '{"configList": [{}]}'])
def test_a_config_that_cannot_be_read_names_no_resources(tmp_path, text):
    process(tmp_path, 10, PLUGIN, PLUGIN, config_text=text)
    assert node.read(str(tmp_path))["rivals"][0]["names"] is None


def installer(root, staged, wanted):
    def refuse(command, **_options):
        raise AssertionError(f"nothing is to be run: {command}")

    return node.Installer(str(root), refuse, wanted, str(staged), {}, "")


def settled(root, staged):
    source = code.archive(ROOT)
    (staged / "plugin.pyz").write_bytes(source)
    wanted = {**WANTED, "code": hashlib.sha256(source).hexdigest()}
    state = node.read(str(root))
    made = planner.plan({**state, "stamp": wanted["stamp"]}, wanted)
    return [change.object for change in installer(root, staged, wanted).apply(made.changes)], wanted


def test_code_config_and_unit_are_put_in_place_and_read_back(tmp_path):
    root, staged = tmp_path / "root", tmp_path / "staged"
    (root / "proc").mkdir(parents=True)
    staged.mkdir()
    done, wanted = settled(root, staged)
    assert done == [planner.CODE, planner.CONFIG, planner.UNIT, planner.ENABLED]
    state = node.read(str(root))
    assert state["code"] == wanted["code"]
    assert (state["config"]["content"], state["unit"]["mode"]) == (wanted["config"], "0644")
    assert planner.plan({**state, "stamp": wanted["stamp"]}, wanted).changes == []
    with open(f"{root}{planner.CODE}", "ab") as file:
        file.write(b"tampered")
    assert node.read(str(root))["code"] is None
    removal = planner.plan(node.read(str(root)), {**wanted, "present": False})
    assert len(list(installer(root, staged, wanted).apply(removal.changes))) == 4
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_code_that_was_truncated_on_the_way_is_not_installed(tmp_path):
    root, staged = tmp_path / "root", tmp_path / "staged"
    (root / "proc").mkdir(parents=True)
    staged.mkdir()
    (staged / "plugin.pyz").write_bytes(b"half")
    made = planner.plan(node.read(str(root)), {**WANTED, "stamp": ""})
    with pytest.raises(node.Refused, match="transfer was incomplete"):
        list(installer(root, staged, WANTED).apply(made.changes))
    assert node.read(str(root))["code"] is None
