"""Which program runs the fast nodes, and with which command line: decided without root and without either program."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT / "lab"))

from lab.settings import LabError  # noqa: E402
from nspawn import backend, network  # noqa: E402

BRIDGE = network.Bridge("gfr-1234", "10.78.0.0/24")
PLACE = backend.Place(
    name="node1",
    machine="node1-1234",
    layer=pathlib.Path("nodes/node1/layer"),
    init="/usr/local/lib/lab/node_init.py",
    cgroup="gfr-1234/node1",
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """This machine has these programs, and its user asks for this backend."""

    def machine(*programs: str, asked: str = "") -> None:
        for program in programs:
            (tmp_path / program).touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("RAILS_BACKEND", asked)

    return machine


@pytest.mark.parametrize(
    ("programs", "asked", "chosen"),
    [
        (["systemd-nspawn", "podman"], "", "nspawn"),
        (["podman"], "", "podman"),
        (["systemd-nspawn", "podman"], "podman", "podman"),
        (["systemd-nspawn"], "nspawn", "nspawn"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_the_first_installed(machine, programs, asked, chosen):
    machine(*programs, asked=asked)
    assert backend.choose() == chosen


@pytest.mark.parametrize(
    ("programs", "asked", "told"),
    [
        ([], "", ["not set", "systemd-nspawn or podman", "not on PATH\n", "lab/packages lab"]),
        (["systemd-nspawn"], "podman", ["the program podman", "installed: nspawn", "unset RAILS_BACKEND"]),
        (["podman"], "nspawn", ["the program systemd-nspawn", "installed: podman", "unset RAILS_BACKEND"]),
        (["podman"], "docker", ["RAILS_BACKEND", "nspawn or podman", "docker", "correct it"]),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(machine, programs, asked, told):
    machine(*programs, asked=asked)
    with pytest.raises(LabError) as refusal:
        backend.choose()
    assert [words for words in told if words not in str(refusal.value)] == []


def test_nspawn_gets_the_bridge_and_makes_the_network_itself():
    assert backend.Nspawn().command(PLACE, BRIDGE) == [
        "systemd-nspawn",
        "--quiet",
        "--keep-unit",
        "--register=no",
        "--directory=nodes/node1/layer/root",
        "--machine=node1-1234",
        "--hostname=node1",
        "--network-bridge=gfr-1234",
        "--console=pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "/usr/bin/python3",
        "/usr/local/lib/lab/node_init.py",
    ]


def test_podman_runs_the_same_root_and_keeps_everything_in_the_layer():
    command = backend.Podman().command(PLACE, BRIDGE)
    assert command[-4:] == ["--rootfs", "/mnt/root", "/usr/bin/python3", "/usr/local/lib/lab/node_init.py"]
    before_run = command[: command.index("run")]
    assert before_run == [
        "env",
        "CONTAINERS_CONF=/mnt/containers.conf",
        "podman",
        "--root=/mnt/podman/root",
        "--runroot=/mnt/podman/runroot",
        "--tmpdir=/mnt/podman/tmpdir",
        "--storage-driver=vfs",
    ]
    assert {"--network=ns:/mnt/network", "--hostname=node1", "--cgroup-parent=/gfr-1234/node1"} <= set(command)


def test_podman_stays_in_the_unit_where_systemd_made_one():
    in_unit = dataclasses.replace(PLACE, cgroup=None)
    options = [word for word in backend.Podman().command(in_unit, BRIDGE) if word.startswith("--cgroup")]
    assert options == ["--cgroups=split"]


@pytest.mark.parametrize(("programs", "runtime"), [(["runc"], True), ([], False)])
def test_podman_is_told_to_use_runc_only_where_it_is(machine, programs, runtime):
    machine(*programs)
    assert ('runtime = "runc"' in backend.Podman().configuration()) is runtime


def test_a_node_gets_no_capability_that_this_process_may_not_pass_on():
    everything = backend.capabilities("Name:\tx\nCapBnd:\t000001ffffffffff\n")
    assert everything == list(backend.CAPABILITIES)
    without_sys_resource = backend.capabilities("CapBnd:\t000001fffeffffff\n")
    assert set(everything) - set(without_sys_resource) == {"SYS_RESOURCE"}
    assert "SYS_MODULE" not in everything, "a node must not load modules into this machine's kernel"
