"""docs/failures.md from the catalogue and the table of its tests."""

from __future__ import annotations

import pathlib

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.catalogue import CATALOGUE, Failure
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_rows import ON_THE_CLUSTER, ROWS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs/failures.md"
TEST = "tests/unit/pitfalls/test_guides.py::test_the_pitfall_is_the_one_root"
HEAD = """# Failures by name

Generated from `plugins/plugin_utils/_findings/catalogue.py` by `tests/tools/render_docs.py`.

`ansible-playbook gpufabric.rdma.verify -i INVENTORY` names for each host one root failure with its id, cause and fix,
and lists beneath it what fails because of it. Fix the root cause first and run it again. What is listed under *besides*
has another cause. A run that is refused before it changes anything reports the id as `failure`, if the catalogue has
the problem.
The words of published guides are quoted so that they can be searched for; cause and fix are ours and often differ.
Neither the host's network nor more privileges for a container fixes any of these.

## The rows and their tests

E1: planted in captured facts, composed objects of an API server and composed answers of pods, in
`tests/unit/pitfalls/test_guides.py`; each test is seen to fail there with its rule removed. E3: planted in the lab's
cluster too, a real kubelet, API server and containerd, by the second test. Nothing on this page has been seen on
hardware (E5).

| row | id | level | prevented | test |
|---|---|---|---|---|
"""


def row(name: str, root: str, levels: dict, prevented: set) -> str:
    early = "refused before a change" if root in prevented else "named by `verify`"
    tests = f"`{TEST}[{name}]`"
    if root in ON_THE_CLUSTER:
        tests += f", `{ON_THE_CLUSTER[root]}`"
    return f"| {name} | [{root}](#{root}) | {levels[root]} | {early} | {tests} |"


def entry(failure: Failure) -> str:
    quotes = "\n".join(f"> {words} ({source})" + "  " for source, words in failure.rows).rstrip()
    facts = {"what you see": failure.sees, "cause": failure.cause, "look at": failure.evidence, "fix": failure.fix}
    lines = [f"## {failure.id}", "", f"{failure.title[0].upper()}{failure.title[1:]}.", "", quotes, ""]
    return "\n".join(lines + [f"- **{name}**: {text}" for name, text in facts.items()]) + "\n"


def render() -> str:
    levels = {failure.id: failure.level for failure in CATALOGUE}
    prevented = {failure.id for failure in CATALOGUE if failure.refused}
    table = "\n".join(row(name, one.root, levels, prevented) for name, one in ROWS.items())
    return f"{HEAD}{table}\n\n" + "\n".join(map(entry, CATALOGUE))
