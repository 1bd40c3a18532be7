# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubectl as the modules call it: each call has an end, and a program that is missing is an answer."""

from __future__ import annotations

import json
import re
import subprocess
import time

POLL_SECONDS = 3
_UNREACHABLE = re.compile(
    r"connection to the server|connection refused|Unable to connect to the server|TLS handshake timeout|i/o timeout"
    r"|unable to read .*k3s\.yaml|no configuration has been provided|k3s\.yaml: no such file"
    r"|currently unable to handle the request|etcdserver: |no route to host|ServiceUnavailable"
    r"|apiserver not ready|connection reset by peer",
    re.IGNORECASE,
)


def unreachable(text: str) -> bool:
    """Whether kubectl's message says that no API server answers (and not that it refuses something)."""
    return bool(_UNREACHABLE.search(text))


def patiently(call, patience, since=None, clock=time.monotonic, sleep=time.sleep):
    """(exit status, output, error) of call(), which is made again while no API server answers.

    That lasts `patience` seconds, counted from `since`, or else from the first silence on.
    """
    while True:
        code, said, error = call()
        if code == 0 or not (code == 124 or unreachable(error)):
            return code, said, error
        now = clock()
        since = now if since is None else since
        if now >= since + patience:
            return code, said, error
        sleep(POLL_SECONDS)


class Failed(Exception):
    """kubectl could not do what the stage cannot go on without."""


class Kubectl:
    """Calls kubectl; every call has an end.

    limit: seconds for one call. patience: seconds for which a call that may be said twice is, while no server answers.
    """

    def __init__(self, argv, limit=60, patience=0):
        self._argv = list(argv)
        self._limit = limit
        self._patience = patience

    def run(self, *words, text=None, limit=None):
        """(exit status, output, error); a program that is missing or does not end has an exit status too."""
        limit = limit or self._limit
        try:
            done = subprocess.run(
                [*self._argv, *words],
                input=text or "",
                capture_output=True,
                timeout=limit,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as late:
            said = late.stdout or ""
            return 124, said if isinstance(said, str) else said.decode(errors="replace"), f"no end after {limit} s"
        except OSError as error:
            return 127, "", f"{self._argv[0]} cannot be started: {error.strerror}"
        return done.returncode, done.stdout, done.stderr

    def insist(self, *words, text=None):
        """run() of a call that may be said twice: an API server that is busy or starts anew is waited for."""
        return patiently(lambda: self.run(*words, text=text), self._patience, since=time.monotonic())

    def items(self, *words):
        """The objects of a get; raises Failed."""
        code, said, error = self.insist("get", *words, "-o", "json")
        if code:
            raise Failed(error.strip() or said.strip() or f"exit status {code}")
        found = json.loads(said)
        return found.get("items", [found])

    def serve(self, pod, argv, namespace):
        """Start a command in a pod without waiting for its end."""
        return subprocess.Popen(
            [*self._argv, "exec", "-n", namespace, pod, "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
