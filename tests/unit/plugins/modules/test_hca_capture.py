"""The module hca_capture as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys

from ansible_collections.gpufabric.rdma.plugins.modules import hca_capture
from ansible_collections.gpufabric.rdma.tests.tools import tree


def test_it_returns_a_fixture_and_changes_nothing(tmp_path):
    root = tree.lay_out(tree.load("efa"), tmp_path)
    arguments = {
        "ANSIBLE_MODULE_ARGS": {"name": "shown", "about": "one line", "root": str(root), "_ansible_check_mode": True}
    }
    done = subprocess.run(
        [sys.executable, hca_capture.__file__],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["changed"] is False
    assert result["fixture"]["name"] == "shown"
    assert result["fixture"]["about"] == "one line"
    assert result["fixture"]["provenance"]["kind"] == "captured"
