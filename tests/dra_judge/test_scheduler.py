"""The real scheduler over our slices and a GPU driver's: two machines, twelve PCIe roots, sixteen GPUs and rails."""

from __future__ import annotations

import collections
import os
import signal
import time

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra
from dra_bed import CHECKOUT, DRIVER, GPU_DRIVER, RESOURCES, ROOT, Api, Refused, attribute

FIXTURES = {"node1": "a100-8x-cx6", "node2": "h100-8x-cx7-ib"}
POOLS = [{"resourceName": "rails", "rdmaHcaMax": 4, "selectors": {"vendors": ["15b3"], "linkTypes": ["infiniband"]}}]
PLACEMENTS = 100
AWAY = float(os.environ.get("DRA_AWAY_SECONDS") or 40)
# The class of the examples; here it stands for the double's devices.
GPU_CLASS = "gpu.nvidia.com"
EXAMPLES = CHECKOUT / "docs/examples/dra"
GPU = {"deviceClassName": GPU_CLASS}
RAIL = {"deviceClassName": f"rail.{DRIVER}"}
ALIGNED = {"requests": ["gpu", "rail"], "matchAttribute": ROOT}


@pytest.fixture(scope="module")
def cluster(bed):
    """Both nodes with their drivers, once all slices are there.

    Ours has the rights and the classes that the collection gives. Of the two forms of credential each bed tries one: an
    account a node, as for the systemd service, or the token of a pod, as for the DaemonSet.
    """
    bed.in_pods = bool(bed.gates)
    bed.space = "kube-system" if bed.in_pods else "gpufabric-rdma"
    nodes = [{"name": name, "rails": dict.fromkeys(range(8))} for name in FIXTURES]
    settings = {"in_pods": bed.in_pods, "namespace": bed.space, "extended_resources": False}
    bed.apply(dra.objects(nodes, settings))
    bed.device_class(GPU_CLASS, f"device.driver == '{GPU_DRIVER}'")
    for name, fixture in FIXTURES.items():
        node = bed.node(name, fixture)
        node.token = credential(bed, name)
        node.use(node.token)
        node.kubelet()
        node.gpus()
        node.daemon(POOLS)
    for node in map(bed.nodes.get, FIXTURES):
        bed.wait(lambda node=node: node.devices(GPU_DRIVER) and node.devices(DRIVER), f"slices of {node.name}")
    return bed


def credential(bed, name):
    if not bed.in_pods:
        return bed.token(bed.space, f"{dra.ACCOUNT_OF_NODE}{name}")
    pods = f"/api/v1/namespaces/{bed.space}/pods"
    spec = {"nodeName": name, "serviceAccountName": dra.ACCOUNT, "containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"plugin-{name}"}, "spec": spec}
    return bed.token(bed.space, dra.ACCOUNT, bed.api.ask("POST", pods, pod))


def example(cluster, name):
    """Applies the template of an example as it stands."""
    found = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    cluster.apply([{**found, "metadata": {**found["metadata"], "namespace": "default"}}])


def refused(api, method, path, body=None):
    with pytest.raises(Refused) as error:
        api.ask(method, path, body)
    return f"{error.value.code} {error.value.message}"


def test_a_node_writes_its_own_slices_and_no_others(cluster):
    """Tried with the credential of node1's daemon; what is dry is admitted, and refused, all the same."""
    api = Api(cluster.plane.kubeconfig, cluster.nodes["node1"].token)
    slices, dry = f"{RESOURCES}/resourceslices", "?dryRun=All"

    def made(node, driver=DRIVER, pool=None):
        spec = {"driver": driver, "nodeName": node, "devices": []}
        spec["pool"] = {"name": pool or node, "generation": 99, "resourceSliceCount": 1}
        document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        return {**document, "metadata": {"name": f"tried-{node}"}, "spec": spec}

    def of(node):
        found = [row for row in api.items(slices) if row["spec"]["driver"] == DRIVER]
        return next(row for row in found if row["spec"]["nodeName"] == node)

    api.ask("POST", slices + dry, made("node1"))
    other = of("node2")
    path = f"{slices}/{other['metadata']['name']}"
    said = [refused(api, "POST", slices + dry, made("node2")), refused(api, "PUT", path + dry, other)]
    said.append(refused(api, "DELETE", path + dry))
    assert all(text.startswith("403") and "node1" in text and "node2" in text for text in said), said
    assert refused(api, "POST", slices + dry, made("node1", GPU_DRIVER)).startswith("403")
    assert refused(api, "POST", slices + dry, made("node1", pool="node2")).startswith("403")
    assert refused(api, "GET", "/api/v1/nodes").startswith("403")
    assert refused(api, "GET", "/api/v1/namespaces/default/secrets").startswith("403")
    form = "a pod's token" if cluster.in_pods else "an account a node"
    cluster.figures.append(f"{cluster.form}: {form}: node1 on node2's slices: {said[0]}")


def test_a_token_that_names_no_node_writes_nothing(cluster):
    if not cluster.in_pods:
        pytest.skip("an account a node has the node's name in its own")
    api = Api(cluster.plane.kubeconfig, cluster.token(cluster.space, dra.ACCOUNT))
    name = next(row["metadata"]["name"] for row in api.items(f"{RESOURCES}/resourceslices"))
    assert "names no node" in refused(api, "DELETE", f"{RESOURCES}/resourceslices/{name}?dryRun=All")


def hca(device):
    return attribute(device, "name")


def test_pairs_are_aligned_in_every_placement(cluster):
    """GPU and rail of one PCIe root, as many at a time as there are GPUs, until a hundred were placed."""
    example(cluster, "gpu-and-its-rail")
    roots, hcas, slowest, placed, start = collections.Counter(), collections.Counter(), 0.0, 0, time.monotonic()
    while placed < PLACEMENTS:
        names = [f"pair-{placed + number}" for number in range(min(16, PLACEMENTS - placed))]
        for name in names:
            cluster.pod(name, "gpu-and-its-rail")
        slowest = max(
            slowest,
            cluster.wait(lambda names=names: all(cluster.phases()[pod] == "Running" for pod in names), "pods run"),
        )
        for name in names:
            got = cluster.allocation(name)
            (node, gpu), (_same, rail) = got["gpu"], got["rail"]
            assert attribute(gpu, ROOT) == attribute(rail, ROOT), (name, gpu, rail)
            roots[node.name, attribute(rail, ROOT)] += 1
            hcas[node.name, hca(rail)] += 1
        for name in names:
            cluster.delete(name)
        cluster.wait(lambda names=names: cluster.gone(names), "pods and claims gone")
        placed += len(names)
    assert len(roots) == 12, f"placements went to {sorted(roots)} only"
    cluster.figures.append(
        f"{cluster.form}: {placed} of {placed} pairs of GPU and rail on one PCIe root, {len(roots)} roots,"
        f" {len(hcas)} HCAs, {time.monotonic() - start:.0f} s; 16 pods at once run after {slowest:.1f} s at most"
    )


def test_a_node_of_eight_gpus_and_eight_rails_is_one_claim(cluster):
    """The example for whole nodes: each node takes one pod, each of its GPUs has the rail at its root."""
    example(cluster, "eight-gpus-and-eight-rails")
    names = [f"whole-{number}" for number in range(len(FIXTURES) + 1)]
    for name in names:
        cluster.pod(name, "eight-gpus-and-eight-rails")
    full = len(FIXTURES)
    took = cluster.wait(lambda: sum(cluster.phases()[pod] == "Running" for pod in names) == full, "whole nodes")
    ran = [name for name in names if cluster.phases()[name] == "Running"]
    (left,) = set(names) - set(ran)
    cluster.wait(lambda: cluster.reason(left), "the scheduler's reason")
    for name in ran:
        got = cluster.allocation(name)
        rails = [got[f"rail{number}"][1] for number in range(8)]
        assert [attribute(rail, "rail") for rail in rails] == list(range(8))
        for number, rail in enumerate(rails):
            assert attribute(rail, ROOT) == attribute(got[f"gpu{number}"][1], ROOT), (name, number, got)
    for name in names:
        cluster.delete(name)
    cluster.wait(lambda: cluster.gone(names), "pods and claims gone")
    cluster.figures.append(f"{cluster.form}: eight GPUs and eight rails in one claim, each pair aligned: {took:.1f} s")


def test_two_rails_of_one_numa_node(cluster):
    if not cluster.gates:
        pytest.skip("the example needs DRAConsumableCapacity")
    example(cluster, "two-rails-of-one-numa-node")
    names = [f"numa-{number}" for number in range(4)]
    for name in names:
        cluster.pod(name, "two-rails-of-one-numa-node")
    cluster.wait(lambda: all(cluster.phases()[pod] == "Running" for pod in names), "pods run")
    for name in names:
        found = [device for _node, device in cluster.allocation(name).values()]
        assert len({attribute(device, "numaNode") for device in found}) == 1
        assert len({attribute(device, "rail") for device in found}) == 2
    for name in names:
        cluster.delete(name)
    cluster.wait(lambda: cluster.gone(names), "pods and claims gone")


def test_what_cannot_be_stays_pending_with_the_reason(cluster):
    other = {"selectors": [{"cel": {"expression": f"device.attributes['{DRIVER}'].psid == 'MT_0000000000'"}}]}
    cluster.template("nowhere", {"gpu": GPU, "rail": {**RAIL, **other}}, [ALIGNED])
    cluster.pod("nowhere", "nowhere")
    cluster.wait(lambda: cluster.reason("nowhere"), "the scheduler's reason")
    assert "cannot allocate all claims" in cluster.reason("nowhere")
    assert cluster.phases()["nowhere"] == "Pending"
    cluster.figures.append(f"{cluster.form}: impossible claim Pending: {cluster.reason('nowhere')}")
    cluster.delete("nowhere")
    cluster.wait(lambda: cluster.gone(["nowhere"]), "pod and claim gone")


def test_rails_of_one_claim_are_different_hcas(cluster):
    """Two shares of one HCA are never taken for two rails: a class a rail, or distinctAttribute with the gate."""
    forms = {"classes": ({f"rail{n}": {"deviceClassName": f"rail-{n}.{DRIVER}"} for n in range(8)}, [])}
    if cluster.gates:
        several = {f"rail{n}": RAIL for n in range(4)}
        forms["distinct"] = (several, [{"requests": list(several), "distinctAttribute": f"{DRIVER}/name"}])
    for form, (requests, constraints) in forms.items():
        cluster.template(form, requests, constraints)
        # More pods than there are nodes: each HCA is in several of them at once.
        names = [f"{form}-{number}" for number in range(6)]
        for name in names:
            cluster.pod(name, form)
        cluster.wait(lambda names=names: all(cluster.phases()[pod] == "Running" for pod in names), "pods run")
        for name in names:
            found = [hca(device) for _node, device in cluster.allocation(name).values()]
            assert len(set(found)) == len(requests), (name, found)
        for name in names:
            cluster.delete(name)
        cluster.wait(lambda names=names: cluster.gone(names), "pods and claims gone")
        cluster.figures.append(
            f"{cluster.form}: {len(names)} claims of {len(requests)} rails by {form}: {len(requests)} HCAs each"
        )


def test_without_a_constraint_two_shares_of_one_hca_can_be_one_claim(cluster):
    """Why the examples name a class a rail: what is asked for twice may come from one HCA."""
    first = hca(next(iter(cluster.nodes["node1"].devices(DRIVER).values())))
    same = {"selectors": [{"cel": {"expression": f"device.attributes['{DRIVER}'].name == '{first}'"}}]}
    cluster.template("twice", {f"rail{n}": {**RAIL, **same} for n in range(2)}, [])
    cluster.pod("twice", "twice")
    cluster.wait(lambda: cluster.phases()["twice"] == "Running", "pod runs")
    assert {hca(device) for _node, device in cluster.allocation("twice").values()} == {first}
    cluster.delete("twice")
    cluster.wait(lambda: cluster.gone(["twice"]), "pod and claim gone")


def test_an_hca_has_as_many_claims_as_shares_and_no_more(cluster):
    cluster.template("rail0", {"rail": {"deviceClassName": f"rail-0.{DRIVER}"}}, [])
    shares = POOLS[0]["rdmaHcaMax"] * len(cluster.nodes)
    names = [f"share-{number}" for number in range(shares + 1)]
    for name in names:
        cluster.pod(name, "rail0")
    cluster.wait(lambda: sum(cluster.phases()[pod] == "Running" for pod in names) == shares, f"{shares} pods run")
    (left,) = (name for name in names if cluster.phases()[name] == "Pending")
    cluster.wait(lambda: cluster.reason(left), "the scheduler's reason")
    cluster.delete(next(name for name in names if name != left))
    cluster.wait(lambda: cluster.phases()[left] == "Running", "the last one, as soon as a share is free")
    for name in names:
        cluster.delete(name)
    cluster.wait(lambda: cluster.gone(names), "pods and claims gone")


def usable(node, name):
    """Whether pods may still get a port of this HCA."""
    found = [device for device in node.devices(DRIVER).values() if hca(device) == name]
    return bool(found) and not any(device.get("taints") for device in found)


def set_port(node, name, state):
    path = node.tree / f"sys/class/infiniband/{name}/ports/1/state"
    path.with_suffix(".new").write_text(f"{state}\n")
    path.with_suffix(".new").rename(path)


def test_a_port_that_goes_down_leaves_or_is_tainted_and_comes_back(cluster):
    node = cluster.nodes["node1"]
    name = hca(next(iter(node.devices(DRIVER).values())))
    set_port(node, name, "1: DOWN")
    down = cluster.wait(lambda: not usable(node, name), f"{name} is not usable")
    set_port(node, name, "4: ACTIVE")
    up = cluster.wait(lambda: usable(node, name), f"{name} is usable again")
    cluster.figures.append(f"{cluster.form}: port down to slice {down:.1f} s, up to slice {up:.1f} s (polled files)")


def test_an_api_server_that_hangs_takes_nothing_away(cluster):
    """Claims stay prepared, the daemon stays registered; what happened meanwhile is in the slices afterwards."""
    node = cluster.nodes["node1"]
    name = hca(next(iter(node.devices(DRIVER).values())))
    cluster.template("held", {"rail": RAIL}, [])
    cluster.pod("held", "held", nodeSelector={"pool": node.name})
    cluster.wait(lambda: cluster.phases()["held"] == "Running", "pod runs")
    files = sorted(path.name for path in node.cdi.iterdir())
    assert files
    cluster.plane.signal("kube-apiserver", signal.SIGSTOP)
    try:
        set_port(node, name, "1: DOWN")
        time.sleep(AWAY)
        node.require()
        assert sorted(path.name for path in node.cdi.iterdir()) == files
        assert (node.base / f"plugins/{DRIVER}/dra.sock").exists()
    finally:
        cluster.plane.signal("kube-apiserver", signal.SIGCONT)
    took = cluster.wait(lambda: not usable(node, name), f"{name} is not usable")
    set_port(node, name, "4: ACTIVE")
    cluster.wait(lambda: usable(node, name), f"{name} is usable again")
    cluster.delete("held")
    cluster.wait(lambda: cluster.gone(["held"]), "pod and claim gone")
    cluster.figures.append(
        f"{cluster.form}: API server away for {AWAY:.0f} s: slices right {took:.1f} s after it came back"
    )


def test_nothing_is_left_on_the_nodes(cluster):
    """After all of these pods: no CDI file of a claim, no prepared claim of the kubelet."""
    for node in cluster.nodes.values():
        left = [path.name for path in node.cdi.iterdir()]
        assert not left, left
        assert "ClaimUID" not in (node.base / "state/dra_manager_state").read_text()


def test_pods_are_refused_by_nobody(cluster):
    for node in cluster.nodes.values():
        refused = [line for line in node.log("kubelet").read_text().splitlines() if " refused: " in line]
        assert not refused, refused
