"""Error and congestion counters of an RDMA port, its NIC's counters by priority, and the CPU frequency governors.

Sources: Documentation/ABI/stable/sysfs-class-infiniband (counters and hw_counters),
Documentation/ABI/testing/sysfs-class-net-statistics, drivers/infiniband/sw/rxe/rxe_hw_counters.c; sizes of the
counters: InfiniBand Architecture Specification, volume 1, 16.1.3.5 (PortCounters); names by priority:
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Optional

from . import paths
from .text import integer
from .tree import Tree

# What a rise means. LINK: the cable, the transceiver or the port lost bits; never normal. TRANSPORT: packets were
# lost, late or out of order and were sent again. CONGESTION: a receiver or the fabric asked to slow down.
LINK, TRANSPORT, CONGESTION = "link", "transport", "congestion"


def _kinds(**names: str) -> dict[str, str]:
    return {name: kind for kind, listed in names.items() for name in listed.split()}


COUNTERS = _kinds(
    link="symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors "
    "local_link_integrity_errors excessive_buffer_overrun_errors",
    transport="port_xmit_discards port_rcv_switch_relay_errors port_rcv_constraint_errors port_xmit_constraint_errors",
    congestion="port_xmit_wait",
)
# Of mlx5, then of soft-RoCE.
HW_COUNTERS = _kinds(
    link="rx_icrc_encapsulated link_downed",
    transport="out_of_sequence packet_seq_err local_ack_timeout_err implied_nak_seq_err rnr_nak_retry_err "
    "out_of_buffer duplicate_request req_transport_retries_exceeded req_rnr_retries_exceeded roce_adp_retrans "
    "roce_adp_retrans_to roce_slow_restart "
    "out_of_seq_request rcvd_seq_err rcvd_rnr_err send_rnr_err completer_retry_err retry_exceeded_err "
    "retry_rnr_exceeded_err send_err",
    congestion="np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored",
)
NETDEV = _kinds(link="rx_errors rx_crc_errors tx_errors", transport="rx_dropped rx_missed_errors tx_dropped")
# Renamed here, so that the netdev's rx_errors is not mistaken for a counter of the RDMA port.
KINDS = {**COUNTERS, **HW_COUNTERS, **{f"netdev_{name}": kind for name, kind in NETDEV.items()}}
# Counters of 4, 8 and 16 bits saturate; further rises cannot be seen.
_SIZES = {
    0xF: "local_link_integrity_errors excessive_buffer_overrun_errors",
    0xFF: "link_error_recovery link_downed port_xmit_constraint_errors port_rcv_constraint_errors",
    0xFFFF: "symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
    "port_xmit_discards",
}
STOPS = {name: size for size, names in _SIZES.items() for name in names.split()}
# Bytes, pause frames and drops by priority, and those for all priorities.
_BY_PRIORITY = re.compile(
    r"[rt]x_(prio[0-7]_(bytes|pause|(buf_|cong_)?discards?)|global_pause)|rx_discards_phy|tx_pause_storm_\w+_events"
)
_LIFESPAN_MS, _LONGEST_MS = 10, 1000


def read(tree: Tree, hca: str, port: int, netdev: Optional[str] = None) -> dict[str, int]:
    """{name: value} of the counters above that this port has; empty if none can be read."""
    base = f"{paths.INFINIBAND}/{hca}/ports/{port}"
    found = {}
    for directory, names, prefix in (
        (f"{base}/counters", COUNTERS, ""),
        (f"{base}/hw_counters", HW_COUNTERS, ""),
        (f"{paths.NET}/{netdev}/statistics" if netdev else None, NETDEV, "netdev_"),
    ):
        if directory:
            for name, text in tree.attributes(directory, tuple(names)).items():
                if text and text.isdecimal():
                    found[prefix + name] = int(text)
    return found


def by_priority(statistics: Optional[dict[str, int]]) -> dict[str, int]:
    """A NIC's statistics by priority; empty if its driver has none, as for soft-RoCE."""
    if not any(name.startswith("tx_prio") for name in statistics or ()):
        return {}
    return {name: value for name, value in (statistics or {}).items() if _BY_PRIORITY.fullmatch(name)}


def refresh_seconds(tree: Tree, hca: str, port: int) -> float:
    """How old hw_counters may be: the kernel only asks the hardware again after this time."""
    lifespan = integer(tree.read(f"{paths.INFINIBAND}/{hca}/ports/{port}/hw_counters/lifespan"))
    return min(_LIFESPAN_MS if lifespan is None else max(lifespan, 0), _LONGEST_MS) / 1000


def rises(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """{name: increase} of the counters that rose; one that was reset in between counts from zero."""
    rose = {name: value for name, value in after.items() if name in before and value != before[name]}
    return {name: value - before[name] if value > before[name] else value for name, value in rose.items()}


def saturated(values: dict[str, int]) -> list[str]:
    return sorted(name for name, value in values.items() if value == STOPS.get(name))


def governors(tree: Tree) -> dict[str, int]:
    """{CPU frequency governor: number of CPUs}; empty without cpufreq, as in most VMs."""
    base = "/sys/devices/system/cpu"
    cpus = filter(re.compile(r"cpu\d+").fullmatch, tree.listdir(base))
    return dict(Counter(filter(None, (tree.read(f"{base}/{name}/cpufreq/scaling_governor") for name in cpus))))
