# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubectl as the modules call it: each call has an end, and a program that is missing is an answer."""

from __future__ import annotations

import json
import subprocess


class Failed(Exception):
    """kubectl could not do what the stage cannot go on without."""


class Kubectl:
    """Calls kubectl; every call has an end."""

    def __init__(self, argv, limit=60):
        self._argv = list(argv)
        self._limit = limit

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

    def items(self, *words):
        """The objects of a get; raises Failed."""
        code, said, error = self.run("get", *words, "-o", "json")
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
