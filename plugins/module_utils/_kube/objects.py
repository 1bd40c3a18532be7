"""Wanted cluster objects compared with the live ones on the API server.

Pure: kubectl's output in, Plan out. An object is a dict from `kubectl get -o json`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from .._core.change import Change, Finding, Plan
from .kubectl import MANAGER, conditions
from .ownership import OWNER_LABEL, applied, labelled, manager_names, managers, ours

# Deleting these would delete foreign things: the node, a namespace's content, all objects of the kind.
_NEVER_PRUNED = frozenset({"Node", "Namespace", "CustomResourceDefinition"})
# Objects created by others to which we only add fields.
_SHARED = frozenset({"Node", "Namespace"})
# Set by the server or a controller: a difference here is not drift.
_FILLED_IN = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
_ABSENT = object()
_FIELDS_NAMED, _VALUE_LENGTH = 6, 160
_SYNC = (
    "run playbooks/render.yml, commit its changes, let Flux or Argo CD sync the Git folder, and run again; "
    "with -e cluster_objects_owner=collection this collection applies it instead"
)


class Key(NamedTuple):
    """The identity of an object. The version is left out: the server may return another one."""

    group: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, item: dict) -> Key:
        meta = item["metadata"]
        group = item["apiVersion"].rpartition("/")[0]
        return cls(group, item["kind"], meta.get("namespace") or "", meta["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


# --- wanted objects ---------------------------------------------------------------------------------------------------


def prepare(parts: list[dict]) -> tuple[list[dict], list[Finding]]:
    """The parts with `wanted`, their objects as sent, and their problems.

    A part is what one owner wants: objects, owner, prune_types, takeover_allowed, applied_by, wait.
    """
    findings: list[Finding] = []
    seen: set[Key] = set()
    prepared = [{**part, "wanted": _as_sent(part, findings)} for part in parts]
    for item in of_all(prepared):
        if Key.of(item) in seen:
            findings.append(_wrong(str(Key.of(item)), "each object once", "several of that name"))
        seen.add(Key.of(item))
    return prepared, findings


def _as_sent(part: dict, findings: list[Finding]) -> list[dict]:
    """A part's objects with lists flattened and the owner's label set."""
    wanted = []
    flat = [
        item
        for given in part["objects"]
        for item in (given.get("items") or [] if given.get("kind") == "List" else [given])
    ]
    for number, item in enumerate(flat, 1):
        meta = item.get("metadata") or {}
        given = {"apiVersion": item.get("apiVersion"), "kind": item.get("kind"), "metadata.name": meta.get("name")}
        lacking = [name for name, value in given.items() if not value]
        if lacking:
            where = f"object {number} ({item.get('kind') or 'no kind'} {meta.get('name') or ''})".replace(" )", ")")
            findings.append(_wrong(where, "apiVersion, kind and metadata.name", f"no {', no '.join(lacking)}"))
        elif item["kind"] == "Secret":
            findings.append(_wrong(str(Key.of(item)), "no values that results and diffs must not show", "a Secret"))
        else:
            wanted.append(copy.deepcopy(item))
    for item in wanted:
        if item["kind"] not in _SHARED:
            item["metadata"]["labels"] = {**(item["metadata"].get("labels") or {}), OWNER_LABEL: part["owner"]}
    return wanted


def of_all(parts: list[dict]) -> list[dict]:
    return [item for part in parts for item in part["wanted"]]


def ways(parts: list[dict]) -> dict[Key, tuple[bool, bool]]:
    """{object: (force, whether to revert changes by hand)}.

    force: ignore the fields of other managers: taken over, or from Git, where only values count.
    """
    return {
        Key.of(item): (
            part["applied_by"] == "gitops" or part["takeover_allowed"] is True,
            part["takeover_allowed"] is not False,
        )
        for part in parts
        for item in part["wanted"]
    }


def _wrong(obj: str, wanted: str, seen: str) -> Finding:
    return Finding(obj, wanted, seen, "correct the objects passed to gpufabric.rdma.cluster_objects")


# --- live objects -----------------------------------------------------------------------------------------------------


def by_key(wanted: list[dict], live: Iterable[dict]) -> dict[Key, dict]:
    """{key of the wanted object: the found one}; an object without a namespace may be found in the default one."""
    there = {Key.of(item): item for item in live}
    matched = {}
    for item in wanted:
        key = Key.of(item)
        match = there.get(key) or (None if key.namespace else there.get(key._replace(namespace="default")))
        if match:
            matched[key] = match
    return matched


def predictable(wanted: list[dict], live: dict[Key, dict], missing: set[tuple[str, str]]) -> list[dict]:
    """The objects that a server-side dry run can check: those whose namespace and kind already exist."""
    coming = {item["metadata"]["name"] for item in wanted if item["kind"] == "Namespace" and Key.of(item) not in live}
    return [
        item
        for item in wanted
        if (item["metadata"].get("namespace") or "") not in coming
        and (item["kind"], item["apiVersion"]) not in missing
        and (item["kind"] != "Node" or Key.of(item) in live)
    ]


def moved(state: dict) -> list[Key]:
    """The objects whose dry run started from a later version than the one read, so differences may be foreign."""
    return [
        key
        for key, predicted in state["predicted"].items()
        if _version(predicted) != _version(state["live"].get(key, predicted))
        and normalised(predicted) != normalised(state["live"][key])
    ]


def _version(item: dict) -> str | None:
    return item["metadata"].get("resourceVersion")


def conflict(text: str) -> str | None:
    """`argocd: .spec.replicas` from the server's rejection of fields owned by another manager."""
    if "Apply failed with" not in text:
        return None
    head = re.split(r"\n\s*Please review the fields", text)[0]
    managers = sorted(set(re.findall(r'conflicts? with "([^"]+)"', head)))
    fields = sorted(set(re.findall(r"(?:^- |: )(\.\S+)$", head, re.MULTILINE)))
    return f"{', '.join(managers) or 'another manager'}: {', '.join(fields) or 'fields of it'}"


def by_hand(clash: str) -> bool:
    """Whether only kubectl edit, patch, label and the like own the fields, so nothing will set them again."""
    managers = clash.partition(": ")[0].split(", ")
    return all(name.startswith("kubectl-") and name != "kubectl-client-side-apply" for name in managers)


# --- the decision -----------------------------------------------------------------------------------------------------


def plan_parts(state: dict, parts: list[dict]) -> Plan:
    """What to apply and prune for all parts, and the differences of those applied from Git.

    state: down (why no API server answers, or None); live, predicted: {Key: object}; errors: {Key: text};
    edited: {Key: managers and their fields} of objects changed by hand and predicted as reverted;
    owned: live objects with an owner's label.
    """
    if state["down"]:
        return _plan_unread(state["down"], parts)
    joined = Plan()
    for part in parts:
        decide = verify if part["applied_by"] == "gitops" else plan
        for name, rows in vars(decide(state, part)).items():
            getattr(joined, name).extend(rows)
    return joined


def _plan_unread(why: str, parts: list[dict]) -> Plan:
    made = Plan()
    here, from_git = (
        of_all([part for part in parts if (part["applied_by"] == "gitops") is git]) for git in (False, True)
    )
    for item in here:
        made.change(str(Key.of(item)), _first_action(item), "", _text(item))
    for items, what in ((here, "are listed as if none existed"), (from_git, "were not compared")):
        if items:
            made.not_verified.append(f"{len(items)} cluster objects {what}: no API server responds ({why})")
    return made


def plan(state: dict, part: dict) -> Plan:
    """What to apply and prune for one part. state: see plan_parts."""
    made = Plan()
    for item in part["wanted"]:
        _plan_object(made, state, item, part["takeover_allowed"])
    _plan_pruning(made, [item for item in state["owned"] if ours(item, part["owner"])], part["wanted"])
    return made


def _plan_object(made: Plan, state: dict, item: dict, takeover_allowed: bool | None) -> None:
    key = Key.of(item)
    live, error = state["live"].get(key), state["errors"].get(key)
    others = managers(live) if live and item["kind"] not in _SHARED and not applied(live) else None
    clash = conflict(error) if error else None
    if (others or clash) and takeover_allowed is not True:
        _refuse_takeover(made, key, clash or f"managed by {others}", takeover_allowed)
    elif error:
        address = f"{key.kind.lower()} {key.name}" + (f" -n {key.namespace}" if key.namespace else "")
        step = "correct that value; to change an immutable field, delete the object first (k3s kubectl delete "
        step += f"{address}), which stops its pods"
        made.finding(str(key), "an object that the API server accepts", " ".join(error.split())[:600], step)
    elif live is None:
        made.change(str(key), _first_action(item), "", _text(item))
    else:
        before, after = _text(live), _text(state["predicted"].get(key, live))
        if before != after:
            made.change(str(key), "apply", before, after)
            if key in state["edited"]:
                made.notes.append(f"{key} was changed by hand, which is reverted ({state['edited'][key]})")


def _first_action(item: dict) -> str:
    """The kubelet creates a node; applying to it waits for that."""
    return "apply" if item["kind"] == "Node" else "create"


def _refuse_takeover(made: Plan, key: Key, seen: str, takeover_allowed: bool | None) -> None:
    if takeover_allowed is False:
        made.not_applied.append(f"{key} is left as it is: {seen}")
        return
    step = "leave it to its manager (takeover allowed: false) or make that manager release it; takeover allowed: true "
    step += "takes the fields, which a GitOps controller that still lists the object takes back"
    made.finding(str(key), f"an object that {MANAGER} may manage", seen, step)


def _plan_pruning(made: Plan, owned: list[dict], wanted: list[dict]) -> None:
    kept = {Key.of(item) for item in wanted}
    kept |= {key._replace(namespace="default") for key in kept if not key.namespace}
    for item in sorted(owned, key=Key.of):
        key = Key.of(item)
        if key in kept or item["metadata"].get("ownerReferences"):
            continue
        if key.kind in _NEVER_PRUNED:
            made.notes.append(f"{key} is no longer wanted but stays: deleting it would delete foreign objects")
        else:
            made.change(str(key), "prune", _text(item), "")


# --- objects applied by GitOps --------------------------------------------------------------------------------------


def verify(state: dict, part: dict) -> Plan:
    """Whether the live objects match those from Git. Differences are findings, because nothing here may fix them.

    state: as for plan, with predictions that override other managers' fields, so that only values count.
    """
    made = plan(state, {**part, "takeover_allowed": True})
    # Only objects applied by the same tool are left over; a user's copy has only the label.
    there = by_key(part["wanted"], state["live"].values())
    tools = {name for item in there.values() for name in manager_names(item)}
    theirs = [item for item in state["owned"] if not applied(item) and labelled(item, part["owner"])]
    _plan_pruning(made, [item for item in theirs if tools & manager_names(item)], part["wanted"])
    made.findings = [_difference(change) for change in made.changes] + made.findings
    made.changes = []
    return made


def _difference(change: Change) -> Finding:
    if change.action == "prune":
        return Finding(change.object, "absent: no role creates it any longer", "present", _SYNC)
    if not change.before:
        return Finding(change.object, "present", "absent", _SYNC)
    fields = list(_fields(json.loads(change.before), json.loads(change.after)))
    more = f"; {len(fields) - _FIELDS_NAMED} more fields" if len(fields) > _FIELDS_NAMED else ""
    wanted, seen = ("; ".join(f"{row[0]} {row[side]}" for row in fields[:_FIELDS_NAMED]) + more for side in (1, 2))
    return Finding(change.object, wanted, seen, _SYNC)


def _fields(seen, wanted, path: str = "") -> Iterable[tuple[str, str, str]]:
    """(path, wanted, seen) of each field in which two objects differ; list items by index."""
    if seen == wanted:
        return
    if isinstance(seen, dict) and isinstance(wanted, dict):
        for name in sorted({*seen, *wanted}):
            yield from _fields(seen.get(name, _ABSENT), wanted.get(name, _ABSENT), f"{path}.{name}".lstrip("."))
    elif isinstance(seen, list) and isinstance(wanted, list) and len(seen) == len(wanted):
        for number, (there, other) in enumerate(zip(seen, wanted)):
            yield from _fields(there, other, f"{path}[{number}]")
    else:
        yield path, _value(wanted), _value(seen)


def _value(value) -> str:
    text = "absent" if value is _ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}…"


# --- comparing and showing --------------------------------------------------------------------------------------------


def normalised(item: dict) -> dict:
    meta = {name: value for name, value in (item.get("metadata") or {}).items() if name not in _FILLED_IN}
    return {**{name: value for name, value in item.items() if name != "status"}, "metadata": meta}


def _text(item: dict) -> str:
    return json.dumps(normalised(item), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- order and waiting ------------------------------------------------------------------------------------------------


def stages(items: list[dict]) -> list[list[dict]]:
    """The objects by the calls that apply them: namespaces and custom resource definitions before their users."""
    first = [item for item in items if item["kind"] in ("Namespace", "CustomResourceDefinition")]
    return [stage for stage in (first, [item for item in items if item not in first]) if stage]


def wait_arguments(item: dict) -> list[str]:
    """kubectl's arguments to wait for one condition."""
    place = ["--namespace", item["namespace"]] if item.get("namespace") else []
    limit = [f"--timeout={item['timeout_seconds']}s"]
    if item["until"] == "rollout":
        return ["rollout", "status", item["resource"], *place, *limit]
    target = item["resource"].split()
    if item.get("selector"):
        target += ["--selector", item["selector"]]
    elif "/" not in item["resource"] and len(target) == 1:
        target += ["--all"]
    return ["wait", f"--for={item['until']}", *target, *place, *limit]


def satisfied(item: dict, live: Iterable[dict]) -> bool:
    """Whether objects just read already meet the condition; kubectl is asked about kinds by another word."""
    named = {
        (thing["kind"].lower(), thing["metadata"].get("namespace") or "", thing["metadata"]["name"]): thing
        for thing in live
    }
    for resource in item["resource"].split():
        kind, _slash, name = resource.partition("/")
        thing = named.get((kind, item.get("namespace") or "", name))
        if thing is None or not _meets(thing, item["until"]):
            return False
    return True


# The fields of a status that have to equal the number of wanted pods.
_ROLLED_OUT = {
    "DaemonSet": ("updatedNumberScheduled", "numberAvailable"),
    "Deployment": ("updatedReplicas", "availableReplicas"),
}


def _meets(thing: dict, until: str) -> bool:
    status = thing.get("status") or {}
    if until != "rollout":
        return conditions(thing).get(until.partition("condition=")[2]) == "True"
    counts = _ROLLED_OUT.get(thing["kind"])
    if counts is None or status.get("observedGeneration") != thing["metadata"].get("generation"):
        return False
    pods = status.get("desiredNumberScheduled", 0)
    if thing["kind"] == "Deployment":
        pods = thing["spec"].get("replicas", 1)
    return pods > 0 and all(status.get(count, 0) == pods for count in counts)
