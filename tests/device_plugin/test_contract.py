"""Rows A3 to A20 of the guide end to end: a config and a node in, what a kubelet gets to see over its sockets out."""

from __future__ import annotations

import json
import signal

import pytest
from harness import Node, Process, Running, document, entry
from kubelet_double import Kubelet

NAME = "rdma/test_server"


def hcas_of(kubelet, resource=NAME):
    """Character devices of one container, without the folder."""
    specs = kubelet.allocate(resource, ["0"]).container_responses[0].devices
    return [spec.host_path.rpartition("/")[2] for spec in specs]


def refused(base, node, config):
    """The one line with which the process ends, code 1; nothing was registered."""
    with Kubelet(base) as kubelet, Process(base, config, node.root) as plugin:
        assert plugin.process.wait(20) == 1
        assert kubelet.log == []
    (line,) = plugin.log.read_text().splitlines()
    assert "Exiting.. " in line
    return line


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(b'{"configList": [', "not valid JSON", id="A6"),
        pytest.param(document(), "no resources configuration found", id="A10"),
        pytest.param(document(entry("test_config$$")), "contains invalid characters", id="A11"),
        pytest.param(document(entry("a\nb")), "contains invalid characters", id="A11, still one line"),
        pytest.param(document(entry("a"), entry("a")), 'resource name "a" already exists', id="A12"),
        pytest.param(document(entry(count=-100)), "error: Invalid value for rdmaHcaMax < 0: -100", id="A13"),
        pytest.param(
            document(entry(selectors={"vendors": ["15b3"]}, devices=["ib0"])),
            'Cannot specify both "selectors" and "devices"',
            id="A14",
        ),
        pytest.param(document(entry(selectors={})), 'neither "selectors" nor "devices" fields exits', id="A15"),
        pytest.param(document(entry(), interval=-10), 'invalid "periodicUpdateInterval" configuration "-10', id="A16"),
    ],
)
def test_a_config_that_upstream_refuses(base, node, config, text):
    assert text in refused(base, node, config)


def test_a_config_file_that_is_missing(base, node):
    """A5"""
    with Kubelet(base) as kubelet, Process(base, document(entry()), node.root, "-config-file", "/none") as plugin:
        assert plugin.process.wait(20) == 1
        assert kubelet.log == []
    assert "fail to read config file /none" in plugin.log.read_text()


def test_two_entries_and_their_interval(base, node):
    """A3, A4, A7, A8: the deprecated list and selectors side by side, the interval given or not"""
    by_name = entry("a", 100, devices=["enp1s0f0np0"])
    by_selectors = entry(
        "b",
        10,
        selectors={"vendors": ["15b3"], "deviceIDs": ["1021"], "ifNames": ["enp1s0f1np1"]},
        health={"ports": "ignore"},
    )
    with Kubelet(base) as kubelet, Process(base, document(by_name, by_selectors, interval=30), node.root) as plugin:
        kubelet.wait_allocatable("rdma/a", 100)
        kubelet.wait_allocatable("rdma/b", 10)
        assert hcas_of(kubelet, "rdma/a") == ["umad0", "uverbs0", "rdma_cm"]
        assert hcas_of(kubelet, "rdma/b") == ["umad1", "uverbs1", "rdma_cm"]
        assert plugin.end(signal.SIGTERM)[0] == 0
    assert plugin.log.read_text().count('"devices" field is deprecated') == 1
    for interval, wanted in ((30, 30), (None, 60)):
        with Running(base, document(entry(), interval=interval), node.root) as running:
            assert running.plugin.config.interval == wanted


def test_a_count_of_zero(base, node):
    """A9"""
    for config in (entry(count=0), {"resourceName": "test_server", "selectors": {"vendors": ["15b3"]}}):
        with Kubelet(base) as kubelet, Running(base, document(config), node.root):
            assert kubelet.wait(lambda k=kubelet: NAME in k.clients and k.clients[NAME].lists)
            assert kubelet.devices(NAME) == {}


def test_network_functions_are_candidates(base):
    """A17, A19: both cards; the one whose function is of class 01 is out"""
    node = Node(base / "node", "two-cards-cx6dx")
    with Kubelet(base) as kubelet, Running(base, document(entry(count=5)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 5)
        assert hcas_of(kubelet) == ["umad0", "uverbs0", "umad1", "uverbs1", "rdma_cm"]
        node.path("/sys/bus/pci/devices/0000:3b:00.0/class").write_text("0x010000\n")
        plugin.rescan()
        assert plugin.until(lambda: hcas_of(kubelet) == ["umad1", "uverbs1", "rdma_cm"])


def test_all_five_selectors(base):
    """A18: OR in a list, AND between lists, exactly two of three in order"""
    node = Node(base / "node", "names-persistent")
    everything = {
        "vendors": ["15b3", "8086"],
        "deviceIDs": ["1017", "101b"],
        "drivers": ["mlx5_core"],
        "ifNames": ["enp1s0f1np1", "enp1s0f0np0", "ibp24s0"],
        "linkTypes": ["ether"],
    }
    with Kubelet(base) as kubelet, Running(base, document(entry(count=5, selectors=everything)), node.root):
        kubelet.wait_allocatable(NAME, 5)
        assert hcas_of(kubelet) == ["umad0", "uverbs0", "umad1", "uverbs1", "rdma_cm"]


def test_a_node_without_pci(base):
    """A20: no device, no error"""
    (base / "nothing").mkdir()
    with Kubelet(base) as kubelet, Running(base, document(entry()), base / "nothing") as plugin:
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.devices(NAME) == {}
        assert plugin.plugin.scan_failures == 0


def test_one_function_that_vanishes_hides_no_other(base):
    """Pitfall 7: ghw 0.24 returns no device at all then, so all resources fall to zero; and there is no pci.ids here"""
    node = Node(base / "node", "two-cards-cx6dx")
    assert not list(node.root.rglob("pci.ids"))
    with Kubelet(base) as kubelet, Running(base, document(entry(count=5)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 5)
        for name in ("vendor", "device", "class", "modalias"):
            node.path(f"/sys/bus/pci/devices/0000:3b:00.0/{name}").unlink(missing_ok=True)
        plugin.rescan()
        assert plugin.until(lambda: hcas_of(kubelet) == ["umad1", "uverbs1", "rdma_cm"])
        assert kubelet.allocatable(NAME) == 5


def test_another_kubelet_root(base, node):
    """Pitfall 1, #96: plugins_registry moves with --root-dir, the directory of kubelet.sock does not"""
    kubelet = Kubelet(base)
    kubelet.registry = str(base / "data/kubelet/plugins_registry")
    (base / "data/kubelet/plugins_registry").mkdir(parents=True)
    root = ("-kubelet-root", f"{base}/data/kubelet")
    with kubelet, Process(base, document(entry()), node.root, *root) as plugin:
        kubelet.wait_allocatable(NAME, 100)
        assert (base / "data/kubelet/plugins_registry/test_server.sock").exists()
        assert kubelet.count("register") == 0
        assert plugin.end(signal.SIGTERM)[0] == 0


def test_topology_is_opt_in(base):
    """Pitfall 9: hints name the NUMA nodes of the unit's HCAs"""
    node = Node(base / "node", "two-cards-cx6dx")
    for topology, wanted in ((None, [[], []]), ("auto", [[0], [1]])):
        more = {"topology": topology} if topology else {}
        config = document(entry(count=2, allocation="spread", **more))
        with Kubelet(base) as kubelet, Running(base, config, node.root):
            kubelet.wait_allocatable(NAME, 2)
            devices = kubelet.devices(NAME) and kubelet.clients[NAME].devices
            assert [[one.ID for one in devices[unit].topology.nodes] for unit in ("0", "1")] == wanted


def test_the_environment_names_the_hcas_of_a_container(base):
    """Pitfall 10: upstream gives all HCAs to each container and no word"""
    node = Node(base / "node", "h100-8x-cx7-ib")
    config = document(entry(count=16, allocation="spread", env=["nccl", "ucx"]), entry("numa", 2, allocation="numa"))
    with Kubelet(base) as kubelet, Running(base, config, node.root):
        kubelet.wait_allocatable(NAME, 16)
        kubelet.wait_allocatable("rdma/numa", 2)
        answer = kubelet.allocate(NAME, ["2", "5"]).container_responses[0]
        assert dict(answer.envs) == {
            "RDMA_TEST_SERVER_DEVICES": "mlx5_2,mlx5_5",
            "NCCL_IB_HCA": "=mlx5_2:1,mlx5_5:1",
            "UCX_NET_DEVICES": "mlx5_2:1,mlx5_5:1",
        }
        assert len([spec for spec in answer.devices if "uverbs" in spec.host_path]) == 2
        answer = kubelet.allocate("rdma/numa", ["1"]).container_responses[0]
        assert len([spec for spec in answer.devices if "uverbs" in spec.host_path]) == 4
        assert not answer.envs


def test_what_is_not_required_is_no_line_in_the_log(base, caplog):
    """Pitfall 5: upstream wants umad of everything, and says so for each NIC in each period"""
    caplog.set_level("INFO", "rdma_device_plugin")
    node = Node(base / "node", "efa")
    config = document(entry(count=5, selectors={"vendors": ["1d0f"]}, health={"ports": "ignore"}), interval=0)
    with Kubelet(base) as kubelet, Running(base, config, node.root) as plugin:
        kubelet.wait_allocatable(NAME, 5)
        before = len(caplog.records)
        for scans in range(2, 6):
            plugin.rescan()
            assert plugin.until(lambda n=scans: plugin.plugin.scans >= n)
        said = [record.getMessage() for record in caplog.records[before:]]
        assert [line for line in said if "registered" not in line] == []


def test_an_offer_in_the_json_log_has_fields(base, node):
    """A21: nothing matches; the JSON log shows it too"""
    config = document(entry(selectors={"vendors": ["ffff"]}))
    with Kubelet(base) as kubelet, Process(base, config, node.root, "-log-format", "json") as plugin:
        assert kubelet.wait(lambda: NAME in kubelet.clients)
        assert plugin.end(signal.SIGTERM)[0] == 0
    offers = [line for line in map(json.loads, plugin.log.read_text().splitlines()) if line["msg"] == f"{NAME}: offer"]
    assert [(line["devices"], line["healthy"], line["hcas"]) for line in offers] == [(0, 0, "none")]


def test_software_hcas_are_handed_out_on_request(base):
    """rxe and siw, matched by the interface below them, and only where the pool says so"""
    node = Node(base / "node", "rxe-and-siw")
    names = {"ifNames": ["eth0", "eth1", "eth2"]}
    without = entry("without", 5, selectors=names)
    with_them = entry("with", 5, selectors=names, softwareDevices=True, health={"ports": "ignore"})
    with Kubelet(base) as kubelet, Running(base, document(without, with_them), node.root) as plugin:
        kubelet.wait_allocatable("rdma/with", 5)
        assert kubelet.capacity("rdma/without") == 0
        members = plugin.plugin.served["with"].service.offer.members
        assert [hca.name for hca in members] == ["rxe0", "rxe1", "siw_eth2"]
        uverbs = [name for name in hcas_of(kubelet, "rdma/with") if name.startswith("uverbs")]
        assert uverbs == [name for hca in members for name in hca.uverbs]
