# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps Multus' CNI configuration in step with its daemon on this node. Standard library only, Python 3.9 or later.

Three things go wrong with /etc/cni/net.d/00-multus.conf, and nothing else fixes them:

- The daemon was killed or its pod is gone: the file stays, and new pods fail on a dead socket. The guard removes it;
  the node then reports that it has no network, and the daemon writes the file again when it is back.
- The file is empty or half-written, or was deleted, while the daemon runs: the daemon writes it only when the pod
  network's configuration changes. The guard replaces that one with a copy of itself, which the daemon notices.

It is not needed at boot: tmpfiles.d removes the file before anything starts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time

ABSENT, INVALID, VALID = "absent", "invalid", "valid"
# How long a daemon that is restarting or writing is left alone.
DEAD_SECONDS, BAD_SECONDS = 5, 3
# Grace period before the daemon is signalled again.
AGAIN_SECONDS = 10
POLL_SECONDS = 2


def judge(path: str) -> str:
    """Whether the container runtime can use the file, and it points to a daemon."""
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except FileNotFoundError:
        return ABSENT
    except (OSError, ValueError):
        return INVALID
    whole = isinstance(document, dict) and all(document.get(key) for key in ("name", "type", "clusterNetwork"))
    return VALID if whole and document["type"] == "multus-shim" else INVALID


def answers(path: str) -> bool:
    """Whether someone listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(2)
        try:
            end.connect(path)
        except OSError:
            return False
    return True


def renew(path: str) -> bool:
    """Replace a file atomically with a copy of itself; False if it is not valid JSON, which would not help."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        json.loads(text)
    except (OSError, ValueError):
        return False
    handle, temporary = tempfile.mkstemp(prefix=".gpufabric-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


class Guard:
    """One check at a time; `step` takes the time as an argument, so that a test needs no clock."""

    def __init__(self, conf: str, listener: str, primary: str, say=print):
        self._conf, self._listener, self._primary, self._say = conf, listener, primary, say
        self._dead_since = self._bad_since = self._told = None

    def step(self, now: float) -> str | None:
        """What was done: `removed`, `renewed`, `stuck`, or None."""
        found = judge(self._conf)
        if answers(self._listener):
            self._dead_since = None
            return self._alive(found, now)
        self._bad_since = None
        return self._dead(found, now)

    def _dead(self, found: str, now: float) -> str | None:
        if found == ABSENT:
            self._dead_since = None
            return None
        if self._dead_since is None:
            self._dead_since = now
        if now - self._dead_since < DEAD_SECONDS:
            return None
        try:
            os.unlink(self._conf)
        except FileNotFoundError:
            return None
        self._dead_since = None
        self._say(f"{self._conf} removed: no Multus answers on {self._listener}, every new pod would fail")
        return "removed"

    def _alive(self, found: str, now: float) -> str | None:
        if found == VALID:
            self._bad_since = None
            return None
        if self._bad_since is None:
            self._bad_since = now
        recently = self._told is not None and now - self._told < AGAIN_SECONDS
        if now - self._bad_since < BAD_SECONDS or recently:
            return None
        self._told = now
        if renew(self._primary):
            self._say(f"{self._conf} is {found}: Multus will write it again (renewed {self._primary})")
            return "renewed"
        step = "run ansible-playbook -i INVENTORY gpufabric.rdma.site"
        self._say(f"{self._conf} is {found}, and cannot be written from {self._primary}: {step}")
        return "stuck"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description="Keep Multus' CNI configuration in step with its daemon.")
    parser.add_argument("--conf", default="/etc/cni/net.d/00-multus.conf")
    parser.add_argument("--socket", default="/run/multus/multus.sock")
    parser.add_argument("--primary", default="/etc/cni/gpufabric-rdma.d/10-flannel.conflist")
    given = parser.parse_args(argv)

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    guard = Guard(given.conf, given.socket, given.primary, say)
    while True:
        guard.step(time.monotonic())
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
