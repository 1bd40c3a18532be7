"""Traffic between running pods: both ends by exec through the API server."""

from __future__ import annotations

import subprocess
import time

from .._traffic import fabric
from . import pods as kube_pods
from .kubectl import BROKE_OFF, Kubectl, last_words, lost, of_each

_PATIENCE = 10
_TRIES = 3
_KEPT = 2000
# The first output of a server's exec, because servers are quiet: it proves that one was started.
STARTED = "@@ started"
_ANNOUNCED = ["sh", "-c", f'echo "{STARTED}"; exec "$@"', "server"]
# Parallel tests of a round, each with two execs through the API server.
_AT_ONCE = 32


def send_all(kubectl: Kubectl, namespace: str, tests: list[dict], params: dict, at_once: int = 1) -> list[dict]:
    """The result of each test; ok is None, with the reason as error, if its output is lost or truncated.

    params: seconds (a bandwidth test sends), limit (seconds for one test).
    """
    return of_each(lambda test: _send_twice(kubectl, namespace, test, params), tests, _unknown, at_once)


def _send_twice(kubectl: Kubectl, namespace: str, test: dict, params: dict) -> dict:
    result = _send(kubectl, namespace, test, params)
    if result["ok"] is not None:
        return result
    kubectl.await_server()
    again = _send(kubectl, namespace, test, params)
    return _unknown(f"asked twice: {again['error']}", again["output"]) if again["ok"] is None else again


def _send(kubectl: Kubectl, namespace: str, test: dict, params: dict) -> dict:
    if test["tool"] == "ping":
        words = ("exec", "-n", namespace, test["client"]["pod"], "--", *kube_pods.ping_command(test))
        code, said, error = kubectl.run(*words, limit=params["limit"])
        output = said + error
        if lost(code, error) or (code == 0 and "% packet loss" not in said):
            return _unknown(_broke_off(code, error), output)
        ok = code == 0 and " 0% packet loss" in said
        return {"ok": ok, "error": None if ok else _last(output, code), "output": output[-_KEPT:]}
    argv = [*_ANNOUNCED, "timeout", str(params["limit"]), *fabric.server_command(test, params["seconds"])]
    since = time.monotonic()
    server = kubectl.serve(test["server"]["pod"], argv, namespace)
    try:
        result = connect(kubectl, namespace, test, params)
        status, waited = server.poll(), time.monotonic() - since
    finally:
        server.terminate()
        try:
            said = server.communicate(timeout=5)[0]
        except subprocess.TimeoutExpired:
            server.kill()
            said = server.communicate()[0]
    if result["ok"] is False:
        # If the server's exec broke off there was nothing to reach, which says nothing about the path.
        _before, started, words = said.decode(errors="replace").rpartition(STARTED)
        reason = ""
        if status is None and not started:
            reason = f"timed out, kubectl exec was silent for {waited:.0f} s"
        elif status is not None:
            refused = status == 0 and fabric.refused(result["output"])
            if not started or status < 0 or lost(status, words) or refused:
                reason = _broke_off(status, words)
        if reason:
            return _unknown(f"the server's end: {reason}", result["output"])
    return result


def _unknown(reason: str, output: str = "") -> dict:
    return {"ok": None, "error": reason, "output": output[-_KEPT:]}


def _broke_off(code: int, error: str) -> str:
    return last_words(error) if code and error.strip() else BROKE_OFF


def run_rounds(kubectl: Kubectl, params: dict) -> list[dict]:
    """The results of all rounds; a round starts once the previous one has ended.

    params: as for send, and namespace, rounds (lists of tests).
    """
    results = []
    for tests in params["rounds"]:
        said = send_all(kubectl, params["namespace"], tests, params, min(len(tests), _AT_ONCE) or 1)
        results += [{"id": test["id"], "role": "client", **result} for test, result in zip(tests, said)]
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
        if lost(code, error):
            return _unknown(_broke_off(code, error), said + error)
        result = fabric.parse(test["tool"], code, said + error, params["seconds"])
        if code == 0 and not result["ok"] and not fabric.told(said + error):
            return _unknown(_broke_off(code, error), said + error)
        # The server's exec may still be starting; a slow API server can take longer than the retry limit.
        again = took <= 5 or fabric.refused(said + error)
        if result["ok"] or not again or (tries >= _TRIES and time.monotonic() > deadline):
            return {**result, "seconds": round(took, 1), "command": " ".join(argv), "output": (said + error)[-_KEPT:]}
        time.sleep(1)


def _last(output: str, code: int) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{lines[-1].strip()} (exit status {code})" if lines else f"exit status {code}"
