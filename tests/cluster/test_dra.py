"""Shared RDMA over DRA on a lab node: claims that share an HCA, a GPU's double beside it, restarts and a reset.

The node's fabric NICs are each behind a PCIe root of their own (pxb-pcie). What plays a GPU is the root port above
each: the double of a GPU's driver (lab/testbed/dra) offers the functions of one PCI class.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

sys.path[:0] = [str(CHECKOUT / "lab")]

from lab import programs  # noqa: E402

DRIVER, GPU_DRIVER, GPU_CLASS = "rdma.gpufabric.io", "gpu.example.com", "gpu.nvidia.com"
ROOT = "resource.kubernetes.io/pcieRoot"
ROOT_PORTS = "0604"  # the PCI class of what plays a GPU
GPUS = (
    "systemd-run --quiet --unit=gpu-dra /usr/local/bin/gpu-dra -class {kind} -node-name {node}"
    " -kubeconfig /etc/rancher/k3s/k3s.yaml"
)
CLAIM_FILES = "ls /var/run/cdi 2>/dev/null | grep rdma-claim; true"
CHECKPOINT = f"cat /var/lib/kubelet/plugins/{DRIVER}/checkpoint.json 2>/dev/null; true"
SAID = "journalctl --boot --no-pager --unit=rdma-device-plugin --unit=k3s | grep -vi heartbeat | tail -n 60"
SPACE = lab_pitfalls.NAMESPACE
PATIENCE = 600
ROUNDS = int(os.environ.get("DRA_ROUNDS") or 3)


def template(name, **classes):
    requests = [{"name": key, "exactly": {"deviceClassName": one}} for key, one in classes.items()]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def pod(cluster, name, claim, command=("sleep", "100000")):
    """In the node's network, because soft-RoCE sends through it; as uid 1000 with what the claim brings."""
    made = lab_pitfalls.pod(name, None, on=cluster.server)
    spec = made["spec"]
    # With a grace of 0 the API server would drop the pod at once, and the kubelet unprepare its claim some time after.
    spec.update(hostNetwork=True, restartPolicy="Never", terminationGracePeriodSeconds=1)
    spec["securityContext"] = {"runAsUser": 1000, "runAsNonRoot": True}
    spec["resourceClaims"] = [{"name": "fabric", "resourceClaimTemplateName": claim}]
    spec["tolerations"] = [{"operator": "Exists"}]
    spec["containers"][0].update(command=list(command), resources={"claims": [{"name": "fabric"}]})
    return made


def start(cluster, *pods):
    lab_pitfalls.apply(cluster, *pods)
    for one in pods:
        name = one["metadata"]["name"]
        cluster.wait(lambda name=name: lab_pitfalls.running(cluster, name), f"{name} runs", PATIENCE)


def remove(cluster, *names):
    cluster.kubectl("delete", "pod", *names, "-n", SPACE, "--wait=true")


def slices(cluster, driver=DRIVER):
    """{name: {attribute: value}} of the devices that the node offers."""
    found = {}
    for item in cluster.get("resourceslices").get("items", ()):
        if item["spec"]["driver"] == driver and item["spec"].get("nodeName") == cluster.server:
            for device in item["spec"].get("devices") or ():
                attributes = device.get("attributes", {})
                found[device["name"]] = {key: next(iter(value.values())) for key, value in attributes.items()}
    return found


def results(cluster, name):
    """{request: (driver, device)} of a pod's claim."""
    for claim in cluster.get("resourceclaims", "-n", SPACE).get("items", ()):
        if any(owner["name"] == name for owner in claim["metadata"].get("ownerReferences") or ()):
            rows = claim["status"]["allocation"]["devices"]["results"]
            return {row["request"]: (row["driver"], row["device"]) for row in rows}
    return {}


def files(cluster):
    return cluster.node(cluster.server, CLAIM_FILES).split()


def ready(cluster):
    conditions = cluster.get("node", cluster.server).get("status", {}).get("conditions", ())
    return any((row["type"], row["status"]) == ("Ready", "True") for row in conditions)


def inside(cluster, name, *words):
    return cluster.kubectl("exec", name, "-n", SPACE, "--", *words)


def address(cluster, netdev):
    found = json.loads(cluster.node(cluster.server, f"ip -json -4 address show dev {netdev}"))
    return found[0]["addr_info"][0]["local"]


def talk(cluster, server, client, at):
    """Five rounds of rping from one running pod to the other."""
    background = f"rping -s -a {at} -C 5 >/dev/null 2>&1 &"
    inside(cluster, server, "sh", "-c", f"'{background}'")
    cluster.wait(
        lambda: (
            cluster.try_kubectl("exec", client, "-n", SPACE, "--", "rping", "-c", "-a", at, "-C", "5").returncode == 0
        ),
        f"rping from {client} to {server}",
        60,
    )


def nothing_left(cluster):
    cluster.wait(lambda: not files(cluster), "no CDI file of a claim", PATIENCE)
    said = cluster.node(cluster.server, CHECKPOINT)
    assert "uid" not in said, said
    cluster.wait(lambda: not cluster.get("resourceclaims", "-n", SPACE).get("items"), "no claim", PATIENCE)


@pytest.fixture(scope="module")
def over_dra(brought_up):
    """The cluster with the plugin in mode dra and the double of a GPU's driver."""
    with brought_up.timed("cluster.yml: device plugin to DRA"):
        done = brought_up.run("cluster.yml", "-e", "device_plugin_api=dra")
    assert done.code == 0, done.text[-6000:]
    with brought_up.timed("DRA: slices after the run"):
        brought_up.wait(lambda: slices(brought_up), "slices", PATIENCE)
    program = programs.ensure(["dra"])["dra"] / "gpu-dra"
    receive = "cat >/usr/local/bin/gpu-dra && chmod 755 /usr/local/bin/gpu-dra"
    with program.open("rb") as stream:
        subprocess.run([CHECKOUT / "lab/labctl", "ssh", brought_up.server, receive], stdin=stream, check=True)
    brought_up.node(brought_up.server, GPUS.format(kind=ROOT_PORTS, node=brought_up.server))
    expression = f"device.driver == '{GPU_DRIVER}'"
    gpus = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": GPU_CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    lab_pitfalls.apply(brought_up, gpus, template("rail0", rail=f"rail-0.{DRIVER}"))
    brought_up.wait(lambda: len(slices(brought_up, GPU_DRIVER)) == 2, "two GPUs", PATIENCE)
    yield brought_up
    brought_up.labctl("restore", "cluster")
    brought_up.wait(brought_up.settled, "all nodes Ready and all pods running")


def test_each_fabric_hca_is_at_a_root_of_its_own(over_dra):
    roots = {found["name"]: found.get(ROOT) for found in slices(over_dra).values()}
    assert roots["rxe0"] == "pci0000:40"
    assert roots["rxe1"] == "pci0000:80"
    assert {found[ROOT] for found in slices(over_dra, GPU_DRIVER).values()} == {"pci0000:40", "pci0000:80"}


def test_a_gpu_and_its_rail_are_aligned_over_both_roots(over_dra):
    made = yaml.safe_load((CHECKOUT / "docs/examples/dra/gpu-and-its-rail.yaml").read_text())
    made["metadata"]["namespace"] = SPACE
    lab_pitfalls.apply(over_dra, made)
    pairs = [pod(over_dra, f"pair-{number}", "gpu-and-its-rail") for number in range(2)]
    with over_dra.timed("DRA: two pods with GPU and rail, claim to running"):
        start(over_dra, *pairs)
    devices = {DRIVER: slices(over_dra), GPU_DRIVER: slices(over_dra, GPU_DRIVER)}
    seen = set()
    for number in range(2):
        roots = {devices[driver][name][ROOT] for driver, name in results(over_dra, f"pair-{number}").values()}
        assert len(roots) == 1
        seen |= roots
    assert seen == {"pci0000:40", "pci0000:80"}
    lab_pitfalls.apply(over_dra, pod(over_dra, "third", "gpu-and-its-rail"))
    over_dra.wait(lambda: "cannot allocate all claims" in lab_pitfalls.unscheduled(over_dra, "third"), "the reason")
    remove(over_dra, "pair-0", "pair-1", "third")
    nothing_left(over_dra)


def test_two_claims_share_one_hca_and_both_speak(over_dra):
    with over_dra.timed("DRA: two pods on one HCA, claim to running"):
        start(over_dra, pod(over_dra, "one", "rail0"), pod(over_dra, "other", "rail0"))
    hcas = {slices(over_dra)[name]["name"] for one in ("one", "other") for _d, name in results(over_dra, one).values()}
    assert hcas == {"rxe0"}
    assert len(files(over_dra)) == 2
    at = address(over_dra, "eth2")
    talk(over_dra, "one", "other", at)
    talk(over_dra, "other", "one", at)


def test_restarts_change_nothing_for_running_claims(over_dra):
    pods = [over_dra.get("pod", name, "-n", SPACE) for name in ("one", "other")]
    specs, offered = files(over_dra), set(slices(over_dra))
    for service in ("rdma-device-plugin", over_dra.kubelet_service(over_dra.server)):
        for number in range(ROUNDS):
            with over_dra.timed(f"DRA: {service} restarted, slices and driver back (round {number + 1})"):
                over_dra.node(over_dra.server, f"systemctl restart {service}")
                over_dra.wait(lambda: set(slices(over_dra)) == offered, "the same slices", PATIENCE)
                start(over_dra, pod(over_dra, "next", "rail0"))
            remove(over_dra, "next")
            # The kubelet unprepares before it lets the pod go.
            assert files(over_dra) == specs, over_dra.node(over_dra.server, SAID)
    for was in pods:
        now = over_dra.get("pod", was["metadata"]["name"], "-n", SPACE)
        assert now["metadata"]["uid"] == was["metadata"]["uid"]
        assert now["status"]["containerStatuses"][0]["restartCount"] == 0
    talk(over_dra, "one", "other", address(over_dra, "eth2"))


def test_a_node_reset_with_prepared_claims_leaks_nothing(over_dra):
    with over_dra.timed("DRA: node reset with two prepared claims, back"):
        over_dra.reboot(over_dra.server)
        over_dra.wait(lambda: slices(over_dra), "slices after the boot", PATIENCE)
    over_dra.wait(lambda: ready(over_dra), "the node Ready", PATIENCE)
    remove(over_dra, "one", "other")
    nothing_left(over_dra)
    with over_dra.timed("DRA: a pod with a claim after the reset, claim to running"):
        start(over_dra, pod(over_dra, "after", "rail0"))
    assert len(files(over_dra)) == 1
    remove(over_dra, "after")
    nothing_left(over_dra)
