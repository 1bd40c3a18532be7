# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traffic between running pods: both ends by exec through the API server.

PRIVATE to the collection.
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from .._traffic import fabric
from . import pods as kube_pods
from .kubectl import Kubectl

_PATIENCE = 10
_TRIES = 3
_KEPT = 2000
# Parallel tests of a round, each with two execs through the API server.
_AT_ONCE = 32


def send(kubectl: Kubectl, namespace: str, test: dict, params: dict) -> dict:
    """Run one test and return its result. params: seconds (a bandwidth test sends), limit (seconds for one test)."""
    if test["tool"] == "ping":
        argv = kube_pods.ping_command(test)
        code, said, error = kubectl.run(
            "exec", "-n", namespace, test["client"]["pod"], "--", *argv, limit=params["limit"]
        )
        output = said + error
        ok = code == 0 and " 0% packet loss" in output
        return {"ok": ok, "error": None if ok else _last(output, code), "output": output[-_KEPT:]}
    limit = str(params["limit"])
    argv = ["timeout", limit, *fabric.server_command(test, params["seconds"])]
    server = kubectl.serve(test["server"]["pod"], argv, namespace)
    try:
        return connect(kubectl, namespace, test, params)
    finally:
        server.terminate()
        try:
            server.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def run_rounds(kubectl: Kubectl, params: dict) -> list[dict]:
    """The results of all rounds; a round starts once the previous one has ended.

    params: as for send, and namespace, rounds (lists of tests).
    """
    results = []
    for tests in params["rounds"]:
        with ThreadPoolExecutor(max_workers=min(len(tests), _AT_ONCE) or 1) as pool:
            said = pool.map(lambda test: send(kubectl, params["namespace"], test, params), tests)
            results += [{"id": test["id"], "role": "client", **one} for test, one in zip(tests, said)]
    return results


def connect(kubectl: Kubectl, namespace: str, test: dict, params: dict) -> dict:
    argv = ["timeout", str(params["limit"]), *fabric.client_command(test, params["seconds"])]
    deadline, tries = time.monotonic() + _PATIENCE, 0
    while True:
        start, tries = time.monotonic(), tries + 1
        code, said, error = kubectl.run(
            "exec", "-n", namespace, test["client"]["pod"], "--", *argv, limit=params["limit"] + 10
        )
        took = time.monotonic() - start
        result = fabric.parse(test["tool"], code, said + error, params["seconds"])
        # The server's exec may still be starting; a slow API server can take longer than the retry limit.
        again = took <= 5 or fabric.refused(said + error)
        if result["ok"] or not again or (tries >= _TRIES and time.monotonic() > deadline):
            return {**result, "seconds": round(took, 1), "command": " ".join(argv), "output": (said + error)[-_KEPT:]}
        time.sleep(1)


def _last(output: str, code: int) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{lines[-1].strip()} (exit status {code})" if lines else f"exit status {code}"
