"""The module driver with real apt, dpkg, dkms, compiler and headers in a root of the lab's image: a minute, not a boot.

    DRIVER_IMAGE=.lab/image/HASH pytest tests/driver/test_in_root.py -x -v

test_on_lab.py covers what needs a booted node (gate, reboot, memory). The tests build on one another.
"""

import hashlib
import os
import pathlib
import shutil

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import gpudirect
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, elf
from ansible_collections.gpufabric.rdma.tests.driver import root as roots
from ansible_collections.gpufabric.rdma.tests.driver import stack

IMAGE = os.environ.get("DRIVER_IMAGE")
BASE = f"{stack.NAME}-dkms"
FIRST, SECOND = (stack.RELEASES[release] for release in ("3.2.1", "3.3.0"))

pytestmark = pytest.mark.skipif(
    not IMAGE or bool(roots.reason_against()),
    reason=f"not verified: {roots.reason_against() or 'needs an image of the lab (DRIVER_IMAGE)'}",
)


class Driver:
    """The root, and the module with the options of one repository."""

    def __init__(self, folder: pathlib.Path):
        self.root = roots.Root(pathlib.Path(IMAGE).resolve(), folder)
        self.about = stack.build_all(self.root.given / "repositories")

    def wanted(self, name="first", key="key", **options) -> dict:
        versions = {"first": "3.2.1"}
        return {
            "flavor": "doca",
            "version": versions.get(name, "3.3.0"),
            "repository": {
                "url": f"file:///srv/driver/repositories/{name}/",
                "key": (self.root.given / f"repositories/{key}.asc").read_text(),
                "fingerprints": [self.about["fingerprint"]],
                # Not used if the root has gpg.
                "key_sha256": hashlib.sha256((self.root.given / "repositories/key.asc").read_bytes()).hexdigest(),
                "label": "DOCA-HOST*",
                "known": "",
            },
            **options,
        }

    def changes(self, **options) -> set:
        result = self.root.module(**options)
        assert not result.get("failed"), result["msg"]
        return {(change["object"].split()[-1], change["action"]) for change in result["changes"]}

    def refusal(self, **options) -> str:
        result = self.root.module(**options)
        assert result.get("failed"), result
        return result["msg"]

    def state(self) -> dict:
        """Installed versions, builds, and the module that would be loaded."""
        query = f"dpkg-query -W -f '${{Version}} ${{db:Status-Status}}\\n' doca-ofed {BASE} 2>/dev/null || true"
        kernel = self.root.kernel
        return {
            "packages": self.root.run(query).splitlines(),
            "builds": self.root.run("[ ! -x /usr/sbin/dkms ] || dkms status").splitlines(),
            "module": self.root.run(f"modinfo -k {kernel} -F version mlx5_core") or "inbox",
            "files": [path for path in OURS if self.root.run(f"[ ! -e {path} ] || echo there")],
        }


OURS = [packages.KEYS["apt"], packages.REPOSITORIES["apt"], packages.PINS, packages.SERVICE]
INBOX = {"packages": [], "builds": [], "module": "inbox", "files": []}


def stack_of(release: str, kernel: str) -> dict:
    version = stack.RELEASES[release]
    shown = version.partition(".OFED.")[2].rpartition(".")[0]
    return {
        "packages": [f"{release}-044000 installed", f"{version}-1 installed"],
        "builds": [f"{stack.NAME}/{version}, {kernel}, x86_64: installed"],
        "module": shown,
        "files": OURS,
    }


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    yield Driver(folder)
    shutil.rmtree(folder)


def test_headers_that_are_not_to_be_had_stop_it(driver):
    assert "without which DKMS cannot build the driver" in driver.refusal(**driver.wanted())
    assert driver.state() == INBOX


@pytest.fixture(scope="module")
def tools(driver, tmp_path_factory):
    """dkms, compiler and headers become available to the root's apt, as on a real node."""
    status = driver.root.run("cat /var/lib/dpkg/status") + "\n"
    key = stack.Key(driver.root.given / "repositories/key")
    stack.tools(tmp_path_factory.mktemp("tools"), status, driver.root.kernel, driver.root.given / "tools", key)
    source = "Types: deb\nURIs: file:///srv/driver/tools/\nSuites: ./\nSigned-By: /srv/driver/repositories/key.asc\n"
    (driver.root.given / "tools.sources").write_text(source)
    driver.root.run("cp /srv/driver/tools.sources /etc/apt/sources.list.d/ && rm -f /etc/apt/sources.list")
    driver.root.run("apt-get -q update")


# Faults of a repository are in tests/unit/plugins/module_utils/_driver/test_trial.py.
FAULTS = {
    "key": ({"key": "stranger"}, "key of the driver repository"),
    "build": ({"name": "broken"}, "this kernel has no struct devlink_port_ops"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("tools")
def test_a_fault_stops_it_before_the_driver_changes(driver, fault):
    options, says = FAULTS[fault]
    refusal = driver.refusal(**driver.wanted(**options))
    assert says in refusal, refusal
    assert driver.state() == INBOX


def test_it_installs_and_a_second_run_changes_nothing(driver):
    assert ("doca-ofed", "install") in driver.changes(**driver.wanted())
    assert driver.state() == stack_of("3.2.1", driver.root.kernel)
    assert driver.changes(**driver.wanted()) == set()


def test_an_upgrade(driver):
    assert driver.changes(**driver.wanted("second")) == {
        (packages.REPOSITORIES["apt"], "write"),
        ("doca-ofed", "upgrade"),
    }
    assert driver.state() == stack_of("3.3.0", driver.root.kernel)


def test_a_downgrade_waits_for_consent_and_then_goes_back_to_the_first_version(driver):
    assert "3.3.0-044000, which is newer" in driver.refusal(**driver.wanted())
    assert driver.state() == stack_of("3.3.0", driver.root.kernel)
    assert ("doca-ofed", "downgrade") in driver.changes(**driver.wanted(downgrade_allowed=True))
    assert driver.state() == stack_of("3.2.1", driver.root.kernel)


def test_a_build_that_is_lost_is_made_again(driver):
    driver.root.run(f"dkms uninstall -m {stack.NAME} -v {FIRST} -k {driver.root.kernel}")
    assert driver.state()["module"] == "inbox"
    assert driver.changes(**driver.wanted()) == {(driver.root.kernel, "build")}
    assert driver.state() == stack_of("3.2.1", driver.root.kernel)


def test_back_to_inbox(driver):
    assert "driver_remove_allowed: true" in driver.refusal(flavor="inbox")
    assert ("stack", "take out") in driver.changes(flavor="inbox", remove_allowed=True)
    assert driver.state() == INBOX
    assert driver.changes(flavor="inbox", remove_allowed=True) == set()


@pytest.fixture(scope="module")
def gpu_node(driver, tools):
    """A GPU on PCI, its closed driver in DKMS as a stub, user space of the distribution, and two whole releases."""
    given, root = driver.root.given, driver.root
    key = stack.Key(given / "repositories/key")
    for name, release in (("whole", "3.2.1"), ("newer", "3.3.0")):
        stack.Repository(given / f"repositories/{name}").stack(release, whole=True).publish(key)
    stack.Repository(given / "distribution").package(*stack.DISTRIBUTION, {}, {}, "Multi-Arch: foreign").publish(
        key, "driver test distribution"
    )
    key.close()
    source = (
        "Types: deb\nURIs: file:///srv/driver/distribution/\nSuites: ./\nSigned-By: /srv/driver/repositories/key.asc\n"
    )
    (given / "distribution.sources").write_text(source)
    for path, text in stack.nvidia_sources().items():
        target = given / f"nvidia{path}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    root.run("cp /srv/driver/distribution.sources /etc/apt/sources.list.d/ && apt-get -q update")
    root.run(f"apt-get -q install --yes --no-install-recommends dkms linux-headers-{root.kernel} {stack.USER_SPACE[0]}")
    device = "/sys/bus/pci/devices/0000:17:00.0"
    values = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "0"}
    root.run(f"mkdir -p {device} && " + " && ".join(f"echo {text} > {device}/{name}" for name, text in values.items()))
    root.run(f"mkdir -p /sys/module/nvidia && echo {stack.NVIDIA} > /sys/module/nvidia/version")
    root.run("cp -r /srv/driver/nvidia/usr/src/* /usr/src/")
    root.run(f"dkms install -m nvidia -v {stack.NVIDIA} -k {root.kernel}")
    return root


def wants_peer_memory(root) -> bool:
    return "ib_core" in root.run(f"modinfo -k {root.kernel} -F depends nvidia-peermem").split(",")


def crc(root, module: str) -> str:
    """The CRC of the peer-memory symbol that a module file exports or imports."""
    path = root.run(f"modinfo -k {root.kernel} -n {module}")
    root.run(f"case {path} in *.xz) xz -dc {path} ;; *) cat {path} ;; esac > /srv/driver/module.ko")
    tree = Tree(str(root.given))
    found = elf.module_file(tree, "/module.ko")
    return found.exports.get(gpudirect.SYMBOL) or found.imports.get(gpudirect.SYMBOL)


def test_a_closed_nvidia_driver_is_rebuilt_under_the_new_stack_in_the_same_run(driver, gpu_node):
    assert not wants_peer_memory(gpu_node)  # built before there was a stack: a stub, whose init fails silently
    refusal = driver.refusal(**driver.wanted("whole", version="3.2.1"))
    assert "driver_nvidia_rebuild_allowed: true" in refusal
    assert f"dkms remove -m nvidia -v {stack.NVIDIA} -k {gpu_node.kernel}" in refusal
    assert driver.state()["module"] == "inbox"
    made = driver.changes(**driver.wanted("whole", version="3.2.1", nvidia_rebuild_allowed=True))
    assert {("doca-ofed", "install"), (gpu_node.kernel, "rebuild")} <= made
    assert wants_peer_memory(gpu_node)
    assert crc(gpu_node, "nvidia-peermem") == crc(gpu_node, "ib_core")
    assert driver.changes(**driver.wanted("whole", version="3.2.1", nvidia_rebuild_allowed=True)) == set()


def test_an_upgrade_that_leaves_it_behind_names_the_command_and_a_later_run_heals_it(driver, gpu_node):
    left = gpu_node.module(**driver.wanted("newer", nvidia_rebuild_allowed=False))
    assert not left.get("failed"), left["msg"]
    assert any("dkms remove -m nvidia" in note for note in left["notes"])
    assert crc(gpu_node, "nvidia-peermem") != crc(gpu_node, "ib_core")
    made = driver.changes(**driver.wanted("newer", nvidia_rebuild_allowed=True))
    assert made == {(gpu_node.kernel, "rebuild")}
    assert crc(gpu_node, "nvidia-peermem") == crc(gpu_node, "ib_core")


def test_back_to_inbox_takes_user_space_by_where_it_came_from(driver, gpu_node):
    name, version = stack.USER_SPACE
    shown = f"dpkg-query -W -f '${{Version}}' {name}"
    assert gpu_node.run(shown) == version
    made = driver.changes(flavor="inbox", remove_allowed=True)
    assert ("stack", "take out") in made
    assert gpu_node.run(shown) == stack.DISTRIBUTION[1]
    assert driver.changes(flavor="inbox", remove_allowed=True) == set()
