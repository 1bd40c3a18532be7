"""The bandwidth matrix as a heat map: a table with a row per pair of nodes and a column per rail. Pure."""

from typing import Any

from ...module_utils.hca.text import natural
from .judge import bandwidth

# Lower bounds of the classes h5 to h1, in percent of the expected value; everything below is h0.
BOUNDS = (95, 90, 80, 60, 40)
# A rail that only one host has.
NO_PEER = "no peer"


def section(matrix: Any, anchors: dict[str, str]) -> dict:
    """What bandwidth.html.j2 shows of a matrix document, or of its absence.

    {level, said, at, outliers, unproven, rose, maps}: outliers with the likely reason, error counters that rose, and
    one heat map for each path that was measured.
    """
    level, figure, explanation = bandwidth(matrix)
    tests = matrix["tests"] if matrix else []
    outliers = [test for test in tests if test["verdict"] == "outlier"]
    outliers.sort(key=lambda test: (percent(test) is None, percent(test) or 0))
    return {
        "level": level,
        "said": f"{figure} {explanation}" if tests else f"Bandwidth was {figure}: {explanation}.",
        "at": matrix["at"] if matrix else None,
        "outliers": [_told(test, anchors) for test in outliers],
        "unproven": [_told(test, anchors) for test in tests if test["verdict"] == "not_verified"],
        "rose": [
            (_told(test, anchors), name, f"+{delta:g}")
            for test in tests
            for name, delta in sorted((test.get("counters") or {}).items())
            if delta
        ],
        "maps": [
            _map(path, [test for test in tests if test["path"] == path])
            for path in sorted({test["path"] for test in tests})
        ],
    }


def percent(test: dict) -> Any:
    """Measured, in percent of expected; None if either is unknown."""
    measured, expected = test["gbit_per_s"], test["expected_gbit_per_s"]
    return None if measured is None or not expected or expected < 0 else measured / expected * 100


def heat(test: dict) -> str:
    """Class of a cell: h5 (as expected) down to h0, hx if there is nothing to compare."""
    share = percent(test)
    if share is None:
        return "hx"
    return f"h{sum(share >= bound for bound in BOUNDS)}"


def _told(test: dict, anchors: dict[str, str]) -> dict:
    ends = [
        {"host": test[side] or NO_PEER, "anchor": anchors.get(test[side]), "hca": test.get(f"{side}_hca")}
        for side in ("from", "to")
    ]
    return {
        "ends": ends,
        "rail": f"{test['rail']} ({test['path']})",
        "measured": _gbit(test["gbit_per_s"]),
        "expected": _gbit(test["expected_gbit_per_s"]),
        "source": test.get("expected_from"),
        "reason": test.get("reason"),
    }


def _gbit(value: Any) -> str:
    return "unknown" if value is None else f"{value:.0f} Gb/s" if value >= 100 else f"{value:.1f} Gb/s"


def _figure(value: Any) -> Any:
    return None if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _map(path: str, tests: list[dict]) -> dict:
    """{path, expected_from, rails: [(rail, expected or None)], rows: [(pair, [cell or None])]}"""
    rails = sorted({test["rail"] for test in tests})
    pairs: dict[tuple[str, str], dict[int, list[dict]]] = {}
    for test in tests:
        pairs.setdefault((test["from"], test["to"]), {}).setdefault(test["rail"], []).append(test)
    expected = {rail: _same([test["expected_gbit_per_s"] for test in tests if test["rail"] == rail]) for rail in rails}
    sources = sorted({test.get("expected_from") or "" for test in tests} - {""})
    return {
        "path": path,
        "expected_from": f"{'; '.join(sources[:4])}{' and others' if len(sources) > 4 else ''}",
        "rails": [(rail, _figure(expected[rail])) for rail in rails],
        "rows": [
            (f"{pair[0]} → {pair[1] or NO_PEER}", [_cell(cells.get(rail, []), expected[rail]) for rail in rails])
            for pair, cells in sorted(pairs.items(), key=lambda item: [natural(name) for name in item[0]])
        ],
    }


def _same(values: list) -> Any:
    return values[0] if len(set(values)) == 1 else None


def _cell(tests: list[dict], expected: Any) -> Any:
    """The slowest of the tests that share a place; usually there is one. None without any."""
    if not tests:
        return None
    test = min(tests, key=lambda test: (test["verdict"] != "outlier", percent(test) is None, percent(test) or 0))
    return {
        "heat": heat(test),
        "measured": _figure(test["gbit_per_s"]),
        # If a rail's tests expect different figures, each shows its own.
        "expected": _figure(test["expected_gbit_per_s"]) if expected is None else None,
        "outlier": test["verdict"] == "outlier",
    }
