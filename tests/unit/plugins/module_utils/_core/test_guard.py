"""Modules and action plugins that meet an unforeseen error: four facts, and a traceback in a file, no secret in it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import types

import pytest
from ansible_collections.gpufabric.rdma.plugins.modules import fabric_tests
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import guard as action_guard

ROOT = pathlib.Path(__file__).resolve().parents[5]
WITH_SECRET = r"""
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded


@guarded
def main():
    module = AnsibleModule(argument_spec={"token": {"type": "str", "no_log": True}})
    raise RuntimeError("cannot use \udcff " + module.params["token"])


main()
"""


def call(program, tmp_path, arguments, **environment):
    """What a module prints, run as on a node."""
    return subprocess.run(
        [sys.executable, program],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **environment},
    )


def test_a_module_ends_in_four_facts_and_the_traceback_in_a_file_of_its_owner(tmp_path):
    done = call(fabric_tests.__file__, tmp_path, {"state": "finished", "tests": [{"id": "one"}]})
    result = json.loads(done.stdout)
    (finding,) = result["findings"]
    (kept,) = tmp_path.glob("*.traceback")
    assert finding["object"] == "module fabric_tests"
    assert re.match(r"KeyError: 'tool' \(fabric\.py:\d+\)$", finding["seen"])
    assert (bool(finding["wanted"]), str(kept) in finding["next_step"], str(kept) in result["msg"]) == (
        True,
        True,
        True,
    )
    assert "Traceback (most recent call last)" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "Traceback" not in done.stdout + done.stderr


def test_secret_options_are_neither_shown_nor_kept(tmp_path):
    program = tmp_path / "with_secret.py"
    program.write_text(WITH_SECRET)
    done = call(program, tmp_path, {"token": "s3cr3t-t0k3n"})
    (kept,) = tmp_path.glob("*.traceback")
    assert "RuntimeError: cannot use \\udcff ********" in kept.read_text()
    assert "RuntimeError" in json.loads(done.stdout)["msg"]
    assert "s3cr3t-t0k3n" not in done.stdout + done.stderr + kept.read_text()


def test_without_room_for_the_file_the_four_facts_are_reported(tmp_path):
    guard = "ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard"
    program = tmp_path / "full.py"
    program.write_text(
        f"import os, {guard} as guard\n"
        "from ansible.module_utils.basic import AnsibleModule\n"
        "def full(*_arguments): raise OSError(28, os.strerror(28))\n"
        "guard.write = full\n"
        "@guard.guarded\ndef main():\n    module = AnsibleModule(argument_spec={})\n    [][0]\n"
        "main()\n"
    )
    done = call(program, tmp_path, {})
    assert done.returncode == 1
    assert "No space left on device" in json.loads(done.stdout)["findings"][0]["next_step"]


CHANGES = r"""
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded

DOCUMENTATION = "extends_documentation_fragment: gpufabric.rdma.FRAGMENT"


def plan(seen):
    made = Plan()
    made.change("file /a", "write", "", "x")
    made.change("file /b", "write", "", "x")
    return made


def apply(changes):
    yield changes[0]
    raise KeyError("planted")


@guarded
def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    decided, done = settle(dict, plan, apply, module.check_mode)
    [][0]


main()
"""


@pytest.mark.parametrize(
    ("fragment", "check", "changed", "changes"),
    [("changing", False, True, ["file /a"]), ("changing", True, False, []), ("reading", False, False, ["file /a"])],
)
def test_a_module_that_may_have_changed_something_does_not_claim_otherwise(tmp_path, fragment, check, changed, changes):
    program = tmp_path / "changes.py"
    program.write_text(CHANGES.replace("FRAGMENT", fragment))
    result = json.loads(call(program, tmp_path, {"_ansible_check_mode": check}).stdout)
    assert result["changed"] is changed
    assert [change["object"] for change in result["changes"]] == changes
    assert ("may have been changed" in result["findings"][0]["seen"]) is changed


@pytest.mark.parametrize("check", [False, True])
def test_an_action_plugin_ends_so_too(tmp_path, check):
    call = ["ansible", "adhoc", "localhost", "-m", "gpufabric.rdma.plan_tests", *(["--check"] if check else [])]
    given = [
        "-a",
        json.dumps({"kind": "fabric", "hosts": ["localhost"], "variables": {"node": "known"}}),
        "-e",
        json.dumps({"known": {}}),
    ]
    environment = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *call, *given],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment, "TMPDIR": str(tmp_path)},
    )
    said = done.stdout + done.stderr
    assert "action plan_tests: wanted a result" in said
    (kept,) = tmp_path.glob("*.traceback")
    assert str(kept) in said
    assert "KeyError: 'host'" in kept.read_text()


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
    task = types.SimpleNamespace(action="gpufabric.rdma.show", check_mode=True)
    result = run(types.SimpleNamespace(_task=task), None, {"ansible_facts": dict.fromkeys(names, "/etc/passwd")})
    assert [row["object"] for row in result.get("findings", [])] == [f"variable {name}" for name in sorted(wanted)]
    assert result.get("ran", False) is not bool(wanted)
