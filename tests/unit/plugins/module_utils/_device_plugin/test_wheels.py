"""The locked wheels that fit a node's Python and machine."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels

ROOT = pathlib.Path(__file__).resolve().parents[5]
LOCKED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_node_gets_one_wheel_of_each_package(python, machine):
    found = wheels.fitting(LOCKED, python, machine)
    assert sorted(wheel["name"] for wheel in found.values()) == sorted(wheel["name"] for wheel in LOCKED)
    assert wheels.without(LOCKED, python, machine) == []
    assert all(machine in file or file.endswith("-any.whl") for file in found)


def test_a_python_without_a_compiled_wheel_is_reported():
    assert wheels.without(LOCKED, "3.8", "x86_64") == ["grpcio", "pyyaml"]
    assert wheels.without(LOCKED, "3.11", "riscv64") == ["grpcio", "protobuf", "pyyaml"]


def test_pip_gets_every_locked_hash_and_not_itself():
    lines = wheels.requirements(LOCKED).splitlines()
    assert [line.split("==")[0] for line in lines] == [wheel["name"] for wheel in LOCKED if wheel["name"] != "pip"]
    assert sum(line.count("--hash=sha256:") for line in lines) == sum(
        len(wheel["files"]) for wheel in LOCKED if wheel["name"] != "pip"
    )
