"""`site --check` on captured machines with each example as shipped and on each distribution: each layer is planned."""

import hashlib
import json
import pathlib
import re

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import running, tree
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_cluster import bundle

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "inventory/examples"
# {example: (the machine of its nodes, {name on the machine: name in the example})}
MACHINES = {
    "air-gap": ("h100-8x-cx7-ib", {}),
    "aks-four-modes": ("nd-h100-v5", {}),
    "gh200-single": ("gh200-cx7-roce", {}),
    "ha": ("a100-8x-cx6", {}),
    "ipoib-nv-ipam": ("h100-8x-cx7-ib", {"ibp24s0": "ibs1f0", "ibp58s0": "ibs1f1"}),
    "rails-8x-h100": ("h100-8x-cx7-ib", {}),
    "sriov": ("two-cards-cx6dx", {"0000:af:00.0": "0000:d8:00.0", "0000:ae:00.0": "0000:d7:00.0"}),
}
SYSTEMS = ("debian-12", "debian-13", "rocky-9", "ubuntu-22.04", "ubuntu-24.04")
IN_CLUSTER = ("TASK [gpufabric.rdma.k3s : ", "TASK [gpufabric.rdma.networks : ")


def planned(folder, machines: dict, addresses: dict, *words) -> str:
    """Output of `site --check`. machines: {host: fixture}, each with the host's name and address."""
    hosts = {}
    for number, (host, machine) in enumerate(machines.items()):
        text = re.sub(r"\b192\.0\.2\.[123]\d\b", addresses.get(host, f"192.0.2.{101 + number}"), json.dumps(machine))
        root = tree.lay_out(json.loads(text), folder / host)
        (root / "proc/sys/kernel/hostname").write_text(f"{host}\n")
        for unit in root.glob("etc/systemd/system/k3s*.service"):
            unit.unlink()
        hosts[host] = {"discovery_root": str(root)}
    (folder / "machines.json").write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    before = {
        path: path.read_bytes() for host in hosts for path in (folder / host / "etc").rglob("*") if path.is_file()
    }
    code, output = running.play(folder, *words, "-i", "machines.json", "gpufabric.rdma.site", "--check")
    assert code == 0, output
    assert {path: path.read_bytes() for path in before} == before
    return output


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/hosts.yml")))
def test_an_example_plans_each_layer_of_its_machines(name, tmp_path):
    fixture, names = MACHINES[name]
    machine = json.dumps(tree.load(fixture))
    for old, new in names.items():
        machine = machine.replace(old, new)
    for path in (EXAMPLES / name).rglob("*.yml"):
        copy = tmp_path / "inventory" / path.relative_to(EXAMPLES / name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(re.sub(r"\[01:\d+\]", "[01:03]", path.read_text()))
    listed = running.play(tmp_path, "-i", "inventory", "--list", program=["ansible-inventory"])[1]
    hosts = json.loads(listed)["_meta"]["hostvars"]
    own = running.local(**({"k3s_bundle_dir": str(bundle(tmp_path / "bundle"))} if "/srv/bundle" in listed else {}))
    output = planned(
        tmp_path,
        {host: json.loads(machine) for host in hosts},
        {host: known["ansible_host"] for host, known in hosts.items() if "ansible_host" in known},
        *("-i", "inventory", "-e", json.dumps(own)),
    )
    assert {mark for mark in IN_CLUSTER if mark in output} == set(() if name == "aks-four-modes" else IN_CLUSTER)


def test_each_distribution_is_planned_with_its_own_packages(tmp_path):
    compose = tree.COMPOSED["compose"]
    machines = {system.replace(".", "-"): compose("h100-8x-cx7-ib", system=system) for system in SYSTEMS}
    machines["rocky-9"]["files"]["/sys/fs/selinux/enforce"] = "1"
    folder = bundle(tmp_path / "bundle")
    described = json.loads((folder / "bundle.yml").read_text())
    (folder / "policy.rpm").write_bytes(b"policy")
    policy = {"version": "1.6-1", "path": "policy.rpm", "sha256": hashlib.sha256(b"policy").hexdigest()}
    described["files"].append({"name": "k3s-selinux", "architecture": "any", "distribution": "rhel9", **policy})
    (folder / "bundle.yml").write_text(json.dumps(described))
    own = running.local(cluster=True, k3s_bundle_dir=str(folder))
    assert IN_CLUSTER[0] in planned(tmp_path, machines, {}, "-e", json.dumps(own))
