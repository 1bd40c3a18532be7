"""No task that runs once for all stands in a block with a rescue: where it fails, all nodes but the first are lost.

Ansible rescues the first node and counts the others as failed: they are none of ansible_play_hosts any more, and what
they had shown is not reported. One node can ask for all with `when: inventory_hostname == ansible_play_hosts[0]`.
"""

from __future__ import annotations

import pathlib

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")])
PARTS = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")


def pairs(items, rescued=False, once=False) -> list[str]:
    """Names of the tasks that run once for all and are rescued, in a list of tasks or plays."""
    found = []
    for item in items or []:
        here = once or bool(item.get("run_once"))
        below = rescued or "rescue" in item
        if not any(part in item for part in PARTS):
            found += [item.get("name")] if rescued and here else []
        for part in PARTS:
            found += pairs(item.get(part), below if part == "block" else rescued, here)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_runs_once_for_all_is_not_rescued(path):
    assert pairs(yaml.safe_load(path.read_text())) == []


def test_the_gate_sees_them_at_any_depth():
    one = {"name": "one", "run_once": True}
    assert pairs([{"block": [{"block": [one]}], "rescue": [{"name": "reason"}]}]) == ["one"]
    assert pairs([{"run_once": True, "block": [{"name": "two"}], "rescue": []}]) == ["two"]
    assert pairs([{"tasks": [one, {"block": [{"name": "three"}], "rescue": [one]}]}]) == []
