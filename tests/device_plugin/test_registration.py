"""Cases 2A of the guide over real unix sockets: registration, restarts, lists, allocations. Comments name the case."""

import asyncio
import contextlib
import os
import socket
import subprocess
import time

import grpc
import pytest
from harness import FAST, SOON, Running, document, entry
from kubelet_double import Kubelet
from rdma_device_plugin import events, sockets
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api
from rdma_device_plugin.worker import take

NAME = "rdma/test_server"
CONFIG = document(entry())


@pytest.fixture(params=[True, False], ids=["watch", "legacy"])
def kubelet(base, request):
    with Kubelet(base, watches=request.param) as running:
        yield running


@pytest.fixture
def plugin(base, node, kubelet):
    """Events notice everything here: the slow polls behind them come too late."""
    with Running(base, CONFIG, node.root, timing=FAST._replace(backstop=60), kubelet=kubelet) as running:
        yield running


def test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for(base, kubelet, plugin):
    where = "plugins_registry" if kubelet.watches else "device-plugins"
    assert [path.name for path in (base / where).glob("*.sock") if path.name != "kubelet.sock"] == ["test_server.sock"]
    assert sorted(kubelet.devices(NAME), key=int) == [str(number) for number in range(100)]
    assert kubelet.count("register") == (0 if kubelet.watches else 1)
    assert plugin.until(lambda: plugin.resource().state == "registered")
    assert plugin.resource().mode == ("watch" if kubelet.watches else "legacy")
    for info in [line[2] for line in kubelet.log if line[0] == "info"]:  # it has no path in the container
        assert (info.type, info.name, info.endpoint) == ("DevicePlugin", NAME, "")
        assert list(info.supported_versions) == ["v1beta1"]


def test_an_unwatched_directory_leads_to_a_legacy_registration(base, node):
    """A hostPath mount made plugins_registry, the kubelet has another root"""
    (base / "plugins_registry").mkdir()
    with Kubelet(base, watches=False) as kubelet, Running(base, CONFIG, node.root, kubelet=kubelet) as plugin:
        assert plugin.until(lambda: plugin.resource().state == "registered")
        assert plugin.resource().mode == "legacy"
        kubelet.restart()
        kubelet.wait_allocatable(NAME, 100, SOON)  # known to be unwatched: no second silence is waited for


@pytest.mark.parametrize(("folder", "state"), [(True, "waiting for the kubelet"), (False, "cannot serve")])
def test_it_waits_for_a_kubelet_that_starts_later(base, node, folder, state):
    """Upstream exits with 1, but on the first boot the kubelet has not made its folders yet"""
    if folder:
        (base / "device-plugins").mkdir()
    with Running(base, CONFIG, node.root) as plugin:
        assert plugin.until(lambda: plugin.resource().state == state)
        assert not folder or "nothing is listening" in plugin.resource().error
        with Kubelet(base, watches=False) as kubelet:
            kubelet.wait_allocatable(NAME, 100, SOON)


@pytest.mark.parametrize("watches", [True, False], ids=["watch", "legacy"])
def test_a_refused_registration_is_reported_and_retried(base, node, watches):
    """Upstream stops its server inside the handler and stays as a zombie"""
    with Kubelet(base, watches=watches, refuse="no room") as kubelet, Running(base, CONFIG, node.root) as plugin:
        assert plugin.until(lambda: plugin.resource().state == "refused")
        assert "no room" in plugin.resource().error
        assert "no room" in plugin.problems()[0]
        assert sum(plugin.resource().registrations.values()) >= 1
        # Watch: the fallback to Register is also refused, and reported.
        assert kubelet.wait(lambda: kubelet.count("register") >= 2)
        kubelet.refuse = ""
        kubelet.wait_allocatable(NAME, 100)
        assert plugin.until(lambda: plugin.problems() == [])


def test_a_kubelet_restart_is_noticed(base, kubelet, plugin):
    """Upstream needs up to 5 s in legacy mode; the same IDs return"""
    before = kubelet.devices(NAME)
    for _round in range(3):
        kubelet.restart()
        kubelet.wait_allocatable(NAME, 100, SOON)
    assert kubelet.devices(NAME) == before


def test_a_socket_that_is_not_listened_on_yet(base, node):
    """inotify reports the file that bind(2) creates; listen(2) comes after it"""
    with Kubelet(base, watches=False) as kubelet, Running(base, CONFIG, node.root, kubelet=kubelet) as plugin:
        kubelet.stop()
        assert plugin.until(lambda: plugin.resource().state == "waiting for the kubelet")
        attempts = plugin.resource().attempts
        with socket.socket(socket.AF_UNIX) as early:
            early.bind(str(base / "device-plugins/kubelet.sock"))
            time.sleep(0.1)
            early.listen()
            connection, _address = early.accept()  # the probe, or the call itself
            connection.close()
            assert plugin.resource().attempts == attempts, "that was not a failure yet"


def test_a_kubelet_that_does_not_answer_is_left_for_its_successor(base, node):
    """The next kubelet removes our socket before it listens; the call must not wait, nor reach it without a socket"""
    (base / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(base / "device-plugins/kubelet.sock"))
        silent.listen()
        with Running(base, CONFIG, node.root) as plugin:
            # The check whether anything is listening, and the call.
            connections = [silent.accept()[0] for _number in range(2)]
            with Kubelet(base, watches=False) as kubelet:
                kubelet.wait_allocatable(NAME, 100, SOON)
                assert plugin.until(lambda: plugin.resource().state == "registered")
            assert plugin.resource().registrations["legacy", "refused"] == 0
            for connection in connections:
                connection.close()


@pytest.mark.parametrize("loss", ["socket", "stream"])
def test_what_is_lost_leads_to_a_new_registration(base, kubelet, plugin, loss):
    """Registered, no stream"""
    assert plugin.until(lambda: plugin.resource().state == "registered")
    before = kubelet.clients[NAME]
    if loss == "socket":
        (base / ("plugins_registry" if kubelet.watches else "device-plugins") / "test_server.sock").unlink()
    else:
        before.close()
    assert kubelet.wait(lambda: kubelet.clients[NAME] is not before)
    kubelet.wait_allocatable(NAME, 100)


def test_two_instances_take_turns(base, node):
    """The second waits for the first and writes no spec, and its socket outlives the first one's end"""

    def specs():
        return {path.name: path.read_text() for path in (base / "cdi").iterdir()}

    with Kubelet(base) as kubelet, Running(base, CONFIG, node.root, use_cdi=True, kubelet=kubelet) as first:
        before = specs()
        other = document(entry(count=7, charDevices={"umad": "never"}))
        with Running(base, other, node.root, use_cdi=True, folder="second") as second:
            assert second.until(lambda: second.resource().state == "waiting for another instance")
            assert str(os.getpid()) in second.resource().error
            assert kubelet.allocatable(NAME) == 100
            second.rescan()
            time.sleep(1)
            assert specs() == before
            first.stop()
            kubelet.wait_allocatable(NAME, 7)
            assert specs() != before
            assert (base / "plugins_registry/test_server.sock").exists()


def test_a_socket_that_is_not_ours_is_left_alone(base, node):
    """Upstream unlinks whatever is at its path, when it starts and when it stops"""
    (base / "device-plugins").mkdir()
    path = str(base / "device-plugins/test_server.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        inode = os.stat(path).st_ino
        with Running(base, CONFIG, node.root) as plugin:
            assert plugin.until(lambda: "another process serves" in plugin.resource().error)
        assert os.stat(path).st_ino == inode
    # Nothing listens any more: a crashed predecessor's leftover is replaced, even if the clock was set back since.
    ahead = time.time() + 86400
    os.utime(path, (ahead, ahead))
    with Kubelet(base, watches=False) as kubelet, Running(base, CONFIG, node.root, kubelet=kubelet) as plugin:
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(path + ".new")
            successor.listen()
            os.rename(path + ".new", path)
            plugin.stop()
        assert os.path.exists(path), "a stopping plugin removed the socket of its successor"


def test_a_full_disk_does_not_prevent_serving(base, node):
    """A socket needs no block; the process id in the lock is for messages only"""
    (base / "device-plugins").mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "full", base / "device-plugins"], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"not verified: cannot mount a tmpfs here ({made.stderr.decode().strip()})")
    try:
        (base / "device-plugins/filler").write_bytes(b"x" * 4096)
        with Kubelet(base, watches=False) as kubelet, Running(base, CONFIG, node.root):
            kubelet.wait_allocatable(NAME, 100)
    finally:
        subprocess.run(["umount", "--lazy", base / "device-plugins"], check=False)


def test_a_clean_stop_leaves_nothing_behind(base, kubelet, plugin):
    plugin.stop()
    assert plugin.stopped_in < 1
    left = {path.name for folder in ("plugins_registry", "device-plugins") for path in (base / folder).glob("*")}
    assert left <= {"kubelet.sock"}


def test_a_stream_that_is_cancelled_does_not_hold_a_place(kubelet, plugin):
    """Returns when the client cancels"""

    stub = kubelet.clients[NAME].stub
    for _number in range(20):
        stream = stub.ListAndWatch(api.Empty())
        assert len(next(stream).devices) == 100
        stream.cancel()
    assert plugin.until(lambda: plugin.plugin.served["test_server"].service.streams == 1)
    assert len(kubelet.allocate(NAME, ["0"]).container_responses) == 1


def test_allocate(kubelet, plugin):
    answer = kubelet.allocate(NAME, ["0"], ["5", "99"])
    paths = ["umad0", "uverbs0", "umad1", "uverbs1", "rdma_cm"]
    for container in answer.container_responses:
        assert [spec.container_path for spec in container.devices] == [f"/dev/infiniband/{name}" for name in paths]
        assert {spec.permissions for spec in container.devices} == {"rwm"}
        assert all(spec.host_path == spec.container_path for spec in container.devices)
        assert [field.name for field, _value in container.ListFields()] == ["devices"]
    assert len(answer.container_responses) == 2
    assert len(kubelet.allocate(NAME).container_responses) == 0
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.allocate(NAME, ["1", "zzz", "100"])
    assert "zzz, 100" in refused.value.details()
    assert "0 to 99" in refused.value.details()


def test_rpcs_that_the_kubelet_need_not_call(kubelet, plugin):
    """Upstream dies of GetPreferredAllocation"""

    client = kubelet.clients[NAME]
    assert client.options == api.DevicePluginOptions()
    assert kubelet.prefer(NAME, ["7", "3", "5"], 2, required=["5"]) == ["5", "3"]
    assert client.stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=["1"])) == (
        api.PreStartContainerResponse()
    )


def test_a_kubelet_that_does_not_read_blocks_nothing(base, node):
    """A stream that is not read blocks upstream's second update and then its end"""
    with Kubelet(base, watches=False) as kubelet, Running(base, CONFIG, node.root, kubelet=kubelet) as plugin:
        idle = kubelet.clients[NAME].stub.ListAndWatch(api.Empty())
        for number in range(20):
            node.port("mlx5_0", "1: DOWN" if number % 2 else "4: ACTIVE")
            plugin.call(plugin.plugin.reload)
            time.sleep(0.02)
        assert len(kubelet.allocate(NAME, ["0"]).container_responses) == 1
        plugin.stop()
        assert plugin.stopped_in < 1
        idle.cancel()


# --- what the kernel reports: uevents as it writes them, directories, sockets, locks ----------------------------------


# As sent by the kernel for `rdma link add rxe0 type rxe netdev eth0`.
ADDED = (
    b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0DEVPATH=/devices/virtual/infiniband/rxe0\0"
    b"SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=2048\0"
)


def test_uevents_are_read():
    assert events.concerns_rdma(ADDED)
    for other in (ADDED.replace(b"=infiniband", b"=block"), b"libudev\0\xfe\xed\xca\xfe", b""):
        assert not events.concerns_rdma(other)


def test_a_directory_that_went_can_be_watched_again(base):
    async def watched():
        directories = events.Directories()
        seen = asyncio.Queue()
        (base / "d").mkdir()
        directories.watch(str(base / "d"), seen.put_nowait)
        (base / "d").rmdir()
        assert await asyncio.wait_for(seen.get(), 2) == ""
        (base / "d").mkdir()
        while not directories.watch(str(base / "d"), seen.put_nowait):
            await asyncio.sleep(0.01)
        (base / "d/x").touch()
        while await asyncio.wait_for(seen.get(), 2) != "x":
            pass
        directories.close()

    asyncio.run(watched())


def test_a_cancellation_that_meets_the_event_is_not_lost():
    """asyncio.wait_for of Python 3.11 returns instead"""

    async def work():
        for _number in range(100):
            event = asyncio.Event()
            task = asyncio.ensure_future(take(event, 5))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            event.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())


def test_a_claim_is_held_by_one(base):
    first, second = sockets.Claim(str(base), "a.sock"), sockets.Claim(str(base), "a.sock")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert second.holder() == str(os.getpid())
    first.release()
    assert second.take(), "a lock file that was removed in between is no lock"
    assert os.listdir(base) == [".a.sock.lock"]
    os.unlink(base / ".a.sock.lock")
    assert first.take(), "a kubelet that empties its directory"
    second.release()
    assert first.held
    assert os.listdir(base) == [".a.sock.lock"], "the holder's file is not the one that is removed"
    first.release()
    assert os.listdir(base) == []


def test_who_answers_at_a_socket(base):
    path = str(base / "a.sock")
    assert not sockets.answers(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert not sockets.answers(path)
        listener.listen(0)
        assert all(sockets.answers(path) for _time in range(3)), "its backlog is full"
    assert not sockets.answers(path), "nothing is listening any more"


def test_a_foreign_socket_is_never_overwritten(base):
    """Another program may come while ours is created, like the Go plugin, which removes a socket and binds its own."""
    path = str(base / "a.sock")
    with contextlib.ExitStack() as opened:

        def bound(at):
            listener = opened.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(at)
            return listener

        theirs = bound(path)
        for listens in (False, True):
            if listens:
                theirs.listen(1)
                os.utime(path, (1, 1))
            there = sockets.identity(path)
            bound(path + ".new")
            with pytest.raises(OSError, match="another process serves this socket"):
                sockets.publish(path + ".new", path)
            assert sockets.identity(path) == there
            assert [file.name for file in base.iterdir()] == ["a.sock"]


def test_hidden_names_fit_into_a_socket_address():
    directory = "/var/lib/kubelet/plugins_registry"
    assert sockets.hidden(directory, "a.sock", 3) == f"{directory}/.a.sock.3"
    for name in ("x" * 63 + ".sock", "y" * 90):
        assert len(sockets.hidden(directory, name, 12345)) <= sockets.MAX_PATH
    assert sockets.hidden(directory, "x" * 90, 1) != sockets.hidden(directory, "y" * 90, 1)


def test_a_missing_interface_is_reported():
    assert events.set_up("nonexistent0") == "No such device"
    assert events.set_up("lo") is None
