"""A cgroup for each node's processes if no systemd manages this machine, like those of systemd.

Nodes in one cgroup would fight over its subgroups, and the cgroup also identifies the processes that we may end.
"""

import os
import signal
import time
from pathlib import Path


def hierarchies(mountinfo: str, cpuset: bool = True) -> list[Path]:
    """Where cgroups are mounted; a systemd outside a separate group would fill their roots."""
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
        # A new cpuset group (version 1) accepts no process before it has processors; systemd leaves cpuset alone.
        self._entered = [mount / name for mount in hierarchies(mountinfo, cpuset=False)]

    def enter(self) -> None:
        for folder in self._entered:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self) -> set[int]:
        found: set[int] = set()
        for mount in self._folders:
            for folder, _, _ in os.walk(mount):  # groups come and go meanwhile; walk skips those
                try:
                    found.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
                except OSError:
                    continue
        return found - {0}

    def remove(self, patience: float = 10.0) -> set[int]:
        """Ends the group's processes and removes it; returns the processes that did not end in time."""
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
