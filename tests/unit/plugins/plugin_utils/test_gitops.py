"""The folder that render.yml writes: names, texts, and which files come and go."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, settle
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops import folder as planner


def config_map(name, namespace="default", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:ours"}}
RENDERED = {"networks": [config_map("b"), config_map("a", "train")], "multus": [ROLE]}


def wanted(rendered=None):
    return planner.files(RENDERED if rendered is None else rendered)


def bring(folder, files, check_mode=False):
    return settle(
        read=lambda: planner.read(folder, files),
        plan=lambda found: planner.plan(found, files),
        apply=lambda changes: planner.apply(folder, changes),
        check_mode=check_mode,
    )


def test_the_lists_keep_the_order_they_were_given():
    files = wanted()
    assert set(files) == {
        "kustomization.yaml", "networks/kustomization.yaml", "networks/configmap_default_b.yaml",
        "networks/configmap_train_a.yaml", "multus/kustomization.yaml", "multus/clusterrole_system_ours.yaml",
    }  # fmt: skip
    assert all(text.startswith(planner.MARK) for text in files.values())
    assert yaml.safe_load(files["kustomization.yaml"])["resources"] == ["networks", "multus"]
    listed = yaml.safe_load(files["networks/kustomization.yaml"])["resources"]
    assert listed == ["configmap_default_b.yaml", "configmap_train_a.yaml"]


@pytest.mark.parametrize("name", ["x/../../../site/all", "..", ".", "", "a/b", "/etc/x", "a\n", "-rf", "a b", "a%2fb"])
def test_a_name_that_is_none_writes_nothing(tmp_path, name):
    for item in (config_map(name), config_map("a", name or "/")):
        with pytest.raises(Refused) as refused:
            bring(tmp_path, wanted({"networks": [config_map("fine"), item]}))
        assert [finding.id for finding in refused.value.findings] == ["gitops:name"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [
    *("", "y", "No", "null", "~", "1e3", "0o17", "017", "1_000", "12:30", "2026-11-22", ".inf", "=", "a: b"),
    *("a #b", "- a", "{a}", "*a", "&a", "!a", "%a", "@a", "`a", "'a'", '"a"', " a", "a ", "a\\b", "ä", "\t"),
    *("one\ntwo\n", "one\ntwo", "one\n\n", "\none", " one\ntwo", "one \ntwo", "a\tb\nc", "x y " * 90),
])  # fmt: skip
def test_a_text_is_quoted_wherever_a_parser_could_take_it_for_something_else(value):
    item = {"data": {value: value}, "list": [value, True, None, 7]}
    text = planner.text(item)
    assert yaml.safe_load(text) == item
    assert planner.text(yaml.safe_load(text)) == text
    plain = next(line for line in planner.text([value]).splitlines())[2:]
    assert plain.startswith(('"', "|")), plain


def test_files_come_and_go_and_a_second_run_changes_nothing(tmp_path):
    made, changes = bring(tmp_path / "new/git", wanted(), check_mode=True)
    assert {change.action for change in changes} == {"write"}
    assert not (tmp_path / "new").exists()
    folder = tmp_path / "new/git"
    bring(folder, wanted())
    assert bring(folder, wanted())[1] == []
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("theirs")
    (folder / "multus/binary").write_bytes(b"\xff\xfe")
    (folder / "theirs").mkdir()
    (folder / "theirs/kustomization.yaml").write_text("resources: []\n")
    made, changes = bring(folder, wanted({"networks": [config_map("b", x="1")]}))
    kept = {"kustomization.yaml", "networks/kustomization.yaml", "networks/configmap_default_b.yaml"}
    gone = {"networks/configmap_train_a.yaml", "multus/kustomization.yaml", "multus/clusterrole_system_ours.yaml"}
    assert {change.object for change in changes if change.action == "write"} == kept
    assert {change.object for change in changes if change.action == "remove"} == gone
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == kept | {".git/config", "multus/binary", "theirs/kustomization.yaml"}
    # Of a directory that holds nothing of ours any more nothing is known, so nothing is said.
    assert made.notes == []


def test_an_edited_file_is_written_again_a_foreign_one_named_and_an_empty_directory_goes(tmp_path):
    bring(tmp_path, wanted())
    edited = tmp_path / "multus/clusterrole_system_ours.yaml"
    edited.write_text(edited.read_text() + "aggregationRule: {}\n")
    _made, changes = bring(tmp_path, wanted())
    assert [change.object for change in changes] == ["multus/clusterrole_system_ours.yaml"]
    assert "aggregationRule" in changes[0].before
    (tmp_path / "multus/mine.yaml").write_text("kind: Mine\n")
    made, changes = bring(tmp_path, wanted())
    assert (changes, [note.split()[0] for note in made.notes]) == ([], ["multus/mine.yaml"])
    (tmp_path / "multus/mine.yaml").unlink()
    bring(tmp_path, wanted({"networks": []}))
    assert not (tmp_path / "multus").exists()


@pytest.mark.parametrize(("path", "content"), [
    ("kustomization.yaml", "resources: []\n"),
    ("kustomization.yml", "resources: []\n"),
    ("multus", "a file"),
    ("multus", None),
    ("networks/configmap_train_a.yaml", None),
    ("networks/Kustomization", "kind: Kustomization\n"),
])  # fmt: skip
def test_what_is_in_the_way_stops_before_anything_is_written(tmp_path, path, content):
    """None: a symbolic link."""
    (tmp_path / "networks").mkdir()
    (tmp_path / path).symlink_to("/etc/hostname") if content is None else (tmp_path / path).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused) as refused:
        bring(tmp_path, wanted())
    assert [finding.object for finding in refused.value.findings] == [path]
    assert sorted(tmp_path.rglob("*")) == before
