"""The driver role on a lab node with its own kernel: packages by apt, modules by DKMS, reboots.

It needs a separate lab node and many minutes under emulation: tests/run-driver-lab brings the node up and removes it.
test_in_root.py covers everything that needs no booted node: faults, downgrades, a rebuilt NVIDIA driver.

The tests build on one another and run in this order. The repositories are in the lab's folder, so after a failure a
restored snapshot of the node can continue.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.tests.driver import stack

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODE = os.environ.get("DRIVER_LAB")
STATE = pathlib.Path(os.environ.get("LAB_DIR") or ROOT / ".lab")
THERE = "/srv/driver-test"
TOOLS = "/etc/apt/sources.list.d/driver-test-tools.sources"

pytestmark = pytest.mark.skipif(not NODE, reason="not verified: needs a separate lab node (DRIVER_LAB=node1)")


class Node:
    """The lab node, and the repositories that were copied to it."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        about = folder / "about.json"
        self.about = json.loads(about.read_text()) if about.exists() else stack.build_all(folder)
        if not self.has(THERE):
            self.copy(folder, THERE)

    def has(self, path: str) -> bool:
        return self.ssh(f"[ -e {path} ] && echo yes || echo no") == "yes"

    def ssh(self, *words: str, stdin: bytes | None = None) -> str:
        command = ["ssh", "-F", str(STATE / "ssh/config"), NODE, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def copy(self, folder: pathlib.Path, target: str) -> None:
        names = [path.name for path in folder.iterdir() if path.name not in ("key", "stranger")]
        archive = subprocess.run(["tar", "-C", folder, "-c", *names], capture_output=True, check=True).stdout
        self.ssh(f"mkdir -p {target} && tar -C {target} -x", stdin=archive)

    def play(self, repository: str = "first", **variables) -> tuple[int, str]:
        """Runs the playbook on the node; (exit code, output)."""
        given = {
            "driver_version": "3.2.1",
            "driver_repository_url": f"file://{THERE}/{repository}/",
            "driver_repository_key": str(self.folder / "key.asc"),
            "driver_repository_key_sha256": hashlib.sha256((self.folder / "key.asc").read_bytes()).hexdigest(),
            "driver_repository_fingerprint": self.about["fingerprint"],
            # Whether a reload is enough depends on the soft-RoCE devices of the lab's hardware unit by then.
            "driver_reload_allowed": False,
            **variables,
        }
        command = ["ansible-playbook", "-i", "inventory/lab", "--limit", NODE, "playbooks/upgrade_driver.yml"]
        done = subprocess.run(
            [*command, "-e", json.dumps(given)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=2400
        )
        return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)

    def imprint(self) -> str:
        """State that a run that stops early must not change."""
        return self.ssh(
            "dpkg-query -W 'doca*' 'mlnx*' 2>/dev/null;"
            "ls /etc/apt/sources.list.d /etc/apt/preferences.d /etc/apt/keyrings;"
            "ls /lib/modules/$(uname -r)/updates/dkms 2>/dev/null; cat /proc/sys/kernel/random/boot_id; true"
        )

    def loaded(self, module: str = "mlx5_core") -> str:
        return self.ssh(f"cat /sys/module/{module}/version 2>/dev/null || echo none")


def changed(output: str) -> int:
    return int(re.findall(r"changed=(\d+)", output)[-1])


@pytest.fixture(scope="module")
def node():
    node = Node(STATE / "driver-test")
    node.ssh("echo mlx5_core >/etc/modules-load.d/driver-test.conf; modprobe mlx5_core")
    return node


def give_tools(node: Node, folder: pathlib.Path) -> None:
    """dkms, the compiler and headers for the node's apt. The lab's nodes reach no archive themselves."""
    status = node.ssh("cat", "/var/lib/dpkg/status") + "\n"
    repository = stack.tools(folder, status, node.ssh("uname", "-r"), folder / "tools", stack.Key(node.folder / "key"))
    node.copy(repository.folder, f"{THERE}/tools")
    node.ssh("echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/driver-test")  # its disk is thrown away anyway
    source = f"Types: deb\nURIs: file://{THERE}/tools/\nSuites: ./\nSigned-By: {THERE}/key.asc\n"
    node.ssh(f"cat >{TOOLS}", stdin=source.encode())
    node.ssh(f"apt-get -q update -o Dir::Etc::SourceList={TOOLS} -o Dir::Etc::SourceParts=/dev/null")


def test_verify_says_what_is_there_and_changes_nothing(node):
    before = node.imprint()
    code, output = node.play()
    assert (code, changed(output)) == (0, 0), output
    assert "Loaded: inbox; on disk for this kernel: inbox; installed: inbox." in output, output
    assert node.imprint() == before


def stops(node, *says, reboot_allowed=False, **variables):
    before = node.imprint()
    code, output = node.play(driver_flavor="doca", reboot_allowed=reboot_allowed, **variables)
    assert code != 0, output
    assert [text for text in says if text not in output] == [], output
    assert node.imprint() == before


@pytest.fixture(scope="module")
def tools(node, tmp_path_factory):
    if not node.has(TOOLS):
        give_tools(node, tmp_path_factory.mktemp("tools"))


SECOND = {"driver_version": "3.3.0"}


@pytest.mark.usefixtures("tools")
def test_nobody_has_said_whether_the_node_may_reboot(node):
    stops(node, "object: reboot_allowed", reboot_allowed=None)  # the lab's inventory says yes


def test_installed_and_not_in_memory_until_the_reboot(node):
    code, output = node.play(driver_flavor="doca", reboot_allowed=False)
    assert code == 0, output
    assert "Reboot pending" in output, output
    assert "the modules in memory are not those on disk" in output, output
    assert node.loaded() == "none"  # the kernel's own module has no version


def test_the_reboot_brings_it_into_memory(node):
    boot = node.ssh("cat /proc/sys/kernel/random/boot_id")
    code, output = node.play(driver_flavor="doca", reboot_allowed=True)
    assert code == 0, output
    assert node.ssh("cat /proc/sys/kernel/random/boot_id") != boot
    assert node.loaded() == "25.10.1.6.6"
    assert node.loaded("mlx_compat") == "25.10.1.6.6"


def test_a_second_run_changes_nothing(node):
    before = node.imprint()
    code, output = node.play(driver_flavor="doca", reboot_allowed=True)
    assert (code, changed(output)) == (0, 0), output
    assert node.imprint() == before


def test_a_reload_is_refused_where_the_way_in_goes_over_the_hca(node):
    """A software RoCE device turns the node's management port into an HCA."""
    node.ssh("rdma link add rxe99 type rxe netdev eth0")
    try:
        asked = {"driver_activation": "reload", "driver_reload_allowed": True, "reboot_allowed": True, **SECOND}
        stops(node, "id: management-path", "object: interface eth0", repository="second", **asked)
    finally:
        node.ssh("rdma link delete rxe99")


def test_the_upgrade_reboots(node):
    # Without the trial build, which the installation includes.
    code, output = node.play("second", driver_flavor="doca", reboot_allowed=True, driver_trial_build=False, **SECOND)
    assert code == 0, output
    assert node.loaded() == "26.01.1.0.0"


def test_back_to_inbox(node):
    code, output = node.play(driver_flavor="inbox", driver_remove_allowed=True, reboot_allowed=True)
    assert code == 0, output
    assert node.loaded() == "none"
    assert "mlx5_core" in node.ssh("ls /sys/module")
    code, output = node.play(driver_flavor="inbox", driver_remove_allowed=True, reboot_allowed=True)
    assert (code, changed(output)) == (0, 0), output
