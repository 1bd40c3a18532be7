"""Every known pitfall of drivers and GPUDirect, by number, and what the collection does about it.

D1 to D17 and P1 to P9 are those of docs/pitfalls.md. Each is planted on a captured or composed node, goes through the
planner, the gate or the doctor, and must be prevented or named. `shown` is the test that shows the
same at length.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Callable, NamedTuple

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_repository
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import dkms, packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.gate import decide
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.plan import anchors, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.risk import read
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.trial import build_failed
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import complete
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import plan as modules_plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules.driver import stale_images
from ansible_collections.gpufabric.rdma.plugins.modules.kernel_modules import SUBSET
from ansible_collections.gpufabric.rdma.tests.driver import stack
from ansible_collections.gpufabric.rdma.tests.tools import kernel_headers, overlays, peermem_modules
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures
from ansible_collections.gpufabric.rdma.tests.tools.gpu_node import DKMS, OFED, OPEN, Node

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCK = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
KERNEL, NEWER = overlays.KERNEL, overlays.NEWER
RHEL = {"id": "rhel", "version_id": "9.6", "like": ["fedora"], "pretty_name": "Red Hat Enterprise Linux 9.6"}
NOBLE = {"id": "ubuntu", "version_id": "24.04", "like": ["debian"], "pretty_name": "Ubuntu 24.04"}
RELOAD = {"reload_allowed": True}


class Bench:
    """What a row works with: an empty folder, a key, and the planners, the gate and the doctor as text."""

    def __init__(self, folder: pathlib.Path, key: stack.Key | None = None):
        self.folder = folder
        self.wanted = {"flavor": "doca", "version": "3.2.1", "packages": []}
        if key:
            url = "https://mirror.example.net/doca/"
            repository = {"url": url, "key": key.public, "fingerprints": [key.fingerprint], "label": "DOCA-HOST*"}
            self.wanted["repository"] = {**repository, "primary": [key.fingerprint], "known": ""}

    def driver(self, wanted=None, **state) -> str:
        """What the driver planner makes of an Ubuntu node: problems, then changes with what they write."""
        node = {"kernel": KERNEL, "architecture": "x86_64", "os": NOBLE, "container": None}
        state = {
            "facts": {"node": node, "driver": {"installed": {"flavor": "inbox", "version": None}}},
            "manager": packages.APT,
            "packages": {"dkms": "3"},
            "held": set(),
            "unfinished": {},
            "files": {},
            "foreign_repositories": [],
            "enabled_repositories": [],
            "origins": {},
            "kernels": [KERNEL],
            "headers": {KERNEL: True, NEWER: True},
            "builds": [],
            **state,
        }
        made = plan(state, {**self.wanted, **(wanted or {})})
        told = [f"{finding.object}: {finding.seen} {finding.next_step}" for finding in made.findings]
        return "\n".join(told + [f"{change.action} {change.object}\n{change.after}" for change in made.changes])

    def gate(self, over=None, wanted=None, fixture=overlays.STALE) -> str:
        """Verdict and all that a person reads, of a captured node with something laid over it."""
        fixtures.lay_out(fixtures.load(fixture), self.folder)
        overlays.lay_over(over or overlays.Over(), self.folder)
        tree = Tree(str(self.folder))
        self.facts = gather(tree, Seams.of(tree))
        decision = decide(self.facts, read(tree, self.facts), wanted or {})
        found = [reason.finding for reason in decision.reasons]
        told = [f"[{finding.id}] {finding.object}: {finding.seen}. {finding.next_step}" for finding in found]
        return "\n".join([decision.verdict, decision.summary, *told, *decision.steps, *decision.notes])

    def peermem(self, plant: Callable, gpudirect: str = "auto") -> str:
        """What kernel_modules makes of a node with a GPU and real module files: problems, loads, lines of its files."""
        try:
            headers = kernel_headers.build_tree()
        except kernel_headers.NoHeaders as reason:
            pytest.skip(f"not verified: no kernel headers to build modules against ({reason})")
        node = Node(self.folder, kernel_headers.release(headers))
        plant(node, peermem_modules.build_all(headers))
        tree = Tree(str(self.folder))
        facts = json.loads(json.dumps(complete(gather(tree, Seams.none(), SUBSET), tree)))
        made = modules_plan(facts, {"required": [], "ipoib": "never", "gpudirect": gpudirect})
        told = [f"{finding.object}: {finding.seen} {finding.next_step}" for finding in made.findings]
        done = [f"{change.action} {change.object}\n{change.after}" for change in made.changes]
        return "\n".join([*told, *done, *made.not_applied, *made.notes, facts["gpudirect"]["verdict"]])


def d1(bench):
    row = driver_repository(LOCK, {"node": {"os": RHEL, "architecture": "x86_64"}}, "doca", "3.2.1")
    lacking = driver_repository(LOCK, {"node": {"os": NOBLE, "architecture": "x86_64"}}, "doca", "3")
    return f"{row['url']} {bench.driver({'version': '3', 'repository': lacking})}"


def d2(bench):
    kernels = {"kernels": [KERNEL, NEWER], "packages": {"dkms": "3", "doca-ofed": "3.2.1-1"}}
    builds = [dkms.Build("mlnx-ofed-kernel", "25.10", KERNEL, "installed", "")]
    repository = bench.wanted["repository"]
    there = {packages.KEYS["apt"]: repository["key"].strip() + "\n", packages.SERVICE: packages.service_file()}
    there[packages.PINS] = packages.pins_file("DOCA-HOST*")
    there[packages.REPOSITORIES["apt"]] = packages.repository_file("apt", repository, "doca 3.2.1")
    undone = bench.driver(**kernels, builds=builds, files=there)
    (failed,) = build_failed("mlnx-ofed-kernel", "25.10", NEWER, "x86_64", "x.c:1: error: no such member").findings
    lost = bench.gate(overlays.newer_kernel("kernel/mlx5_core.ko") + overlays.process(5, "job", "uverbs0"))
    return "\n".join([undone, failed.seen, lost])


def d3(bench):
    return bench.driver() + packages.repository_file(packages.DNF, bench.wanted["repository"], "")


def d4(bench):
    apt = packages.install_command(packages.APT, ["doca-ofed"])
    dnf = packages.install_command(packages.DNF, ["doca-ofed"])
    return " ".join(apt + dnf) + packages.repository_file(packages.DNF, bench.wanted["repository"], "")


def d5(bench):
    return bench.gate(wanted=RELOAD) + bench.facts["driver"]["explanation"] + str(bench.facts["reboot_reasons"])


def d6(bench):
    behind = overlays.module("nvme_core", 3, "mlx_compat") + overlays.module("nvme", 1, "mlx_compat")
    return bench.gate(behind + overlays.module("ib_iser", 0, "ib_core", "rdma_cm"), RELOAD)


def d7(bench):
    return bench.gate(overlays.ssh(overlays.NIC), {"activation": "reload", **RELOAD})


def d8(bench):
    return bench.gate(overlays.default_route(overlays.NIC) + overlays.NETPLAN, RELOAD)


def d9(bench):
    return bench.gate(overlays.VFS, RELOAD)


def d10(bench):
    old = {"dkms": "3", "mlnx-ofed-kernel-dkms": "24.10", "ofed-scripts": "24.10"}
    facts = {"node": {"kernel": KERNEL, "architecture": "x86_64", "os": NOBLE, "container": None}}
    facts["driver"] = {"installed": {"flavor": "mlnx_ofed", "version": "24.10"}}
    asked = bench.driver(facts=facts, packages=old)
    return asked + bench.driver({"remove_allowed": True}, facts=facts, packages=old)


def d11(bench):
    return bench.driver()


def d12(bench):
    bench.gate()
    return "\n".join(bench.facts["reboot_reasons"])


def d13(bench):
    return " ".join(
        [packages.headers_package(packages.APT, "6.8.0-1010-nvidia-64k"), *anchors("ubuntu_archive", KERNEL)]
    )


def d14(bench):
    return bench.gate(overlays.SECURE + overlays.KEY, overlays.INSTALL)


def d15(bench):
    device = overlays.DEVICE
    many = {f"{device}/sriov_numvfs": "18", f"{device}/sriov_totalvfs": "18"}
    bench.gate(overlays.Over(many))
    return f"enabled: {bench.facts['hcas'][0]['pci']['sriov']['enabled']!r}"


def d16(bench):
    """Nothing here runs what writes firmware settings, so nothing waits for a reset; what is in effect is read."""
    bench.gate(overlays.file(f"{overlays.DEVICE}/sriov_totalvfs", "8"))
    writers = re.compile(r"""["'](mlxconfig|mlxfwreset|mstconfig|mstfwreset)["']""")
    code = [*(ROOT / "plugins").rglob("*.py"), *(ROOT / "roles").rglob("tasks/*.yml")]
    found = [path.name for path in code if writers.search(path.read_text())]
    return f"total: {bench.facts['hcas'][0]['pci']['sriov']['total']}; writers of firmware settings: {found}"


def d17(bench):
    bench.gate()
    change = type("Change", (), {"action": "upgrade"})
    facts = {"initramfs": {"images": [{"path": f"/boot/initrd.img-{KERNEL}", "kernel": KERNEL}]}}
    return f"stale: {stale_images(facts, [change])}"


def stub(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["inbox"] / "nvidia-peermem.ko", DKMS)


def other_crc(node, built):
    node.module(built["new"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)


def no_symbol(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["old"] / "nvidia-peermem.ko", DKMS)


def other_tree(node, built):
    other_crc(node, built)
    shutil.copytree(built["old"], node.host("/usr/src/ofa_kernel/x86_64/5.15.0-1-generic"))
    node.host("/usr/src/ofa_kernel/default").symlink_to("x86_64/5.15.0-1-generic")


def fits(node, built):
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)


def opened(node, built):
    stub(node, built)
    node.write("/proc/driver/nvidia/version", OPEN)


def p5(bench):
    idle = bench.gate(overlays.module("nvidia_peermem", 0, "ib_core"), RELOAD)
    shutil.rmtree(bench.folder)
    return idle + bench.gate(overlays.module("nvidia_peermem", 4, "ib_core"), RELOAD) + bench.driver()


def p8(bench):
    node = Node(bench.folder, "6.8.0-1010-nvidia-64k")
    node.write("/proc/driver/nvidia/version", OPEN).write("/proc/sys/kernel/arch", "aarch64")
    return " ".join(node.diagnose().evidence)


def p9(bench):
    """Nothing is installed to load a module: all there is are files and the module itself."""
    told = bench.peermem(fits)
    kinds = {line.split()[0] + " " + line.split()[1] for line in told.splitlines() if re.match(r"(load|write) ", line)}
    return f"changes: {sorted(kinds)}"


class Row(NamedTuple):
    does: Callable
    says: list[str]  # each has to be read
    shown: str


PITFALLS = {
    "D1": Row(
        d1,
        ["/rhel9/", "3.2.1 for rhel9 amd64", "a version that the lock lists"],
        "_driver/test_packages:test_the_row_of_a_node",
    ),
    "D2": Row(
        d2,
        [f"build DKMS module mlnx-ofed-kernel 25.10 for {NEWER}", "The end of make.log", "[next-kernel]"],
        "_driver/test_plan:test_a_build_that_a_kernel_upgrade_left_undone",
    ),
    "D3": Row(
        d3,
        ["Package: dkms\nPin: release l=DOCA-HOST*\nPin-Priority: -1", "excludepkgs=dkms"],
        "_driver/test_packages:test_the_apt",
    ),
    "D4": Row(
        d4,
        ["--no-install-recommends", "install_weak_deps=False", "priority=10"],
        "_driver/test_packages:test_the_repo_file",
    ),
    "D5": Row(
        d5,
        ["reload", "mlx5_core in memory is", "The loaded RDMA driver is not the one on disk"],
        "_driver/test_gate:test_the_gate",
    ),
    "D6": Row(
        d6, ["reboot", "[storage] / on /dev/nvme0n1p2", "[consumer] module ib_iser"], "_driver/test_gate:test_the_gate"
    ),
    "D7": Row(
        d7,
        ["refuse", "[management-path] interface enp59s0np0: the SSH session"],
        "driver/test_on_lab:test_a_reload_is_refused",
    ),
    "D8": Row(d8, ["refuse", "[name-change]"], "_driver/test_gate:test_the_gate"),
    "D9": Row(
        d9, ["save MTU, state and addresses", "2 virtual functions of mlx5_0", "restore"], "_driver/test_reload:test_"
    ),
    "D10": Row(
        d10, ["driver_remove_allowed: true", "take out driver stack"], "_driver/test_plan:test_another_stack_goes_first"
    ),
    "D11": Row(
        d11,
        ["openibd.service.d", "After=systemd-udev-settle.service", "Restart=on-failure"],
        "_driver/test_packages:test_the_drop_in",
    ),
    "D12": Row(
        d12,
        ["The loaded RDMA driver is not the one on disk: mlx5_core in memory is"],
        "_driver/test_gate:test_the_gate",
    ),
    "D13": Row(
        d13,
        ["linux-headers-6.8.0-1010-nvidia-64k", "doca-ofed-generic"],
        "_driver/test_plan:test_the_archive_of_ubuntu",
    ),
    "D14": Row(d14, ["refuse", "[secure-boot]", "mokutil --import"], "_driver/test_gate:test_the_gate"),
    "D15": Row(d15, ["enabled: 18"], "_driver/test_gate:test_the_gate"),
    "D16": Row(d16, ["total: 8", "writers of firmware settings: []"], "_driver/test_gate:test_the_gate"),
    "D17": Row(d17, [f"stale: ['/boot/initrd.img-{KERNEL}']"], "driver/test_on_lab:test_installed_and_not_in_memory"),
    "P1": Row(
        lambda bench: bench.peermem(stub),
        ["stub: ", "Invalid argument, no kernel message"],
        "_host/test_gpudirect:test_a_stub",
    ),
    "P2": Row(
        lambda bench: bench.peermem(other_crc),
        ["crc-mismatch: ", "with CRC 0x"],
        "_host/test_gpudirect:test_crcs_that_differ",
    ),
    "P3": Row(
        lambda bench: bench.peermem(no_symbol), ["missing-symbol: "], "_host/test_gpudirect:test_the_symbol_is_in_no"
    ),
    "P4": Row(
        lambda bench: bench.peermem(other_tree),
        ["wrong-tree: ", "kernel 5.15.0-1-generic"],
        "_host/test_gpudirect:test_sources_of",
    ),
    "P5": Row(
        p5,
        ["unload nvidia_peermem", "load nvidia_peermem", "[peermem-in-use]", "exec modprobe nvidia_peermem"],
        "_driver/test_gate:test_the_gate",
    ),
    "P6": Row(
        lambda bench: bench.peermem(fits),
        [f"write {paths.OWN_MODPROBE}", "softdep nvidia_peermem pre: nvidia ib_uverbs", "load module nvidia_peermem"],
        "_host/test_kernel_modules:test_peermem_only",
    ),
    "P7": Row(
        lambda bench: bench.peermem(opened),
        ["support dma-buf"],
        "_host/test_gpudirect_decides:test_one_that_is_not_needed",
    ),
    "P8": Row(p8, ["NVreg_GrdmaPciTopoCheckOverride=1"], "_host/test_gpudirect:test_grace_gets_advice"),
    "P9": Row(
        p9,
        ["changes: ['load module', 'write /etc/modprobe.d/", "'write /etc/modules-load.d/"],
        "_host/test_gpudirect_decides:test_one_that_fits",
    ),
}


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    if not shutil.which("gpg"):
        pytest.skip("not verified: no gpg to make a key with")
    made = stack.Key(tmp_path_factory.mktemp("keys") / "one")
    yield made
    made.close()


@pytest.mark.parametrize("name", PITFALLS)
def test_a_pitfall_is_prevented_or_called_by_its_name(name, tmp_path, key):
    row = PITFALLS[name]
    told = row.does(Bench(tmp_path / "node", key))
    for expected in row.says:
        assert expected in told


def test_a_module_that_cannot_load_is_never_tried(tmp_path):
    for plant in (stub, other_crc, no_symbol, other_tree, opened):
        assert "load module nvidia_peermem" not in Bench(tmp_path / plant.__name__).peermem(plant)


def test_no_row_is_missing_and_each_names_a_test_that_exists():
    assert list(PITFALLS) == [f"D{number}" for number in range(1, 18)] + [f"P{number}" for number in range(1, 10)]
    files = {f"{path.parent.name}/{path.stem}": path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for name, row in PITFALLS.items():
        file, test = row.shown.split(":")
        assert f"\ndef {test}" in files[file], f"{name}: {row.shown}"
