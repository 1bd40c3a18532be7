"""The two ends of a test between nodes: commands, captured outputs, order of rounds, a process that is killed."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import programs
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric, rounds
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import bandwidth_double, tree

OUTPUT = tree.texts("output")


def said(name):
    return (OUTPUT / f"{name}.txt").read_text()


def made(identity, port, cpus=None, gpu=None, tool="ib_write_bw", **sides):
    """A test between two nodes; sides: changes of client and server."""
    about = {"pod": None, "local_cpus": cpus, "gpu": gpu, "dmabuf": False, "kind": "software", "netdev": "eth2"}
    about |= {"ip": "10.0.0.1", "hca": "rxe0", "port": 1, "gid": 1}
    ends = {
        name: {**about, "host": host, **sides.get(name, {})}
        for name, host in (("client", "node1"), ("server", "node2"))
    }
    return {"id": identity, "tool": tool, "rail": 0, "address": "127.0.0.1", "tcp_port": port, **ends}


NO_GID = {"hca": "mlx5_0", "port": 1, "ip": None, "gid": None}
CLASSES = {"server": {**NO_GID, "traffic_class": 106}, "client": {**NO_GID, "traffic_class": 0}}
LAST, CUDA = "-p 18600 -F -s 65536 -D 2", "--use_cuda=3"
NEAR, RXE = "taskset -c 0-31 ib_write_bw", "-d rxe0 -i 1 -x 1"


@pytest.mark.parametrize(("about", "server", "client"), [
    ({"server": {"hca": "mlx5_0", "port": 2, "gid": 3}},
     f"ib_write_bw -d mlx5_0 -i 2 -x 3 {LAST}", f"ib_write_bw {RXE} {LAST} 127.0.0.1"),
    ({"server": NO_GID}, f"ib_write_bw -d mlx5_0 -i 1 {LAST}", f"ib_write_bw {RXE} {LAST} 127.0.0.1"),
    (CLASSES, f"ib_write_bw -d mlx5_0 -i 1 --tclass=106 {LAST}",
     f"ib_write_bw -d mlx5_0 -i 1 --tclass=0 {LAST} 127.0.0.1"),
    ({"tool": "rping"}, "rping -s -v -a 10.0.0.1 -p 18600 -C 10", "rping -c -v -V -a 127.0.0.1 -p 18600 -C 10"),
    ({"cpus": "0-31", "gpu": 3}, f"{NEAR} {RXE} {LAST} {CUDA}", f"{NEAR} {RXE} {LAST} {CUDA} 127.0.0.1"),
    ({"cpus": "0-31", "gpu": 3, "client": {"dmabuf": True}}, f"{NEAR} {RXE} {LAST} {CUDA}",
     f"{NEAR} {RXE} {LAST} {CUDA} --use_cuda_dmabuf 127.0.0.1"),
])  # fmt: skip
def test_each_side_uses_its_own_hca_port_and_gid_near_it_and_from_gpu_memory_on_request(about, server, client):
    test = made("a", 18600, **about)
    commands = (rounds.command({"id": "a", "role": role, "test": test}, 2) for role in ("server", "client"))
    assert [" ".join(command) for command in commands] == [server, client]
    over_ipv6 = fabric.server_command({**test, "address": "fd00::2"}, 2)
    assert ("--ipv6-addr" in over_ipv6) == (test["tool"] == rounds.TOOL)


OK = {"ok": True, "error": None}


@pytest.mark.parametrize(("name", "code", "expected"), [
    ("rping-44.0-ok", 0, OK),
    ("rping-44.0-refused", 255, "cma event RDMA_CM_EVENT_REJECTED, error 8; connect error -1"),
    ("rping-44.0-unreachable", 255, "cma event RDMA_CM_EVENT_ADDR_ERROR, error -110"),
    ("ib_write_bw-4.5-iterations", 0, {**OK, "mb_per_s": 5.5, "gbps": 0.046, "note": None}),
    ("ib_write_bw-4.5-duration", 0, {**OK, "mb_per_s": 5.3, "gbps": 0.044, "note": None}),
    ("ib_write_bw-4.5-refused", 1, "Couldn't connect to 10.77.1.2:18799; Unable to open file descriptor"),
    ("ib_write_bw-4.5-no-device", 1, "IB device mlx5_9 not found; Unable to find the Infiniband/RoCE device"),
    ("ib_write_bw-4.5-duration", 1, "exit code 1"),
])  # fmt: skip
def test_captured_outputs_are_read(name, code, expected):
    result = fabric.parse(name.partition("-")[0], code, said(name), 2)
    assert result == expected if isinstance(expected, dict) else not result["ok"] and expected in result["error"]


def test_pings_and_writes_are_counted_and_gigabits_taken_as_they_are():
    """Fewer pings than requested are a failure; writes are counted if perftest cannot trust the clock."""
    output = "".join(said("rping-44.0-ok").splitlines(keepends=True)[:7])
    result = fabric.parse("rping", 0, output, 2)
    assert (result["ok"], "7 of 10" in result["error"]) == (False, True)
    result = fabric.parse("ib_write_bw", 0, said("ib_write_bw-4.5-untrusted-clock"), 2)
    assert (result["ok"], result["mb_per_s"], "26 writes in 2 s" in result["note"]) == (True, 0.8, True)
    output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    output += " 65536      3725840          0.00               390.68             0.745\n"
    assert fabric.parse("ib_write_bw", 0, output, 5)["gbps"] == 390.68
    for odd in ("-41.27", "-nan", "inf"):
        assert fabric.parse("ib_write_bw", 0, output.replace("390.68", odd), 5)["gbps"] == 390.683


def test_a_process_that_took_over_the_number_is_not_killed():
    with subprocess.Popen(["sleep", "30"]) as bystander:
        fabric.end_process(bystander.pid, "1")
        assert bystander.poll() is None
        bystander.send_signal(signal.SIGKILL)


OPTIONS = {"seconds": 1, "round_seconds": 3, "grace_seconds": 0}


@pytest.fixture
def tool(tmp_path, put, monkeypatch):
    monkeypatch.setenv("BANDWIDTH_DOUBLE", str(put("planted.json", json.dumps({"gbit": 10}))))
    return str(bandwidth_double.install(tmp_path / "node1"))


def part(role, *tests):
    steps = [{"id": test["id"], "role": role, "test": test} for test in tests]
    return [{"order": order, "steps": [step]} for order, step in enumerate(steps)]


def test_both_ends_meet_round_by_round(tool, tmp_path):
    tests = [made("one", 18950), made("two", 18951)]
    tree, options = Tree(str(tmp_path)), {**OPTIONS, "round_seconds": 60, "tool": tool}
    served: list = []
    server = threading.Thread(target=lambda: served.extend(rounds.run(part("server", *tests), options, tree)))
    server.start()
    sent = rounds.run(part("client", *tests), options, tree)
    server.join()
    met = [f"{one['id']} {one['role']}" for one in sent + served if one["ok"]]
    assert met == ["one client", "two client", "one server", "two server"]
    assert sent[0]["gbps"] == pytest.approx(10, abs=0.01)
    assert sent[0]["counters_read"] is False, "this tree has no counters, and that is told"


class Hurried:
    """A clock on which sleeping takes no real time."""

    skipped = 0.0

    def __init__(self):
        self.slept = []

    def monotonic(self):
        return time.monotonic() + self.skipped

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.skipped += seconds


def test_each_end_says_what_its_nic_counted_by_priority_and_rdma_cms_class(tool, tmp_path, put):
    """Read after hw_counters are fresh again; a NIC without priorities has None."""
    put("sys/class/infiniband/rxe0/ports/1/hw_counters/lifespan", "12\n")
    put("sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos", "104\n")
    counts = iter(range(100, 200, 50))
    known = [{"tx_prio3_bytes": count, "rx_prio3_pause": 7, "rx_packets": count} for count in counts]
    answers, clock = iter([*known, None, None]), Hurried()
    options = {**OPTIONS, "tool": tool, "round_seconds": 0}
    steps = part("client", made("one", 18954), made("two", 18955, tool="rping"))
    seams = Seams(statistics=lambda netdev: next(answers))
    sent, pinged = rounds.run(steps, options, Tree(str(tmp_path)), clock, seams)
    assert (sent["by_priority"], "tos" in sent) == ({"tx_prio3_bytes": 50}, False)
    assert (pinged["by_priority"], pinged["tos"]) == (None, "104")
    assert clock.slept.count(0.012) == 2


def test_what_a_driver_counts_is_asked_of_the_kernel():
    """lo has no counters, and a missing interface has no statistics."""
    assert Seams.live().statistics("lo") == {}
    assert Seams.live().statistics("none0") is None
    assert Seams.recorded({"statistics": {"eth2": {"tx_prio0_bytes": 1}}}).statistics("eth2") == {"tx_prio0_bytes": 1}


def test_a_peer_that_never_comes_costs_its_round_and_no_more(tool, tmp_path):
    clock = Hurried()
    start = clock.monotonic()
    options = {**OPTIONS, "round_seconds": 10, "tool": tool}
    tests = part("client", made("one", 18952), made("two", 18953))
    found = rounds.run(tests, options, Tree(str(tmp_path)), clock)
    assert [one["ok"] for one in found] == [False, False]
    assert "Couldn't connect to 127.0.0.1:18952" in found[0]["error"]
    assert clock.monotonic() - start < 2 * options["round_seconds"] + 5


BROKEN, SERVED = "server DISCONNECT EVENT...\n", "server ping data: rdma-ping-0: ABC\n" * fabric.PINGS


@pytest.mark.parametrize(("role", "first", "code", "second"), [
    ("client", said("rping-44.0-refused"), 255, said("rping-44.0-ok")), ("server", BROKEN, 0, SERVED),
])  # fmt: skip
@pytest.mark.parametrize("left", [30, 0])
def test_both_ends_try_again_in_their_time(tmp_path, put, script, monkeypatch, role, first, code, second, left):
    """A client while its server binds or after its connection broke off, and a server after that."""
    early, later, up = put("early", first), put("later", second), tmp_path / "up"
    script("bin/rping", f"if [ -e {up} ]; then cat {later}; else touch {up}; cat {early}; exit {code}; fi")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    options = {**OPTIONS, "round_seconds": left, "tool": "ib_write_bw"}
    (result,) = rounds.run(part(role, made("one", 18957, tool="rping")), options, Tree(str(tmp_path)), Hurried())
    assert (result["ok"], result["error"]) == ((True, None) if left else (False, fabric.complaint(first)))


def test_a_client_tells_why_it_failed_first_and_not_only_that_its_server_has_gone(tmp_path, put, script, monkeypatch):
    refused, up = put("refused", said("rping-44.0-refused")), tmp_path / "up"
    script("bin/rping", f"[ -e {up} ] && cat {refused} || (touch {up}; echo data mismatch! error); exit 255")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    options = {**OPTIONS, "round_seconds": 5, "tool": "ib_write_bw"}
    (result,) = rounds.run(part("client", made("one", 18957, tool="rping")), options, Tree(str(tmp_path)), Hurried())
    assert result["error"].split("; then ") == ["data mismatch! error", fabric.complaint(said("rping-44.0-refused"))]


def test_a_tool_that_never_ends_is_abandoned_at_the_end_of_its_round(tmp_path, script, monkeypatch):
    script("bin/rping", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    options = {**OPTIONS, "round_seconds": 1, "tool": "ib_write_bw"}
    (result,) = rounds.run(part("client", made("one", 18956, tool="rping")), options, Tree(str(tmp_path)))
    assert (result["ok"], "no end after 1" in result["error"]) == (False, True)


def test_counters_that_rise_during_a_test_are_reported(tmp_path, put, script):
    counter = put("sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err", "4\n")
    options = {**OPTIONS, "tool": script("fake", f"echo 9 >{counter}")}
    found = rounds.run(part("server", made("one", 18954)), options, Tree(str(tmp_path)))
    assert (found[0]["counters"], found[0]["counters_read"]) == ({"completer_retry_err": 5}, True)


@pytest.mark.parametrize(
    ("listed", "send", "dmabuf"),
    [("", False, False), ("--use_cuda=<dev>", True, False), ("--use_cuda=<dev> --use_cuda_dmabuf", True, True)],
)
def test_the_tools_own_help_says_what_it_can_do_with_gpu_memory(script, listed, send, dmabuf):
    tool = script("ib_write_bw", f'echo "  {listed}  as perftest prints it"')
    assert rounds.cuda(tool) == {"send": send, "dmabuf": dmabuf}


def test_the_process_outlives_the_call_and_is_ended_with_its_tests(tmp_path, script):
    options = {**OPTIONS, "round_seconds": 60, "tool": script("slow", "exec sleep 60")}
    rounds.start(part("server", made("one", 18955)), options, str(tmp_path), {"ib_core"})
    record = json.loads((tmp_path / rounds.STATE / "process.json").read_text())
    assert programs.born(record["pid"]) == record["born"]
    found = rounds.collect(1, str(tmp_path))
    assert found == {"results": [], "error": "no end within 1 s", "modules": ["ib_core"]}
    os.waitpid(record["pid"], 0)
    assert not (tmp_path / rounds.STATE).exists()
    assert "never started" in rounds.collect(1, str(tmp_path))["error"]
    rounds._work([{"order": 0, "steps": None}], options, Tree(str(tmp_path)), str(tmp_path))
    assert "TypeError" in json.loads((tmp_path / "done.json").read_text())["error"]


def test_only_those_who_hold_a_verbs_device_use_an_hca():
    hcas = [{"name": "mlx5_0", "char_devices": {"uverbs": "uverbs0", "umad": ["umad0"]}}]
    opensm = {"pid": 1, "command": "opensm", "pod": None, "unit": "opensm", "devices": ["/dev/infiniband/umad0"]}
    job = {"pid": 2, "command": "python3", "pod": "a-b", "unit": None, "devices": ["/dev/infiniband/uverbs0"]}
    assert rounds.users([opensm, job], hcas) == {"mlx5_0": ["python3 (process 2, pod a-b)"]}
