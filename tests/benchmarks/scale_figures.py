"""What bench_scale.py measured: a table with fitted lines, a projection with its assumptions in words, a picture.

rows: [{"nodes", "run", "calls", "ours": figures of process_tree.py, "nothing": the same, "busy"}]
"""

from __future__ import annotations

import math
import os
import statistics
import textwrap
from xml.sax.saxutils import escape

RUNS = ("first run", "second run", "drift")
BOTH = ("ours", "nothing")
GOAL_RATIO, GOAL_MB = 1.5, 15
FLEET, FORKS, FORKS_HERE = 1000, 50, 16
ASSUMED = """
Assumed: the lines go on straight; make scale-actions shows which tasks do. The first figure has the nodes, and whatever
else runs, on the controller's own processors. Real nodes work side by side, so the second figure says more: what the
controller itself computes, which forks=50 does not change. With nodes that answer at once it is the least that a run
takes, and more processors lower it only until Ansible's main process, which hands out one task after another, fills
one. Memory: what each node adds to the main process and as a kept connection, and the pages that each of 50 workers
writes.
No node fails and none is slow; nodes are of three shapes and in no cluster.
"""
BUSY = 0.1  # share of the processors that others use


def least(rows: list[dict], run: str, which: str, figure: str) -> dict[int, float]:
    """The smallest of all rounds, by number of nodes: what a busy machine adds is never negative."""
    found: dict[int, float] = {}
    for row in rows:
        if row["run"] == run:
            found[row["nodes"]] = min(row[which][figure], found.get(row["nodes"], float("inf")))
    return dict(sorted(found.items()))


def line(points: dict[int, float]) -> tuple[float, float]:
    """(each further node, what is there without one): least squares."""
    if len(points) < 2:
        return float("nan"), float("nan")
    return tuple(statistics.linear_regression(list(points), list(points.values())))


def _ratio(ours: float, alone: float) -> float:
    """Not a number where a line falls: then what else ran on the machine was more than what was measured."""
    return ours / alone if ours > 0 and alone > 0 else float("nan")


def _minutes(seconds: float, slope: float) -> str:
    return f"{seconds / 60:6.1f} min" if slope > 0 else "not verified"


def _goal(value: float, goal: float) -> str:
    if math.isnan(value):
        return f"goal {goal:g}: not verified: takes a quiet machine and two numbers of nodes"
    return f"goal {goal:g}: {'met' if value <= goal else 'missed'}"


def text(rows: list[dict]) -> str:
    lines = [_load(rows)]
    for run in RUNS:
        lines += ["", *_table(rows, run)]
    return "\n".join([*lines, "", *_projection(rows)])


def memory(rows: list[dict], run: str) -> tuple[float, float, float]:
    """MB: what is there once, of each node, of each fork.

    A node costs the controller what the main process knows of it and the connection that ssh keeps; a fork costs the
    pages that a worker writes, however many nodes there are.
    """
    tree, main, kept = (least(rows, run, "ours", figure) for figure in ("tree", "main", "kept"))
    known, once = line({count: main[count] + kept[count] for count in main})
    largest = max(tree)
    return once, known, (tree[largest] - main[largest] - kept[largest]) / min(largest, FORKS_HERE)


def _load(rows: list[dict]) -> str:
    most = max(row["busy"] for row in rows)
    state = f"busy: others used up to {most:.0%} of the processors" if most > BUSY else "quiet"
    return f"{os.cpu_count()} processors, {state}; forks {FORKS_HERE}; the smallest of the rounds"


def _table(rows: list[dict], run: str) -> list[str]:
    calls = {row["nodes"]: row["calls"] for row in rows if row["run"] == run}
    columns = [least(rows, run, which, figure) for figure in ("seconds", "processor") for which in BOTH]
    tree, main = least(rows, run, "ours", "tree"), least(rows, run, "ours", "main")
    lines = [
        f"{run}: seconds and processor seconds, each beside as many calls that do nothing, with what is off the line",
        "  nodes calls         s            calls          processor        calls          MB  of it main",
    ]
    fitted = [line(column) for column in columns]
    for count in columns[0]:
        cells = [
            f"{column[count]:7.1f} {column[count] - start - slope * count:+6.1f}"
            for column, (slope, start) in zip(columns, fitted)
        ]
        lines.append(f"  {count:5} {calls[count]:5}  {'  '.join(cells)}  {tree[count]:5.0f}  {main[count]:5.0f}")
    once, known, fork = memory(rows, run)
    for name, (ours, start), (alone, begun) in (("s", *fitted[:2]), ("s of the controller's processor", *fitted[2:])):
        ratio = _ratio(ours, alone)
        lines.append(
            f"  each further node: {ours:.2f} {name} (and {start:.1f} once), calls alone {alone:.2f} (and {begun:.1f} "
            f"once): ratio {ratio:.2f} ({_goal(ratio, GOAL_RATIO)})"
        )
    lines.append(
        f"  each further node: {known:.1f} MB ({_goal(known, GOAL_MB)}); each fork {fork:.1f} MB; {once:.0f} MB once"
    )
    return lines


def _projection(rows: list[dict]) -> list[str]:
    processors = os.cpu_count()
    lines = [f"Projection to {FLEET} nodes at forks={FORKS}, from the lines above"]
    for run in RUNS:
        slope, start = line(least(rows, run, "ours", "seconds"))
        own, begun = line(least(rows, run, "ours", "processor"))
        once, known, fork = memory(rows, run)
        cells = _minutes(start + FLEET * slope, slope), _minutes((begun + FLEET * own) / processors, own)
        lines.append(
            f"  {run:10}  {cells[0]}; {cells[1]} of {processors} processors; "
            f"{(once + FLEET * known + FORKS * fork) / 1024:.1f} GB"
        )
    return [*lines, *textwrap.wrap(ASSUMED.strip(), 118, initial_indent="  ", subsequent_indent="  ")]


# --- the picture ------------------------------------------------------------------------------------------------------

PANEL, HEIGHT, GAP, TOP, BOTTOM = 250, 150, 62, 36, 46
COLOURS = {"ours": "#0a58ca", "nothing": "#8a5a00"}


def _ticks(largest: float) -> list[float]:
    """Four or five round numbers up to the largest."""
    step = next(s * 10**e for e in range(-1, 6) for s in (1, 2, 5) if largest / (s * 10**e) <= 5)
    return [step * number for number in range(int(largest / step) + 1)]


def _panel(left: float, top: float, title: str, unit: str, series: dict[str, dict[int, float]]) -> list[str]:
    widest = max(max(points) for points in series.values())
    highest = max(max(points.values()) for points in series.values()) * 1.05

    def x(value):
        return left + value / widest * PANEL

    def y(value):
        return top + HEIGHT - max(value, 0) / highest * HEIGHT

    drawn = [
        f'<text x="{left}" y="{top - 14}" font-weight="bold">{escape(title)}</text>',
        f'<text x="{left - 8}" y="{top - 2}" text-anchor="end">{unit}</text>',
        f'<text x="{left + PANEL}" y="{top + HEIGHT + 32}" text-anchor="end">nodes</text>',
    ]
    for value in _ticks(highest):
        drawn.append(f'<path d="M{left} {y(value):.1f}h{PANEL}" stroke="#ddd"/>')
        drawn.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(widest):
        drawn.append(f'<text x="{x(value):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
    for name, points in series.items():
        slope, start = line(points)
        if not math.isnan(slope):
            ends = f'x1="{x(0)}" y1="{y(start):.1f}" x2="{x(widest)}" y2="{y(start + slope * widest):.1f}"'
            drawn.append(f'<line {ends} stroke="{COLOURS[name]}"/>')
        for count, value in points.items():
            drawn.append(f'<circle cx="{x(count):.1f}" cy="{y(value):.1f}" r="3" fill="{COLOURS[name]}"/>')
    return drawn


def plot(rows: list[dict]) -> str:
    """An SVG: seconds, processor and memory of each kind of run, measured and fitted."""
    figures = (("seconds", "s"), ("processor", "s"), ("tree", "MB"))
    titles = {"tree": "memory"}
    width, height = GAP + len(RUNS) * (PANEL + GAP), len(figures) * (TOP + HEIGHT + BOTTOM)
    drawn = []
    for row, (figure, unit) in enumerate(figures):
        for column, run in enumerate(RUNS):
            series = {which: least(rows, run, which, figure) for which in BOTH}
            left, top = GAP + column * (PANEL + GAP), TOP + row * (TOP + HEIGHT + BOTTOM)
            drawn += _panel(left, top, f"{run}: {titles.get(figure, figure)}", unit, series)
    legend = ((GAP, "ours", "this collection"), (GAP + 150, "nothing", "as many calls that do nothing"))
    for left, which, words in legend:
        drawn.append(f'<circle cx="{left}" cy="{height - 14}" r="3" fill="{COLOURS[which]}"/>')
        drawn.append(f'<text x="{left + 10}" y="{height - 10}">{words}</text>')
    described = "Seconds, processor time and memory by number of nodes, each with its fitted line"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'font-family="sans-serif" font-size="12" fill="#222">',
            f"<title>What each further node costs</title><desc>{described}</desc>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            *drawn,
            "</svg>\n",
        ]
    )
