"""Shared RDMA over DRA on the lab's nodes: claims that share an HCA, a GPU's double next to it, restarts and a reset.

eth2 and eth3 of a node are each behind their own PCIe root (pxb-pcie); the other fabric NICs share a third. A root port
plays a GPU: the double of a GPU's driver (lab/testbed/dra) offers one function of a PCI class at each root.
"""

import json
import subprocess
import sys
import time

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.kubectl_cluster import api_object
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import CHECKOUT
from ansible_collections.gpufabric.rdma.tests.tools.lab_pitfalls import inside

sys.path[:0] = [str(CHECKOUT / "lab")]

from lab import programs  # noqa: E402

DRIVER, GPU_DRIVER, GPU_CLASS = "rdma.gpufabric.io", "gpu.example.com", "gpu.nvidia.com"
ROOT = "resource.kubernetes.io/pcieRoot"
ROOTS = {"pci0000:40", "pci0000:80", "pci0000:c0"}
# The kubelet's credential may write its own node's slices.
GPUS = (
    "systemd-run --quiet --unit=gpu-dra /usr/local/bin/gpu-dra -class {kind} -node-name {node}"
    " -kubeconfig /var/lib/rancher/k3s/agent/kubelet.kubeconfig"
)
CLAIM_FILES = "ls /var/run/cdi 2>/dev/null | grep 'rdma-claim.*json$'; true"
SAID = "journalctl --boot --no-pager --unit=rdma-device-plugin --unit=k3s | grep -vi heartbeat | tail -n 60"
SPACE = lab_pitfalls.NAMESPACE
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/fabric/*/*-metadata.json"
PATIENCE = 600
# Restarts of plugin and of k3s, pods with GPU and rail, pods that get the interface of their rail.
ROUNDS, PLACEMENTS, NETWORKS = 3, 8, 12


def template(name, **classes):
    requests = [{"name": key, "exactly": {"deviceClassName": one}} for key, one in classes.items()]
    spec = {"spec": {"devices": {"requests": requests}}}
    return api_object("resource.k8s.io/v1", "ResourceClaimTemplate", name, SPACE, spec=spec)


def plain(cluster, name):
    """On the server, in its network, because soft-RoCE sends through it; as uid 1000."""
    made = lab_pitfalls.pod(name, None, on=cluster.server)
    # With a grace of 0 the API server would drop the pod at once, and the kubelet would unprepare its claim later.
    made["spec"].update(hostNetwork=True, restartPolicy="Never", terminationGracePeriodSeconds=1)
    made["spec"]["securityContext"] = {"runAsUser": 1000, "runAsNonRoot": True}
    made["spec"]["tolerations"] = [{"operator": "Exists"}]
    return made


def pod(cluster, name, claim):
    """The same with a claim from this template."""
    made = plain(cluster, name)
    made["spec"]["resourceClaims"] = [{"name": "fabric", "resourceClaimTemplateName": claim}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "fabric"}]}
    return made


def anywhere(pod):
    """The pod, on the node that the scheduler chooses."""
    del pod["spec"]["nodeSelector"]
    return pod


def start(cluster, *pods):
    lab_pitfalls.start(cluster, *pods, patience=PATIENCE)


def remove(cluster, *names):
    cluster.kubectl("delete", "pod", *names, "-n", SPACE, "--wait=true")


def slices(cluster, driver=DRIVER):
    """{(node, device): {attribute: value}} of offered devices."""
    found = {}
    for item in cluster.get("resourceslices").get("items", ()):
        if item["spec"]["driver"] == driver:
            for device in item["spec"].get("devices") or ():
                attributes = device.get("attributes", {})
                key = (item["spec"]["nodeName"], device["name"])
                found[key] = {key: next(iter(value.values())) for key, value in attributes.items()}
    return found


def offering(cluster, driver=DRIVER):
    """The nodes with devices."""
    return {node for node, _device in slices(cluster, driver)}


def results(cluster):
    """{pod: {request: (driver, pool, device)}} of all claims. A pool is a node's."""
    found = {}
    for claim in cluster.get("resourceclaims", "-n", SPACE).get("items", ()):
        rows = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        for owner in claim["metadata"].get("ownerReferences") or ():
            found[owner["name"]] = {row["request"]: (row["driver"], row["pool"], row["device"]) for row in rows}
    return found


def files(cluster):
    return cluster.node(cluster.server, CLAIM_FILES).split()


def ready(cluster):
    conditions = cluster.get("node", cluster.server).get("status", {}).get("conditions", ())
    return any((row["type"], row["status"]) == ("Ready", "True") for row in conditions)


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
    cluster.wait(lambda: not cluster.get("resourceclaims", "-n", SPACE).get("items"), "no claim", PATIENCE)


def changed_to(cluster, mode, *more):
    with cluster.timed(f"cluster.yml: plugin to {mode}"):
        cluster.succeed("cluster.yml", "-e", f"device_plugin_api={mode}", *more)


@pytest.fixture(scope="module")
def over_dra(brought_up):
    """The cluster with the plugin in mode dra and the double of a GPU's driver."""
    changed_to(brought_up, "dra", "-e", "networks_in_claims=true")
    with brought_up.timed("DRA: slices after the run"):
        brought_up.wait(lambda: offering(brought_up) == set(brought_up.nodes), "slices", PATIENCE)
    program = programs.ensure(["dra"])["dra"] / "gpu-dra"
    receive = "cat >/usr/local/bin/gpu-dra && chmod 755 /usr/local/bin/gpu-dra"
    for name in brought_up.nodes:
        with program.open("rb") as stream:
            subprocess.run([CHECKOUT / "lab/labctl", "ssh", name, receive], stdin=stream, check=True)
        # The PCI class of the device that plays a GPU.
        brought_up.node(name, GPUS.format(kind="0604", node=name))
    expression = f"device.driver == '{GPU_DRIVER}'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    gpus = api_object("resource.k8s.io/v1", "DeviceClass", GPU_CLASS, spec=spec)
    lab_pitfalls.apply(brought_up, gpus, template("rail0", rail=f"rail-0.{DRIVER}"))
    count = len(ROOTS) * len(brought_up.nodes)
    brought_up.wait(lambda: len(slices(brought_up, GPU_DRIVER)) == count, f"{count} GPUs", PATIENCE)
    yield brought_up
    brought_up.labctl("restore", "cluster")
    brought_up.wait(brought_up.settled, "all nodes Ready and all pods running")


def test_gpus_and_their_rails_are_aligned_wherever_they_are_placed(over_dra):
    """As many pods at once as there are GPUs, on the nodes and roots that the scheduler chooses."""
    made, _pod = yaml.safe_load_all((CHECKOUT / "docs/examples/dra/gpu-and-its-rail.yaml").read_text())
    made["metadata"]["namespace"] = SPACE
    lab_pitfalls.apply(over_dra, made)
    devices = {DRIVER: slices(over_dra), GPU_DRIVER: slices(over_dra, GPU_DRIVER)}
    at_once, places = len(devices[GPU_DRIVER]), []
    while len(places) < PLACEMENTS:
        names = [f"pair-{number}" for number in range(min(at_once, PLACEMENTS - len(places)))]
        begun = time.monotonic()
        start(over_dra, *(anywhere(pod(over_dra, name, "gpu-and-its-rail")) for name in names))
        took = time.monotonic() - begun
        had = results(over_dra)
        for name in names:
            found = {(pool, devices[driver][pool, device][ROOT]) for driver, pool, device in had[name].values()}
            assert len(had[name]) == 2
            assert len(found) == 1, had[name]
            places += found
        if len(names) == at_once:
            assert len(set(places[-at_once:])) == at_once  # each root of each node once
            lab_pitfalls.apply(over_dra, anywhere(pod(over_dra, "more", "gpu-and-its-rail")))
            over_dra.wait(lambda: "cannot allocate all claims" in lab_pitfalls.unscheduled(over_dra, "more"), "why")
            if len(places) == at_once:
                over_dra.note(f"{took:7.1f} s  DRA: {at_once} pods with GPU and rail, claim to running")
                is_named(over_dra, "more")
            names.append("more")
        remove(over_dra, *names)
    over_dra.note(f"{len(places):7}    pairs of GPU and rail placed, all aligned, over {len(set(places))} roots")
    nothing_left(over_dra)


def is_named(cluster, name):
    """verify says why the claim of this pod is not allocated, and what to do next."""
    run = cluster.run("verify.yml", "-e", f"verification_pod={SPACE}/{name}")
    found = [
        check for host in cluster.nodes for check in run.checks(host, "failed") if check["id"] == "pod:claim:fabric"
    ]
    assert found, run.text[-4000:]
    assert "cannot allocate all claims" in found[0]["seen"]
    assert "resourceclaims -A" in found[0]["next_step"]


def test_a_rail_comes_with_its_network_by_the_number_of_its_class(over_dra):
    """The network of the allocated rail, as in docs/dra.md; soft-RoCE has no verbs over it."""
    one = pod(over_dra, "railed", "rail0")
    one["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "default/rail0"}
    one["spec"]["hostNetwork"] = False
    attachment = over_dra.get("network-attachment-definition", "rail0")["metadata"]["annotations"]
    assert attachment[f"{DRIVER}/device-class"] == f"rail-0.{DRIVER}"
    start(over_dra, one)
    assert "net1" in lab_pitfalls.addresses(over_dra, "railed")
    hca = next(slices(over_dra)[pool, device] for _driver, pool, device in results(over_dra)["railed"].values())
    assert (hca["rail"], hca["name"]) == (0, "rxe0")
    assert "uverbs" in inside(over_dra, "railed", "ls", "/dev/infiniband")
    remove(over_dra, "railed")
    nothing_left(over_dra)


def of_sandboxes(cluster):
    """{address of eth0: {interface: address}} of every pod with its own network."""
    found = {}
    for node in cluster.nodes:
        listed = "for name in $(ls /run/netns); do ip -n $name -json -4 address show | tr -d '\\n'; echo; done"
        for line in cluster.node(node, listed).splitlines():
            held = {row["ifname"]: row["addr_info"][0]["local"] for row in json.loads(line) if row.get("addr_info")}
            found[held.get("eth0")] = held
    return found


def test_claims_bring_the_interfaces_of_their_rails(over_dra):
    """No annotation, no attachment object: many pods, each with an interface of the rail whose HCA it got."""
    rails = sorted({found["rail"] for found in slices(over_dra).values()})
    config = [{"opaque": {"driver": DRIVER, "parameters": {"apiVersion": f"{DRIVER}/v1", "kind": "Network"}}}]
    for number in rails:
        made = template(f"with-network-{number}", rail=f"rail-{number}.{DRIVER}")
        made["spec"]["spec"]["devices"]["config"] = config
        lab_pitfalls.apply(over_dra, made)
    wanted = {f"net-{index}": rails[index % len(rails)] for index in range(NETWORKS)}
    pods = [anywhere(pod(over_dra, name, f"with-network-{number}")) for name, number in wanted.items()]
    for one in pods:
        one["spec"]["hostNetwork"] = False
    with over_dra.timed(f"DRA: {NETWORKS} pods over {len(rails)} rails with their interfaces, claim to running"):
        start(over_dra, *pods)
    offered, had, places = slices(over_dra), results(over_dra), {}
    running = {item["metadata"]["name"]: item["status"]["podIP"] for item in over_dra.get("pods", "-n", SPACE)["items"]}
    interfaces = of_sandboxes(over_dra)
    for name, number in wanted.items():
        held = interfaces[running[name]]
        assert [netdev for netdev in held if netdev.startswith("rail")] == [f"rail{number}"], name
        ((_driver, node, device),) = had[name].values()
        assert offered[node, device]["rail"] == number
        places[held[f"rail{number}"]] = node
    assert len(places) == NETWORKS, "no address twice"
    assert set(places.values()) == set(over_dra.nodes)
    remove(over_dra, *wanted)
    nothing_left(over_dra)
    for name in over_dra.nodes:
        kept = over_dra.node(
            name, "ls /var/lib/cni/rdma-claim /var/lib/cni/networks/rail*/ | grep -v last_reserved; true"
        )
        assert not [line for line in kept.split() if line[0].isdigit() or line.endswith(".json")], kept


def test_two_claims_share_one_hca_and_both_speak(over_dra):
    with over_dra.timed("DRA: two pods on one HCA, claim to running"):
        start(over_dra, pod(over_dra, "one", "rail0"), pod(over_dra, "other", "rail0"))
    offered, had = slices(over_dra), results(over_dra)
    taken = [row for one in ("one", "other") for row in had[one].values()]
    assert [offered[pool, device]["name"] for _driver, pool, device in taken] == ["rxe0", "rxe0"]
    assert len(files(over_dra)) == 2
    told = inside(over_dra, "one", "sh", stdin=f"head -n 1 {METADATA}")
    assert json.loads(told)["requests"][0]["devices"][0]["attributes"]["name"] == {"string": "rxe0"}
    at = address(over_dra, "eth2")
    talk(over_dra, "one", "other", at)
    talk(over_dra, "other", "one", at)


@pytest.mark.parametrize(
    ("hca", "what", "take", "give"),
    [
        ("rxe0", "link", "ip link set eth2 down", "ip link set eth2 up"),
        ("rxe1", "HCA", "rdma link delete rxe1", "rdma link add rxe1 type rxe netdev eth3"),
    ],
)
def test_what_goes_leaves_the_slices_and_comes_back(over_dra, hca, what, take, give):
    def offered():
        return [found for (node, _device), found in slices(over_dra).items() if (node, found["name"]) == wanted]

    wanted = (over_dra.server, hca)
    assert offered()
    with over_dra.timed(f"DRA: {what} of {hca} gone -> offered to nobody"):
        over_dra.node(over_dra.server, take)
        over_dra.wait(lambda: slices(over_dra) and not offered(), f"no {hca}", PATIENCE)
    with over_dra.timed(f"DRA: {what} of {hca} back -> offered"):
        over_dra.node(over_dra.server, give)
        over_dra.wait(offered, hca, PATIENCE)


def test_restarts_change_nothing_for_running_claims(over_dra):
    pods = [over_dra.get("pod", name, "-n", SPACE) for name in ("one", "other")]
    specs, offered = files(over_dra), set(slices(over_dra))
    over_dra.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={DRIVER}")
    over_dra.wait(lambda: set(slices(over_dra)) == offered, "the slices that somebody has deleted", PATIENCE)
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
        over_dra.wait(lambda: offering(over_dra) == set(over_dra.nodes), "slices after the boot", PATIENCE)
    over_dra.wait(lambda: ready(over_dra), "the node Ready", PATIENCE)
    remove(over_dra, "one", "other")
    nothing_left(over_dra)
    with over_dra.timed("DRA: a pod with a claim after the reset, claim to running"):
        start(over_dra, pod(over_dra, "after", "rail0"))
    assert len(files(over_dra)) == 1
    remove(over_dra, "after")
    nothing_left(over_dra)


def test_both_serves_each_rail_one_way(over_dra):
    changed_to(over_dra, "both", "-e", '{"device_plugin_dra_rails": [1]}')

    def rails():
        return {(node, found["rail"]) for (node, _device), found in slices(over_dra).items()}

    over_dra.wait(lambda: rails() == {(name, 1) for name in over_dra.nodes}, "only rail 1 over DRA", PATIENCE)
    over_dra.wait(lambda: (over_dra.allocatable(lab_pitfalls.RESOURCE) or 0) > 0, "rail 0 as a resource", PATIENCE)
