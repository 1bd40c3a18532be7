"""The switch plan: what is refused, the class that follows from it, who is told of it, and what counters say of it."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import fabric_plan, variables

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


def test_the_class_is_dscp_and_ecn_whatever_the_plan():
    for dscp in range(64):
        for ecn, bits in ((False, 0), ("ect1", 1), (True, 2)):
            plan = fabric_plan.of({**STATED, "dscp": dscp, "cnp_priority": 3, "lossless": False, "ecn": ecn})
            plan = plan or fabric_plan.of({**STATED, "dscp": dscp, "cnp_dscp": 1, "ecn": ecn})
            assert (plan.traffic_class >> 2, plan.traffic_class & 3) == (dscp, bits)


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


OURS = paths.HEADER + "\nNCCL_IB_TC=1\n"
LINES = "NCCL_IB_TC=106\nNCCL_GIN_IB_TC=106\nNCCL_IB_SL=3\n"


@pytest.mark.parametrize(("there", "publish", "changes", "wrong", "taken"), [
    (None, False, [], 0, (0, 0)),
    (None, True, ["write"], 0, (1, 0)),
    (OURS, True, ["write"], 0, (1, 0)),
    (paths.HEADER + "\n" + LINES, True, [], 0, (1, 0)),
    (OURS, False, ["remove"], 0, (0, 1)),
    ("NCCL_DEBUG=INFO\n", True, [], 1, (0, 0)),
    ("NCCL_DEBUG=INFO\n", False, [], 0, (0, 0)),
    ("NCCL_DEBUG=INFO\n" + LINES, True, [], 0, (0, 0)),
])  # fmt: skip
def test_a_file_of_somebody_else_is_never_overwritten(captured, there, publish, changes, wrong, taken):
    facts = captured["gh200-cx7-roce"]
    facts["owned_files"] = {paths.NCCL_CONF: {"mode": "0644", "content": there}} if there else {}
    typed = {**TYPED, "fabric_plan": "doroce", "fabric_publish": publish}
    plan, take = fabric_plan.on_node(facts, typed)
    assert [change.action for change in plan.changes] == changes
    assert (len(plan.findings), len(take["files"]), len(take["absent"])) == (wrong, *taken)
    assert [len(fabric_plan.objects({**typed, "networks_namespaces": ["a", "b"]}, [facts]))] == [2 * publish]


def test_nothing_to_publish_is_refused():
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
