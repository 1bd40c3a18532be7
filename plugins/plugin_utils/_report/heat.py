# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bandwidth matrix as a heat map that is a table: one row a pair of nodes, one column a rail, figures in the cells.

PRIVATE to the collection. Pure.
"""

from __future__ import annotations

from typing import Any

from .judge import natural
from .markup import Markup, count, icon, join, table, tag

# Lower bounds of the classes h5 to h1, in percent of the expected value; what is below is h0.
BOUNDS = (95, 90, 80, 60, 40)
# A rail that one host alone has.
NO_PEER = "no peer"


def section(matrix: dict, anchors: dict[str, str]) -> list:
    """Outliers with the likely reason, error counters that rose, and one heat map for each path that was measured."""
    tests = matrix["tests"]
    outliers = [test for test in tests if test["verdict"] == "outlier"]
    outliers.sort(key=lambda test: (percent(test) is None, percent(test) or 0))
    unproven = [test for test in tests if test["verdict"] == "not_verified"]
    parts: list[Any] = []
    if outliers:
        parts.append(
            table(
                f"{count(len(outliers), 'outlier')}, slowest first",
                ("Path", "Rail", "Measured", "Expected", "Likely reason"),
                [
                    (
                        _ends(test, anchors),
                        f"{test['rail']} ({test['path']})",
                        _gbit(test["gbit_per_s"]),
                        join(_gbit(test["expected_gbit_per_s"]), tag("small", test.get("expected_from"))),
                        test.get("reason") or "no reason found",
                    )
                    for test in outliers
                ],
            )
        )
    if unproven:
        rows = [
            (_ends(test, anchors), f"{test['rail']} ({test['path']})", test.get("reason") or "") for test in unproven
        ]
        parts.append(
            _folded(
                table("Not verified", ("Path", "Rail", "Why"), rows), f"{count(len(rows), 'measurement')} not verified"
            )
        )
    rose = [
        (test, name, delta) for test in tests for name, delta in sorted((test.get("counters") or {}).items()) if delta
    ]
    if rose:
        rows = [
            (_ends(test, anchors), f"{test['rail']} ({test['path']})", name, f"+{delta:g}")
            for test, name, delta in rose
        ]
        parts.append(table("Error counters that rose during the run", ("Path", "Rail", "Counter", "Rose by"), rows))
    parts.append(_legend())
    parts += [_map(path, [test for test in tests if test["path"] == path]) for path in _paths(tests)]
    return parts


def percent(test: dict) -> Any:
    """Measured, in percent of expected; None where either is not known."""
    measured, expected = test["gbit_per_s"], test["expected_gbit_per_s"]
    return None if measured is None or not expected or expected < 0 else measured / expected * 100


def heat(test: dict) -> str:
    """Class of a cell: h5 (as expected) down to h0, hx where there is nothing to compare."""
    share = percent(test)
    if share is None:
        return "hx"
    return f"h{sum(share >= bound for bound in BOUNDS)}"


def _paths(tests: list[dict]) -> list[str]:
    return sorted({test["path"] for test in tests})


def _ends(test: dict, anchors: dict[str, str]) -> Markup:
    hca = {"from": test.get("from_hca"), "to": test.get("to_hca")}
    ends = [
        join(
            tag("a", test[side], href=f"#{anchors[test[side]]}") if test[side] in anchors else test[side] or NO_PEER,
            tag("small", f" {hca[side]}") if hca[side] else None,
        )
        for side in ("from", "to")
    ]
    return join(ends[0], " → ", ends[1])


def _gbit(value: Any) -> str:
    return "unknown" if value is None else f"{value:.0f} Gb/s" if value >= 100 else f"{value:.1f} Gb/s"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _legend() -> Markup:
    words = ("95 % or more", "90 to 95 %", "80 to 90 %", "60 to 80 %", "40 to 60 %", "below 40 %")
    keys = [tag("span", word, class_=f"key h{5 - place}") for place, word in enumerate(words)]
    return tag(
        "p",
        "Gb/s; colour is the share of the expected value. ",
        keys,
        " ",
        tag("span", "no figure", class_="key hx"),
        " ",
        tag("span", icon("bad"), " outlier", class_="key out"),
        class_="legend",
    )


def _map(path: str, tests: list[dict]) -> Markup:
    rails = sorted({test["rail"] for test in tests})
    pairs: dict[tuple[str, str], dict[int, list[dict]]] = {}
    for test in tests:
        pairs.setdefault((test["from"], test["to"]), {}).setdefault(test["rail"], []).append(test)
    expected = {rail: _same([test["expected_gbit_per_s"] for test in tests if test["rail"] == rail]) for rail in rails}
    header = ["From → to"]
    header += [join(f"rail {rail}", tag("small", _expectation(expected[rail]))) for rail in rails]
    rows = [
        [f"{pair[0]} → {pair[1] or NO_PEER}", *(_cell(cells.get(rail, []), expected[rail]) for rail in rails)]
        for pair, cells in sorted(pairs.items(), key=lambda item: [natural(name) for name in item[0]])
    ]
    sources = sorted({test.get("expected_from") or "" for test in tests} - {""})
    caption = [f"Bandwidth, {path} path"]
    if sources:
        caption.append(tag("small", f"Expected: {'; '.join(sources[:4])}{' and others' if len(sources) > 4 else ''}"))
    return table(caption, header, rows, "heat")


def _same(values: list) -> Any:
    return values[0] if len(set(values)) == 1 else None


def _expectation(value: Any) -> str:
    return f"expected {_figure(value)}" if value is not None else "expected beside"


def _cell(tests: list[dict], expected: Any) -> Markup:
    """The slowest of the tests that share a place; usually there is one."""
    if not tests:
        return tag("td", tag("span", "not tested", class_="vh"), class_="none")
    test = min(tests, key=lambda test: (test["verdict"] != "outlier", percent(test) is None, percent(test) or 0))
    measured, own = test["gbit_per_s"], test["expected_gbit_per_s"]
    shown: list[Any] = [_figure(measured) if measured is not None else tag("span", "not verified", class_="nv")]
    if expected is None and own is not None:
        shown.append(tag("small", f" of {_figure(own)}"))
    if test["verdict"] == "outlier":
        shown += [icon("bad"), tag("span", "outlier", class_="vh")]
    return tag("td", shown, class_=f"{heat(test)} out" if test["verdict"] == "outlier" else heat(test))


def _folded(content: Markup, title: str) -> Markup:
    return tag("details", tag("summary", title), content)
