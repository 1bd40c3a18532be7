"""JUnit of the checks of a results document: one suite a node, one case a check.

PRIVATE to the collection. Pure. What was not verified is skipped, never passed; so is what is unused.
"""

from __future__ import annotations

from .._core import junit
from .._findings.checks import NOT_VERIFIED, check

# A suite without a case would count as success.
_NOTHING = check("node", "node", NOT_VERIFIED, "checks of this node", "none", "run playbooks/verify.yml")


def text(document: dict) -> str:
    suites = [
        junit.Suite(node["host"], [_case(node["host"], item) for item in node["checks"] or [_NOTHING]])
        for node in document["nodes"]
    ]
    return junit.document("gpufabric.rdma verification", document["at"], suites)


def _case(host: str, item: dict) -> junit.Case:
    name = f"{item['id']}: {item['object']}"
    if item["status"] == "passed":
        return junit.Case(host, name)
    if item["status"] == "failed":
        facts = f"wanted: {item['wanted']}\nseen: {item['seen']}\nnext step: {item['next_step'] or 'none'}"
        return junit.Case(host, name, junit.FAILURE, item["seen"], item.get("failure") or "check", facts)
    reason = "not verified" if item["status"] == "not_verified" else "unused"
    return junit.Case(host, name, junit.SKIPPED, f"{reason}: {item['seen']}")
