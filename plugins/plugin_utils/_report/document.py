"""The results document (docs/schemas/results-1.json): recognizing one, creating one. Pure."""

from typing import Any, Optional

from ...module_utils._core.change import Finding
from .._core import junit as xml
from .._findings.checks import NOT_VERIFIED, check

SCHEMAS = {kind: f"gpufabric.rdma/{kind}/1" for kind in ("results", "drift", "matrix")}
# Facts that may contain private data: boot parameters, contents of files.
_PRIVATE = ("owned_files",)
# A suite without a case would count as success.
_NOTHING = check("node", "node", NOT_VERIFIED, "checks of this node", "none", "run playbooks/verify.yml")
ANEW = "write the file again with its playbook, from this version of the collection"


def finding(kind: str, document: Any) -> Optional[Finding]:
    """Why this is not a document of a kind in SCHEMAS, by its own statement; None if it is one."""
    seen = document.get("schema") if isinstance(document, dict) else type(document).__name__
    return None if seen == SCHEMAS[kind] else Finding("schema", SCHEMAS[kind], str(seen), ANEW)


def collect(judged: list[dict], nodes: list[dict], at: str) -> dict:
    """The results document of a verification.

    judged: what _verify.judge says about each host, in the order of the play. nodes: {host, read} of those that were
    read, with the result of node_facts as read. at: ISO 8601, UTC.
    """
    facts = {node["host"]: ((node["read"].get("ansible_facts") or {}).get("rdma")) for node in nodes}
    return {
        "schema": SCHEMAS["results"],
        "at": at,
        "nodes": [
            {
                "host": node["host"],
                # A node whose probe failed has at most facts of an earlier step; its checks say why.
                "facts": _shareable(facts.get(node["host"])) if node["facts"] is not None else None,
                "checks": node["checks"],
                "reboot_reasons": node.get("reboot_reasons") or [],
                **({"claims": node["claims"]} if node.get("claims") else {}),
            }
            for node in judged
        ],
        "drift": None,
        "matrix": None,
    }


def _shareable(facts: Any) -> Any:
    if not facts:
        return None
    kept = {key: value for key, value in facts.items() if key not in _PRIVATE}
    if "node" in kept:
        kept["node"] = {key: value for key, value in kept["node"].items() if key != "cmdline"}
    return kept


def junit(results: dict) -> str:
    """JUnit of the checks: a suite per node, a case per check. Unverified and unused ones are skipped, never passed."""
    suites = [
        xml.Suite(node["host"], [_case(node["host"], item) for item in node["checks"] or [_NOTHING]])
        for node in results["nodes"]
    ]
    return xml.document("gpufabric.rdma verification", results["at"], suites)


def _case(host: str, item: dict) -> xml.Case:
    name = f"{item['id']}: {item['object']}"
    if item["status"] == "passed":
        return xml.Case(host, name)
    if item["status"] == "failed":
        facts = f"wanted: {item['wanted']}\nseen: {item['seen']}\nnext step: {item['next_step'] or 'none'}"
        return xml.Case(host, name, xml.FAILURE, item["seen"], item.get("failure") or "check", facts)
    reason = "not verified" if item["status"] == "not_verified" else "unused"
    return xml.Case(host, name, xml.SKIPPED, f"{reason}: {item['seen']}")
