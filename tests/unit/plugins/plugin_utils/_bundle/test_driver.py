"""Where the driver comes from, and a bundle that lacks it."""

from __future__ import annotations

import io
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.gpufabric.rdma.plugins.filter.driver_package import driver_package
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import driver

NODE = {"os": {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]}, "architecture": "x86_64"}
GIVEN = {
    "driver_flavor": "doca", "driver_version": "3.2.3", "driver_source": "auto", "driver_repository_url": "",
    "driver_host_package": "", "k3s_bundle_dir": "/srv/bundle",
}  # fmt: skip
ROW = {
    "name": "doca-host",
    "version": "3.2.3",
    "distribution": "ubuntu24.04",
    "architecture": "amd64",
    "path": "files/amd64/doca-host.deb",
    "sha256": "1" * 64,
}
K3S = {"name": "k3s", "version": "v1", "architecture": "arm64", "path": "k3s", "sha256": "1" * 64}


def bundle(*rows):
    return {"schema": 1, "origin": "release", "files": list(rows), "images": []}


@pytest.mark.parametrize(("options", "answer"), [
    ({}, True),
    ({"k3s_bundle_dir": None}, False),
    ({"k3s_bundle_dir": None, "driver_source": "bundle"}, True),
    ({"driver_repository_url": "https://mirror.example.net/doca/"}, False),
    ({"driver_repository_url": "https://mirror.example.net/doca/", "driver_source": "bundle"}, True),
    ({"driver_host_package": "/srv/doca-host.deb"}, False),
    ({"driver_source": "repository"}, False),
    ({"driver_flavor": "mlnx_ofed"}, False),
    ({"driver_flavor": "inbox"}, False),
])  # fmt: skip
def test_the_driver_comes_from_the_bundle_unless_another_place_is_given(options, answer):
    assert driver.from_bundle({**GIVEN, **options}) is answer


def test_a_bundle_that_has_it_is_taken(tmp_path):
    assert driver.findings(GIVEN, NODE, bundle(K3S, ROW)) == []
    (tmp_path / "bundle.yml").write_text(json.dumps(bundle(K3S, ROW)))
    taken = {"path": f"{tmp_path}/{ROW['path']}", "sha256": ROW["sha256"]}
    assert driver_package(str(tmp_path), {"node": NODE}, "3.2.3") == taken
    assert driver_package(str(tmp_path), {"node": NODE}, "3.2.1") == driver_package(None, NODE, "3.2.3") == {}


@pytest.mark.parametrize(("described", "seen"), [
    (bundle(K3S), "no driver"),
    (bundle(K3S, {**ROW, "version": "3.2.1"}), "doca-host 3.2.1 for ubuntu24.04 amd64"),
    (bundle(K3S, {**ROW, "distribution": "rhel9"}), "doca-host 3.2.3 for rhel9 amd64"),
    (None, "no bundle.yml that can be read"),
])  # fmt: skip
def test_a_bundle_that_lacks_it_is_refused_with_the_command_that_adds_it(described, seen):
    (finding,) = driver.findings(GIVEN, NODE, described)
    assert finding.wanted == "doca-host 3.2.3 for ubuntu24.04 amd64"
    assert finding.seen == seen
    words = shlex.split(finding.next_step.partition(": ")[2].partition(";")[0])
    assert words[:4] == ["ansible-playbook", "gpufabric.rdma.bundle", "-e", "bundle_dir=/srv/bundle"]
    assert "bundle_driver_version=3.2.3" in words
    lists = json.loads(words[-1])
    assert "ubuntu24.04" in lists["bundle_distributions"]
    # What is in the folder already stays in it.
    assert lists["bundle_architectures"] == (["amd64", "arm64"] if described else ["amd64"])


def test_a_bundle_that_is_asked_for_has_to_be_named():
    (finding,) = driver.findings({**GIVEN, "driver_source": "bundle", "k3s_bundle_dir": None}, NODE, None)
    assert finding.object == "variable driver_source"


# The device plugin's code.


ROOT = pathlib.Path(__file__).resolve().parents[5]


def run(path, *arguments):
    command = [sys.executable, "-I", "-B", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_same_sources_make_the_same_bytes_whatever_their_dates_are(tmp_path):
    for name in ("device_plugin/rdma_device_plugin", "plugins/module_utils/hca"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
        )
    assert code.archive(tmp_path) == code.archive(ROOT)
    members = zipfile.ZipFile(io.BytesIO(code.archive(ROOT))).infolist()
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    assert [member.filename for member in members] == sorted(member.filename for member in members)


def test_the_code_file_runs_and_carries_the_library(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    assert run(tmp_path / "plugin.pyz", "-version").stdout.startswith("k8s-rdma-shared-dev-plugin version:")
    names = zipfile.ZipFile(tmp_path / "plugin.pyz").namelist()
    assert {"rdma_device_plugin/hca/rails.py", "rdma_device_plugin/config.schema.json"} <= set(names)


def test_an_incomplete_collection_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="not complete"):
        code.archive(tmp_path)


def test_byte_code_stands_beside_each_source_and_is_what_runs(tmp_path):
    (tmp_path / "source.pyz").write_bytes(code.archive(ROOT))
    node._compiled(str(tmp_path / "source.pyz"), str(tmp_path / "plugin.pyz"))
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive:
        names = archive.namelist()
    sources = [name for name in names if name.endswith(".py")]
    assert len(sources) > 20
    assert {f"{name}c" for name in sources} <= set(names)
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive, zipfile.ZipFile(tmp_path / "blind.pyz", "w") as blind:
        for name in names:
            blind.writestr(name, b"raise SystemExit(9)" if name.endswith(".py") else archive.read(name))
    assert run(tmp_path / "blind.pyz", "-version").returncode == 0
