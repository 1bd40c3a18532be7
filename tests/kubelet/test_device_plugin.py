"""The device plugin under a real kubelet, with real soft-RoCE HCAs. The tests build on one another, in this order."""

from __future__ import annotations

import json

from kubelet_bed import LATE, PAYLOAD, RAIL0, timed

RAIL1 = {**RAIL0, "resourceName": "rail1", "selectors": {"ifNames": ["eth3"]}}
POOLS = (RAIL0, RAIL1, LATE)
LISTING = "cd /dev/infiniband && stat -c '%n %a %F' * | sort"


def wait_rails(bed):
    return max(bed.wait_resource("rdma/rail0", 20, 20), bed.wait_resource("rdma/rail1", 20, 20))


def files_of(bed, hca):
    """The character devices of one HCA, as the node's sysfs names them."""
    script = f"""
for class in infiniband_verbs infiniband_mad; do
  for entry in /sys/class/$class/*/ibdev; do
    [ "$(cat $entry)" = {hca} ] && basename $(dirname $entry)
  done
done
"""
    return set(bed.node(script, check=False).split())


def test_a_unit_that_the_kubelet_finds_in_plugins_registry(bed, plugin, times):
    plugin.configure(*POOLS)
    with timed(times, "unit started -> allocatable (plugins_registry)"):
        plugin.start()
        wait_rails(bed)
    assert bed.resource("rdma/late") == ("0", "0")
    assert "Using Kubelet Plugin Registry Mode" in plugin.log()
    assert "rail0.sock" in bed.node("ls /var/lib/kubelet/plugins_registry")


def test_a_pod_of_uid_1000_gets_exactly_its_files(bed, times):
    with timed(times, "pod with rdma/rail0 applied -> Running"):
        bed.run_pod(bed.pod("verbs", {"rdma/rail0": 1}, hostNetwork=True))
    assert bed.inside("verbs", "id -u") == "1000"
    seen = {line.split()[0]: line for line in bed.inside("verbs", LISTING).splitlines()}
    wanted = files_of(bed, "rxe0")
    assert {"uverbs0"} <= wanted
    assert set(seen) == wanted | {"rdma_cm"}
    assert all("character special file" in line for line in seen.values())


def test_the_pod_runs_ibv_devinfo_and_rping(bed, times):
    text = bed.inside("verbs", "ibv_devinfo -d rxe0")
    assert "PORT_ACTIVE" in text
    assert "Ethernet" in text
    # uverbs of other HCAs show in sysfs, which is not namespaced, and cannot be opened.
    assert "rxe1" in bed.inside("verbs", "ls /sys/class/infiniband")
    assert "PORT_ACTIVE" not in bed.inside("verbs", "ibv_devinfo -d rxe1 2>&1", check=False)
    bed.run_pod(bed.pod("server", {"rdma/rail0": 1}, "rping -s -a 10.77.1.1 -C 5 -v", hostNetwork=True))
    with timed(times, "rping of two pods, 5 rounds"):
        bed.inside("verbs", "rping -c -a 10.77.1.1 -C 5")
        bed.wait_phase("server", "Succeeded")
    assert bed.logs("server").count("server ping data") == 5
    bed.remove_pods("server")


def test_port_down_takes_the_devices_away_and_port_up_brings_them_back(bed, times):
    before = bed.identity("verbs")
    with timed(times, "port down -> allocatable 0"):
        bed.node("ip link set eth2 down")
        bed.wait_resource("rdma/rail0", 0, 20)
    assert bed.resource("rdma/rail1") == ("20", "20")
    with timed(times, "port up -> allocatable 20"):
        bed.node("ip link set eth2 up")
        bed.wait_resource("rdma/rail0", 20, 20)
    assert bed.identity("verbs") == before


def test_an_hca_that_comes_is_advertised_and_one_that_goes_is_not(bed, times):
    with timed(times, "rdma link add -> allocatable"):
        bed.node(
            "ip link add dm9 type dummy && ip link set dm9 up && ip address add 10.77.19.1/24 dev dm9"
            " && rdma link add rxe9 type rxe netdev dm9"
        )
        bed.wait_resource("rdma/late", 5, 5)
    with timed(times, "rdma link delete -> allocatable 0"):
        bed.node("rdma link delete rxe9")
        bed.wait_resource("rdma/late", 0)
    bed.node("ip link delete dm9")


def restart_k3s(bed, times, what):
    """Restarts server and kubelet; the plugin is not touched."""
    active, allocatable = bed.restart_kubelet("rdma/rail0", 20)
    times[f"k3s restarted ({what}) -> active"] = active
    times[f"k3s restarted ({what}) -> allocatable"] = allocatable
    wait_rails(bed)


def test_a_restarted_kubelet_has_the_resources_again_by_itself(bed, plugin, times):
    process, workload = plugin.pid(), bed.identity("verbs")
    restart_k3s(bed, times, "plugins_registry")
    assert plugin.pid() == process
    assert bed.identity("verbs") == workload
    bed.run_pod(bed.pod("after", {"rdma/rail0": 1}, hostNetwork=True))
    bed.remove_pods("after")


def test_an_upgraded_plugin_leaves_running_pods_alone(bed, plugin, times):
    workload = bed.identity("verbs")
    plugin.install("0.1.1")
    with timed(times, "plugin upgraded: restarted -> registered"):
        bed.node(f"systemctl restart {plugin.name}")
        plugin.wait_registered("rdma/rail0")
    with timed(times, "after the upgrade: pod with the resource -> Running"):
        bed.run_pod(bed.pod("after", {"rdma/rail0": 1}, hostNetwork=True))
    wait_rails(bed)
    version = bed.node(f"PYTHONPATH={PAYLOAD}/current:/srv/bed/libraries python3 -m rdma_device_plugin -version")
    assert "version:0.1.1" in version
    assert bed.identity("verbs") == workload
    assert "PORT_ACTIVE" in bed.inside("verbs", "ibv_devinfo -d rxe0")
    bed.remove_pods("after")


def test_a_unit_that_registers_by_itself(bed, plugin, times):
    workload = bed.identity("verbs")
    plugin.stop()
    bed.wait_resource("rdma/rail0", 0)
    with timed(times, "unit started -> allocatable (Register)"):
        plugin.start("-registration legacy")
        wait_rails(bed)
    assert "rail0.sock" in bed.node("ls /var/lib/kubelet/device-plugins")
    assert "rail0.sock" not in bed.node("ls /var/lib/kubelet/plugins_registry")
    process = plugin.pid()
    restart_k3s(bed, times, "Register")
    assert plugin.pid() == process
    assert bed.identity("verbs") == workload


def test_devices_by_cdi(bed, plugin, times):
    with timed(times, "unit started -> allocatable (CDI)"):
        plugin.stop()
        bed.wait_resource("rdma/rail0", 0)
        plugin.start("-use-cdi")
        wait_rails(bed)
    spec = json.loads(bed.node("cat /var/run/cdi/gpufabric.io_rdma-shared_rail0.json"))
    with timed(times, "pod with devices by CDI applied -> Running"):
        bed.run_pod(bed.pod("cdi", {"rdma/rail0": 1}, hostNetwork=True))
    seen = {line.split()[0] for line in bed.inside("cdi", LISTING).splitlines()}
    assert seen == files_of(bed, "rxe0") | {"rdma_cm"}
    assert "PORT_ACTIVE" in bed.inside("cdi", "ibv_devinfo -d rxe0")
    # That it came by CDI and not beside it: what the spec adds shows in the container.
    assert spec["kind"].startswith("gpufabric.io/")
    bed.remove_pods("cdi", "verbs")
    plugin.stop()
    bed.wait_resource("rdma/rail0", 0)
