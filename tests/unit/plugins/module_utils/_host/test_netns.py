"""The netns mode: who else sets it, what blocks it, what needs a reboot."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.netns import OBJECT, lasting, owners, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

OURS = paths.OWN_MODPROBE
SHARED_TEXT = f"{paths.HEADER}\noptions ib_core netns_mode=1\n"
SHARED = {"mode": "shared", "override_allowed": None}
SLEEP = {
    "inode": 4026532345,
    "name": None,
    "owners": [{"pid": 812, "command": "sleep", "unit": None, "transient": False}],
}
HOSTNAMED = {
    "inode": 4026532346,
    "name": None,
    "owners": [
        {"pid": 900, "command": "systemd-hostnam", "unit": "systemd-hostnamed.service", "transient": True},
    ],
}
NAMED = {"inode": 4026532347, "name": "/run/netns/x", "owners": []}


def source(path="/etc/modprobe.d/sriov.conf", mode="exclusive", wins=False) -> dict:
    value = {"shared": 1, "exclusive": 0}[mode]
    text = f"ib_core.netns_mode={value}" if path == "/proc/cmdline" else f"options ib_core netns_mode={value}"
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


def test_a_node_in_the_wanted_mode_is_left_alone(facts):
    made = plan(facts, SHARED)
    assert (made.changes, made.findings, made.reboot_reasons, made.notes) == ([], [], [], [])


def test_both_states_are_set(untouched):
    assert plan(untouched, SHARED).changes == [(OURS, "write", "", SHARED_TEXT), (OBJECT, "set", "exclusive", "shared")]


def test_exclusive_is_a_mode_like_the_other(facts):
    made = plan(facts, {"mode": "exclusive", "override_allowed": None})
    assert [(change.object, change.after) for change in made.changes] == [
        (OURS, SHARED_TEXT.replace("=1", "=0")),
        (OBJECT, "exclusive"),
    ]


def test_lines_of_others_in_our_file_stay(untouched):
    softdep = "softdep nvidia_peermem pre: nvidia ib_uverbs"
    untouched["owned_files"] = {OURS: {"mode": "0644", "content": f"{paths.HEADER}\n{softdep}\n"}}
    assert plan(untouched, SHARED).changes[0].after == f"{SHARED_TEXT}{softdep}\n"


@pytest.mark.parametrize("namespace", [SLEEP, NAMED])
def test_a_workload_is_not_stopped_but_listed(untouched, namespace):
    untouched["subsystem"]["namespaces"] = [namespace, HOSTNAMED]
    made = plan(untouched, SHARED)
    assert [change.object for change in made.changes] == [OURS]
    (reason,) = made.reboot_reasons
    assert "exclusive" in reason
    assert "shared is persisted" in reason
    assert owners(namespace) in reason
    assert "pid 900 systemd-hostnam of systemd-hostnamed.service" in reason


def test_short_lived_units_are_waited_for(untouched):
    untouched["subsystem"]["namespaces"] = [HOSTNAMED]
    made = plan(untouched, SHARED)
    assert (OBJECT, "set", "exclusive", "shared") in made.changes
    assert made.reboot_reasons == []


def test_short_lived_units_that_stay_give_a_reboot_reason(untouched):
    untouched["subsystem"]["namespaces"] = [HOSTNAMED]
    made = plan(untouched, SHARED, busy=True)
    assert [change.object for change in made.changes] == [OURS]
    assert "systemd-hostnamed.service" in made.reboot_reasons[0]


def test_a_refusal_without_a_visible_owner_says_so(untouched):
    assert "not visible" in plan(untouched, SHARED, busy=True).reboot_reasons[0]


def test_namespaces_that_cannot_be_listed_leave_it_to_the_kernel(untouched):
    untouched["subsystem"]["namespaces"] = "unknown: /proc/1/ns/net is not readable (root only)"
    assert any(change.object == OBJECT for change in plan(untouched, SHARED).changes)
    assert "root only" in plan(untouched, SHARED, busy=True).reboot_reasons[0]


def test_a_foreign_file_stops_with_an_explanation(untouched):
    untouched["subsystem"]["netns_sources"] = [source(), source("/etc/modprobe.d/b.conf")]
    made = plan(untouched, SHARED)
    assert made.changes == []
    assert len(made.findings) == 2
    assert "/etc/modprobe.d/sriov.conf:1 says 'options ib_core netns_mode=0'" in made.findings[0].seen
    assert "rdma_netns_override_allowed" in made.findings[0].next_step


def test_a_foreign_file_is_overridden_on_consent_and_still_named(untouched):
    untouched["subsystem"]["netns_sources"] = [source()]
    made = plan(untouched, {"mode": "shared", "override_allowed": True})
    assert [change.object for change in made.changes] == [OURS, OBJECT]
    assert any("/etc/modprobe.d/sriov.conf:1" in note for note in made.notes)


def test_a_foreign_file_is_respected_when_configured(untouched):
    untouched["subsystem"]["netns_sources"] = [source()]
    made = plan(untouched, {"mode": "shared", "override_allowed": False})
    assert (made.changes, made.findings) == ([], [])
    assert "/etc/modprobe.d/sriov.conf:1" in made.not_applied[0]


def test_a_foreign_file_that_agrees_is_left_alone(untouched):
    untouched["subsystem"]["netns_sources"] = [source(mode="shared")]
    assert plan(untouched, SHARED).findings == []


@pytest.mark.parametrize("allowed", [None, True, False])
@pytest.mark.parametrize(
    ("path", "words"), [("/proc/cmdline", "no file can override"), ("/etc/modprobe.d/zzz.conf", "read after")]
)
def test_what_a_file_cannot_override_always_stops(untouched, allowed, path, words):
    untouched["subsystem"]["netns_sources"] = [source(path, wins=True)]
    made = plan(untouched, {"mode": "shared", "override_allowed": allowed})
    assert made.changes == []
    assert words in made.findings[0].seen


def test_without_ib_core_there_is_no_running_mode_to_set(untouched):
    untouched["subsystem"].update(ib_core_loaded=False, netns_mode="unknown: ib_core is not loaded")
    made = plan(untouched, SHARED)
    assert [change.object for change in made.changes] == [OURS]
    assert made.reboot_reasons == []
    assert "when ib_core is loaded" in made.notes[0]


def test_in_a_container_the_kernel_is_left_alone(untouched):
    untouched["node"]["container"] = "systemd-nspawn"
    made = plan(untouched, SHARED)
    assert [change.object for change in made.changes] == [OURS]
    assert "systemd-nspawn" in made.not_verified[0]


@pytest.mark.parametrize(
    ("mtime", "expected"), [(99, ["/boot/initrd.img-6.1"]), (100, ["/boot/initrd.img-6.1"]), (101, [])]
)
def test_an_initramfs_older_than_our_file_is_stale_even_when_nothing_changes(facts, mtime, expected):
    facts["owned_files"][OURS]["mtime"] = 100
    facts["initramfs"]["images"] = [{"path": "/boot/initrd.img-6.1", "kernel": "6.1", "mtime": mtime}]
    made = plan(facts, SHARED)
    assert made.changes == []
    assert made.stale_images == expected


def test_lasting_namespaces():
    mixed = {**HOSTNAMED, "owners": HOSTNAMED["owners"] + SLEEP["owners"]}
    assert lasting([SLEEP, HOSTNAMED, NAMED, mixed]) == [SLEEP, NAMED, mixed]
