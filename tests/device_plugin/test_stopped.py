"""Its reports, even when it is stopped or stuck: watchdog, socket, /metrics, /readyz."""

import os
import pathlib
import runpy
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from harness import FAST, SOON, Node, Running, document, entry
from kubelet_double import Kubelet, dial
from prometheus_client.parser import text_string_to_metric_families
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.lifecycle import Timing
from rdma_device_plugin.status import parse_address

ROOT = pathlib.Path(__file__).resolve().parents[2]


# Node-side code of the collection, which only needs the standard library.
ask = runpy.run_path(str(ROOT / "plugins/module_utils/_device_plugin/ask.py"))["ask"]


@pytest.fixture
def manager(base):
    """A real notification socket, like systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"{base}/notify")
        yield made


def fed(manager, seconds):
    """Whether the watchdog is fed within this many seconds."""
    deadline = time.monotonic() + seconds
    with suppress(TimeoutError):
        while (left := deadline - time.monotonic()) > 0:
            manager.settimeout(left)
            if "WATCHDOG=1" in manager.recv(4096).decode().splitlines():
                return True
    return False


def drain(manager):
    manager.setblocking(False)
    with suppress(BlockingIOError):
        while manager.recv(4096):
            pass


def test_a_loop_that_is_stuck_feeds_no_watchdog_and_answers_nobody(base, node, manager, monkeypatch):
    """The process and its other threads run: only the loop that answers the kubelet hangs."""
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
    with Running(base, document(entry()), node.root, timing=FAST):
        assert ask(f"{base}/device-plugins/test_server.sock", seconds=SOON) == ""


def serve(base, answer):
    """A socket whose server gives everybody the same answer."""
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
        (b"", "it closes the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it closes the connection"),
        (bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8), "it closes the connection on the call"),
        (bytes([0, 0, 4, 3, 0, 0, 0, 0, 1]) + bytes(4), "it closes the connection on the call"),
        (bytes([0, 0, 0, 1, 5, 0, 0, 0, 1]), "it answers, but refuses the call GetDevicePluginOptions"),
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
    assert ask(f"{base}/full.sock") == "Connection refused", "its process is gone"
    assert ask(f"{base}/nowhere.sock") == "No such file or directory"


# An idle plugin.


FIXTURE = "h100-8x-cx7-ib"
RAILS = document(
    *(
        entry(f"rail{number}", 100, extraSelectors={"rdmaDevices": [f"mlx5_{number}"]}, health={"upSeconds": 0.1})
        for number in range(8)
    )
)


def test_ports_are_looked_at_twice_a_second_and_told_of_once(base):
    """A change is seen within half a second and downSeconds; without one, only backstops wake the loop"""
    node = Node(base / "node", FIXTURE)
    reads, told = [], []

    def record(_operation, path):
        if path.endswith("mlx5_3/ports/1/state"):
            reads.append(time.monotonic())

    tree = Tree(str(node.root), record)
    with (
        Kubelet(base) as kubelet,
        Running(base, RAILS, node.root, timing=Timing(), tree=tree, port_poll=0.5, kubelet=kubelet) as plugin,
    ):
        polled = plugin.plugin.ports.polled
        plugin.plugin.ports.polled = lambda states: told.append(states) or polled(states)
        del reads[:]
        time.sleep(6)
        looked, heard = len(reads), len(told)
        assert 6 <= looked <= 14, "twice a second"
        assert heard <= 3, "the backstops of 6 s, and a scan"
        node.port("mlx5_3", "1: DOWN")
        kubelet.wait_allocatable("rdma/rail3", 0, SOON)
        node.port("mlx5_3", "4: ACTIVE")
        kubelet.wait_allocatable("rdma/rail3", 100, SOON)


def test_a_state_that_a_scan_saw_first_is_not_forgotten(base):
    """A scan sees the port down; it is up again before the next look, which finds the known state"""
    node = Node(base / "node", FIXTURE)
    with (
        Kubelet(base) as kubelet,
        Running(base, RAILS, node.root, timing=Timing(backstop=60), port_poll=30, kubelet=kubelet) as plugin,
    ):
        node.port("mlx5_3", "1: DOWN")
        scans = plugin.plugin.scans
        assert plugin.rescan(lambda: plugin.plugin.scans > scans)
        node.port("mlx5_3", "4: ACTIVE")
        plugin.call(plugin.plugin.poll_ports)
        assert plugin.until(lambda: plugin.plugin.ports.states["mlx5_3", 1] == "ACTIVE", SOON)
        kubelet.wait_allocatable("rdma/rail3", 100, SOON)


# --- /metrics, /healthz, /readyz over a real port ---------------------------------------------------------------------


NAME = "rdma/test_server"


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
    dial(("127.0.0.1", port))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(port):
    code, text = get(port, "/metrics")
    assert code == 200
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_metrics(base, node, port):
    config = document(entry(count=10, health={"downSeconds": 0, "upSeconds": 0}))
    with (
        Kubelet(base, watches=False) as kubelet,
        Running(base, config, node.root, metrics=f"127.0.0.1:{port}", kubelet=kubelet),
    ):
        kubelet.allocate(NAME, ["0"])
        found = samples(port)
        prefix, of = "rdma_device_plugin_", f'resource="{NAME}"'
        assert found[f'{prefix}devices{{health="Healthy",{of}}}'] == "10.0"
        assert found[f"{prefix}hcas{{{of}}}"] == "2.0"
        assert found[f"{prefix}registered{{{of}}}"] == "1.0"
        assert found[f'{prefix}registrations_total{{mode="legacy",{of},result="accepted"}}'] == "1.0"
        assert found[f'{prefix}allocations_total{{{of},result="granted"}}'] == "1.0"
        assert float(found[f"{prefix}last_scan_seconds"]) > 0
        assert found['rdma_port_active{hca="mlx5_0",port="1"}'] == "1.0"
        assert found['rdma_port_active{hca="mlx5_1",port="1"}'] == "0.0"
        node.port("mlx5_0", "1: DOWN")
        kubelet.wait_allocatable(NAME, 0)
        found = samples(port)
        assert found[f'{prefix}devices{{health="Unhealthy",{of}}}'] == "10.0"
        assert found['rdma_port_link_flaps_total{hca="mlx5_0",port="1"}'] == "1.0"


def test_counters_of_the_ports(base, node, port):
    directory = node.path("/sys/class/infiniband/mlx5_0/ports/1")
    kernel = {"port_xmit_data": "1000", "port_xmit_discards": "3", "symbol_error": "0"}
    driver = {"out_of_sequence": "5", "np_ecn_marked_roce_packets": "9", "lifespan": "10", "damaged": "no number"}
    counters = [(f"counters/{name}", value) for name, value in kernel.items()]
    for name, value in [*counters, *((f"hw_counters/{name}", value) for name, value in driver.items())]:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(value + "\n")
    with Running(base, document(entry()), node.root, metrics=f"127.0.0.1:{port}"):
        found = samples(port)
        of = 'hca="mlx5_0",port="1"'
        assert found[f"rdma_port_transmit_bytes_total{{{of}}}"] == "4000.0"
        assert found[f'rdma_port_counters_total{{counter="port_xmit_discards",{of}}}'] == "3.0"
        assert found[f'rdma_port_counters_total{{counter="symbol_error",{of}}}'] == "0.0"
        for name in ("out_of_sequence", "np_ecn_marked_roce_packets"):
            assert found[f'rdma_port_hw_counters_total{{counter="{name}",{of}}}'] == f"{driver[name]}.0"
        assert not any("lifespan" in name or "damaged" in name for name in found)


def test_readiness_says_why_not(base, node, port):
    config = document(entry(), entry("none", selectors={"vendors": ["ffff"]}))
    with Running(base, config, node.root, metrics=f"127.0.0.1:{port}") as plugin:
        assert get(port, "/healthz") == (200, "ok\n")
        code, text = get(port, "/readyz")
        assert code == 503
        assert text.startswith(f"{NAME}: ")
        with Kubelet(base, watches=False) as kubelet:
            kubelet.wait_allocatable(NAME, 100)
            assert plugin.until(lambda: get(port, "/readyz")[0] == 200)
            assert [line.split(":")[0] for line in get(port, "/readyz")[1].splitlines()] == ["ok", "rdma/none"]
        assert get(port, "/")[0] == 404
        for request in (b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\xfe\r\n\r\n", b"A" * 20000, b"POST / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                client.recv(100)
        assert get(port, "/healthz")[0] == 200


def test_a_port_that_is_taken_does_not_end_the_plugin(base, node):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with Kubelet(base, watches=False) as kubelet, Running(base, document(entry()), node.root, metrics=address):
            kubelet.wait_allocatable(NAME, 100)


def test_addresses():
    addresses = {":9470": ("", 9470), "127.0.0.1:1": ("127.0.0.1", 1), "[::1]:80": ("::1", 80)}
    assert {text: parse_address(text) for text in addresses} == addresses
    for text in ("", "9470", "a:b", ":70000", ":"):
        with pytest.raises(ValueError, match="wanted host:port"):
            parse_address(text)


def test_idle_connections_use_up_no_descriptors(base, node, port):
    """A thousand silent connections: HCAs stay healthy, and the next scrape is answered"""
    with (
        Kubelet(base, watches=False) as kubelet,
        Running(base, document(entry()), node.root, metrics=f"127.0.0.1:{port}", kubelet=kubelet) as plugin,
    ):
        dial(("127.0.0.1", port))
        before = len(os.listdir("/proc/self/fd"))
        idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _one in range(300)]
        try:
            time.sleep(0.5)
            served = len(os.listdir("/proc/self/fd")) - before - len(idle)
            assert served <= 64, "the plugin's own ends of these connections"
            kubelet.wait_allocatable(NAME, 100)
        finally:
            for one in idle:
                one.close()
        assert plugin.until(lambda: get(port, "/healthz")[0] == 200)
