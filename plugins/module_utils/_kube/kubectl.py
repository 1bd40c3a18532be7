# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one kubectl client: every call is bounded, and a missing program is a result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time

from .._core.change import Finding, Refused

MANAGER = "gpufabric.rdma"
SEE_K3S = "see systemctl status k3s on the first server (journalctl -u k3s) and run again"
POLL_SECONDS = 3
TIMED_OUT, NOT_FOUND = 124, 127
# sudo and non-interactive SSH leave /usr/local/bin, where k3s is, out of PATH.
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
# The server validates better than kubectl, which would first fetch all types to check one object.
_APPLY = ("apply", "--server-side", "--validate=false", f"--field-manager={MANAGER}", "--filename=-")
_UNREACHABLE = re.compile(
    r"connection to the server|connection refused|Unable to connect to the server|TLS handshake timeout|i/o timeout"
    r"|unable to read .*k3s\.yaml|no configuration has been provided|k3s\.yaml: no such file"
    r"|currently unable to handle the request|etcdserver: |no route to host|ServiceUnavailable"
    r"|apiserver not ready|connection reset by peer",
    re.IGNORECASE,
)


class KubectlError(Refused):
    """A kubectl call failed that its caller depends on. reason: kubectl's output."""

    def __init__(self, wanted: str, reason: str, next_step: str = "fix what the message reports and run again"):
        seen = " ".join(reason.split())[:600] or "no reason given"
        super().__init__([Finding("API server", wanted, seen, next_step)])
        self.reason = reason.strip()


class Unreachable(KubectlError):
    """No API server responds, or kubectl is missing."""

    def __init__(self, reason: str, next_step: str):
        super().__init__("an answer", last_words(reason), next_step)


# --- kubectl's messages -----------------------------------------------------------------------------------------------


def unreachable(text: str) -> bool:
    """Whether kubectl's message means that no API server responds (not that it rejected something)."""
    return bool(_UNREACHABLE.search(text))


def last_words(text: str) -> str:
    """kubectl's last sentence, without the log lines before it."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"[EWI]\d{4} ", line)]
    return (lines or text.splitlines() or ["no reason given"])[-1].strip()[:300]


def parse_items(text: str) -> list[dict]:
    """The objects of `kubectl -o json`, which prints nothing, one object, or a list."""
    if not text.strip():
        return []
    document = json.loads(text)
    return document.get("items") or [] if document.get("kind", "").endswith("List") else [document]


def as_list(objects: list[dict]) -> str:
    """The objects as the one document that kubectl reads from its standard input."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


# --- the client -------------------------------------------------------------------------------------------------------


def retry_until(call, patience: float, clock=time.monotonic, sleep=time.sleep) -> tuple[int, str, str]:
    """(exit status, output, error) of call(), repeated while no API server responds.

    patience: seconds to keep retrying, counted from the first call without a response.
    """
    since = None
    while True:
        code, out, error = call()
        if code == 0 or not (code == TIMED_OUT or unreachable(error)):
            return code, out, error
        now = clock()
        since = now if since is None else since
        if now >= since + patience:
            return code, out, error
        sleep(POLL_SECONDS)


class Kubectl:
    """Runs kubectl. Texts go to standard input, so secrets never appear on a command line.

    argv: the command, word by word. limit: seconds for one call. patience: seconds for which an idempotent call is
    repeated while no API server responds. next_step: what to do when none does. calls: how many times kubectl was run.
    """

    def __init__(
        self,
        argv,
        limit: float = 60,
        patience: float = 0,
        next_step: str = SEE_K3S,
        clock=time.monotonic,
        sleep=time.sleep,
    ):
        self.calls = 0
        self._argv, self._limit, self._patience, self._next_step = list(argv), limit, patience, next_step
        self._clock, self._sleep = clock, sleep

    def run(self, *words: str, text: str | None = None, limit: float | None = None) -> tuple[int, str, str]:
        """(exit status, output, error) of one call; 127 where kubectl is missing, 124 where it timed out."""
        self.calls += 1
        limit = limit or self._limit
        try:
            done = subprocess.run(
                [*self._command(), *words],
                input=text or "",
                capture_output=True,
                timeout=limit,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as late:
            out = late.stdout or ""
            return TIMED_OUT, out if isinstance(out, str) else out.decode(errors="replace"), f"no end after {limit} s"
        except OSError as error:
            return NOT_FOUND, "", f"{self._argv[0]} cannot be started: {error.strerror}"
        return done.returncode, done.stdout, done.stderr

    def run_retrying(self, *words: str, text: str | None = None, limit: float | None = None) -> tuple[int, str, str]:
        """run() for an idempotent call; raises Unreachable when no API server responds in time."""
        answer = retry_until(lambda: self.run(*words, text=text, limit=limit), self._patience, self._clock, self._sleep)
        code, _out, error = answer
        if code in (TIMED_OUT, NOT_FOUND) or (code and unreachable(error)):
            raise Unreachable(error, self._next_step)
        return answer

    def items(self, *words: str) -> list[dict]:
        """The objects of a get; raises KubectlError."""
        code, out, error = self.run_retrying("get", *words, "--output=json")
        if code:
            raise KubectlError(f"an answer to get {' '.join(words)}", error or out or f"exit status {code}")
        try:
            return parse_items(out)
        except ValueError as wrong:
            raise KubectlError(f"JSON from get {' '.join(words)}", f"{wrong} in {out[:100]!r}") from wrong

    def apply(self, objects: list[dict], *words: str) -> tuple[int, str, str]:
        """Apply objects server-side as the collection's field manager; returns what run_retrying() returns."""
        return self.run_retrying(*_APPLY, *words, text=as_list(objects))

    def serve(self, pod: str, argv: list[str], namespace: str) -> subprocess.Popen:
        """Start a command in a pod without waiting for its end."""
        return subprocess.Popen(
            [*self._command(), "exec", "-n", namespace, pod, "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _command(self) -> list[str]:
        folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
        return [shutil.which(self._argv[0], path=folders) or self._argv[0], *self._argv[1:]]
