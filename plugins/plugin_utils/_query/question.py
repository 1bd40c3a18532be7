# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One JMESPath question to the facts of many nodes, and its answers as a table.

PRIVATE to the collection. Runs on the controller. Pure, but for the library jmespath, which only this file imports.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...module_utils._core.change import Finding
from ...module_utils._core.text import clean
from ...module_utils._driver.versions import compare
from .._core import libraries
from .._findings.tables import table

try:
    import jmespath
    from jmespath.exceptions import JMESPathError
    from jmespath.functions import Functions
    from jmespath.visitor import TreeInterpreter
except ImportError:
    jmespath = None
    TreeInterpreter = object

_ORDER = {"lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}
_SIGNS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_VERSION = re.compile(r"[0-9]+([-.+~][0-9A-Za-z]+)*\Z")
_NEXT_STEP = "correct it, such as: hcas[?firmware < '28.40'].[name, firmware]; the language is that of jmespath.org"


def findings(query: str) -> list[Finding]:
    """What is wrong with a question before any node is asked: no library, no expression, an unknown function."""
    if jmespath is None:
        return [libraries.missing("jmespath")]
    try:
        nodes = list(_walk(jmespath.compile(query).parsed))
    except JMESPathError as error:
        return [_refused(query, "a JMESPath expression", str(error).partition("\n")[0])]
    found = []
    for name, count in [
        (node["value"], len(node["children"])) for node in nodes if node["type"] == "function_expression"
    ]:
        known = Functions.FUNCTION_TABLE.get(name)
        if known is None:
            found.append(_refused(query, "functions of JMESPath", f"{name}()"))
            continue
        signature = known["signature"]
        more = bool(signature) and signature[-1].get("variadic", False)
        if count < len(signature) or (count > len(signature) and not more):
            found.append(_refused(query, f"{name}() with {len(signature)} arguments", str(count)))
    return found


def unknown_facts(query: str, facts: Mapping[str, dict]) -> list[Finding]:
    """A finding where the question begins with a name that no node has among its facts."""
    known = sorted({key for one in facts.values() for key in one})
    if not known:
        return []
    missing = sorted(_roots(jmespath.compile(query).parsed) - set(known))
    return [_refused(query, f"facts of a node: {', '.join(known)}", ", ".join(missing))] if missing else []


def ask(query: str, facts: Mapping[str, dict]) -> dict:
    """{answers: {node: any JSON value}, unanswered: {node: reason}, uncompared: {node: [text]}}.

    facts: {node: what hca_facts found, of plain types}. Versions are compared by their numbers: 28.9 < 28.40.
    """
    parsed = jmespath.compile(query).parsed
    answers, unanswered, uncompared = {}, {}, {}
    for name, one in facts.items():
        interpreter = _Interpreter()
        try:
            answers[name] = interpreter.visit(parsed, one)
        except JMESPathError as error:
            unanswered[name] = " ".join(str(error).split())
        if interpreter.uncompared:
            uncompared[name] = list(interpreter.uncompared)
    return {"answers": answers, "unanswered": unanswered, "uncompared": uncompared}


class _Interpreter(TreeInterpreter):
    """JMESPath leaves it open how texts compare; jmespath takes them letter by letter, for which 28.9 is after 28.40.

    uncompared: comparisons with a value that could not be read, once each, in order.
    """

    def __init__(self):
        super().__init__()
        self.uncompared: dict[str, None] = {}

    def visit_comparator(self, node, value):
        kind = node["value"]
        if kind not in _ORDER:
            return super().visit_comparator(node, value)
        left, right = (self.visit(child, value) for child in node["children"])
        if _is_number(left) and _is_number(right):
            return _ORDER[kind](left, right)
        if isinstance(left, str) and isinstance(right, str) and _VERSION.match(left) and _VERSION.match(right):
            return _ORDER[kind](compare(left, right), 0)
        if any(isinstance(side, str) and not _VERSION.match(side) for side in (left, right)):
            self.uncompared.setdefault(f"{_shown(left)} {_SIGNS[kind]} {_shown(right)}")
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def text(query: str, outcome: Mapping, unread: Mapping[str, str]) -> str:
    """The answers as a table, a row each, and what could not be answered. unread: {node: reason}."""
    rows = [(name, row) for name, answer in outcome["answers"].items() for row in _rows(answer)]
    names = _names(jmespath.compile(query).parsed)
    if rows and isinstance(rows[0][1], dict):
        names = list(dict.fromkeys(key for _name, row in rows for key in row))
        cells = [[row.get(key) for key in names] if isinstance(row, dict) else [row] for _name, row in rows]
    else:
        cells = [row if isinstance(row, list) else [row] for _name, row in rows]
    width = max((len(row) for row in cells), default=0)
    columns = ["node", *(names if len(names) == width else [str(number) for number in range(1, width + 1)])]
    lines = [f"QUERY  {query}"]
    if rows:
        padded = [[name, *map(_shown, row), *[""] * (width - len(row))] for (name, _row), row in zip(rows, cells)]
        lines.append(table(columns, padded))
    asked = len(outcome["answers"]) + len(outcome["unanswered"]) + len(unread)
    with_rows = len({name for name, _row in rows})
    lines += ["", f"{with_rows} of {asked} nodes have an answer, {len(rows)} in all."]
    lines += [f"{name}: not read: {reason}" for name, reason in unread.items()]
    lines += [f"{name}: not answered: {reason}" for name, reason in outcome["unanswered"].items()]
    for name, texts in outcome["uncompared"].items():
        lines += [f"{name}: not compared: {one}" for one in texts]
    return clean("\n".join(lines) + "\n")


def _rows(answer: Any) -> list:
    """null and empty lists are no row. A list of scalars is one row each, and so is each list or mapping in a list."""
    if answer is None:
        return []
    return [row for row in answer if row != []] if isinstance(answer, list) else [answer]


def _shown(value: Any) -> Any:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(str(_shown(one)) for one in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(one)}" for key, one in value.items())
    return value


def _refused(query: str, wanted: str, seen: str) -> Finding:
    return Finding(f"query {query}", wanted, seen, _NEXT_STEP)


def _walk(node: dict) -> Iterator[dict]:
    yield node
    for child in node["children"]:
        yield from _walk(child)


_FROM_FIRST = {
    "subexpression", "index_expression", "projection", "value_projection", "filter_projection", "flatten", "pipe",
    "slice",
}  # fmt: skip


def _roots(node: dict) -> set[str]:
    """Names that the expression takes from a node's facts directly; what stands behind them is not looked at."""
    if node["type"] == "field":
        return {node["value"]}
    children = node["children"][:1] if node["type"] in _FROM_FIRST else node["children"]
    return {name for child in children for name in _roots(child)}


def _names(node: dict) -> list[str]:
    """Columns: the last name of each part of the last [a, b.c]; else the one name that the expression ends with."""
    lists = [one for one in _walk(node) if one["type"] == "multi_select_list"]
    parts = lists[-1]["children"] if lists else [node]
    return [_last_name(part) for part in parts]


def _last_name(node: dict) -> str:
    if node["type"] == "field":
        return node["value"]
    if node["type"] in _FROM_FIRST and len(node["children"]) > 1:
        return _last_name(node["children"][1])
    return "value"
