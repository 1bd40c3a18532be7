"""k3s on a node: files, links, services, its input at its start, and foreign clusters.

Reads through a root prefix; the few commands it runs go through `run`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from typing import Callable

from .._core import programs
from .._core.files import recorded, seen_file, sha256_of, under, write
from .._core.units import SYSTEM, shown, started_at
from ..hca import Tree
from ..hca import node as hca_node
from ..hca.routes import destinations
from ..hca.seams import Seams
from ..hca.units import drop_ins, fragment
from . import address
from . import config as k3s
from .plan import ours

_TEXT_FILES = (k3s.CONFIG, k3s.CLUSTER, k3s.EXTRA, k3s.REGISTRIES, k3s.unit_path("server"), k3s.unit_path("agent"))
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_SHOWN = ("Id", "ActiveState", "MainPID", "InvocationID", "ExecMainStartTimestampMonotonic")
_OTHERS = {
    "/etc/kubernetes/kubelet.conf": "kubeadm",
    "/etc/kubernetes/admin.conf": "kubeadm",
    "/etc/rancher/rke2/config.yaml": "RKE2",
    "/var/lib/rancher/rke2/server": "RKE2",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig": "RKE2",
    "/var/snap/microk8s/current": "MicroK8s",
    "/var/lib/k0s/kubelet.conf": "k0s",
    "/var/lib/k0s/pki": "k0s",
    "/var/lib/kubelet/kubeconfig": "a kubelet",
}
_CA = f"{k3s.DATA}/server/tls/server-ca.crt"
_JOINED_CA = f"{k3s.DATA}/agent/server-ca.crt"  # the same, as an agent got it
_UUID_FILES = (
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    "/etc/machine-id",
)
_OPTION = re.compile(r"^[\"']?([a-z][a-z0-9-]*)[\"']?\s*:", re.MULTILINE)
_IPTABLES = re.compile(r"iptables v(\d+)\.(\d+)\.(\d+)")
# Other installers give their units other names, such as k3s-node.service.
_STARTS_K3S = re.compile(r"^ExecStart=.*/k3s['\"]?[\s\\]+(server|agent)\b", re.MULTILINE)


def node(root: str, run: Callable) -> dict:
    """What preflight needs. run(argv) returns exit status, output and error text; used on the live root only."""
    tree = Tree(root)
    state = converging(root, run)
    del state["files"]  # they may contain secrets and stay on the node
    foreign = [f"k3s ({path})" for path in foreign_units(units(tree)) if path not in _TEXT_FILES]
    shared = address.configured(tree.read(address.CONFIG))
    release = hca_node.system(hca_node.os_release(tree))
    joins = re.search(r'^server: "([^"]+)"$', tree.read(k3s.CONFIG) or "", re.MULTILINE)
    machine = tree.read("/proc/sys/kernel/arch") or Seams.of(tree).machine() or "unknown"
    return {
        **state,
        "architecture": _MACHINES.get(machine, machine),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}" if tree.live else None,
        "ensurepip": not tree.live or importlib.util.find_spec("ensurepip") is not None,
        "clock": time.time() if tree.live else None,
        "family": hca_node.family(release) or "debian",
        "distribution": hca_node.distribution(release),
        # Without the shared address of servers: it is not the node's own, and may move at any time.
        "addresses": [row for row in _addresses(tree) if row["address"].partition("/")[0] != shared],
        "shared_address": shared,
        "address_files": [path for path in address.FILES if tree.exists(path)],
        "routes": destinations(tree),
        "selinux": {"1": "enforcing", "0": "permissive"}.get(tree.read("/sys/fs/selinux/enforce"), "disabled"),
        "cgroup_v1": tree.isdir("/sys/fs/cgroup/systemd") and not tree.exists("/sys/fs/cgroup/cgroup.controllers"),
        "selinux_policy": tree.exists("/usr/share/selinux/packages/k3s.pp"),
        "iptables": _iptables(run) if tree.live else None,
        "version": version(tree, run),
        "others": sorted({*others(tree).values(), *foreign}),
        "drop_ins": _drop_ins_of_others(tree),
        "listening": programs.bound(tree, "tcp"),
        "server_url": joins[1] if joins else None,
        "joined": tree.exists(f"{k3s.DATA}/agent/kubelet.kubeconfig"),
        "cluster": tree.isdir(f"{k3s.DATA}/server/db") or tree.exists(_CA),
        "ca": next((sha256_of(under(root, path)) for path in (_CA, _JOINED_CA) if tree.exists(path)), None),
        "sums": {path: digest for path, digest in state["inputs"].items() if _is_large(path)},
    }


def hostname(tree: Tree) -> str:
    return (tree.read("/proc/sys/kernel/hostname") or "").strip().lower()


def system_uuid(tree: Tree) -> str:
    """The files that the kubelet (cAdvisor) reads, in its order."""
    texts = (tree.read(path) for path in _UUID_FILES)
    return next((text.strip("\0\n ") for text in texts if text is not None), "")


def others(tree: Tree) -> dict[str, str]:
    """{path: owner} of files that only another Kubernetes leaves on a node."""
    return {path: name for path, name in _OTHERS.items() if tree.exists(path)}


def units(tree: Tree) -> dict[str, str]:
    """{path: text} of the services whose files are on the node; links are other services' names."""
    paths = [f"{SYSTEM}/{name}" for name in sorted(tree.listdir(SYSTEM)) if name.endswith(".service")]
    return {path: tree.read(path) or "" for path in paths if tree.readlink(path) is None}


def foreign_units(texts: dict[str, str]) -> list[str]:
    """Units that start a k3s that this collection did not set up. texts: as units() returns them."""
    others = {path: text for path, text in texts.items() if not ours({"content": text})}
    return [path for path, text in others.items() if path in _TEXT_FILES or _STARTS_K3S.search(text)]


def _drop_ins_of_others(tree: Tree) -> dict[str, list[str]]:
    """{path: options} of foreign files that k3s reads with ours; `option+:`, which only adds to a list, is left out."""
    paths = [f"{os.path.dirname(k3s.EXTRA)}/{name}" for name in tree.listdir(os.path.dirname(k3s.EXTRA))]
    return {
        path: _OPTION.findall(tree.read(path) or "")
        for path in sorted(paths)
        if path not in _TEXT_FILES and path.lower().endswith((".yaml", ".yml"))
    }


def membership(tree: Tree) -> dict:
    """The node's membership in a cluster: whether it runs pods, is a k3s server, and other distributions on it."""
    joined = tree.exists(f"{k3s.DATA}/agent/kubelet.kubeconfig")
    theirs = sorted(set(others(tree).values()))
    return {"member": joined or bool(theirs), "server": tree.isdir(f"{k3s.DATA}/server/db"), "others": theirs}


def converging(root: str, run: Callable, token: str | None = None, first: bool = False) -> dict:
    """The input of `_k3s.plan.plan`. first: whether the node's own k3s tells what the cluster's token is."""
    tree = Tree(root)
    running = _running(run) if tree.live else {}
    record = recorded(tree, k3s.RECORD)
    files = {path: seen_file(tree, path) for path in _TEXT_FILES}
    foreign = [path for path, seen in files.items() if seen and not ours(seen)]
    present = {path: row["sha256"] for path, row in inputs(tree, root, record).items()}
    return {
        "files": {path: seen for path, seen in files.items() if seen},
        "foreign_files": foreign,
        "links": {path: _link(tree, path) for path in k3s.LINKS},
        "binary": {"mode": _mode(tree, k3s.BINARY)} if tree.exists(k3s.BINARY) else None,
        "services": {name: _service(tree, name, running) for name in k3s.SERVICES.values()},
        "token": _token(tree, token, first),
        "started": record.get("inputs") or {},
        "inputs": present,
        "younger": younger({path: tree.mtime(path) for path in present}, running, record.get("invocation")),
    }


def inputs(tree: Tree, root: str, record: dict) -> dict[str, dict]:
    """{path: identity and sha256} of everything k3s reads at start from our files or from files next to them.

    An image archive is one of them; a hidden file next to them is k3s' own record of its imports.
    """
    found = [k3s.BINARY, k3s.CONFIG, k3s.CLUSTER, k3s.EXTRA, k3s.REGISTRIES]
    for name in k3s.SERVICES.values():
        found += [f"/etc/systemd/system/{name}.service", *drop_ins(tree, f"{name}.service")]
        found += [path.replace("%N", name) for path in k3s.ENVIRONMENT]
    found += [f"{k3s.IMAGES}/{name}" for name in sorted(tree.listdir(k3s.IMAGES)) if not name.startswith(".")]
    known = record.get("hashes") or {}
    return {path: _sum(tree, root, path, known.get(path) or {}) for path in found if tree.exists(path)}


def younger(written: dict, running: dict[str, dict], known: str | None) -> list[str]:
    """Inputs that were written after the start of a k3s that we did not start.

    There is no record of the input of such a process: a file missing at its start may exist again. written:
    {path: seconds since the epoch}. known: the systemd invocation that the record describes.
    """
    others = [process["started_at"] for process in running.values() if process["invocation"] != known]
    return sorted(path for path, mtime in written.items() for start in others if (mtime or 0) > start)


def remember(root: str, run: Callable) -> None:
    """Record k3s' input at its start, and the digests of large files with the data that proves them unchanged."""
    tree = Tree(root)
    rows = inputs(tree, root, recorded(tree, k3s.RECORD))
    now = {path: row["sha256"] for path, row in rows.items()}
    large = {path: row for path, row in rows.items() if _is_large(path)}
    running = _running(run) if tree.live else {}
    start = next((process["invocation"] for process in running.values()), None)
    text = json.dumps({"inputs": now, "hashes": large, "invocation": start}, indent=1, sort_keys=True) + "\n"
    write(under(root, k3s.RECORD), text)


def _is_large(path: str) -> bool:
    """Whether it is the program or an image archive, which the controller compares with the bundle."""
    return path == k3s.BINARY or path.startswith(k3s.IMAGES)


def _sum(tree: Tree, root: str, path: str, known: dict) -> dict:
    seen = tree.stat(path)
    identity = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]
    same = known.get("identity") == identity
    return known if same else {"identity": identity, "sha256": sha256_of(under(root, path))}


def _mode(tree: Tree, path: str) -> str:
    return f"{tree.mode(path) or 0:04o}"


def _link(tree: Tree, path: str) -> str | None:
    target = tree.readlink(path)
    if target is not None:
        return k3s.BINARY if os.path.join(os.path.dirname(path), target) == k3s.BINARY else target
    return "a separate program" if tree.exists(path) else None


def _running(run: Callable) -> dict[str, dict]:
    """{service: starting, pid of its main process, invocation, started_at}, of active and activating services.

    systemd decides, because the control group of a stopped k3s still holds containers. A start takes minutes, and the
    run that triggered it may have been killed.
    """
    found = {}
    for said in shown(run, _SHOWN, *(f"{name}.service" for name in k3s.SERVICES.values())):
        pid, starting = int(said.get("MainPID") or 0), said.get("ActiveState") == "activating"
        # Without a process it is between two restart attempts.
        if said.get("ActiveState") == "active" or (starting and pid):
            found[said["Id"].rpartition(".")[0]] = {
                "starting": starting,
                "pid": pid,
                "invocation": said.get("InvocationID", ""),
                "started_at": started_at(said),
            }
    return found


def _service(tree: Tree, name: str, running: dict[str, dict]) -> dict:
    unit = f"{name}.service"
    enabled = tree.readlink(f"/etc/systemd/system/multi-user.target.wants/{unit}") is not None
    process = running.get(name)
    starting = process is not None and process["starting"]
    active = process is not None and not starting
    return {
        "exists": fragment(tree, unit) is not None,
        "active": active,
        "starting": starting,
        "main_pid": process["pid"] if active else None,
        "enabled": enabled,
    }


def _token(tree: Tree, given: str | None, first: bool) -> dict:
    present = (tree.read(k3s.TOKEN) or "").strip()
    held = present or (tree.read(f"{k3s.DATA}/server/token") if first else "")
    return {
        "present": bool(present),
        "mode": _mode(tree, k3s.TOKEN),
        "differs": bool(given and held and _secret(held) != _secret(given)),
    }


def _secret(token: str) -> str:
    """The secret part of K10<CA hash>::<user>:<secret>, or a bare secret."""
    return token.strip().rpartition("::")[2].rpartition(":")[2]


def _addresses(tree: Tree) -> list[dict]:
    found = Seams.of(tree).addresses() or {}
    return [{"netdev": name, "address": entry} for name in sorted(found) for entry in found[name]]


def _iptables(run: Callable) -> list[int] | None:
    try:
        matched = _IPTABLES.search(run(["iptables", "--version"])[1])
    except OSError:
        return None
    return [int(part) for part in matched.groups()] if matched else None


def version(tree: Tree, run: Callable) -> str | None:
    """`k3s version v1.35.8+k3s1 (…)`"""
    if not tree.exists(k3s.BINARY):
        return None
    if not tree.live:
        return tree.read(f"{k3s.BINARY}.version")
    try:
        code, out, _error = run([k3s.BINARY, "--version"])
    except OSError:  # not executable, of another processor or cut short: the bundle's replaces it
        return None
    words = out.split()
    return words[2] if code == 0 and len(words) > 2 else None
