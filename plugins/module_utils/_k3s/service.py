"""The service of k3s on a node: started, and awaited until it answers.

PRIVATE to the collection. run(argv) returns exit status, output and error text.
"""

from __future__ import annotations

import time
from typing import Callable

from .._core.change import Refused
from .._core.units import shown, systemctl

POLL_SECONDS = 2
# After so many restarts by systemd, k3s will not come up on its own.
GIVE_UP_AFTER = 5


class Service:
    """answers: whether the API server of this node is ready; asked once the service is active."""

    def __init__(
        self, name: str, run: Callable, limit: int, answers: Callable[[], bool], clock=time.monotonic, sleep=time.sleep
    ):
        self.name = name
        self._run, self._limit, self._answers, self._clock, self._sleep = run, limit, answers, clock, sleep

    def systemctl(self, *words: str) -> None:
        systemctl(self._run, f"service {self.name}", *words)

    def start(self, action: str) -> float:
        """Start or restart it; the seconds until it was ready."""
        began, restarts = self._clock(), None
        # --no-block: an agent without its server would block systemctl forever.
        self.systemctl(action, "--no-block", self.name)
        while True:
            seen, tried = self._seen()
            restarts = tried if restarts is None else restarts
            if seen == "active" and self._answers():
                return round(self._clock() - began, 1)
            if seen == "failed" or tried - restarts >= GIVE_UP_AFTER or self._clock() - began > self._limit:
                raise Refused.because(
                    f"service {self.name}",
                    f"ready within {self._limit} s of its {action}",
                    f"{seen}; its journal ends with: {self._journal()}",
                    f"see journalctl -u {self.name} on the node, fix what it reports and run again",
                )
            self._sleep(POLL_SECONDS)

    def _seen(self) -> tuple[str, int]:
        """ActiveState, and how many times systemd has restarted the service."""
        said, *_others = [*shown(self._run, ("ActiveState", "NRestarts"), self.name), {}]
        return said.get("ActiveState", "unknown"), int(said.get("NRestarts") or 0)

    def _journal(self) -> str:
        _code, out, _error = self._run(["journalctl", "-u", self.name, "-n", "4", "-o", "cat", "--no-pager"])
        return " | ".join(line.strip()[:300] for line in out.splitlines() if line.strip()) or "nothing"
