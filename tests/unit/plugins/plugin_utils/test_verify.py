"""Checks of a node, its GPUs, its networks and the fabric: the pairs for traffic, and the judge of all checks."""

import json
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import gpu_initiated
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.paths import OWN_ACS_RECORD
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks, judge, pairs, pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.gpu_checks import gpu_checks, initiated
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import World
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils import test_firewall
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils.test_fabric_plan import NIC

PASSED, FAILED, NOT_VERIFIED, UNUSED = host_checks.STATUSES


class Node:
    """A converged GH200 whose second port has no cable: its facts, variables and probe."""

    def __init__(self, captured):
        world = World(captured["gh200-cx7-roce"], captured["variables"], 1)
        self.facts, self.variables, self.probe = (of["node1"] for of in (world.facts, world.variables, world.probes))
        self.port = self.facts["hcas"][0]["ports"][0]
        self.facts["hcas"][1]["ports"][0].update(state="DOWN", phys_state="Disabled")
        self.devices, self.memlock = self.probe["char_devices"], self.probe["memlock"]
        self.modules, self.k3s = self.facts["modules"], self.facts["limits"]["services"]["k3s"]

    def judged(self, **options):
        """{id: check}"""
        checks = host_checks.host_checks(self.facts, self.variables, self.probe, **options)
        for item in checks:
            assert set(item) == {"id", "object", "status", "wanted", "seen", "next_step"}
            assert item["status"] in host_checks.STATUSES
            assert item["status"] not in (FAILED, NOT_VERIFIED) or (item["seen"] and item["next_step"]), item
        assert len({item["id"] for item in checks}) == len(checks), "an id names one check"
        return {item["id"]: item for item in checks}


@pytest.fixture
def node(captured):
    return Node(captured)


def ids(checks, *statuses):
    return {name for name, item in checks.items() if item["status"] in statuses}


def test_a_converged_node_fails_nothing_and_reads_its_spare_port_as_unused(node):
    smi = {"name": "smi1", "ports": [], "char_devices": {"uverbs": None, "umad": []}}
    node.facts["hcas"].append({**node.facts["hcas"][0], **smi})
    checks = node.judged()
    assert ids(checks, FAILED, NOT_VERIFIED) == set()
    assert checks["port:mlx5_0/1"]["object"] == "port mlx5_0/1 (rail 0, netdev enp1s0f0np0)"
    assert checks["port:mlx5_1/1"]["status"] == checks["memlock:containerd"]["status"] == UNUSED
    assert checks["memlock:k3s"]["seen"] == "a new start gets infinity; locked 16 MiB"


EXPECTED, OWN_MODULES = "discovery_expected_ports", "state:/etc/modules-load.d/gpufabric-rdma.conf"


@pytest.mark.parametrize(("break_it", "identity", "seen"), [
    (lambda n: n.modules["ib_umad"].update(loaded=False), "module:ib_umad", "not loaded"),
    (lambda n: n.devices.pop("uverbs0"), "device:uverbs0", "/dev/infiniband holds rdma_cm, uverbs1"),
    (lambda n: n.port.update(state="DOWN", phys_state="Disabled"), "port:mlx5_0/1", "DOWN"),
    (lambda n: n.variables[EXPECTED].append("mlx5_1/1"), "port:mlx5_1/1", "DOWN"),
    (lambda n: n.facts["subsystem"].update(netns_mode="exclusive"), "netns", "running exclusive"),
    (lambda n: n.facts["subsystem"].update(persisted_netns_mode="exclusive"), "netns", "at boot exclusive"),
    (lambda n: n.memlock["k3s"].update(error="mlock of 16 MiB: Cannot allocate memory"), "memlock:k3s", "Cannot"),
    (lambda n: n.k3s.update(active=True, memlock_running=8388608), "memlock:k3s", "8388608"),
    (lambda n: n.facts["owned_files"].clear(), OWN_MODULES, "absent"),
])  # fmt: skip
def test_what_is_wrong_fails_with_what_was_seen(node, break_it, identity, seen):
    break_it(node)
    item = node.judged()[identity]
    assert (item["status"], seen in item["seen"]) == (FAILED, True), item


@pytest.mark.parametrize(
    ("leaves_by", "status"), [("enp1s0f0np0", PASSED), ("enp1s0f1np1", FAILED), (None, NOT_VERIFIED)]
)
def test_the_nic_that_a_shared_subnet_is_sent_into_from_each_rail(node, leaves_by, status):
    rail = {"index": 0, "netdev": "enp1s0f0np0", "address": "10.9.0.1", "leaves_by": leaves_by}
    node.facts["shared_subnets"] = [{"network": "10.9.0.0/24", "rails": [rail]}]
    assert node.judged()["source:10.9.0.1"]["status"] == status
    noted = preflight_host.combinations(node.facts, node.variables)[1]
    assert any("10.9.0.0/24" in note for note in noted) == (status == FAILED)


NIC_IDS = ("dcbx", "trust", "dscp", "cnp-dscp", "pfc", "pause")


@pytest.mark.parametrize(("plan", "nic", "failed", "unverified"), [
    ("doroce", {}, [], []),
    ("oracle", {}, ["dscp", "cnp-dscp", "pfc"], []),
    ("doroce", {"pfc": {"priorities": [3, 6]}, "pause": {"rx": True, "tx": False}}, ["pfc", "pause"], []),
    ("doroce", {"pfc": None, "pause": "unknown: cut off"}, [], ["pfc", "pause"]),
    ("doroce", dict.fromkeys(("trust", "dscp", "pfc", "dcbx", "pause")), [], None),
    (None, {"pfc": {"priorities": [3, 6]}}, None, []),
])  # fmt: skip
def test_the_settings_of_a_nic_are_checked_against_the_plan_where_there_is_one(node, plan, nic, failed, unverified):
    node.facts["qos"]["nics"] = [{**NIC, "pfc": {"priorities": [3]}, **nic}]
    node.variables["fabric_plan"] = plan
    checks = {name: item for name, item in node.judged().items() if name.startswith("nic:")}
    told = [ids(checks, status) for status in (PASSED, FAILED, NOT_VERIFIED)]
    if failed is None or unverified is None:
        assert told == [set(), set(), set() if failed is None else {"nic:eth2"}]
        return
    names = [{f"nic:{name}:eth2" for name in listed} for listed in (NIC_IDS, failed, unverified)]
    assert told == [names[0] - names[1] - names[2], *names[1:]]


def test_what_a_run_sets_is_not_verified_in_check_mode_and_what_it_leaves_fails_once(node):
    node.facts["qos"] = {"programs": ["dcb", "ethtool"], "nics": [NIC]}
    node.variables.update(fabric_plan="doroce", fabric_nic_settings=True, fabric_link_flap_allowed=True)
    assert node.judged(check_mode=True)["nic:pfc:eth2"]["status"] == NOT_VERIFIED
    node.variables["fabric_link_flap_allowed"] = None
    failed = [item["id"] for item in node.judged().values() if item["object"] == "NIC eth2 pfc"]
    assert failed == ["nic:pfc:eth2"]


@pytest.mark.parametrize(("current", "allowed", "tried", "status"), [
    ("False(0)", None, None, PASSED),
    ("True(1)", False, None, FAILED),
    ("True(1)", True, "another boot", FAILED),
    (None, True, None, NOT_VERIFIED),
    ("", None, None, FAILED),
    ("", False, None, None),
])  # fmt: skip
def test_what_firmware_runs_with_is_one_check_of_each_hca(node, current, allowed, tried, status):
    at, state = "0000:01:00.1", {"default": "True(1)", "current": current, "next": "False(0)", "read_only": False}
    hca = {"values": {} if current == "" else {"ATS_ENABLED": state}, "errors": {"ATS_ENABLED": "unknown"}}
    record = {at: {"ATS_ENABLED": {"value": "0", "boot_id": tried}} if tried else {}}
    node.facts["firmware"] = {"program": "mstconfig", "hcas": {at: hca}, "before": {}, "tried": record, "stored": {}}
    node.variables.update(fabric_firmware={at: {"ATS_ENABLED": False}}, fabric_firmware_allowed=allowed)
    told = [item["status"] for item in node.judged().values() if item["object"].startswith("firmware")]
    assert told == [status] * (status is not None)


@pytest.mark.parametrize(("name", "wrong", "seen"), [
    ("uverbs0", {"owner": "oracle"}, "/dev/infiniband/uverbs0, mode 0666, owner oracle:root"),
    ("rdma_cm", {"mode": "0660", "group": "rdma", "usable": False}, "mode 0660, owner root:rdma"),
    ("umad0", {"owner": "1000"}, "owner 1000:root"),
])  # fmt: skip
def test_a_device_that_a_container_may_not_open_fails_with_its_mode_and_owner(node, name, wrong, seen):
    node.devices[name].update(wrong)
    checks = node.judged()
    assert ids(checks, FAILED) == {f"device:{name}"}
    assert seen in checks[f"device:{name}"]["seen"]
    mode = "0600" if name == "umad0" else "0666"
    assert f"chmod {mode} /dev/infiniband/{name}" in checks[f"device:{name}"]["next_step"]


def test_a_module_that_verify_itself_has_loaded_is_told_as_such(node):
    node.modules["rdma_ucm"]["loaded"] = False
    node.probe["loaded"] = ["ib_umad", "ib_core"]
    checks = node.judged(loaded=["rdma_ucm"])
    told = {name: item["status"] for name, item in checks.items() if name.startswith("loaded:")}
    assert told == {"loaded:ib_umad": FAILED, "loaded:ib_core": UNUSED, "loaded:rdma_ucm": UNUSED}
    assert checks["module:rdma_ucm"]["status"] == FAILED, "one finding: it was read before the tools ran"
    assert checks["module:ib_umad"]["status"] == PASSED


OUR = "rdma-device-plugin.service"
SOCKET = "/var/lib/kubelet/device-plugins/rail0.sock"
STOPPED = "no answer within 10 s: the process is stopped or stuck"


@pytest.mark.parametrize(("sockets", "by", "status", "seen", "step"), [
    ({SOCKET: ""}, OUR, PASSED, f"an answer on {SOCKET}", ""),
    ({SOCKET: STOPPED}, OUR, FAILED, STOPPED, f"systemctl restart {OUR}"),
    ({SOCKET: "", "/x/rail0.sock": STOPPED}, OUR, FAILED, "/x/rail0.sock: no", "restart"),
    ({}, OUR, FAILED, "no socket rail0.sock", "journalctl"),
    ({SOCKET: STOPPED}, "process 7 in a pod", FAILED, "process 7 in a pod", "delete its pod"),
])  # fmt: skip
@pytest.mark.parametrize("check_mode", [False, True])
def test_a_device_plugin_is_asked_whatever_systemd_says_of_it(node, sockets, by, status, seen, step, check_mode):
    node.probe["plugins"] = {"rail0": {"sockets": sockets, "by": by}}
    item = node.judged(check_mode=check_mode)["plugin:socket:rail0"]
    assert (item["status"], seen in item["seen"], step in item["next_step"]) == (status, True, True)


@pytest.mark.parametrize(
    ("plugins", "status"), [({"rail0": {"sockets": {}, "by": "process 7 started by hand"}}, None), (None, NOT_VERIFIED)]
)
def test_where_another_plugin_has_its_sockets_is_not_known(node, plugins, status):
    node.probe["plugins"] = plugins
    checks = node.judged()
    assert "plugin:socket:rail0" not in checks
    assert checks.get("plugin:socket", {}).get("status") == status


@pytest.mark.parametrize(("phys_state", "layer", "word"), [
    ("LinkUp", "InfiniBand", "subnet manager"),
    ("Polling", "InfiniBand", "cable"),
    ("Disabled", "Ethernet", "ip link set enp1s0f0np0 up"),
])  # fmt: skip
def test_a_port_that_is_not_active_says_what_it_waits_for(node, phys_state, layer, word):
    node.port.update(state="INIT", phys_state=phys_state, link_layer=layer)
    assert word in node.judged()["port:mlx5_0/1"]["next_step"]


@pytest.mark.parametrize(("break_it", "identity"), [
    (lambda n: n.memlock["k3s"].update(locked=0, reason="no user nobody on the node"), "memlock:k3s"),
    (lambda n: n.facts["limits"]["services"].pop("k3s"), "memlock:k3s"),
    (lambda n: n.facts["subsystem"].update(netns_mode="unknown: ib_core is not loaded"), "netns"),
    (lambda n: n.probe.update(char_devices=None), "device:uverbs0"),
])  # fmt: skip
def test_what_cannot_be_checked_is_not_verified_and_never_passed(node, break_it, identity):
    break_it(node)
    assert node.judged()[identity]["status"] == NOT_VERIFIED


PARAMETER = "pci=config_acs=xx000x0@0000:02:00.0"


def a_path(verdict, topology="switch", bridge="0000:02:00.0", control=0x1D, owned=None):
    def change(node):
        masks = {bridge: "xx000x0"} if topology == "switch" else {}
        names = {"rail": 0, "hca": "mlx5_0", "function": "0000:03:00.0", "gpu": "0000:04:00.0", "reason": "x"}
        way = {**names, "verdict": verdict, "topology": topology, "bridge": bridge, "bits": ["RR"], "masks": masks}
        functions = {"0000:02:00.0": {"acs": {"capability": 0x5F, "control": control}}}
        node.facts["pcie"].update(paths=[way], functions=functions)
        node.facts["node"]["cmdline"] = owned or "quiet"
        node.facts["owned_files"].update({OWN_ACS_RECORD: {"mode": "0644", "content": owned}} if owned else {})
        node.variables["pcie_acs"] = "topology" if owned else "report"

    return change


@pytest.mark.parametrize(("change", "identity", "status"), [
    (lambda n: n.facts["pcie"].update(paths=[]), "path", "unused"),
    (a_path("direct"), "path:0:mlx5_0", "passed"),
    (a_path("translated"), "path:0:mlx5_0", "failed"),
    (a_path("root-complex", "root-port", None), "path:0:mlx5_0", "passed"),
    (a_path("root-complex", "unsupported"), "path:0:mlx5_0", "not_verified"),
    (a_path("unknown"), "path:0:mlx5_0", "not_verified"),
    (a_path("direct", control=0, owned=PARAMETER), "acs:0000:02:00.0", "passed"),
    (a_path("translated", owned=PARAMETER), "acs:0000:02:00.0", "failed"),
    (a_path("direct", owned=PARAMETER.replace("02:", "09:")), "acs:0000:09:00.0", "failed"),
])  # fmt: skip
def test_the_path_of_each_pair(node, change, identity, status):
    change(node)
    assert node.judged()[identity]["status"] == status


def test_a_container_cannot_vouch_for_its_hosts_kernel(node):
    node.facts["node"]["container"] = "systemd-nspawn"
    node.probe["char_devices"] = {}
    checks = node.judged()
    for identity in ("module:mlx5_ib", "netns", "device:uverbs0"):
        assert checks[identity]["status"] == NOT_VERIFIED
        assert "systemd-nspawn" in checks[identity]["seen"]
    assert checks["port:mlx5_0/1"]["status"] == PASSED


def test_check_mode_reports_what_the_run_would_change_instead_of_failing(node):
    node.port.update(state="DOWN", phys_state="Disabled")
    assert ids(node.judged(check_mode=True), FAILED) == {"port:mlx5_0/1"}, "no change explains it"
    node.port.update(state="ACTIVE", phys_state="LinkUp")
    node.modules["ib_umad"]["loaded"] = False
    node.facts["subsystem"]["netns_mode"] = "exclusive"
    node.facts["owned_files"].clear()
    checks = node.judged(check_mode=True)
    assert ids(checks, FAILED) == set()
    assert checks["module:ib_umad"]["status"] == NOT_VERIFIED


def test_a_node_answers_for_its_own_end_of_a_test_only():
    test, told = {"id": "t", "client": {"host": "a"}, "server": {"host": "b"}}, [{"id": "t", "role": "client"}]
    kept = [host for host in ("a", "b", "c", None) if pairs.joined([(host, {"results": told})], [test])]
    assert kept == ["a", None]


# --- results of the fabric --------------------------------------------------------------------------------------------


def planned_test(**changed):
    end = {"hca": "mlx5_0", "port": 1, "netdev": "eth0", "gid": 3}
    return {
        "id": "rail0-a-b-ib_write_bw",
        "tool": "ib_write_bw",
        "rail": 0,
        "network": "10.0.0.0/24",
        "address": "10.0.0.2",
        "tcp_port": 18601,
        "client": {**end, "host": "a", "ip": "10.0.0.1"},
        "server": {**end, "host": "b", "ip": "10.0.0.2"},
        "gbps": 400.0,
        "software": False,
        "missing": [],
        **changed,
    }


def fabric(test, result=None, error=None, **options):
    plan = {"tests": [test], "unpaired": [], "clashes": []}
    results = {} if result is None else {test["id"]: {"ok": True, "error": None, "seconds": 4.0, **result}}
    ((host, item),) = host_checks.fabric_checks(plan, results, {test["id"]: error}, {"a": 70, "b": 70}, **options)
    assert host == "a"
    return item


BROKEN, NO_DEVICE = {"ok": False, "error": "Couldn't connect"}, "exit code 1: no device"


def carried(gbps):
    return {"gbps": gbps, "mb_per_s": 1.2}


@pytest.mark.parametrize(("changed", "result", "error", "check_mode", "status", "seen"), [
    # Real HCAs have a threshold, software ones have none.
    ({}, carried(380.0), None, False, PASSED, "(380.0 Gb/s)"),
    ({}, carried(279.9), None, False, FAILED, "(279.9 Gb/s)"),
    ({"software": True, "gbps": None}, carried(0.01), None, False, PASSED, "function only, no threshold"),
    ({}, BROKEN, NO_DEVICE, False, FAILED, "Couldn't connect; b: exit code 1: no device"),
    ({}, None, None, False, FAILED, "no result"),
    ({}, None, None, True, NOT_VERIFIED, "check mode sends no traffic"),
    ({"missing": ["a", "b"]}, None, None, False, NOT_VERIFIED, "ib_write_bw is not installed on a, b"),
])  # fmt: skip
def test_what_a_test_between_nodes_shows(changed, result, error, check_mode, status, seen):
    item = fabric(planned_test(**changed), result, error, check_mode=check_mode)
    assert (item["status"], item["object"]) == (status, "ib_write_bw rail 0: a mlx5_0 -> b mlx5_0")
    assert seen in item["seen"]
    measured = (result or {}).get("gbps")
    assert item.get("figures", {}).get("gbps") == measured
    assert ("280.0 Gb/s" in item["wanted"]) == bool(measured and not changed)


def test_a_rail_without_a_peer_is_not_verified_and_a_shared_address_fails():
    reason = "no peer: rail 2 of b: the port is DOWN"
    end = {"host": "a", "rail": 2, "hca": "rxe2", "port": 1, "netdev": "dm2", "reason": reason}
    plan = {"tests": [], "unpaired": [end], "clashes": [{"address": "10.0.0.1", "ends": [end, {**end, "host": "b"}]}]}
    (alone, shared) = [item for _host, item in host_checks.fabric_checks(plan, {}, {}, {})]
    assert (alone["status"], alone["seen"]) == (NOT_VERIFIED, reason)
    assert (shared["status"], shared["seen"]) == (FAILED, "a (dm2) and b (dm2)")


def test_the_report_puts_failures_first_and_counts_what_was_not_verified(node):
    node.devices.pop("uverbs0")
    node.memlock.clear()
    checks = list(node.judged().values())
    checks.append(fabric(planned_test(software=True), {"gbps": 0.1, "mb_per_s": 9.4}))
    known = {"facts": node.facts, "planned": [1, 2], "pending": [], "reboot_reasons": [], "rebooted": False}
    gone = {"host": "node2", "facts": None, "checks": host_checks.absent("unreachable: no route")}
    text = host_checks.report_text([{"host": "node1", "checks": checks, **known}, gone])
    titles = ("Failed", "Not verified", "Unused", "Fabric", "Nodes")
    assert tuple(line for line in text.splitlines() if line in titles) == titles
    rows = {line.split()[0]: line.split() for line in text.partition("Nodes\n")[2].splitlines() if line}
    assert rows["node1"][1:6] == ["2", "1", "of", "1", "active"]
    assert rows["node2"][1:] == ["?", "?", "?", "?", "0", "1", "0", "0"]
    assert "ib_write_bw rail 0: a mlx5_0 -> b mlx5_0  4.0      9.4   0.1   passed" in text
    assert text.splitlines()[-1].endswith("2 failed, 1 not verified, 3 unused")


# --- pairs for traffic: chains by rail and subnet ---------------------------------------------------------------------


def rail(index, *addresses, kind="software", **changes):
    return test_firewall.rail(index, *addresses, kind=kind, **changes)


def end(name, *rails, tools=pairs.TOOLS, runs=True):
    facts = {"rails": [item["rail"] for item in rails], "hcas": [item["hca"] for item in rails]}
    known = {"address": f"{name}.mgmt", "tools": list(tools), "base_port": 18600, "runs": runs}
    return {"host": name, "facts": facts, **known}


def alone(*addresses, **options):
    """Nodes a, b, … with rail 0 at these addresses."""
    return [end(name, rail(0, address), **options) for name, address in zip("abcdefghi", addresses)]


def sides(plan, tool="rping"):
    return [(t["rail"], t["client"]["host"], t["server"]["host"]) for t in plan["tests"] if t["tool"] == tool]


def test_two_nodes_are_paired_on_each_rail_with_a_common_subnet():
    plan = pairs.plan([end(f"node{n}", rail(0, f"10.77.1.{n}/24"), rail(1, f"10.77.2.{n}/24")) for n in (1, 2)])
    assert sides(plan) == [(0, "node1", "node2"), (1, "node1", "node2")] == sides(plan, "ib_write_bw")
    assert plan["unpaired"] == plan["clashes"] == []
    first, second = plan["tests"][:2]
    assert (first["address"], first["network"]) == ("10.77.1.2", "10.77.1.0/24")
    assert second["server"]["gid"] == second["client"]["gid"] == 3, "the GID of the rail's own address"
    assert [test["tcp_port"] for test in plan["tests"]] == [18600, 18601, 18602, 18603]


@pytest.mark.parametrize("number", [3, 9])
def test_more_nodes_make_a_chain_in_which_each_takes_part(number):
    plan = pairs.plan(alone(*(f"10.0.0.{n + 1}/24" for n in range(number))))
    assert sides(plan) == [(0, one, other) for one, other in zip("abcdefghi", "bcdefghi"[: number - 1])]
    assert plan["unpaired"] == []
    tests = {test["id"]: test for test in plan["tests"]}
    for identities in plan["rounds"]:
        hosts = [tests[name][role]["host"] for name in identities for role in ("client", "server")]
        assert len(hosts) == len(set(hosts)), "a software HCA is the processor"
    assert (len(plan["rounds"]), sum(map(len, plan["rounds"]))) == (4, len(tests))


NO_ADDRESS = "eth1 has no IPv4 or routable IPv6 address, so no peer can address it"


@pytest.mark.parametrize(("rails", "reason"), [
    ([rail(0, "10.0.0.1/24"), rail(1, "10.0.0.2/24")], "no peer: no other node has a rail 0"),
    ([rail(0, "10.0.0.1/24")], "no peer: this play has one node only"),
    ([rail(0, "10.0.0.1/24"), rail(0, "10.0.0.2/24", state="DOWN")], "no peer: rail 0 of b: the port is DOWN"),
    ([rail(0, "10.0.0.1/24"), rail(0, "10.0.9.2/24")], "no peer in 10.0.0.0/24: rail 0 of b 10.0.9.0/24"),
    ([rail(0), rail(0, "10.0.0.2/24")], NO_ADDRESS),
    ([rail(0, "10.0.0.1/24", state="INIT"), rail(0, "10.0.0.2/24")], "the port is INIT"),
    ([rail(0, "10.0.0.1/24"), rail(0, "10.0.0.2/24")], "its facts come from a tree of files, which cannot send"),
])  # fmt: skip
def test_a_rail_without_a_peer_says_why(rails, reason):
    plan = pairs.plan([end(name, one, runs="tree" not in reason) for name, one in zip("ab", rails)])
    assert plan["tests"] == []
    assert [one["reason"] for one in plan["unpaired"] if one["host"] == "a"] == [reason]


def test_an_address_that_two_nodes_have_is_reported_and_not_tested_against_itself():
    plan = pairs.plan(alone("10.0.0.1/24", "10.0.0.1/24"))
    assert plan["tests"] == []
    ((clash),) = plan["clashes"]
    assert (clash["address"], [one["host"] for one in clash["ends"]]) == ("10.0.0.1", ["a", "b"])


def infiniband(prefix="fe80:0000:0000:0000"):
    gids = [{"index": 0, "gid": f"{prefix}:0002:c903:0000:0000", "type": "IB/RoCE v1", "netdev": None}]
    return rail(0, layer="InfiniBand", kind="pci", gids=gids)


def test_infiniband_without_addresses_shakes_hands_over_the_management_network():
    (test,) = pairs.plan([end("a", infiniband()), end("b", infiniband())])["tests"]
    assert (test["tool"], test["address"], test["server"]["gid"]) == ("ib_write_bw", "b.mgmt", None)
    assert test["network"] == "InfiniBand subnet fe80000000000000"
    assert pairs.plan([end("a", infiniband()), end("b", infiniband("fe80:0000:0000:0001"))])["tests"] == []


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
def test_a_gid_or_an_address_that_is_none_pairs_with_nobody(layer):
    gids = [{"index": 0, "gid": "{{ lookup }}", "type": "RoCE v2", "netdev": "eth2"}]
    odd = rail(0, layer=layer, gids=gids)
    odd["hca"]["netdevs"][0]["addresses"] = ["../../etc", "::1/64"]
    plan = pairs.plan([end("a", odd), end("b", rail(0, "10.0.0.2/24", layer=layer))])
    assert (plan["tests"], [item["host"] for item in plan["unpaired"]]) == ([], ["a", "b"])


def test_each_end_sends_in_the_class_of_its_own_plan():
    plans = zip(alone("10.0.0.1/24", "10.0.0.2/24"), ("oracle", None))
    test = pairs.plan([{**node, "fabric_plan": plan} for node, plan in plans])["tests"][1]
    assert [test[role]["traffic_class"] for role in ("client", "server")] == [105, None]


@pytest.mark.parametrize(("net", "size", "tools", "tests"), [
    ("2001:db8::", 64, pairs.TOOLS, {"rping": ("2001:db8::2", []), "ib_write_bw": ("b.mgmt", [])}),
    ("10.0.0.", 24, ["rping"], {"rping": ("10.0.0.2", []), "ib_write_bw": ("10.0.0.2", ["a"])}),
])  # fmt: skip
def test_ipv6_shakes_hands_over_management_and_a_missing_tool_is_named(net, size, tools, tests):
    plan = pairs.plan([end("a", rail(0, f"{net}1/{size}"), tools=tools), end("b", rail(0, f"{net}2/{size}"))])
    assert {test["tool"]: (test["address"], test["missing"]) for test in plan["tests"]} == tests


@pytest.mark.parametrize(
    ("link", "expected"),
    [({"speed_gts": 32.0, "width": 16}, 400), ({"speed_gts": 16.0, "width": 16}, 226.9), ({}, 400)],
)
def test_a_port_carries_what_its_link_and_its_slot_both_do(link, expected):
    one = rail(0, "10.0.0.1/24", kind="pci")
    one["hca"]["pci"]["link"] = link
    assert pairs.ends(end("a", one))[0]["gbps"] == expected
    assert pairs.ends(end("a", rail(0, "10.0.0.1/24")))[0]["gbps"] is None, "software HCAs carry no promise"


# --- the GPU layer, and the networks of a node ------------------------------------------------------------------------

PLACE = {"host": "gpu-01", "netdevs": {}}


def gpu_facts(gpus=2, vendor="10de", **nvidia):
    evidence = {"nvidia": nvidia} if nvidia else None
    return {"gpus": [{"address": "0000:41:00.0", "vendor": vendor}] * gpus, "gpudirect": {"evidence": evidence}}


def offered(gpus=0, classes=("nvidia",)):
    node = {"name": "gpu-01", "addresses": [], "allocatable": {"nvidia.com/gpu": gpus}}
    return {"nodes": [node], "runtime_classes": None if classes is None else list(classes)}


@pytest.mark.parametrize(("facts", "cluster", "verdicts"), [
    (gpu_facts(loaded=True, version="570"), offered(2), [PASSED] * 3),
    (gpu_facts(loaded=False, on_disk=False), offered(classes=()), [NOT_VERIFIED] * 3),
    (gpu_facts(loaded=True), offered(1), [PASSED, NOT_VERIFIED, PASSED]),
    (gpu_facts(loaded=True), offered(2, None), [PASSED] * 2),
    (gpu_facts(on_disk=True), None, [NOT_VERIFIED]),
    (gpu_facts(gpus=0, loaded=False), offered(), []),
])  # fmt: skip
def test_what_the_gpu_layer_lacks_is_not_verified_and_a_node_without_gpus_is_not_asked(facts, cluster, verdicts):
    made = gpu_checks("gpu-01", facts, cluster, PLACE if cluster else None)
    assert [item["status"] for item in made] == verdicts
    assert [item["id"] for item in made] == ["gpu:driver", "gpu:resource", "gpu:runtime-class"][: len(made)]
    assert all(item["next_step"] for item in made if item["status"] == NOT_VERIFIED)


RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


NOTHING = {need: "absent" for needs in gpu_initiated.WAYS.values() for need in needs}


@pytest.mark.parametrize(("whys", "way", "status"), [
    ({}, "gin", PASSED),
    (NOTHING, "gin", FAILED),
    ({"gdrdrv": "mode"}, "ibgda-cpu", FAILED),
    ({"peer-mapping": "stray"}, "ibgda", FAILED),
    ({"stream-memory": "unknown"}, "ibgda", NOT_VERIFIED),
    ({"peer-mapping": "reboot"}, "gin", PASSED),
    (None, "gin", None),
])  # fmt: skip
def test_what_a_way_of_gpu_initiated_rdma_lacks_fails_where_it_is_asked_for(whys, way, status):
    state = None if whys is None else lacking(whys)
    checks = list(initiated("node1", {"gpu_initiated": state}, [way]))
    assert [(item["id"], item["status"]) for item in checks] == ([(f"gpu_initiated:{way}", status)] if status else [])
    assert all(item["wanted"] and item["seen"] for item in checks)
    assert list(initiated("node1", {"gpu_initiated": state}, [])) == []


def lacking(whys):
    ways = {}
    for way, needs in gpu_initiated.WAYS.items():
        missing = [{"need": need, "why": whys[need]} for need in needs if need in whys]
        works = None if {each["why"] for each in missing} == {"unknown"} else not missing
        ways[way] = {"works": works, "missing": missing}
    line = [{"path": "/etc/modprobe.d/x.conf", "line": 3, "text": "NVreg_RegistryDwords=x"}]
    return {"ways": ways, "stray": line, "overridden": line}


def definition(name, config, resource=None):
    meta = {"name": name, "namespace": "default", **({"annotations": {RESOURCE: resource}} if resource else {})}
    return {"kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": {"config": config} if config else {}}


CLUSTER = {
    "nodes": [
        {"name": "node1", "addresses": [], "capacity": {"rdma/rail0": 63}},
        {"name": "node2", "addresses": ["10.0.0.2"], "capacity": {}},
    ],
    "nads": [
        definition("any", '{"type": "macvlan"}'),
        definition("rail0", '{"type": "host-device"}', "rdma/rail0"),
        definition("file", None),
    ],
}
OF_FILE = json.dumps({"name": "file", "type": "ipvlan"})


@pytest.mark.parametrize(
    ("host", "addresses", "names"),
    [("node1", [], ["any", "rail0", "file"]), ("gpu2", ["10.0.0.2/24"], ["any", "file"]), ("stranger", [], [])],
)
def test_a_node_gets_the_networks_whose_resource_it_has_or_those_of_its_files(host, addresses, names):
    read = {"netdevs": {"eth0": {"addresses": addresses}}, "files": {"gpufabric-rdma-file.conf": OF_FILE}}
    node = {"host": host, "read": {"networks": read}}
    made = pods.networks([node], CLUSTER)[host]
    assert [one["name"] for one in made] == [f"NetworkAttachmentDefinition default/{name}" for name in names]
    assert all(json.loads(one["config"])["type"] for one in made)
    own = {"name": "network file gpufabric-rdma-file.conf", "config": OF_FILE}
    assert pods.networks([node], None) == {host: [own]}, "without the cluster"


# --- the judge of all checks after a partly failed run ----------------------------------------------------------------

NO_ROOM = {"failed": True, "msg": "no room"}
GONE = {"unreachable": True, "msg": "no route to host"}
LINTED = {"findings": [], "not_verified": [], "configurations": ["10-flannel.conflist"]}


@pytest.fixture
def known(captured):
    """The data of a healthy run about each of two nodes, with networks."""
    world = World(captured["gh200-cx7-roce"], captured["variables"])
    networks = {"routes": [], "files": {}, "tools": {"image": "pause", "mounts": {}}}
    nodes = world.seen().nodes
    for node in nodes:
        node["read"]["networks"] = {**networks, "netdevs": world.netdevs[node["host"]]}
    return [{"node": node, "started": {}, "collected": {"results": []}, "cni": LINTED} for node in nodes]


def gathered(known, **shared):
    hosts = [of_host["node"]["host"] for of_host in known]
    return judge.gather([*hosts, "away"], [*known, {}], {"node": known[0]["node"], **shared})


@pytest.mark.parametrize(
    ("shared", "unplanned"), [({}, ""), ({"paired": NO_ROOM}, "no room"), ({"paired": {"skipped": True}}, "")]
)
def test_a_plan_that_failed_is_a_failed_check(known, shared, unplanned):
    seen = gathered(known, **shared)
    checks = judge.judge(seen, check_mode=False)["checks"]
    assert (seen.unplanned, seen.cluster) == (unplanned, None)
    assert ("fabric:plan" in {item["id"] for item in checks["node1"]}) == bool(unplanned)
    assert checks["away"][0]["status"] == "failed"


@pytest.mark.parametrize(("cni", "shared", "placed", "failure"), [
    (LINTED, {}, ["node1", "node2"], ""),
    (NO_ROOM, {}, ["node2"], ""),
    (GONE, {}, ["node1", "node2"], ""),
    (LINTED, {"pods": NO_ROOM}, ["node1", "node2"], "no room"),
    (LINTED, {"pods": {"plan": {}}, "ran": NO_ROOM}, ["node1", "node2"], "no room"),
    (LINTED, {"offered": NO_ROOM}, ["node1", "node2"], "no room"),
])  # fmt: skip
def test_what_stopped_the_pods_and_which_nodes_were_read(known, cni, shared, placed, failure):
    known[0]["cni"] = cni
    cluster = gathered(known, **{"offered": {"cluster": None, "api_error": "down"}, **shared}).cluster
    assert ([host["host"] for host in cluster.hosts], cluster.failure) == (placed, failure)


# --- functions for all nodes do four times the work for four times the nodes, counted in calls, not in seconds --------

FEW, MANY = 20, 80
# Beyond linear: a judge has a part for the whole cluster, and sorts.
GENEROUS = 1.3


def work(action) -> int:
    """Calls of Python and C functions."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def seen_of(captured, count, alike=False):
    world = World(captured["gh200-cx7-roce"], captured["variables"], count)
    if alike:  # the same port down on each node, which is also its own failure in the catalogue
        for facts, probe in zip(world.facts.values(), world.probes.values()):
            facts["hcas"][0]["ports"][0].update(state="DOWN", phys_state="Polling")
            probe["char_devices"]["uverbs0"]["mode"] = "0600"
    seen = world.seen()
    for node in seen.nodes:
        node["read"]["networks"] = {"netdevs": {}, "files": {}}
    return seen


def asks(_captured, count):
    firewall._network.cache_clear()
    nodes = [test_firewall.node(number, tool=None) for number in range(count)]
    return lambda: firewall.plan(nodes)


def judging(alike):
    def prepare(captured, count):
        seen = seen_of(captured, count, alike)
        return lambda: judge.judge(seen, check_mode=False)

    return prepare


def planning(captured, count):
    seen = seen_of(captured, count)
    return lambda: (pods.plan(seen.cluster), pods.networks(seen.nodes, seen.cluster.read["cluster"]))


@pytest.mark.parametrize("prepare", [judging(False), judging(True), planning, asks])
def test_work_grows_with_the_nodes(captured, prepare):
    prepare(captured, FEW)()  # files that are read and compiled once
    few, many = (work(prepare(captured, count)) for count in (FEW, MANY))
    assert many / few / (MANY / FEW) < GENEROUS


def test_where_all_open_their_firewalls_no_address_is_parsed_for_a_pair_of_nodes(monkeypatch):
    parse, parsed = firewall.netaddr.IPNetwork, []
    monkeypatch.setattr(firewall.netaddr, "IPNetwork", lambda text: (parsed.append(text), parse(text))[1])

    def times(count):
        for cache in (firewall._network, firewall._sources, firewall._cidr):
            cache.cache_clear()
        parsed.clear()
        firewall.plan([test_firewall.node(number) for number in range(count)])
        return len(parsed)

    assert times(MANY) / times(FEW) / (MANY / FEW) < GENEROUS


def test_an_answer_that_cannot_be_judged_is_a_failed_check_of_its_node(known):
    known[0]["node"]["read"]["ansible_facts"]["rdma"]["hcas"] = ["x"]
    checks = judge.judge(gathered(known), check_mode=False)["checks"]
    assert (checks["node1"][0]["status"], len(checks["node2"]) > len(checks["node1"])) == ("failed", True)
