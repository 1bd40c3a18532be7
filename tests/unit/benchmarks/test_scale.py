"""The figures of make scale: lines, goals, what a busy machine leaves unsaid, and the tree of processes they are of."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import xml.dom.minidom

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import scale_figures  # noqa: E402

TWO = """
import json, pathlib, sys
sys.path.insert(0, {benchmarks!r})
import process_tree
before = process_tree.descendants()
made = process_tree.run(["sh", "-c", {script!r}], pathlib.Path("/"), {{}})
print(json.dumps([made, sorted(process_tree.descendants() - before)]))
"""


def rows(each: float, alone: float) -> list[dict]:
    def figures(count, slope):
        return {"seconds": 3 + slope * count, "processor": 1 + slope * count, "main": 60, "tree": 90, "kept": 2 * count}

    return [
        {"nodes": n, "run": run, "calls": 5, "ours": figures(n, each), "nothing": figures(n, alone), "busy": 0.5}
        for n in (1, 2, 4)
        for run in scale_figures.RUNS
    ]


def test_a_line_and_its_goal():
    text = scale_figures.text(rows(each=1.4, alone=1.0))
    assert "busy: others used up to 50% of the processors" in text
    assert (
        "each further node: 1.40 s (and 3.0 once), calls alone 1.00 (and 3.0 once): ratio 1.40 (goal 1.5: met)" in text
    )
    assert "each further node: 2.0 MB (goal 15: met)" in text
    assert "ratio 1.60 (goal 1.5: missed)" in scale_figures.text(rows(each=1.6, alone=1.0))


def test_a_line_that_falls_makes_no_ratio():
    text = scale_figures.text(rows(each=-1, alone=0.5))
    assert "not verified" in text.partition("Projection")[0]
    assert "first run   not verified; not verified" in text


def test_the_picture_is_one():
    assert xml.dom.minidom.parseString(scale_figures.plot(rows(1.4, 1))).documentElement.tagName == "svg"


@pytest.mark.parametrize(
    ("script", "code"), [("(sleep 60 &) ; exit 0", 0), ("echo what went wrong; exit 3", 1)], ids=["leaves", "fails"]
)
def test_what_a_command_leaves_behind_is_counted_and_ended(script, code):
    done = subprocess.run(
        [sys.executable, "-c", TWO.format(benchmarks=str(BENCHMARKS), script=script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert "exit code 3" in done.stderr
        assert "what went wrong" in done.stderr
    else:
        figures, left = json.loads(done.stdout)
        assert left == []
        assert figures["kept"] > 0
