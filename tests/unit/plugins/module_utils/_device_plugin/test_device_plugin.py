"""The device plugin on a node: one code file, config from rails, what is planned, what other plugins are seen."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config, migration, node, wheels
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host

ROOT = pathlib.Path(__file__).resolve().parents[5]
LOCKED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]


# The code file.


def run(path, *arguments):
    command = [sys.executable, "-I", "-B", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_same_sources_make_the_same_bytes_whatever_their_dates_are(tmp_path):
    for name in ("device_plugin/rdma_device_plugin", "plugins/module_utils/hca"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
        )
    assert code.archive(tmp_path) == code.archive(ROOT)
    members = zipfile.ZipFile(io.BytesIO(code.archive(ROOT))).infolist()
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    assert [member.filename for member in members] == sorted(member.filename for member in members)


def test_the_code_file_runs_and_carries_the_library(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    assert run(tmp_path / "plugin.pyz", "-version").stdout.startswith("k8s-rdma-shared-dev-plugin version:")
    names = zipfile.ZipFile(tmp_path / "plugin.pyz").namelist()
    assert {"rdma_device_plugin/hca/rails.py", "rdma_device_plugin/config.schema.json"} <= set(names)


def test_an_incomplete_collection_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="not complete"):
        code.archive(tmp_path)


def test_byte_code_stands_beside_each_source_and_is_what_runs(tmp_path):
    (tmp_path / "source.pyz").write_bytes(code.archive(ROOT))
    node._compiled(str(tmp_path / "source.pyz"), str(tmp_path / "plugin.pyz"))
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive:
        names = archive.namelist()
    sources = [name for name in names if name.endswith(".py")]
    assert len(sources) > 20
    assert {f"{name}c" for name in sources} <= set(names)
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive, zipfile.ZipFile(tmp_path / "blind.pyz", "w") as blind:
        for name in names:
            blind.writestr(name, b"raise SystemExit(9)" if name.endswith(".py") else archive.read(name))
    assert run(tmp_path / "blind.pyz", "-version").returncode == 0


# The config.

RAILS = [
    {"index": 0, "hca": "mlx5_0", "port": 1, "netdev": "ens8f0np0", "pci": "0000:18:00.0"},
    {"index": 1, "hca": "mlx5_1", "port": 1, "netdev": None, "pci": "0000:2a:00.0"},
    {"index": 2, "hca": "rxe0", "port": 1, "netdev": "eth1", "pci": None},
]


def test_each_rail_becomes_a_resource_of_63_that_sets_no_link_up():
    made = json.loads(config.document("rails", RAILS, 300))
    assert made["periodicUpdateInterval"] == 300
    assert made["configList"] == [
        {
            "resourceName": "hca_shared_devices_0",
            "rdmaHcaMax": 63,
            "selectors": {"ifNames": ["ens8f0np0"]},
            "linkUp": False,
            "topology": "auto",
        },
        {
            "resourceName": "hca_shared_devices_1",
            "rdmaHcaMax": 63,
            "extraSelectors": {"pciAddresses": ["0000:2a:00.0"]},
            "linkUp": False,
            "topology": "auto",
        },
        {
            "resourceName": "hca_shared_devices_2",
            "rdmaHcaMax": 63,
            "selectors": {"ifNames": ["eth1"]},
            "softwareDevices": True,
            "linkUp": False,
            "topology": "auto",
        },
    ]


def test_the_plugin_takes_what_is_made_of_rails(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    (tmp_path / "config.json").write_text(config.document("rails", RAILS, 300))
    done = run(tmp_path / "plugin.pyz", "check-config", "-strict", str(tmp_path / "config.json"))
    assert done.returncode == 0, done.stderr
    assert "rdma/hca_shared_devices_0 (63), rdma/hca_shared_devices_1 (63)" in done.stdout


def test_a_list_passes_through_as_it_is():
    given = [{"ResourceName": "a", "whatever": [1], "linkup": False}, {"resourceName": "b"}]
    assert json.loads(config.document(given, None, 0)) == {"periodicUpdateInterval": 0, "configList": given}
    assert config.names(given) == ["a", "b"]
    assert config.sets_links_up(given)
    assert not config.sets_links_up(given[:1])


@pytest.mark.parametrize("given", ["rail", [], ["a"], {"resourceName": "a"}, None])
def test_other_input_is_refused_with_what_was_seen(given):
    with pytest.raises(ValueError, match="wanted rails, or a list of mappings"):
        config.document(given, RAILS, 300)


@pytest.mark.parametrize("rails", [None, []])
def test_rails_that_are_not_there_are_no_empty_config(rails):
    with pytest.raises(ValueError, match="wanted one rail or more"):
        config.document("rails", rails, 300)


def test_the_preflight_of_all_roles_tells_what_no_type_can(variables, options):
    assert host.values(variables, options) == []
    variables.update(device_plugin_resources="rail", device_plugin_interval_seconds=-1)
    told = {finding.object: finding.wanted for finding in host.values(variables, options)}
    assert told == {
        "variable device_plugin_resources": "rails, or a list of mappings as in configList",
        "variable device_plugin_interval_seconds": "0 or more",
    }


# Wheels.


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_node_gets_one_wheel_of_each_package(python, machine):
    found = wheels.fitting(LOCKED, python, machine)
    assert sorted(wheel["name"] for wheel in found.values()) == sorted(wheel["name"] for wheel in LOCKED)
    assert wheels.without(LOCKED, python, machine) == []
    assert all(machine in file or file.endswith("-any.whl") for file in found)


def test_a_python_without_a_compiled_wheel_is_told():
    assert wheels.without(LOCKED, "3.8", "x86_64") == ["grpcio"]
    assert wheels.without(LOCKED, "3.11", "riscv64") == ["grpcio", "protobuf"]


def test_pip_gets_every_locked_hash_and_not_itself():
    lines = wheels.requirements(LOCKED).splitlines()
    assert [line.split("==")[0] for line in lines] == [wheel["name"] for wheel in LOCKED if wheel["name"] != "pip"]
    assert sum(line.count("--hash=sha256:") for line in lines) == sum(
        len(wheel["files"]) for wheel in LOCKED if wheel["name"] != "pip"
    )


# The plan.

WANTED = {
    "present": True,
    "code": "c1",
    "stamp": "python 3.11\ngrpcio==1\n",
    "config": "{}\n",
    "unit": "[Unit]\n",
    "names": ["a"],
    "wheels_missing": [],
    "from_index": False,
    "migrate_allowed": None,
}
NOTHING = {
    "code": None,
    "stamp": "",
    "config": None,
    "unit": None,
    "enabled": False,
    "home": False,
    "service": {"state": "inactive (dead)", "active": False, "main_pid": 0, "stale": False, "status": ""},
    "rivals": [],
    "python": "3.11",
    "machine": "x86_64",
    "ensurepip": True,
}
SERVED = {
    **NOTHING,
    "code": "c1",
    "stamp": WANTED["stamp"],
    "config": {"content": "{}\n", "mode": "0644"},
    "unit": {"content": "[Unit]\n", "mode": "0644"},
    "enabled": True,
    "home": True,
    "service": {"state": "active (running)", "active": True, "main_pid": 7, "stale": False, "status": ""},
}
GO = {
    "pid": 9,
    "kind": planner.GO,
    "program": "/bin/k8s-rdma-shared-dp",
    "where": "in a pod",
    "pod": True,
    "unit": "",
    "config": "config /k8s-rdma-shared-dev-plugin/config.json in a pod",
    "names": ["a", "b"],
}


def actions(state, **wanted):
    made = planner.plan(state, {**WANTED, **wanted})
    assert not made.findings
    return [(change.object, change.action) for change in made.changes]


def test_everything_is_installed_and_started_where_nothing_is():
    assert actions(NOTHING) == [
        (planner.CODE, "install"),
        (planner.VENV, "install"),
        (planner.CONFIG, "write"),
        (planner.UNIT, "write"),
        (planner.ENABLED, "link"),
        (planner.OBJECT, "start"),
    ]


def test_nothing_changes_where_all_is_as_wanted():
    assert actions(SERVED) == []


@pytest.mark.parametrize(
    ("wanted", "written", "restarts"),
    [
        ({"config": '{"a": 1}\n'}, planner.CONFIG, False),
        ({"unit": "[Unit]\nBefore=k3s.service\n"}, planner.UNIT, True),
        ({"code": "c2"}, planner.CODE, True),
        ({"stamp": "python 3.13\n"}, planner.VENV, True),
    ],
)
def test_only_code_libraries_and_unit_restart_it(wanted, written, restarts):
    made = actions(SERVED, **wanted)
    assert written in [obj for obj, _action in made]
    assert ((planner.OBJECT, "restart") in made) == restarts


def test_a_run_that_was_cut_short_before_the_restart_is_made_good():
    stale = {**SERVED, "service": {**SERVED["service"], "stale": True}}
    assert actions(stale) == [(planner.OBJECT, "restart")]


def test_a_mode_that_somebody_changed_is_put_back():
    assert actions({**SERVED, "config": {"content": "{}\n", "mode": "0600"}}) == [(planner.CONFIG, "mode")]


def test_without_systemd_the_files_are_written_and_the_rest_is_told():
    made = planner.plan({**NOTHING, "service": None}, WANTED)
    assert (planner.OBJECT, "start") not in [(change.object, change.action) for change in made.changes]
    assert made.not_verified


def test_absent_takes_all_of_it_away_and_then_there_is_nothing_to_do():
    assert actions(SERVED, present=False) == [
        (planner.OBJECT, "stop"),
        (planner.ENABLED, "unlink"),
        (planner.UNIT, "remove"),
        (planner.CONFIG, "remove"),
        (planner.HOME, "remove"),
    ]
    assert actions(NOTHING, present=False) == []


def test_beside_the_go_plugin_with_the_same_resource_nothing_is_installed_without_consent():
    made = planner.plan({**NOTHING, "rivals": [GO]}, WANTED)
    (finding,) = made.findings
    assert not made.changes
    assert finding.object == "process 9 (the Go plugin, in a pod)"
    assert finding.wanted == "no other plugin that serves a"
    assert "/k8s-rdma-shared-dev-plugin/config.json" in finding.seen
    assert "device_plugin_migrate_allowed: true" in finding.next_step


def test_with_other_resources_both_may_run():
    assert actions({**SERVED, "rivals": [GO]}, names=["c"]) == []


def test_one_that_does_not_tell_its_resources_may_serve_ours():
    assert planner.plan({**NOTHING, "rivals": [{**GO, "names": None}]}, WANTED).findings


def test_the_answer_no_leaves_the_node_as_it_is_and_says_so():
    made = planner.plan({**NOTHING, "rivals": [GO]}, {**WANTED, "migrate_allowed": False})
    assert (made.changes, made.findings) == ([], [])
    assert "keeps serving a" in made.not_applied[0]


def test_a_unit_is_stopped_before_ours_is_installed():
    rival = {**GO, "pod": False, "unit": "k8s-rdma-shared-dp.service", "where": "unit k8s-rdma-shared-dp.service"}
    made = actions({**NOTHING, "rivals": [rival]}, migrate_allowed=True)
    assert made[0] == ("unit k8s-rdma-shared-dp.service", "stop and disable")
    assert made[-1] == (planner.OBJECT, "start")


def test_nothing_is_installed_before_the_pods_are_gone():
    unit = {**GO, "pod": False, "unit": "x.service"}
    assert actions({**NOTHING, "rivals": [GO, unit]}, migrate_allowed=True) == []


def test_a_process_that_nobody_can_be_told_to_end_is_a_problem_even_with_consent():
    rival = {**GO, "pod": False, "where": "started by hand"}
    (finding,) = planner.plan({**NOTHING, "rivals": [rival]}, {**WANTED, "migrate_allowed": True}).findings
    assert "/bin/k8s-rdma-shared-dp" in finding.next_step


@pytest.mark.parametrize(
    ("state", "wanted", "text"),
    [
        ({}, {"wheels_missing": ["grpcio"]}, "a locked wheel of grpcio"),
        ({"ensurepip": False}, {"from_index": True}, "ensurepip"),
    ],
)
def test_what_the_libraries_lack_is_told_before_anything_changes(state, wanted, text):
    made = planner.plan({**NOTHING, **state}, {**WANTED, **wanted})
    assert text in made.findings[0].wanted
    assert not made.changes
    assert planner.plan({**SERVED, **state}, {**WANTED, **wanted}).findings == []


# DaemonSets.

FOUND = {"namespace": "kube-system", "name": "rdma-shared-dp-ds", "image": "go:1", "ours": False, "owner": ""}
THERE = "kube-system/rdma-shared-dp-ds"


@pytest.mark.parametrize(
    ("found", "replaced", "allowed", "outcome"),
    [
        ([], "", None, (0, 0, 0)),
        ([FOUND], "", None, (0, 1, 0)),
        ([FOUND], "", True, (1, 0, 0)),
        ([FOUND], "", False, (0, 0, 1)),
        ([FOUND], THERE, None, (0, 0, 0)),
        ([{**FOUND, "name": "other"}], THERE, None, (0, 1, 0)),
        ([{**FOUND, "ours": True}], "", None, (1, 0, 0)),
        ([{**FOUND, "owner": "NicClusterPolicy nic"}], "", True, (0, 1, 0)),
        ([{**FOUND, "owner": "NicClusterPolicy nic"}], THERE, True, (0, 1, 0)),
    ],
)
def test_daemonsets_go_on_consent_and_those_of_an_operator_never(found, replaced, allowed, outcome):
    made = migration.plan(found, replaced, allowed)
    assert (len(made.changes), len(made.findings), len(made.not_applied)) == outcome


# Other plugins on the node.


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


# On a tree: what is carried out, apart from the environment, which tests/… of the fast nodes installs for real.


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


def test_code_that_was_cut_short_on_the_way_is_not_installed(tmp_path):
    root, staged = tmp_path / "root", tmp_path / "staged"
    (root / "proc").mkdir(parents=True)
    staged.mkdir()
    (staged / "plugin.pyz").write_bytes(b"half")
    made = planner.plan(node.read(str(root)), {**WANTED, "stamp": ""})
    with pytest.raises(node.Refused, match="transfer was cut short"):
        list(installer(root, staged, WANTED).apply(made.changes))
    assert node.read(str(root))["code"] is None
