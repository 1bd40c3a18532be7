"""Tokens of service accounts, created if they are missing."""

from __future__ import annotations

import base64
import time

from .._core.change import Refused
from .kubectl import Kubectl

POLL_SECONDS = 1


def secret(namespace: str, account: str) -> dict:
    """A secret that the token controller fills in, and that is deleted with the account."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": f"{account}-token",
            "namespace": namespace,
            "annotations": {"kubernetes.io/service-account.name": account},
        },
    }


def make(
    namespace: str, names: list, kubectl: Kubectl, timeout: float, clock=time.monotonic, sleep=time.sleep
) -> tuple:
    """({account: token}, whether a secret was created)."""
    wanted = [secret(namespace, name) for name in sorted(names)]
    before = _tokens(kubectl.existing(wanted))
    code, _out, error = kubectl.apply(wanted)
    if code:
        raise _failed(namespace, error)
    deadline = clock() + timeout
    while True:
        found = _tokens(kubectl.existing(wanted))
        lacking = sorted(set(names) - set(found))
        if not lacking:
            return found, bool(set(names) - set(before))
        if clock() >= deadline:
            raise _failed(namespace, f"no token for {', '.join(lacking)} after {timeout:.0f} s")
        sleep(POLL_SECONDS)


def _tokens(secrets: list) -> dict:
    """{account: token}."""
    found = {}
    for item in secrets:
        name = item["metadata"].get("annotations", {}).get("kubernetes.io/service-account.name")
        token = (item.get("data") or {}).get("token")
        if name and token:
            found[name] = base64.b64decode(token).decode("ascii")
    return found


def _failed(namespace: str, error: str) -> Refused:
    return Refused.because(
        f"namespace {namespace}",
        "a token for each service account",
        " ".join(error.split())[:300] or "no reason given",
        "check that the accounts exist (k3s kubectl get serviceaccounts -n " + namespace + ") and run again",
    )
