"""docs/upstream.md: what we apply beside what each component's own manifests say, from tests/fixtures/upstream."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.tests.tools import upstream_facts

TARGET = upstream_facts.ROOT / "docs/upstream.md"
HEAD = """# Manifests beside those of upstream

Generated from `tests/fixtures/upstream` by `tests/tools/render_docs.py`.

The collection has manifests of its own for what it installs in a cluster. Each is compared, fact by fact, with the
manifest that the component ships in its locked version: objects, arguments, environment, mounts, rights, security
context, requests and limits, probes, tolerations, schemas. `tests/unit/roles/test_upstream.py` fails for a difference
without a reason, for a reason without a difference, and for a version that the lock does not have. Compared are
manifests, not running programs (E1).
"""


def said(value) -> str:
    """A value as a table's cell has it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(said, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {said(item)}" for key, item in value.items())
    return str(value)


def cell(value) -> str:
    return f"`{said(value)}`".replace("|", "\\|") if value is not None else "-"


def render() -> str:
    rows, parts = [], []
    for name, component in upstream_facts.components().items():
        source = component["source"]
        found = upstream_facts.differences(component["facts"], upstream_facts.ours(component))
        reasons = upstream_facts.explained(component, found)[0]
        same, given = sum(fact not in found for fact in component["facts"]), len(set(reasons.values()))
        rows.append(f"| [{name}](#{name}) | {component['version']} | {same} | {len(found)} | {given} |")
        files = ", ".join(f"`{path}`" for path in source["paths"])
        where = f"[{source['repository'].partition('.com/')[2]}]({source['repository']}/tree/{source['commit']})"
        lines = [f"## {name}\n", f"{component['version']}, {where}: {files}. Ours: `{component['ours']['path']}`.\n"]
        lines += ["| fact | upstream | ours | reason |", "|---|---|---|---|"]
        for fact, (theirs, mine) in found.items():
            lines.append(
                f"| {fact.replace('|', chr(92) + '|')} | {cell(theirs)} | {cell(mine)} | {reasons.get(fact, '')} |"
            )
        parts.append("\n".join(lines) + "\n")
    table = [
        "| component | version | facts that are the same | that differ | reasons |",
        "|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join([HEAD, "\n".join(table) + "\n", *parts])
