"""Changes while the plugin runs: links, hot-plug, drivers that load late, config changes, reads that hang."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import time

import grpc
import pytest
from harness import FAST, SOON, Fifo, Fuse, Process, Running, document, entry
from kubelet_double import PATIENCE, Kubelet
from rdma_device_plugin import cdi
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api

NAME = "rdma/test_server"
# Long enough to measure, short enough to wait for.
HEALTH = {"downSeconds": 0.2, "upSeconds": 0.5}


@pytest.fixture
def kubelet(base):
    with Kubelet(base, watches=False) as running:
        yield running


def files(kubelet, resource=NAME, units=("0",)):
    specs = kubelet.allocate(resource, list(units)).container_responses[0].devices
    return [spec.host_path.rpartition("/")[2] for spec in specs]


# Health.


def test_a_port_that_goes_down_and_comes_back(base, node, kubelet):
    """Upstream never reads the port's state, and feeds one stream at random"""
    with Running(base, document(entry(count=10, health=HEALTH)), node.root, kubelet=kubelet) as plugin:
        streams = [kubelet.clients[NAME].stub.ListAndWatch(api.Empty(), timeout=PATIENCE) for _number in range(3)]
        assert {next(stream).devices[0].health for stream in streams} == {"Healthy"}
        node.port("mlx5_0", "1: DOWN")
        begun = time.monotonic()
        kubelet.wait_allocatable(NAME, 0)
        assert 0.2 <= time.monotonic() - begun < SOON
        assert [next(stream).devices[0].health for stream in streams] == ["Unhealthy"] * 3
        assert kubelet.capacity(NAME) == 10, "unhealthy, not gone"
        assert files(kubelet), "a container that is admitted again still gets its files"
        node.port("mlx5_0", "4: ACTIVE")
        begun = time.monotonic()
        kubelet.wait_allocatable(NAME, 10)
        assert time.monotonic() - begun >= 0.5
        assert plugin.plugin.ports.flaps["mlx5_0", 1] == 1


def test_exclusive_netns_is_a_state_not_an_exit(base, node, kubelet):
    """Upstream ends in a crash loop"""
    node.netns("N")
    with Running(base, document(entry(count=10)), node.root) as plugin:
        assert kubelet.wait(lambda: kubelet.capacity(NAME) == 10)
        assert kubelet.allocatable(NAME) == 0
        assert any("exclusive" in problem for problem in plugin.problems())
        node.netns("Y")
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 10)
        assert plugin.until(lambda: plugin.problems() == [])


# Hot-plug.


def test_hot_plug(base, node, kubelet):
    """Content changes, IDs stay"""
    with Running(base, document(entry(count=10)), node.root, kubelet=kubelet) as plugin:
        node.unplug("mlx5_1")
        assert plugin.rescan(lambda: files(kubelet) == ["umad0", "uverbs0", "rdma_cm"])
        node.plug("mlx5_1")
        assert plugin.rescan(lambda: "uverbs1" in files(kubelet))
        assert kubelet.allocatable(NAME) == 10
        assert kubelet.wait(lambda: len(kubelet.clients[NAME].lists) == 3), "one for each change"
        assert plugin.rescan(lambda: plugin.plugin.scans >= 4)
        assert len(kubelet.clients[NAME].lists) == 3, "no change, no update"


def test_hot_plug_is_reported_by_the_kernel(base, node, kubelet):
    """A uevent, not the next period; upstream needs up to 60 s"""
    plugin = Running(base, document(entry(count=10), interval=0), node.root, own_netns=True, port_poll=60)
    if plugin.error or not os.access("/dev/net/tun", os.W_OK):
        pytest.skip(f"not verified: {plugin.error or 'no /dev/net/tun'}")
    with plugin:
        kubelet.wait_allocatable(NAME, 10)
        for change, wanted in ((node.unplug, False), (node.plug, True)):
            change("mlx5_1")
            begun = time.monotonic()
            plugin.kernel_event()
            assert plugin.until(lambda w=wanted: ("uverbs1" in files(kubelet)) == w, seconds=5)
            assert time.monotonic() - begun < SOON


def test_the_last_hca_gone_leaves_unhealthy_units(base, node, kubelet):
    """Units that disappear and come back fail pods that had them"""
    with Running(base, document(entry(count=10)), node.root, kubelet=kubelet) as plugin:
        for name in node.hcas():
            node.unplug(name)
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 0)
        assert kubelet.capacity(NAME) == 10
        with pytest.raises(grpc.RpcError) as refused:
            kubelet.allocate(NAME, ["0"])
        assert "no HCA is behind this pool" in refused.value.details()
        node.plug("mlx5_0")
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 10)


def test_a_module_that_loads_late(base, node, kubelet):
    """rdma_ucm after the plugin; an empty pool is scanned more often than the interval"""
    node.unload("rdma_ucm")
    with Running(base, document(entry(count=10), interval=300), node.root, empty_scan=0.1):
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.capacity(NAME) == 0
        node.load("rdma_ucm")
        kubelet.wait_allocatable(NAME, 10, seconds=3)


@pytest.mark.parametrize(("interval", "scans"), [(1, True), (0, False)])
def test_periodic_scans(base, node, kubelet, interval, scans):
    with Running(base, document(entry(count=10), interval=interval), node.root, kubelet=kubelet) as plugin:
        node.unplug("mlx5_1")
        assert plugin.until(lambda: "uverbs1" not in files(kubelet), seconds=20 if scans else 1.5) == scans


def test_nodes_that_are_gone_are_left_out(base, node, kubelet):
    """Existence is checked at Allocate; the runtime would fail the whole container"""
    node.nodes("uverbs0", "umad0", "uverbs1", "umad1", "rdma_cm")
    with Running(base, document(entry(count=10)), node.root, kubelet=kubelet) as plugin:
        assert len(files(kubelet)) == 5
        node.nodes("uverbs0", "umad0", "rdma_cm")
        assert files(kubelet) == ["umad0", "uverbs0", "rdma_cm"]
        assert plugin.until(lambda: plugin.plugin.scans > 1), "it looks at the node again then"
        node.nodes()
        with pytest.raises(grpc.RpcError) as refused:
            kubelet.allocate(NAME, ["0"])
        assert "are gone from /dev/infiniband" in refused.value.details()


# Links.


def test_interfaces_are_set_up_once_unless_the_pool_says_no(base, node):
    asked = []

    def link_up(name):
        asked.append(name)
        return "not permitted"

    second = entry("b", selectors={"ifNames": ["enp1s0f1np1"]})
    with Running(base, document(entry("a"), second, interval=0), node.root, link_up=link_up) as plugin:
        assert plugin.until(lambda: len(asked) == 2)
        assert plugin.rescan(lambda: plugin.plugin.scans > 1)
        assert sorted(asked) == ["enp1s0f0np0", "enp1s0f1np1"], "once each, although both pools have one of them"
        plugin.configure(document(entry("a", linkUp=False), interval=0))
        assert plugin.until(lambda: "b" not in plugin.plugin.served)
        node.unplug("mlx5_1")
        assert plugin.rescan(lambda: len(plugin.plugin.inventory.hcas) == 1)
        node.plug("mlx5_1")
        assert plugin.rescan(lambda: len(plugin.plugin.inventory.hcas) == 2)
        assert len(asked) == 2


# Config.


def test_a_changed_config_is_taken_over(base, node, kubelet):
    """Upstream reads its config once"""
    (kept, gone) = entry("kept", 3), entry("gone", 3)
    with Running(base, document(kept, gone), node.root, kubelet=kubelet) as plugin:
        before = kubelet.clients["rdma/kept"]
        plugin.configure(document(entry("kept", 7), entry("new", 5)))
        kubelet.wait_allocatable("rdma/kept", 7)
        kubelet.wait_allocatable("rdma/new", 5)
        kubelet.wait_allocatable("rdma/gone", 0)
        assert kubelet.clients["rdma/kept"] is before, "a changed count needs no registration"
        assert not (base / "device-plugins/gone.sock").exists()
        plugin.configure(document(entry("kept", 2)))
        kubelet.wait_allocatable("rdma/kept", 2)
        assert files(kubelet, "rdma/kept", ["6"]), "advertised before the pool shrank"
        plugin.configure(document(entry("kept", 2, resourcePrefix="other.io")))
        kubelet.wait_allocatable("other.io/kept", 2)


def test_a_config_that_cannot_be_used_leaves_the_old_one(base, node, kubelet):
    with Running(base, document(entry(count=3)), node.root, kubelet=kubelet) as plugin:
        plugin.configure(b'{"configList": []}')
        assert plugin.until(lambda: plugin.plugin.config_error)
        assert any("no resources configuration found" in problem for problem in plugin.problems())
        assert kubelet.allocatable(NAME) == 3
        os.unlink(plugin.config_file)
        assert plugin.until(lambda: "No such file" in plugin.plugin.config_error)
        failed = plugin.plugin.reloads["failed"]
        time.sleep(1)
        assert plugin.plugin.reloads["failed"] == failed, "reported once, not on every check"
        plugin.config_file.write_bytes(document(entry(count=4)))
        kubelet.wait_allocatable(NAME, 4)
        assert plugin.until(lambda: plugin.problems() == [])


def test_a_config_map_is_swapped(base, node, kubelet):
    """Like the kubelet: config.json -> ..data/config.json, ..data -> a folder, renamed over"""
    folder = base / "config"
    folder.mkdir()

    def swap(number, data):
        (folder / f"..{number}").mkdir()
        (folder / f"..{number}/config.json").write_bytes(data)
        os.symlink(f"..{number}", folder / "..data_tmp")
        os.rename(folder / "..data_tmp", folder / "..data")

    by_events = FAST._replace(backstop=60)
    with Running(base, document(entry(count=1)), node.root, timing=by_events, start=False) as plugin:
        plugin.config_file.unlink()
        swap(0, document(entry(count=1)))
        os.symlink("..data/config.json", plugin.config_file)
        plugin.start()
        for number in range(1, 6):
            swap(number, document(entry(count=number * 10)))
            kubelet.wait_allocatable(NAME, number * 10, seconds=20)


# Reads that hang.


@contextlib.contextmanager
def hanging(path, kind=Fuse):
    try:
        stuck = kind(str(path))
    except OSError as error:
        pytest.skip(f"not verified: {error}")
    try:
        yield stuck
    finally:
        stuck.close()


@pytest.mark.parametrize("kind", [Fifo, Fuse], ids=["fifo", "fuse"])
def test_a_file_of_sysfs_that_hangs_delays_nothing(base, node, kind):
    """The same with the file itself, and the whole process: RPCs, a kubelet restart, SIGTERM"""
    with Kubelet(base) as kubelet, Process(base, document(entry()), node.root, kubelet=kubelet) as plugin:
        with hanging(node.path("/sys/class/infiniband/mlx5_0/ports/1/state").resolve(), kind) as stuck:
            if kind.hangs:
                assert kubelet.wait(stuck.asked.is_set), "the file is not read"
                assert _waits(plugin.process.pid)
            else:
                kubelet.wait_allocatable(NAME, 0)  # a port whose state is no text is not known to be up
            took = []
            for _number in range(50):
                begun = time.monotonic()
                assert len(files(kubelet)) == 5
                took.append(time.monotonic() - begun)
            assert sorted(took)[25] < 0.1
            kubelet.restart()
            kubelet.wait_allocatable(NAME, 100 if kind.hangs else 0, seconds=5)
            plugin.process.send_signal(signal.SIGTERM)
            sockets = base / "plugins_registry"
            assert kubelet.wait(lambda: not list(sockets.glob("*.sock")), 1), "it has hung up"
            if not kind.hangs:
                assert plugin.process.wait(1) == 0
        # If the kernel does not return the thread, the process ends with the read.
        assert plugin.process.wait(5) == 0


def _waits(pid):
    """Whether a thread of the plugin waits for the file system in user space."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/wchan")
    return any("wait_answer" in wchan.read_text() or "fuse" in wchan.read_text() for wchan in tasks)


def test_a_node_that_hangs_from_the_start_is_served_when_it_answers(base, node):
    with (
        Kubelet(base) as kubelet,
        hanging(node.path("/sys/class/infiniband/mlx5_0/ports/1/state").resolve()) as stuck,
        Running(base, document(entry(count=10)), node.root, first_scan=0.2, hung=0.5) as plugin,
    ):
        assert plugin.ready_in < SOON
        assert stuck.asked.is_set()
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.capacity(NAME) == 0
        assert plugin.until(lambda: any("has been hanging for" in problem for problem in plugin.problems()))
        stuck.close()
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 10)


# A config file that does not answer.


def test_a_hung_config_is_reported_and_blocks_nothing_else(base, node, kubelet):
    """A hung mount under config.json: ports, CDI and metrics continue, and /readyz reports the unknown"""
    with Running(base, document(entry(count=3)), node.root, use_cdi=True, hung=0.5, kubelet=kubelet) as plugin:
        with hanging(plugin.config_file) as fuse:
            plugin.call(plugin.plugin.reload)
            assert fuse.asked.wait(PATIENCE)
            assert plugin.until(lambda: "has not answered" in " ".join(plugin.problems()))
            node.port("mlx5_0", "DOWN")
            kubelet.wait_allocatable(NAME, 0, seconds=SOON)
            specs = base / "cdi"
            for path in specs.iterdir():
                path.unlink()
            assert plugin.until(lambda: list(specs.iterdir()))
        node.port("mlx5_0", "ACTIVE")
        kubelet.wait_allocatable(NAME, 3)
        assert plugin.until(lambda: plugin.problems() == [])


@pytest.mark.parametrize(("kind", "told"), [(Fifo, "not a regular file"), (Fuse, "has not answered for 0.5 s")])
def test_a_config_that_no_read_comes_back_from_is_reported_at_the_start(base, node, kind, told):
    with (
        Running(base, document(entry()), node.root, hung=0.5, start=False) as plugin,
        hanging(plugin.config_file, kind),
    ):
        plugin.start()
        assert plugin.until(lambda: plugin.error)
        assert told in plugin.error


# --- CDI: our specs, written before they are needed, without touching others ------------------------------------------


PF0, PF1 = "test_server:0000:01:00.0:mlx5_0", "test_server:0000:01:00.1:mlx5_1"


def spec(base, pool="test_server"):
    return json.loads((base / "cdi" / cdi.file(pool)).read_text())


def test_the_spec_stands_before_the_first_device(base, node, kubelet):
    """Upstream writes it after its first list, and does not update it"""
    with Running(base, document(entry()), node.root, use_cdi=True, kubelet=kubelet) as plugin:
        found = spec(base)
        assert (found["cdiVersion"], found["kind"]) == ("0.5.0", "gpufabric.io/rdma-shared")
        assert [device["name"] for device in found["devices"]] == [PF0, PF1]
        assert found["devices"][0]["containerEdits"]["deviceNodes"] == [
            {"path": path, "hostPath": path, "permissions": "rw"}
            for path in ("/dev/infiniband/umad0", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
        ]
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert [device.name for device in answer.cdi_devices] == [f"{cdi.KIND}={PF0}", f"{cdi.KIND}={PF1}"]
        assert not answer.devices
        assert not answer.annotations
        for change, names in ((node.unplug, [PF0]), (node.plug, [PF0, PF1])):
            change("mlx5_1")
            assert plugin.rescan(lambda n=names: [device["name"] for device in spec(base)["devices"]] == n)
        assert len(kubelet.allocate(NAME, ["0"]).container_responses[0].cdi_devices) == 2


def test_annotations_for_old_runtimes(base, node, kubelet):
    with Running(base, document(entry()), node.root, use_cdi=True, cdi_mode="annotations", kubelet=kubelet):
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert dict(answer.annotations) == {"cdi.k8s.io/gpufabric.io_rdma-shared": f"{cdi.KIND}={PF0},{cdi.KIND}={PF1}"}
        assert not answer.cdi_devices


def test_foreign_specs_are_left_alone_and_ours_outlive_the_plugin(base, node, kubelet):
    """Upstream deletes every nvidia.com*; a container that restarts needs ours during an upgrade"""
    (base / "cdi").mkdir()
    foreign = base / "cdi/nvidia.com-gpu.yaml"
    foreign.write_text("cdiVersion: 0.5.0\n")
    with Running(base, document(entry(), entry("b")), node.root, use_cdi=True, kubelet=kubelet) as plugin:
        plugin.configure(document(entry()))
        assert plugin.until(lambda: not (base / "cdi" / cdi.file("b")).exists())
    assert foreign.read_text() == "cdiVersion: 0.5.0\n"
    assert sorted(path.name for path in (base / "cdi").iterdir()) == [cdi.file("test_server"), foreign.name]


@pytest.mark.parametrize("damage", ["cut short", "folder removed"])
def test_a_spec_that_is_lost_is_written_again(base, node, kubelet, damage):
    """A spec is state to be kept true, like a socket: without it no new RDMA pod starts"""
    with Running(base, document(entry(), interval=0), node.root, use_cdi=True, kubelet=kubelet) as plugin:
        whole = spec(base)
        path = base / "cdi" / cdi.file("test_server")
        if damage == "cut short":
            path.write_text(path.read_text()[:40])
        else:
            shutil.rmtree(path.parent, ignore_errors=True)  # the plugin may put a spec back meanwhile
        assert plugin.until(lambda: path.exists() and path.read_text().endswith("}\n"))
        assert spec(base) == whole


def test_one_pool_without_a_spec_is_reported_once(base, node, kubelet, caplog):
    """The specs are checked every few seconds; another pool's good spec is not logged each time"""
    caplog.set_level("INFO")
    (base / "cdi" / cdi.file("b")).mkdir(parents=True)
    with Running(
        base, document(entry("a"), entry("b"), interval=0), node.root, use_cdi=True, kubelet=kubelet
    ) as plugin:
        assert kubelet.allocate("rdma/a", ["0"]).container_responses[0].cdi_devices
        answer = kubelet.allocate("rdma/b", ["0"]).container_responses[0]
        assert (len(answer.devices), len(answer.cdi_devices)) == (5, 0), "character devices instead"
        time.sleep(1.5)  # five looks
        assert sorted(os.listdir(base / "cdi")) == [cdi.file("a"), cdi.file("b")], "a failed write leaves nothing"
        told = [record.getMessage() for record in caplog.records if "CDI" in record.getMessage()]
        assert len(told) == len(set(told)) == 2
        (base / "cdi" / cdi.file("b")).rmdir()
        assert plugin.until(lambda: kubelet.allocate("rdma/b", ["0"]).container_responses[0].cdi_devices)
