"""The lab's test bed: what decides whether it is rebuilt, its images, its bundle folder, its lock file."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "lab"))

from lab import cluster, containers, programs, settings  # noqa: E402

LOCK = yaml.safe_load((ROOT / "lock/testbed.yml").read_text())


def go_double(folder, version):
    """A `go` on PATH that says this version and builds a file named after each part's folder."""
    go = folder / "go"
    go.write_text(
        f"""#!/bin/sh
[ "$1" = env ] && echo {version} && exit
echo "$*" >>{folder}/calls
while [ "$1" != -o ]; do shift; done
[ -e {folder}/broken ] && echo "broken on purpose" >&2 && exit 1
for name in k3s ctr bridge; do echo "$name" >"$2$name"; done
"""
    )
    go.chmod(0o755)
    return folder / "calls"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A cache and a Go of the test's own; returns the file with the calls of `go build`."""
    calls = go_double(tmp_path, "go1.26.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "CACHE", tmp_path / "cache")
    return calls


@pytest.mark.parametrize(("version", "fits"), [("go1.24.9", False), ("go1.25", True), ("go1.26.8", True)])
def test_an_old_go_is_refused_with_the_way_out(tmp_path, monkeypatch, version, fits):
    go_double(tmp_path, version)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if fits:
        assert programs.find_go() == (str(tmp_path / "go"), version)
        return
    with pytest.raises(settings.LabError) as refused:
        programs.find_go()
    assert version in str(refused.value)
    assert "Go 1.25 or newer" in str(refused.value)


def test_programs_are_built_once_and_again_when_their_files_change(bench, tmp_path, monkeypatch):
    source = tmp_path / "modules"
    for folder in ("multus",):
        (source / folder).mkdir(parents=True)
        (source / folder / "go.mod").write_text((programs.SOURCES / folder / "go.mod").read_text())
    monkeypatch.setattr(programs, "SOURCES", source)
    first = programs.ensure(["multus"])["multus"]
    assert programs.ensure(["multus"])["multus"] == first
    assert len(bench.read_text().splitlines()) == 1
    (source / "multus/go.sum").write_text("another sum\n")
    second = programs.ensure(["multus"])["multus"]
    assert second != first
    assert not first.exists()
    assert len(bench.read_text().splitlines()) == 2


def test_containerd_travels_inside_k3s(bench):
    folder = programs.ensure(["k3s"])["k3s"]
    with zipfile.ZipFile(folder / "k3s") as archive:
        assert "ctr" in archive.namelist()
        assert archive.read("ctr") == b"ctr\n"
    assert (folder / "k3s").read_bytes().startswith(b"k3s\n")


def test_a_failed_build_leaves_nothing_and_says_why(bench, tmp_path):
    (tmp_path / "broken").touch()
    with pytest.raises(settings.LabError, match="broken on purpose"):
        programs.ensure(["flannel"])
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["lock"]


def test_the_version_of_each_part_is_in_its_go_mod():
    assert {name: part.version for name, part in programs.PARTS.items()} == {
        "containerd": "v2.2.9",
        "k3s": "v1.35.8",
        "cni-plugins": "v1.9.1",
        "flannel": "v0.28.9",
        "multus": "v4.3.0",
        "coredns": "v1.14.6",
        "peer-plugin": "v1.5.3",
    }


def test_the_test_bed_is_built_from_what_the_lock_ships():
    """What is seen to work in the lab is what users get; flannel-cni-plugin, a double, has a name of its own."""
    shipped = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
    rows = {row["name"]: row for row in [*shipped["artifacts"], *shipped["images"]]}
    names = {"k3s": "k3s", "cni-plugins": "cni-plugins", "flannel": "flannel", "multus": "multus-thick"}
    locked = {name: rows[of]["version"].partition("+")[0] for name, of in names.items()}
    assert {name: programs.PARTS[name].version for name in names} == locked
    references = {"flannel": "flannel", "multus": "multus-thick", "pause": "pause"}
    assert {name: containers.recipes()[name].reference for name in references} == {
        name: rows[of]["reference"] for name, of in references.items()
    }


def test_every_module_has_its_sums():
    for part in programs.PARTS.values():
        assert (part.source / "go.sum").stat().st_size > 1000


def test_the_lock_file_names_what_is_built():
    assert {row["name"]: row["version"] for row in LOCK["programs"]} == {
        name: part.version for name, part in programs.PARTS.items()
    }
    assert {row["name"]: row["module"] for row in LOCK["programs"]} == {
        name: part.module for name, part in programs.PARTS.items()
    }
    assert {row["name"]: row["reference"] for row in LOCK["images"]} == {
        name: recipe.reference for name, recipe in containers.recipes().items()
    }


# Images


def members(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def test_an_archive_of_an_image_fits_together(tmp_path):
    containers.archive(tmp_path / "one.tar", "localhost/one:1", ("/pause",), b"a layer")
    files = members(tmp_path / "one.tar")
    (image,) = json.loads(files["manifest.json"])
    assert image["RepoTags"] == ["localhost/one:1"]
    config = json.loads(files[image["Config"]])
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(files[image['Layers'][0]]).hexdigest()}"]
    containers.archive(tmp_path / "again.tar", "localhost/one:1", ("/pause",), b"a layer")
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "one.tar").read_bytes()


def test_a_second_image_shares_the_layers_of_the_first(tmp_path):
    containers.archive(tmp_path / "one.tar", "localhost/one:1", ("/pause",), b"a layer")
    containers.extend(tmp_path / "one.tar", tmp_path / "two.tar", "localhost/two:1", ("/start",), b"on top")
    files = members(tmp_path / "two.tar")
    first, second = json.loads(files["manifest.json"])
    assert first == json.loads(members(tmp_path / "one.tar")["manifest.json"])[0]
    assert second["Layers"][:1] == first["Layers"]
    assert [files[layer] for layer in second["Layers"]] == [b"a layer", b"on top"]
    config = json.loads(files[second["Config"]])
    assert config["config"]["Entrypoint"] == ["/start"]
    assert [f"sha256:{hashlib.sha256(files[layer]).hexdigest()}" for layer in second["Layers"]] == config["rootfs"][
        "diff_ids"
    ]


def test_links_of_the_node_stay_in_the_node(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/real").write_text("it\n")
    (tmp_path / "usr/lib/relative").symlink_to("real")
    (tmp_path / "absolute").symlink_to("/usr/lib/relative")
    assert containers.resolve(tmp_path, "absolute").read_text() == "it\n"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(settings.LabError, match="loop"):
        containers.resolve(tmp_path, "loop")


def test_a_layer_depends_on_the_files_alone(tmp_path):
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/sh").write_text("sh\n")
    (root / "bin/copy").hardlink_to(root / "bin/sh")
    first = containers.layer(root)
    (root / "bin/sh").touch()
    assert containers.layer(root) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert {(entry.name, entry.uid, entry.mtime) for entry in archive} == {
            ("bin", 0, 0),
            ("bin/copy", 0, 0),
            ("bin/sh", 0, 0),
        }
        assert archive.extractfile("bin/copy").read() == archive.extractfile("bin/sh").read() == b"sh\n"


# The bundle folder


def test_the_bundle_of_the_test_bed_is_one_that_the_roles_take(bench, tmp_path, monkeypatch):
    from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder

    def archives(_image, names, _built):
        made = {name: tmp_path / f"{name}.tar" for name in names}
        for name, path in made.items():
            path.write_text(name)
        return made

    monkeypatch.setattr(cluster.containers, "ensure", archives)
    monkeypatch.setattr(cluster.image, "ensure", lambda _settings: None)
    folder = tmp_path / "bundle"
    cluster.from_testbed(settings.load(), folder)
    cluster.from_testbed(settings.load(), folder)
    bundle = yaml.safe_load((folder / "bundle.yml").read_text())
    assert bundle["origin"] == "testbed"
    assert bundle_folder.findings(bundle) == []
    assert bundle_folder.damaged(folder, [*bundle["files"], *bundle["images"]]) == []
    assert bundle_folder.file_for(bundle, "k3s", "amd64")["version"] == "v1.35.8+double1"
    with tarfile.open(folder / bundle_folder.file_for(bundle, "cni-plugins", "amd64")["path"]) as archive:
        assert "./bridge" in archive.getnames()
    assert "docker.io/rancher/mirrored-pause:3.6" in bundle_folder.references(bundle, "amd64")


def test_where_the_release_is_unavailable_the_test_bed_is_taken(bench, monkeypatch):
    monkeypatch.setenv("LAB_CLUSTER", "auto")
    monkeypatch.setattr(cluster, "probe", lambda url: "timed out" if url.endswith("/k3s") else pytest.fail(url))
    chosen, why = cluster.choose()
    assert chosen == "testbed"
    assert "timed out" in why


def test_without_go_the_lab_says_so_and_ends_after_the_host_layer(tmp_path, monkeypatch):
    go_double(tmp_path, "go1.19")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LAB_CLUSTER", "auto")
    monkeypatch.setattr(cluster, "probe", lambda _url: "no route")
    chosen, why = cluster.choose()
    assert chosen == "none"
    assert "go1.19" in why
    assert "no route" in why


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv("LAB_CLUSTER", "kind")
    with pytest.raises(settings.LabError, match="kind"):
        cluster.choose()


def test_labctl_names_the_parts_it_does_not_know():
    done = subprocess.run([ROOT / "lab/labctl", "programs", "etcd"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "etcd" in done.stderr


# Further disks


def test_a_disk_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_DISKS", f"{tmp_path}/absent.img")
    with pytest.raises(settings.LabError, match=r"absent\.img"):
        settings.load()


def test_further_disks_are_read_only_and_come_last(monkeypatch, tmp_path):
    from lab import vm
    from lab.image import Image

    disk = tmp_path / "bed.img"
    disk.touch()
    monkeypatch.setenv("LAB_DISKS", str(disk))
    monkeypatch.setenv("LAB_DIR", str(tmp_path))
    node = vm.Node(settings.load(), "node1", 1)
    command = node.command(Image(tmp_path), "tcg")
    assert command[-4:] == [
        "-drive",
        f"if=none,id=disk1,file={disk},format=raw,readonly=on",
        "-device",
        "virtio-blk-pci,drive=disk1,bus=pcie.0",
    ]


def test_the_lab_sets_nothing_that_goes_round_the_users_way():
    """Flannel and Multus reach the API server by its Service; images, tools and plugins are the roles' defaults."""
    assert {name for name in cluster.LAB_VARIABLES if not name.endswith("_seconds")} == {"networks_rails"}


def test_the_test_bed_builds_the_plugins_that_the_role_installs():
    wanted = yaml.safe_load((ROOT / "roles/cni_plugins/defaults/main.yml").read_text())["cni_plugins_names"]
    assert set(wanted) <= {*programs.plugin_names(), "flannel"}


def test_the_double_deploys_the_coredns_that_the_lab_makes():
    double = (ROOT / "lab/testbed/k3s-double/coredns.go").read_text()
    (image,) = re.findall(r'const coreDNSImage = "(.+)"', double)
    assert f"docker.io/{image}" == containers.recipes()["coredns"].reference


def test_the_bundle_has_the_images_that_the_roles_name():
    have = {recipe.reference for recipe in containers.recipes().values()}
    for role, variable in (("flannel", "flannel_image"), ("multus", "multus_image")):
        assert yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())[variable] in have
