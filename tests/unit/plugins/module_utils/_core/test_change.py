"""Decide, act, read back: one loop for all modules; unit files with their reload; an unforeseen error."""

import errno
import json
import os
import subprocess
import sys
import types
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import units as core_units
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import (
    Change,
    Plan,
    Refused,
    converge,
    failure,
    result,
    settle,
)
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import guard as action_guard


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
    predicted, done, again = (settle(n.read, plan, n.apply, n is checked)[1] for n in (checked, real, real))
    assert (predicted, again) == (done, [])
    assert (checked.writes, real.writes) == (0, 2)


def test_a_value_that_is_not_kept_is_an_error_with_four_facts():
    node = Node(("mtu",), mtu="1500", a="0")
    with pytest.raises(Refused) as caught:
        settle(node.read, planner(a="1", mtu="9000"), node.apply, False)
    (finding,) = caught.value.findings
    assert (finding.object, finding.wanted, finding.seen[:4], bool(finding.next_step)) == ("mtu", "9000", "1500", True)
    assert [change.object for change in caught.value.done] == ["a", "mtu"]


def test_problems_stop_before_anything_is_changed():
    node, made = Node(a="0"), planner(a="1")({})
    made.finding("module x", "loaded", "blacklisted", "remove the line")
    with pytest.raises(Refused, match="module x"):
        settle(node.read, lambda _facts: made, node.apply, False)
    assert node.writes == 0


def test_the_object_of_a_failed_write_is_named():
    def apply(changes):
        yield changes[0]
        raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(Refused) as caught:
        settle(Node().read, planner(a="1", b="2"), apply, False)
    assert [(found.object, found.seen) for found in caught.value.findings] == [("b", "Read-only file system")]
    assert failure(caught.value)["changed"] is True


def test_an_effect_that_is_given_up_ends_the_loop():
    rounds = []

    def apply(changes):
        rounds.append(len(changes))
        yield from ()

    _plan, done = settle(Node().read, planner(a="1"), apply, False)
    assert (done, rounds) == ([], [1])


def test_what_was_not_done_not_seen_or_is_worth_knowing_is_a_warning_with_the_nodes_name():
    plan = Plan(not_applied=["one"], not_verified=["two"], notes=["three"], reboot_reasons=["a reboot"])
    module, quiet = mock.Mock(), mock.Mock()
    converge(module, dict, lambda _facts: plan, None, mode="shared")
    converge(quiet, dict, lambda _facts: Plan(), None)
    assert module.warn.mock_calls == [mock.call(f"{os.uname().nodename}: {said}") for said in ("one", "two", "three")]
    module.exit_json.assert_called_once_with(mode="shared", **result(plan, []))
    quiet.exit_json.assert_called_once_with(**result(Plan(), []))
    assert result(plan, [Change("mode", "set", "exclusive", "shared\n")])["diff"][0]["before"] == "exclusive\n"
    quiet.warn.assert_not_called()


UNIT = Change("/etc/systemd/system/a.service", "write", "", "[Unit]\n")
OLD = Change("/etc/systemd/system/b.service", "write", "before\n", "after\n")
GONE = Change("/etc/systemd/system/c.service", "remove", "gone\n", "")
LINK = Change("/etc/systemd/system/multi-user.target.wants/a.service", "link", "", "../a.service")
CONFIG = Change("/etc/a/config.json", "write", "", "{}\n")
UNLINK = Change("/etc/systemd/system/multi-user.target.wants/c.service", "unlink", "../c.service", "")


@pytest.fixture
def units(tmp_path):
    directory = tmp_path / "etc/systemd/system"
    (directory / "multi-user.target.wants").mkdir(parents=True)
    (directory / "b.service").write_text("before\n")
    (directory / "c.service").write_text("gone\n")
    (directory / "multi-user.target.wants/c.service").symlink_to("../c.service")
    return directory


def state(directory) -> dict:
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in directory.rglob("*.service")
    }


def no_run(_argv):
    raise AssertionError("below another root the service manager of this machine is left alone")


def answers(ran, code=0):
    def run(argv):
        ran.append(argv)
        return code, "", "Failed to connect to bus" if code else ""

    return run


def test_a_failure_half_way_puts_everything_back(tmp_path, units):
    before = state(units)
    impossible = Change("/etc/systemd/system/none/x.service", "remove", "x", "")
    with pytest.raises(Refused) as raised:
        list(core_units.apply_units(str(tmp_path), [UNIT, OLD, GONE, LINK, UNLINK, impossible], no_run))
    assert raised.value.findings[0].object == impossible.object
    assert (raised.value.done, state(units)) == ([], before)


def test_a_reload_that_fails_puts_units_back_so_that_the_next_run_does_both(tmp_path, units):
    """Files that systemd does not read stay and are reported as done."""
    before, ran = state(units), []
    (units / "b.service").chmod(0o600)
    with pytest.raises(Refused, match="Failed to connect to bus") as raised:
        core_units.apply_units(str(tmp_path), [CONFIG, UNIT, OLD, GONE], answers(ran, 1), live=True)
    assert (ran, raised.value.done) == ([["systemctl", "daemon-reload"]], [CONFIG])
    assert (tmp_path / "etc/a/config.json").read_text() == "{}\n"
    assert state(units) == before
    assert (units / "b.service").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changes", "starting", "reloads"), [([], False, 0), ([CONFIG], False, 0), ([UNIT], False, 1), ([], True, 1)]
)
def test_systemd_reads_its_files_when_one_changed_and_before_every_start(tmp_path, changes, starting, reloads):
    """A run that was killed between a file and its reload leaves no other trace."""
    ran = []
    core_units.apply_units(str(tmp_path), changes, answers(ran), starting=starting, live=True)
    assert ran == [["systemctl", "daemon-reload"]] * reloads


MODULE = r"""
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, converge

module = AnsibleModule(
    argument_spec={"at": {"type": "str"}, "token": {"type": "str", "no_log": True}}, supports_check_mode=True
)
node = []


def fail(place):
    if place == module.params["at"]:
        raise RuntimeError("cannot use \udcff " + module.params["token"])


def plan(seen):
    fail("plan")
    decided = Plan()
    for name in {"file /a", "file /b"}.difference(node):
        decided.change(name, "write", "", "x")
    return decided


def apply(changes):
    for number, change in enumerate(sorted(changes)):
        fail(f"apply {number}")
        node.append(change.object)
        yield change


def more(decided, changes):
    fail("more")
    return {}


converge(module, dict, plan, apply, more)
"""


@pytest.mark.parametrize(("place", "check", "changed", "changes"), [
    ("plan", False, False, []),
    ("apply 0", False, True, []),
    ("apply 1", False, True, ["file /a"]),
    ("more", False, True, ["file /a", "file /b"]),
    ("more", True, False, []),
])  # fmt: skip
def test_a_module_tells_what_had_changed_before_an_unforeseen_error(put, place, check, changed, changes):
    program = put("changes.py", MODULE)
    asked = {"at": place, "token": "s3cr3t-t0k3n", "_ansible_check_mode": check, "_ansible_module_name": "changes"}
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}
    for traceback in ([], ["error"]):
        given = json.dumps({"ANSIBLE_MODULE_ARGS": {**asked, "_ansible_tracebacks_for": traceback}})
        argv = [sys.executable, program]
        done = subprocess.run(argv, input=given, env=environment, capture_output=True, text=True, check=False)
        result = json.loads(done.stdout)
        (finding,) = result["findings"]
        assert (result["failed"], result["changed"]) == (True, changed)
        assert [change["object"] for change in result["changes"]] == changes
        assert finding["object"] == "module changes"
        assert "RuntimeError: cannot use" in finding["seen"]
        assert ("in fail" in result.get("exception", "")) is bool(traceback)
        assert "s3cr3t-t0k3n" not in done.stdout + done.stderr


def test_an_action_plugin_ends_so_too():
    def run(*_given):
        raise KeyError("host")

    action = types.SimpleNamespace(_task=types.SimpleNamespace(action="gpufabric.rdma.report", check_mode=False))
    with pytest.raises(AnsibleActionFail) as failed:
        action_guard.guarded(run)(action, None, {})
    result = failed.value.result
    assert (result["changed"], result["findings"][0]["object"]) == (False, "action report")
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["rdma", "ansible_distribution", "facter_role", "local", "clusters"], []),
        (["rdma", "report_file", "k3s_token", "__discovery_given", "cluster", "capture_dir", "policy_dest"], None),
        (["driver_package"], None),
    ],
)
def test_no_variable_comes_from_a_nodes_facts(names, refused):
    wanted = [name for name in names if name != "rdma"] if refused is None else refused
    run = action_guard.guarded(lambda *_given: {"ran": True})
    task = types.SimpleNamespace(action="gpufabric.rdma.report", check_mode=True)
    result = run(types.SimpleNamespace(_task=task), None, {"ansible_facts": dict.fromkeys(names, "/etc/passwd")})
    assert [row["object"] for row in result.get("findings", [])] == [f"variable {name}" for name in sorted(wanted)]
    assert result.get("ran", False) is not bool(wanted)
