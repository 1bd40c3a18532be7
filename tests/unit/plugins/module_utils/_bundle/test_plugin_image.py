"""The device plugin's image: from a base and wheels, without running anything; bad input is refused."""

import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import plugin_image
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.tests.tools.base_images import SLIM, base_archive, layer

ROOT = pathlib.Path(__file__).resolve().parents[5]
REFERENCE = "localhost/rdma-device-plugin:0.1.0"
DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture
def parts(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheels = {}
    packed = {"grpc/__init__.py": "NAME = 'grpc'\n", "grpcio-1.dist-info/LICENSE": "free\n"}
    for name, files in (("grpcio", packed), ("pip", {"pip/__init__.py": ""})):
        path = folder / f"{name}-1-cp312-cp312-manylinux2014_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for inner, text in files.items():
                archive.writestr(inner, text)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        wheels[path.name] = {"name": name, "version": "1", "sha256": sha256}
    asked = []

    def fitting(python, machine):
        asked.append((python, machine))
        return wheels if python != "3.8" else {}

    main = b"import grpc\n\ndef main():\n    print(grpc.NAME)\n    return 0\n"
    code = {"rdma_device_plugin/__init__.py": b"", "rdma_device_plugin/__main__.py": main}
    return {"code": code, "wheel_dir": str(folder), "fitting": fitting, "asked": asked, "wheels": wheels}


def build(tmp_path, parts, *layers, architecture="amd64", out="image.tar", **options):
    base = base_archive(tmp_path / "base.tar", *(layers or (SLIM,)), architecture=architecture, **options)
    plugin_image.build(base, str(tmp_path / out), "example.org/python:3.12", REFERENCE, architecture, parts)
    return tmp_path / out


def read(path):
    """(manifest, config, {member: data})"""
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    (manifest,) = json.loads(files["manifest.json"])
    return manifest, json.loads(files[manifest["Config"]]), files


def unpacked(path, folder):
    manifest, _config, files = read(path)
    for name in manifest["Layers"]:
        with tarfile.open(fileobj=io.BytesIO(files[name])) as archive:
            # Debian 12's own Python has no filters yet; a later one warns without.
            archive.extractall(folder, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))
    return folder


def test_the_image_is_the_base_with_one_layer_more(tmp_path, parts):
    manifest, config, files = read(build(tmp_path, parts))
    assert (manifest["RepoTags"], parts["asked"]) == ([REFERENCE], [("3.12", "x86_64")])
    assert config["config"]["Entrypoint"] == ["/bin/k8s-rdma-shared-dp"]
    assert config["config"]["Env"] == ["PATH=/usr/local/bin:/usr/bin:/bin"]
    base, added = (files[name] for name in manifest["Layers"])
    assert base == layer(SLIM)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in (base, added)]


def test_the_program_runs_from_the_image(tmp_path, parts):
    """With the image's folders unpacked in a root and this Python instead of the base's."""
    root = unpacked(build(tmp_path, parts), tmp_path / "root")
    assert (root / "bin").is_symlink(), "the base's link to its folder of programs stays"
    program = root / "bin/k8s-rdma-shared-dp"
    assert program.stat().st_mode & 0o777 == 0o755
    script = program.read_text()
    assert script.startswith("#!/usr/local/bin/python3 -I\n")
    moved = script.replace('"/opt', f'"{root}/opt')
    done = subprocess.run([sys.executable, "-I", "-c", moved], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "grpc\n"), done.stderr
    lib = root / "opt/rdma-device-plugin/lib"
    assert not (lib / "pip").exists(), "nothing is installed in the image"
    assert (lib / "grpcio-1.dist-info/LICENSE").read_text() == "free\n"


def test_a_base_for_another_processor_is_given_its_wheels_or_refused(tmp_path, parts):
    arm = {name.replace("x86_64", "aarch64").replace("x86-64.so.2", "aarch64.so.1"): to for name, to in SLIM.items()}
    _manifest, config, _files = read(build(tmp_path, parts, arm, architecture="arm64"))
    assert (config["architecture"], parts["asked"]) == ("arm64", [("3.12", "aarch64")])
    with pytest.raises(Refused, match="linux/amd64"):
        plugin_image.build(str(tmp_path / "base.tar"), str(tmp_path / "x.tar"), "a:1", REFERENCE, "amd64", parts)


def without(*words):
    return {name: to for name, to in SLIM.items() if not any(word in name for word in words)}


NO_PYTHON = "python3 in /usr/local/bin or /usr/bin"
UNVERSIONED = {**without("python"), "usr/bin/python3": "python"}
OWN = {**without("python"), "usr/bin/python3": "-> python3.8", "usr/bin/python3.8": "python"}


@pytest.mark.parametrize(("files", "options", "wanted"), [
    pytest.param(without("python"), {}, NO_PYTHON, id="no python"),
    pytest.param(UNVERSIONED, {}, NO_PYTHON, id="a python without a version"),
    pytest.param(without("python3.12"), {}, NO_PYTHON, id="a link into nothing"),
    pytest.param(without("ld-linux"), {}, "ld-linux-x86-64.so.2", id="musl"),
    (without("libstdc"), {}, "libstdc++.so.6"),
    pytest.param(OWN, {}, "a Python that the lock has wheels for", id="an old python"),
    (SLIM, {"damaged": True}, f"layer {DIGEST}"),
])  # fmt: skip
def test_a_base_that_cannot_carry_the_plugin_is_refused_and_nothing_is_written(tmp_path, parts, files, options, wanted):
    with pytest.raises(Refused) as refused:
        build(tmp_path, parts, files, **options)
    (finding,) = refused.value.findings
    assert finding.object == "base image example.org/python:3.12"
    assert finding.wanted.startswith(wanted)
    assert "bundle_plugin_base" in finding.next_step
    assert not (tmp_path / "image.tar").exists()


def test_missing_and_altered_wheels_are_listed_together(tmp_path, parts):
    wheels = sorted(pathlib.Path(parts["wheel_dir"]).glob("grpcio*"))
    wheels[0].write_bytes(b"altered")
    parts["wheels"]["protobuf-1-py3-none-any.whl"] = {"name": "protobuf", "version": "1", "sha256": "0" * 64}
    with pytest.raises(Refused) as refused:
        build(tmp_path, parts)
    named = [finding.object.rpartition("/")[2] for finding in refused.value.findings]
    assert named == [wheels[0].name, "protobuf-1-py3-none-any.whl"]


def test_what_it_is_made_of_covers_the_plugin_and_its_wheels(tmp_path):
    members = plugin_image.code(str(ROOT))
    assert {"rdma_device_plugin/__main__.py", "rdma_device_plugin/hca/__init__.py"} <= set(members)
    more = ((members, []), ({**members, "rdma_device_plugin/new.py": b""}, []), (members, [{"name": "grpcio"}]))
    assert len({plugin_image.made_of(*one) for one in more}) == len(more)
    with pytest.raises(Refused, match="no Python files"):
        plugin_image.code(str(tmp_path))


LOCKED = {"reference": REFERENCE, "base": "docker.io/library/python:3", "digests": {"index": DIGEST}}


USERS = "registry.example.org:5000/debian:12"


@pytest.mark.parametrize(
    ("given", "base", "digest"),
    [(None, LOCKED["base"], DIGEST), (f"{USERS}@sha256:{'2' * 64}", USERS, f"sha256:{'2' * 64}")],
)
def test_the_base_is_the_locks_or_the_one_that_is_given_with_its_digest(given, base, digest):
    (row,) = bundle_lock.plugin_image(LOCKED, given, ["arm64"])
    assert (row["base"], row["digest"]) == (base, digest)
    assert row["path"] == "images/arm64/rdma-device-plugin-0.1.0.tar"


@pytest.mark.parametrize("base", ["registry.example.org/debian:12", "debian:12@sha256:12", "debian:12@", None])
def test_a_base_without_a_digest_is_refused(base):
    with pytest.raises(Refused, match="bundle_plugin_base" if base else "not verified"):
        bundle_lock.plugin_image({**LOCKED, "digests": {"index": DIGEST if base else None}}, base, ["amd64"])


def row(**changes):
    file = {"architecture": "amd64", "url": "https://example.org/k3s", "sha256": "0" * 64}
    return {"name": "k3s", "version": "v1", "kind": "binary", "used_by": "k3s", "files": [file], **changes}


IMAGE = {"name": "a", "version": "1", "used_by": "k3s", "reference": "b/a:1", "digests": {"amd64": DIGEST}}
NULL = {"architecture": "amd64", "url": "https://a/b", "sha256": None}


@pytest.mark.parametrize(("lock", "wanted"), [
    ({"artifacts": [row(files=[NULL])], "images": [IMAGE]}, None),  # null is no fault
    ({"origin": "mine"}, "lock: origin"),
    ({"artifacts": {"k3s": {}}}, "lock: artifacts"),
    ({"artifacts": [row(version=None)]}, "lock: artifacts, k3s"),
    ({"images": [{**IMAGE, "name": ""}]}, "lock: images, row 1"),
    ({"artifacts": [row(files=[{"architecture": "amd64", "sha256": None}])]}, "lock: artifacts, k3s"),
    ({"artifacts": [row(files=[{**NULL, "sha256": "12"}])]}, "lock: artifacts, k3s"),
    ({"images": [{**IMAGE, "digests": {"amd64": "0" * 64}}]}, "lock: images, a"),
    ({"images": [{**IMAGE, "digests": {"x86_64": DIGEST}}]}, "lock: images, a"),
    ({"artifacts": [row(version=1.35)]}, "lock: artifacts, k3s"),
    ({"artifacts": [row(files=[{**NULL, "url": None}])]}, "lock: artifacts, k3s"),
])  # fmt: skip
def test_a_lock_that_cannot_be_used_is_refused(lock, wanted):
    found = bundle_lock.malformed(lock)
    assert [finding.object for finding in found] == ([wanted] if wanted else [])
    assert all("bundle_lock" in finding.next_step for finding in found)
