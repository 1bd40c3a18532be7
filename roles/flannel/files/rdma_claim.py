# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CNI plugin at the end of the pod network's chain: the interfaces that a pod's claims bring.

The RDMA driver writes pod and networks into the CDI spec of a prepared claim, before the pod's sandbox exists. ADD
makes one interface per network, with the network's name, from the configuration that the role networks has written on
this node; DEL removes what ADD has recorded. The chain's result is passed on unchanged.

Multus calls DEL once, without our options, and after a failure releases nothing of the chain. So DEL needs no
options and never fails: what could not be released is retried with the next pod that ends.

Options: networks (path of the configurations, up to a network's name); for tests claims (folder of CDI specs) and state
(folder of records). Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys

CLAIMS, STATE, ENDED = "/var/run/cdi", "/var/lib/cni/rdma-claim", ".ended"
SPEC = re.compile(r"gpufabric\.io_rdma-claim_[0-9A-Za-z-]+\.json")
POD, NETWORKS = "rdma.gpufabric.io/pod", "rdma.gpufabric.io/networks"
KEPT = ("CNI_CONTAINERID", "CNI_ARGS", "CNI_PATH")
NETWORK = re.compile(r"rail[0-9]{1,4}")
CONTAINER = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*")
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0"]
# Codes of the specification; those from 100 are a plugin's.
UNSUPPORTED, UNREADABLE, INVALID, FAILED = 4, 5, 7, 100


class Problem(Exception):
    """(code, text): why the pod gets no network. The kubelet shows it as the pod's event."""


def wanted(folder: str, pod: str) -> list[str]:
    """The networks that the claims of a pod bring."""
    networks: dict[str, None] = {}
    for name in sorted(os.listdir(folder)) if pod and os.path.isdir(folder) else ():
        if not SPEC.fullmatch(name):
            continue
        try:
            with open(f"{folder}/{name}", encoding="utf-8") as spec:
                said = json.load(spec)["annotations"]
            if said.get(POD) == pod:
                networks.update(dict.fromkeys(said[NETWORKS].split(",")))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # gone meanwhile, or damaged: then the container fails because of its devices
    strange = [name for name in networks if not NETWORK.fullmatch(name)]
    if strange:
        raise Problem(INVALID, f"networks of pod {pod}: wanted rail0 and so on, seen {strange}")
    return list(networks)


def configuration(prefix: str, network: str) -> dict:
    for end in ("conf", "conflist"):
        path = f"{prefix}{network}.{end}"
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise Problem(INVALID, f"{path}: {error}") from None
    step = "run ansible-playbook gpufabric.rdma.cluster with this node"
    raise Problem(INVALID, f"network {network}: wanted {prefix}{network}.conf, seen no such file; {step}")


def plugins(network: dict) -> list[dict]:
    """The configuration of each plugin in a network's chain, without the result of the previous one."""
    shared = {key: network[key] for key in ("cniVersion", "name")}
    return [{**plugin, **shared} for plugin in network.get("plugins") or [network]]


def run(command: str, words: dict, interface: str, **environment: str) -> dict | None:
    """The result of a plugin; None if it gives none."""
    name, folders = words["type"], os.environ.get("CNI_PATH", "")
    programs = [f"{folder}/{name}" for folder in folders.split(":") if "/" not in name]
    program = next((path for path in programs if os.access(path, os.X_OK)), None)
    if program is None:
        raise Problem(FAILED, f"network {interface}: CNI plugin {name} is not in {folders}")
    done = subprocess.run(
        [program],
        input=json.dumps(words).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, **environment, "CNI_COMMAND": command, "CNI_IFNAME": interface},
        check=False,
    )
    try:
        answer = json.loads(done.stdout or b"null")
    except ValueError:
        answer = None
    if done.returncode:
        told = answer.get("msg") if isinstance(answer, dict) else done.stdout.decode(errors="replace")[:300]
        raise Problem(FAILED, f"network {interface}: {name} {command}: {told or f'exit code {done.returncode}'}")
    return answer


def record(options: dict) -> str:
    container = os.environ.get("CNI_CONTAINERID", "")
    if not CONTAINER.fullmatch(container):
        raise Problem(INVALID, f"CNI_CONTAINERID: wanted the id of a container, seen {container[:100]!r}")
    return f"{options.get('state', STATE)}/{container}.json"


def add(options: dict) -> None:
    words = dict(pair.partition("=")[::2] for pair in os.environ.get("CNI_ARGS", "").split(";"))
    names = wanted(options.get("claims", CLAIMS), words.get("K8S_POD_UID", ""))
    if not names:
        return
    networks = {name: configuration(options["networks"], name) for name in names}
    path = record(options)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # Before the first interface: whatever ends this process, DEL knows what there may be.
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"networks": networks, "environment": {name: os.environ[name] for name in KEPT}}, file)
    os.replace(f"{path}.new", path)
    for name, network in networks.items():
        result = None
        for plugin in plugins(network):
            result = run("ADD", {**plugin, **({"prevResult": result} if result else {})}, name)


def delete(options: dict) -> None:
    own = record(options) + ENDED
    with contextlib.suppress(FileNotFoundError):
        os.replace(own[: -len(ENDED)], own)
    folder = os.path.dirname(own)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = f"{folder}/{name}"
        if name.endswith(ENDED):
            try:
                # CNI_NETNS is the network namespace of the pod of this call.
                release(path, os.environ.get("CNI_NETNS", "") if path == own else "")
            except (Problem, OSError, ValueError, LookupError) as problem:
                sys.stderr.write(f"rdma-claim: {path}, tried again with the next pod: {problem.args[-1]}\n")


def release(path: str, netns: str) -> None:
    """Everything of a pod is tried before its first problem is raised."""
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    problems = []
    for name, network in reversed(kept["networks"].items()):
        for plugin in reversed(plugins(network)):
            try:
                run("DEL", plugin, name, **kept["environment"], CNI_NETNS=netns)
            except Problem as problem:
                problems.append(problem)
    if problems:
        raise problems[0]
    os.unlink(path)


def say(answer: dict) -> None:
    sys.stdout.write(json.dumps(answer))


def main() -> int:
    command = os.environ.get("CNI_COMMAND", "")
    options = json.load(sys.stdin)
    version = options.get("cniVersion", VERSIONS[0])
    try:
        if command == "VERSION":
            say({"cniVersion": version, "supportedVersions": VERSIONS})
        elif command == "ADD":
            add(options)
            say(options["prevResult"])
        elif command == "DEL":
            delete(options)
        elif command != "CHECK":
            raise Problem(UNSUPPORTED, f"CNI_COMMAND: wanted ADD, DEL, CHECK or VERSION, seen {command[:100]!r}")
    except (Problem, OSError) as problem:
        seen = f"rdma-claim {command}: {problem}; correct that on the node, the kubelet tries again"
        code, text = problem.args if isinstance(problem, Problem) else (UNREADABLE, seen)
        say({"cniVersion": version, "code": code, "msg": text})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
