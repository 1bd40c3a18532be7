"""CNI plugins from a bundle folder to a node: real archives, real programs, the module run by Ansible."""

import gzip
import hashlib
import json
import os
import pathlib
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import plugins
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import tokens
from ansible_collections.gpufabric.rdma.plugins.modules import cni_plugins
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import cni
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running
from ansible_collections.gpufabric.rdma.tests.tools.base_images import layer
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils._cni.test_cni_lint import program

NAMES = ["bridge", "flannel", "loopback"]


def archive(programs: dict) -> bytes:
    return gzip.compress(layer(programs))


class Bundle:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.files, self.images = folder, [], []

    def add(self, name: str, content: bytes, architecture: str = "amd64", sha256=None) -> None:
        path = f"{name}-{architecture}"
        (self.folder / path).write_bytes(content)
        sha256 = sha256 or hashlib.sha256(content).hexdigest()
        self.files = [row for row in self.files if (row["name"], row["architecture"]) != (name, architecture)]
        self.files.append({"name": name, "version": "v1", "architecture": architecture, "path": path, "sha256": sha256})

    def add_image(self, reference: str, content: bytes) -> None:
        (self.folder / "image.tar").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        self.images.append({"reference": reference, "architecture": "amd64", "path": "image.tar", "sha256": digest})

    def choose(self, names=None, machine="x86_64"):
        described = {"schema": 1, "origin": "testbed", "files": self.files, "images": self.images}
        return cni.choose(described, str(self.folder), names or NAMES, machine)


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "bundle").mkdir()
    made = Bundle(tmp_path / "bundle")
    made.add("cni-plugins", archive({"./bridge": program(size=600), "./loopback": program(), "./vlan": program()}))
    made.add("cni-plugins", archive({"bridge": program(183), "loopback": program(183)}), "arm64")
    made.add("flannel-cni-plugin", program(size=700))
    made.add("flannel-cni-plugin", archive({"flannel-arm64": program(183)}), "arm64")
    return made


def test_the_listed_plugins_come_out_of_the_archives_of_the_nodes_architecture(bundle):
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        found, findings = bundle.choose(machine=machine)
        assert (sorted(found), findings) == (NAMES, [])
        assert {content[18] for content in found.values()} == {number}
    found, findings = bundle.choose(machine="riscv64")
    assert (found, findings[0].seen) == ({}, "riscv64")


@pytest.mark.parametrize(("plant", "obj", "seen"), [
    (lambda b: b.add("cni-plugins", archive({}), sha256="0" * 64), "cni-plugins-amd64", "sha256 "),
    (lambda b: b.add("cni-plugins", archive({"bridge": program(183), "loopback": program()})), "bridge", "aarch64"),
    (lambda b: b.add("cni-plugins", archive({"bridge": program()[:90], "loopback": program()})), "bridge", "90"),
    (lambda b: b.add("cni-plugins", archive({"bridge": program()})), "loopback", "bridge"),
    (lambda b: b.add("flannel-cni-plugin", b"<html>"), "flannel", "something else"),
    (lambda b: b.files.pop(0), "bundle", "cni-plugins for arm64"),
    (lambda b: os.unlink(b.folder / "flannel-cni-plugin-amd64"), "flannel-cni-plugin-amd64", "No such file"),
])  # fmt: skip
def test_what_is_not_as_it_should_be_is_refused_on_the_controller(bundle, plant, obj, seen):
    plant(bundle)
    found, findings = bundle.choose()
    assert [finding for finding in findings if obj in finding.object and seen in finding.seen], findings
    assert all(finding.next_step for finding in findings)
    assert len(found) < len(NAMES)


def docker_archive(reference, content):
    layers = [archive({"etc/passwd": b"root"}), archive({"flannel": content})]
    manifest = [{"RepoTags": ["other:1"], "Layers": []}, {"RepoTags": [reference], "Layers": ["0.tar", "1.tar"]}]
    return archive({"manifest.json": json.dumps(manifest).encode(), "0.tar": layers[0], "1.tar": layers[1]})


REFERENCE = "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel3"
UNPACKED = "it cannot be unpacked"


@pytest.mark.parametrize(("content", "seen"), [
    (docker_archive(REFERENCE, program(size=800)), None),
    (b"no archive", UNPACKED),
    (docker_archive(REFERENCE, b"")[:200], UNPACKED),
    (archive({"index.json": b"{}"}), UNPACKED),
    (archive({"manifest.json": b'[{"Layers": []}]'}), "no file /flannel in it"),
])  # fmt: skip
def test_flannels_plugin_comes_out_of_its_image_where_no_file_is_there(bundle, content, seen):
    bundle.files = [row for row in bundle.files if row["name"] == "cni-plugins"]
    bundle.add_image(REFERENCE, content)
    found, findings = bundle.choose()
    assert [seen in finding.seen for finding in findings] == ([True] if seen else []), findings
    assert found.get("flannel") == (None if seen else program(size=800))


class Node:
    def __init__(self, folder: pathlib.Path, programs: dict):
        self.root, self.directory = folder / "node", folder / "node/opt/cni/bin"
        self.archive = folder / plugins.ARCHIVE
        self.archive.write_bytes(cni.packed(programs))
        self.binaries = cni.wanted(programs)

    def call(self, archive=True, check=False, binaries=None, **more):
        given = {"bundle": "/b", "names": [], "machine": "", "staged": str(self.archive.parent) if archive else None}
        binaries = self.binaries if binaries is None else binaries
        return running.module(cni_plugins, check, root=str(self.root), binaries=binaries, **given, **more)

    def files(self):
        return {path.name: path.read_bytes() for path in self.directory.glob("*")} if self.directory.exists() else {}


@pytest.fixture
def node(tmp_path, bundle):
    return Node(tmp_path, bundle.choose()[0])


def test_only_what_is_lacking_is_asked_for_and_nothing_changes_before_it_is_there(node):
    first, checked = node.call(archive=False), node.call(check=True)
    assert (first["needs"], checked["changed"], node.files()) == (NAMES, True, {})
    assert first["changes"] == checked["changes"] == node.call()["changes"]
    assert sorted(node.files()) == NAMES
    assert {path.stat().st_mode & 0o777 for path in node.directory.iterdir()} == {0o755}
    again = node.call(archive=False)
    assert (again["changed"], again["needs"], again["changes"]) == (False, [], [])


def test_drift_is_healed_and_foreign_plugins_stay(node):
    node.call()
    (node.directory / "ipoib").write_bytes(b"someone's")
    (node.directory / "bridge").write_bytes(b"swapped")
    (node.directory / "loopback").chmod(0o644)
    (node.directory / ".gpufabric-x").write_bytes(b"half")
    assert node.call(archive=False)["needs"] == ["bridge"]
    done = {change["object"].rpartition("/")[2]: change["action"] for change in node.call()["changes"]}
    assert done == {"bridge": "place", "loopback": "mode", ".gpufabric-x": "remove"}
    assert sorted(node.files()) == sorted([*NAMES, "ipoib"])
    assert node.call()["changed"] is False


def test_a_plugin_that_leaves_the_list_goes_unless_someone_has_replaced_it(node):
    node.call()
    (node.directory / "loopback").write_bytes(b"someone's own")
    node.call(binaries=[item for item in node.binaries if item["name"] == "flannel"])
    assert sorted(node.files()) == ["flannel", "loopback"]


def test_a_plugin_that_was_there_before_is_replaced_and_that_is_reported(node):
    node.directory.mkdir(parents=True)
    (node.directory / "bridge").symlink_to("cni")
    (node.directory / "cni").write_bytes(b"one program for many names")
    assert ["/opt/cni/bin/bridge" in note for note in node.call()["notes"]] == [True]
    assert not (node.directory / "bridge").is_symlink()
    assert node.files()["cni"] == b"one program for many names"


def test_a_program_that_runs_is_replaced(node, tmp_path):
    """The kernel refuses to write it (Text file busy), but allows a rename."""
    node.directory.mkdir(parents=True)
    (node.directory / "bridge").write_bytes(pathlib.Path("/bin/sleep").read_bytes())
    (node.directory / "bridge").chmod(0o755)
    with subprocess.Popen([node.directory / "bridge", "60"]) as running:
        node.call()
        assert running.poll() is None
        running.terminate()
    assert node.files()["bridge"] == program(size=600)


def test_an_archive_with_another_program_leaves_the_old_one_and_a_damaged_record_is_written_again(node):
    node.call()
    old, record = node.files(), node.root / plugins.RECORD[1:]
    with pytest.raises(Refused):
        cni_plugins.place(f"{node.root}/opt/cni/bin/bridge", str(node.archive.parent), "0" * 64)
    assert node.files() == old
    record.write_text("{")
    assert [change["action"] for change in node.call()["changes"]] == ["record"]
    assert sorted(json.loads(record.read_text())) == NAMES


def test_a_node_fetches_only_archives_that_it_needs_and_installs_none_with_another_sum(node, bundle):
    node.call()
    (node.directory / "flannel").unlink()
    rows = [row for row in bundle.files if row["architecture"] == "amd64"]
    sources = [{**row, "url": f"file://{bundle.folder}/{row['path']}"} for row in rows]
    sources[0]["url"] += ".absent"
    wrong = node.call(archive=False, sources=[{**row, "sha256": "0" * 64} for row in sources])
    assert (wrong["failed"], wrong["findings"][0]["object"]) == (True, "flannel-cni-plugin-amd64")
    assert "flannel" not in node.files()
    assert node.call(archive=False, sources=sources)["needs"] == []
    assert node.files()["flannel"] == program(size=700)
    (node.directory / "bridge").unlink()
    absent = node.call(archive=False, sources=sources)
    assert absent["findings"][0]["object"] == "cni-plugins-amd64"


@pytest.fixture
def cluster(tmp_path):
    found = kubectl_cluster.Cluster(tmp_path / "cluster.json")
    found.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
    return found


def test_tokens_are_created_once_and_waited_for(cluster):
    cluster.state(tokens={"a": "of a"})

    def sleep(_seconds):
        cluster.state(tokens={"a": "of a", "b": "of b"})
        cluster.client().run("get", "secrets")  # lets the token controller act

    found, changed = tokens.make("ns", ["b", "a"], cluster.client(), 9, lambda: 0, sleep)
    assert (found, changed) == ({"a": "of a", "b": "of b"}, True)
    assert [call[0] for call in cluster.calls() if "secrets" not in call] == ["get", "apply", "get", "get"]
    assert set(cluster.objects) == {"Namespace//ns", "Secret/ns/a-token", "Secret/ns/b-token"}
    assert tokens.make("ns", ["a"], cluster.client(), 9) == ({"a": "of a"}, False)


def test_an_answer_without_tokens_that_was_cut_off_does_not_mean_there_were_none(cluster):
    cluster.state(tokens={"a": "of a"})
    tokens.make("ns", ["a"], cluster.client(), 9)
    cluster.state(cut={"get": 1})
    assert tokens.make("ns", ["a"], cluster.client(), 9) == ({"a": "of a"}, False)
    cluster.state(cut={"get": 99})
    with pytest.raises(Refused, match="the answer broke off"):
        tokens.make("ns", ["a"], cluster.client(), 9)


def test_tokens_that_never_come_are_reported(cluster):
    times = iter([0, 1, 99])
    with pytest.raises(Refused, match="no token for a after 9 s"):
        tokens.make("ns", ["a"], cluster.client(), 9, lambda: next(times), lambda seconds: None)
    with pytest.raises(Refused, match='namespaces "nowhere" not found'):
        tokens.make("nowhere", ["a"], cluster.client(), 9)
