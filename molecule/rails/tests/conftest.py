"""Which hosts the tests visit, and what Ansible itself has to say about them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
SCENARIO = CHECKOUT / "molecule/rails"
INVENTORY = ("-i", str(CHECKOUT / "lab/nspawnctl"), "-i", str(SCENARIO / "inventory"))


def groups() -> dict:
    listing = subprocess.run([CHECKOUT / "lab/nspawnctl", "--list"], capture_output=True, text=True, check=True)
    return {name: group["hosts"] for name, group in json.loads(listing.stdout).items() if "hosts" in group}


def ansible(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command of Ansible, with the settings of the checkout."""
    return subprocess.run(
        [*words, *INVENTORY],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    nodes = groups()["gpu_nodes"]
    if not nodes:
        raise pytest.UsageError(
            "molecule/rails/tests: wanted: nodes that run; seen: none; next: molecule create -s rails"
        )
    config.option.hosts = ",".join(f"ssh://{node}" for node in nodes)
    config.option.ssh_config = config.option.ssh_config or str(CHECKOUT / ".lab/nspawn/ssh/config")


@pytest.fixture(scope="session")
def facts() -> dict[str, dict]:
    """ansible_facts.rdma of every node, as hca_facts gives them over SSH."""
    callback = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}
    done = ansible("ansible", "gpu_nodes", "-m", "gpufabric.rdma.hca_facts", **callback)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]
    return {name: result["ansible_facts"]["rdma"] for name, result in hosts.items()}


@pytest.fixture
def node(host) -> str:
    return host.backend.get_hostname()
