"""The netns mode: who else sets it, what blocks it, what needs a reboot; and the one netlink message, byte by byte."""

from __future__ import annotations

import errno
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import netlink
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.netns import OBJECT, lasting, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

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
    """A converged node in shared mode."""
    return {
        "node": {"container": None},
        "subsystem": {
            "ib_core_loaded": True,
            "netns_mode": "shared",
            "persisted_netns_mode": "shared",
            "netns_sources": [source(OURS, "shared", True)],
            "foreign_owners": [],
            "namespaces": [],
        },
        "initramfs": {"generator": "update-initramfs", "images": []},
        "owned_files": {OURS: {"mode": "0644", "content": SHARED_TEXT}},
    }


@pytest.fixture
def untouched(facts) -> dict:
    """Nothing of ours, and the running mode is the other one."""
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


@pytest.mark.parametrize(
    ("namespaces", "busy", "sets", "told"),
    [
        pytest.param(
            [SLEEP, HOSTNAMED], False, False, ["pid 812 sleep", "pid 900 systemd-hostnam of systemd"], id="a workload"
        ),
        pytest.param([NAMED], False, False, ["/run/netns/x"], id="a named one"),
        pytest.param([HOSTNAMED], False, True, None, id="short-lived units are waited for"),
        pytest.param([HOSTNAMED], True, False, ["systemd-hostnamed.service"], id="short-lived ones that stay"),
        pytest.param([], True, False, ["not visible"], id="no owner is visible"),
        pytest.param(UNREADABLE, False, True, None, id="they cannot be listed"),
        pytest.param(UNREADABLE, True, False, ["root only"], id="they cannot be listed, and the kernel refuses"),
    ],
)
def test_a_workload_is_not_stopped_but_listed(untouched, namespaces, busy, sets, told):
    untouched["subsystem"]["namespaces"] = namespaces
    made = plan(untouched, SHARED, busy=busy)
    assert objects(made) == ([OURS, OBJECT] if sets else [OURS])
    assert len(made.reboot_reasons) == (told is not None)
    assert all(part in made.reboot_reasons[0] for part in told or [])


@pytest.mark.parametrize(
    ("sources", "allowed", "changes", "findings", "told"),
    [
        pytest.param([source(), source("/etc/modprobe.d/b.conf")], None, [], 2, "findings", id="no consent"),
        pytest.param([source()], True, [OURS, OBJECT], 0, "notes", id="consent"),
        pytest.param([source()], False, [], 0, "not_applied", id="respected"),
        pytest.param([source(mode="shared")], None, [OURS, OBJECT], 0, None, id="it agrees"),
        *(
            pytest.param([source(path, wins=True)], allowed, [], 1, "findings", id=f"{path} {allowed}")
            for path in (CMDLINE, "/etc/modprobe.d/zzz.conf")
            for allowed in (None, True, False)
        ),
    ],
)
def test_a_foreign_file_is_overridden_on_consent_only_and_always_named(
    untouched, sources, allowed, changes, findings, told
):
    """What no file of ours can override, the command line or a file that is read after ours, always stops."""
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


@pytest.mark.parametrize(("mtime", "stale"), [(100, True), (101, False)])
def test_an_initramfs_older_than_our_file_is_stale_even_when_nothing_changes(facts, mtime, stale):
    facts["owned_files"][OURS]["mtime"] = 100
    facts["initramfs"]["images"] = [{"path": "/boot/initrd.img-6.1", "kernel": "6.1", "mtime": mtime}]
    made = plan(facts, SHARED)
    assert (made.changes, made.stale_images) == ([], ["/boot/initrd.img-6.1"] if stale else [])


def test_lasting_namespaces():
    mixed = {**HOSTNAMED, "owners": HOSTNAMED["owners"] + SLEEP["owners"]}
    assert lasting([SLEEP, HOSTNAMED, NAMED, mixed]) == [SLEEP, NAMED, mixed]


@pytest.mark.skipif(struct.pack("=H", 1) != b"\x01\x00", reason="the bytes below are little-endian")
@pytest.mark.parametrize(("mode", "value"), [("shared", "01"), ("exclusive", "00")])
def test_the_bytes_of_the_request(mode, value):
    # As `strace -e sendto rdma system set netns` shows them: nlmsghdr, then one u8 attribute padded to four bytes.
    expected = (
        "18000000"  # length 24
        "0714"  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_SET) = 5127
        "0500"  # NLM_F_REQUEST | NLM_F_ACK
        "07000000"  # sequence
        "00000000"  # port, filled in by the kernel
        "0500" + "4200" + value + "000000"  # length 5, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, mode
    )
    assert netlink.set_netns_mode_message(mode, 7).hex() == expected


def answer(code: int, sequence: int, message_type: int = netlink.NLMSG_ERROR) -> bytes:
    body = struct.pack("=i", -code) + netlink.set_netns_mode_message("shared", sequence)[:16]
    return struct.pack("=IHHII", 16 + len(body), message_type, 0, sequence, 4711) + body


NOISE = answer(errno.EINVAL, 6) + answer(0, 7, message_type=3)


@pytest.mark.parametrize(
    ("data", "code"), [(answer(0, 7), 0), (NOISE, None), (NOISE + answer(errno.EBUSY, 7), errno.EBUSY)]
)
def test_the_acknowledgement_carries_the_errno_and_other_messages_are_passed_over(data, code):
    assert netlink.acknowledged_errno(data, 7) == code


def test_a_short_answer_is_an_error():
    with pytest.raises(ValueError, match="truncated"):
        netlink.acknowledged_errno(answer(0, 7)[:-1], 7)
