"""The double of kubectl and its API server: the command line and the wording of the real one, a JSON file as cluster.

Below that, its state with the two simulated nodes.

    kubectl_cluster.py --kubeconfig=STATE get|apply|delete|patch|cordon|uncordon|drain|wait|rollout|exec …

It speaks server-side apply (field ownership by manager, conflicts, removal of fields that a manager no longer applies,
dry runs, defaults that a server fills in), starts pods, and evicts them. Anything else is refused. STATE holds

    objects   {KIND/NAMESPACE/NAME: object}
    calls     [argv]
    applied   {manager: [object]}, without dry runs
    down      no API server answers
    cut       {verb: n}: the next n calls of a verb end well, with their output cut off before its first byte
    never     [word]: a wait with such a word times out
    answers   {pod: its output for an exec of sh}
    pending   {pod: [reason]}: pods that never run; all others run as soon as they are applied
    gates     [feature gate]: those of DRA that are on; version: of the server
    without   [kind]: those that the API server does not serve
    meddled   {KIND/NAMESPACE/NAME: [annotations]}: what a controller sets before each next dry run
    late_accounts number: pods that are refused for want of their namespace's account
    budgets   [pod]: pods that may not be evicted
    tokens    {account: token}, or {"*": token}: what the token controller adds after the call
    processes {KIND/NAMESPACE/NAME: folder}: what is gone from the node's /proc once the object is
"""

import base64
import contextlib
import copy
import fcntl
import io
import itertools
import json
import pathlib
import shlex
import shutil
import sys

GROUPS = {
    "": "Namespace Node Pod Event ConfigMap Secret Service ServiceAccount",
    "apps": "DaemonSet Deployment",
    "rbac.authorization.k8s.io": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "node.k8s.io": "RuntimeClass",
    "discovery.k8s.io": "EndpointSlice",
    "resource.k8s.io": "DeviceClass ResourceSlice ResourceClaim ResourceClaimTemplate",
    "admissionregistration.k8s.io": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
}
# Fields that the API server drops while the gate of this name is off.
GATED = {
    "DRAExtendedResource": ("DeviceClass", "extendedResourceName"),
    "DRAConsumableCapacity": ("ResourceSlice", "allowMultipleAllocations"),
    "DRADeviceTaints": ("ResourceSlice", "taints"),
}
CLUSTER_WIDE = {
    "RuntimeClass", "Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition",
    "NicClusterPolicy", "DeviceClass", "ResourceSlice", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
# The API server creates it, and recreates it.
DEFAULT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
NETWORKS = "k8s.v1.cni.cncf.io/networks"
MIRROR = "kubernetes.io/config.mirror"
ACCOUNT = "kubernetes.io/service-account.name"
REFUSED = "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"


class Failed(Exception):
    """kubectl's standard error before it ends with a status."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


def main(arguments: list[str]) -> int:
    option, _equals, place = arguments[0].partition("=")
    if option != "--kubeconfig":
        raise SystemExit("the double needs --kubeconfig=STATE before anything else")
    path, words = pathlib.Path(place), arguments[1:]
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else {}
        state.setdefault("objects", {})
        state.setdefault("calls", []).append(words)
        meddle(state, words)
        before = copy.deepcopy(state["objects"])
        code = 0
        try:
            with contextlib.redirect_stdout(io.StringIO() if left_to_cut(state, words[0]) else sys.stdout):
                answer(state, words)
        except Failed as failed:
            print(failed, file=sys.stderr)
            code = failed.status
        if "--dry-run=server" in words:
            state["objects"] = before
        else:
            fill_in_tokens(state)
        # In one step, because callers may end servers in pods at any moment.
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(state))
        fresh.replace(path)
    return code


def meddle(state, words) -> None:
    for name, waiting in state.get("meddled", {}).items():
        if "--dry-run=server" in words and waiting:
            meta = state["objects"][name]["metadata"]
            meta.update(annotations=waiting.pop(0), resourceVersion=str(len(state["calls"])))


def left_to_cut(state, verb) -> bool:
    left = state.get("cut", {}).get(verb, 0)
    if left:
        state["cut"][verb] = left - 1
    return left > 0


def answer(state, words) -> None:
    if state.get("down"):
        raise Failed(REFUSED)
    verb = VERBS.get(words[0])
    if verb is None:
        raise Failed(f'error: unknown command "{words[0]}" for "kubectl"')
    verb(state, words)


# --- the command line -------------------------------------------------------------------------------------------------


def option(words, *names, empty=""):
    """The value of --name=value, --name value or -n value."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.lstrip("-") in names and word.startswith("-"):
            return value if equals else words[number + 1]
    return empty


def given() -> list[dict]:
    document = json.load(sys.stdin)
    return document["items"] if document["kind"] == "List" else [document]


def show(items, managed=False) -> None:
    items = [seen(item, managed) for item in items]
    if items:
        print(json.dumps(items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}))


def seen(item, managed) -> dict:
    """managed: whether with managedFields, which kubectl leaves out by default."""
    item = copy.deepcopy(item)
    entries = item["metadata"].pop("managedFields", None)
    if managed and entries is not None:
        item["metadata"]["managedFields"] = [
            {**entry, "fieldsV1": fields(item, entry["fieldsV1"])} for entry in entries
        ]
    return item


def fields(item, paths) -> dict:
    """Paths in the API server's form: .spec.x is {"f:spec": {"f:x": {}}}."""
    found: dict = {}
    for path in paths:
        rest, here, there = path, item, found
        while rest:
            names = [name for name in here if f"{rest}.".startswith(f".{name}.")] if isinstance(here, dict) else []
            name = max(names, key=len, default=rest[1:])
            rest, here = rest[len(name) + 1 :], here[name] if names else None
            there = there.setdefault(f"f:{name}", {})
    return found


def key(item) -> str:
    meta = item["metadata"]
    namespace = "" if item["kind"] in CLUSTER_WIDE else meta.get("namespace") or "default"
    return "/".join([item["kind"], namespace, meta["name"]])


def plural(kind, group) -> str:
    word = kind.lower()
    word = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{word}.{group}" if group else word


def kinds(state) -> dict:
    """{kind: plural.group} with those of the installed definitions."""
    found = {kind: plural(kind, group) for group, names in GROUPS.items() for kind in names.split()}
    found = {kind: name for kind, name in found.items() if kind not in state.get("without", [])}
    for item in state["objects"].values():
        if item["kind"] == "CustomResourceDefinition":
            spec = item["spec"]
            found[spec["names"]["kind"]] = f"{spec['names']['plural']}.{spec['group']}"
    return found


def kind_of(state, word) -> str:
    """The kind of node, nodes, daemonsets or daemonsets.apps."""
    for kind, plural in kinds(state).items():
        if word in (plural, plural.partition(".")[0], kind.lower()):
            return kind
    raise Failed(f'error: the server doesn\'t have a resource type "{word.partition(".")[0]}"')


def named(state, words) -> dict:
    kind = kind_of(state, words[1])
    namespace = "" if kind in CLUSTER_WIDE else option(words, "n", "namespace", empty="default")
    found = state["objects"].get(f"{kind}/{namespace}/{words[2]}")
    if found is None and "--ignore-not-found" not in words:
        raise Failed(f'Error from server (NotFound): {kinds(state)[kind]} "{words[2]}" not found')
    return found


def unmapped(state, items) -> list[str]:
    return [
        f'resource mapping not found for name: "{item["metadata"]["name"]}" namespace: "" from "STDIN": '
        f'no matches for kind "{item["kind"]}" in version "{item["apiVersion"]}"\nensure CRDs are installed first'
        for item in items
        if item["kind"] not in kinds(state)
    ]


# --- reading ----------------------------------------------------------------------------------------------------------


def get(state, words) -> None:
    managed = "--show-managed-fields" in words
    if words[1] == "--raw=/readyz":
        print("ok")
    elif words[1] == "--raw=/version":
        print(json.dumps({"gitVersion": state.get("version", "v1.35.8+k3s1")}))
    elif "--filename=-" in words:
        items, there = given(), {"Namespace//default": DEFAULT, **state["objects"]}
        show([there[key(item)] for item in items if key(item) in there], managed)
        if unmapped(state, items):
            raise Failed("\n".join(unmapped(state, items)))
    elif len(words) > 2 and not words[2].startswith("-"):
        found = named(state, words)
        show([found] if found else [], managed)
    else:
        wanted = {kind_of(state, word) for word in words[1].split(",")}
        everywhere = "-A" in words or "--all-namespaces" in words
        namespace = option(words, "n", "namespace", empty="default")
        label, values = selected(option(words, "selector"))
        node = option(words, "field-selector").partition("spec.nodeName=")[2]
        only = option(words, "field-selector").partition("metadata.name=")[2]
        items = [
            item
            for name, item in state["objects"].items()
            if item["kind"] in wanted
            and (everywhere or item["kind"] in CLUSTER_WIDE or name.split("/")[1] == namespace)
            and (not label or (item["metadata"].get("labels") or {}).get(label) in values)
            and (not node or item["spec"].get("nodeName") == node)
            and (not only or item["metadata"]["name"] == only)
        ]
        if "systemUUID" in option(words, "output"):
            for item in items:
                print(item["metadata"]["name"], item.get("status", {}).get("nodeInfo", {}).get("systemUUID", ""))
            return
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": [seen(item, managed) for item in items]}))


def selected(text) -> tuple:
    """(label, its values) of `label=value` or `label in (value,value)`."""
    label, _in, values = text.partition(" in ")
    if values:
        return label, values.strip("()").split(",")
    label, _is, value = text.partition("=")
    return label, [value]


def wait(state, words) -> None:
    if any(word in state.get("never", []) for word in words):
        raise Failed("error: timed out waiting for the condition")


# --- server-side apply ------------------------------------------------------------------------------------------------


def apply(state, words) -> None:
    manager, force = option(words, "field-manager"), "--force-conflicts" in words
    items = given()
    if "--dry-run=server" not in words:
        state.setdefault("applied", {}).setdefault(manager, []).extend(items)
    errors, done = unmapped(state, items), []
    for item in items:
        drop_gated(state, item)
        namespace, name = item["metadata"].get("namespace"), item["metadata"]["name"]
        if item["kind"] not in kinds(state):
            continue
        if namespace not in (None, "default", "kube-system") and f"Namespace//{namespace}" not in state["objects"]:
            errors.append(f'Error from server (NotFound): namespaces "{namespace}" not found')
        elif item["kind"] == "Pod" and state.get("late_accounts"):
            state["late_accounts"] -= 1
            errors.append(f'error looking up service account {namespace}/default: serviceaccount "default" not found')
        elif (item.get("spec") or {}).get("refused"):
            errors.append(f'The {item["kind"]} "{name}" is invalid: spec.refused: Forbidden')
        else:
            try:
                done.append(apply_one(state, item, manager, force))
            except Failed as failed:
                errors.append(str(failed))
    if errors:
        raise Failed("\n".join(errors))
    show(done)


def apply_one(state, item, manager, force) -> dict:
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
    if "--dry-run=server" not in state["calls"][-1] or "resourceVersion" not in meta:
        meta["resourceVersion"] = str(len(state["calls"]))
    if item["kind"] == "Pod":
        start(state, live, state.get("pending", {}).get(meta["name"]))
    state["objects"][key(item)] = live
    return live


def drop_gated(state, item) -> None:
    for gate, (kind, name) in GATED.items():
        if item["kind"] == kind and gate not in state.get("gates", []):
            for place in (item["spec"], *item["spec"].get("devices", [])):
                place.pop(name, None)


def allocate(state, pod) -> None:
    """The claims of a starting pod: for each request a device of its class from the slices.

    Classes are known by their names: rail-N, rail, or that of the driver. A constraint on an attribute is kept.
    """
    me, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    for one in pod["spec"].get("resourceClaims") or []:
        template = state["objects"][f"ResourceClaimTemplate/{namespace}/{one['resourceClaimTemplateName']}"]
        wanted = template["spec"]["spec"]["devices"]
        same = [item["matchAttribute"] for item in wanted.get("constraints") or []]
        choices = [
            [
                {**device, "request": request["name"]}
                for device in published(state, pod["spec"]["nodeName"])
                if of_class(device, request["exactly"]["deviceClassName"])
            ]
            for request in wanted["requests"]
        ]
        chosen = next(
            picked
            for picked in itertools.product(*choices)
            if all(len({json.dumps(one["attributes"].get(name)) for one in picked}) == 1 for name in same)
        )
        results = [{field: one[field] for field in ("request", "driver", "pool", "device")} for one in chosen]
        meta = {"name": f"{me}-{one['name']}-x7k2p", "namespace": namespace}
        meta["ownerReferences"] = [{"kind": "Pod", "name": me, "controller": True}]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": me}]}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "status": status}
        state["objects"][key(claim)] = {**claim, "spec": template["spec"]["spec"]}
        told = pod["status"].setdefault("resourceClaimStatuses", [])
        told.append({"name": one["name"], "resourceClaimName": meta["name"]})


def published(state, node):
    for item in state["objects"].values():
        if item["kind"] == "ResourceSlice" and item["spec"].get("nodeName") == node:
            driver, pool = item["spec"]["driver"], item["spec"]["pool"]["name"]
            for device in item["spec"]["devices"]:
                yield {"driver": driver, "pool": pool, "device": device["name"], "attributes": device["attributes"]}


def of_class(device, name) -> bool:
    kind, _dot, driver = name.partition(".")
    if name == device["driver"]:
        return True
    rail = device["attributes"].get("rail", {}).get("int")
    return driver == device["driver"] and kind in ("rail", f"rail-{rail}")


def leaves(value, path="") -> dict:
    if isinstance(value, dict) and value:
        return {name: leaf for child in value for name, leaf in leaves(value[child], f"{path}.{child}").items()}
    return {path: value}


def merge(into, new) -> None:
    """RFC 7386: null removes a field."""
    for name, value in new.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            merge(into[name], value)
        else:
            into[name] = value


def drop(item, path) -> None:
    *parents, last = path.strip(".").split(".")
    for name in parents:
        item = item.get(name) or {}
    item.pop(last, None)


def fill_in_tokens(state) -> None:
    known = state.get("tokens", {})
    for item in state["objects"].values():
        if item.get("type") == "kubernetes.io/service-account-token":
            token = known.get(item["metadata"]["annotations"][ACCOUNT], known.get("*"))
            if token:
                item["data"] = {"token": base64.b64encode(token.encode()).decode()}


# --- pods -------------------------------------------------------------------------------------------------------------


def start(state, pod, reasons) -> None:
    if reasons:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reasons[0]}
        waiting = {"name": "test", "state": {"waiting": {"reason": reasons[-1], "message": "planted"}}}
        pod["status"] = {"phase": "Pending", "conditions": [unscheduled], "containerStatuses": [waiting]}
        return
    node = pod["spec"]["nodeName"] = pod["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    number = int(node[-1]) - 1
    ready = {"type": "Ready", "status": "True"}
    pod["status"] = {"phase": "Running", "podIP": f"10.42.{number}.9", "conditions": [ready]}
    allocate(state, pod)
    wanted = json.loads(pod["metadata"].get("annotations", {}).get(NETWORKS) or "[]")
    if wanted:
        space, ips = pod["metadata"]["namespace"], [f"10.56.0.{number * 16 + 2}"]
        noted = [{"name": "cbr0", "interface": "eth0", "ips": [f"10.42.{number}.9"], "default": True}]
        noted += [{"name": f"{space}/{one['name']}", "interface": one["interface"], "ips": ips} for one in wanted]
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json.dumps(noted)


def execute(state, words) -> None:
    pod, command = words[3], words[words.index("--") + 1 :]
    if command[:2] == ["sh", "-c"] and command[3] == "server":
        print(command[2].split('"')[1])
        command = command[4:]
    if command[0] == "sh" and command[3:4] == ["ping"]:
        print("3 packets transmitted, 3 received, 0% packet loss, time 2003ms")
    elif command[0] == "sh":
        if pod not in state.get("answers", {}):
            raise Failed('OCI runtime exec failed: exec: "sh": executable file not found in $PATH', 126)
        print(state["answers"][pod] + "@@.")
    elif "rping" in command and "-c" in command:
        print("\n".join(f"ping data: rdma-ping-{number}: ABCDEFG" for number in range(10)))
    elif "ib_write_bw" in command and not command[-1].isdigit():
        print(" 65536      5000             0.00               9301.10                0.148818")


# --- deleting, draining -----------------------------------------------------------------------------------------------


def delete(state, words) -> None:
    if "--filename=-" in words:
        gone = [key(item) for item in given()]
    elif "--all" in words:
        before = f"{kind_of(state, words[1])}/{option(words, 'n', 'namespace')}/"
        gone = [name for name in state["objects"] if name.startswith(before)]
    else:
        found = named(state, words)
        gone = [key(found)] if found else []
    spaces = [name.split("/")[2] for name in gone if name.startswith("Namespace/")]
    gone += [name for name in state["objects"] if name.split("/")[1] in spaces]
    for name in gone:
        state["objects"].pop(name, None)
        if name in state.get("processes", {}):
            shutil.rmtree(state["processes"].pop(name))


def patch(state, words) -> None:
    item = named(state, words)
    before = copy.deepcopy(item)
    if option(words, "type") != "merge":
        raise Failed("error: the double knows merge patches only")
    updated(item, json.loads(option(words, "patch")), option(words, "field-manager", empty="kubectl-patch"))
    print(f"{words[1]}/{words[2]} patched" + ("" if item != before else " (no change)"))


def updated(item, change, manager) -> None:
    """Merge a change: fields that it sets belong only to its manager, removed ones to nobody."""
    before = leaves(item)
    merge(item, change)
    after = leaves(item)
    new = {path for path in after if path not in before or before[path] != after[path]}
    if not new and not set(before) - set(after):
        return
    entries = item["metadata"].pop("managedFields", None) or []
    for entry in entries:
        entry["fieldsV1"] = [path for path in entry["fieldsV1"] if path in after and path not in new]
    own = next((one for one in entries if (one["manager"], one.get("operation")) == (manager, "Update")), None)
    if own is None:
        own = {"manager": manager, "operation": "Update", "fieldsV1": []}
        entries.append(own)
    own["fieldsV1"] = sorted({*own["fieldsV1"], *new})
    item["metadata"]["managedFields"] = [entry for entry in entries if entry["fieldsV1"]]


def cordon(state, words) -> None:
    name, wanted = words[1], words[0] == "cordon"
    node = named(state, ["get", "node", name])
    done = bool(node["spec"].get("unschedulable")) == wanted
    print(f"node/{name} {'already ' if done else ''}{words[0]}ed")
    updated(node, {"spec": {"unschedulable": wanted or None}}, f"kubectl-{words[0]}")


def drain(state, words) -> None:
    name = words[1]
    cordon(state, ["cordon", name])
    by_owner: dict = {}
    for item in list(state["objects"].values()):
        meta, mirrored = item["metadata"], MIRROR in (item["metadata"].get("annotations") or ())
        if item["kind"] == "Pod" and item["spec"].get("nodeName") == name and not mirrored:
            owner = next((owner["kind"] for owner in meta.get("ownerReferences") or []), None)
            by_owner.setdefault(owner, {})[f"{meta['namespace']}/{meta['name']}"] = item
    errors, daemons = [], ", ".join(by_owner.pop("DaemonSet", ()))
    if None in by_owner:
        listed = ", ".join(by_owner[None])
        errors.append(f"cannot delete Pods that declare no controller (use --force to override): {listed}")
    if daemons and "--ignore-daemonsets" not in words:
        errors.append(f"cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): {daemons}")
    if errors:
        raise Failed(undrained(name, errors))
    if daemons:
        print(f"Warning: ignoring DaemonSet-managed Pods: {daemons}", file=sys.stderr)
    for pods in by_owner.values():
        for pod in pods.values():
            evict(state, name, pod, option(words, "timeout", empty="0s"))
    print(f"node/{name} drained")


def evict(state, node, pod, timeout) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    print(f"evicting pod {namespace}/{name}")
    if name in state.get("budgets", []):
        what = f'error when evicting pods/"{name}" -n "{namespace}"'
        refusal = "Cannot evict pod as it would violate the pod's disruption budget."
        print(f"{what} (will retry after 5s): {refusal}", file=sys.stderr)
        raise Failed(undrained(node, [f"{what}: global timeout reached: {timeout}"]))
    del state["objects"][key(pod)]
    print(f"pod/{name} evicted")


def undrained(name, errors) -> str:
    listed = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
    text = f'error: unable to drain node "{name}" due to error: {listed}, continuing command...'
    return "\n".join([text, "There are pending nodes to be drained:", f" {name}", *errors])


VERBS = {
    "get": get,
    "apply": apply,
    "delete": delete,
    "patch": patch,
    "drain": drain,
    "exec": execute,
    "cordon": cordon,
    "uncordon": cordon,
    "wait": wait,
    "rollout": wait,
}


# --- the interface for tests ------------------------------------------------------------------------------------------


class Cluster:
    """The tests' access to the double's state; see the top for its keys."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        # Without its site packages Python starts in a third of the time.
        self.argv = [sys.executable, "-E", "-S", __file__, f"--kubeconfig={self.path}"]

    def state(self, **change) -> dict:
        found = json.loads(self.path.read_text()) if self.path.exists() else {"objects": {}, "calls": []}
        if change:
            found.update(change)
            self.path.write_text(json.dumps(found))
        return found

    @property
    def objects(self) -> dict:
        return self.state()["objects"]

    def calls(self, verb=None) -> list[list[str]]:
        return [call for call in self.state()["calls"] if verb in (None, call[0])]

    def namespaces(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.objects.values() if item["kind"] == "Namespace"]

    def client(self, **options):
        # Not at the top: the program below only has the standard library.
        from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl

        return Kubectl(self.argv, **options)

    def install(self, path) -> None:
        """Make path a program `k3s`, whose first argument is kubectl."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(self.argv)} "$@"\n')
        path.chmod(0o755)

    def answer(self, pod, text) -> None:
        self.state(answers={**self.state().get("answers", {}), pod: text})

    def add(self, *items) -> None:
        self.state(objects={**self.objects, **{key(item): item for item in items}})

    def add_pod(self, namespace, name, node, annotation=None, limits=None):
        annotations = {"k8s.v1.cni.cncf.io/networks": annotation} if annotation else {}
        made = pod(namespace, name, node, annotations=annotations)
        made["spec"]["containers"] = [{"name": "app", "resources": {"limits": limits or {}}}]
        made["status"].update(podIP="10.42.0.9", conditions=[{"type": "Ready", "status": "True"}])
        self.add(made)


def make(path, master="eth2", resource="rdma/rail0") -> Cluster:
    """Two Ready nodes with one rail each, its network, CoreDNS."""
    cluster = Cluster(path)
    ipam = {"type": "whereabouts", "range": "10.56.0.0/24"}
    config = {"cniVersion": "0.3.1", "name": "rail0", "type": "macvlan", "master": master, "ipam": ipam}
    served = {"k8s.v1.cni.cncf.io/resourceName": resource}
    cluster.add(
        *(
            ready_node(f"node{number}", f"10.0.0.{number}", f"10.42.{number - 1}.0/24", {"cpu": "2", resource: "1k"})
            for number in (1, 2)
        ),
        attachment("rail0", "default", config, served),
        api_object("v1", "Service", "kube-dns", "kube-system", {"labels": {"k8s-app": "kube-dns"}}, spec={}),
        *(api_object("v1", "Namespace", name) for name in ("default", "kube-system")),
        definition("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions"),
        definition("nv-ipam.nvidia.com", "IPPool", "ippools"),
        definition("nv-ipam.nvidia.com", "CIDRPool", "cidrpools"),
        definition("mellanox.com", "NicClusterPolicy", "nicclusterpolicies"),
        definition("mellanox.com", "NicNodePolicy", "nicnodepolicies"),
    )
    return cluster


def api_object(version, kind, name, namespace=None, metadata=None, **parts) -> dict:
    """An object of the API. parts: spec, status, data."""
    space = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **space, **(metadata or {})}, **parts}


def attachment(name, namespace, config, annotations=None) -> dict:
    more = {"annotations": annotations} if annotations else {}
    spec = {"config": json.dumps(config)}
    return api_object("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", name, namespace, more, spec=spec)


def definition(group, kind, plural) -> dict:
    spec = {"group": group, "names": {"kind": kind, "plural": plural}}
    return api_object("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{plural}.{group}", spec=spec)


def node(name, **metadata) -> dict:
    return api_object("v1", "Node", name, metadata=metadata, spec={})


def ready_node(name, address, pod_cidr, resources, **metadata) -> dict:
    made = node(name, **metadata)
    made["spec"]["podCIDRs"] = [pod_cidr]
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "capacity": resources, "allocatable": dict(resources)}
    made["status"] = {"addresses": [{"type": "InternalIP", "address": address}], **ready}
    return made


def pod(namespace, name, on, owner=None, **metadata) -> dict:
    """A pod that runs on a node. owner: kind of its controller."""
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "its-owner", "controller": True}]
    spec, status = {"nodeName": on, "containers": []}, {"phase": "Running"}
    return api_object("v1", "Pod", name, namespace, metadata, spec=spec, status=status)


def rail(index=0, kind="pci", layer="Ethernet") -> dict:
    netdev = f"eth{index + 2}" if layer == "Ethernet" else None
    place = {"index": index, "hca": f"mlx5_{index}", "port": 1, "netdev": netdev, "pci": f"0000:{index + 1}8:00.0"}
    devices = [f"uverbs{index}", f"umad{index}"]
    return {**place, "kind": kind, "link_layer": layer, "active_mtu": 4096, "char_devices": devices}


def hosts():
    """The same two nodes for the inventory, with their facts."""
    netdev = {"index": 5, "mtu": 9000, "type": "ether", "addresses": [], "default_route": False}
    cni = {"findings": [], "not_verified": [], "configurations": ["/etc/cni/net.d/00-multus.conf"]}
    return [
        {"host": f"node{number}", "rails": [rail()], "netdevs": {"eth2": netdev}, "routes": [], "files": {}, "cni": cni}
        for number in (1, 2)
    ]


def answer_of(text: str, pod: dict) -> str:
    """A composed answer with the address that the double gives to a pod, and its user."""
    number = int(pod["node"][-1]) - 1
    last = number * 16 + 2
    text = text.replace("10.56.0.2", f"10.56.0.{last}").replace("0a38:0002", f"0a38:{last:04x}")
    text = text.replace("10.42.0.9/24", f"10.42.{number}.9/24")
    # With the double's two nodes the peer is the other one's pod.
    text = text.replace("10.42.0.9  ", f"10.42.{1 - number}.9  ")
    return text.replace("@@ user\n1000", "@@ user\n0") if pod["kind"] in ("seed", "host") else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
