"""The device plugin on a node: rivals, files, wheels, sockets; its configuration; nodes that serve over DRA."""

import hashlib
import json
import pathlib
import socket
import time

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import ask, config, dra, node, wheels
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.plan import CONFIG, ENABLED, SERVICE, UNIT
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import migration
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code

ROOT = pathlib.Path(__file__).resolve().parents[5]
LOCKED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]
# A run's wanted state of the device plugin, as input of its plan; tests override single keys.
WANTED = {"present": True, "code": "c1", "stamp": "python 3.11\ngrpcio==1\n", "config": "{}\n", "unit": "[Unit]\n"}
WANTED |= {"names": ["a"], "wheels_missing": [], "from_index": False, "migrate_allowed": None, "kubeconfig": None}


@pytest.fixture
def process(tmp_path, put):
    def run(pid, program, *arguments, cgroup="0::/user.slice\n", config_text=None):
        put(f"proc/{pid}/cgroup", cgroup)
        put(f"proc/{pid}/cmdline", "\0".join(arguments) + "\0")
        (tmp_path / f"proc/{pid}/exe").symlink_to(program)
        if config_text is not None:
            put(f"proc/{pid}/root/k8s-rdma-shared-dev-plugin/config.json", config_text)

    return run


PLUGIN = "/bin/k8s-rdma-shared-dp"
LISTED = '{"CONFIGLIST": [{"ResourceName": "a"}, {"resourceName": "b"}]}'
POD = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n"


PYTHON, SITE = "/usr/bin/python3.11", "0::/system.slice/x.service\n"


def test_plugins_are_seen_with_the_resources_of_the_config_they_were_started_with(tmp_path, process):
    process(10, PLUGIN, PLUGIN, cgroup=POD, config_text=LISTED)
    process(11, PYTHON, "/opt/p/bin/python3", "-I", PLUGIN, cgroup=POD, config_text=LISTED)
    process(12, PLUGIN, PLUGIN, "--config-file", "/etc/other.json", cgroup=SITE)
    process(13, PYTHON, "python3", "-I", "-B", planner.CODE, cgroup=f"0::/{planner.SERVICE}\n")
    process(14, PYTHON, "python3", "-I", PLUGIN, "check-config", "/c.json")
    process(15, "/usr/bin/vim", "vim", PLUGIN)
    process(16, "/usr/bin/k3s", "k3s")
    found = {rival["pid"]: rival for rival in node.read(str(tmp_path))["rivals"]}
    known = {pid: (rival["kind"], rival["pod"], rival["names"]) for pid, rival in found.items()}
    ab = ["a", "b"]
    assert known == {10: (planner.GO, True, ab), 11: (planner.OURS, True, ab), 12: (planner.GO, False, None)}
    assert "/etc/other.json" in found[12]["config"]


def installer(root, staged, wanted):
    def refuse(command, **_options):
        raise AssertionError(f"nothing is to be run: {command}")

    return node.Installer(str(root), refuse, wanted, str(staged), {}, "")


@pytest.fixture
def folders(tmp_path):
    for name in ("root/proc", "staged"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "root", tmp_path / "staged"


def test_code_config_and_unit_are_put_in_place_and_read_back(folders):
    root, staged = folders
    source = code.archive(ROOT)
    (staged / "plugin.pyz").write_bytes(source)
    wanted = {**WANTED, "code": hashlib.sha256(source).hexdigest()}
    made = planner.plan({**node.read(str(root)), "stamp": wanted["stamp"]}, wanted)
    done = [change.object for change in installer(root, staged, wanted).apply(made.changes)]
    assert done == [planner.CODE, CONFIG, UNIT, ENABLED]
    state = node.read(str(root))
    assert state["code"] == wanted["code"]
    assert (state["config"]["content"], state["unit"]["mode"]) == (wanted["config"], "0644")
    assert planner.plan({**state, "stamp": wanted["stamp"]}, wanted).changes == []
    with open(f"{root}{planner.CODE}", "ab") as file:
        file.write(b"tampered")
    assert node.read(str(root))["code"] is None
    foreign = root / CONFIG.replace(".json", ".json.orig").lstrip("/")
    foreign.touch()
    removal = planner.plan(node.read(str(root)), {**wanted, "present": False})
    assert len(list(installer(root, staged, wanted).apply(removal.changes))) == 4
    assert [path for path in root.rglob("*") if path.is_file()] == [foreign]


def test_code_that_was_truncated_on_the_way_is_not_installed(folders):
    root, staged = folders
    (staged / "plugin.pyz").write_bytes(b"half")
    beside = {**node.read(str(root)), "rivals": [OF_A_UNIT]}
    made = planner.plan(beside, {**WANTED, "stamp": "", "migrate_allowed": True})
    with pytest.raises(node.Refused, match="incomplete"):  # and the other plugin still serves
        list(installer(root, staged, WANTED).apply(made.changes))
    assert node.read(str(root))["code"] is None


def test_eight_silent_sockets_take_no_longer_than_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path holds 107 characters
    monkeypatch.setattr(ask.ask, "__defaults__", (1.0,))
    names = [f"rail{number}" for number in range(8)]
    listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _name in names]
    for name, listener in zip(names, listeners):
        listener.bind(f"{name}.sock")
        listener.listen()
    begun = time.monotonic()
    found = ask.ask_all({**dict.fromkeys(names, SERVICE), "gone": SERVICE, "../up": SERVICE}, ["."])
    assert time.monotonic() - begun < 6
    for listener in listeners:
        listener.close()
    for name in names:
        ((path, said),) = found.pop(name)["sockets"].items()
        assert (path, "no answer within 1 s" in said) == (f"./{name}.sock", True)
    assert found == {"gone": {"sockets": {}, "by": SERVICE}}


DRA = "rdma.gpufabric.io-reg"


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("", ["a", "b"]), (" -mode device-plugin", ["a", "b"]), (" -mode both", ["a", DRA]), (" -mode dra", [DRA])],
)
def test_what_is_served_over_dra_is_asked_for_at_the_drivers_socket(tmp_path, put, mode, wanted):
    put(UNIT, f"[Service]\nExecStart=/venv/bin/python3 plugin.pyz -use-cdi{mode} -node-name n\n")
    link = put(ENABLED)
    link.unlink()
    link.symlink_to("../rdma-device-plugin.service")
    entries = [{"resourceName": "a"}, {"resourcename": "b", "API": "dra"}]
    if mode in ("", " -mode device-plugin"):
        entries[1].pop("API")
    put(CONFIG, json.dumps({"configList": entries}))
    assert node.served(str(tmp_path)) == dict.fromkeys(wanted, SERVICE)
    link.unlink()
    assert node.served(str(tmp_path)) == {}


def test_pip_gets_every_locked_hash_and_not_itself():
    lines = wheels.requirements(LOCKED).splitlines()
    listed = [wheel for wheel in LOCKED if wheel["name"] != "pip"]
    assert [line.split("==")[0] for line in lines] == [wheel["name"] for wheel in listed]
    assert sum(line.count("--hash=sha256:") for line in lines) == sum(len(wheel["files"]) for wheel in listed)


FOUND = {"namespace": "kube-system", "name": "rdma-shared-dp-ds", "image": "go:1", "ours": False, "owner": ""}
THERE = "kube-system/rdma-shared-dp-ds"


@pytest.mark.parametrize(("found", "replaced", "allowed", "outcome"), [
    ([], "", None, (0, 0, 0)),
    ([FOUND], "", None, (0, 1, 0)),
    ([FOUND], "", True, (1, 0, 0)),
    ([FOUND], "", False, (0, 0, 1)),
    ([FOUND], THERE, None, (0, 0, 0)),
    ([{**FOUND, "name": "other"}], THERE, None, (0, 1, 0)),
    ([{**FOUND, "ours": True}], "", None, (1, 0, 0)),
    ([{**FOUND, "owner": "NicClusterPolicy nic"}], "", True, (0, 1, 0)),
    ([{**FOUND, "owner": "NicClusterPolicy nic"}], THERE, True, (0, 1, 0)),
])  # fmt: skip
def test_daemonsets_go_on_consent_and_those_of_an_operator_never(found, replaced, allowed, outcome):
    made = migration.plan(found, {"replaced": replaced, "migrate_allowed": allowed})
    assert (len(made.changes), len(made.findings), len(made.not_applied)) == outcome


STOPPED = {"state": "inactive (dead)", "active": False, "main_pid": 0, "stale": False, "status": ""}
NOTHING = dict.fromkeys(("code", "config", "unit", "kubeconfig", "token"))
NOTHING |= {"enabled": False, "home": False, "stamp": "", "clusters": {}, "service": STOPPED, "rivals": []}
NOTHING |= {"python": "3.11", "machine": "x86_64", "ensurepip": True}
SERVED = {**NOTHING, "enabled": True, "home": True, "code": "c1", "stamp": WANTED["stamp"]}
SERVED |= {"config": {"content": "{}\n", "mode": "0644"}, "unit": {"content": "[Unit]\n", "mode": "0644"}}
SERVED["service"] = {**STOPPED, "state": "active (running)", "active": True, "main_pid": 7}
GO = {"pid": 9, "kind": planner.GO, "program": "/bin/k8s-rdma-shared-dp", "where": "in a pod", "pod": True, "unit": ""}
GO |= {"config": "config /k8s-rdma-shared-dev-plugin/config.json in a pod", "names": ["a", "b"]}


def actions(state, **wanted):
    made = planner.plan(state, {**WANTED, **wanted})
    assert not made.findings
    return [(change.object, change.action) for change in made.changes]


def changed(state, **wanted):
    made = planner.plan(state, {**WANTED, **wanted})
    objects = [finding.object for finding in made.findings]
    return [change.object for change in made.changes], objects, made.not_applied, made.not_verified


INSTALLED = [(planner.CODE, "install"), (planner.VENV, "install"), (planner.CONFIG, "write"), (planner.UNIT, "write")]
RESTART = (planner.OBJECT, "restart")
GONE = [(planner.OBJECT, "stop"), (planner.ENABLED, "unlink"), (planner.UNIT, "remove"), (planner.CONFIG, "remove")]
STALE = {**SERVED, "service": {**SERVED["service"], "stale": True}}
OF_A_UNIT = {**GO, "pod": False, "unit": "k8s-rdma-shared-dp.service", "where": "unit k8s-rdma-shared-dp.service"}


CLOSED = {**SERVED, "config": {"content": "{}\n", "mode": "0600"}}
RIVALS = {**NOTHING, "rivals": [GO, OF_A_UNIT]}
NEW = [*INSTALLED, (planner.ENABLED, "link"), (planner.OBJECT, "start")]
BESIDE, STOPS = {**NOTHING, "rivals": [OF_A_UNIT]}, ("unit k8s-rdma-shared-dp.service", "stop and disable")
DONE = {
    "nothing there": (NOTHING, {}, NEW),
    "a unit stops first": (BESIDE, {"migrate_allowed": True}, [STOPS, *NEW]),
    "all as wanted": (SERVED, {}, []),
    "config": (SERVED, {"config": '{"a": 1}\n'}, [(planner.CONFIG, "write")]),
    "unit": (SERVED, {"unit": "[Unit]\n\n"}, [(planner.UNIT, "write"), RESTART]),
    "code": (SERVED, {"code": "c2"}, [(planner.CODE, "install"), RESTART]),
    "libraries": (SERVED, {"stamp": "python 3.13\n"}, [(planner.VENV, "install"), RESTART]),
    "interrupted before the restart": (STALE, {}, [RESTART]),
    "mode": (CLOSED, {}, [(planner.CONFIG, "mode")]),
    "absent": (SERVED, {"present": False}, [*GONE, (planner.HOME, "remove")]),
    "absent and nothing there": (NOTHING, {"present": False}, []),
    "another plugin with other resources": ({**SERVED, "rivals": [GO]}, {"names": ["c"]}, []),
    "nothing before the pods are gone": (RIVALS, {"migrate_allowed": True}, []),
}


@pytest.mark.parametrize(("state", "wanted", "done"), DONE.values(), ids=DONE)
def test_what_is_done(state, wanted, done):
    assert actions(state, **wanted) == done


def test_without_systemd_the_files_are_written_and_the_rest_is_reported():
    done, findings, _not_applied, not_verified = changed({**NOTHING, "service": None})
    assert (planner.UNIT in done, planner.OBJECT in done, findings, bool(not_verified)) == (True, False, [], True)


BY_HAND = {**GO, "pod": False, "where": "started by hand"}


@pytest.mark.parametrize(
    ("rival", "allowed", "findings", "left"),
    [
        pytest.param(GO, None, ["process 9 (the Go plugin, in a pod)"], 0, id="no consent"),
        pytest.param({**GO, "names": None}, None, ["process 9 (the Go plugin, in a pod)"], 0, id="it may serve ours"),
        pytest.param(GO, False, [], 1, id="the answer is no"),
        pytest.param(BY_HAND, True, ["process 9 (the Go plugin)"], 0, id="it cannot be stopped"),
    ],
)
def test_beside_another_plugin_nothing_is_installed_without_consent(rival, allowed, findings, left):
    done, found, not_applied, _not_verified = changed({**NOTHING, "rivals": [rival]}, migrate_allowed=allowed)
    assert (done, found, len(not_applied)) == ([], findings, left)


@pytest.mark.parametrize(
    ("wanted", "objects"),
    [
        ({"migrate_allowed": True}, ["process 9 (the Go plugin)"]),
        ({"migrate_allowed": False}, []),
        ({"present": False}, []),
    ],
)
def test_a_plugin_in_pods_that_has_to_go_first_keeps_its_node_in_the_run(wanted, objects):
    """Nothing changes on the node until then, so without these a run would take it for settled."""
    assert planner.in_pods(RIVALS, {**WANTED, **wanted}) == objects


@pytest.mark.parametrize(
    ("state", "wanted", "text"),
    [
        ({}, {"wheels_missing": ["grpcio"]}, "a locked wheel of grpcio"),
        ({"ensurepip": False}, {"from_index": True}, "ensurepip"),
    ],
)
def test_what_the_libraries_lack_is_reported_before_anything_changes(state, wanted, text):
    made = planner.plan({**NOTHING, **state}, {**WANTED, **wanted})
    assert text in made.findings[0].wanted
    assert not made.changes
    assert planner.plan({**SERVED, **state}, {**WANTED, **wanted}).findings == []


KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
CLUSTER = {"server": "https://127.0.0.1:6444", "certificate-authority": "/ca.crt"}
OVER_DRA = {"kubeconfig": {"source": KUBELET, "server": ""}}
WRITTEN = {"content": planner.kubeconfig(CLUSTER), "mode": "0644"}


def test_over_dra_a_kubeconfig_names_the_kubelets_server_and_a_token_of_its_own():
    assert (planner.KUBECONFIG, "write") in actions({**NOTHING, "clusters": {KUBELET: CLUSTER}}, **OVER_DRA)
    document = json.loads(WRITTEN["content"])
    assert document["clusters"][0]["cluster"] == CLUSTER
    assert document["users"][0]["user"] == {"tokenFile": planner.TOKEN}
    known = {**SERVED, "clusters": {KUBELET: CLUSTER}, "kubeconfig": WRITTEN}
    assert actions(known, **OVER_DRA) == []
    moved = {"kubeconfig": {"source": KUBELET, "server": "https://10.0.0.1:6443"}}
    assert actions(known, **moved) == [(planner.KUBECONFIG, "write"), (planner.OBJECT, "restart")]


def test_a_node_that_has_joined_no_cluster_gets_the_plugin_and_is_told():
    done, _findings, _not_applied, not_verified = changed({**NOTHING, "clusters": {KUBELET: None}}, **OVER_DRA)
    assert (planner.KUBECONFIG in done, len(not_verified)) == (False, 1)


def test_without_dra_kubeconfig_and_token_of_an_earlier_run_go_and_no_token_is_shown():
    left = {**SERVED, "kubeconfig": WRITTEN, "token": {"content": "a token", "mode": ""}}
    assert actions(left) == [(planner.KUBECONFIG, "remove"), (planner.TOKEN, "remove"), RESTART]
    removed = [name for name, _action in actions(left, present=False)]
    assert removed[2:5] == [planner.UNIT, planner.KUBECONFIG, planner.TOKEN]


RAILS = [
    {"index": 0, "hca": "mlx5_0", "port": 1, "netdev": "ens8f0np0", "pci": "0000:18:00.0"},
    {"index": 1, "hca": "mlx5_1", "port": 1, "netdev": None, "pci": "0000:2a:00.0"},
    {"index": 2, "hca": "rxe0", "port": 1, "netdev": "eth1", "pci": None},
]


def test_each_rail_becomes_a_resource_of_63_that_sets_no_link_up():
    made = json.loads(config.document(config.entries("rails", RAILS), 300))
    assert made["periodicUpdateInterval"] == 300
    same = {"rdmaHcaMax": 63, "linkUp": False, "topology": "auto"}
    assert made["configList"] == [
        {"resourceName": "hca_shared_devices_0", "selectors": {"ifNames": ["ens8f0np0"]}, **same},
        {"resourceName": "hca_shared_devices_1", "extraSelectors": {"pciAddresses": ["0000:2a:00.0"]}, **same},
        {"resourceName": "hca_shared_devices_2", "selectors": {"ifNames": ["eth1"]}, "softwareDevices": True, **same},
    ]


def test_a_list_passes_through_as_it_is():
    given = [{"ResourceName": "a", "whatever": [1], "linkup": False}, {"resourceName": "b"}]
    assert json.loads(config.document(config.entries(given, None), 0))["configList"] == given
    assert config.names(given) == ["a", "b"]
    assert config.sets_links_up(given)
    assert not config.sets_links_up(given[:1])


@pytest.mark.parametrize(
    ("given", "rails"),
    [*((given, RAILS) for given in ("rail", [], ["a"], {"resourceName": "a"})), ("rails", None), ("rails", [])],
)
def test_other_input_and_no_rails_are_refused(given, rails):
    with pytest.raises(ValueError, match="one rail or more" if given == "rails" else "a list of mappings"):
        config.entries(given, rails)


def hca(number):
    pci = {"address": f"0000:{number}8:00.0", "vendor": "15b3", "device": "1021", "driver": "mlx5_core"}
    return {"name": f"mlx5_{number}", "pci": pci, "netdevs": [{"name": f"eth{number}", "type": "ether"}]}


FACTS = {
    "hcas": [hca(number) for number in range(3)],
    "rails": [{"index": n, "hca": f"mlx5_{n}", "netdev": f"eth{n}", "pci": f"0000:{n}8:00.0"} for n in range(3)],
}
SETTINGS = {"in_pods": False, "namespace": "gpufabric-rdma", "extended_resources": True}


def entry(name, api=None, **selectors):
    return {"resourceName": name, "rdmaHcaMax": 8, **({"api": api} if api else {}), **selectors}


@pytest.mark.parametrize("given", [[{"ifNames": ["eth0"]}], "eth0", {"ifNames": "eth0"}, {"ifNames": [{}]}, {"a": 3}])
def test_selectors_of_another_shape_are_left_to_check_config(given):
    odd = entry("a", selectors=given, extraSelectors=given)
    assert (config.interfaces(odd), set(config.matching(odd, FACTS)) <= {"mlx5_0", "mlx5_1", "mlx5_2"}) == ([], True)


OTHER_CASE = {"resourcename": "b", "RESOURCEPREFIX": "x.io", "Api": "dra"}
OTHER_CASE["extraselectors"] = {"rdmadevices": ["mlx5_[2]"]}


def rails(resources, api, dra_rails=()):
    return dra.rails(dra.served(resources, api, dra_rails, FACTS)[1], FACTS)


@pytest.mark.parametrize(("resources", "api", "dra_rails", "wanted"), [
    ("rails", "dra", (), {number: f"rdma/hca_shared_devices_{number}" for number in range(3)}),
    ("rails", "both", (1,), {1: "rdma/hca_shared_devices_1"}),
    ("rails", "both", (), {}),
    # A pool of all HCAs does not represent a single rail.
    ([entry("pool", selectors={"vendors": ["15b3"]})], "dra", (), {0: None, 1: None, 2: None}),
    # Keys in any case, our own prefix, a shell pattern, the other entry left to the device plugin.
    ([entry("a", selectors={"ifNames": ["eth0"]}), OTHER_CASE], "both", (), {2: "x.io/b"}),
    # Two entries on one HCA: a request for the rail is ambiguous.
    ([entry("a", devices=["eth0"]), entry("b", selectors={"ifNames": ["eth0"]})], "dra", (), {0: None}),
])  # fmt: skip
def test_rails_over_dra_with_the_resource_that_stands_for_each(resources, api, dra_rails, wanted):
    assert rails(resources, api, dra_rails) == wanted


def by_kind(nodes, kind, **settings):
    return [item for item in dra.objects(nodes, {**SETTINGS, **settings}) if item["kind"] == kind]


NODES = [{"name": "b.example", "rails": {0: "rdma/x", 1: "rdma/one"}}, {"name": "a", "rails": {0: "rdma/y"}}]


def test_classes_one_for_any_rail_and_one_for_each():
    made = {item["metadata"]["name"]: item["spec"] for item in by_kind(NODES, "DeviceClass")}
    assert list(made) == ["rail.rdma.gpufabric.io", "rail-0.rdma.gpufabric.io", "rail-1.rdma.gpufabric.io"]
    # The nodes disagree on the name of rail 0.
    assert [spec.get("extendedResourceName") for spec in made.values()] == [None, None, "rdma/one"]
    (selector,) = made["rail-1.rdma.gpufabric.io"]["selectors"]
    assert selector["cel"]["expression"].endswith("device.attributes['rdma.gpufabric.io'].rail == 1")
    assert not [one for one in by_kind(NODES, "DeviceClass", extended_resources=False) if len(one["spec"]) > 1]


def test_a_service_has_an_account_of_its_node():
    made = by_kind(NODES, "ServiceAccount")
    accounts = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in made]
    assert accounts == [("gpufabric-rdma", "rdma-device-plugin-a"), ("gpufabric-rdma", "rdma-device-plugin-b.example")]
    (binding,) = by_kind(NODES, "ClusterRoleBinding")
    assert [(one["namespace"], one["name"]) for one in binding["subjects"]] == accounts
