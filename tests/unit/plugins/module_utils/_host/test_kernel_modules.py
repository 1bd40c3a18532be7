"""Which modules a node gets, and which initramfs images are rebuilt by which command."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import initramfs
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import PEERMEM, PEERMEM_SOFTDEP, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

LOADED = {"loaded": True, "builtin": False, "available": True, "persisted": [], "blocked_by": []}
ABSENT = {**LOADED, "loaded": False}
NOT_THERE = {**ABSENT, "available": False}
GPU = {"index": 0, "address": "0009:01:00.0", "vendor": "10de"}
WANTED = {"required": ["mlx5_core", "ib_umad"], "ipoib": "auto", "gpudirect": "auto"}
LOAD_FILE, OURS = paths.OWN_MODULES_LOAD, paths.OWN_MODPROBE
LISTED = f"{paths.HEADER}\nmlx5_core\nib_umad\n"
NETNS = f"{paths.HEADER}\noptions ib_core netns_mode=1\n"
UMAD = ("module ib_umad", "load", "absent", "loaded")
OLD, NEW = "/boot/initrd.img-6.1", "/boot/initrd.img-6.8"


def owned(text: str, mode: str = "0644") -> dict:
    return {"mode": mode, "content": text}


def port(layer: str) -> dict:
    return {"name": "mlx5_0", "ports": [{"number": 1, "link_layer": layer}]}


@pytest.fixture
def facts() -> dict:
    images = [{"path": OLD, "kernel": "6.1", "mtime": 100.0}, {"path": NEW, "kernel": "6.8", "mtime": 300.0}]
    return {
        "node": {"kernel": "6.1.0-56-amd64", "container": None, "os": {"id": "debian", "like": []}},
        "hcas": [port("Ethernet")],
        "cards_without_rdma": [],
        "gpus": [],
        "gpudirect": {"mode": "none", "verdict": "No GPU.", "action": None, "peermem_loadable": False},
        "modules": {name: copy.deepcopy(LOADED) for name in ("mlx5_core", "ib_umad", "ib_ipoib", PEERMEM)},
        "initramfs": {"generator": "update-initramfs", "images": images},
        "owned_files": {LOAD_FILE: owned(LISTED)},
    }


@pytest.mark.parametrize(
    ("umad", "files", "required", "changes"),
    [
        pytest.param(LOADED, {LOAD_FILE: owned(LISTED)}, None, [], id="it has everything"),
        pytest.param(ABSENT, {}, None, [UMAD, (LOAD_FILE, "write", "", LISTED)], id="in the given order"),
        pytest.param(
            LOADED, {LOAD_FILE: owned(LISTED, "0600")}, None, [(LOAD_FILE, "mode", "0600", "0644")], id="mode"
        ),
        pytest.param(
            LOADED,
            {LOAD_FILE: owned(f"{paths.HEADER}\nirdma\n")},
            ["irdma"],
            [("module irdma", "load", "absent", "loaded")],
            id="one that the facts do not name is tried",
        ),
    ],
)
def test_what_is_missing_is_loaded_and_persisted(facts, umad, files, required, changes):
    facts["modules"]["ib_umad"] = umad
    facts["owned_files"] = files
    made = plan(facts, {**WANTED, "required": required or WANTED["required"]})
    assert (made.changes, made.findings, made.notes, made.not_verified) == (changes, [], [], [])


@pytest.mark.parametrize(
    ("choice", "layer", "expected"),
    [
        ("auto", "Ethernet", False),
        ("auto", "InfiniBand", True),
        ("always", "Ethernet", True),
        ("never", "InfiniBand", False),
    ],
)
def test_ipoib_follows_the_ports(facts, choice, layer, expected):
    facts["hcas"] = [port("Ethernet"), port(layer)]
    made = plan(facts, {**WANTED, "ipoib": choice})
    assert ("ib_ipoib" in "".join(change.after for change in made.changes)) is expected


def test_ipoib_cannot_be_told_while_no_driver_is_loaded(facts):
    facts.update(hcas=[], cards_without_rdma=[{"address": "0000:01:00.0"}])
    assert any("InfiniBand" in line for line in plan(facts, WANTED).not_verified)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_blacklist_is_named_with_path_and_line_and_never_forced(facts, loaded):
    line = {"path": "/etc/modprobe.d/ofed-blacklist.conf", "line": 3, "text": "blacklist ib_umad"}
    facts["modules"]["ib_umad"] = {**ABSENT, "loaded": loaded, "blocked_by": [line]}
    made = plan(facts, WANTED)
    assert [finding.object for finding in made.findings] == ["module ib_umad"]
    assert "/etc/modprobe.d/ofed-blacklist.conf:3" in made.findings[0].seen
    assert not any(change.action == "load" for change in made.changes)


@pytest.mark.parametrize(
    ("system", "like", "package"),
    [
        ("debian", "", "linux-image-amd64"),
        ("ubuntu", "debian", "linux-modules-extra-6.1.0-56-amd64"),
        ("rocky", "rhel centos fedora", "kernel-modules-extra-6.1.0-56-amd64"),
        ("arch", "", "kernel package"),
    ],
)
def test_modules_that_the_kernel_lacks_name_kernel_and_package_all_at_once(facts, system, like, package):
    facts["modules"] = {"mlx5_core": NOT_THERE, "ib_umad": NOT_THERE}
    facts["node"]["os"] = {"id": system, "like": like.split()}
    found = plan(facts, WANTED).findings
    assert [finding.object for finding in found] == ["module mlx5_core", "module ib_umad"]
    assert all("6.1.0-56-amd64" in finding.seen and package in finding.next_step for finding in found)


@pytest.mark.parametrize(("container", "root"), [("systemd-nspawn", "/"), (None, "/captured")])
def test_in_a_container_or_another_root_files_are_written_and_the_kernel_is_left_alone(facts, container, root):
    facts["node"]["container"] = container
    facts["modules"]["ib_umad"] = NOT_THERE
    facts["owned_files"] = {}
    made = plan(facts, WANTED, root=root)
    assert ([change.object for change in made.changes], made.findings) == ([LOAD_FILE], [])
    assert "ib_umad" in made.not_verified[0]


@pytest.mark.parametrize(
    ("choice", "gpus", "mode", "expected"),
    [
        *(("auto", [GPU], "loadable", True), ("off", [GPU], "loadable", False), ("auto", [], "none", False)),
        *(("auto", [GPU], "none", False), ("auto", [GPU], "dmabuf", False), ("auto", [GPU], "peermem", True)),
        *(("peermem", [], "none", False), ("peermem", [GPU], "dmabuf", True), ("dmabuf", [GPU], "peermem", False)),
        ("off", [GPU], "peermem", False),
    ],
)
def test_peermem_only_where_it_is_of_use(facts, choice, gpus, mode, expected):
    facts["gpus"] = gpus
    facts["gpudirect"].update(mode="none" if mode == "loadable" else mode, peermem_loadable=mode == "loadable")
    facts["modules"][PEERMEM] = ABSENT
    made = plan(facts, {**WANTED, "gpudirect": choice})
    assert made.findings == []
    assert (f"module {PEERMEM}" in [change.object for change in made.changes]) is expected
    softdep = [change.after for change in made.changes if change.object == OURS]
    assert softdep == ([f"{paths.HEADER}\n{PEERMEM_SOFTDEP}\n"] if expected else [])
    assert made.stale_images == ([OLD, NEW] if expected else []), "a written modprobe file makes images stale"


BLOCKED = {**LOADED, "blocked_by": [{"path": "/etc/modprobe.d/x.conf", "line": 1, "text": "blacklist x"}]}


@pytest.mark.parametrize(
    ("choice", "gpudirect", "peermem", "findings", "note"),
    [
        pytest.param("peermem", {}, NOT_THERE, [f"module {PEERMEM}"], None, id="asked for and not there"),
        pytest.param("auto", {"mode": "peermem"}, BLOCKED, [], "/etc/modprobe.d/x.conf:1", id="blocked"),
        pytest.param("off", {}, LOADED, [], "nothing is unloaded", id="nothing is unloaded"),
        pytest.param(
            "auto", {"verdict": "stub.", "action": "rebuild"}, LOADED, [], "rebuild", id="the doctor's advice"
        ),
    ],
)
def test_what_is_said_of_peermem(facts, choice, gpudirect, peermem, findings, note):
    facts["gpus"] = [GPU]
    facts["gpudirect"].update(gpudirect)
    facts["modules"][PEERMEM] = peermem
    made = plan(facts, {**WANTED, "gpudirect": choice})
    assert [finding.object for finding in made.findings] == findings
    assert note is None or note in "".join(made.notes)
    assert f"module {PEERMEM}" not in [change.object for change in made.changes]


def test_the_softdep_goes_without_taking_other_lines_along(facts):
    facts["owned_files"][OURS] = owned(f"{NETNS}{PEERMEM_SOFTDEP}\n")
    (change,) = plan(facts, {**WANTED, "gpudirect": "off"}).changes
    assert change.after == NETNS


# --- the initramfs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "stale", "expected"),
    [
        ({}, [], []),
        ({OURS: 50.0}, [], []),
        ({OURS: 100.0}, [], [OLD]),
        ({OURS: 400.0}, [], [OLD, NEW]),
        ({OURS: 50.0, "/etc/modprobe.d": 200.0}, [], [OLD]),
        ({}, [NEW, "/boot/gone"], [NEW]),  # what check mode would make stale is announced
    ],
)
def test_images_are_rebuilt_by_age(facts, sources, stale, expected):
    made = initramfs.plan(facts, {"sources": sources, "stale": stale})
    assert [(change.object, change.action) for change in made.changes] == [(path, "rebuild") for path in expected]


@pytest.mark.parametrize(
    ("container", "root", "generator", "where"),
    [
        ("docker", "/", "dracut", "not_verified"),
        (None, "/captured", "dracut", "not_verified"),
        (None, "/", None, "notes"),
    ],
)
def test_what_cannot_be_rebuilt_from_here_is_reported(facts, container, root, generator, where):
    facts["node"]["container"] = container
    facts["initramfs"]["generator"] = generator
    made = initramfs.plan(facts, {"sources": {OURS: 200.0}, "stale": []}, root)
    assert made.changes == []
    assert OLD in getattr(made, where)[0]


@pytest.mark.parametrize(
    ("changed", "mtime", "expected"),
    [(True, None, [OLD, NEW]), (True, 50, [OLD, NEW]), (False, 50, []), (False, 200, [OLD]), (False, None, [])],
)
def test_roles_learn_what_their_write_leaves_stale(facts, changed, mtime, expected):
    if mtime is not None:
        facts["owned_files"][OURS] = {**owned(""), "mtime": mtime}
    made = Plan()
    initramfs.mark_stale(made, facts, changed, "/")
    assert made.stale_images == expected


def test_commands_rebuild_one_image_of_one_kernel():
    assert initramfs.command("update-initramfs", OLD, "6.1") == ["update-initramfs", "-u", "-k", "6.1"]
    assert initramfs.command("dracut", OLD, "6.1") == ["dracut", "--force", OLD, "6.1"]
