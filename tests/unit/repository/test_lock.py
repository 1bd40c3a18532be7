"""lock/artifacts.yml: the one list of downloads. Each row is pinned, and a careless one is refused."""

from __future__ import annotations

import copy
import json
import pathlib
import re

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_repository
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCK = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
COMPILED = ("grpcio-", "pyyaml-")
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "lock/artifacts.schema.json").read_text()))


def errors(lock):
    return [error.message for error in VALIDATOR.iter_errors(lock)]


def test_the_lock_file_follows_its_schema():
    assert errors(LOCK) == []


def test_each_file_has_one_row_and_its_url_names_the_version():
    rows = [
        (artifact["name"], artifact["version"], file["architecture"], file.get("distribution"), file["url"])
        for artifact in LOCK["artifacts"]
        for file in artifact["files"]
    ]
    keys = [row[:4] for row in rows]
    assert len(keys) == len(set(keys))
    for name, version, _architecture, _distribution, url in rows:
        assert version.lstrip("v").replace("+", "%2B") in url, f"{name}: {url} does not name {version}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "b98f74"),
        ("sha256", "B98F74A0F8522F0A83867178729C1AA70F2158F90C45A2CA8FA791DB1C76B303"),
        ("url", "http://github.com/x/v1.9.1.tgz"),
        ("architecture", "x86_64"),
    ],
)
def test_a_row_that_pins_nothing_is_refused(field, value):
    lock = copy.deepcopy(LOCK)
    lock["artifacts"][0]["files"][0][field] = value
    assert errors(lock)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stated_by", ["https://github.com/Azure/AgentBaker/pull/9256"]),
        ("fingerprint", "70454E6B"),
        ("id", None),
        ("id", "DC726C5E"),
    ],
)
def test_a_key_that_is_trusted_has_two_sources(field, value):
    lock = copy.deepcopy(LOCK)
    key = next(key for row in lock["repositories"] for key in row["keys"] if key["fingerprint"])
    key[field] = value
    assert errors(lock)


def test_two_sources_of_a_key_are_two_projects_and_its_id_ends_its_fingerprint():
    trusted = [key for row in LOCK["repositories"] for key in row["keys"] if key["fingerprint"]]
    assert trusted
    for key in trusted:
        assert len({"/".join(source.split("/")[3:5]) for source in key["stated_by"]}) >= 2
        assert key["fingerprint"].endswith(key["id"])


def test_each_platform_has_one_row_a_release():
    places = [
        (row["name"], row["version"], row["kind"], place["distribution"], place["architecture"])
        for row in LOCK["repositories"]
        for place in row["places"]
    ]
    assert len(places) == len(set(places))
    for row in LOCK["repositories"]:
        assert all(f"/{row['version']}/" in place["url"] for place in row["places"])


def test_the_default_release_of_the_driver_has_a_verified_key():
    (version,) = re.findall(r'^driver_version: "(.+)"$', (ROOT / "roles/driver/defaults/main.yml").read_text(), re.M)
    node = {"os": {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]}, "architecture": "x86_64"}
    assert driver_repository(LOCK, node, "doca", version)["fingerprints"]


@pytest.mark.parametrize("version", ["latest", "master"])
def test_a_moving_version_is_refused(version):
    lock = copy.deepcopy(LOCK)
    lock["artifacts"][0]["version"] = version
    assert errors(lock)


def test_each_wheel_is_named_by_its_package_and_version_and_is_what_the_plugin_requires():
    files = [entry["file"] for wheel in LOCK["wheels"] for entry in wheel["files"]]
    assert len(files) == len(set(files))
    for wheel in LOCK["wheels"]:
        for entry in wheel["files"]:
            assert entry["file"].startswith(f"{wheel['name']}-{wheel['version']}-")
    required = (ROOT / "device_plugin/requirements.txt").read_text().splitlines()
    locked = {f"{wheel['name']}=={wheel['version']}" for wheel in LOCK["wheels"] if wheel["name"] != "pip"}
    assert locked == {line for line in required if line and not line.startswith("#")}


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_each_python_of_a_supported_distribution_has_a_compiled_wheel(architecture):
    """RHEL 9: 3.9; Ubuntu 22.04: 3.10; Debian 12: 3.11; Ubuntu 24.04 and RHEL 10: 3.12; Debian 13: 3.13; and 3.14"""
    for prefix in COMPILED:
        tags = {file.split("-")[2] for file in _files() if file.startswith(prefix) and architecture in file}
        assert tags == {f"cp3{minor}" for minor in range(9, 15)}, prefix


def test_a_bundle_has_the_wheels_of_every_python_that_the_lock_has_wheels_for():
    """A node with a newer Python would otherwise find that out when its plugin is installed, without a network."""
    tasks = (ROOT / "playbooks/bundle.yml").read_text()
    (default,) = re.findall(r"bundle_pythons \| default\((\[[^]]*\])\)", tasks)
    locked = {tag.groups() for file in _files("grpcio") if (tag := re.search(r"-cp(\d)(\d+)-", file))}
    assert set(yaml.safe_load(default)) == {f"{major}.{minor}" for major, minor in locked}
    # What has no wheel of its own for a Python has one for all of them.
    assert all("-abi3-" in file or "-none-any." in file for file in _files() if not file.startswith(COMPILED))


def _files(name: str = "") -> list[str]:
    return [entry["file"] for wheel in LOCK["wheels"] if name in ("", wheel["name"]) for entry in wheel["files"]]


@pytest.mark.parametrize(("field", "value"), [("sha256", "b98f74"), ("file", "grpcio-1.80.1.tar.gz"), ("file", "../x")])
def test_a_wheel_that_pins_nothing_is_refused(field, value):
    lock = copy.deepcopy(LOCK)
    lock["wheels"][0]["files"][0][field] = value
    assert errors(lock)


def test_an_image_reference_names_its_version_and_is_listed_once():
    references = [image["reference"] for image in LOCK["images"]]
    assert len(references) == len(set(references))
    for image in LOCK["images"]:
        assert image["version"] in image["reference"].rpartition(":")[2]


@pytest.mark.parametrize(
    "digests", [{}, {"index": "sha256:b98f74"}, {"x86_64": f"sha256:{'0' * 64}"}, {"index": "latest"}]
)
def test_an_image_that_pins_nothing_is_refused(digests):
    lock = copy.deepcopy(LOCK)
    lock["images"][0]["digests"] = digests
    assert errors(lock)


def test_a_sum_that_could_not_be_had_may_stand_as_null_and_never_passes():
    """Null is explicit, not guessed; what uses it is refused where a bundle is filled and where one is read."""
    lock = copy.deepcopy(LOCK)
    lock["artifacts"][0]["files"][0]["sha256"] = None
    lock["images"][0]["digests"] = {"index": None}
    assert errors(lock) == []
    known = {finding.object for finding in bundle_lock.unpinned(LOCK, names=None)}
    refused = [finding for finding in bundle_lock.unpinned(lock, names=None) if finding.object not in known]
    assert [finding.object for finding in refused] == [
        f"{lock['artifacts'][0]['name']} {lock['artifacts'][0]['version']} (amd64)",
        f"image {lock['images'][0]['reference']}",
    ]
    described = {"schema": 1, "origin": "release", "files": [{**BUNDLED, "sha256": None}], "images": []}
    assert "no sha256" in bundle_folder.findings(described)[0].seen


BUNDLED = {"name": "k3s", "version": "v1.35.8+k3s1", "architecture": "amd64", "path": "k3s", "sha256": "0" * 64}
