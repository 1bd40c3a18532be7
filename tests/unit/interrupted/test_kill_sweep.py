"""The sweep kills after each task that changed something and after a sample; the callback kills where it is told."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import recording

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "interrupted"
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Do it twice
      ansible.builtin.include_tasks: twice.yml
      loop: [1, 2]
    - name: Fail
      ansible.builtin.command: "false"
      ignore_errors: true
    - name: Do it last
      ansible.builtin.command: touch {folder}/last
"""
TWICE = """
- name: Skip
  ansible.builtin.command: "true"
  when: false
- name: Write
  ansible.builtin.command: touch {folder}/file{{{{ item }}}}
"""


@pytest.fixture(scope="module")
def sweep():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("kill_sweep", FOLDER / "kill_sweep.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def step(place, kind="ok"):
    return {"host": "node1", "task": f"task {place}", "place": place, "kind": kind, "at": 1.0}


def test_every_change_is_a_case_and_the_sample_is_of_the_others(sweep):
    first = [step("a#1", "changed"), *(step(f"{number}#1") for number in range(50))]
    later = [step("a#1"), step("b#1", "changed"), step("3#1", "skipped")]
    found = sweep.cases({"bare": first, "host": later}, 30, "seed")
    changed, sample = ([row for row in found if row["kind"] == kind] for kind in ("changed", "sample"))
    assert [(row["phase"], row["place"]) for row in changed] == [("bare", "a#1"), ("host", "b#1")]
    assert len({row["place"] for row in sample}) == len(sample) == 30
    assert not {"a#1", "b#1"} & {row["place"] for row in sample}
    assert found == sweep.cases({"bare": first, "host": later}, 30, "seed")
    assert found != sweep.cases({"bare": first, "host": later}, 30, "another")


class Bed:
    """A bed whose second run says what it is given."""

    def __init__(self, beds, killed=-9, code=0, passed=9, look=("a",)):
        said = f"Verification on 1 node: {passed} passed, 0 failed"
        self.runs = [beds.Ended(each, said, [], 1.0) for each in (killed, code)]
        self.seen = set(look)

    def fresh(self, phase):
        """The node needs nothing."""

    def start(self, after=""):
        return self.runs.pop(0)

    def look(self):
        return self.seen


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({}, "converged"),
        ({"passed": 17}, "converged"),
        ({"passed": 8}, "8 checks passed, not 9"),
        ({"code": 2}, "exit code 2"),
        ({"killed": 0}, "not killed: exit code 0"),
        ({"look": ("a", "b")}, "1 differences"),
    ],
)
def test_a_case_is_judged_by_exit_code_checks_and_look(sweep, given, verdict):
    case = {"phase": "bare", "place": "a#1", "task": "t", "kind": "changed"}
    row = sweep.judge(Bed(sweep.beds, **given), case, {"passed": 9, "look": ["a"]})
    assert row["next"] == verdict


def play(folder, after=""):
    (folder / "play.yml").write_text(PLAY.format(folder=folder))
    (folder / "twice.yml").write_text(TWICE.format(folder=folder))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", folder / "play.yml"),
            *("-e", f"ansible_python_interpreter={sys.executable}"),
        ],
        env={
            **os.environ,
            "ANSIBLE_CALLBACK_PLUGINS": str(recording.PLUGINS),
            "ANSIBLE_CALLBACKS_ENABLED": "cut_off",
            "CUT_OFF_STEPS": str(folder / "steps"),
            "CUT_OFF_AFTER": f"localhost {after}",
        },
        capture_output=True,
        check=False,
        start_new_session=True,
    )
    steps = [json.loads(line) for line in (folder / "steps").read_text().splitlines()]
    return done.returncode, steps, {path.name for path in folder.iterdir()} & {"file1", "file2", "last"}


def test_a_run_is_written_down_and_killed_right_after_a_place_or_a_name(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    code, steps, made = play(whole)
    assert (code, made) == (0, {"file1", "file2", "last"})
    kinds = [row["kind"] for row in steps if row["task"] != "Do it twice"]
    assert kinds == ["skipped", "changed", "skipped", "changed", "failed", "changed"]
    writes = [row["place"].rpartition("/")[2] for row in steps if row["task"] == "Write"]
    assert writes == ["twice.yml:5#1", "twice.yml:5#2"]
    place = next(row["place"] for row in steps if row["task"] == "Write")
    for number, after in enumerate((place, "Write"), 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, _steps, made = play(folder, after.replace("/whole/", f"/{number}/"))
        assert (code, made) == (-9, {"file1"})
