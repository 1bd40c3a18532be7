"""LAB_CLUSTER=mirror without a node: bundle.yml over a real registry gives the folder that the test bed makes.

Everything is real but what the test bed doubles: registry, https with an authority of its own, skopeo, Ansible.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import time

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import cni
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from lab import cluster, containers, mirror, programs, settings  # noqa: E402

PLUGIN = "localhost/rdma-device-plugin:0.1.0"
CONFIG = '{"configList": [{"resourceName": "a", "rdmaHcaMax": 63, "selectors": {"vendors": ["15b3"]}}]}'


def described(folder):
    return yaml.safe_load((folder / "bundle.yml").read_text())


def images(archive):
    """{reference: id} of a docker-archive; the id is the digest of the image's configuration, layers included."""
    if archive.suffix == ".zst":
        plain = archive.with_suffix("")
        subprocess.run(["zstd", "-dqf", archive, "-o", plain], check=True)
        archive = plain
    with tarfile.open(archive) as files:
        return {
            tag: hashlib.sha256(files.extractfile(one["Config"]).read()).hexdigest()
            for one in json.load(files.extractfile("manifest.json"))
            for tag in one["RepoTags"]
        }


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The folders of both ways, and the seconds of the mirror's."""
    folder = tmp_path_factory.mktemp("bundles")
    lab = settings.load()
    lab = type(lab)(**{**vars(lab), "state": folder})
    cluster.from_testbed(lab, folder / "testbed")
    begun = time.monotonic()
    cluster.from_mirror(lab, folder / "over")
    print(f"{time.monotonic() - begun:7.1f} s  folder filled over the mirror, the programs being built")
    return folder / "testbed", folder / "over"


def test_both_ways_bring_the_same_programs_and_images(filled):
    testbed, over = (described(folder) for folder in filled)
    assert over["origin"] == testbed["origin"] == "testbed"
    facts = ("name", "version", "architecture", "sha256")
    assert [{name: row[name] for name in facts} for row in sorted(over["files"], key=lambda row: row["name"])] == [
        {name: row[name] for name in facts} for row in sorted(testbed["files"], key=lambda row: row["name"])
    ]
    wanted, seen = {}, {}
    for folder, document, found in zip(filled, (testbed, over), (wanted, seen)):
        for row in document["images"]:
            found.update(images(folder / row["path"]))
    # The double of Flannel's CNI plugin goes under the name that the lock has for the real one.
    (double,) = set(wanted) - set(seen)
    (released,) = set(seen) - set(wanted)
    assert double.rpartition(":")[0] == released.rpartition(":")[0] == "ghcr.io/flannel-io/flannel-cni-plugin"
    wanted[released] = wanted.pop(double)
    assert seen == wanted
    print(f"{len(over['files'])} files and {len(seen)} images in {len(over['images'])} archives alike")


def test_the_roles_take_what_came_over_the_mirror(filled):
    folder = filled[1]
    bundle = described(folder)
    assert bundle_folder.findings(bundle, str(folder)) == []
    assert bundle_folder.damaged(str(folder), [*bundle["files"], *bundle["images"]]) == []
    defaults = yaml.safe_load((ROOT / "roles/cni_plugins/defaults/main.yml").read_text())["cni_plugins_names"]
    plugins, findings = cni.choose(bundle, str(folder), defaults, "x86_64")
    assert findings == []
    assert set(plugins) == set(defaults)
    for role, variable in (("flannel", "flannel_image"), ("multus", "multus_image")):
        wanted = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())[variable]
        assert wanted in bundle_folder.references(bundle, "amd64")


def test_what_the_mirror_alters_is_refused(tmp_path):
    """The sums of the lock that the user names count, whatever a mirror says."""
    program = programs.ensure(["mirror"])["mirror"] / "mirror"
    with mirror.serving(program, tmp_path / "mirror", cluster.LOCK) as site:
        url = site.urls()["k3s"]
        own = mirror.own_lock(site.lock, {"k3s": site.put(url, ROOT / "README.md")}, {}, {})
        (site.folder / "lock.yml").write_text(json.dumps(own))
        site.put(url, ROOT / "LICENSE")
        given = {**site.variables, "bundle_wheels": False}
        with pytest.raises(settings.LabError):
            cluster.fill_by_playbook(tmp_path / "bundle", given, site.environment)
        site.put(url, ROOT / "README.md")
        cluster.fill_by_playbook(tmp_path / "bundle", given, site.environment)
    (row,) = described(tmp_path / "bundle")["files"]
    assert row["path"] == "files/amd64/k3s"


# The device plugin's image over the same registry


@pytest.fixture(scope="module")
def plugin_base(tmp_path_factory):
    """A Debian with Python as a docker-archive, as lab/plugin-image makes it for the Containerfile."""
    loader = importlib.machinery.SourceFileLoader("plugin_image_script", str(ROOT / "lab/plugin-image"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    script.BUILD.mkdir(exist_ok=True)
    script.make_base()
    out = tmp_path_factory.mktemp("base") / "base.tar"
    containers.archive(out, "registry.example.org/debian-python:12", (), script.BASE.read_bytes())
    return out


def test_the_device_plugins_image_is_built_from_a_base_of_a_registry_and_runs(filled, plugin_base, tmp_path):
    program = programs.ensure(["mirror"])["mirror"] / "mirror"
    folder = tmp_path / "bundle"
    with mirror.serving(program, tmp_path / "mirror", cluster.LOCK) as site:
        digest = site.push(plugin_base, "registry.example.org/debian-python:12")
        (site.folder / "lock.yml").write_text(json.dumps({"origin": "own", "artifacts": [], "images": []}))
        given = {
            **site.variables,
            "bundle_mirrors": {"registry.example.org": f"{site.address}/registry.example.org"},
            "bundle_plugin_image": True,
            "bundle_plugin_base": f"registry.example.org/debian-python:12@{digest}",
            "bundle_pythons": ["3.11"],
        }
        begun = time.monotonic()
        cluster.fill_by_playbook(folder, given, site.environment)
        seconds = time.monotonic() - begun
        (row,) = described(folder)["images"]
        first = (folder / row["path"]).read_bytes()
        (folder / row["path"]).unlink()
        cluster.fill_by_playbook(folder, given, site.environment)
    assert row["reference"] == PLUGIN
    assert (folder / row["path"]).read_bytes() == first, "the same base, wheels and sources: the same bytes"
    size, base_size = len(first) / 2**20, plugin_base.stat().st_size / 2**20
    print(f"{seconds:7.1f} s  image built; {size:.0f} MiB, {base_size:.0f} MiB of it the base")

    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        (image,) = json.load(archive.extractfile("manifest.json"))
        for layer in image["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                files.extractall(root, filter="tar")
    (root / "config.json").write_text(CONFIG)
    for words in (["-version"], ["check-config", "-strict", "/config.json"]):
        begun = time.monotonic()
        done = subprocess.run(
            ["chroot", root, "/bin/k8s-rdma-shared-dp", *words], capture_output=True, text=True, check=False
        )
        print(f"{time.monotonic() - begun:7.1f} s  {' '.join(words)}: {(done.stdout or done.stderr).strip()[:200]}")
        assert done.returncode == 0, done.stderr
    libraries = "import sys; sys.path.insert(0, '/opt/rdma-device-plugin/lib'); import grpc, google.protobuf"
    done = subprocess.run(
        ["chroot", root, "python3", "-I", "-c", libraries], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
