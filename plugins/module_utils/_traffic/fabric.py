"""The two ends of a test between nodes or pods: their commands, the tools' output, their processes.

Commands and parsers are pure.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

from .._core import programs

PINGS = 10
_MESSAGE = 65536


def server_command(test: dict, seconds: int) -> list[str]:
    if test["tool"] == "rping":
        return ["rping", "-s", "-v", "-a", test["server"]["ip"], "-p", str(test["tcp_port"]), "-C", str(PINGS)]
    return _bandwidth(test, test["server"], seconds)


def client_command(test: dict, seconds: int) -> list[str]:
    if test["tool"] == "rping":
        return ["rping", "-c", "-v", "-V", "-a", test["address"], "-p", str(test["tcp_port"]), "-C", str(PINGS)]
    return [*_bandwidth(test, test["client"], seconds), test["address"]]


def _bandwidth(test: dict, side: dict, seconds: int) -> list[str]:
    gid = [] if side["gid"] is None else ["-x", str(side["gid"])]
    more = [] if side.get("traffic_class") is None else [f"--tclass={side['traffic_class']}"]
    # The ends meet over IPv4 by default. perftest before 2023 has no such flag (linux-rdma/perftest#218).
    more += ["--ipv6-addr"] if ":" in str(test["address"]) else []
    return [
        *("ib_write_bw", "-d", side["hca"], "-i", str(side["port"]), *gid, *more, "-p", str(test["tcp_port"])),
        *("-F", "-s", str(_MESSAGE), "-D", str(seconds)),
    ]


def parse(tool: str, code: int, output: str, seconds: int) -> dict:
    """A client's result: ok, error, and for ib_write_bw gbps and mb_per_s, both as perftest counts them."""
    if tool == "rping":
        pings = len(re.findall(r"^ping data: ", output, re.MULTILINE))
        ok = code == 0 and pings == PINGS
        said = complaint(output) or f"{pings} of {PINGS} pings answered, exit code {code}"
        return {"ok": ok, "error": None if ok else said}
    row = re.search(r"^\s*\d+\s+(\d+)\s+\S+\s+(-?(?:\d+\.?\d*|inf|nan))\s+\S+\s*$", output, re.MULTILINE)
    if code != 0 or row is None:
        return {"ok": False, "error": complaint(output) or f"no result line, exit code {code}"}
    writes, value = int(row.group(1)), float(row.group(2))
    if writes == 0:
        return {"ok": False, "error": "connected, but not one write was acknowledged"}
    # perftest counts 2**20 bytes per MB and 10**9 bits per Gb.
    gbps = value if "BW average[Gb/sec]" in output else value * 2**20 * 8 / 1e9
    note = None
    if not 0 < value < float("inf"):
        # If the CPU clock is unreliable (emulation, cores that differ) perftest divides by zero or goes back in time.
        gbps = writes * _MESSAGE * 8 / seconds / 1e9
        note = f"counted: {writes} writes in {seconds} s, because ib_write_bw could not trust the CPU clock"
    return {
        "ok": True,
        "error": None,
        "mb_per_s": round(gbps * 1e9 / 8 / 2**20, 1),
        "gbps": round(gbps, 3),
        "note": note,
    }


# perftest's decoration: rules, settings, addresses, the result itself.
_NOISE = re.compile(r"[-*\s]*$|WARNING|ping data|#bytes|\d+\s+\d+\s|.*Test$|.*\S\s*: |(local|remote) address|GID:")
_TELLING = re.compile(
    r"(?i)(error|fail|unable|couldn't|cannot|can't|unreach|reject|refus|timed out|no such|not found|invalid)"
)
_REFUSED = re.compile(r"Couldn't connect to |RDMA_CM_EVENT_REJECTED")


def refused(output: str) -> bool:
    """Whether nothing was listening for a client, for example because its server is not ready yet."""
    return _REFUSED.search(output) is not None


def served(output: str) -> bool:
    """Whether rping's server has had its client's whole test; it exits with 0 after any disconnection."""
    return len(re.findall(r"^server ping data: ", output, re.MULTILINE)) == PINGS


def told(output: str) -> bool:
    """Whether a tool reports a fault, instead of just printing too little."""
    return _TELLING.search(output) is not None


def complaint(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    telling = list(filter(_TELLING.search, lines)) or [line for line in lines if not _NOISE.match(line)][-2:]
    return "; ".join(dict.fromkeys(telling))[:300]


def run_tool(argv: list[str], limit: int):
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as late:
        return 124, f"{(late.stdout or b'').decode(errors='replace')}\nerror: no end after {limit} s"
    except OSError as error:
        return 127, f"error: {argv[0]} cannot be started: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace")


def end_process(pid: int, born) -> None:
    """Kill the process group, but only while it is the one we started: process ids are reused."""
    for sent, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)):
        if born is None or programs.born(pid) != born:
            return
        try:
            os.killpg(pid, sent)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and programs.born(pid) == born:
            time.sleep(0.05)
