# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results document: its JSON schema (published as docs/schemas/results-1.json), validating one, creating one.

PRIVATE to the collection. Pure.
"""

from __future__ import annotations

import math
from typing import Any

from ...module_utils._core.change import Finding

NAME = "gpufabric.rdma/results/1"
DRIFT = "gpufabric.rdma/drift/1"
MATRIX = "gpufabric.rdma/matrix/1"
STATUSES = ("passed", "failed", "not_verified", "unused")
DRIFT_VERDICTS = ("converged", "drift", "reboot_pending", "unsafe", "unreachable")
MATRIX_VERDICTS = ("ok", "outlier", "not_verified")
# Facts that may contain private data: boot parameters, contents of files.
_PRIVATE = ("owned_files",)


def _object(required: dict, optional: dict | None = None, null: bool = False) -> dict:
    return {
        "type": ["object", "null"] if null else "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(items: dict, null: bool = False) -> dict:
    return {"type": ["array", "null"] if null else "array", "items": items}


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_WHOLE = {"type": "integer"}
_WHOLE_OR_NULL = {"type": ["integer", "null"]}
_CLAIMED = (
    "Claims on the node's HCAs (DRA), each NAMESPACE/NAME with the pods that hold it. Absent where none was read."
)
_FUNCTION = {
    "address": _TEXT,
    "model": _TEXT_OR_NULL,
    "numa_node": _WHOLE_OR_NULL,
    "path": {**_list(_TEXT), "description": "Host bridge, bridges, the function itself."},
}
_PORT = _object(
    {"number": _WHOLE, "state": _TEXT_OR_NULL},
    {
        "phys_state": _TEXT_OR_NULL,
        "rate_gbps": _NUMBER_OR_NULL,
        "rate_text": _TEXT_OR_NULL,
        "link_layer": _TEXT_OR_NULL,
        "netdev": _TEXT_OR_NULL,
    },
)
_LINK = _object(
    {},
    dict.fromkeys(("speed_gts", "width", "max_speed_gts", "max_width"), _NUMBER_OR_NULL),
    null=True,
)
_HCA = _object(
    {"name": _TEXT, "ports": _list(_PORT)},
    {
        "kind": _TEXT,
        "function": _TEXT_OR_NULL,
        "firmware": _TEXT_OR_NULL,
        "psid": _TEXT_OR_NULL,
        "pci": _object({"address": _TEXT}, {**_FUNCTION, "physfn": _TEXT_OR_NULL, "link": _LINK}, null=True),
        "nearest_gpus": _list(_object({"address": _TEXT, "distance": _TEXT})),
    },
)
_RAIL = _object(
    {"index": _WHOLE, "hca": _TEXT, "port": _WHOLE},
    {"netdev": _TEXT_OR_NULL, "gpu": _TEXT_OR_NULL, "distance": _TEXT_OR_NULL},
)
_FACTS = {
    **_object(
        {},
        {
            "node": _object(
                {},
                {
                    "kernel": _TEXT_OR_NULL,
                    "architecture": _TEXT_OR_NULL,
                    "os": _object({}, {"pretty_name": _TEXT_OR_NULL}),
                },
            ),
            "hcas": _list(_HCA),
            "gpus": _list(_object({"address": _TEXT}, {**_FUNCTION, "index": _WHOLE})),
            "rails": _list(_RAIL),
            "rails_excluded": _list(_object({"hca": _TEXT_OR_NULL, "reason": _TEXT})),
            "cards_without_rdma": _list(
                _object({"address": _TEXT}, {**_FUNCTION, "reason": _TEXT, "next_step": _TEXT, "netdevs": _list(_TEXT)})
            ),
            "subsystem": _object({}, {"netns_mode": _TEXT_OR_NULL}, null=True),
            "driver": _object(
                {}, {"loaded": _object({}, {"flavor": _TEXT_OR_NULL, "version": _TEXT_OR_NULL}, null=True)}, null=True
            ),
            "gpudirect": _object({}, {"mode": _TEXT_OR_NULL, "verdict": _TEXT_OR_NULL}, null=True),
        },
        null=True,
    ),
    "description": "What hca_facts returns as rdma; null when the node could not be read. Each part may be absent.",
}
_CLAIM = _object(
    {"claim": _TEXT, "pods": _list(_TEXT), "hca": _TEXT_OR_NULL, "rail": _WHOLE_OR_NULL, "device": _TEXT},
)
_CHECK = _object(
    {**dict.fromkeys(Finding._fields, _TEXT), "status": {"enum": list(STATUSES)}},
    {
        "failure": {**_TEXT_OR_NULL, "description": "An id of the catalogue of failures."},
        "root": {"type": ["boolean", "null"], "description": "True on the one failure that others follow from."},
        "consequence_of": {**_TEXT_OR_NULL, "description": "The `failure` that this one follows from."},
    },
)
_DIFFERENCE = _object({"object": _TEXT, "wanted": _TEXT, "seen": _TEXT}, {"role": _TEXT_OR_NULL})
_DRIFT = _object(
    {
        "schema": {"const": DRIFT},
        "at": _TEXT,
        "verdict": {"enum": list(DRIFT_VERDICTS)},
        "hosts": _list(
            _object(
                {"host": _TEXT, "verdict": {"enum": list(DRIFT_VERDICTS)}, "differences": _list(_DIFFERENCE)},
                {"reasons": _list(_TEXT)},
            )
        ),
    },
    {"exit_code": _WHOLE},
    null=True,
)
_MATRIX = _object(
    {
        "schema": {"const": MATRIX},
        "at": _TEXT,
        "tests": _list(
            _object(
                {
                    "id": _TEXT,
                    "rail": _WHOLE,
                    "path": _TEXT,
                    "from": _TEXT,
                    "to": _TEXT,
                    "gbit_per_s": _NUMBER_OR_NULL,
                    "expected_gbit_per_s": _NUMBER_OR_NULL,
                    "verdict": {"enum": list(MATRIX_VERDICTS)},
                },
                {
                    "from_hca": _TEXT_OR_NULL,
                    "to_hca": _TEXT_OR_NULL,
                    "expected_from": _TEXT_OR_NULL,
                    "reason": _TEXT_OR_NULL,
                    "counters": {"type": ["object", "null"], "additionalProperties": _NUMBER_OR_NULL},
                },
            )
        ),
    },
    null=True,
)

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": NAME,
    "description": "What a verification saw on each node, with a drift and a matrix document if there are any. "
    "Any object may have more keys; readers ignore keys that they do not know.",
    **_object(
        {
            "schema": {"const": NAME},
            "at": {"type": "string", "description": "When the checks were judged, ISO 8601, UTC."},
            "nodes": _list(
                _object(
                    {"host": _TEXT, "facts": _FACTS, "checks": _list(_CHECK)},
                    {"reboot_reasons": _list(_TEXT), "claims": {**_list(_CLAIM), "description": _CLAIMED}},
                )
            ),
        },
        {"drift": _DRIFT, "matrix": _MATRIX},
    ),
}


# --- what is wrong with a document -----------------------------------------------------------------------------------


ANEW = "write the file again with its playbook, from this version of the collection"


def findings(document: Any) -> list[Finding]:
    """Everything in a results document that the schema does not allow; all at once."""
    found = list(_deviations(document, SCHEMA, "$"))
    return found or [*_doubles(document["nodes"], "$.nodes"), *_doubles(_hosts(document.get("drift")), "$.drift.hosts")]


def of_kind(document: Any, kind: str) -> list[Finding]:
    """The same of a drift or matrix document on its own; kind: drift or matrix."""
    schema = {**SCHEMA["properties"][kind], "type": "object"}
    found = list(_deviations(document, schema, "$"))
    return found or (list(_doubles(_hosts(document), "$.hosts")) if kind == "drift" else [])


def _hosts(drift: Any) -> list[dict]:
    return drift["hosts"] if drift else []


def _doubles(nodes: list[dict], place: str):
    hosts = [node["host"] for node in nodes]
    for host in sorted({host for host in hosts if hosts.count(host) > 1}):
        yield Finding(place, "each host once", f"{host} {hosts.count(host)} times", ANEW)


_TYPES = {"string": str, "array": list, "object": dict, "boolean": bool, "integer": int, "number": (int, float)}


def _is(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[kind])


def _deviations(value: Any, schema: dict, place: str):
    """Checks the few JSON Schema keywords that SCHEMA uses; a controller need not have the library jsonschema."""
    if "const" in schema and value != schema["const"]:
        yield Finding(place, schema["const"], _shown(value), ANEW)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Finding(place, f"one of {', '.join(schema['enum'])}", _shown(value), ANEW)
        return
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield Finding(place, " or ".join(kinds), _shown(value), ANEW)
    elif isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                yield Finding(f"{place}.{key}", "present", "absent", ANEW)
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, inner in value.items():
            below = properties.get(key, rest)
            if below:
                yield from _deviations(inner, below, f"{place}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for place_in, inner in enumerate(value):
            yield from _deviations(inner, schema["items"], f"{place}[{place_in}]")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- making one ------------------------------------------------------------------------------------------------------


def collect(judged: list[dict], nodes: list[dict], at: str) -> dict:
    """The results document of a verification.

    judged: what verify_checks returned for each host, in the order of the play. nodes: {host, read} of those that were
    read, read being what host_probe returned. at: ISO 8601, UTC.
    """
    facts = {node["host"]: ((node["read"].get("ansible_facts") or {}).get("rdma")) for node in nodes}
    return {
        "schema": NAME,
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
