"""The node side: order of rounds, a peer that never comes, counters around a test, a process that is ended."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric, rounds
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.tests.tools import bandwidth_double

OPTIONS = {"seconds": 1, "round_seconds": 3, "grace_seconds": 0}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """The double as a program, on a node called node1."""
    program = bandwidth_double.install(tmp_path / "node1")
    planted = tmp_path / "planted.json"
    planted.write_text(json.dumps({"gbit": 10}))
    monkeypatch.setenv("BANDWIDTH_DOUBLE", str(planted))
    return str(program)


def made(identity, port, hca="rxe0", cpus=None, gpu=None):
    about = {"pod": None, "local_cpus": cpus, "gpu": gpu, "dmabuf": False, "kind": "software", "netdev": "eth2"}

    def side(host):
        return {**about, "ip": "10.0.0.1", "host": host, "hca": hca, "port": 1, "gid": 1}

    sides = {"client": side("node1"), "server": side("node2")}
    return {"id": identity, "tool": "ib_write_bw", "rail": 0, "address": "127.0.0.1", "tcp_port": port, **sides}


def part(role, *tests):
    return [
        {"order": order, "steps": [{"id": test["id"], "role": role, "test": test}]} for order, test in enumerate(tests)
    ]


def test_both_ends_meet_round_by_round(tool, tmp_path):
    tests = [made("one", 18950), made("two", 18951)]
    tree, options = Tree(str(tmp_path)), {**OPTIONS, "round_seconds": 60, "tool": tool}
    served: list = []
    server = threading.Thread(target=lambda: served.extend(rounds.run(part("server", *tests), options, tree)))
    server.start()
    sent = rounds.run(part("client", *tests), options, tree)
    server.join()
    met = [(one["id"], one["role"]) for one in sent + served if one["ok"]]
    assert met == [("one", "client"), ("two", "client"), ("one", "server"), ("two", "server")]
    assert sent[0]["gbps"] == pytest.approx(10, abs=0.01)
    assert sent[0]["counters_read"] is False, "this tree has no counters, and that is told"


class Hurried:
    """A clock on which sleeping takes no time of ours."""

    skipped = 0.0

    def monotonic(self):
        return time.monotonic() + self.skipped

    def sleep(self, seconds):
        self.skipped += seconds


def test_a_peer_that_never_comes_costs_its_round_and_no_more(tool, tmp_path):
    clock = Hurried()
    start = clock.monotonic()
    options = {**OPTIONS, "round_seconds": 10, "tool": tool}
    tests = part("client", made("one", 18952), made("two", 18953))
    found = rounds.run(tests, options, Tree(str(tmp_path)), clock)
    assert [one["ok"] for one in found] == [False, False]
    assert "Couldn't connect to 127.0.0.1:18952" in found[0]["error"]
    assert clock.monotonic() - start < 2 * options["round_seconds"] + 5


def test_counters_that_rise_during_a_test_are_reported(tmp_path):
    folder = tmp_path / "sys/class/infiniband/rxe0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    counter = folder / "completer_retry_err"
    counter.write_text("4\n")
    fake = tmp_path / "fake"
    fake.write_text(f"#!/bin/sh\necho 9 >{counter}\n")
    fake.chmod(0o755)
    found = rounds.run(part("server", made("one", 18954)), {**OPTIONS, "tool": str(fake)}, Tree(str(tmp_path)))
    assert found[0]["counters"] == {"completer_retry_err": 5}
    assert found[0]["counters_read"] is True


NEAR, CUDA = ["taskset", "-c", "0-31", "ib_write_bw"], ["--use_cuda=3"]


@pytest.mark.parametrize(
    ("cpus", "gpu", "dmabuf", "starts", "gpu_options"),
    [
        (None, None, False, ["ib_write_bw", "-d"], []),
        ("0-31", 3, False, NEAR, CUDA),
        ("0-31", 3, True, NEAR, [*CUDA, "--use_cuda_dmabuf"]),
    ],
)
@pytest.mark.parametrize("role", ["client", "server"])
def test_a_command_runs_near_its_hca_and_from_gpu_memory_on_request(role, cpus, gpu, dmabuf, starts, gpu_options):
    test = made("one", 18800, cpus=cpus, gpu=gpu)
    test[role]["dmabuf"] = dmabuf
    argv = rounds.command({"id": "one", "role": role, "test": test}, 5)
    assert argv[: len(starts)] == starts
    assert [word for word in argv if "cuda" in word] == gpu_options
    assert (argv[-1] == "127.0.0.1") == (role == "client")


@pytest.mark.parametrize(
    ("listed", "send", "dmabuf"),
    [("", False, False), ("--use_cuda=<dev>", True, False), ("--use_cuda=<dev> --use_cuda_dmabuf", True, True)],
)
def test_the_tools_own_help_says_what_it_can_do_with_gpu_memory(tmp_path, listed, send, dmabuf):
    tool = tmp_path / "ib_write_bw"
    tool.write_text(f'#!/bin/sh\necho "  {listed}  as perftest prints it"\n')
    tool.chmod(0o755)
    assert rounds.cuda(str(tool)) == {"send": send, "dmabuf": dmabuf}


def test_the_process_outlives_the_call_and_is_ended_with_its_tests(tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    options = {**OPTIONS, "round_seconds": 60, "tool": str(slow)}
    rounds.start(part("server", made("one", 18955)), options, str(tmp_path))
    record = json.loads((tmp_path / rounds.STATE / "process.json").read_text())
    assert fabric.started_at(record["pid"]) == record["born"]
    found = rounds.collect(1, str(tmp_path))
    assert found == {"results": [], "error": "no end within 1 s"}
    os.waitpid(record["pid"], 0)
    assert not (tmp_path / rounds.STATE).exists()
    assert "never started" in rounds.collect(1, str(tmp_path))["error"]


def test_only_those_who_hold_a_verbs_device_use_an_hca():
    hcas = [{"name": "mlx5_0", "char_devices": {"uverbs": "uverbs0", "umad": ["umad0"]}}]
    opensm = {"pid": 1, "command": "opensm", "pod": None, "unit": "opensm", "devices": ["/dev/infiniband/umad0"]}
    job = {"pid": 2, "command": "python3", "pod": "a-b", "unit": None, "devices": ["/dev/infiniband/uverbs0"]}
    assert rounds.users([opensm, job], hcas) == {"mlx5_0": ["python3 (process 2, pod a-b)"]}
