"""Logs of nccl-tests: the shapes of lines that NCCL 2.12 to 2.28 print, healthy and with each fault."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import log

HEALTHY = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Using devices
#  Rank  0 Group  0 Pid  31842 on    worker0 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  28110 on    worker1 device  0 [0x18] NVIDIA H100 80GB HBM3
worker0:31842:31842 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
worker0:31842:31842 [0] NCCL INFO Bootstrap : Using eth0:10.42.0.9<0>
worker0:31842:31842 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
worker0:31842:31905 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.42.0.9<0>
worker1:28110:28171 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.42.1.9<0>
worker0:31842:31905 [0] NCCL INFO Using non-device net plugin version 0
worker0:31842:31905 [0] NCCL INFO Using network IB
worker1:28110:28171 [0] NCCL INFO Using network IB
worker0:31842:31905 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
worker0:31842:31905 [0] NCCL INFO Channel 00/02 :    0   1
worker0:31842:31950 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
worker0:31842:31950 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA
worker1:28110:28190 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA
worker1:28110:28190 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/1/GDRDMA
worker0:31842:31950 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/CUMEM
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    17.08    0.00    0.00      0    16.76    0.00    0.00      0
  8589934592    2147483648     float     sum      -1   180860   92.49   92.49      0   180902   92.48   92.48      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 47.4509
#
"""


def judged(text, hcas=("mlx5_0", "mlx5_1"), minimum=None):
    parsed = log.parse(text)
    return parsed, {item["id"]: item for item in log.checks(parsed, list(hcas), minimum)}


def failed(checks):
    return [name for name, item in checks.items() if item["status"] == "failed"]


def test_a_healthy_log_passes_and_names_what_it_found():
    parsed, checks = judged(HEALTHY, minimum=80)
    assert {item["status"] for item in checks.values()} == {"passed"}
    assert parsed["version"] == "2.21.5"
    assert parsed["networks"] == ["IB"]
    assert log.used_hcas(parsed) == {"worker0": ["mlx5_0", "mlx5_1"], "worker1": ["mlx5_0", "mlx5_1"]}
    assert checks["nccl:bandwidth"]["seen"] == "92.49 GByte/s at 8589934592 bytes, 47.4509 on average over all sizes"
    assert checks["nccl:gpudirect"]["seen"] == "on 4 connections"


def test_the_prefix_of_mpirun_changes_nothing():
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in HEALTHY.splitlines())
    assert log.parse(tagged) == log.parse(HEALTHY)


TCP = """\
worker0:924:924 [0] NCCL INFO NET/IB : No device found.
worker0:924:924 [0] NCCL INFO NET/Socket : Using [0]eth0:10.42.0.9<0>
worker0:924:924 [0] NCCL INFO Using network Socket
worker0:924:930 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'
worker0:924:930 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
worker0:924:930 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""


def test_tcp_fails_and_says_why_there_is_no_verbs_device():
    _parsed, checks = judged(TCP)
    assert failed(checks) == ["nccl:transport"]
    assert checks["nccl:transport"]["seen"] == ("NET/Socket on 2 of 2 connections; NET/IB : No device found on worker0")
    assert checks["nccl:gpudirect"]["status"] == checks["nccl:rails"]["status"] == "not_verified"


def test_joined_hcas_count_each():
    made = "worker0:1:1 [0] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
    made += "worker0:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/2/GDRDMA\n"
    assert log.used_hcas(log.parse(made)) == {"worker0": ["mlx5_0", "mlx5_1"]}


@pytest.mark.parametrize(
    ("line", "network", "index", "gdr"),
    [
        # 2.10 and before: no communicator behind the channel, the bus id in brackets
        ("Channel 00 : 0[1000] -> 8[1000] [receive] via NET/IB/0/GDRDMA", "IB", 0, True),
        ("Channel 01 : 15[df000] -> 0[1d000] [send] via NET/IB/3", "IB", 3, False),
        # 2.12: 00/0; a proxy of another rank; shared buffers
        ("Channel 02/0 : 11[3] -> 2[2] [send] via NET/IB/5(4)/GDRDMA", "IB", 5, True),
        ("Channel 00/1 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA/Shared", "IB", 0, True),
        ("Channel 00/1 : 1[1] -> 8[0] [receive] via NET/IB/0/Shared", "IB", 0, False),
        # plugins
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext_v8/2/GDRDMA", "IBext_v8", 2, True),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/NCCL RDMA Plugin v10/0", "NCCL RDMA Plugin v10", 0, False),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/1", "Socket", 1, False),
    ],
)
def test_a_connection_line_of_each_version(line, network, index, gdr):
    channels = log.parse(f"w0:17:99 [3] NCCL INFO {line}\n")["channels"]
    assert channels == [{"host": "w0", "network": network, "index": index, "gdr": gdr}]


INSIDE = ["8[0] -> 15[7] via P2P/IPC", "0 -> 1 via SHM/direct"]


@pytest.mark.parametrize("line", INSIDE)
def test_what_stays_inside_a_node_is_no_connection_between_nodes(line):
    assert log.parse(f"w0:17:99 [3] NCCL INFO Channel 00/0 : {line}\n")["channels"] == []


@pytest.mark.parametrize(
    ("line", "hcas"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>", {0: ("mlx5_0", 1, "IB")}),
        (
            "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB p:10.10.10.10<0>",
            {0: ("mlx5_0", 1, "RoCE"), 1: ("mlx5_1", 1, "RoCE")},
        ),
    ],
)
def test_the_devices_of_each_version(line, hcas):
    assert log.parse(f"w0:17:99 [0] NCCL INFO {line}\n")["devices"].get("w0", {}) == hcas


@pytest.mark.parametrize(
    ("line", "enabled"),
    [
        ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", True),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", False),
        ("NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0'", True),
    ],
)
def test_what_nccl_announces_of_gpudirect(line, enabled):
    assert log.parse(f"w0:17:99 [0] NCCL INFO {line}\n")["gdr"] == {("w0", "mlx5_0"): enabled}


LINE = "Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/1/GDRDMA"
CUT = HEALTHY.partition("#       size")[0]
IDLE = HEALTHY.replace("NET/IB/1/GDRDMA", "NET/IB/0/GDRDMA")
WARNED = f"{CUT}worker1:28110:28190 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error 110\n"
GID = f"worker0:1:1 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.\n{HEALTHY}"
WITHOUT = HEALTHY.replace("/GDRDMA", "").replace("RDMA Enabled for", "RDMA Disabled for")
# what: (the log, options, the checks that fail, those that are not verified, what one of them saw)
FAULTS = {
    "one connection over TCP": (
        HEALTHY.replace(LINE, LINE.replace("IB/1/GDRDMA", "Socket/0")),
        {},
        ["nccl:transport", "nccl:rails"],
        [],
        "NET/Socket on 1 of 4 connections",
    ),
    "no GDRDMA": (
        WITHOUT,
        {},
        ["nccl:gpudirect"],
        [],
        "absent on 4 of 4 connections (worker0, worker1); disabled for mlx5_0",
    ),
    "an idle rail": (IDLE, {}, ["nccl:rails"], [], "idle: worker0: mlx5_1; worker1: mlx5_1"),
    "an idle rail that nobody expects": (IDLE, {"hcas": ()}, [], None, ""),
    "a GID index": (GID, {}, ["nccl:gid-index"], [], "set to 3"),
    "wrong values": (HEALTHY.replace(": 0 OK", ": 248 FAILED"), {}, ["nccl:result"], [], "248"),
    "a slow bus": (HEALTHY, {"minimum": 100}, ["nccl:bandwidth"], [], "92.49"),
    "a broken run": (CUT, {}, [], ["nccl:result", "nccl:bandwidth"], ""),
    "a broken run with its reason": (WARNED, {}, ["nccl:result"], ["nccl:bandwidth"], "ibv_modify_qp failed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check_and_no_other(name):
    text, options, failing, not_verified, seen = FAULTS[name]
    checks = judged(text, **options)[1]
    assert failed(checks) == failing
    unsure = [identity for identity, item in checks.items() if item["status"] == "not_verified"]
    assert not_verified is None or unsure == not_verified
    assert any(seen in item["seen"] for item in checks.values())


def test_an_empty_log_passes_nothing():
    assert {item["status"] for name, item in judged("")[1].items() if name != "nccl:gid-index"} == {"not_verified"}
