"""A bundle that lacks anything for a role is refused with the command that adds it; and the plugin's code."""

import copy
import io
import itertools
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.action.cluster_objects import by_digest
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_package
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node as plugin_node
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels as wheels_of
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import driver
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import bundle as needs
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import k3s
from ansible_collections.gpufabric.rdma.tests.tools import rendering
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils import test_k3s as machines

ROOT = bundle_folder.LOCK.parents[1]
ROLES = ROOT / "roles"
LOCK = yaml.safe_load(bundle_folder.LOCK.read_text())
PINNED = needs.with_digest(LOCK)
IMAGES = yaml.safe_load((ROLES / "networks/vars/main.yml").read_text())["__networks_pinned_images"]
BASE = [
    yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())[f"{role}_image"] for role in ("flannel", "multus")
]
DIGESTS = {image["reference"]: "sha256:" + "1" * 64 for image in LOCK["images"]}
CLUSTER = ("cni_plugins", "k3s", "flannel", "multus", "networks")
WHERE = "/srv/bundle"


def full(architectures):
    """A bundle with everything in the lock that the cluster's roles use."""
    rows = [*LOCK["artifacts"], *LOCK["images"]]
    names = {row["name"] for row in rows if row["used_by"] in CLUSTER}
    wanted = bundle_lock.wanted(LOCK, names, architectures, ["rhel9"], DIGESTS)
    return bundle_lock.describe("release", wanted["files"], [{**row, "sha256": "0" * 64} for row in wanted["images"]])


def node(architecture, components=(), pulled=False, selinux=False, python="3.11", wheels=""):
    seen = {"architecture": architecture, "python": python}
    if selinux:
        seen.update(family="rhel", distribution="rhel9", selinux="enforcing")
    plugins = ["loopback", "bridge", "host-local", "portmap", "flannel"]
    images = [*BASE, *(IMAGES[name] for name in components)]
    wanted = {"plugins": plugins, "images": images, "pulled": pulled, "wheels": wheels}
    return {**machines.node(seen=seen), "needs": wanted}


@pytest.mark.parametrize("content", [None, b"a: [", b"a: \xff", b"- a", b""])
def test_a_lock_of_the_user_that_is_none_is_refused_by_its_path(tmp_path, content):
    path = tmp_path / "lock.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=f"bundle_lock {path}"):
        bundle_folder.own_lock(str(path))


def steps(made, bundle):
    """Next steps of the findings of k3s' own preflight about the bundle, and of the others."""
    decided = k3s.decide([made], bundle, WHERE)["findings"]
    own = [item["next_step"] for item in decided if item["object"].startswith("bundle ")]
    return [*own, *(finding.next_step for finding in needs.lacking(made, bundle, WHERE, PINNED))]


def without(bundle, kind, row):
    return {**bundle, kind: [other for other in bundle[kind] if other is not row]}


def taken(made, row):
    """Whether this node needs this row, written independently: by the row's user in the lock."""
    if row.get("architecture", "any") not in (made["state"]["architecture"], "any"):
        return False
    name = row.get("name") or row["reference"]
    if name == "k3s-selinux":
        return made["state"]["selinux"] == "enforcing"
    if "reference" not in row or name.startswith("k3s-airgap-images:"):
        return True
    return name in made["needs"]["images"] or "/flannel-cni-plugin:" in name


COMPONENTS = ((), ("nv-ipam",), ("whereabouts", "ib-sriov-cni"), tuple(IMAGES))
NODES = list(itertools.product(("amd64", "arm64"), COMPONENTS, (False, True)))


@pytest.mark.parametrize(("architecture", "components", "selinux"), NODES)
def test_each_row_that_a_node_takes_is_missed_and_no_other(architecture, components, selinux):
    made, bundle = node(architecture, components, selinux=selinux), full(["amd64", "arm64"])
    assert steps(made, bundle) == []
    missed = 0
    for kind in ("files", "images"):
        for row in bundle[kind]:
            said = steps(made, without(bundle, kind, row))
            assert bool(said) is taken(made, row), row
            missed += bool(said)
            for step in said:
                assert_command(step, "rhel9" if row.get("distribution") else None)
    assert missed >= 6 + len(components)


def command(step):
    """The variables of the command in a next step; it is made of valid shell words."""
    words = shlex.split(re.search(r"ansible-playbook .*?'\{.*?\}'(?=[, ])", step)[0])
    assert words[:4] == ["ansible-playbook", "gpufabric.rdma.bundle", "-e", f"bundle_dir={WHERE}"]
    return json.loads(words[5])


def assert_command(step, distribution):
    """The command is complete: options of the playbook, and it adds without removing."""
    given = command(step)
    assert given["bundle_architectures"] == ["amd64", "arm64"], "what the bundle holds stays in it"
    playbook = (ROOT / "playbooks/bundle.yml").read_text()
    assert all(name in playbook for name in given)
    assert distribution is None or distribution in given["bundle_distributions"]


def test_an_image_that_no_node_may_pull_is_asked_for_with_its_digest_if_the_lock_has_none():
    bundle, reference = full(["amd64"]), IMAGES["whereabouts"]
    short = without(bundle, "images", next(row for row in bundle["images"] if row["reference"] == reference))
    (step,) = steps(node("amd64", ("whereabouts",)), short)
    assert f'"bundle_image_digests": {{"{reference}": "sha256:…"}}' in step
    assert steps(node("amd64", ("whereabouts",), pulled=True), short) == [], "the nodes pull it"


@pytest.mark.parametrize(("python", "architecture"), [("3.9", "amd64"), ("3.11", "arm64"), ("3.14", "amd64")])
def test_each_wheel_that_a_nodes_python_takes_is_missed_and_no_other(python, architecture):
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    every = {entry["file"] for wheel in LOCK["wheels"] for entry in wheel["files"]}
    taken_here = wheels_of.fitting(LOCK["wheels"], python, machine)
    assert sorted(wheel["name"] for wheel in taken_here.values()) == sorted(wheel["name"] for wheel in LOCK["wheels"])
    assert wheels_of.without(LOCK["wheels"], python, machine) == []
    assert all(machine in file or file.endswith("-any.whl") for file in taken_here)
    made = node(architecture, python=python, wheels="/srv/wheels")
    assert needs.lacking_wheels(made, every, LOCK["wheels"]) == []
    for name in every:
        said = needs.lacking_wheels(made, every - {name}, LOCK["wheels"])
        assert bool(said) is (name in taken_here)
        assert all(f'"bundle_pythons": ["{python}"]' in finding.next_step for finding in said)
    assert needs.lacking_wheels(node(architecture, python=python), set(), LOCK["wheels"]) == [], "pip has an index"


# --- images that nodes pull are named by the lock's digest, those of the bundle by the tag they are imported under ----

INDEXES = {image["reference"]: image["digests"].get("index") for image in LOCK["images"]}


def images_of(objects):
    pods = [rendering.pod_of(item) for item in objects if item["kind"] in rendering.WORKLOADS]
    return {one["image"] for pod in pods for one in [*pod["containers"], *pod.get("initContainers", ())]}


@pytest.fixture(scope="module")
def objects():
    found = [item for items in rendering.by_source().values() for item in items if item.get("metadata")]
    return [item for item in found if item["kind"] not in rendering.WORKLOADS or "selector" in item["spec"]]


def test_every_image_that_the_lock_has_a_digest_for_is_pulled_by_it(objects):
    before = copy.deepcopy(objects)
    made = images_of(by_digest(objects, None))
    assert objects == before, "the input is the caller's"
    wanted = {name: INDEXES.get(name) for name in images_of(objects)}
    assert made == {f"{name}@{digest}" if digest else name for name, digest in wanted.items()}
    # Not verified: images without a public digest, and our plugin, which is built, not pulled.
    assert {name for name, digest in wanted.items() if not digest} == {
        "ghcr.io/k8snetworkplumbingwg/ib-sriov-cni:v1.3.0",
        "ghcr.io/k8snetworkplumbingwg/whereabouts:v0.9.3",
        "localhost/rdma-device-plugin:0.1.0",
    }


def test_an_image_that_the_bundle_brings_keeps_its_tag(objects, tmp_path):
    flannel = next(image["reference"] for image in LOCK["images"] if image["name"] == "flannel")
    described = {"schema": 1, "origin": "release", "files": [], "images": [{"reference": flannel, "path": "x"}]}
    (tmp_path / "bundle.yml").write_text(yaml.safe_dump(described))
    made = images_of(by_digest(objects, str(tmp_path)))
    assert flannel in made
    assert f"{flannel}@{INDEXES[flannel]}" not in made
    assert sum("@" in name for name in made) == sum(bool(INDEXES.get(name)) for name in images_of(objects)) - 1


@pytest.mark.parametrize("text", [None, "images: [", "images: [x]", "files: {path: x}", "files: [{path: 1}]"])
def test_a_bundle_that_cannot_be_read_brings_nothing(objects, tmp_path, text):
    if text is not None:
        (tmp_path / "bundle.yml").write_text(text)
    assert by_digest(objects, str(tmp_path)) == by_digest(objects, None)


def test_an_image_of_the_user_s_own_stays_as_it_is():
    own = ["registry.example.com/flannel:v0.28.9", "ghcr.io/flannel-io/flannel:v0.28.9@sha256:" + "0" * 64]
    pod = {"containers": [{"name": str(place), "image": name} for place, name in enumerate(own)]}
    item = {"kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"template": {"spec": pod}}}
    assert images_of(by_digest([item], None)) == set(own)


# --- the driver -------------------------------------------------------------------------------------------------------

UBUNTU = {"os": {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]}, "architecture": "x86_64"}
GIVEN = {
    "driver_flavor": "doca", "driver_version": "3.2.3", "driver_source": "auto", "driver_repository_url": "",
    "driver_host_package": "", "k3s_bundle_dir": WHERE,
}  # fmt: skip
ROW = {
    "name": "doca-host", "version": "3.2.3", "distribution": "ubuntu24.04", "architecture": "amd64",
    "path": "files/amd64/doca-host.deb", "sha256": "1" * 64,
}  # fmt: skip
K3S = {"name": "k3s", "version": "v1", "architecture": "arm64", "path": "k3s", "sha256": "1" * 64}


def bundle_of(*rows):
    return {"schema": 1, "origin": "release", "files": list(rows), "images": []}


def test_a_bundle_that_has_it_is_taken(tmp_path):
    assert driver.from_bundle(GIVEN)
    for elsewhere in ({"k3s_bundle_dir": driver.bundle_folder.cache()}, {"driver_flavor": "mlnx_ofed"}):
        assert not driver.from_bundle({**GIVEN, **elsewhere})
    for version in ("3.2.3", None):
        assert driver.findings({**GIVEN, "driver_version": version}, UBUNTU, bundle_of(K3S, ROW), RELEASES) == []
    (tmp_path / "bundle.yml").write_text(json.dumps(bundle_of(K3S, ROW)))
    package = {"path": f"{tmp_path}/{ROW['path']}", "sha256": ROW["sha256"]}
    assert driver_package(str(tmp_path), {"node": UBUNTU}, "3.2.3") == package
    assert driver_package(str(tmp_path), {"node": UBUNTU}, "3.2.1") == driver_package(None, UBUNTU, "3.2.3") == {}


@pytest.mark.parametrize(("described", "seen"), [
    (bundle_of(K3S), "no driver"),
    (bundle_of(K3S, {**ROW, "version": "3.2.1"}), "doca-host 3.2.1 for ubuntu24.04 amd64"),
    (None, "no readable bundle.yml"),
])  # fmt: skip
def test_a_bundle_that_lacks_it_is_refused_with_the_command_that_adds_it(described, seen):
    (finding,) = driver.findings(GIVEN, UBUNTU, described, RELEASES)
    assert (finding.wanted, finding.seen) == ("doca-host 3.2.3 for ubuntu24.04 amd64", seen)
    given = command(finding.next_step)
    assert (given["bundle_driver_version"], given["bundle_distributions"]) == ("3.2.3", ["ubuntu24.04"])
    # Existing content of the folder stays.
    assert given["bundle_architectures"] == (["amd64", "arm64"] if described else ["amd64"])
    unnamed = {**GIVEN, "driver_source": "bundle", "k3s_bundle_dir": None}
    assert driver.findings(unnamed, UBUNTU, None, RELEASES)[0].object == "variable driver_source"


def offer(version, key, *distributions, kind="apt"):
    places = [{"distribution": name, "architecture": "amd64"} for name in distributions]
    return {"name": "doca", "version": version, "kind": kind, "keys": [{"fingerprint": key}], "places": places}


RELEASES = {
    "repositories": [
        offer("3.10.0", "AB", "ubuntu24.04"),
        offer("3.9.0", "AB", "ubuntu24.04", "ubuntu22.04"),
        offer("3.11.0", None, "ubuntu24.04", "debian13"),
        offer("3.12.0", "AB", "ubuntu24.04", kind="dnf"),
        offer("3.2.0", None, "debian13"),
    ],
    "artifacts": [
        {"name": "doca-host", "version": version, "files": [{"distribution": "ubuntu24.04", "architecture": "amd64"}]}
        for version in ("3.8.0", "3.7.0")
    ],
}


@pytest.mark.parametrize(("system", "version", "bundle", "expected"), [
    ("ubuntu", "24.04", None, "3.10.0"),
    ("ubuntu", "22.04", None, "3.9.0"),
    ("debian", "13", None, "3.11.0"),
    ("debian", "12", None, "3.12.0"),
    ("ubuntu", "24.04", bundle_of(K3S, ROW, {**ROW, "version": "3.2.10"}), "3.2.10"),
    ("ubuntu", "24.04", bundle_of(K3S), "3.8.0"),
    ("debian", "13", {}, "3.11.0"),
])  # fmt: skip
def test_no_version_is_the_newest_that_can_be_checked_on_the_platform(system, version, bundle, expected):
    node = {"os": {"id": system, "version_id": version, "like": ["debian"]}, "architecture": "x86_64"}
    for given in (None, ""):
        assert driver.release(given, RELEASES, node, "doca", bundle) == expected
    assert driver.release("3.1.0", RELEASES, node, "doca", bundle) == "3.1.0"


# --- the device plugin's code -----------------------------------------------------------------------------------------


def version_of(path: pathlib.Path):
    command = [sys.executable, "-I", "-B", str(path), "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_same_sources_make_the_same_bytes_whatever_their_dates_are(tmp_path):
    for name in ("device_plugin/rdma_device_plugin", "plugins/module_utils/hca"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored, copy_function=shutil.copyfile)
    assert code.archive(tmp_path) == code.archive(ROOT)
    members = zipfile.ZipFile(io.BytesIO(code.archive(ROOT))).infolist()
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    assert [member.filename for member in members] == sorted(member.filename for member in members)
    with pytest.raises(Refused, match="it is incomplete"):
        code.archive(tmp_path / "plugins")


def test_the_code_runs_with_the_library_and_byte_code_of_each_source_is_what_runs(tmp_path):
    source = tmp_path / "source.pyz"
    source.write_bytes(code.archive(ROOT))
    assert version_of(source).stdout.startswith("k8s-rdma-shared-dev-plugin version:")
    plugin_node._compiled(str(source), str(tmp_path / "plugin.pyz"))
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive, zipfile.ZipFile(tmp_path / "blind.pyz", "w") as blind:
        names = set(archive.namelist())
        for name in names:
            blind.writestr(name, b"raise SystemExit(9)" if name.endswith(".py") else archive.read(name))
    assert {"rdma_device_plugin/hca/rails.py", "rdma_device_plugin/config.schema.json"} <= names
    sources = {name for name in names if name.endswith(".py")}
    assert len(sources) > 20
    assert {f"{name}c" for name in sources} <= names
    assert version_of(tmp_path / "blind.pyz").returncode == 0
