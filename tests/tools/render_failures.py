"""Writes docs/failures.md from plugins/plugin_utils/_findings/catalogue.yml, down to the pitfalls, which it keeps."""

import pathlib

from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import runnable
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.catalogue import CATALOGUE, DOCUMENT, Failure

TARGET = pathlib.Path(__file__).resolve().parents[2] / "docs/failures.md"
HEAD = """# Failures by name

Generated from `plugins/plugin_utils/_findings/catalogue.yml` by `tests/tools/render_failures.py`, down to the pitfalls.

`ansible-playbook gpufabric.rdma.verify -i INVENTORY` reports one root failure for each host, with its id, cause and
fix, and lists beneath it the failures that follow from it. Fix the root first and run it again; failures under
*besides* have another cause. A run that is refused before it changes anything reports the id as `failure`. Neither the
host's network nor more privileges for a container fixes any of these. Each is planted in captured facts (E1),
`memlock-too-low` and `no-cni` in a real cluster as well (E3). [Why a pod does not start](#why-a-pod-does-not-start) and
[pitfalls](#pitfalls-by-id) follow below.
"""
STARTS = """## Why a pod does not start

Messages of components in a pod's events. Of nested messages the innermost counts; `*` stands for a word. They were
read in the sources of {}.

| who says it | text | cause | fix |
|---|---|---|---|
"""
PITFALLS = "## Pitfalls by id"


def entry(failure: Failure) -> str:
    shown = {"what you see": failure.sign, "cause": failure.cause, "look at": failure.evidence, "fix": failure.fix}
    title = f"## {failure.id}: {failure.title}"
    return "\n".join([title, "", *(f"- **{name}**: {text}" for name, text in shown.items()), ""])


def messages(one: dict) -> str:
    cells = [(one["component"], "<br>".join(f"`{text}`" for text in texts), *told) for texts, *told in one["says"]]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def render() -> str:
    sources = dict.fromkeys(one["read"] for one in DOCUMENT["messages"])
    parts = [HEAD, *map(entry, CATALOGUE), STARTS.format("; ".join(sources)).rstrip()]
    text = "\n".join([*parts, *map(messages, DOCUMENT["messages"]), "\n"])
    return runnable(text) + "".join(TARGET.read_text().partition(PITFALLS)[1:])


if __name__ == "__main__":
    TARGET.write_text(render())
