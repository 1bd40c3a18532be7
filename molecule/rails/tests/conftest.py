"""Which hosts the tests visit, and Ansible's own view of them."""

import json
import os
import pathlib
import subprocess
from collections.abc import Callable

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
HOME = CHECKOUT / ".lab/nspawn"
SCENARIO = CHECKOUT / "molecule/rails"
INVENTORY = ("-i", str(CHECKOUT / "lab/nspawnctl"), "-i", str(SCENARIO / "inventory"))

Ansible = Callable[..., "subprocess.CompletedProcess[str]"]


def lab_state() -> dict:
    return json.loads((HOME / "state.json").read_text())


def list_groups() -> dict[str, list[str]]:
    listing = subprocess.run([CHECKOUT / "lab/nspawnctl", "--list"], capture_output=True, text=True, check=True)
    return {name: group["hosts"] for name, group in json.loads(listing.stdout).items() if "hosts" in group}


def pytest_configure(config: pytest.Config) -> None:
    """One --hosts=ssh://… for every node; molecule.yml does not know their number."""
    nodes = list_groups()["gpu_nodes"]
    if not nodes:
        raise pytest.UsageError("wanted: nodes to test; seen: none runs; next: molecule create --scenario-name rails")
    config.option.hosts = ",".join(f"ssh://{name}" for name in nodes)
    config.option.ssh_config = str(HOME / "ssh/config")


@pytest.fixture(scope="session")
def groups() -> dict[str, list[str]]:
    """{group: [node]}, with one group a captured machine."""
    return list_groups()


@pytest.fixture
def node(host) -> str:
    return host.backend.get_hostname()


@pytest.fixture
def machine(node, groups) -> str:
    """The fixture that the node plays."""
    (group,) = (name for name, nodes in groups.items() if name.startswith("playing_") and node in nodes)
    return group.removeprefix("playing_").replace("_", "-")


@pytest.fixture
def tree(node) -> pathlib.Path:
    """The captured machine under the node's overlay."""
    return HOME / lab_state()["nodes"][node]["layers"][0]


@pytest.fixture(scope="session")
def ansible() -> Ansible:
    """Runs one command of Ansible over the scenario's inventory, with the settings of the checkout."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [words[0], *INVENTORY, *words[1:]]
        # molecule turns on colours, which the tests would have to skip.
        plain = {"ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
        variables = {**os.environ, **plain, **environment}
        return subprocess.run(command, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def facts(ansible) -> dict[str, dict]:
    """ansible_facts.rdma of every node, as hca_facts gives them over SSH."""
    callback = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}
    done = ansible("ansible", "gpu_nodes", "-m", "gpufabric.rdma.hca_facts", **callback)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]
    return {name: result["ansible_facts"]["rdma"] for name, result in hosts.items()}
