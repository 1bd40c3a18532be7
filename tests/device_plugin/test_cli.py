"""The command line as processes: Go's flag syntax, exit codes, streams, signals (1.1); and the distribution."""

import contextlib
import fcntl
import io
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile

import grpc
import pytest
from conftest import PACKAGE
from harness import COMMAND, ENVIRONMENT, Node, Process, document, entry, fixture_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubelet_double import Kubelet
from rdma_device_plugin import cli, log
from rdma_device_plugin import explain as explanation
from rdma_device_plugin.config import ConfigError, load
from rdma_device_plugin.log import printable


def told(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def run(*arguments):
    return told([*COMMAND, *arguments], env=ENVIRONMENT)


def flags(*arguments):
    return cli.parse(list(arguments), cli.SERVE)


# Go's flag package.


@pytest.mark.parametrize(("arguments", "name", "value"), [
    (["-config-file", "/x"], "config-file", "/x"),
    (["--config-file=/x=y"], "config-file", "/x=y"),
    (["-config-file", "-use-cdi"], "config-file", "-use-cdi"),
    (["-config-file=/x", "-config-file=/y"], "config-file", "/y"),
    (["-config-file="], "config-file", ""),
    (["-use-cdi"], "use-cdi", True),
    (["--use-cdi=false"], "use-cdi", False),
    (["-use-cdi=T"], "use-cdi", True),
    (["-use-cdi", "false"], "use-cdi", True),
    (["extra", "-use-cdi"], "use-cdi", False),
    (["--", "-use-cdi"], "use-cdi", False),
    (["-use-cdi", "--", "x"], "use-cdi", True),
])  # fmt: skip
def test_flags_are_gos(arguments, name, value):
    assert flags(*arguments)[0][name] == value


@pytest.mark.parametrize(("arguments", "text"), [
    (["-nope"], "flag provided but not defined: -nope"),
    (["--nope=1"], "flag provided but not defined: -nope"),
    (["-config-file"], "flag needs an argument: -config-file"),
    (["-use-cdi=maybe"], 'invalid boolean value "maybe" for -use-cdi: parse error'),
    (["---v"], "bad flag syntax: ---v"),
    (["-=x"], "bad flag syntax: -=x"),
    (["-registration", "both"], "wanted one of auto, watch, legacy"),
    (["-v", "-nope"], "flag provided but not defined: -nope"),
])  # fmt: skip
def test_wrong_flags(arguments, text):
    with pytest.raises(cli.Usage) as wrong:
        flags(*arguments)
    assert text in str(wrong.value)


@given(st.lists(st.text("-=vhuse cdi/x", max_size=9), max_size=4))
def test_any_words_are_flags_or_a_usage_error(words):
    try:
        values, rest = flags(*words)
    except cli.Usage:
        return
    assert set(values) == {flag.name for flag in cli.SERVE}
    assert rest == words[len(words) - len(rest) :]


def test_help_version_and_errors():
    answer = run("-help")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "-config-file string" in answer.stderr
    for name in ("-v", "--version"):
        answer = run(name)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert answer.stdout.startswith("k8s-rdma-shared-dev-plugin version:0.1.0, commit:")
    answer = run("-nope")
    assert answer.returncode == 2
    assert answer.stderr.startswith("flag provided but not defined: -nope\nUsage of")
    assert run("-metrics-address", "x").returncode == 2


# Starting.


_WHOLE = document(entry("a", env="nccl", health={"ports": "all"}), entry("b", speed=1), interval=5)


@st.composite
def _damaged(draw):
    at = draw(st.integers(0, len(_WHOLE)))
    return _WHOLE[:at] + draw(st.binary(max_size=4)) + _WHOLE[at + draw(st.integers(0, 4)) :]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | _damaged() | st.just(_WHOLE), st.booleans())
def test_any_config_is_exit_0_with_a_line_or_exit_1_with_clear_lines(base, data, strict):
    """The same program in this process: what it prints are lines about this file, never a traceback"""
    path = base / "config.json"
    path.write_bytes(data)
    out, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        code = cli.main(["check-config", *(["-strict"] if strict else []), str(path)])
    assert code in (0, 1)
    lines = complaints.getvalue().splitlines()
    assert all(line.startswith(f"{path}: ") and len(line) > len(f"{path}: ") and line.isprintable() for line in lines)
    if code:
        assert lines
        assert out.getvalue() == ""
    else:
        assert all(": warning: " in line for line in lines)
        assert len(out.getvalue().splitlines()) == 1
    # The daemon ends with the same text in one line, and accepts the same configs.
    problem = ""
    try:
        load(data, strict)
    except ConfigError as refused:
        problem = str(refused)
    assert bool(problem) == (code == 1)
    assert printable(problem).isprintable()


def test_check_config(base):
    """For pipelines: one problem per line"""
    path = base / "config.json"
    path.write_bytes(document(entry("a", 63), {**entry("b"), "speed": 1}))
    answer = run("check-config", str(path))
    assert answer.returncode == 0
    assert answer.stdout == f"{path}: ok, every 60 s: rdma/a (63), rdma/b (100)\n"
    assert answer.stderr == f"{path}: warning: unknown key configList[1].speed: ignored\n"
    answer = run("check-config", "-strict", str(path))
    assert (answer.returncode, answer.stderr) == (1, f"{path}: unknown key configList[1].speed\n")
    path.write_bytes(document(entry("a$", -1)))
    assert len(run("check-config", str(path)).stderr.splitlines()) == 2
    assert run("check-config", str(base / "none")).stderr == f"{base}/none: No such file or directory\n"


def test_explain(base):
    """One line per NIC and pool"""
    (base / "config.json").write_bytes(document(entry("a"), entry("b", selectors={"ifNames": ["enp1s0f1np1"]})))
    captured = fixture_tree.write("gh200-cx7-roce", base)
    answer = run("explain", "-config-file", str(base / "config.json"), "--root", str(captured))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        "pool rdma/a: 100 devices, 100 healthy, 2 HCAs",
        "  mlx5_0 0000:01:00.0 (enp1s0f0np0): in: port 1 ACTIVE",
        "  mlx5_1 0000:01:00.1 (enp1s0f1np1): in: port 1 DOWN",
        "pool rdma/b: 100 devices, 0 healthy, 1 HCAs",
        "  mlx5_0 0000:01:00.0 (enp1s0f0np0): out: ifNames: wanted enp1s0f1np1, it has enp1s0f0np0",
        "  mlx5_1 0000:01:00.1 (enp1s0f1np1): in: port 1 DOWN",
    ]
    node = Node(base / "node", "card-without-mlx5-ib")
    answer = run("explain", "-config-file", str(base / "config.json"), "--root", str(node.root))
    line = next(one for one in answer.stdout.splitlines() if one.startswith("  0000:3b:00.0 (enp59s0f0np0): out: "))
    assert "mlx5_ib" in line
    assert "/etc/modprobe.d/" in line, "the file that blocks the module"
    assert "0000:02:00.0 (eno1): out: no RDMA device: driver igb does not create one" in answer.stdout
    assert "load rdma_ucm" in answer.stdout


@pytest.mark.parametrize(("content", "text"), [
    (None, "No such file"),
    ("[", "not valid YAML"),
    ("a: 1", "not a captured node"),
    ("files: {/../etc/x: y}", "wanted a plain absolute path"),
    ("{files: {/a/b/x: y}, links: {/a/b: ../../..}}", "points out of the captured tree"),
])  # fmt: skip
def test_explain_refuses_an_invalid_capture(base, content, text):
    (base / "config.json").write_bytes(document(entry()))
    if content is not None:
        (base / "host.yml").write_text(content)
    answer = run("explain", "-config-file", str(base / "config.json"), "-root", str(base / "host.yml"))
    assert answer.returncode == 1
    assert text in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


# The captured node, and a composed one of each kind of link and file.
@pytest.mark.parametrize("name", ["lab-rxe-debian12", "sfs", "vfs", "gh200-cx7-roce", "mlx4-two-ports"])
def test_a_captured_file_is_explained_as_its_tree_is(base, name):
    config = load(document(entry(), entry("s", extraSelectors={"ifNames": ["*"]}, softwareDevices=True)))
    node = Node(base / "node", name)
    (base / "laid").mkdir()
    explanation.lay_out(explanation.load(str(fixture_tree.write(name, base))), base / "laid")
    assert explanation.explain(config, str(base / "laid")) == explanation.explain(config, str(node.root))


# Running.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_end_it_with_code_0_in_a_second(base, node, number):
    with Kubelet(base) as kubelet, Process(base, document(entry()), node.root, kubelet=kubelet) as plugin:
        status = pathlib.Path(f"/proc/{plugin.process.pid}/status").read_text()
        # Huge pages would make thread stacks large; kernels before 5.0 do not report it.
        assert "THP_enabled" not in status or "THP_enabled:\t0" in status
        code, took = plugin.end(number)
        assert code == 0, plugin.log.read_text()
        assert took < 1
    assert (base / "out").read_text() == "Using Kubelet Plugin Registry Mode\n"


def test_sighup_reads_the_config_again(base, node):
    """Upstream keeps rdmaHcaMax 3"""
    with Kubelet(base, watches=False) as kubelet, Process(base, document(entry(count=3)), node.root) as plugin:
        wait_for_handler(plugin.process.pid)
        plugin.process.send_signal(signal.SIGHUP)  # at the very start it must not end the process
        kubelet.wait_allocatable("rdma/test_server", 3)
        lists = kubelet.clients["rdma/test_server"].lists
        sent = len(lists)
        plugin.process.send_signal(signal.SIGHUP)
        assert kubelet.wait(lambda: len(lists) > sent), "#109: sent again, although nothing has changed"
        (base / "config.json").write_bytes(document(entry(count=7)))
        plugin.process.send_signal(signal.SIGHUP)
        kubelet.wait_allocatable("rdma/test_server", 7)


def test_only_changes_are_logged_also_as_json(base, node):
    with Kubelet(base, watches=False) as kubelet:
        with Process(base, document(entry(), interval=1), node.root, "-log-format", "json", kubelet=kubelet) as plugin:
            time.sleep(2.5)
            assert plugin.end(signal.SIGTERM)[0] == 0
        lines = [json.loads(line) for line in plugin.log.read_text().splitlines()]
    assert (base / "out").read_text() == "Using Deprecated Devie Plugin Registry Path\n"
    assert len({json.dumps({**line, "time": ""}) for line in lines}) == len(lines)
    assert {"resource", "mode", "devices"} & set().union(*lines)
    assert lines[-1]["level"] in ("info", "warning")


def test_a_kubelet_that_ends_before_it_answers_is_no_line_of_the_library(base, node, monkeypatch):
    """grpc's core writes one per call in its own format, its Python half a traceback"""
    kubelet = Kubelet(base, watches=False)
    monkeypatch.setattr(kubelet, "connect", lambda *_arguments: time.sleep(3))
    with kubelet, Process(base, document(entry("a"), entry("b")), node.root) as plugin:
        assert kubelet.wait(lambda: kubelet.count("register") == 2)
        kubelet.stop()
        time.sleep(0.5)
        assert plugin.end(signal.SIGTERM)[0] == 0
        lines = plugin.log.read_text().splitlines()
    assert [line for line in lines if not re.match(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", line)] == []
    records = [
        logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, "", 0, text, (), None)
        for text in ("ExecuteBatchError raised in core by servicer method [/v1beta1.DevicePlugin/Allocate]", "other")
    ]
    stream = io.StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log.set_up(stream=stream)
        for record in records:
            logging.getLogger().handle(record)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    assert stream.getvalue().splitlines()[0].endswith("Error: other")


def test_a_service_manager_is_notified_of_start_and_stop(base, node, monkeypatch):
    """sd_notify(3): ready before any kubelet, because the kubelet starts later"""
    monkeypatch.setitem(ENVIRONMENT, "NOTIFY_SOCKET", f"{base}/notify")
    (base / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{base}/notify")
        manager.settimeout(20)
        with Process(base, document(entry()), node.root) as plugin:
            ready = manager.recv(4096).decode().splitlines()
            assert ready[0] == "READY=1"
            assert ready[1].startswith("STATUS=0 of 1 resources registered: rdma/test_server")
            assert plugin.end(signal.SIGTERM)[0] == 0
        told = [ready]
        while told[-1] != ["STOPPING=1"]:
            told.append(manager.recv(4096).decode().splitlines())


def test_a_directory_that_cannot_be_used_ends_it_with_code_1(base, node):
    pathlib.Path(base, "device-plugins").write_text("a file")
    with Process(base, document(entry()), node.root) as plugin:
        assert plugin.process.wait(10) == 1
        assert "Not a directory" in plugin.log.read_text()
        assert "rdma/test_server" in plugin.log.read_text()


def test_no_capability_is_needed(base, node):
    """Upstream's manifest says privileged; only setting links up takes CAP_NET_ADMIN"""
    if not shutil.which("setpriv") or os.geteuid() != 0:
        pytest.skip("not verified: needs setpriv and root")
    without = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    for watches in (True, False):
        with (
            Kubelet(base, watches=watches) as kubelet,
            Process(base, document(entry()), node.root, under=without, kubelet=kubelet) as plugin,
        ):
            status = pathlib.Path(f"/proc/{plugin.process.pid}/status").read_text()
            assert "CapEff:\t0000000000000000" in status
            assert len(kubelet.allocate("rdma/test_server", ["0"]).container_responses[0].devices) == 5
            assert plugin.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_in_the_first_moment_ends_it_with_code_0(base, node, number):
    """Before the event loop exists: as PID 1 the kernel would drop it, else it would end in a traceback"""
    for delay in (0.03, 0.06, 0.1, 0.15, 0.2, 0.3):
        with Process(base, document(entry()), node.root) as plugin:
            wait_for_handler(plugin.process.pid)
            time.sleep(delay)
            code, _took = plugin.end(number)
            assert (code, plugin.log.read_text().count("Traceback")) == (0, 0), delay


def wait_for_handler(pid):
    """Wait until the process has its own handler for SIGTERM; Python needs some 20 ms to reach our first line."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if caught & (1 << (signal.SIGTERM - 1)):
            return
        time.sleep(0.001)
    raise AssertionError("no handler")


def test_a_closed_stdout_causes_no_traceback(base, node):
    (base / "config.json").write_bytes(document(entry()))
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (["-version"], ["-h"], ["check-config", str(base / "config.json")]):
        answer = subprocess.run(
            [*COMMAND, *arguments], env=ENVIRONMENT, stdout=writing, stderr=subprocess.PIPE, timeout=20
        )
        assert b"Traceback" not in answer.stderr, arguments
        assert b"Exception ignored" not in answer.stderr, arguments
    os.close(writing)


def test_an_unread_log_blocks_nothing(base, node):
    """A full pipe on stderr: Allocate answers, and SIGTERM ends it"""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, 1031, 4096)  # F_SETPIPE_SZ
    config = document(entry(maxPerContainer=1))
    with (
        Kubelet(base, watches=False) as kubelet,
        Process(base, config, node.root, log=writing, kubelet=kubelet) as plugin,
    ):
        for _number in range(100):
            with pytest.raises(grpc.RpcError) as refusal:  # each is a line of the log
                kubelet.allocate("rdma/test_server", ["0", "1"])
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        kubelet.allocate("rdma/test_server", ["0"])
        assert plugin.end(signal.SIGTERM)[0] == 0
    os.close(reading)
    os.close(writing)


# --- the distribution: generated code, the library inside ------------------------------------


LIBRARY = PACKAGE.parent / "plugins/module_utils/hca"


def test_the_generated_code_is_that_of_the_contract(base):
    written = told([sys.executable, str(PACKAGE / "generate.py"), str(base)])
    assert written.returncode == 0, written.stderr
    made = sorted(path.relative_to(base) for path in base.rglob("*_pb2.py"))
    assert len(made) == 4
    for path in made:
        assert (base / path).read_text() == (PACKAGE / path).read_text(), f"run device_plugin/generate.py: {path}"


def test_a_wheel_holds_the_package_and_the_library(base):
    """One source of the library: the build adds it"""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = told([*pip, "-w", str(base), str(PACKAGE)])
    assert built.returncode == 0, built.stderr
    (wheel,) = base.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(base / "site")
        (licence,) = [archive.read(name) for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert licence == (PACKAGE.parent / "LICENSE").read_bytes()
    assert {f"rdma_device_plugin/hca/{path.name}" for path in LIBRARY.glob("*.py")} <= names
    assert "rdma_device_plugin/config.schema.json" in names
    assert "rdma_device_plugin/kubelet/deviceplugin_pb2.py" in names
    assert not any(name.startswith(("hca/", "build/")) for name in names)
    program = "import rdma_device_plugin.hca as hca, rdma_device_plugin.cli as cli; print(hca.__file__)"
    answer = told([sys.executable, "-c", program], cwd="/", env={"PYTHONPATH": str(base / "site")})
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(base / "site/rdma_device_plugin/hca/__init__.py")
    left = {path.name for folder in (PACKAGE, PACKAGE / "rdma_device_plugin") for path in folder.iterdir()}
    assert not [name for name in left if name in ("build", "hca", "_build.py") or name.endswith(".egg-info")]
