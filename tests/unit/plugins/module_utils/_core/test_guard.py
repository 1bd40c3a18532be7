"""Modules and action plugins that meet an unforeseen error: one line, Ansible's own traceback, no secret in either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import guard as action_guard

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


def call(program, arguments, **environment):
    """What a module prints, run as on a node."""
    return subprocess.run(
        [sys.executable, program],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"], **environment},
    )


@pytest.mark.parametrize(
    ("place", "check", "changed", "changes"),
    [
        ("plan", False, False, []),
        ("apply 0", False, True, []),
        ("apply 1", False, True, ["file /a"]),
        ("more", False, True, ["file /a", "file /b"]),
        ("more", True, False, []),
    ],
)
def test_a_module_tells_what_had_changed_before_an_unforeseen_error(tmp_path, place, check, changed, changes):
    program = tmp_path / "changes.py"
    program.write_text(MODULE)
    asked = {"at": place, "token": "s3cr3t-t0k3n", "_ansible_check_mode": check, "_ansible_module_name": "changes"}
    for traceback in ([], ["error"]):
        done = call(program, {**asked, "_ansible_tracebacks_for": traceback})
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
