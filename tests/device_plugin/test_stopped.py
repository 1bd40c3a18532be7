"""A plugin that is stopped or stuck: its watchdog is no longer fed, and whoever asks its socket is told."""

from __future__ import annotations

import importlib.util
import pathlib
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest
from harness import ENVIRONMENT, FAST, SOON, Process, Running, document, entry

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    """Node-side code of the collection, which needs nothing but the standard library."""
    path = ROOT / "plugins/module_utils/_device_plugin/ask.py"
    spec = importlib.util.spec_from_file_location("ask", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ask = load().ask


@pytest.fixture
def manager(base):
    """A real notification socket, as systemd has one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"{base}/notify")
        yield made


def fed(manager, seconds):
    """Whether the watchdog is fed within so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        manager.settimeout(left)
        try:
            if "WATCHDOG=1" in manager.recv(4096).decode().splitlines():
                return True
        except TimeoutError:
            pass
    return False


def drain(manager):
    manager.setblocking(False)
    try:
        while manager.recv(4096):
            pass
    except BlockingIOError:
        pass


def test_a_stopped_process_feeds_no_watchdog_and_answers_nobody(base, node, manager, monkeypatch):
    """The unit says WatchdogSec=120; the loop feeds every 5 s."""
    monkeypatch.setitem(ENVIRONMENT, "NOTIFY_SOCKET", f"{base}/notify")
    (base / "device-plugins").mkdir()
    with Process(base, document(entry()), node.root) as plugin:
        assert fed(manager, 60)
        path = f"{base}/device-plugins/test_server.sock"
        assert ask(path) == ""
        plugin.process.send_signal(signal.SIGSTOP)
        drain(manager)
        begun = time.monotonic()
        assert ask(path, seconds=2) == "no answer within 2 s: the process is stopped or stuck"
        assert time.monotonic() - begun < 2 + SOON
        assert not fed(manager, 11)
        plugin.process.send_signal(signal.SIGCONT)
        assert fed(manager, 30)
        assert ask(path) == ""
        plugin.process.kill()
        plugin.process.wait()
        assert ask(path) == "Connection refused"


def test_a_loop_that_is_stuck_feeds_no_watchdog_and_answers_nobody(base, node, manager, monkeypatch):
    """The process runs and its other threads do: only what answers the kubelet hangs."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"{base}/notify")
    (base / "device-plugins").mkdir()
    with Running(base, document(entry()), node.root, timing=FAST) as plugin:
        path = f"{base}/device-plugins/test_server.sock"
        assert fed(manager, SOON)
        assert ask(path) == ""
        stuck = threading.Thread(target=plugin.call, args=(time.sleep, 4))
        stuck.start()
        time.sleep(0.5)
        drain(manager)
        assert ask(path, seconds=1.5).startswith("no answer within 1.5 s")
        assert not fed(manager, 1)
        stuck.join()
        assert fed(manager, SOON)
        assert ask(path) == ""


def test_a_manager_that_takes_nothing_holds_the_loop_up_for_a_moment_only(base, node, manager, monkeypatch):
    """systemd itself hangs, and its queue is full."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"{base}/notify")
    (base / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other, suppress(BlockingIOError):
        while True:
            other.sendto(b"x", f"{base}/notify")
    with Running(base, document(entry()), node.root, timing=FAST) as plugin:
        assert ask(f"{base}/device-plugins/test_server.sock", seconds=SOON) == ""
        assert plugin.stopped_in is None


def serve(base, answer):
    """A socket whose server says the same to everybody."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{base}/odd.sock")
    listener.listen(1)

    def run():
        channel, _address = listener.accept()
        with listener, channel:
            channel.recv(65536)
            channel.sendall(answer)
            channel.shutdown(socket.SHUT_WR)
            channel.recv(65536)

    threading.Thread(target=run, daemon=True).start()
    return f"{base}/odd.sock"


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (b"", "it hangs up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it hangs up"),
        (bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8), "it hangs up on the call"),
        (bytes([0, 0, 4, 3, 0, 0, 0, 0, 1]) + bytes(4), "it hangs up on the call"),
        (bytes([0, 0, 0, 1, 5, 0, 0, 0, 1]), "it answers, and refuses the call GetDevicePluginOptions"),
    ],
    ids=["nothing", "HTTP/1.1", "GOAWAY", "RST_STREAM", "no such service"],
)
def test_what_does_not_answer_the_call_is_told(base, answer, seen):
    assert ask(serve(base, answer), seconds=5) == seen


def test_a_socket_that_nobody_accepts_from_ends_in_time(base):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{base}/full.sock")
        listener.listen(0)
        held = []
        told = ""
        for _number in range(4):
            told = ask(f"{base}/full.sock", seconds=0.3)
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            try:
                held[-1].connect(f"{base}/full.sock")
            except BlockingIOError:
                break
        assert "stopped or stuck" in ask(f"{base}/full.sock", seconds=0.3)
        assert "stopped or stuck" in told
        for one in held:
            one.close()
    assert ask(f"{base}/nowhere.sock") == "No such file or directory"
