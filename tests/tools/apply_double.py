"""A double of kubectl and its API server: one JSON file, the verbs and messages that cluster_objects relies on.

APPLY_DOUBLE names the file. It speaks server-side apply: field ownership by manager, conflicts, removal of fields that
a manager no longer applies, dry runs, defaults that a server fills in. Every call is kept in `calls`.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import sys

STATE = pathlib.Path(os.environ["APPLY_DOUBLE"])
BUILT_IN = {
    "Namespace": "namespaces", "Node": "nodes", "ConfigMap": "configmaps", "Secret": "secrets", "Service": "services",
    "ServiceAccount": "serviceaccounts", "DaemonSet": "daemonsets.apps", "Deployment": "deployments.apps",
    "Role": "roles.rbac.authorization.k8s.io", "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
    "ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
    "CustomResourceDefinition": "customresourcedefinitions.apiextensions.k8s.io",
}  # fmt: skip
CLUSTER_WIDE = {"Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
REFUSED = "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"


class Failed(Exception):
    pass


def main(arguments: list[str]) -> int:
    state = json.loads(STATE.read_text()) if STATE.exists() else {}
    state.setdefault("objects", {})
    state.setdefault("calls", []).append(arguments)
    before = copy.deepcopy(state["objects"])
    verbs = {"get": get, "apply": apply, "delete": delete, "wait": wait, "rollout": wait}
    code = 0
    try:
        if state.get("down"):
            raise Failed(REFUSED)
        verbs[arguments[0]](state, arguments)
    except Failed as failed:
        print(failed, file=sys.stderr)
        code = 1
    if "--dry-run=server" in arguments:
        state["objects"] = before
    STATE.write_text(json.dumps(state))
    return code


def kinds(state) -> dict:
    """{kind: plural.group} with those of the installed definitions."""
    found = dict(BUILT_IN)
    for item in state["objects"].values():
        if item["kind"] == "CustomResourceDefinition":
            spec = item["spec"]
            found[spec["names"]["kind"]] = f"{spec['names']['plural']}.{spec['group']}"
    return found


def option(arguments, name):
    return next((word.partition("=")[2] for word in arguments if word.startswith(f"--{name}=")), "")


def given() -> list[dict]:
    document = json.load(sys.stdin)
    return document["items"] if document["kind"] == "List" else [document]


def key(item) -> str:
    meta = item["metadata"]
    namespace = "" if item["kind"] in CLUSTER_WIDE else meta.get("namespace") or "default"
    return "/".join([item["kind"], namespace, meta["name"]])


def unmapped(state, items) -> list[str]:
    return [
        f'resource mapping not found for name: "{item["metadata"]["name"]}" namespace: "" from "STDIN": '
        f'no matches for kind "{item["kind"]}" in version "{item["apiVersion"]}"\nensure CRDs are installed first'
        for item in items
        if item["kind"] not in kinds(state)
    ]


def show(items) -> None:
    if items:
        print(json.dumps(items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}))


def get(state, arguments) -> None:
    if "--filename=-" in arguments:
        items = given()
        show([state["objects"][key(item)] for item in items if key(item) in state["objects"]])
        if unmapped(state, items):
            raise Failed("\n".join(unmapped(state, items)))
        return
    types, known = arguments[1].split(","), kinds(state)
    for name in types:
        if name not in known.values() and name not in {plural.partition(".")[0] for plural in known.values()}:
            raise Failed(f'error: the server doesn\'t have a resource type "{name.partition(".")[0]}"')
    label, value = option(arguments, "selector").partition("=")[::2]
    found = [
        item
        for item in state["objects"].values()
        if known[item["kind"]] in types or known[item["kind"]].partition(".")[0] in types
    ]
    items = [item for item in found if (item["metadata"].get("labels") or {}).get(label) == value]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def apply(state, arguments) -> None:
    manager, force = option(arguments, "field-manager"), "--force-conflicts" in arguments
    items = given()
    errors, done = unmapped(state, items), []
    for item in items:
        namespace, name = item["metadata"].get("namespace"), item["metadata"]["name"]
        if item["kind"] not in kinds(state):
            continue
        if namespace not in (None, "default", "kube-system") and f"Namespace//{namespace}" not in state["objects"]:
            errors.append(f'Error from server (NotFound): namespaces "{namespace}" not found')
        elif (item.get("spec") or {}).get("refused"):
            errors.append(f'The {item["kind"]} "{name}" is invalid: spec.refused: Forbidden')
        else:
            try:
                done.append(one(state, item, manager, force))
            except Failed as failed:
                errors.append(str(failed))
    if errors:
        raise Failed("\n".join(errors))
    show(done)


def one(state, item, manager, force) -> dict:
    live = copy.deepcopy(state["objects"].get(key(item)))
    if live is None:
        number = len(state["calls"])
        live = {"metadata": {"uid": f"u{number}", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}}
        if item["kind"] == "DaemonSet":
            live["spec"] = {"revisionHistoryLimit": 10}
    owners = {entry["manager"]: set(entry["fieldsV1"]) for entry in live["metadata"].get("managedFields") or []}
    aim = leaves({name: value for name, value in item.items() if name not in ("apiVersion", "kind")})
    has = leaves(live)
    clashes = sorted(
        (other, path)
        for other, held in owners.items()
        for path in held
        if other != manager and path in aim and has.get(path) != aim[path]
    )
    if clashes and not force:
        names = " ".join(f'conflict with "{other}" using {item["apiVersion"]}: {path}' for other, path in clashes[:1])
        if len(clashes) > 1:
            names = "conflicts with " + "\n".join(f'"{other}" using v1:\n- {path}' for other, path in clashes)
        raise Failed(
            f"error: Apply failed with {len(clashes)} conflict{'s' if len(clashes) > 1 else ''}: {names}\n"
            "Please review the fields above--they currently have other managers."
        )
    for path in owners.get(manager, set()) - set(aim):
        if not any(path in held for other, held in owners.items() if other != manager):
            drop(live, path)
    merge(live, copy.deepcopy(item))
    for other in owners:
        owners[other] -= {path for who, path in clashes if who == other}
    owners[manager] = set(aim)
    meta = live["metadata"]
    if item["kind"] not in CLUSTER_WIDE:
        meta.setdefault("namespace", "default")
    held = sorted((name, sorted(paths)) for name, paths in owners.items() if paths)
    meta["managedFields"] = [{"manager": name, "fieldsV1": paths} for name, paths in held]
    meta["resourceVersion"] = str(len(state["calls"]))
    state["objects"][key(item)] = live
    return live


def leaves(value, path="") -> dict:
    if isinstance(value, dict) and value:
        return {name: leaf for child in value for name, leaf in leaves(value[child], f"{path}.{child}").items()}
    return {path: value}


def merge(into, new) -> None:
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def drop(item, path) -> None:
    *parents, last = path.strip(".").split(".")
    for name in parents:
        item = item.get(name) or {}
    item.pop(last, None)


def delete(state, _arguments) -> None:
    for item in given():
        state["objects"].pop(key(item), None)


def wait(state, arguments) -> None:
    if any(word in state.get("never", []) for word in arguments):
        raise Failed("error: timed out waiting for the condition")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
