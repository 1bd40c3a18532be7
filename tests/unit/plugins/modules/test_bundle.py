"""bundle, run by Ansible, against a mirror on loopback and a double of skopeo; the rules of a bundle folder."""

import contextlib
import functools
import gzip
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import threading
import zipfile
from unittest import mock

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import download
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.modules import bundle
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.tests.tools import running
from ansible_collections.gpufabric.rdma.tests.tools.base_images import SLIM, base_archive, layer

STATED = {"sha256": "2" * 64, "by": "https://github.com/Azure/azhpc-images"}
DIGEST = f"sha256:{'1' * 64}"
SKOPEO = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
for word; do
  case $word in
    docker-archive:*:*python*) file=${word#docker-archive:}; cp "$(dirname "$0")/base.tar" "${file%%:*}";;
    docker-archive:*) file=${word#docker-archive:}; echo image > "${file%%:*}";;
  esac
done
"""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; those of its registry need the anonymous token."""

    field = "token"

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        if self.path.startswith("/v2/") and self.headers["Authorization"] != "Bearer given":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="here",scope="repository:x:pull"')
            self.end_headers()
        elif self.path == "/token?service=here&scope=repository%3Ax%3Apull":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({self.field: "given"}).encode())
        else:
            super().do_GET()


@contextlib.contextmanager
def serving(folder: pathlib.Path):
    """The address of a server of this new folder, until the block ends."""
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def push(folder: pathlib.Path, repository: str, file: str, content: bytes) -> str:
    """Digest of the index of an image with one file, in the folder of a server."""

    def put(kind: str, data: bytes) -> dict:
        digest = f"sha256:{sha256(data)}"
        path = folder / "v2" / repository / kind / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"digest": digest}

    layers = [put("blobs", gzip.compress(layer({f"./{file}": content}))), put("blobs", b"\0" * 10240)]
    manifest = put("manifests", json.dumps({"layers": layers}).encode())
    of_other = {**put("manifests", b"{}"), "platform": {"os": "linux", "architecture": "arm64"}}
    rows = [of_other, {**manifest, "platform": {"os": "linux", "architecture": "amd64"}}]
    return put("manifests", json.dumps({"manifests": rows}).encode())["digest"]


@pytest.fixture
def mirror(tmp_path):
    with serving(tmp_path / "mirror") as address:
        yield tmp_path / "mirror", address


def lock(content=b"k3s", digest=DIGEST):
    def artifact(name, kind, used_by, *files):
        rows = [
            {"architecture": architecture, "url": f"https://example.org/v1/{file}", "sha256": sha256(data)}
            for architecture, file, data in files
        ]
        return {"name": name, "version": "v1", "kind": kind, "used_by": used_by, "files": rows}

    images = (("amd64", "images.tar.zst", b"images"), ("arm64", "images-arm64.tar.zst", b"arm"))
    flannel = {"name": "flannel", "version": "v2", "used_by": "flannel", "reference": "ghcr.io/f/flannel:v2"}
    return {
        "artifacts": [
            artifact("k3s", "binary", "k3s", ("amd64", "k3s", content)),
            artifact("k3s-airgap-images", "image_archive", "k3s", *images),
            artifact("doca", "package", "driver", ("any", "d", b"")),
        ],
        "images": [{**flannel, "digests": {"index": digest}}],
    }


@pytest.fixture
def fill(tmp_path, mirror, script):
    folder, address = mirror
    (folder / "v1").mkdir()
    for name, data in (("k3s", b"k3s"), ("images.tar.zst", b"images")):
        (folder / "v1" / name).write_bytes(data)
    tools = pathlib.Path(script("tools/skopeo", SKOPEO)).parent

    def run(check=False, path=f"{tools}:{os.environ['PATH']}", **options):
        given = {"folder": str(tmp_path / "bundle"), "lock": lock(), "mirrors": {"https://example.org": address}}
        return running.module(bundle, check, path=path, **{**given, **options})

    run.folder, run.tools = tmp_path / "bundle", tools
    return run


def test_a_folder_is_filled_described_and_left_alone_the_second_time(fill):
    checked = fill(check=True)
    assert not fill.folder.exists()
    done = fill()
    assert [change["object"] for change in checked["changes"]] == [change["object"] for change in done["changes"]][:-1]
    described = yaml.safe_load((fill.folder / "bundle.yml").read_text())
    assert bundle_folder.findings(described) == []
    assert bundle_folder.damaged(str(fill.folder), [*described["files"], *described["images"]]) == []
    assert bundle_folder.file_for(described, "k3s", "amd64")["version"] == "v1"
    assert {row["reference"] for row in described["images"]} == {"k3s-airgap-images:v1", "ghcr.io/f/flannel:v2"}
    assert "doca" not in json.dumps(described)
    call = (fill.tools / "calls").read_text().split()
    assert {f"docker://ghcr.io/f/flannel@{DIGEST}", "--override-arch", "amd64"} <= set(call)
    again = fill()
    assert (again["changed"], again["changes"]) == (False, [])


def test_a_damaged_file_and_an_image_with_another_digest_are_fetched_again(fill):
    fill()
    (fill.folder / "files/amd64/k3s").write_text("swapped")
    (fill.folder / "images/amd64/flannel-v2.tar").write_text("swapped")
    done = fill()
    assert [change["object"] for change in done["changes"]][:2] == ["files/amd64/k3s", "images/amd64/flannel-v2.tar"]
    assert (fill.folder / "files/amd64/k3s").read_bytes() == b"k3s"


PROGRAM = {"names": ["k3s", "flannel"], "programs": {"flannel": "opt/flannel"}}


@pytest.mark.parametrize("field", ["token", "access_token"])
def test_a_program_of_an_image_is_read_from_the_registry_by_digest_without_skopeo(fill, mirror, monkeypatch, field):
    monkeypatch.setattr(Quiet, "field", field)
    folder, address = mirror
    digest = push(folder, "f/flannel", "opt/flannel", b"program")
    given = {**PROGRAM, "lock": lock(digest=digest), "mirrors": {"https://example.org": address, "ghcr.io": address}}
    fill(only="files/amd64/k3s", **given)
    assert not (fill.folder / "bundle.yml").exists()
    done = fill(only="files/amd64/flannel-v2", **given)
    assert [change["object"] for change in done["changes"]] == ["files/amd64/flannel-v2", "bundle.yml"]
    assert (fill.folder / "files/amd64/flannel-v2").read_bytes() == b"program"
    described = yaml.safe_load((fill.folder / "bundle.yml").read_text())
    assert bundle_folder.findings(described) == bundle_folder.damaged(str(fill.folder), described["files"]) == []
    assert (bundle_folder.file_for(described, "flannel", "amd64")["digest"], described["images"]) == (digest, [])
    assert not fill(**given)["changed"]
    assert not (fill.tools / "calls").exists()


@pytest.mark.parametrize("kind", ["manifests", "blobs"])
def test_what_a_registry_answers_under_another_digest_is_not_used(fill, mirror, kind):
    folder, address = mirror
    digest = push(folder, "f/flannel", "opt/flannel", b"program")
    for path in (folder / "v2/f/flannel" / kind).iterdir():
        path.write_bytes(path.read_bytes() + b" ")
    refused = fill(lock=lock(digest=digest), **{**PROGRAM, "names": ["flannel"]}, mirrors={"ghcr.io": address})
    assert (refused["failed"], "something alters it" in refused["msg"]) == (True, True)
    assert [path for path in fill.folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("get", [download.fetch, download.extract])
def test_an_answer_that_breaks_off_is_refused(tmp_path, get):
    opener = mock.Mock(side_effect=http.client.IncompleteRead(b""))
    row = dict.fromkeys(("path", "url", "reference", "digest", "architecture", "sha256"), "a")
    with pytest.raises(Refused):
        get(str(tmp_path), row, {}, opener)


def test_without_skopeo_nothing_is_downloaded_for_a_folder_with_images(fill):
    assert "program skopeo" in fill(path="/nowhere")["msg"]
    assert not fill.folder.exists()


OWN = lock()
OWN["artifacts"][0]["files"][0]["sha256"] = "12"


@pytest.mark.parametrize(("options", "thing"), [
    ({"lock": lock(content=b"the real one")}, "files/amd64/k3s"),
    ({"lock": lock(digest=None), "names": ["flannel"]}, "image ghcr.io/f/flannel:v2"),
    ({"lock": OWN}, "lock: artifacts, k3s"),
    ({"names": ["k3s-airgap-images"], "architectures": ["arm64"]}, "files/arm64/images-arm64.tar.zst"),
    ({"names": ["k33s"]}, "one of flannel, k3s, k3s-airgap-images"),
])  # fmt: skip
def test_what_cannot_be_fetched_or_checked_stops_and_is_not_kept(fill, options, thing):
    refused = fill(**options)
    assert (refused["failed"], thing in refused["msg"]) == (True, True)
    assert [path for path in pathlib.Path(fill.folder).rglob("*") if path.is_file()] == []


def test_an_image_without_a_digest_is_left_out_or_takes_a_given_one(fill):
    left = fill(lock={**lock(digest=None), "origin": "own"})
    assert [text.partition(" ")[0] for text in left["not_applied"]] == ["flannel"]
    assert yaml.safe_load((fill.folder / "bundle.yml").read_text())["origin"] == "own"
    assert fill(lock=lock(digest=None), names=["flannel"], image_digests={"ghcr.io/f/flannel:v2": DIGEST})["changed"]


ROOT = pathlib.Path(bundle.__file__).resolve().parents[2]
LOCKED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
IMAGE = "images/amd64/rdma-device-plugin-0.1.0.tar"


@pytest.fixture
def collection(fill, tmp_path):
    """A base for skopeo, wheels of the lock in the folder's place for them, and a plugin of one file."""
    base_archive(fill.tools / "base.tar", SLIM)
    (fill.folder / "wheels").mkdir(parents=True)
    wheel = fill.folder / "wheels/grpcio-1-cp312-cp312-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("grpc/__init__.py", "")
    for folder in ("device_plugin/rdma_device_plugin", "plugins/module_utils/hca"):
        (tmp_path / "collection" / folder).mkdir(parents=True)
        (tmp_path / "collection" / folder / "__init__.py").write_text("")
    file = {"file": wheel.name, "sha256": sha256(wheel.read_bytes())}
    return {
        "locked": LOCKED["plugin_image"],
        "wheels": [{"name": "grpcio", "version": "1", "files": [file]}],
        "collection": str(tmp_path / "collection"),
    }


def test_the_plugins_image_is_built_by_digest_described_and_left_alone_the_second_time(fill, collection):
    checked = fill(check=True, plugin_image=collection)
    assert [(change["object"], change["action"]) for change in checked["changes"]][-1] == (IMAGE, "build")
    fill(plugin_image=collection)
    digest = LOCKED["plugin_image"]["digests"]["index"]
    assert f"docker://docker.io/library/python@{digest}" in (fill.tools / "calls").read_text()
    described = yaml.safe_load((fill.folder / "bundle.yml").read_text())
    assert bundle_folder.findings(described) == bundle_folder.damaged(str(fill.folder), described["images"]) == []
    assert "localhost/rdma-device-plugin:0.1.0" in [row["reference"] for row in described["images"]]
    again = fill(plugin_image=collection)
    assert (again["changed"], again["changes"]) == (False, [])
    pathlib.Path(collection["collection"], "device_plugin/rdma_device_plugin/new.py").write_text("NEW = True\n")
    done = fill(plugin_image=collection)
    assert [change["object"] for change in done["changes"]] == [IMAGE, "bundle.yml"]


GOOD = {"name": "k3s", "version": "v1", "architecture": "amd64", "path": "files/k3s", "sha256": "0" * 64}


@pytest.mark.parametrize(("description", "wanted"), [
    ({"files": [GOOD]}, "schema 1"),
    ({"origin": "mine", "files": [GOOD]}, "origin release or own or testbed"),
    ({"files": [{**GOOD, "sha256": None}]}, "a sha256"),
    ({"files": [{**GOOD, "path": "../k3s"}]}, "a path inside"),
    ({"files": [{**GOOD, "architecture": "x86"}]}, "architecture"),
    ({"images": [{"reference": "a", "sha256": "0" * 64}]}, "path"),
])  # fmt: skip
def test_a_description_that_cannot_be_trusted_is_refused(description, wanted):
    known = {"schema": 1, "origin": "release"} if "schema" not in wanted else {}
    (finding,) = bundle_folder.findings({**known, **description} if description else description)
    assert wanted in finding.wanted


def test_a_missing_and_a_wrong_file_are_both_reported(tmp_path, put):
    put("files/k3s", "other")
    found = bundle_folder.damaged(str(tmp_path), [GOOD, {**GOOD, "path": "files/none"}])
    assert [finding.object for finding in found] == [f"{tmp_path}/files/k3s", f"{tmp_path}/files/none"]
    assert "No such file" in found[1].seen


def test_the_row_of_the_processor_comes_before_the_one_for_any():
    rows = [{**GOOD, "architecture": "any", "path": "a"}, GOOD, {**GOOD, "distribution": "rhel9", "path": "b"}]
    assert bundle_folder.file_for({"files": rows}, "k3s", "amd64")["path"] == "files/k3s"
    assert bundle_folder.file_for({"files": rows}, "k3s", "arm64")["path"] == "a"
    assert bundle_folder.file_for({"files": [rows[2]]}, "k3s", "amd64", "rhel9")["path"] == "b"
    assert bundle_folder.file_for({"files": [rows[2]]}, "k3s", "amd64", "debian12") is None
    assert "k3s for amd64" in bundle_folder.missing_file({"files": [GOOD]}, "k3s", "arm64", "/srv").seen


def driver_lock(data=b"deb"):
    known = (
        ("amd64", "ubuntu24.04", "_amd64.deb", {"sha256": sha256(data)}),
        ("arm64", "ubuntu24.04", "_arm64.deb", {"sha256": None}),
        ("amd64", "rhel9", ".x86_64.rpm", {"sha256": None, "stated": STATED}),
    )
    made, place = lock(), "https://example.org/3.2.3/doca-host_3.2.3-019000"
    rows = [{"architecture": arch, "distribution": name, "url": place + end, **sums} for arch, name, end, sums in known]
    row = {"name": "doca-host", "version": "3.2.3", "kind": "package", "used_by": "driver", "files": rows}
    made["artifacts"] += [row, {**row, "version": "3.2.1", "files": rows[:1]}]
    return made


def test_the_driver_is_in_the_folder_only_where_it_is_asked_for():
    plain = bundle_lock.wanted(driver_lock(), ["k3s"], ["amd64"], ["ubuntu24.04"])
    assert "doca-host" not in [row["name"] for row in plain["files"]]
    with_driver = bundle_lock.wanted(driver_lock(), ["k3s"], ["amd64"], ["ubuntu24.04"], None, "3.2.3")
    (row,) = [row for row in with_driver["files"] if row["name"] == "doca-host"]
    assert row["path"] == "files/amd64/doca-host_3.2.3-019000_amd64.deb"
    assert (row["version"], row["distribution"]) == ("3.2.3", "ubuntu24.04")


@pytest.mark.parametrize(("version", "architectures", "distributions", "sums", "says"), [
    ("", ["amd64"], [], {}, None),
    ("3.2.3", ["amd64"], ["ubuntu24.04"], {}, None),
    ("3.2.3", ["amd64"], [], {}, "bundle_distributions"),
    ("3.2.3", ["amd64"], ["debian12"], {}, "rhel9 amd64, ubuntu24.04 amd64, ubuntu24.04 arm64"),
    ("9.9.9", ["amd64"], ["ubuntu24.04"], {}, "no row of this release"),
    ("3.2.3", ["arm64"], ["ubuntu24.04"], {}, "bundle_sums: {doca-host_3.2.3-019000_arm64.deb: SHA256}"),
    ("3.2.3", ["amd64"], ["rhel9"], {}, f"one public source states {'2' * 64}: {STATED['by']}"),
    ("3.2.3", ["amd64"], ["rhel9"], {"doca-host_3.2.3-019000.x86_64.rpm": "2" * 64}, None),
])  # fmt: skip
def test_a_driver_that_cannot_be_fetched_is_named_with_what_would_help(
    version, architectures, distributions, sums, says
):
    found = bundle_lock.undrivable(driver_lock(), version, architectures, distributions, sums)
    assert [says in " ".join(finding) for finding in found] == ([] if says is None else [True])
