"""Where a node's processes live when no systemd manages this machine: a cgroup of their own, as systemd would make it.

Nodes in one cgroup would fight over its subgroups, and the cgroup is also what says which processes are ours to end.
"""

import os
import signal
import time
from pathlib import Path


def hierarchies(mountinfo: str, cpuset: bool = True) -> list[Path]:
    """Where cgroups are mounted; a systemd that is not kept below a group of its own would fill their roots."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and (cpuset or "cpuset" not in options.split(","))):
            found.append(Path(before.split(" ")[4]))
    return found


class Cgroup:
    def __init__(self, name: str) -> None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        self._folders = [mount / name for mount in hierarchies(mountinfo)]
        # A new group of the old cpuset takes no process before it is given processors; systemd leaves that one alone.
        self._entered = [mount / name for mount in hierarchies(mountinfo, cpuset=False)]

    def enter(self) -> None:
        for folder in self._entered:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self) -> set[int]:
        found: set[int] = set()
        for mount in self._folders:
            for folder, _, _ in os.walk(mount):  # groups come and go while we look; walk passes over those
                try:
                    found.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
                except OSError:
                    continue
        return found - {0}

    def remove(self, patience: float = 10.0) -> set[int]:
        """Ends what runs in the group and removes it; returns the processes that outlived the patience."""
        deadline = time.monotonic() + patience
        while any(folder.exists() for folder in self._folders) and time.monotonic() < deadline:
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for folder in self._folders:
                for path, _, _ in os.walk(folder, topdown=False):
                    try:
                        os.rmdir(path)
                    except OSError:  # still in use: the next round finds it empty
                        continue
            time.sleep(0.02)
        return self.pids()
