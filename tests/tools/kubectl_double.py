"""A double of `k3s kubectl` for tests: it speaks the contract that the modules rely on and keeps a cluster in a folder.

    KUBECTL_DOUBLE=FOLDER kubectl_double.py kubectl get|apply|exec|delete …

FOLDER holds objects.json (what the API server has), calls.log (one line a call), and what a test plants:
answers/POD.txt (what the pod says to an exec), pending.json ({pod: [reasons]}: pods that never run), down (the API
server does not answer). A pod that is applied runs at once. Nothing of it talks to a cluster.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

FOLDER = pathlib.Path(os.environ["KUBECTL_DOUBLE"])
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def load(name, empty):
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else empty


def save(objects):
    (FOLDER / "objects.json").write_text(json.dumps(objects))


def refuse(message, code=1):
    print(message, file=sys.stderr)
    sys.exit(code)


def option(words, name, empty=None):
    return words[words.index(name) + 1] if name in words else empty


def plural(kind):
    names = {"networkattachmentdefinition": "network-attachment-definitions.k8s.cni.cncf.io"}
    names["ippool"] = "ippools.nv-ipam.nvidia.com"
    return names.get(kind.lower(), f"{kind.lower()}s")


def get(words, objects):
    kinds = words[0].split(",")
    absent = [kind for kind in kinds if kind in load("absent_types.json", [])]
    if absent:
        refuse(f'error: the server doesn\'t have a resource type "{absent[0].partition(".")[0]}"')
    namespace = None if "-A" in words else option(words, "-n", "default")
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else None
    chosen = [
        item
        for item in objects
        if plural(item["kind"]) in kinds + [f"{kind}s" for kind in kinds]
        and (namespace is None or item["metadata"].get("namespace", namespace) == namespace)
        and (name is None or item["metadata"]["name"] == name)
    ]
    if name and not chosen:
        refuse(f'Error from server (NotFound): {kinds[0]}s "{name}" not found')
    print(json.dumps(chosen[0] if name else {"kind": "List", "items": chosen}))


def apply(objects):
    pending = load("pending.json", {})
    for item in json.load(sys.stdin)["items"]:
        key = (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        objects = [
            one for one in objects if (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) != key
        ]
        if item["kind"] == "Pod":
            started(item, pending.get(item["metadata"]["name"]))
        objects.append(item)
    save(objects)


def started(pod, reasons):
    if reasons:
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reasons[0]}]
        waiting = {"waiting": {"reason": reasons[-1], "message": "planted"}}
        pod["status"] = {
            "phase": "Pending",
            "conditions": conditions,
            "containerStatuses": [{"name": "test", "state": waiting}],
        }
        return
    node = pod["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    pod["spec"]["nodeName"] = node
    number = int(node[-1]) - 1
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.42.{number}.9",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    wanted = json.loads(pod["metadata"].get("annotations", {}).get(NETWORKS) or "[]")
    if wanted:
        noted = [{"name": "cbr0", "interface": "eth0", "ips": [f"10.42.{number}.9"], "default": True}]
        noted += [
            {
                "name": f"{pod['metadata']['namespace']}/{item['name']}",
                "interface": item["interface"],
                "ips": [f"10.56.0.{number * 16 + 2}"],
            }
            for item in wanted
        ]
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json.dumps(noted)


def execute(words):
    pod, command = words[2], words[words.index("--") + 1 :]
    if command[0] == "sh":
        answer = FOLDER / "answers" / f"{pod}.txt"
        if not answer.exists():
            refuse('OCI runtime exec failed: exec: "sh": executable file not found in $PATH', 126)
        print(answer.read_text(), end="")
    elif command[0] == "ping":
        print("3 packets transmitted, 3 received, 0% packet loss, time 2003ms")
    elif "rping" in command and "-c" in command:
        print("\n".join(f"ping data: rdma-ping-{number}: ABCDEFG" for number in range(10)))
    elif "ib_write_bw" in command and not command[-1].isdigit():
        print(" 65536      5000             0.00               9301.10                0.148818")


def delete(words, objects):
    if words[0] == "namespace":
        namespace = words[1]
        objects = [
            item
            for item in objects
            if item["metadata"].get("namespace") != namespace
            and (item["kind"], item["metadata"]["name"]) != ("Namespace", namespace)
        ]
    else:
        namespace = option(words, "-n")
        objects = [item for item in objects if item["kind"] != "Pod" or item["metadata"].get("namespace") != namespace]
    save(objects)


def main():
    words = sys.argv[2:]
    with open(FOLDER / "calls.log", "a") as log:
        log.write(" ".join(words[:5]).replace("\n", " ") + "\n")
    if (FOLDER / "down").exists():
        refuse("The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?")
    busy = load("busy.json", {}).get(words[0], 0)
    if busy:
        (FOLDER / "busy.json").write_text(json.dumps({words[0]: busy - 1}))
        refuse("Unable to connect to the server: net/http: TLS handshake timeout")
    objects = load("objects.json", [])
    if words[0] == "get":
        get(words[1:], objects)
    elif words[0] == "apply":
        apply(objects)
    elif words[0] == "exec":
        execute(words[1:])
    elif words[0] == "delete":
        delete(words[1:], objects)
    else:
        refuse(f"the double knows no {words[0]}", 2)


if __name__ == "__main__":
    main()
