"""The session's node, and the plugin on it. `make kubelet-lab` runs these tests: they need QEMU and Go."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys

import pytest

_spec = importlib.util.spec_from_file_location("kubelet_bed", pathlib.Path(__file__).with_name("bed.py"))
bed_module = importlib.util.module_from_spec(_spec)
sys.modules["kubelet_bed"] = bed_module
_spec.loader.exec_module(bed_module)

TIMES = pytest.StashKey()


def pytest_terminal_summary(terminalreporter, config):
    if config.stash.get(TIMES, None):
        terminalreporter.section("times on the real kubelet, in seconds")
        for what, seconds in config.stash[TIMES].items():
            terminalreporter.write_line(f"{seconds:7.1f}  {what}")


UNIT = """\
[Unit]
Description=RDMA shared device plugin (test)
[Service]
Environment=PYTHONPATH={payload}/current:/srv/bed/libraries PYTHONDONTWRITEBYTECODE=1
ExecStart=/usr/bin/python3 -m rdma_device_plugin -config-file {payload}/config.json {flags}
Restart=always
RestartSec=1
"""


class Plugin:
    """The device plugin as a systemd unit on the node."""

    name = "rdma-device-plugin"

    def __init__(self, bed):
        self.bed = bed

    def install(self, version: str) -> None:
        folder = f"{bed_module.PAYLOAD}/{version}"
        self.bed.node(
            f"rm -rf {folder} && mkdir -p {folder} && tar -C {folder} -xf -"
            f" && ln -sfn {folder} {bed_module.PAYLOAD}/current",
            stdin=bed_module.package(version),
        )

    def configure(self, *pools: dict) -> None:
        document = {"periodicUpdateInterval": 300, "configList": list(pools)}
        self.bed.put(f"{bed_module.PAYLOAD}/config.json", json.dumps(document))

    def start(self, flags: str = "") -> None:
        text = UNIT.format(payload=bed_module.PAYLOAD, flags=flags)
        path = f"/etc/systemd/system/{self.name}.service"
        self.bed.node(f"cat >{path} && systemctl daemon-reload && systemctl restart {self.name}", stdin=text.encode())

    def stop(self) -> None:
        self.bed.node(f"systemctl stop {self.name}", check=False)

    def pid(self) -> int:
        return int(self.bed.node(f"systemctl show --property=MainPID --value {self.name}"))

    def log(self) -> str:
        """Of the running process."""
        this = f"$(systemctl show --property=InvocationID --value {self.name})"
        return self.bed.node(f"journalctl --no-pager --output=cat _SYSTEMD_INVOCATION_ID={this}")

    def wait_registered(self, resource: str) -> None:
        """The node's status may still be that of the process before: a pod that comes too early is refused."""
        self.bed.wait(lambda: f"{resource}: registered" in self.log(), f"{resource} registered", every=1)


@pytest.fixture(scope="session")
def bed(request):
    if not os.environ.get("KUBELET_LAB"):
        pytest.skip("not verified: needs a virtual machine of its own (make kubelet-lab)")
    made = bed_module.Bed()
    request.config.stash[TIMES] = made.times
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def plugin(bed):
    made = Plugin(bed)
    made.install("0.1.0")
    return made


@pytest.fixture
def times(bed):
    return bed.times
