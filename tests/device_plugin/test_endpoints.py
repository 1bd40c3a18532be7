"""/metrics, /healthz, /readyz over a real port."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request

import pytest
from harness import Running, document, entry
from kubelet_double import Kubelet
from prometheus_client.parser import text_string_to_metric_families
from rdma_device_plugin.status import parse_address

NAME = "rdma/test_server"


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
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


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_metrics(base, node, port):
    """Pitfall 14"""
    config = document(entry(count=10, health={"downSeconds": 0, "upSeconds": 0}))
    with (
        Kubelet(base, watches=False) as kubelet,
        Running(base, config, node.root, metrics=f"127.0.0.1:{port}") as plugin,
    ):
        kubelet.wait_allocatable(NAME, 10)
        assert plugin.until(lambda: listens(port))
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
    for name, value in {
        "counters/port_xmit_data": "1000",
        "counters/port_xmit_discards": "3",
        "counters/symbol_error": "0",
        "hw_counters/out_of_sequence": "5",
        "hw_counters/np_cnp_sent": "7",
        "hw_counters/rnr_nak_retry_err": "2",
        "hw_counters/np_ecn_marked_roce_packets": "9",
        "hw_counters/lifespan": "10",
        "hw_counters/damaged": "no number",
    }.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(value + "\n")
    with Running(base, document(entry()), node.root, metrics=f"127.0.0.1:{port}") as plugin:
        assert plugin.until(lambda: listens(port))
        found = samples(port)
        of = 'hca="mlx5_0",port="1"'
        assert found[f"rdma_port_transmit_bytes_total{{{of}}}"] == "4000.0"
        assert found[f'rdma_port_counters_total{{counter="port_xmit_discards",{of}}}'] == "3.0"
        assert found[f'rdma_port_counters_total{{counter="symbol_error",{of}}}'] == "0.0"
        driver = {"out_of_sequence": 5, "np_cnp_sent": 7, "rnr_nak_retry_err": 2, "np_ecn_marked_roce_packets": 9}
        for name, value in driver.items():
            assert found[f'rdma_port_hw_counters_total{{counter="{name}",{of}}}'] == f"{value}.0"
        assert not any("lifespan" in name or "damaged" in name for name in found)


def test_readiness_says_why_not(base, node, port):
    config = document(entry(), entry("none", selectors={"vendors": ["ffff"]}))
    with Running(base, config, node.root, metrics=f"127.0.0.1:{port}") as plugin:
        assert plugin.until(lambda: listens(port))
        assert get(port, "/healthz") == (200, "ok\n")
        code, text = get(port, "/readyz")
        assert code == 503
        assert text.startswith(f"{NAME}: ")
        with Kubelet(base, watches=False) as kubelet:
            kubelet.wait_allocatable(NAME, 100)
            assert plugin.until(lambda: get(port, "/readyz")[0] == 200)
            assert [line.split(":")[0] for line in get(port, "/readyz")[1].splitlines()] == ["ok", "rdma/none"]
        assert get(port, "/")[0] == 404


def test_clients_that_do_not_speak_http_do_no_harm(base, node, port):
    with Running(base, document(entry()), node.root, metrics=f"127.0.0.1:{port}") as plugin:
        assert plugin.until(lambda: listens(port))
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


@pytest.mark.parametrize(
    ("text", "wanted"), [(":9470", ("", 9470)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:80", ("::1", 80))]
)
def test_addresses(text, wanted):
    assert parse_address(text) == wanted


@pytest.mark.parametrize("text", ["", "9470", "a:b", ":70000", ":"])
def test_invalid_addresses(text):
    with pytest.raises(ValueError, match="wanted host:port"):
        parse_address(text)


def test_idle_connections_use_up_no_descriptors(base, node, port):
    """A thousand connections that say nothing: HCAs stay healthy, and the next scrape is answered"""
    with (
        Kubelet(base, watches=False) as kubelet,
        Running(base, document(entry()), node.root, metrics=f"127.0.0.1:{port}") as plugin,
    ):
        kubelet.wait_allocatable(NAME, 100)
        assert plugin.until(lambda: listens(port))
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
