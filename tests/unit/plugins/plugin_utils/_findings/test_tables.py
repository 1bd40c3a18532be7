"""The tables of playbooks/discover.yml, compared with files that a person has reviewed."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.tables import WIDTH, problems, table
from ansible_collections.gpufabric.rdma.tests.tools import tables


@pytest.mark.parametrize("name", tables.REPORTS)
def test_report(name):
    text = tables.render(name)
    assert text == (tables.FOLDER / f"{name}.txt").read_text(), "after a wanted change run tests/tools/tables.py"
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_widest_columns_are_cut_first_and_names_keep_their_beginning():
    text = table(("node", "n"), [("a" * 30, 1), ("b", 22)], width=20)
    assert text.splitlines() == [
        "node               n", "----------------  --", "aaaaaaaaaaaaaaa…   1", "b                 22",
    ]  # fmt: skip


def test_a_node_that_could_not_be_read_says_why():
    assert problems({"failure": "no route to host"}) == ["It could not be read: no route to host"]
