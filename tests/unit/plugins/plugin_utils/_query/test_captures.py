"""A capture that is read in memory gives the facts of the same capture laid out as files."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._query import captures
from ansible_collections.gpufabric.rdma.tests.tools import tree


@pytest.mark.parametrize("name", tree.names())
def test_a_capture_gives_the_facts_of_its_tree(name, tmp_path):
    root = tree.lay_out(tree.load(name), tmp_path / "node")
    assert captures.facts(tree.write(name, tmp_path)) == gather(Tree(str(root)), software_hcas=True)


def test_nothing_of_a_capture_leads_to_the_controller(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("ours")
    captured = captures.CapturedTree(
        {
            "links": {"/x": str(outside), "/loop": "/loop"},
            "files": {"/x/planted": "theirs", "/../../up": "theirs", f"/..{outside}/deep": "theirs"},
        }
    )
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert captured.read("/x/secret") is None
    assert captured.read("/x/planted") == "theirs"
    assert captured.read("/up") == "theirs"
    assert captured.read("/loop/x") is None


@pytest.mark.parametrize(
    ("text", "reason"), [("[]", "no mapping `files`"), ("a: [", "while parsing"), ("files: {/a: 1}", "AttributeError")]
)
def test_what_is_not_a_capture_says_why(text, reason, tmp_path):
    path = tmp_path / "x.yml"
    path.write_text(text)
    with pytest.raises(captures.NotACapture, match=reason):
        captures.facts(path)
