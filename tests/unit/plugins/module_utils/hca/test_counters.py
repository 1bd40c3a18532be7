"""Counters of a port: which are read, what a rise is, which have stopped."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, counters


def write(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")


def test_errors_of_port_hardware_and_netdev_are_read_and_traffic_is_not(tmp_path):
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    write(tmp_path, f"{port}/counters/symbol_error", 3)
    write(tmp_path, f"{port}/counters/port_xmit_data", 10**12)
    write(tmp_path, f"{port}/counters/port_rcv_errors", "N/A (no PMA)")
    write(tmp_path, f"{port}/hw_counters/out_of_sequence", 7)
    write(tmp_path, "/sys/class/net/eth2/statistics/rx_errors", 1)
    found = counters.read(Tree(str(tmp_path)), "mlx5_0", 1, "eth2")
    assert found == {"symbol_error": 3, "out_of_sequence": 7, "netdev_rx_errors": 1}
    assert set(found) <= set(counters.KINDS)
    assert counters.read(Tree(str(tmp_path)), "mlx5_9", 1) == {}


def test_a_rise_is_reported_and_a_reset_counts_from_zero():
    assert counters.rises({"a": 1, "b": 2, "c": 9}, {"a": 1, "b": 5, "c": 4, "d": 1}) == {"b": 3, "c": 4}


def test_a_counter_at_its_end_is_reported():
    assert counters.saturated({"symbol_error": 0xFFFF, "link_downed": 0xFE, "out_of_sequence": 10**9}) == [
        "symbol_error"
    ]


def test_governors_are_counted(tmp_path):
    for number, governor in enumerate(("powersave", "powersave", "performance")):
        write(tmp_path, f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    write(tmp_path, "/sys/devices/system/cpu/cpuidle/current_driver", "x")
    assert counters.governors(Tree(str(tmp_path))) == {"powersave": 2, "performance": 1}
    assert counters.governors(Tree(str(tmp_path / "nothing"))) == {}
