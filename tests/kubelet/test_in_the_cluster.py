"""The device plugin as a DaemonSet, in the place of the Go one, and beside it, under a real kubelet."""

from __future__ import annotations

import io
import json
import pathlib
import shutil
import tarfile
import tempfile
import time

import pytest
import yaml
from kubelet_bed import CHECKOUT, LAID_OVER, LATE, NODE, PAYLOAD, PLUGIN_IMAGE, RAIL0, laid_over_tree, timed

GUIDE = CHECKOUT / "tests/fixtures/guides/000-shared-device-plugin.yaml.txt"
SHARED_A, SHARED_B = "rdma/hca_shared_devices_a", "rdma/hca_shared_devices_b"
# The Go plugin sees the captured machine in a mount namespace; it asks the kernel for the netdevs by name.
GO_UNIT = """\
[Service]
ExecStart=/usr/bin/unshare --mount --propagation private /bin/sh -ec '\\
  mount --bind {payload}/tree/sys /sys; exec /srv/bed/peer/k8s-rdma-shared-dp -config-file {payload}/go.json'
Restart=on-failure
RestartSec=1
"""

# The RDMA side of the captured machine's HCAs, taken out of the tree as if no driver had come yet, and put back.
TAKE_OUT = f"cd {PAYLOAD}/tree/sys/devices && for d in */*/*/infiniband*; do mv $d ${{d%/*}}/late-${{d##*/}}; done"
PUT_BACK = f"cd {PAYLOAD}/tree/sys/devices && for d in */*/*/late-*; do mv $d ${{d%/*}}/${{d##*/late-}}; done"


@pytest.fixture(scope="module")
def images(bed):
    if not PLUGIN_IMAGE.exists():
        pytest.skip(f"not verified: {PLUGIN_IMAGE} is not there (make plugin-image)")
    start = time.monotonic()
    bed.node(f"blockdev --flushbufs /dev/vdc && head -c {bed.loaded} /dev/vdc | k3s ctr images import -")
    bed.times["image of the plugin imported"] = time.monotonic() - start
    bed.kubectl("label", "--overwrite", "node", NODE, "feature.node.kubernetes.io/rdma.capable=true")


@pytest.fixture
def alone(plugin, bed):
    """No plugin runs as a unit, and none is left over."""
    plugin.stop()
    yield
    bed.node("systemctl stop go-plugin 2>/dev/null; true")
    bed.kubectl("-n", "kube-system", "delete", "daemonset,configmap", "rdma-shared-dp-ds", "rdma-devices",
                "--ignore-not-found", "--wait")  # fmt: skip
    bed.wait(
        lambda: not bed.kubectl("-n", "kube-system", "get", "pods", "-l", "name=rdma-shared-dp-ds", "-o", "name"),
        "pods of the DaemonSet gone",
    )


def test_our_daemonset(bed, images, alone, times):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(CHECKOUT / "device_plugin/deploy", pathlib.Path(folder, "deploy"))
        config = {"periodicUpdateInterval": 300, "configList": [RAIL0]}
        pathlib.Path(folder, "deploy/config.json").write_text(json.dumps(config))
        with timed(times, "our DaemonSet applied -> allocatable"):
            bed.kubectl("apply", "--server-side", "-k", f"{folder}/deploy")
            bed.wait_resource("rdma/rail0", 20, 20)
    bed.run_pod(bed.pod("verbs", {"rdma/rail0": 1}, hostNetwork=True))
    assert "PORT_ACTIVE" in bed.inside("verbs", "ibv_devinfo -d rxe0")
    bed.take_port_down_and_up("our DaemonSet")
    before = bed.identity("verbs")
    times["our DaemonSet: k3s restarted -> allocatable"] = bed.restart_kubelet("rdma/rail0", 20)[1]
    assert bed.identity("verbs") == before
    bed.remove_pods("verbs")


def test_the_daemonset_of_a_published_guide_with_only_the_image_changed(bed, images, alone, times):
    config, daemonset = list(yaml.safe_load_all(GUIDE.read_text()))
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    container["image"] = LAID_OVER
    with timed(times, "guide 000's ConfigMap and DaemonSet applied -> 63 and 63 allocatable"):
        bed.apply(config, daemonset)
        bed.wait_resource(SHARED_A, 63, 63)
        bed.wait_resource(SHARED_B, 63, 63)


@pytest.fixture(scope="module")
def go_plugin(bed):
    """The unit of the Go plugin with the configuration of guide 000, over HCAs laid over the node's; not started."""
    with tempfile.TemporaryDirectory() as folder:
        laid_over_tree(pathlib.Path(folder))
        bring(bed, pathlib.Path(folder))
    bed.node("for name in ens8f0np0 ens8f1np1; do ip link add $name type dummy; done")
    config = yaml.safe_load(next(iter(GUIDE.read_text().split("\n---\n"))))["data"]["config.json"]
    bed.put(f"{PAYLOAD}/go.json", config)
    bed.put("/etc/systemd/system/go-plugin.service", GO_UNIT.format(payload=PAYLOAD))
    bed.node("systemctl daemon-reload")
    return "go-plugin"


def test_the_go_plugin_and_ours_with_the_same_resource(bed, plugin, go_plugin, alone, times):
    """Ours waits, says why, and takes over when the other one ends; nothing of the other one is broken meanwhile."""
    bed.node(f"systemctl start {go_plugin}")
    bed.wait_resource(SHARED_A, 63, 63)
    plugin.configure({**RAIL0, "resourceName": "hca_shared_devices_a"})
    plugin.start()
    bed.wait(lambda: "another process serves this socket" in plugin.log(), "ours to say that another one serves")
    assert bed.resource(SHARED_A) == ("63", "63")
    with timed(times, "Go plugin stopped -> ours has the resource"):
        bed.node(f"systemctl stop {go_plugin}")
        bed.wait_resource(SHARED_A, 20, 20)
    # The other way round: the Go plugin takes a live socket away without asking.
    with timed(times, "Go plugin started beside ours -> the kubelet follows it"):
        bed.node(f"systemctl start {go_plugin}")
        bed.wait_resource(SHARED_A, 63, 63)
    with timed(times, "Go plugin stopped again -> ours is back"):
        bed.node(f"systemctl stop {go_plugin}")
        bed.wait_resource(SHARED_A, 20, 20)
    plugin.stop()


def bring(bed, tree):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        archive.add(tree, "tree")
    bed.node(f"rm -rf {PAYLOAD}/tree && tar -C {PAYLOAD} -xf -", stdin=held.getvalue())


@pytest.mark.parametrize("which", ["Go", "ours"])
def test_both_after_a_restart_of_the_kubelet(bed, plugin, go_plugin, alone, times, which):
    """The same restart for either plugin, so that the times compare."""
    unit, resource, count = (go_plugin, SHARED_A, 63) if which == "Go" else (plugin.name, "rdma/rail0", 20)
    if which == "ours":
        plugin.configure(RAIL0)
        plugin.start()
    else:
        bed.node(f"systemctl start {go_plugin}")
    bed.wait_resource(resource, count, count)
    times[f"{which}: k3s restarted -> allocatable"] = bed.restart_kubelet(resource, count)[1]
    bed.node(f"systemctl stop {unit}")


def test_n13_hcas_whose_driver_comes_after_the_start_of_either_plugin(bed, plugin, go_plugin, alone, times):
    """The Go plugin offers nothing until its next scan (300 s in the guide) or a restart; ours sees them come."""
    bed.node(f"{TAKE_OUT} && ip link add dm9 type dummy && ip link set dm9 up && systemctl start {go_plugin}")
    plugin.configure(LATE)
    plugin.start()
    bed.wait_resource(SHARED_A, 0, 0)
    bed.wait_resource("rdma/late", 0, 0)
    with timed(times, "driver late: HCA there -> ours allocatable"):
        bed.node(f"{PUT_BACK} && rdma link add rxe9 type rxe netdev dm9")
        bed.wait_resource("rdma/late", 5, 5)
    time.sleep(60)
    assert bed.resource(SHARED_A) == ("0", "0"), "the Go plugin was expected not to have seen them yet"
    with timed(times, "driver late: Go plugin restarted by hand -> allocatable"):
        bed.node(f"systemctl restart {go_plugin}")
        bed.wait_resource(SHARED_A, 63, 63)
    bed.node("rdma link delete rxe9; ip link delete dm9")
    plugin.stop()
