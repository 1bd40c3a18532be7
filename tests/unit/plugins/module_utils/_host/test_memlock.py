"""LimitMEMLOCK drop-ins: what is written, which service still runs with the old limit; and what a container could lock
and open, tried on this machine."""

from __future__ import annotations

import os
import pwd
import stat

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import probe
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.memlock import drop_in, parse, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

WANTED = {"services": ["k3s", "kubelet"], "memlock": "infinity"}
K3S, KUBELET = paths.own_drop_in("k3s"), paths.own_drop_in("kubelet")
NONE = {"exists": False, "active": False, "main_pid": None, "memlock_running": None, "drop_ins": []}
SITE = "/etc/systemd/system/k3s.service.d/50-site.conf"


def running(service: str, memlock="infinity", memlock_running="infinity", drop_ins=()) -> dict:
    limits = {"memlock": memlock, "memlock_running": memlock_running}
    return {**NONE, "exists": True, "active": True, "main_pid": 700, "drop_ins": [service, *drop_ins], **limits}


@pytest.fixture
def facts() -> dict:
    owned = {path: {"mode": "0644", "content": drop_in("infinity")} for path in (K3S, KUBELET)}
    owned[paths.OWN_MODPROBE] = {"mode": "0644", "content": paths.HEADER}
    return {"limits": {"services": {"k3s": running(K3S), "kubelet": running(KUBELET)}}, "owned_files": owned}


def test_a_settled_node_is_left_alone_and_the_drop_in_of_a_service_that_left_the_list_goes(facts):
    """Files of other roles stay."""
    made = plan(facts, WANTED)
    assert (made.changes, made.findings, made.notes, made.not_applied) == ([], [], [], [])
    assert plan(facts, {**WANTED, "services": ["k3s"]}).changes == [(KUBELET, "remove", drop_in("infinity"), "")]


def test_services_that_do_not_exist_yet_get_their_drop_in(facts):
    facts["owned_files"] = {}
    facts["limits"]["services"] = {"k3s": {**NONE, "memlock": "unknown: there is no unit k3s.service"}}
    made = plan(facts, WANTED)
    assert [(change.object, change.action) for change in made.changes] == [(K3S, "write"), (KUBELET, "write")]
    assert "LimitMEMLOCK=infinity" in made.changes[0].after
    assert "After=openibd.service rdma-hw.target" in made.changes[0].after
    assert made.findings == []


@pytest.mark.parametrize(
    ("service", "state", "told"),
    [
        pytest.param("k3s", running(K3S, memlock_running=8388608), "not_applied", id="a runtime"),
        pytest.param("kubelet", running(KUBELET, memlock_running=65536), "notes", id="another service"),
        pytest.param("k3s", running(K3S, memlock_running="unknown: not readable"), None, id="it cannot be read"),
        pytest.param("k3s", running(K3S, memlock=65536, drop_ins=[SITE]), "findings", id="ours is overridden"),
    ],
)
def test_a_service_with_another_limit_is_named_and_not_restarted(facts, service, state, told):
    facts["limits"]["services"][service] = state
    made = plan(facts, WANTED)
    assert made.changes == []
    for place in ("not_applied", "notes", "findings"):
        assert len(getattr(made, place)) == (place == told)
    if told == "findings":
        assert (made.findings[0].object, SITE in made.findings[0].seen) == ("service k3s", True)
    elif told:
        assert f"systemctl restart {service}" in getattr(made, told)[0]


def test_before_our_drop_in_is_there_the_limit_says_nothing(facts):
    facts["owned_files"] = {}
    facts["limits"]["services"]["k3s"] = running(K3S, memlock=65536, memlock_running=65536)
    made = plan(facts, WANTED)
    assert (made.findings, len(made.not_applied)) == ([], 1)


@pytest.mark.parametrize(("seen", "wanted"), [(8589934592, "8G"), ("8388608", "8M"), (65536, "64K")])
def test_limits_are_compared_as_systemd_reads_them(facts, seen, wanted):
    for service, path in (("k3s", K3S), ("kubelet", KUBELET)):
        facts["owned_files"][path]["content"] = drop_in(wanted)
        facts["limits"]["services"][service] = running(path, seen, seen)
    made = plan(facts, {**WANTED, "memlock": wanted})
    assert (made.changes, made.findings, made.not_applied, made.notes) == ([], [], [], [])


@pytest.mark.parametrize("text", ["unlimited", "8GB", "-1", "", "1.5G"])
def test_what_systemd_would_not_take_is_refused(text):
    with pytest.raises(ValueError, match="infinity"):
        parse(text)


# --- tried on this machine --------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not verified: only root can switch to another user")


@needs_root
def test_a_limit_keeps_another_user_from_locking_more():
    outcome = probe.lock_memory(64 * 1024, "nobody")
    assert (outcome["locked"], outcome["reason"]) == (0, None)
    assert "mlock of 16 MiB" in outcome["error"]
    outcome = probe.lock_memory(65536, "nobody", size=16384)
    assert outcome == {"locked": 16384, "error": None, "reason": None}


def test_an_unknown_user_is_a_reason_and_no_failure():
    outcome = probe.lock_memory("infinity", "no-such-user")
    assert (outcome["locked"], outcome["error"], "no-such-user" in outcome["reason"]) == (0, None, True)


def test_only_character_devices_count(tmp_path):
    (tmp_path / "uverbs0").write_text("")
    os.symlink("/dev/null", tmp_path / "uverbs1")
    wanted = {"uverbs1": {"mode": "0666", "owner": "root", "group": "root", "usable": True}}
    assert probe.char_devices("nobody", str(tmp_path)) == wanted
    assert probe.char_devices("nobody", str(tmp_path / "none")) == {}


NOBODY, NOGROUP = pwd.getpwnam("nobody")[2:4]


@needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "group", "user", "usable"),
    [
        (0o666, 54321, 54321, "nobody", True),
        (0o664, 0, 0, "nobody", False),
        (0o660, 0, NOGROUP, "nobody", True),
        (0o606, 0, NOGROUP, "nobody", False),  # a group's member has the group's rights only
        (0o600, NOBODY, 0, "nobody", True),
        (0o066, NOBODY, 0, "nobody", False),
        (0o660, 0, 0, "no-such-user", False),
        (0o666, 0, 0, "no-such-user", True),
    ],
)
def test_a_device_is_usable_by_the_rights_of_the_first_class_that_fits(tmp_path, mode, owner, group, user, usable):
    path = tmp_path / "uverbs3"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(42, 3))  # a major number of no driver
    except PermissionError:
        pytest.skip("not verified: no right to make a device node")
    os.chown(path, owner, group)
    os.chmod(path, mode)
    found = probe.char_devices(user, str(tmp_path))["uverbs3"]
    assert (found["mode"], found["usable"]) == (f"{mode:04o}", usable)
    assert owner != 54321 or (found["owner"], found["group"]) == ("54321", "54321")
