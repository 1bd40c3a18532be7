"""A double of kubectl: the command line and the wording of the real one, a JSON file in place of the cluster.

    drain_double.py --kubeconfig=STATE get node NAME -o json
    drain_double.py --kubeconfig=STATE patch node NAME --type=merge --patch=JSON
    drain_double.py --kubeconfig=STATE cordon|uncordon NAME
    drain_double.py --kubeconfig=STATE drain NAME --ignore-daemonsets --delete-emptydir-data --timeout=600s

The state: {nodes: {name: {unschedulable, annotations}}, pods: [{namespace, name, node, owner, budget}], calls: [argv]}.
owner is ReplicaSet, DaemonSet or null; a pod with `budget: true` may not be evicted. What it does not know it refuses.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys


class Refusal(Exception):
    """What kubectl writes to standard error before it ends with 1."""


def node_object(state, name):
    if name not in state["nodes"]:
        raise Refusal(f'Error from server (NotFound): nodes "{name}" not found')
    node = state["nodes"][name]
    metadata = {"name": name, **({"annotations": node["annotations"]} if node.get("annotations") else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"unschedulable": True} if node.get("unschedulable") else {},
    }


def merged(target, patch):
    """RFC 7386: null takes a field away."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def patch(state, given):
    before = node_object(state, given.name)
    after = merged(before, json.loads(given.patch))
    state["nodes"][given.name] = {
        "unschedulable": after["spec"].get("unschedulable", False),
        "annotations": after["metadata"].get("annotations", {}),
    }
    return [f"node/{given.name} patched" + ("" if after != before else " (no change)")]


def cordon(state, name, wanted=True):
    node_object(state, name)
    node, word = state["nodes"][name], "cordoned" if wanted else "uncordoned"
    if bool(node.get("unschedulable")) is wanted:
        return [f"node/{name} already {word}"]
    node["unschedulable"] = wanted
    return [f"node/{name} {word}"]


def drain(state, given):
    out = cordon(state, given.name)
    print("\n".join(out))
    here = [pod for pod in state["pods"] if pod["node"] == given.name]
    named = {
        owner: [f"{p['namespace']}/{p['name']}" for p in here if p["owner"] == owner] for owner in ("DaemonSet", None)
    }
    errors = []
    if named[None]:
        errors.append(f"cannot delete Pods declare no controller (use --force to override): {', '.join(named[None])}")
    if named["DaemonSet"] and not given.ignore_daemonsets:
        listed = ", ".join(named["DaemonSet"])
        errors.append(f"cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): {listed}")
    if errors:
        raise Refusal(pending(given.name, errors))
    if named["DaemonSet"]:
        print(f"Warning: ignoring DaemonSet-managed Pods: {', '.join(named['DaemonSet'])}", file=sys.stderr)
    for pod in [pod for pod in here if pod["owner"] != "DaemonSet"]:
        print(f"evicting pod {pod['namespace']}/{pod['name']}")
        if pod.get("budget"):
            print(
                f'error when evicting pods/"{pod["name"]}" -n "{pod["namespace"]}" (will retry after 5s): '
                "Cannot evict pod as it would violate the pod's disruption budget.",
                file=sys.stderr,
            )
            what = f'error when evicting pods/"{pod["name"]}" -n "{pod["namespace"]}"'
            raise Refusal(pending(given.name, [f"{what}: global timeout reached: {given.timeout}"]))
        state["pods"].remove(pod)
        print(f"pod/{pod['name']} evicted")
    return [f"node/{given.name} drained"]


def pending(name, errors):
    listed = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
    return "\n".join(
        [
            f'error: unable to drain node "{name}" due to error:{listed}, continuing command...',
            "There are pending nodes to be drained:",
            f" {name}",
            *errors,
        ]
    )


def parse(arguments):
    parser = argparse.ArgumentParser(prog="kubectl")
    parser.add_argument("--kubeconfig", required=True, type=pathlib.Path)
    commands = parser.add_subparsers(dest="command", required=True)
    get = commands.add_parser("get")
    get.add_argument("kind", choices=["node"])
    get.add_argument("name")
    get.add_argument("-o", "--output", choices=["json"], required=True)
    change = commands.add_parser("patch")
    change.add_argument("kind", choices=["node"])
    change.add_argument("name")
    change.add_argument("--type", choices=["merge"], required=True)
    change.add_argument("-p", "--patch", required=True)
    for word in ("cordon", "uncordon", "drain"):
        commands.add_parser(word).add_argument("name")
    for flag in ("--ignore-daemonsets", "--delete-emptydir-data"):
        commands.choices["drain"].add_argument(flag, action="store_true")
    commands.choices["drain"].add_argument("--timeout", default="0s")
    return parser.parse_args(arguments)


def main(arguments):
    given = parse(arguments)
    state = json.loads(given.kubeconfig.read_text())
    state.setdefault("calls", []).append(given.command)
    try:
        if given.command == "get":
            lines = [json.dumps(node_object(state, given.name), indent=4)]
        elif given.command == "patch":
            lines = patch(state, given)
        elif given.command == "drain":
            lines = drain(state, given)
        else:
            lines = cordon(state, given.name, given.command == "cordon")
        print("\n".join(lines))
        return 0
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    finally:
        given.kubeconfig.write_text(json.dumps(state, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
