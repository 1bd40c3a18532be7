"""A command with all that it starts: seconds, processor time, memory.

The tree is the command and all its descendants, those that leave it too: a connection that ssh keeps open is adopted by
this process, and ends with the command here. Where they run on this machine, what the command reached over the network
(a fast node's processes) is not in it.

    processor  user and system seconds of the whole tree
    main       MB: the most that the command's own process held in memory (resident, as the kernel keeps it)
    tree       MB: the most that the whole tree held at one time, pages shared by several counted once (PSS), looked at
               every half second
    kept       MB: what it left behind held at its end, counted in the same way
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


def descendants() -> set[int]:
    """All processes below this one."""
    found, waiting = set(), [os.getpid()]
    while waiting:
        parent = waiting.pop()
        try:
            children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:  # it has ended
            continue
        found.update(map(int, children))
        waiting += map(int, children)
    return found


def shared_memory(process: int) -> float:
    """MB that the process holds, a page that n processes share counted as 1/n."""
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as stream:
            return next((int(line.split()[1]) for line in stream if line.startswith("Pss:")), 0) / 1024
    except OSError:  # it has ended, or is another user's
        return 0.0


def processor(process: int) -> float:
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _adopt(wanted: bool) -> None:
    """Whether what a command leaves behind becomes a child of this process."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        sys.exit(
            "process tree: wanted: to adopt what a command leaves behind; seen: the kernel refuses it (prctl). "
            "Next step: run on Linux 3.4 or newer"
        )


def _end(left: set[int]) -> None:
    """Ends what the command has left behind: all of them are this process's by now."""
    for process in left:
        os.kill(process, signal.SIGTERM)
    for process in left:
        os.waitpid(process, 0)


def run(command: list[str], folder: pathlib.Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds, processor, main, tree and kept of the command; ends this program with its output where it fails."""
    _adopt(True)
    others = descendants()
    with tempfile.TemporaryFile() as output:
        start, most, look = time.monotonic(), 0.0, 0.0
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        while True:
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            seconds = time.monotonic() - start
            if ended:
                break
            if seconds >= look:
                most = max(most, sum(map(shared_memory, descendants() - others)))
                look = time.monotonic() - start + LOOK_EVERY
            time.sleep(0.02)
        child.returncode = os.waitstatus_to_exitcode(status)
        left = descendants() - others
        kept = sum(map(shared_memory, left))
        spent = usage.ru_utime + usage.ru_stime + sum(map(processor, left))
        _end(left)
        _adopt(False)
        if child.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")
            sys.exit(f"{' '.join(command)}: exit code {child.returncode}, its output ends:\n{text[-5000:]}")
    return {"seconds": seconds, "processor": spent, "main": usage.ru_maxrss / 1024, "tree": most, "kept": kept}
