"""LimitMEMLOCK drop-ins: what is written, and which service still runs with the old limit."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.memlock import drop_in, parse, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

WANTED = {"services": ["k3s", "kubelet"], "memlock": "infinity"}
K3S, KUBELET = paths.own_drop_in("k3s"), paths.own_drop_in("kubelet")
NOT_INSTALLED = {
    "exists": False,
    "active": False,
    "main_pid": None,
    "memlock": "unknown: there is no unit k3s.service",
    "memlock_running": None,
    "drop_ins": [],
}


def running(service: str, memlock="infinity", memlock_running="infinity", drop_ins=()) -> dict:
    return {
        "exists": True,
        "active": True,
        "main_pid": 700,
        "memlock": memlock,
        "memlock_running": memlock_running,
        "drop_ins": [paths.own_drop_in(service), *drop_ins],
    }


@pytest.fixture
def facts() -> dict:
    text = drop_in("infinity")
    return {
        "limits": {"services": {"k3s": running("k3s"), "kubelet": running("kubelet")}},
        "owned_files": {path: {"mode": "0644", "content": text} for path in (K3S, KUBELET)},
    }


def test_a_settled_node_is_left_alone(facts):
    made = plan(facts, WANTED)
    assert (made.changes, made.findings, made.notes, made.not_applied) == ([], [], [], [])


def test_services_that_do_not_exist_yet_get_their_drop_in(facts):
    facts["owned_files"] = {}
    facts["limits"]["services"] = {"k3s": NOT_INSTALLED}
    made = plan(facts, WANTED)
    assert [(change.object, change.action) for change in made.changes] == [(K3S, "write"), (KUBELET, "write")]
    assert "LimitMEMLOCK=infinity" in made.changes[0].after
    assert "After=openibd.service rdma-hw.target" in made.changes[0].after
    assert made.findings == []


def test_the_drop_in_of_a_service_that_left_the_list_goes(facts):
    (change,) = plan(facts, {**WANTED, "services": ["k3s"]}).changes
    assert (change.object, change.action, change.after) == (KUBELET, "remove", "")


def test_files_of_other_roles_stay(facts):
    facts["owned_files"][paths.OWN_MODPROBE] = {"mode": "0644", "content": paths.HEADER}
    assert plan(facts, WANTED).changes == []


def test_a_runtime_with_the_old_limit_is_named_and_not_restarted(facts):
    facts["limits"]["services"]["k3s"] = running("k3s", memlock_running=8388608)
    made = plan(facts, WANTED)
    assert made.changes == []
    assert "systemctl restart k3s" in made.not_applied[0]
    assert "8388608" in made.not_applied[0]


def test_another_service_with_the_old_limit_is_a_note(facts):
    facts["limits"]["services"]["kubelet"] = running("kubelet", memlock_running=65536)
    made = plan(facts, WANTED)
    assert made.not_applied == []
    assert "systemctl restart kubelet" in made.notes[0]


def test_a_limit_that_cannot_be_read_is_not_guessed(facts):
    facts["limits"]["services"]["k3s"] = running("k3s", memlock_running="unknown: /proc/700/limits is not readable")
    assert plan(facts, WANTED).not_applied == []


def test_a_drop_in_that_overrides_ours_is_a_problem(facts):
    other = "/etc/systemd/system/k3s.service.d/50-site.conf"
    facts["limits"]["services"]["k3s"] = running("k3s", memlock=65536, drop_ins=[other])
    (finding,) = plan(facts, WANTED).findings
    assert finding.object == "service k3s"
    assert other in finding.seen
    assert "65536" in finding.seen


def test_before_our_drop_in_is_there_the_limit_says_nothing(facts):
    facts["owned_files"] = {}
    facts["limits"]["services"]["k3s"] = running("k3s", memlock=65536, memlock_running=65536)
    made = plan(facts, WANTED)
    assert made.findings == []
    assert len(made.not_applied) == 1


@pytest.mark.parametrize(
    ("seen", "wanted"), [("infinity", "infinity"), (8589934592, "8G"), ("8388608", "8M"), (65536, "64K")]
)
def test_limits_are_compared_as_systemd_reads_them(facts, seen, wanted):
    text = drop_in(wanted)
    for path in (K3S, KUBELET):
        facts["owned_files"][path]["content"] = text
    for service in ("k3s", "kubelet"):
        facts["limits"]["services"][service] = running(service, seen, seen)
    made = plan(facts, {**WANTED, "memlock": wanted})
    assert (made.changes, made.findings, made.not_applied, made.notes) == ([], [], [], [])


@pytest.mark.parametrize("text", ["unlimited", "8GB", "-1", "", "1.5G"])
def test_what_systemd_would_not_take_is_refused(text):
    with pytest.raises(ValueError, match="neither infinity nor a number"):
        parse(text)
