"""lab/progress: what it says before and after a command."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def progress(tmp_path):
    """A checkout with little more than the script: (exit code, lines) of a label and a command in it."""
    for name in ("lab/progress", "tests/stages.sh"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "lab/took.tsv").write_text("boot\t61\n")

    def run(label, *command):
        done = subprocess.run([tmp_path / "lab/progress", label, *command], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    return run


def test_before_the_first_time_it_says_what_others_saw_and_then_what_it_took_here(progress):
    code, lines = progress("boot", "true")
    assert (code, lines[0]) == (0, "== boot (on two emulated processors  1 min 01 s)")
    assert re.fullmatch(r"== boot: ok after +0 min 0\d s", lines[1])
    _code, lines = progress("boot", "true")
    assert re.fullmatch(r"== boot \(the last time here +0 min 0\d s\)", lines[0])


def test_what_failed_says_nothing_of_how_long_it_takes_and_others_are_kept(progress):
    progress("boot", "true")
    assert progress("make it", "sh", "-c", "exit 3")[0] == 3
    code, lines = progress("make it", "true")
    assert (code, lines[0]) == (0, "== make it")
    assert "the last time here" in progress("boot", "true")[1][0]
