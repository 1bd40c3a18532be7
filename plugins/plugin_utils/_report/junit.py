# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JUnit of the checks of a results document: one suite a node, one case a check.

PRIVATE to the collection. Pure. What was not verified is skipped, never passed; so is what is unused.
"""

from __future__ import annotations

from xml.etree import ElementTree

from ...module_utils._core.text import clean
from .._findings.checks import NOT_VERIFIED, check
from .judge import tally


def text(document: dict) -> str:
    root = ElementTree.Element("testsuites", name="gpufabric.rdma verification")
    total = {"tests": 0, "failures": 0, "skipped": 0}
    for node in document["nodes"]:
        # A suite without a case would count as success.
        checks = node["checks"] or [_NOTHING]
        counts = tally(checks)
        numbers = {
            "tests": len(checks),
            "failures": counts["failed"],
            "skipped": counts["not_verified"] + counts["unused"],
        }
        total = {key: total[key] + number for key, number in numbers.items()}
        suite = ElementTree.SubElement(root, "testsuite", name=clean(node["host"]), timestamp=clean(document["at"]))
        suite.attrib.update({key: str(number) for key, number in numbers.items()}, errors="0")
        for item in checks:
            _case(suite, node["host"], item)
    root.attrib.update({key: str(number) for key, number in total.items()}, errors="0")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


_NOTHING = check("node", "node", NOT_VERIFIED, "checks of this node", "none", "run playbooks/verify.yml")


def _case(suite: ElementTree.Element, host: str, item: dict) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=clean(host), name=clean(f"{item['id']}: {item['object']}")
    )
    facts = clean(f"wanted: {item['wanted']}\nseen: {item['seen']}\nnext step: {item['next_step'] or 'none'}")
    if item["status"] == "failed":
        failure = ElementTree.SubElement(
            case, "failure", message=clean(item["seen"]), type=clean(item.get("failure") or "check")
        )
        failure.text = facts
    elif item["status"] != "passed":
        reason = "not verified" if item["status"] == "not_verified" else "unused"
        ElementTree.SubElement(case, "skipped", message=clean(f"{reason}: {item['seen']}"))
