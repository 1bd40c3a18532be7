"""Decide, act, read back: one loop for all modules."""

from __future__ import annotations

import errno
import os
from unittest import mock

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import (
    Change,
    Plan,
    Refused,
    diff,
    failure,
    finish,
    kernel_out_of_reach,
    result,
    settle,
)
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host

SSH = "Failed to connect to the host via ssh"


class Node:
    """A node that is a dictionary; `stubborn` keys keep their value."""

    def __init__(self, stubborn=(), **values):
        self.values, self.stubborn, self.writes = values, stubborn, 0

    def read(self) -> dict:
        return dict(self.values)

    def apply(self, changes):
        for change in changes:
            self.writes += 1
            if change.object not in self.stubborn:
                self.values[change.object] = change.after
            yield change


def planner(**wanted):
    def plan(facts: dict) -> Plan:
        made = Plan()
        for name, value in wanted.items():
            if facts.get(name) != value:
                made.change(name, "set", str(facts.get(name)), value)
        return made

    return plan


def test_check_mode_finds_what_a_real_run_does_and_touches_nothing_and_a_second_run_neither():
    plan = planner(a="1", b="2")
    checked, real = Node(a="0"), Node(a="0")
    _plan, predicted = settle(checked.read, plan, checked.apply, True)
    _plan, done = settle(real.read, plan, real.apply, False)
    assert predicted == done
    assert (checked.writes, real.writes) == (0, 2)
    assert settle(real.read, plan, real.apply, False)[1] == []
    assert real.writes == 2


def test_a_value_that_is_not_kept_is_an_error_with_four_facts():
    node = Node(("mtu",), mtu="1500", a="0")
    with pytest.raises(Refused) as caught:
        settle(node.read, planner(a="1", mtu="9000"), node.apply, False)
    (finding,) = caught.value.findings
    assert (finding.object, finding.wanted, finding.seen[:4], bool(finding.next_step)) == ("mtu", "9000", "1500", True)
    assert [change.object for change in caught.value.done] == ["a", "mtu"]


def test_what_comes_to_light_by_acting_is_done_too():
    node = Node(driver="absent")

    def plan(facts):
        return planner(driver="loaded", **({"ipoib": "loaded"} if facts["driver"] == "loaded" else {}))(facts)

    _plan, done = settle(node.read, plan, node.apply, False)
    assert [change.object for change in done] == ["driver", "ipoib"]


def test_problems_stop_before_anything_is_changed():
    node = Node(a="0")

    def plan(facts):
        made = planner(a="1")(facts)
        made.finding("module x", "loaded", "blacklisted", "remove the line")
        return made

    with pytest.raises(Refused, match="module x"):
        settle(node.read, plan, node.apply, False)
    assert node.writes == 0


def test_the_object_of_a_failed_write_is_named():
    def apply(changes):
        yield changes[0]
        raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(Refused) as caught:
        settle(Node().read, planner(a="1", b="2"), apply, False)
    assert caught.value.findings[0].object == "b"
    assert caught.value.findings[0].seen == "Read-only file system"
    assert failure(caught.value)["changed"] is True


def test_an_effect_that_is_given_up_ends_the_loop():
    rounds = []

    def apply(changes):
        rounds.append(len(changes))
        yield from ()

    _plan, done = settle(Node().read, planner(a="1"), apply, False)
    assert (done, rounds) == ([], [1])


def test_images_that_a_write_made_stale_are_remembered_after_it():
    node = Node(a="0")

    def plan(facts):
        made = planner(a="1")(facts)
        made.stale_images = ["/boot/initrd"] if made.changes else []
        return made

    made, _done = settle(node.read, plan, node.apply, False)
    assert made.stale_images == ["/boot/initrd"]


def test_changed_changes_and_diff_come_from_one_list():
    changes = [Change("/etc/x", "write", "", "a\n"), Change("RDMA netns mode", "set", "exclusive", "shared")]
    returned = result(Plan(), changes)
    assert returned["changed"] is True
    assert [change["object"] for change in returned["changes"]] == ["/etc/x", "RDMA netns mode"]
    assert returned["diff"] == diff(changes)
    assert returned["diff"][1]["before"] == "exclusive\n"
    assert result(Plan(), [])["changed"] is False


def test_what_was_not_done_not_seen_or_is_worth_knowing_is_a_warning_with_the_nodes_name():
    plan = Plan(not_applied=["one"], not_verified=["two"], notes=["three"], reboot_reasons=["a reboot"])
    module, quiet = mock.Mock(), mock.Mock()
    finish(module, plan, [], mode="shared")
    finish(quiet, Plan(), [])
    assert module.warn.mock_calls == [mock.call(f"{os.uname().nodename}: {said}") for said in ("one", "two", "three")]
    module.exit_json.assert_called_once_with(mode="shared", **result(plan, []))
    quiet.exit_json.assert_called_once_with(**result(Plan(), []))
    quiet.warn.assert_not_called()


@pytest.mark.parametrize(
    ("container", "root", "words"),
    [(None, "/", None), ("docker", "/", "docker"), (None, "/mnt/node", "/mnt/node"), (None, "//", None)],
)
def test_when_the_kernel_is_unavailable(container, root, words):
    reason = kernel_out_of_reach({"node": {"container": container}}, root)
    assert (reason is None) if words is None else (words in reason)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        *((f"{SSH}: ", SSH), (f"{SSH}:\n", SSH), (f"{SSH}: Connection refused\r\n", f"{SSH}: Connection refused")),
        *(("", "no reason given"), (None, "no reason given")),
    ],
)
def test_the_reason_of_an_unreachable_node_does_not_end_in_a_colon(message, reason):
    assert text.reason(message) == reason
    assert host.unreachable(message).seen == f"unreachable: {reason}"
