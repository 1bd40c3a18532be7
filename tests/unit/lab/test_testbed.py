"""The lab's test bed: what decides whether it is rebuilt, its images, its bundle folder, its lock file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "lab"))

from lab import cluster, containers, mirror, programs, settings  # noqa: E402

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


@pytest.fixture
def labctl(tmp_path, monkeypatch):
    """A double of the process that builds: what it is to do, as a shell script."""
    path = tmp_path / "lab/labctl"
    path.parent.mkdir()
    monkeypatch.setattr(programs, "CHECKOUT", tmp_path)

    def write(script):
        path.write_text(f"#!/bin/bash\ncd {tmp_path}\n{script}\n")
        path.chmod(0o755)

    return write


def test_programs_are_built_while_nodes_boot_and_are_there_when_both_are_done(labctl, tmp_path):
    labctl('echo "$@" >begun; until [ -e booted ]; do sleep 0.02; done; touch built')
    with programs.built_meanwhile(["k3s", "multus"]):
        (tmp_path / "booted").touch()
    assert (tmp_path / "built").exists()
    assert (tmp_path / "begun").read_text() == "programs k3s multus\n"


def test_a_build_that_fails_meanwhile_ends_the_command(labctl):
    labctl("exit 1")
    with pytest.raises(settings.LabError, match="the build failed"), programs.built_meanwhile(["k3s"]):
        pass


def test_nodes_that_do_not_boot_end_the_build(labctl, tmp_path):
    labctl("trap 'touch ended; exit 1' TERM; touch begun; for i in {1..1000}; do sleep 0.05; done")

    def no_boot():
        while not (tmp_path / "begun").exists():
            time.sleep(0.02)
        raise settings.LabError("node1", "a boot", "no boot", "")

    with pytest.raises(settings.LabError, match="no boot"), programs.built_meanwhile(["k3s"]):
        no_boot()
    assert (tmp_path / "ended").exists()


def test_only_a_cluster_of_the_test_bed_has_programs_built(bench, monkeypatch):
    monkeypatch.setenv("LAB_CLUSTER", "none")
    assert cluster.programs_wanted() == []
    monkeypatch.setenv("LAB_CLUSTER", "auto")
    assert cluster.programs_wanted() == ["k3s", "cni-plugins", "flannel", "multus", "coredns"]


def test_the_version_of_each_part_is_in_its_go_mod():
    assert {name: part.version for name, part in programs.PARTS.items()} == {
        "containerd": "v2.2.9",
        "k3s": "v1.35.8",
        "cni-plugins": "v1.9.1",
        "flannel": "v0.28.9",
        "multus": "v4.3.0",
        "coredns": "v1.14.6",
        "mirror": "v3.1.1",
        "peer-plugin": "v1.5.3",
        "dra": "v1.35.8",
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


def test_components_get_their_arguments_as_from_k3s():
    """The double's own test, in Go: name=value, name+=value and name-=value."""
    try:
        go, _version = programs.find_go()
    except settings.LabError as error:
        pytest.skip(f"not verified: {error}")
    done = subprocess.run(
        [go, "test", "-trimpath", "-vet=off", "./flags"],
        cwd=programs.PARTS["k3s"].source,
        env={**os.environ, **programs.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_double_has_what_dra_needs():
    """They are on in k3s: none may be among what the double leaves out."""
    text = (programs.PARTS["k3s"].source / "server.go").read_text()
    left_out = text[text.index("const unusedAdmission") : text.index("func runServer")]
    for name in ("ValidatingAdmissionPolicy", "resourceclaim-controller", "statefulset-controller", "job-controller"):
        assert not re.search(rf"[\",-]{name}[\",]", left_out), name


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


def test_what_has_been_seen_to_work_comes_first(bench, monkeypatch):
    """The release has never run in the lab: where Go can build the test bed, nobody is asked for it."""
    monkeypatch.setenv("LAB_CLUSTER", "auto")
    monkeypatch.setattr(cluster, "probe", pytest.fail)
    assert cluster.choose() == ("testbed", "go1.26.1 builds it")


@pytest.mark.parametrize(("unreachable", "chosen"), [(None, "release"), ("no route", "none")])
def test_without_go_the_release_is_tried_or_the_lab_ends_after_the_host_layer(
    tmp_path, monkeypatch, unreachable, chosen
):
    go_double(tmp_path, "go1.19")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("LAB_CLUSTER", raising=False)
    monkeypatch.setattr(cluster, "probe", lambda url: unreachable if url.endswith("/k3s") else pytest.fail(url))
    seen, why = cluster.choose()
    assert seen == chosen
    assert "go1.19" in why
    assert (unreachable or "answers") in why


def test_the_release_is_named_as_not_verified(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAB_DIR", str(tmp_path))
    monkeypatch.setenv("LAB_CLUSTER", "release")
    monkeypatch.setattr(cluster, "fill_by_playbook", lambda folder: folder.mkdir())
    assert cluster.fill(settings.load()) == tmp_path / "bundle"
    assert "not verified" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "cluster.yml").read_text())) == {
        *("k3s_bundle_dir", "device_plugin_wheel_dir"),
        *cluster.LAB_VARIABLES,
    }


# The mirror

SHIPPED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())


def test_the_mirror_is_told_to_bundle_as_a_user_tells_it(tmp_path):
    """Documented variables of bundle.yml and nothing else; every address of the lock that it serves is covered."""
    site = mirror.Site("127.0.0.1:1", tmp_path, SHIPPED)
    assert site.variables == {
        "bundle_lock": f"{tmp_path}/lock.yml",
        "bundle_mirrors": {
            "https://github.com": "https://127.0.0.1:1/github.com",
            "docker.io": "127.0.0.1:1/docker.io",
            "ghcr.io": "127.0.0.1:1/ghcr.io",
        },
    }
    assert set(site.urls()) == {"k3s", "cni-plugins", "k3s-airgap-images"}
    documented = (ROOT / "docs/cluster.md").read_text()
    assert all(f"| `{name}` |" in documented for name in site.variables)
    target = site.put(site.urls()["k3s"], ROOT / "README.md")
    assert target == hashlib.sha256((ROOT / "README.md").read_bytes()).hexdigest()
    assert (tmp_path / "files/github.com/k3s-io/k3s/releases/download/v1.35.8+k3s1/k3s").is_file()


def test_the_mirrors_lock_has_the_releases_names_and_its_own_sums():
    from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock

    digest = f"sha256:{'2' * 64}"
    own = mirror.own_lock(SHIPPED, {"k3s": "1" * 64}, {"flannel": digest}, {"k3s": "v1.35.8+double1"})
    assert bundle_lock.malformed(own) == []
    assert bundle_lock.unpinned(own, None) == []
    (k3s,), (flannel,) = own["artifacts"], own["images"]
    (released,) = [row for row in SHIPPED["artifacts"] if row["name"] == "k3s"]
    assert k3s["files"] == [{**released["files"][0], "sha256": "1" * 64}]
    assert k3s["version"] == "v1.35.8+double1", "what the program says it is"
    assert flannel["digests"] == {"amd64": digest}
    assert flannel["reference"] == "ghcr.io/flannel-io/flannel:v0.28.9"
    assert own["origin"] == "testbed"


def test_several_images_fit_into_one_archive(tmp_path):
    for name in ("one", "two"):
        containers.archive(tmp_path / f"{name}.tar", f"localhost/{name}:1", (f"/{name}",), name.encode())
    mirror.joined([tmp_path / "one.tar", tmp_path / "two.tar"], tmp_path / "both.tar")
    files = members(tmp_path / "both.tar")
    images = json.loads(files["manifest.json"])
    assert [image["RepoTags"] for image in images] == [["localhost/one:1"], ["localhost/two:1"]]
    assert [files[image["Layers"][0]] for image in images] == [b"one", b"two"]
    assert [json.loads(files[image["Config"]])["config"]["Entrypoint"] for image in images] == [["/one"], ["/two"]]


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
