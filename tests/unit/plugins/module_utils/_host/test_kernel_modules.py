"""Which modules a node gets, as tables over small facts."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import PEERMEM, PEERMEM_SOFTDEP, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

LOADED = {"loaded": True, "builtin": False, "available": True, "persisted": [], "blocked_by": []}
ABSENT = {**LOADED, "loaded": False}
NOT_THERE = {**ABSENT, "available": False}
GPU = {"index": 0, "address": "0009:01:00.0", "vendor": "10de"}
WANTED = {"required": ["mlx5_core", "ib_umad"], "ipoib": "auto", "gpudirect": "auto"}
LOAD_FILE = paths.OWN_MODULES_LOAD


def owned(text: str, mode: str = "0644") -> dict:
    return {"mode": mode, "content": text}


def port(layer: str) -> dict:
    return {"name": "mlx5_0", "ports": [{"number": 1, "link_layer": layer}]}


@pytest.fixture
def facts() -> dict:
    return {
        "node": {"kernel": "6.1.0-56-amd64", "container": None, "os": {"id": "debian", "like": []}},
        "hcas": [port("Ethernet")],
        "cards_without_rdma": [],
        "gpus": [],
        "gpudirect": {"mode": "none", "verdict": "No GPU.", "action": None, "peermem_loadable": False},
        "modules": {name: copy.deepcopy(LOADED) for name in ("mlx5_core", "ib_umad", "ib_ipoib", PEERMEM)},
        "initramfs": {"generator": None, "images": []},
        "owned_files": {LOAD_FILE: owned(paths.HEADER + "\nmlx5_core\nib_umad\n")},
    }


def test_a_node_that_has_everything_is_left_alone(facts):
    made = plan(facts, WANTED)
    assert (made.changes, made.findings, made.notes, made.not_verified) == ([], [], [], [])


def test_what_is_missing_is_loaded_and_persisted_in_the_given_order(facts):
    facts["modules"]["ib_umad"] = ABSENT
    facts["owned_files"] = {}
    made = plan(facts, WANTED)
    assert made.changes == [
        ("module ib_umad", "load", "absent", "loaded"),
        (LOAD_FILE, "write", "", paths.HEADER + "\nmlx5_core\nib_umad\n"),
    ]


def test_a_module_that_the_facts_do_not_name_is_tried(facts):
    made = plan(facts, {**WANTED, "required": ["irdma"]})
    assert ("module irdma", "load", "absent", "loaded") in made.changes


def test_a_file_with_another_mode_is_put_right(facts):
    facts["owned_files"][LOAD_FILE]["mode"] = "0600"
    assert plan(facts, WANTED).changes == [(LOAD_FILE, "mode", "0600", "0644")]


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
    assert "/etc/modprobe.d/ofed-blacklist.conf:3 says 'blacklist ib_umad'" in made.findings[0].seen
    assert "kernel_modules_required" in made.findings[0].next_step
    assert not any(change.action == "load" for change in made.changes)


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ({"id": "debian", "like": []}, "linux-image-amd64"),
        ({"id": "ubuntu", "like": ["debian"]}, "linux-modules-extra-6.1.0-56-amd64"),
        ({"id": "rocky", "like": ["rhel", "centos", "fedora"]}, "kernel-modules-extra-6.1.0-56-amd64"),
        ({"id": "arch", "like": []}, "full kernel package"),
    ],
)
def test_a_module_that_the_kernel_lacks_names_kernel_and_package(facts, system, package):
    facts["modules"]["ib_umad"] = NOT_THERE
    facts["node"]["os"] = system
    (finding,) = plan(facts, WANTED).findings
    assert "6.1.0-56-amd64" in finding.seen
    assert package in finding.next_step


def test_all_problems_are_reported_at_once(facts):
    facts["modules"] = {"mlx5_core": NOT_THERE, "ib_umad": NOT_THERE}
    assert [finding.object for finding in plan(facts, WANTED).findings] == ["module mlx5_core", "module ib_umad"]


def test_in_a_container_files_are_written_and_the_kernel_is_left_alone(facts):
    facts["node"]["container"] = "systemd-nspawn"
    facts["modules"]["ib_umad"] = NOT_THERE
    facts["owned_files"] = {}
    made = plan(facts, WANTED)
    assert [change.object for change in made.changes] == [LOAD_FILE]
    assert made.findings == []
    assert "ib_umad" in made.not_verified[0]
    assert "systemd-nspawn" in made.not_verified[0]


def test_below_another_root_the_kernel_of_this_machine_is_left_alone(facts):
    facts["modules"]["ib_umad"] = ABSENT
    assert plan(facts, WANTED, root="/captured").changes == []


@pytest.mark.parametrize(
    ("choice", "gpus", "mode", "expected"),
    [
        ("auto", [GPU], "loadable", True),
        ("off", [GPU], "loadable", False),
        ("auto", [], "none", False),
        ("auto", [GPU], "none", False),
        ("auto", [GPU], "dmabuf", False),
        ("auto", [GPU], "peermem", True),
        ("peermem", [], "none", False),
        ("peermem", [GPU], "dmabuf", True),
        ("dmabuf", [GPU], "peermem", False),
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
    softdep = [change.after for change in made.changes if change.object == paths.OWN_MODPROBE]
    assert softdep == ([f"{paths.HEADER}\n{PEERMEM_SOFTDEP}\n"] if expected else [])


def test_peermem_that_was_asked_for_and_is_not_there_is_a_problem(facts):
    facts["gpus"] = [GPU]
    facts["modules"][PEERMEM] = NOT_THERE
    (finding,) = plan(facts, {**WANTED, "gpudirect": "peermem"}).findings
    assert finding.object == f"module {PEERMEM}"
    assert "NVIDIA driver" in finding.next_step


def test_a_blacklisted_peermem_stays_out_when_nobody_asked_for_it(facts):
    facts["gpus"] = [GPU]
    facts["gpudirect"]["mode"] = "peermem"
    facts["modules"][PEERMEM]["blocked_by"] = [{"path": "/etc/modprobe.d/x.conf", "line": 1, "text": "blacklist x"}]
    made = plan(facts, WANTED)
    assert made.findings == []
    assert any("/etc/modprobe.d/x.conf:1" in note for note in made.notes)


def test_nothing_is_unloaded(facts):
    facts["gpus"] = [GPU]
    made = plan(facts, {**WANTED, "gpudirect": "off"})
    assert made.changes == []
    assert any("nothing is unloaded" in note for note in made.notes)


def test_the_doctor_s_advice_is_passed_on(facts):
    facts["gpus"] = [GPU]
    facts["gpudirect"] = {
        "mode": "none",
        "verdict": "nvidia_peermem is a stub.",
        "action": "rebuild the driver",
        "peermem_loadable": False,
    }
    assert plan(facts, WANTED).notes == ["GPUDirect: nvidia_peermem is a stub. Next step: rebuild the driver"]


def test_the_softdep_goes_without_taking_other_lines_along(facts):
    other = "options ib_core netns_mode=1\n"
    facts["owned_files"][paths.OWN_MODPROBE] = owned(f"{paths.HEADER}\n{other}{PEERMEM_SOFTDEP}\n")
    (change,) = plan(facts, {**WANTED, "gpudirect": "off"}).changes
    assert change.after == f"{paths.HEADER}\n{other}"


def test_a_written_modprobe_file_makes_the_initramfs_stale(facts):
    facts["gpus"] = [GPU]
    facts["gpudirect"]["mode"] = "peermem"
    facts["initramfs"] = {
        "generator": "update-initramfs",
        "images": [{"path": "/boot/initrd.img-6.1", "kernel": "6.1", "mtime": 5}],
    }
    assert plan(facts, WANTED).stale_images == ["/boot/initrd.img-6.1"]
