"""What the kernel reports: uevents as it writes them, directories, sockets, locks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from rdma_device_plugin import events, sockets
from rdma_device_plugin.worker import Worker, take

# As the kernel sends it for `rdma link add rxe0 type rxe netdev eth0`.
ADDED = (
    b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0DEVPATH=/devices/virtual/infiniband/rxe0\0"
    b"SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=2048\0"
)


def test_uevents_are_read():
    found = events.parse_uevent(ADDED)
    assert (found["ACTION"], found["SUBSYSTEM"], found["NAME"]) == ("add", "infiniband", "rxe0")
    assert events.concerns_rdma(found)
    assert not events.concerns_rdma({**found, "SUBSYSTEM": "block"})
    assert events.parse_uevent(b"libudev\0\xfe\xed\xca\xfe") == {}
    assert events.parse_uevent(b"") == {}


def test_netlink_sockets_open_here():
    async def opened():
        listeners = [events.watch_devices(lambda: None), events.watch_links(lambda: None)]
        for listener in listeners:
            if listener:
                listener.close()
        return [listener is not None for listener in listeners]

    found = asyncio.run(opened())
    if not all(found):
        pytest.skip("not verified: this machine allows no netlink sockets")


def test_directory_changes_are_reported(base):
    async def watched():
        directories = events.Directories()
        seen, other = asyncio.Queue(), []
        assert directories.watch(str(base), seen.put_nowait)
        assert directories.watch(str(base), other.append), "a second listener on the same directory"
        assert not directories.watch(str(base / "none"), seen.put_nowait)
        (base / "a").write_text("x")
        assert await asyncio.wait_for(seen.get(), 2) == "a"
        os.rename(base / "a", base / "b")
        names = {await asyncio.wait_for(seen.get(), 2) for _number in range(3)}
        assert names == {"a", "b"}
        directories.forget(seen.put_nowait)
        os.unlink(base / "b")
        while "b" not in other[3:]:
            await asyncio.sleep(0.01)
        assert seen.empty()
        directories.close()

    asyncio.run(asyncio.wait_for(watched(), 5))


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


def test_a_worker_passes_results_and_errors():
    async def work():
        worker = Worker("test")
        assert await worker.run(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 // 0)
        assert worker.hangs() == 0
        worker.close()

    asyncio.run(work())


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
        assert sockets.answers(path)
        assert sockets.answers(path)
        assert sockets.answers(path), "its backlog is full"
    assert not sockets.answers(path), "nothing is listening any more"


def test_only_our_own_socket_is_removed(base):
    path = str(base / "a.sock")
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX) as theirs:
        ours.bind(path + ".new")
        identity = sockets.publish(path + ".new", path)
        assert sockets.identity(path) == identity
        os.unlink(path)
        theirs.bind(path)
        assert not sockets.withdraw(path, identity)
        assert os.path.exists(path)
        assert sockets.withdraw(path, sockets.identity(path))
        assert not sockets.withdraw(path, None)


def test_a_foreign_socket_is_never_overwritten(base):
    """Someone else may come while ours is made, as the Go plugin does: it takes a socket away and binds its own."""
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
        theirs.close()
        bound(path + ".new")
        left_behind = sockets.publish(path + ".new", path)
        assert sockets.identity(path) == left_behind != there
        # Our own one is replaced, however young it is.
        bound(path + ".new").listen(1)
        assert sockets.publish(path + ".new", path, left_behind) == sockets.identity(path) != left_behind
        assert [file.name for file in base.iterdir()] == ["a.sock"]


def test_hidden_names_fit_into_a_socket_address():
    directory = "/var/lib/kubelet/plugins_registry"
    assert sockets.hidden(directory, "a.sock", 3) == f"{directory}/.a.sock.3"
    for name in ("x" * 63 + ".sock", "y" * 90):
        assert len(sockets.hidden(directory, name, 12345)) <= sockets.MAX_PATH


def test_a_missing_interface_is_reported():
    assert events.set_up("nonexistent0") == "No such device"
    assert events.set_up("lo") is None
