"""Checks of a node and of the fabric, as tables over facts, probes and results."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.host_checks import (
    FAILED,
    NOT_VERIFIED,
    PASSED,
    UNUSED,
)

LOADED = {"loaded": True, "builtin": False, "available": True, "persisted": [], "blocked_by": []}
OPEN = {"mode": "0666", "owner": "root", "group": "root", "usable": True}
CLOSED = {"mode": "0600", "owner": "root", "group": "root", "usable": False}
DEVICES = {"rdma_cm": OPEN, "umad0": CLOSED, "umad1": CLOSED, "uverbs0": OPEN, "uverbs1": OPEN}
OLD_LIMIT = {"active": True, "memlock_running": 8388608}
LOCKED = {"locked": 16 * 2**20, "error": None, "reason": None}


@pytest.fixture
def facts(facts_of, variables):
    """A converged GH200: what the planners want is there."""
    facts = facts_of("gh200-cx7-roce", rails=[{"hca": "mlx5_0"}])
    facts["modules"] = {name: dict(LOADED) for name in [*variables["kernel_modules_required"], "nvidia_peermem"]}
    facts["initramfs"]["images"] = []
    facts["subsystem"].update(netns_mode="shared", persisted_netns_mode="shared")
    k3s = {"exists": True, "active": False, "memlock": "infinity", "memlock_running": None, "drop_ins": []}
    facts["limits"]["services"] = {
        "k3s": k3s,
        "k3s-agent": {**k3s, "exists": False},
        "containerd": {**k3s, "exists": False},
    }
    for plan in preflight_host.plans(facts, variables).values():
        for change in plan.changes:
            assert change.action == "write", change
            facts["owned_files"][change.object] = {"mode": "0644", "content": change.after}
    for change in preflight_host.plans(facts, variables)["rdma_netns"].changes:
        facts["owned_files"][change.object]["content"] = change.after
    return facts


@pytest.fixture
def probe():
    locked = {"k3s": dict(LOCKED)}
    return {
        "char_devices": dict(DEVICES),
        "memlock": locked,
        "plugins": {},
        "tools": ["rping", "ib_write_bw"],
        "loaded": [],
    }


def by_id(checks):
    found = {}
    for item in checks:
        assert set(item) == {"id", "object", "status", "wanted", "seen", "next_step"}
        assert item["id"] not in found, "an id names one check"
        assert item["status"] in host_checks.STATUSES
        assert item["status"] not in (FAILED, NOT_VERIFIED) or (item["seen"] and item["next_step"]), item
        found[item["id"]] = item
    return found


def judged(facts, variables, probe, **options):
    return by_id(host_checks.host_checks(facts, variables, probe, **options))


def test_a_converged_node_fails_nothing_and_reads_its_spare_port_as_unused(facts, variables, probe):
    checks = judged(facts, variables, probe)
    assert {name for name, item in checks.items() if item["status"] in (FAILED, NOT_VERIFIED)} == set()
    assert checks["port:mlx5_0/1"]["object"] == "port mlx5_0/1 (rail 0, netdev enp1s0f0np0)"
    assert checks["port:mlx5_1/1"]["status"] == checks["memlock:containerd"]["status"] == UNUSED
    assert checks["memlock:k3s"]["seen"] == "a new start gets infinity; locked 16 MiB"


@pytest.mark.parametrize(("break_it", "identity", "seen"), [
    (lambda f, v, p: f["modules"]["ib_umad"].update(loaded=False), "module:ib_umad", "not loaded"),
    (lambda f, v, p: p["char_devices"].pop("uverbs0"), "device:uverbs0", "/dev/infiniband holds rdma_cm, umad0"),
    (lambda f, v, p: p["char_devices"].clear(), "device:rdma_cm", "holds nothing"),
    (lambda f, v, p: f["hcas"][0]["ports"][0].update(state="DOWN", phys_state="Disabled"), "port:mlx5_0/1",
        "DOWN"),
    (lambda f, v, p: v["discovery_expected_ports"].append("mlx5_1/1"), "port:mlx5_1/1", "DOWN"),
    (lambda f, v, p: v["discovery_expected_ports"].append("mlx5_7/1"), "port:mlx5_7/1", "no such port"),
    (lambda f, v, p: f["subsystem"].update(netns_mode="exclusive"), "netns", "running exclusive"),
    (lambda f, v, p: f["subsystem"].update(persisted_netns_mode="exclusive"), "netns", "at boot exclusive"),
    (lambda f, v, p: p["memlock"]["k3s"].update(error="mlock of 16 MiB: Cannot allocate memory"), "memlock:k3s",
        "Cannot"),
    (lambda f, v, p: f["limits"]["services"]["k3s"].update(active=True, memlock_running=8388608), "memlock:k3s",
        "8388608"),
    (lambda f, v, p: f["owned_files"].clear(), "state:/etc/modules-load.d/gpufabric-rdma.conf", "absent"),
])  # fmt: skip
def test_what_is_wrong_fails_with_what_was_seen_and_a_next_step(facts, variables, probe, break_it, identity, seen):
    break_it(facts, variables, probe)
    item = judged(facts, variables, probe)[identity]
    assert item["status"] == FAILED
    assert seen in item["seen"]


@pytest.mark.parametrize(("name", "wrong", "seen"), [
    ("uverbs0", {"owner": "oracle"}, "/dev/infiniband/uverbs0, mode 0666, owner oracle:root"),
    ("rdma_cm", {"mode": "0660", "group": "rdma", "usable": False}, "mode 0660, owner root:rdma"),
    ("umad0", {"mode": "0000"}, "mode 0000"),
    ("umad0", {"owner": "1000"}, "owner 1000:root"),
])  # fmt: skip
def test_a_device_that_a_container_may_not_open_fails_with_its_mode_and_owner(
    facts, variables, probe, name, wrong, seen
):
    probe["char_devices"][name] = {**DEVICES[name], **wrong}
    checks = judged(facts, variables, probe)
    assert [item["id"] for item in checks.values() if item["status"] == FAILED] == [f"device:{name}"]
    assert seen in checks[f"device:{name}"]["seen"]
    mode = "0600" if name == "umad0" else "0666"
    assert f"chmod {mode} /dev/infiniband/{name}" in checks[f"device:{name}"]["next_step"]


def test_a_module_that_verify_itself_has_loaded_is_told_as_such(facts, variables, probe):
    facts["modules"]["rdma_ucm"]["loaded"] = False
    probe["loaded"] = ["ib_umad", "ib_core"]
    checks = judged(facts, variables, probe, loaded=["rdma_ucm"])
    told = {name: item["status"] for name, item in checks.items() if name.startswith("loaded:")}
    assert told == {"loaded:ib_umad": FAILED, "loaded:ib_core": UNUSED, "loaded:rdma_ucm": UNUSED}
    assert checks["module:rdma_ucm"]["status"] == FAILED, "one finding: it was read before the tools ran"
    assert checks["module:ib_umad"]["status"] == PASSED


OUR = "rdma-device-plugin.service"
SOCKET = "/var/lib/kubelet/device-plugins/rail0.sock"
STOPPED = "no answer within 10 s: the process is stopped or stuck"


@pytest.mark.parametrize(("plugin", "status", "seen", "step"), [
    ({"sockets": {SOCKET: ""}, "by": OUR}, PASSED, f"an answer on {SOCKET}", ""),
    ({"sockets": {SOCKET: STOPPED}, "by": OUR}, FAILED, STOPPED, f"systemctl restart {OUR}"),
    ({"sockets": {SOCKET: "", "/x/rail0.sock": STOPPED}, "by": OUR}, FAILED, "/x/rail0.sock: no", "restart"),
    ({"sockets": {}, "by": OUR}, FAILED, "no socket rail0.sock", "journalctl"),
    ({"sockets": {SOCKET: STOPPED}, "by": "process 7 in a pod"}, FAILED, "process 7 in a pod", "delete its pod"),
])  # fmt: skip
def test_a_device_plugin_is_asked_whatever_systemd_says_of_it(facts, variables, probe, plugin, status, seen, step):
    probe["plugins"] = {"rail0": plugin}
    item = judged(facts, variables, probe)["plugin:socket:rail0"]
    assert item["status"] == status
    assert seen in item["seen"]
    assert step in item["next_step"]
    assert judged(facts, variables, probe, check_mode=True)["plugin:socket:rail0"]["status"] == status


@pytest.mark.parametrize(
    ("plugins", "status"), [({"rail0": {"sockets": {}, "by": "process 7 started by hand"}}, None), (None, NOT_VERIFIED)]
)
def test_where_another_plugin_has_its_sockets_is_not_known(facts, variables, probe, plugins, status):
    probe["plugins"] = plugins
    checks = judged(facts, variables, probe)
    assert "plugin:socket:rail0" not in checks
    assert checks.get("plugin:socket", {}).get("status") == status


@pytest.mark.parametrize(("phys_state", "layer", "word"), [
    ("LinkUp", "InfiniBand", "subnet manager"),
    ("Polling", "InfiniBand", "cable"),
    ("Disabled", "Ethernet", "ip link set enp1s0f0np0 up"),
])  # fmt: skip
def test_a_port_that_is_not_active_says_what_it_waits_for(facts, variables, probe, phys_state, layer, word):
    facts["hcas"][0]["ports"][0].update(state="INIT", phys_state=phys_state, link_layer=layer)
    assert word in judged(facts, variables, probe)["port:mlx5_0/1"]["next_step"]


@pytest.mark.parametrize(("break_it", "identity"), [
    (lambda f, p: p["memlock"]["k3s"].update(locked=0, reason="no user nobody on the node"), "memlock:k3s"),
    (lambda f, p: p["memlock"].clear(), "memlock:k3s"),
    (lambda f, p: f["limits"]["services"].pop("k3s"), "memlock:k3s"),
    (lambda f, p: f["subsystem"].update(netns_mode="unknown: ib_core is not loaded"), "netns"),
    (lambda f, p: p.update(char_devices=None), "device:uverbs0"),
])  # fmt: skip
def test_what_cannot_be_checked_is_not_verified_and_never_passed(facts, variables, probe, break_it, identity):
    break_it(facts, probe)
    assert judged(facts, variables, probe)[identity]["status"] == NOT_VERIFIED


def test_a_container_cannot_vouch_for_its_hosts_kernel(facts, variables, probe):
    facts["node"]["container"] = "systemd-nspawn"
    probe["char_devices"] = {}
    checks = judged(facts, variables, probe)
    for identity in ("module:mlx5_ib", "netns", "device:uverbs0"):
        assert checks[identity]["status"] == NOT_VERIFIED
        assert "systemd-nspawn" in checks[identity]["seen"]
    assert checks["port:mlx5_0/1"]["status"] == PASSED


def test_check_mode_reports_what_the_run_would_change_instead_of_failing(facts, variables, probe):
    port = facts["hcas"][0]["ports"][0]
    usual = dict(port)
    port.update(state="DOWN", phys_state="Disabled")
    checks = judged(facts, variables, probe, check_mode=True)
    assert checks["port:mlx5_0/1"]["status"] == FAILED, "no change explains it"
    port.update(usual)
    facts["modules"]["ib_umad"]["loaded"] = False
    facts["subsystem"]["netns_mode"] = "exclusive"
    facts["owned_files"].clear()
    checks = judged(facts, variables, probe, check_mode=True)
    assert FAILED not in {item["status"] for item in checks.values()}
    assert checks["module:ib_umad"]["status"] == NOT_VERIFIED


# --- the fabric ------------------------------------------------------------------------------------------------------


def planned_test(tool="ib_write_bw", **changed):
    return {
        "id": f"rail0-a-b-{tool}",
        "tool": tool,
        "rail": 0,
        "network": "10.0.0.0/24",
        "address": "10.0.0.2",
        "tcp_port": 18601,
        "client": {"host": "a", "hca": "mlx5_0", "port": 1, "netdev": "eth0", "ip": "10.0.0.1", "gid": 3},
        "server": {"host": "b", "hca": "mlx5_0", "port": 1, "netdev": "eth0", "ip": "10.0.0.2", "gid": 3},
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


@pytest.mark.parametrize(("gbps", "changed", "status", "seen"), [
    (380.0, {}, PASSED, "(380.0 Gb/s)"),
    (279.9, {}, FAILED, "(279.9 Gb/s)"),
    (0.01, {"software": True, "gbps": None}, PASSED, "function only, no threshold"),
    (0.01, {"gbps": None}, PASSED, "MB/s"),
])  # fmt: skip
def test_real_hcas_have_a_threshold_and_software_ones_have_none(gbps, changed, status, seen):
    item = fabric(planned_test(**changed), {"gbps": gbps, "mb_per_s": 1.2})
    assert item["status"] == status
    assert seen in item["seen"]
    assert item["figures"]["gbps"] == gbps
    assert ("280.0 Gb/s" in item["wanted"]) == (changed == {})


def test_a_test_that_failed_names_both_ends_and_the_way_to_look_further():
    item = fabric(
        planned_test(), {"ok": False, "error": "Couldn't connect to 10.0.0.2:18601"}, "exit code 1: no device"
    )
    assert item["status"] == FAILED
    assert item["object"] == "ib_write_bw rail 0: a mlx5_0 -> b mlx5_0"
    assert item["seen"] == "Couldn't connect to 10.0.0.2:18601; b: exit code 1: no device"


@pytest.mark.parametrize(("changed", "options", "status", "seen"), [
    ({}, {}, FAILED, "no result"),
    ({}, {"check_mode": True}, NOT_VERIFIED, "check mode sends no traffic"),
    ({"missing": ["a", "b"]}, {}, NOT_VERIFIED, "ib_write_bw is not installed on a, b"),
])  # fmt: skip
def test_a_test_without_a_result_has_a_reason(changed, options, status, seen):
    item = fabric(planned_test(**changed), **options)
    assert item["status"] == status
    assert seen in item["seen"]


def test_a_rail_without_a_peer_is_not_verified_and_a_shared_address_fails():
    reason = "no peer: rail 2 of b: the port is DOWN"
    end = {"host": "a", "rail": 2, "hca": "rxe2", "port": 1, "netdev": "dm2", "reason": reason}
    plan = {"tests": [], "unpaired": [end], "clashes": [{"address": "10.0.0.1", "ends": [end, {**end, "host": "b"}]}]}
    (alone, shared) = [item for _host, item in host_checks.fabric_checks(plan, {}, {}, {})]
    assert (alone["status"], alone["seen"]) == (NOT_VERIFIED, reason)
    assert (shared["status"], shared["seen"]) == (FAILED, "a (dm2) and b (dm2)")


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_puts_failures_first_and_counts_what_was_not_verified(facts, variables, probe):
    probe["char_devices"].pop("uverbs0")
    probe["memlock"].clear()
    checks = host_checks.host_checks(facts, variables, probe)
    checks.append(fabric(planned_test(software=True), {"gbps": 0.1, "mb_per_s": 9.4}))
    node = {"facts": facts, "planned": [1, 2], "pending": [], "reboot_reasons": [], "rebooted": False}
    gone = {"host": "node2", "facts": None, "checks": host_checks.absent("unreachable: no route")}
    text = host_checks.report_text([{"host": "node1", "checks": checks, **node}, gone])
    titles = [line for line in text.splitlines() if line in ("Failed", "Not verified", "Unused", "Fabric", "Nodes")]
    assert titles == ["Failed", "Not verified", "Unused", "Fabric", "Nodes"]
    rows = {line.split()[0]: line.split() for line in text.partition("Nodes\n")[2].splitlines() if line}
    assert rows["node1"][1:6] == ["2", "1", "of", "1", "active"]
    assert rows["node2"][1:] == ["?", "?", "?", "?", "0", "1", "0", "0"]
    assert "ib_write_bw rail 0: a mlx5_0 -> b mlx5_0  4.0      9.4   0.1   passed" in text
    assert text.splitlines()[-1].endswith("2 failed, 1 not verified, 3 unused")
