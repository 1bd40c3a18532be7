"""The switch plan: refusals, the resulting class, its consumers, and the judgement of counters."""

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import fabric_plan, variables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import traffic_class

STATED = {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6, "lossless": True, "ecn": True}
TYPED = {name: option.get("default") for name, option in variables.options().items()}
ROCE, IB = "Ethernet", "InfiniBand"


def ids(findings):
    assert all(all(finding) for finding in findings)
    return sorted(finding.id.removeprefix("fabric_plan:") for finding in findings)


@pytest.mark.parametrize(("given", "wrong"), [
    (None, []),
    ("doroce", []),
    (STATED, []),
    ({"dscp": "26", "priority": "3", "lossless": "no", "ecn": "yes"}, []),
    ("nvidia", ["profile"]),
    ([STATED], ["profile"]),
    ({}, ["dscp", "ecn", "lossless", "priority"]),
    ({"dscp": 64, "priority": 8, "cnp_dscp": -1, "cnp_priority": True, "lossless": "often", "ecn": 3, "tos": 1},
     ["cnp_dscp", "cnp_priority", "dscp", "ecn", "keys", "lossless", "priority"]),
    ({**STATED, "cnp_dscp": 26}, ["cnp_dscp"]),
    ({**STATED, "cnp_priority": 3}, ["cnp_priority"]),
    ({**STATED, "cnp_priority": 3, "lossless": False}, []),
])  # fmt: skip
def test_everything_that_is_wrong_with_a_plan_is_refused_at_once(given, wrong):
    plan, findings = fabric_plan.read(given)
    assert ids(findings) == wrong
    assert (plan is None) == bool(wrong or given is None)
    assert fabric_plan.of(given) == plan


def test_the_class_of_each_published_profile():
    classes = {name: fabric_plan.of(name).traffic_class for name in fabric_plan.PROFILES}
    assert classes == {"doroce": 106, "oracle": 105, "spiderpool": 160, "spectrum-x": 96}


@pytest.mark.parametrize(("layers", "named"), [
    ({ROCE}, {"NCCL_IB_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS",
              "NCCL_IB_SL", "UCX_IB_SL"}),
    ({ROCE, IB}, {"NCCL_IB_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS"}),
    ({IB}, set()),
    (set(), set()),
])  # fmt: skip
def test_what_a_job_is_told_depends_on_its_rails(layers, named):
    told = fabric_plan.environment(fabric_plan.of("doroce"), layers)
    assert set(told) == named
    assert all(value == ("3" if name.endswith("_SL") else "106") for name, value in told.items())
    assert fabric_plan.environment(None, layers) == {}
    assert fabric_plan.side(fabric_plan.of("doroce"), IB) is None


MB = 10**6
GOOD = {"client": {"tx_prio3_bytes": 250 * MB, "tx_prio0_bytes": MB}, "server": {"rx_prio3_bytes": 250 * MB}}
WRONG = {"client": {"tx_prio3_bytes": MB, "tx_prio0_bytes": 250 * MB}}


@pytest.mark.parametrize(("counted", "rises", "stated", "found"), [
    (GOOD, {}, {}, []),
    ({**GOOD, **WRONG}, {}, {}, ["sent"]),
    ({**GOOD, "server": {"rx_prio5_bytes": 250 * MB}}, {}, {}, ["received"]),
    ({**GOOD, "client": {**WRONG["client"], "rx_prio0_pause": 9}}, {}, {}, ["pause", "sent"]),
    ({**GOOD, "client": {**GOOD["client"], "rx_prio0_pause": 9}}, {}, {}, []),
    ({**GOOD, "client": {**GOOD["client"], "rx_prio3_pause": 9}}, {}, {}, []),
    ({**GOOD, "client": {**GOOD["client"], "rx_prio3_pause": 9}}, {}, {"lossless": False}, ["pause-lossy"]),
    ({**GOOD, "client": {**GOOD["client"], "rx_global_pause": 9}}, {}, {}, ["pause-global"]),
    ({**GOOD, "server": {**GOOD["server"], "tx_pause_storm_warning_events": 1}}, {}, {}, ["pause-storm"]),
    ({**GOOD, "server": {**GOOD["server"], "rx_prio3_discards": 4}}, {}, {}, ["lost"]),
    (GOOD, {"server": {"out_of_sequence": 4}}, {}, ["lost"]),
    (GOOD, {"client": {"roce_adp_retrans": 4}}, {"lossless": False}, []),
    (GOOD, {"client": {"rnr_nak_retry_err": 4}}, {}, []),
    (GOOD, {"server": {"np_cnp_sent": 5}}, {}, ["cnp-lost"]),
    (GOOD, {"server": {"np_cnp_sent": 5}, "client": {"rp_cnp_handled": 5}}, {}, []),
    (GOOD, {"server": {"np_cnp_sent": 5}, "client": {"rp_cnp_ignored": 5}}, {}, ["cnp-ignored"]),
    (GOOD, {"server": {"np_ecn_marked_roce_packets": 5}}, {}, ["cnp-unsent"]),
    ({}, {"server": {"out_of_sequence": 4}}, {}, ["lost"]),
    ({}, {}, {}, None),
    ({"client": {"tx_prio0_bytes": MB}, "server": {"rx_prio0_bytes": MB}}, {}, {}, None),
    ({**GOOD, "server": {}}, {}, {}, None),
])  # fmt: skip
def test_counters_point_at_the_setting(counted, rises, stated, found):
    """found: ids of the problems; None if unknown."""
    plan = fabric_plan.of({**STATED, **stated})
    ends = {role: {"by_priority": counted.get(role), "counters": rises.get(role)} for role in ("client", "server")}
    ends["client"] |= {"gbps": 1.0, "seconds": 2.0}
    side = {"hca": "mlx5_0", "netdev": "eth2", "traffic_class": plan.traffic_class}
    test = {"id": "t", "rail": 0, "client": {"host": "a", **side}, "server": {"host": "b", **side}}
    problems, _unknown = traffic_class.judge(plan, test, ends)
    assert sorted(problem.id for problem in problems) == (found or [])
    statuses = {item["status"] for item in traffic_class.checks(plan, test, ends)}
    assert statuses == {"not_verified" if found is None else "failed" if found else "passed"}
    assert list(traffic_class.checks(None, test, ends)) == []


OURS = paths.HEADER + "\nNCCL_IB_TC=1\n"
LINES = "NCCL_IB_TC=106\nNCCL_GIN_IB_TC=106\nNCCL_IB_SL=3\n"


@pytest.mark.parametrize(("there", "publish", "changes", "wrong", "taken"), [
    (None, False, [], 0, (0, 0)),
    (None, True, ["write"], 0, (1, 0)),
    (OURS, True, ["write"], 0, (1, 0)),
    (paths.HEADER + "\n" + LINES, True, [], 0, (1, 0)),
    (OURS, False, ["remove"], 0, (0, 1)),
    ("NCCL_DEBUG=INFO\n", True, [], 1, (0, 0)),
    ("NCCL_IB_GID_INDEX=3\n", False, [], 0, (0, 0)),
    ("NCCL_DEBUG=INFO\n" + LINES, True, [], 0, (0, 0)),
])  # fmt: skip
def test_a_file_of_somebody_else_is_never_overwritten(captured, there, publish, changes, wrong, taken):
    facts = captured["gh200-cx7-roce"]
    facts["owned_files"] = {paths.NCCL_CONF: {"mode": "0644", "content": there}} if there else {}
    typed = {**TYPED, "fabric_plan": "doroce", "fabric_publish": publish}
    plan, take = fabric_plan.on_node(facts, typed)
    assert [change.action for change in plan.changes] == changes
    assert len(plan.notes) == ("GID_INDEX" in (there or ""))
    assert (len(plan.findings), len(take["files"]), len(take["absent"])) == (wrong, *taken)
    assert [len(fabric_plan.objects({**typed, "networks_namespaces": ["a", "b"]}, [facts]))] == [2 * publish]


NIC = {
    "netdev": "eth2", "rail": 0, "pci": "0000:01:00.1", "mac": "", "management": None, "trust": "dscp", "dcbx": "host",
    "dscp": {"26": [3], "48": [6]}, "pfc": {"priorities": []}, "pause": {"rx": False, "tx": False},
}  # fmt: skip


@pytest.mark.parametrize(("stated", "nics", "takes"), [
    ({}, [NIC], (None, False, False)),
    ({"fabric_nic_settings": True}, [NIC], (26, True, True)),
    ({"fabric_nic_settings": True}, [{**NIC, "pfc": {"priorities": [3]}}], (26, True, False)),
    ({"fabric_nic_settings": True, "fabric_link_flap_allowed": False}, [NIC], (26, True, False)),
    ({"fabric_nic_settings": True}, [], (26, True, True)),  # not known before the driver is loaded
])  # fmt: skip
def test_nics_are_set_node_by_node_where_a_link_may_go_down(captured, stated, nics, takes):
    facts = {**captured["gh200-cx7-roce"], "qos": {"programs": ["dcb"], "nics": nics}}
    typed = {**TYPED, "fabric_plan": "doroce", "fabric_link_flap_allowed": True, **stated}
    mine = fabric_plan.on_node(facts, typed)[1]["nics"]
    assert ((mine["traffic"] or {}).get("dscp"), mine["needed"], mine["flaps"]) == takes


@pytest.mark.parametrize(("next_value", "current", "allowed", "tried", "told"), [
    ("False(0)", "False(0)", True, None, (False, 0, 0, 0)),
    ("True(1)", "True(1)", True, None, (True, 3, 1, 0)),
    ("False(0)", "True(1)", True, "another boot", (False, 0, 0, 1)),
    ("True(1)", "True(1)", None, None, (False, 0, 0, 1)),
])  # fmt: skip
def test_firmware_that_differs_has_the_module_run_for_the_change_or_the_reboot(
    captured, next_value, current, allowed, tried, told
):
    address = "0000:01:00.1"
    state = {"default": "True(1)", "current": current, "next": next_value, "read_only": False}
    hcas = {address: {"values": {"ATS_ENABLED": state}, "errors": {}}}
    answer = {"program": "mstconfig", "hcas": hcas, "before": {}, "stored": {}}
    answer["tried"] = {address: {"ATS_ENABLED": {"value": "0", "boot_id": tried}}} if tried else {}
    stated = {"fabric_firmware": {address: {"ATS_ENABLED": False}}, "fabric_firmware_allowed": allowed}
    made, take = fabric_plan.on_node({**captured["gh200-cx7-roce"], "firmware": answer}, {**TYPED, **stated})
    counts = (len(made.changes), len(made.reboot_reasons), len(made.findings))
    assert (take["nics"]["needed"], *counts) == told
    # A role that plans only for itself has not asked the HCAs.
    assert fabric_plan.on_node(captured["gh200-cx7-roce"], {**TYPED, **stated})[0].changes == []


def test_nothing_to_publish_is_refused():
    assert ids(fabric_plan.findings({"fabric_nic_settings": True, "fabric_plan": None})) == ["set"]
    assert ids(fabric_plan.findings({"fabric_publish": True, "fabric_plan": None})) == ["publish"]
    assert ids(fabric_plan.findings({"fabric_publish": True, "fabric_plan": "doroce"})) == []


@pytest.mark.parametrize(("plan", "name", "words"), [
    (None, "gh200-cx7-roce", ["class 0"]),
    ("oracle", "gh200-cx7-roce", ["105", "26", "46", "oracle"]),
    ("oracle", "exclusive-netns-foreign-file", []),
])  # fmt: skip
def test_what_was_measured_is_said_once(captured, plan, name, words):
    facts = captured[name]
    if not words:
        facts["rails"] = []
    text = fabric_plan.told(fabric_plan.of(plan), [facts])
    assert bool(text) == bool(words)
    assert [word for word in words if word not in text] == []
