"""The two ends of a fabric test: commands, captured outputs, and servers that are always ended."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric
from ansible_collections.gpufabric.rdma.tests.tools import tree

OUTPUT = tree.texts("output")


def said(name):
    return (OUTPUT / f"{name}.txt").read_text()


def a_test(tool="ib_write_bw", number=0, **changed):
    return {
        "id": f"rail{number}-a-b-{tool}",
        "tool": tool,
        "address": "10.77.1.2",
        "tcp_port": 18600 + number,
        "client": {"hca": "rxe0", "port": 1, "ip": "10.77.1.1", "gid": 1},
        "server": {"hca": "mlx5_0", "port": 2, "ip": "10.77.1.2", "gid": 3},
        **changed,
    }


# --- commands and outputs ---------------------------------------------------------------------------------------------


NO_GID = {"hca": "mlx5_0", "port": 1, "ip": None, "gid": None}


@pytest.mark.parametrize(
    ("test", "server", "client"),
    [
        (a_test(), "ib_write_bw -d mlx5_0 -i 2 -x 3 -p 18600 -F -s 65536 -D 2", "-d rxe0 -i 1 -x 1 -p 18600 -F"),
        (a_test(server=NO_GID), "ib_write_bw -d mlx5_0 -i 1 -p 18600 -F -s 65536 -D 2", "-s 65536 -D 2 10.77.1.2"),
        (a_test("rping"), "rping -s -a 10.77.1.2 -p 18600 -C 10", "rping -c -v -V -a 10.77.1.2 -p 18600 -C 10"),
    ],
)
def test_each_side_uses_its_own_hca_port_and_gid_and_rping_the_address(test, server, client):
    assert " ".join(fabric.server_command(test, 2)) == server
    assert client in " ".join(fabric.client_command(test, 2))


OK = {"ok": True, "error": None}


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("rping-44.0-ok", 0, OK),
        ("rping-44.0-refused", 255, "cma event RDMA_CM_EVENT_REJECTED, error 8; connect error -1"),
        ("rping-44.0-unreachable", 255, "cma event RDMA_CM_EVENT_ADDR_ERROR, error -110"),
        ("ib_write_bw-4.5-iterations", 0, {**OK, "mb_per_s": 5.5, "gbps": 0.046, "note": None}),
        ("ib_write_bw-4.5-duration", 0, {**OK, "mb_per_s": 5.3, "gbps": 0.044, "note": None}),
        ("ib_write_bw-4.5-refused", 1, "Couldn't connect to 10.77.1.2:18799; Unable to open file descriptor"),
        ("ib_write_bw-4.5-no-device", 1, "IB device mlx5_9 not found; Unable to find the Infiniband/RoCE device"),
        ("ib_write_bw-4.5-duration", 1, "exit code 1"),
    ],
)
def test_captured_outputs_are_read(name, code, expected):
    result = fabric.parse(name.partition("-")[0], code, said(name), 2)
    if isinstance(expected, dict):
        assert result == expected
    else:
        assert (result["ok"], expected in result["error"]) == (False, True)


def test_pings_and_writes_are_counted_and_gigabits_taken_as_they_are():
    """Fewer pings than asked for are a failure; writes are counted where perftest cannot trust the clock."""
    output = "".join(said("rping-44.0-ok").splitlines(keepends=True)[:7])
    result = fabric.parse("rping", 0, output, 2)
    assert (result["ok"], "7 of 10" in result["error"]) == (False, True)
    result = fabric.parse("ib_write_bw", 0, said("ib_write_bw-4.5-untrusted-clock"), 2)
    assert (result["ok"], result["mb_per_s"], "26 writes in 2 s" in result["note"]) == (True, 0.8, True)
    output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    output += " 65536      3725840          0.00               390.68             0.745\n"
    assert fabric.parse("ib_write_bw", 0, output, 5)["gbps"] == 390.68


# --- servers ----------------------------------------------------------------------------------------------------------

SERVER = """#!/usr/bin/env python3
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
print("waiting", flush=True)
time.sleep(60)
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder first in PATH whose tools listen as perftest does, or fail."""

    def install(name, text):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    install("ib_write_bw", SERVER)
    install("rping", SERVER)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return install


@pytest.fixture
def state(tmp_path):
    folder = str(tmp_path / "state")
    yield folder
    fabric.stop(folder)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def gone(port):
    deadline = time.monotonic() + 5
    while listens(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not listens(port)


def test_servers_listen_until_they_are_stopped_or_called_anew_and_leave_nothing(tools, state):
    first, second = a_test(tcp_port=free_port()), a_test(number=1, tcp_port=free_port())
    assert fabric.serve([first], 2, 30, state) == {first["id"]: None}
    assert listens(first["tcp_port"])
    fabric.serve([second], 2, 30, state)
    assert gone(first["tcp_port"])
    assert fabric.stop(state) == {second["id"]: "waiting\n"}
    assert gone(second["tcp_port"])
    assert not os.path.exists(state)
    assert fabric.stop(state) == {}, "stopping twice is no error"


def test_a_server_ends_by_itself_when_no_call_comes_back(tools, state):
    test = a_test(tcp_port=free_port())
    fabric.serve([test], 2, 1, state)
    assert gone(test["tcp_port"])


def test_a_server_that_cannot_start_says_why(tools, state):
    tools("ib_write_bw", "#!/bin/sh\necho ' Unable to find the Infiniband/RoCE device'\nexit 1\n")
    test = a_test(tcp_port=free_port())
    errors = fabric.serve([test], 2, 30, state)
    assert "exit code 1): Unable to find the Infiniband/RoCE device" in errors[test["id"]]


def test_a_process_that_took_over_the_number_is_not_killed(tmp_path, state):
    with subprocess.Popen(["sleep", "30"]) as bystander:
        os.makedirs(state)
        record = f'{{"id": "x", "pid": {bystander.pid}, "born": "1"}}'
        pathlib.Path(state, "0.json").write_text(record)
        fabric.stop(state)
        assert bystander.poll() is None
        bystander.send_signal(signal.SIGKILL)


def test_clients_run_in_turn_and_report_their_time(tools):
    tools("rping", f"#!/bin/sh\ncat {OUTPUT}/rping-44.0-ok.txt\n")
    tools("ib_write_bw", f"#!/bin/sh\ncat {OUTPUT}/ib_write_bw-4.5-iterations.txt\n")
    results = fabric.connect([a_test("rping"), a_test()], 2, 30)
    assert [result["ok"] for result in results] == [True, True]
    assert results[1]["mb_per_s"] == 5.5
    assert results[1]["command"].startswith("ib_write_bw -d rxe0")
    assert all(result["seconds"] < 30 for result in results)


def test_a_client_that_never_ends_is_abandoned(tools):
    tools("rping", "#!/bin/sh\nexec sleep 60\n")
    (result,) = fabric.connect([a_test("rping")], 1, 1)
    assert (result["ok"], "no end after 1 s" in result["error"]) == (False, True)


def test_a_client_tries_again_while_the_server_is_still_binding(tools, tmp_path):
    answer = f"cat {OUTPUT}/rping-44.0-ok.txt"
    tools("rping", f"#!/bin/sh\nif [ -e {tmp_path}/up ]; then {answer}; else touch {tmp_path}/up; exit 255; fi\n")
    (result,) = fabric.connect([a_test("rping")], 2, 30)
    assert result["ok"]
