# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The startup taint of a node: set after each boot, removed when the node can run RDMA pods. Standard library only,
Python 3.9 or later.

The kubelet sets the taint only when it registers a node. After a boot the node is already registered, so this program
sets it, as soon as the API server answers and before the node can be Ready (Multus waits for the file `startup-taint`).
It removes the taint when Multus has written the CNI configuration, the resources are allocatable, and the service that
runs containers may lock memory; then it exits. It has a separate token for the API server, because admission
forbids a node to change its own taints.

    node_ready.py run                       until the taint is gone
    node_ready.py await --timeout SECONDS   until `run` has reported the node ready; else prints what it waits for
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse

_AGAIN = "run ansible-playbook -i INVENTORY gpufabric.rdma.site"
SETTINGS = "/etc/gpufabric-rdma/node-ready.json"
READY, WAITING, REFUSED = "ready", "waiting", "refused"
POLL_SECONDS = {"unset": 1, WAITING: 2, REFUSED: 10}


class Unreachable(Exception):
    """The API server did not answer; it may later."""


class Denied(Exception):
    """The API server answered and refused the token or the request."""


class Outdated(Exception):
    """The node has changed in between; read it again."""


# --- the API server ---------------------------------------------------------------------------------------------------


def kubeconfig(text: str) -> tuple[str, str]:
    """(URL of the server, its CA: PEM text or the path of a file) from the kubelet's own kubeconfig."""
    fields = dict(
        re.findall(r"(?m)^[ -]*(server|certificate-authority(?:-data)?):\s*[\"']?([^\"'\s]+)[\"']?\s*$", text)
    )
    if "server" not in fields:
        raise ValueError("it has no server")
    if "certificate-authority-data" in fields:
        return fields["server"], base64.b64decode(fields["certificate-authority-data"]).decode("ascii")
    return fields["server"], fields.get("certificate-authority", "")


def find_server(settings: dict) -> tuple[str, str]:
    """Where the kubelet of this node has its API server: at a load balancer of k3s, or at a server itself."""
    tried = []
    for path in settings["kubeconfigs"]:
        try:
            with open(path, encoding="utf-8") as stream:
                server, authority = kubeconfig(stream.read())
        except (OSError, ValueError) as error:
            tried.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        return settings.get("api_server") or server, authority
    raise Unreachable("the node has not joined a cluster (" + "; ".join(tried) + ")")


class Api:
    """One node object at an API server, over TLS, with a bearer token."""

    def __init__(self, server: str, authority: str, token: str, node: str):
        parts = urllib.parse.urlsplit(server)
        if parts.scheme != "https" or not parts.hostname:
            raise Unreachable(f"{server} is not an https address")
        data = authority if authority.startswith("-----BEGIN") else None
        try:
            self._context = ssl.create_default_context(cafile=None if data else authority or None, cadata=data)
            # Chain and address are verified. Python 3.13 adds checks of the form of certificates, which the
            # cluster's own CA may not pass.
            self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(f"the certificate of the API server's CA cannot be read: {error}") from error
        self._address = (parts.hostname, parts.port or 443)
        self._token, self._path = token, f"/api/v1/nodes/{urllib.parse.quote(node)}"

    def node(self) -> dict | None:
        """The node; None when it has not registered yet."""
        return self._call("GET")

    def set_taints(self, node: dict, taints: list[dict]) -> dict | None:
        """Replace the taints of the node that was read; Outdated when it has changed since."""
        version = node["metadata"]["resourceVersion"]
        return self._call("PATCH", {"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}})

    def _call(self, method: str, body: dict | None = None) -> dict | None:
        headers = {"Accept": "application/json", "Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        connection = http.client.HTTPSConnection(*self._address, timeout=10, context=self._context)
        try:
            connection.request(method, self._path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._address[0]}:{self._address[1]}: {error}") from error
        finally:
            connection.close()
        if answer.status in (401, 403):
            raise Denied(f"{answer.status} {_message(text)}")
        if answer.status == 404:
            return None
        if answer.status == 409:
            raise Outdated
        if answer.status != 200:
            raise Unreachable(f"{answer.status} {_message(text)}")
        return json.loads(text)


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text).get("message", ""))[:300]
    except (ValueError, AttributeError):
        return ""


# --- the conditions ---------------------------------------------------------------------------------------------------


def cni_reason(path: str) -> str | None:
    """Why the CNI configuration is not Multus' own, or None."""
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except FileNotFoundError:
        return f"{path} is not there yet (Flannel, then Multus write it)"
    except (OSError, ValueError) as error:
        return f"{path} is not a complete configuration: {error}"
    whole = isinstance(document, dict) and document.get("type") == "multus-shim" and document.get("clusterNetwork")
    return None if whole else f"{path} is not Multus' own with a clusterNetwork"


def resource_reasons(allocatable: dict, wanted: list[str] | None, prefixes: list[str]) -> list[str]:
    """wanted: names that must be above zero; None asks for any resource with such a prefix, [] for none at all."""
    if wanted is None:
        found = {name.partition("/")[0] for name, count in allocatable.items() if count not in ("0", 0)}
        why = "the device plugin has not registered; if all HCAs are over DRA, set node_ready_resources: []"
        return [] if found & set(prefixes) else [f"no resource {'/*, '.join(prefixes)}/* is allocatable ({why})"]
    return [f"{name} is not allocatable" for name in wanted if allocatable.get(name, "0") in ("0", 0)]


def memlock_reason(services: list[str], minimum: int | None, run, proc: str = "/proc") -> str | None:
    """Why containers could not lock memory, or None. minimum: bytes, None for no limit at all."""
    wanted = "unlimited" if minimum is None else f"{minimum} bytes or more"
    for service in services:
        pid = run(["systemctl", "show", "--property=MainPID", "--value", service]).strip()
        if not pid.isdecimal() or pid == "0":
            continue
        try:
            with open(f"{proc}/{pid}/limits", encoding="ascii") as stream:
                limit = re.search(r"^Max locked memory\s+(\S+)", stream.read(), re.MULTILINE)
        except OSError:
            continue
        if limit and (limit[1] == "unlimited" or (minimum is not None and int(limit[1]) >= minimum)):
            return None
        seen = limit[1] if limit else "unknown"
        return f"{service} may lock {seen} bytes of memory, wanted {wanted}: restart it when workloads permit"
    return f"none of {', '.join(services)} runs"


# --- the decision -----------------------------------------------------------------------------------------------------


def serves(node: dict, boot_id: str) -> bool:
    """Whether the kubelet has reported Ready in this very boot; the status from before the boot stays until then."""
    ready = [item for item in node.get("status", {}).get("conditions", ()) if item.get("type") == "Ready"]
    booted = node.get("status", {}).get("nodeInfo", {}).get("bootID")
    return bool(ready) and ready[0].get("status") == "True" and booted == boot_id


def decide(node: dict, key: str, marked: bool, boot_id: str, reasons: list[str]) -> str:
    """`set`, `mark`, `remove`, `wait` or `done`. marked: whether the taint was dealt with in this boot."""
    tainted = any(taint.get("key") == key for taint in node["spec"].get("taints") or ())
    if not marked:
        # Too late for a startup taint on a node in service: this program arrived after its workloads.
        return "mark" if tainted or serves(node, boot_id) else "set"
    if reasons:
        return "wait"
    return "remove" if tainted else "done"


class Keeper:
    """The files of one boot; checks the node once per step."""

    def __init__(self, settings: dict, boot_id: str, run, api=Api, say=print, proc: str = "/proc"):
        self._settings, self._boot_id, self._run, self._api, self._say = settings, boot_id, run, api, say
        self._proc = proc
        self._marker = f"{settings['run_directory']}/startup-taint"
        self._status = f"{settings['run_directory']}/node-ready.json"
        self._told: tuple | None = None

    def step(self) -> str:
        """State after one check: `unset` until the taint is dealt with, then `waiting`, `ready`; `refused`."""
        try:
            return self._look()
        except Denied as error:
            return self._tell(REFUSED, [f"the API server refuses the token: {error} ({_AGAIN})"])
        except Unreachable as error:
            self._tell(WAITING, [f"the API server is unavailable: {error}"])
        except Outdated:
            pass
        return WAITING if os.path.exists(self._marker) else "unset"

    def _look(self) -> str:
        settings = self._settings
        marked = os.path.exists(self._marker)
        # Local checks first: a booting rack must not query the API server every second.
        if marked and (reasons := self._local_reasons()):
            return self._tell(WAITING, reasons)
        try:
            with open(settings["token"], encoding="ascii") as stream:
                token = stream.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", "not a token")
            return self._tell(REFUSED, [f"{settings['token']}: {why} ({_AGAIN})"])
        server, authority = find_server(settings)
        api = self._api(server, authority, token, settings["node"])
        node = api.node()
        if node is None:
            return self._tell(WAITING, [f"node {settings['node']} has not registered"])
        reasons = self._reasons(node) if marked else []
        step = decide(node, settings["taint"], marked, self._boot_id, reasons)
        taints = [taint for taint in node["spec"].get("taints") or () if taint.get("key") != settings["taint"]]
        if step == "set":
            own = {"key": settings["taint"], "value": "true", "effect": settings["effect"]}
            api.set_taints(node, [*taints, own])
            self._say(f"taint {settings['taint']} set: the node has booted")
        if step in ("set", "mark"):
            write(self._marker, f"{self._boot_id}\n")
            return self._tell(WAITING, ["the first check of the node has not finished"])
        if step == "wait":
            return self._tell(WAITING, reasons)
        if step == "remove":
            api.set_taints(node, taints)
            self._say(f"taint {settings['taint']} removed: the node can run RDMA pods")
        return self._tell(READY, [])

    def _local_reasons(self) -> list[str]:
        settings = self._settings
        memory = memlock_reason(settings["services"], settings["memlock"], self._run, self._proc)
        return [why for why in (cni_reason(settings["conf"]), memory) if why]

    def _reasons(self, node: dict) -> list[str]:
        if not serves(node, self._boot_id):
            return ["the kubelet has not reported Ready in this boot"]
        allocatable, prefixes = node.get("status", {}).get("allocatable", {}), self._settings.get("prefixes", ["rdma"])
        return resource_reasons(allocatable, self._settings["resources"], prefixes)

    def _tell(self, state: str, reasons: list[str]) -> str:
        """Log and record what has changed; once, not at every check."""
        if (state, reasons) != self._told:
            self._told = (state, reasons)
            for why in reasons:
                self._say(f"{state}: {why}")
            write(self._status, json.dumps({"state": state, "reasons": reasons, "boot_id": self._boot_id}) + "\n")
        return state


def write(path: str, text: str) -> None:
    """Replace a small file in one step."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".gpufabric-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_settings(path: str) -> dict:
    with open(path, encoding="utf-8") as stream:
        settings = json.load(stream)
    settings["node"] = settings.get("node") or socket.gethostname().lower()
    return settings


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
    return done.stdout.decode("utf-8", "replace")


def keep(keeper: Keeper, sleep=time.sleep) -> None:
    """Check until the node is ready."""
    state = keeper.step()
    while state != READY:
        sleep(POLL_SECONDS[state])
        state = keeper.step()


def awaited(settings: dict, boot_id: str, timeout: float) -> tuple[bool, list]:
    """(whether the node is ready, what it waits for), from what `run` has recorded in this boot."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with open(f"{settings['run_directory']}/node-ready.json", encoding="utf-8") as stream:
                status = json.load(stream)
        except (OSError, ValueError):
            status = {}
        current = status.get("boot_id") == boot_id
        if current and status.get("state") == READY:
            return True, []
        if time.monotonic() >= deadline:
            reasons = status.get("reasons") if current else None
            return False, reasons or ["gpufabric-rdma-node-ready.service has reported nothing in this boot"]
        time.sleep(1)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description="The startup taint of a node.")
    parser.add_argument("--settings", default=SETTINGS)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run")
    commands.add_parser("await").add_argument("--timeout", type=float, default=0)
    given = parser.parse_args(argv)
    settings = read_settings(given.settings)
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        boot_id = stream.read().strip()

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    if given.command == "await":
        ready, reasons = awaited(settings, boot_id, given.timeout)
        for why in reasons:
            say(why)
        return 0 if ready else 1
    keep(Keeper(settings, boot_id, _run, say=say))
    return 0


if __name__ == "__main__":
    sys.exit(main())
