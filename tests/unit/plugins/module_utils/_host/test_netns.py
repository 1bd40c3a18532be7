"""The netns mode and LimitMEMLOCK: foreign settings, required reboots or restarts, memory that a container can lock."""

import contextlib
import errno
import os
import pwd
import stat
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import netns, probe
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.memlock import drop_in
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.memlock import plan as plan_memlock
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.netns import OBJECT, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import netlink, paths

OURS, SITE, CMDLINE = paths.OWN_MODPROBE, "/etc/modprobe.d/sriov.conf", "/proc/cmdline"
SHARED_TEXT = f"{paths.HEADER}\noptions ib_core netns_mode=1\n"
SHARED = {"mode": "shared", "override_allowed": None}
SOFTDEP = "softdep nvidia_peermem pre: nvidia ib_uverbs\n"


def namespace(inode, name=None, *owned):
    keys = ("pid", "command", "unit", "transient")
    return {"inode": inode, "name": name, "owners": [dict(zip(keys, owner)) for owner in owned]}


SLEEP = namespace(4026532345, None, (812, "sleep", None, False))
HOSTNAMED = namespace(4026532346, None, (900, "systemd-hostnam", "systemd-hostnamed.service", True))
NAMED = namespace(4026532347, "/run/netns/x")
UNREADABLE = "unknown: /proc/1/ns/net is not readable (root only)"


def source(path=SITE, mode="exclusive", wins=False) -> dict:
    value = {"shared": 1, "exclusive": 0}[mode]
    text = f"ib_core.netns_mode={value}" if path == CMDLINE else f"options ib_core netns_mode={value}"
    return {"path": path, "line": 1, "text": text, "mode": mode, "ours": path == OURS, "wins": wins}


@pytest.fixture
def facts() -> dict:
    state = {"ib_core_loaded": True, "netns_mode": "shared", "persisted_netns_mode": "shared", "foreign_owners": []}
    return {
        "node": {"container": None},
        "subsystem": {**state, "netns_sources": [source(OURS, "shared", True)], "namespaces": []},
        "initramfs": {"generator": "update-initramfs", "images": []},
        "owned_files": {OURS: {"mode": "0644", "content": SHARED_TEXT}},
    }


@pytest.fixture
def untouched(facts) -> dict:
    facts["owned_files"] = {}
    facts["subsystem"].update(netns_mode="exclusive", persisted_netns_mode=None, netns_sources=[])
    return facts


def objects(made) -> list:
    return [change.object for change in made.changes]


def test_a_node_in_the_wanted_mode_is_left_alone_and_exclusive_is_a_mode_like_the_other(facts):
    made = plan(facts, SHARED)
    assert (made.changes, made.findings, made.reboot_reasons, made.notes) == ([], [], [], [])
    made = plan(facts, {**SHARED, "mode": "exclusive"})
    wanted = [(OURS, SHARED_TEXT.replace("=1", "=0")), (OBJECT, "exclusive")]
    assert [(change.object, change.after) for change in made.changes] == wanted


@pytest.mark.parametrize("others", ["", SOFTDEP])
def test_both_states_are_set_and_lines_of_others_in_our_file_stay(untouched, others):
    before = f"{paths.HEADER}\n{SOFTDEP}" if others else ""
    untouched["owned_files"] = {OURS: {"mode": "0644", "content": before}} if others else {}
    wanted = [(OURS, "write", before, SHARED_TEXT + others), (OBJECT, "set", "exclusive", "shared")]
    assert plan(untouched, SHARED).changes == wanted


@pytest.mark.parametrize(("namespaces", "busy", "sets", "told"), [
    ([SLEEP, HOSTNAMED], False, False, ["pid 812 sleep", "pid 900 systemd-hostnam of systemd"]),
    ([NAMED], False, False, ["/run/netns/x"]),
    pytest.param([HOSTNAMED], False, True, None, id="short-lived units are waited for"),
    pytest.param([HOSTNAMED], True, False, ["systemd-hostnamed.service"], id="short-lived ones that stay"),
    pytest.param([], True, False, ["not visible"], id="no owner is visible"),
    (UNREADABLE, False, True, None),
    (UNREADABLE, True, False, ["root only"]),
])  # fmt: skip
def test_a_workload_is_not_stopped_but_listed(untouched, namespaces, busy, sets, told):
    untouched["subsystem"]["namespaces"] = namespaces
    made = plan(untouched, SHARED, busy=busy)
    assert objects(made) == ([OURS, OBJECT] if sets else [OURS])
    assert len(made.reboot_reasons) == (told is not None)
    assert all(part in made.reboot_reasons[0] for part in told or [])


@pytest.mark.parametrize(("sources", "allowed", "changes", "findings", "told"), [
    pytest.param([source(), source("/etc/modprobe.d/b.conf")], None, [], 2, "findings", id="no consent"),
    pytest.param([source()], True, [OURS, OBJECT], 0, "notes", id="consent"),
    pytest.param([source()], False, [], 0, "not_applied", id="respected"),
    pytest.param([source(mode="shared")], None, [OURS, OBJECT], 0, None, id="it agrees"),
    *(
        pytest.param([source(path, wins=True)], allowed, [], 1, "findings", id=f"{path} {allowed}")
        for path in (CMDLINE, "/etc/modprobe.d/zzz.conf")
        for allowed in (None, True, False)
    ),
])  # fmt: skip
def test_a_foreign_file_is_overridden_on_consent_only_and_always_named(
    untouched, sources, allowed, changes, findings, told
):
    untouched["subsystem"]["netns_sources"] = sources
    made = plan(untouched, {"mode": "shared", "override_allowed": allowed})
    assert (objects(made), len(made.findings)) == (changes, findings)
    assert told is None or sources[0]["text"] in str(getattr(made, told)[0])


@pytest.mark.parametrize(
    ("container", "loaded", "told"), [(None, False, "notes"), ("systemd-nspawn", True, "not_verified")]
)
def test_without_ib_core_or_in_a_container_only_the_file_is_written(untouched, container, loaded, told):
    untouched["node"]["container"] = container
    if not loaded:
        untouched["subsystem"].update(ib_core_loaded=False, netns_mode="unknown: ib_core is not loaded")
    made = plan(untouched, SHARED)
    assert (objects(made), made.reboot_reasons, len(getattr(made, told))) == ([OURS], [], 1)


def answer(code: int, message_type: int = 2) -> bytes:
    return struct.pack("=IHHIIi", 36, message_type, 0, 1, 4711, -code) + bytes(16)


@pytest.mark.parametrize(("mode", "value", "code"), [("shared", "01", 0), ("exclusive", "00", errno.EBUSY)])
def test_the_request_and_the_errno_of_its_acknowledgement(monkeypatch, mode, value, code):
    # As `strace -e sendto rdma system set netns` shows them: RDMA_NLDEV_CMD_SYS_SET with REQUEST and ACK, then
    # RDMA_NLDEV_SYS_ATTR_NETNS_MODE, one u8 of length 5 padded to four bytes.
    asked = []
    monkeypatch.setattr(netlink, "answers", lambda *request: asked.append(request) or [answer(0, 3), answer(code)])
    with pytest.raises(OSError, match="busy") if code else contextlib.nullcontext():
        netns.set_netns_mode(mode)
    assert asked == [(0x1407, 0x5, bytes.fromhex(f"0500 4200 {value} 000000"), 20)]


MEMLOCK = {"services": ["k3s", "kubelet"], "memlock": "infinity"}
K3S, KUBELET = paths.own_drop_in("k3s"), paths.own_drop_in("kubelet")
NONE = {"exists": False, "active": False, "main_pid": None, "memlock_running": None, "drop_ins": []}
SITE_DROP_IN = "/etc/systemd/system/k3s.service.d/50-site.conf"


def running(service: str, memlock="infinity", memlock_running="infinity", drop_ins=()) -> dict:
    limits = {"memlock": memlock, "memlock_running": memlock_running}
    return {**NONE, "exists": True, "active": True, "main_pid": 700, "drop_ins": [service, *drop_ins], **limits}


@pytest.fixture
def limits() -> dict:
    owned = {path: {"mode": "0644", "content": drop_in("infinity")} for path in (K3S, KUBELET)}
    owned[paths.OWN_MODPROBE] = {"mode": "0644", "content": paths.HEADER}
    return {"limits": {"services": {"k3s": running(K3S), "kubelet": running(KUBELET)}}, "owned_files": owned}


def test_a_settled_node_is_left_alone_and_the_drop_in_of_a_service_that_left_the_list_goes(limits):
    made = plan_memlock(limits, MEMLOCK)
    assert (made.changes, made.findings, made.notes, made.not_applied) == ([], [], [], [])
    left = plan_memlock(limits, {**MEMLOCK, "services": ["k3s"]})
    assert left.changes == [(KUBELET, "remove", drop_in("infinity"), "")]


@pytest.mark.parametrize(
    ("service", "state", "told"),
    [
        pytest.param("k3s", running(K3S, memlock_running=8388608), "not_applied", id="a runtime"),
        pytest.param("kubelet", running(KUBELET, memlock_running=65536), "notes", id="another service"),
        pytest.param("k3s", running(K3S, memlock_running="unknown: not readable"), None, id="it cannot be read"),
        pytest.param("k3s", running(K3S, memlock=65536, drop_ins=[SITE_DROP_IN]), "findings", id="ours is overridden"),
    ],
)
def test_a_service_with_another_limit_is_named_and_not_restarted(limits, service, state, told):
    limits["limits"]["services"][service] = state
    made = plan_memlock(limits, MEMLOCK)
    assert made.changes == []
    for place in ("not_applied", "notes", "findings"):
        assert len(getattr(made, place)) == (place == told)
    if told == "findings":
        assert (made.findings[0].object, SITE_DROP_IN in made.findings[0].seen) == ("service k3s", True)
    elif told:
        assert f"systemctl restart {service}" in getattr(made, told)[0]


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
@pytest.mark.parametrize(("mode", "owner", "group", "user", "usable"), [
    (0o666, 54321, 54321, "nobody", True),
    (0o664, 0, 0, "nobody", False),
    (0o660, 0, NOGROUP, "nobody", True),
    (0o606, 0, NOGROUP, "nobody", False),  # a group's member has the group's rights only
    (0o600, NOBODY, 0, "nobody", True),
    (0o066, NOBODY, 0, "nobody", False),
    (0o660, 0, 0, "no-such-user", False),
    (0o666, 0, 0, "no-such-user", True),
])  # fmt: skip
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
