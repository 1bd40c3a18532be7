"""A node's part of tests between nodes: a separate process that runs its rounds and exits.

A node enters a round only after all its tests of the previous round have ended, and a test needs both ends; so no HCA
serves two rounds at once, without a coordinator. All nodes compute the same deadline for each round from their own
start, so a lost peer costs only its own rounds, never the run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from .._core import programs
from .._core.files import recorded, write
from ..hca import Tree, counters
from ..hca.seams import Seams
from . import fabric

STATE = "run/gpufabric-rdma-tests"
TOOL = "ib_write_bw"
_KEPT = 2000
# perftest takes a moment to listen; the client then retries once a second.
_FIRST, _AGAIN = 0.3, 1.0
_GIVEN_UP = 124
_DEFAULT_TOS = "/sys/kernel/config/rdma_cm/{hca}/ports/{port}/default_roce_tos"


# --- the node ---------------------------------------------------------------------------------------------------------


def tool(root: str = "/"):
    """Path of ib_write_bw: in PATH, or in the tree below another root; None without it."""
    if not root.rstrip("/"):
        return shutil.which(TOOL)
    path = os.path.join(root, "usr/bin", TOOL)
    return path if os.access(path, os.X_OK) else None


def cuda(path: str) -> dict:
    """Effect: runs `ib_write_bw --help`, which lists what perftest was built with.

    send: whether it sends from GPU memory (--use_cuda). dmabuf: whether it can register that memory by dma-buf.
    """
    _code, said = fabric.run_tool([path, "--help"], 10)
    return {"send": "--use_cuda" in said, "dmabuf": "--use_cuda_dmabuf" in said}


def users(processes: list[dict], hcas: list[dict]) -> dict:
    """{HCA: [process]} of processes that have its uverbs device open, which traffic needs."""
    names = {f"/dev/infiniband/{hca['char_devices']['uverbs']}": hca["name"] for hca in hcas}
    by_hca: dict = {}
    for process in processes:
        who = f"{process['command']} (process {process['pid']}"
        who += f", pod {process['pod']})" if process["pod"] else f", {process['unit']})" if process["unit"] else ")"
        for device in process["devices"]:
            if device in names:
                by_hca.setdefault(names[device], []).append(who)
    return by_hca


# --- commands ---------------------------------------------------------------------------------------------------------


def command(step: dict, seconds: int, path: str = TOOL) -> list[str]:
    """One end of a test; ib_write_bw runs on the CPUs near its HCA, if the node's facts list them."""
    test, role = step["test"], step["role"]
    side = test[role]
    argv = (fabric.server_command if role == "server" else fabric.client_command)(test, seconds)
    if test["tool"] != TOOL:
        return argv
    argv[0] = path
    if side.get("gpu") is not None:
        at = len(argv) - (role == "client")
        argv[at:at] = [f"--use_cuda={side['gpu']}", *(["--use_cuda_dmabuf"] if side["dmabuf"] else [])]
    near = ["taskset", "-c", side["local_cpus"]] if side.get("local_cpus") and side["pod"] is None else []
    return [*near, *argv]


# --- the rounds -------------------------------------------------------------------------------------------------------


def run(rounds: list[dict], options: dict, tree: Tree, clock=time, seams: Seams | None = None) -> list[dict]:
    """Effect: run the rounds; results of this node's ends, in round order.

    rounds: [{order, steps: [{id, role, test}]}]. options: seconds, round_seconds, grace_seconds, tool.
    """
    start = clock.monotonic()
    seams = seams or Seams.of(tree)
    results = []
    for part in rounds:
        deadline = start + options["grace_seconds"] + (part["order"] + 1) * options["round_seconds"]
        with ThreadPoolExecutor(max_workers=len(part["steps"])) as pool:
            results += pool.map(
                lambda step, until=deadline: _step(step, until, options, (tree, seams), clock), part["steps"]
            )
    return results


def _step(step: dict, deadline: float, options: dict, node: tuple[Tree, Seams], clock) -> dict:
    side, tree = step["test"][step["role"]], node[0]
    before, sent = _counted(side, *node)
    argv = command(step, options["seconds"], options["tool"])
    if step["role"] == "server":
        outcome = _server(argv, step["test"]["tool"], deadline, clock)
    else:
        outcome = _client(argv, step["test"]["tool"], deadline, options, clock)
    clock.sleep(counters.refresh_seconds(tree, side["hca"], side["port"]))
    after, sent_since = _counted(side, *node)
    tos = tree.read(_DEFAULT_TOS.format(**side)) if step["test"]["tool"] == "rping" else None
    return {
        "id": step["id"],
        "role": step["role"],
        **outcome,
        **({} if tos is None else {"tos": tos}),
        # None if the NIC's driver does not tell priorities apart.
        "by_priority": counters.rises(sent, sent_since) if sent and sent_since else None,
        "counters": counters.rises(before, after),
        "counters_read": bool(before and after),
        "counters_stopped": counters.saturated(before),
    }


def _counted(side: dict, tree: Tree, seams: Seams) -> tuple[dict, dict]:
    """(counters of the port, those of its NIC by priority)."""
    statistics = seams.statistics(side["netdev"]) if side["netdev"] else None
    return counters.read(tree, side["hca"], side["port"], side["netdev"]), counters.by_priority(statistics)


def _left(deadline: float, clock) -> float:
    return max(1.0, deadline - clock.monotonic())


def _server(argv: list[str], tool: str, deadline: float, clock) -> dict:
    failed = None
    while True:
        code, said = fabric.run_tool(argv, _left(deadline, clock))
        if fabric.served(said) if tool == "rping" else code == 0:
            return {"ok": True, "error": None}
        if code != _GIVEN_UP or not failed:
            failed = fabric.complaint(said) or f"exit code {code}"
        # A connection that breaks off ends rping's server too, and its client tries again.
        if tool != "rping" or clock.monotonic() + _FIRST >= deadline:
            return {"ok": False, "error": failed}
        clock.sleep(_FIRST)


def _client(argv: list[str], tool: str, deadline: float, options: dict, clock) -> dict:
    clock.sleep(_FIRST)
    errors: dict[str, None] = {}
    while True:
        start = clock.monotonic()
        code, said = fabric.run_tool(argv, _left(deadline, clock))
        took = clock.monotonic() - start
        result = fabric.parse(tool, code, said, options["seconds"])
        if code != _GIVEN_UP or not errors:  # earlier errors say more than an attempt cut off by the deadline
            errors[result["error"]] = None
        # A server that does not listen yet refuses, on a slow node for seconds. A test that ran and failed is a result.
        over = clock.monotonic() + _AGAIN >= deadline
        if result["ok"] or over or (took >= options["seconds"] and not fabric.refused(said)):
            output = None if result["ok"] else said[-_KEPT:]
            error = None if result["ok"] else "; then ".join(errors)
            return {**result, "error": error, "seconds": round(took, 1), "command": " ".join(argv), "output": output}
        clock.sleep(_AGAIN)


# --- the process ------------------------------------------------------------------------------------------------------


def start(rounds: list[dict], options: dict, root: str = "/", modules=()) -> None:
    """Effect: stop what an earlier run left behind, then run the rounds in a separate process.

    modules: the RDMA modules that are loaded before.
    """
    stop(root)
    state = os.path.join(root, STATE)
    os.makedirs(state, mode=0o700)
    child = os.fork()
    if child == 0:
        try:
            _detach(state)
            _work(rounds, options, Tree(root), state)
        finally:
            os._exit(0)
    record = {"pid": child, "born": programs.born(child), "modules": sorted(modules)}
    write(os.path.join(state, "process.json"), json.dumps(record))


def _detach(state: str) -> None:
    """Start a new session and close the caller's files, because its connection lasts until all are closed."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    said = os.open(os.path.join(state, "said.txt"), os.O_WRONLY | os.O_CREAT, 0o600)
    for target, source in ((0, nothing), (1, said), (2, said)):
        os.dup2(source, target)
    os.closerange(3, 1024)


def _work(rounds: list[dict], options: dict, tree: Tree, state: str) -> None:
    outcome: dict = {"results": [], "error": None}
    try:
        outcome["results"] = run(rounds, options, tree)
    except Exception as error:  # noqa: BLE001 - nobody else hears of it
        outcome["error"] = f"{type(error).__name__}: {error}"
    write(os.path.join(state, "done.json"), json.dumps(outcome))


def collect(wait_seconds: float, root: str = "/", clock=time) -> dict:
    """Effect: wait for the process to end, then remove its files. results, modules (those that were loaded before), and
    error if it did not finish.
    """
    tree = Tree(root)
    deadline = clock.monotonic() + wait_seconds
    record = recorded(tree, f"/{STATE}/process.json")
    while True:
        done = recorded(tree, f"/{STATE}/done.json")
        alive = bool(record) and programs.born(record["pid"]) == record["born"]
        if done or not alive or clock.monotonic() > deadline:
            break
        clock.sleep(0.2)
    done = done or recorded(tree, f"/{STATE}/done.json")
    if not done:
        why = f"no end within {wait_seconds:.0f} s" if alive else _why_gone(tree, record)
        done = {"results": [], "error": why}
    stop(root)
    return {**done, "modules": record.get("modules")}


def _why_gone(tree: Tree, record: dict) -> str:
    if not record:
        return "the process was never started here"
    said = (tree.read(f"/{STATE}/said.txt") or "").splitlines()
    return f"the process ended without a result: {said[-1] if said else 'no output'}"


def stop(root: str = "/") -> None:
    """Effect: end the process with its tests, and remove its files."""
    record = recorded(Tree(root), f"/{STATE}/process.json")
    if record:
        fabric.end_process(record["pid"], record["born"])
    shutil.rmtree(os.path.join(root, STATE), ignore_errors=True)
