"""What happens while the plugin runs: links, hot-plug, drivers that load late, config changes, reads that hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import threading
import time

import grpc
import hanging
import pytest
from harness import FAST, SOON, Node, Process, Running, document, entry
from kubelet_double import PATIENCE, Kubelet
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api
from rdma_device_plugin.worker import Worker

NAME = "rdma/test_server"
# Long enough to be measured, short enough to wait for.
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
    """A34, pitfall 11: upstream never reads the port's state"""
    with Running(base, document(entry(count=10, health=HEALTH)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
        node.port("mlx5_0", "1: DOWN")
        begun = time.monotonic()
        kubelet.wait_allocatable(NAME, 0)
        assert 0.2 <= time.monotonic() - begun < SOON
        assert kubelet.capacity(NAME) == 10, "unhealthy, not gone"
        assert files(kubelet), "a container that is admitted again still gets its files"
        node.port("mlx5_0", "4: ACTIVE")
        begun = time.monotonic()
        kubelet.wait_allocatable(NAME, 10)
        assert time.monotonic() - begun >= 0.5
        assert plugin.plugin.ports.flaps["mlx5_0", 1] == 1


def test_a_blip_is_not_reported(base, node, kubelet):
    with Running(base, document(entry(count=10, health={"downSeconds": 5})), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
        node.port("mlx5_0", "1: DOWN")
        assert plugin.until(lambda: plugin.plugin.ports.flaps["mlx5_0", 1] == 1)
        node.port("mlx5_0", "4: ACTIVE")
        assert plugin.until(lambda: plugin.plugin.ports.states["mlx5_0", 1] == "ACTIVE")
        assert len(kubelet.clients[NAME].lists) == 1


def test_every_stream_gets_every_update(base, node, kubelet):
    """1.7, pitfall 2: upstream's one-slot channel feeds one stream at random"""
    with Running(base, document(entry(count=10, health=HEALTH)), node.root):
        kubelet.wait_allocatable(NAME, 10)
        streams = [kubelet.clients[NAME].stub.ListAndWatch(api.Empty(), timeout=PATIENCE) for _number in range(3)]
        assert {next(stream).devices[0].health for stream in streams} == {"Healthy"}
        node.port("mlx5_0", "1: DOWN")
        assert [next(stream).devices[0].health for stream in streams] == ["Unhealthy"] * 3
        kubelet.wait_allocatable(NAME, 0)
        for stream in streams:
            stream.cancel()


def test_spread_reports_health_per_unit(base, kubelet):
    node = Node(base / "node", "h100-8x-cx7-ib")
    config = document(entry(count=16, allocation="spread", health=HEALTH))
    with Running(base, config, node.root):
        kubelet.wait_allocatable(NAME, 16)
        assert kubelet.clients[NAME].options.get_preferred_allocation_available
        assert kubelet.prefer(NAME, [str(unit) for unit in range(16)], 2) == ["0", "1"]
        assert files(kubelet, units=["3"]) == ["issm3", "umad3", "uverbs3", "rdma_cm"]
        node.port("mlx5_3", "1: DOWN")
        kubelet.wait_allocatable(NAME, 14)
        assert [unit for unit, health in kubelet.devices(NAME).items() if health != "Healthy"] == ["3", "11"]


def test_exclusive_netns_is_a_state_not_an_exit(base, node, kubelet):
    """Pitfall 13: upstream ends in a crash loop"""
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
    """A40, pitfall 4 for the lists: content changes, IDs stay"""
    with Running(base, document(entry(count=10)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
        node.unplug("mlx5_1")
        plugin.rescan()
        assert plugin.until(lambda: files(kubelet) == ["umad0", "uverbs0", "rdma_cm"])
        node.plug("mlx5_1")
        plugin.rescan()
        assert plugin.until(lambda: "uverbs1" in files(kubelet))
        assert kubelet.allocatable(NAME) == 10
        assert kubelet.wait(lambda: len(kubelet.clients[NAME].lists) == 3), "one for each change"
        plugin.rescan()
        assert plugin.until(lambda: plugin.plugin.scans >= 4)
        assert len(kubelet.clients[NAME].lists) == 3, "no change, no update"


def test_hot_plug_is_reported_by_the_kernel(base, node, kubelet):
    """Pitfall 6: a uevent, not the next period; upstream needs up to 60 s"""
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
    """4.3: units that disappear and come back fail pods that had them"""
    with Running(base, document(entry(count=10)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
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
    """Pitfall 6: rdma_ucm after the plugin; an empty pool is scanned more often than the interval"""
    node.unload("rdma_ucm")
    with Running(base, document(entry(count=10), interval=300), node.root, empty_scan=0.1):
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.capacity(NAME) == 0
        node.load("rdma_ucm")
        kubelet.wait_allocatable(NAME, 10, seconds=3)


@pytest.mark.parametrize(("interval", "scans"), [(1, True), (0, False)])
def test_periodic_scans(base, node, kubelet, interval, scans):
    """A23"""
    with Running(base, document(entry(count=10), interval=interval), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
        node.unplug("mlx5_1")
        assert plugin.until(lambda: "uverbs1" not in files(kubelet), seconds=20 if scans else 1.5) == scans


def test_nodes_that_are_gone_are_left_out(base, node, kubelet):
    """4.5: existence is checked at Allocate; the runtime would fail the whole container"""
    node.nodes("uverbs0", "umad0", "uverbs1", "umad1", "rdma_cm")
    with Running(base, document(entry(count=10)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 10)
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
        plugin.rescan()
        assert plugin.until(lambda: plugin.plugin.scans > 1)
        assert sorted(asked) == ["enp1s0f0np0", "enp1s0f1np1"], "once each, although both pools have one of them"
        plugin.configure(document(entry("a", linkUp=False), interval=0))
        assert plugin.until(lambda: "b" not in plugin.plugin.served)
        node.unplug("mlx5_1")
        plugin.rescan()
        assert plugin.until(lambda: len(plugin.plugin.inventory.hcas) == 1)
        node.plug("mlx5_1")
        plugin.rescan()
        assert plugin.until(lambda: len(plugin.plugin.inventory.hcas) == 2)
        assert len(asked) == 2


# Config.


def test_a_changed_config_is_taken_over(base, node, kubelet):
    """Pitfall 12: upstream reads its config once"""
    (kept, gone) = entry("kept", 3), entry("gone", 3)
    with Running(base, document(kept, gone), node.root) as plugin:
        kubelet.wait_allocatable("rdma/gone", 3)
        kubelet.wait_allocatable("rdma/kept", 3)
        before = kubelet.clients["rdma/kept"]
        plugin.configure(document(entry("kept", 7), entry("new", 5)))
        kubelet.wait_allocatable("rdma/kept", 7)
        kubelet.wait_allocatable("rdma/new", 5)
        kubelet.wait_allocatable("rdma/gone", 0)
        assert kubelet.clients["rdma/kept"] is before, "a changed count needs no registration"
        assert not (base / "device-plugins/gone.sock").exists()
        plugin.configure(document(entry("kept", 2)))
        kubelet.wait_allocatable("rdma/kept", 2)
        assert files(kubelet, "rdma/kept", ["6"]), "A39: advertised before the pool shrank"
        plugin.configure(document(entry("kept", 2, resourcePrefix="other.io")))
        kubelet.wait_allocatable("other.io/kept", 2)


def test_a_config_that_cannot_be_used_leaves_the_old_one(base, node, kubelet):
    with Running(base, document(entry(count=3)), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 3)
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
    """As the kubelet does: config.json -> ..data/config.json, ..data -> a folder, renamed over"""
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


class Hanging(Tree):
    """A sysfs whose firmware is stuck: reading one file waits for a writer of a FIFO that is never opened."""

    def __init__(self, root):
        super().__init__(root)
        self.stuck = ""
        self.waits = threading.Event()

    def snapshot(self):
        return self

    def read_bytes(self, path, *more):
        if path.endswith("/state"):
            self._hang()
        return super().read_bytes(path, *more)

    def attributes(self, directory, names, *more):
        if "state" in names:
            self._hang()
        return super().attributes(directory, names, *more)

    def _hang(self):
        if self.stuck:
            self.waits.set()
            with open(self.stuck, "rb") as pipe:  # blocks in open(2)
                pipe.read()


def test_a_hanging_read_delays_no_rpc_and_no_end(base, node):
    """4.2: the kubelet gives GetInfo one second"""
    tree = Hanging(str(node.root))
    os.mkfifo(base / "pipe")
    with Kubelet(base) as kubelet, Running(base, document(entry(count=10)), node.root, tree=tree, hung=0.5) as plugin:
        kubelet.wait_allocatable(NAME, 10)
        tree.stuck = str(base / "pipe")
        assert tree.waits.wait(5)
        begun = time.monotonic()
        for _number in range(100):
            assert len(files(kubelet)) == 5
        assert time.monotonic() - begun < SOON
        kubelet.restart()
        kubelet.wait_allocatable(NAME, 10, seconds=3)
        assert plugin.until(lambda: any("has been hanging for" in problem for problem in plugin.problems()))
        plugin.stop()
        assert plugin.stopped_in < 1
        _release(tree, base / "pipe")


@pytest.mark.parametrize("kind", [hanging.Fifo, hanging.Fuse], ids=["fifo", "fuse"])
def test_a_file_of_sysfs_that_hangs_delays_nothing(base, node, kind):
    """The same with the file itself, and the whole process: RPCs, a kubelet restart, SIGTERM"""
    with Kubelet(base) as kubelet, Process(base, document(entry()), node.root) as plugin:
        kubelet.wait_allocatable(NAME, 100)
        try:
            stuck = kind(str(node.path("/sys/class/infiniband/mlx5_0/ports/1/state").resolve()))
        except OSError as error:
            pytest.skip(f"not verified: {error}")
        try:
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
        finally:
            stuck.close()
        # Where the kernel does not give the thread back, the process ends with the read.
        assert plugin.process.wait(5) == 0


def _waits(pid):
    """Whether a thread of the plugin waits for the file system in user space."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/wchan")
    return any("wait_answer" in wchan.read_text() or "fuse" in wchan.read_text() for wchan in tasks)


def test_a_node_that_hangs_from_the_start_is_served_when_it_answers(base, node):
    tree = Hanging(str(node.root))
    os.mkfifo(base / "pipe")
    tree.stuck = str(base / "pipe")
    with (
        Kubelet(base) as kubelet,
        Running(base, document(entry(count=10)), node.root, tree=tree, first_scan=0.2) as plugin,
    ):
        assert plugin.ready_in < SOON
        assert tree.waits.is_set()
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.capacity(NAME) == 0
        _release(tree, base / "pipe")
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 10)


def _release(tree, pipe):
    """Let the waiting thread go on; the test thread itself must not wait for it."""
    tree.stuck = ""
    with contextlib.suppress(OSError):  # ENXIO: no reader
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


# A config file that does not answer.


def test_a_hung_config_is_reported_and_blocks_nothing_else(base, node, kubelet):
    """A hung mount under config.json: ports, CDI and metrics go on, and /readyz says what is not known"""
    with Running(base, document(entry(count=3)), node.root, use_cdi=True, hung=0.5) as plugin:
        kubelet.wait_allocatable(NAME, 3)
        try:
            fuse = hanging.Fuse(str(plugin.config_file))
        except OSError as reason:
            pytest.skip(f"not verified: {reason}")
        try:
            plugin.call(plugin.plugin.reload)
            assert fuse.asked.wait(PATIENCE)
            assert plugin.until(lambda: "has not answered" in " ".join(plugin.problems()))
            node.port("mlx5_0", "DOWN")
            kubelet.wait_allocatable(NAME, 0, seconds=SOON)
            specs = base / "cdi"
            for path in specs.iterdir():
                path.unlink()
            assert plugin.until(lambda: list(specs.iterdir()))
        finally:
            fuse.close()
        node.port("mlx5_0", "ACTIVE")
        kubelet.wait_allocatable(NAME, 3)
        assert plugin.until(lambda: plugin.problems() == [])


def test_a_config_hung_from_the_start_is_reported(base, node):
    with Running(base, document(entry()), node.root, hung=0.5, start=False) as plugin:
        try:
            fuse = hanging.Fuse(str(plugin.config_file))
        except OSError as reason:
            pytest.skip(f"not verified: {reason}")
        try:
            plugin.start()
            assert plugin.until(lambda: plugin.error)
            assert "has not answered for 0.5 s" in plugin.error
        finally:
            fuse.close()


def test_a_config_that_is_a_pipe_is_refused_at_once(base, node):
    with Running(base, document(entry()), node.root, start=False) as plugin:
        fifo = hanging.Fifo(str(plugin.config_file))
        plugin.start()
        assert plugin.until(lambda: plugin.error)
        assert "not a regular file" in plugin.error
        fifo.close()


def test_a_wait_that_is_cancelled_as_its_answer_comes_ends():
    """Before Python 3.12 asyncio.wait_for swallows that cancellation, and the caller never ends"""

    async def asked_and_cancelled():
        worker = Worker("test")
        for _round in range(200):
            task = asyncio.ensure_future(forever(worker))
            await asyncio.sleep(0.0003)
            task.cancel()
            done, _pending = await asyncio.wait({task}, timeout=5)
            assert done, "the cancellation was lost"
        worker.close()

    async def forever(worker):
        while True:
            await worker.within(5, int)

    asyncio.run(asked_and_cancelled())
