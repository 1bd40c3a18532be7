"""The results document, which docs/schemas/results-1.json describes: telling one, creating one.

PRIVATE to the collection. Pure.
"""

from __future__ import annotations

from typing import Any, Optional

from ...module_utils._core.change import Finding

SCHEMAS = {kind: f"gpufabric.rdma/{kind}/1" for kind in ("results", "drift", "matrix")}
# Facts that may contain private data: boot parameters, contents of files.
_PRIVATE = ("owned_files",)
ANEW = "write the file again with its playbook, from this version of the collection"


def finding(kind: str, document: Any) -> Optional[Finding]:
    """Why this is no document of a kind of SCHEMAS, by its own word; None if it is one."""
    seen = document.get("schema") if isinstance(document, dict) else type(document).__name__
    return None if seen == SCHEMAS[kind] else Finding("schema", SCHEMAS[kind], str(seen), ANEW)


def collect(judged: list[dict], nodes: list[dict], at: str) -> dict:
    """The results document of a verification.

    judged: what _verify.judge says of each host, in the order of the play. nodes: {host, read} of those that were
    read, read being what host_probe returned. at: ISO 8601, UTC.
    """
    facts = {node["host"]: ((node["read"].get("ansible_facts") or {}).get("rdma")) for node in nodes}
    return {
        "schema": SCHEMAS["results"],
        "at": at,
        "nodes": [
            {
                "host": node["host"],
                # A node whose probe failed has facts of an earlier step at most; its checks say why.
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
