# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_objects
short_description: Apply sets of cluster objects through kubectl on a server node
version_added: 0.1.0
description:
  - Applies the objects of one owner server-side under the field manager C(gpufabric.rdma), and deletes objects of the
    same owner that are no longer wanted.
  - Runs where O(kubectl) runs, so a controller only needs SSH to the first server. No Python package is needed there.
  - A server-side dry run shows what would change; an object that would not change is not sent again.
  - Fields owned by another manager (Argo CD, Flux, Helm, a user) are reported and never taken without
    O(takeover_allowed).
  - In check mode without an API server every object is listed as to be created.
  - With objects from Git (O(applied_by=gitops)) it changes nothing and fails with every difference.
  - Several owners' objects go in one call as O(parts), and cost as many calls of kubectl as those of one owner.
  - With O(tokens) it creates tokens of service accounts instead. Their task needs C(no_log).
  - Nodes, namespaces and custom resource definitions are never deleted. Nodes and namespaces get no owner label,
    because others create them too.
extends_documentation_fragment: [gpufabric.rdma.changing]
options:
  objects:
    description:
      - The objects, as in a manifest. An item of kind C(List) is flattened.
      - Namespaces and custom resource definitions are applied first, and the module waits for the definitions;
        otherwise the order is kept.
      - An object of kind C(Secret) is refused, because results and diffs would show its values.
      - Required together with O(owner), unless O(parts) is given.
    type: list
    elements: dict
  owner:
    description: Value of the label C(rdma.gpufabric.io/owner) on each object. Objects with this label that are no
      longer in O(objects) are deleted.
    type: str
  prune_types:
    description:
      - Resource types to look for such leftovers in, besides C(configmaps), C(serviceaccounts),
        C(services), C(daemonsets), C(deployments), C(roles), C(rolebindings), C(clusterroles) and
        C(clusterrolebindings).
      - A type that the server does not have is skipped.
    type: list
    elements: str
    default: []
  takeover_allowed:
    description:
      - What to do with an object that exists but was never applied by this module, or with fields owned by another
        manager.
      - If not set, the module fails before any change and reports manager and fields; V(true) takes them over; V(false)
        leaves the object unchanged and reports it.
      - Fields changed by hand (C(kubectl edit), C(patch), C(label) and the like) are reverted unless this is
        V(false), because nothing would set them again. C(kubectl apply) is declarative, so it counts as a manager.
    type: bool
  applied_by:
    description:
      - V(collection) applies the objects.
      - V(gitops) leaves that to Flux, Argo CD or another GitOps tool. The live objects are compared with a server-side
        dry run, and each one that differs, is missing or is left over becomes a finding. Only values matter then, not
        field managers.
    type: str
    choices: [collection, gitops]
    default: collection
  render:
    description: Only return the objects as they would be sent, in RV(rendered), and for O(parts) of another task, in
      RV(part). Done on the controller; no host is contacted.
    type: bool
    default: false
  bundle:
    description: The bundle folder (C(k3s_bundle_dir)), or empty. Each image of O(objects) that it does not contain gets
      the digest of lock/artifacts.yml; an image that is not in the lock stays unchanged.
    type: path
  folder:
    description:
      - Only write O(rendered) into this folder of the controller, one directory per role, one YAML file per object and
        a C(kustomization.yaml) in each directory, so that C(kubectl apply -k), Flux or Argo CD can apply them.
      - Each file starts with a header line. Files with it that are no longer wanted are removed; files without it stay,
        and such a file at a path to be written stops the run before anything is written. Git's own data is left alone.
    type: path
  rendered: {description: 'For O(folder), RV(rendered) of each role. The roles are listed in this order.', type: dict}
  tokens:
    description: Instead of O(objects), service accounts whose tokens RV(tokens) returns. An account without a token
      gets one, which is valid as long as the account exists.
    type: dict
    suboptions:
      namespace: {description: Their namespace., type: str, required: true}
      names: {description: Their names., type: list, elements: str, required: true}
  kubectl:
    description:
      - The command as a list of words. With a kubeconfig, use V([kubectl, --kubeconfig, FILE]) on the controller.
    type: list
    elements: str
    default: [k3s, kubectl]
  api_timeout_seconds:
    description: How long to wait for an API server that does not respond, counted again for each outage, and for
      O(tokens). Check mode does not wait.
    type: int
    default: 120
  wait:
    description: What to wait for afterwards, even when nothing was changed. A condition that is already met costs no
      further call.
    type: list
    elements: dict
    default: []
    suboptions: &wait
      resource:
        description: Type and name, such as V(daemonset/kube-flannel-ds); a type, such as V(nodes), means all of them.
          Several names are separated by spaces.
        type: str
        required: true
      namespace: {description: 'The namespace, for resources that have one.', type: str}
      selector: {description: Labels that select among the resources of a type., type: str}
      until:
        description: V(rollout), or an argument of C(kubectl wait --for), such as V(condition=Ready) or V(create).
        type: str
        default: rollout
      timeout_seconds: {description: How long it may take., type: int, default: 300}
      first:
        description: Whether to wait for it before anything is read and applied, such as nodes to be labelled.
        type: bool
        default: false
  wait_later:
    description: Whether to wait only for what comes O(wait[].first), and to leave the rest to a later task. RV(pending)
      lists the rest.
    type: bool
    default: false
  parts:
    description:
      - Instead of O(objects), several sets of them. Each is the RV(part) that a task with O(render) has returned, and
        replaces that task.
      - All problems of all parts are found before the first change.
    type: list
    elements: dict
    suboptions:
      objects: {description: As O(objects)., type: list, elements: dict, required: true}
      owner: {description: As O(owner)., type: str, required: true}
      prune_types: {description: As O(prune_types)., type: list, elements: str, default: []}
      takeover_allowed: {description: As O(takeover_allowed)., type: bool}
      applied_by: {description: As O(applied_by)., type: str, default: collection, choices: [collection, gitops]}
      wait:
        description: As O(wait).
        type: list
        elements: dict
        default: []
        suboptions: *wait
"""

EXAMPLES = r"""
- name: Apply the pod network
  gpufabric.rdma.cluster_objects:
    objects: "{{ lookup('ansible.builtin.template', 'flannel.yml.j2') | from_yaml_all }}"
    owner: flannel
    wait:
      - resource: daemonset/kube-flannel-ds
        namespace: kube-flannel
        timeout_seconds: 300
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true

- name: Apply what two tasks with render have returned
  gpufabric.rdma.cluster_objects:
    parts: "{{ [flannel['part'], multus['part']] }}"
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true

- name: Wait for nodes without applying anything
  gpufabric.rdma.cluster_objects:
    objects: []
    owner: node-ready
    wait:
      - resource: nodes
        until: condition=Ready

- name: Create the tokens of two nodes
  gpufabric.rdma.cluster_objects:
    tokens:
      namespace: gpufabric-rdma
      names: [node-ready-node1, node-ready-node2]
  no_log: true
  register: created
"""

RETURN = r"""
changes:
  description: In each C(action) is C(create), C(apply) or C(prune); the texts are JSON.
  returned: always
  type: list
  elements: dict
waited:
  description: What the module waited for and how long it took.
  returned: success
  type: list
  elements: dict
  contains:
    resource: {description: The resource., type: str}
    until: {description: The condition., type: str}
    seconds: {description: 'How long it took, 0 when it was already met.', type: float}
rendered:
  description: The objects in the order in which they are applied.
  returned: when O(render) is true
  type: list
  elements: dict
part:
  description: The options of this task, for O(parts) of another one.
  returned: when O(render) is true
  type: dict
pending:
  description: Items of O(wait) that are not met yet, for a later task. Empty without O(wait_later).
  returned: success, when O(render) is false
  type: list
  elements: dict
tokens: {description: Token of each service account; empty in check mode., returned: with O(tokens), type: dict}
kubectl_calls: {description: How many times kubectl was run., returned: success, type: int}
down:
  description: Why no API server responded in check mode, so that RV(changes) lists all objects; null when one did.
  returned: success
  type: str
"""

import json
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, Refused, converge, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import objects as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import tokens
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import (
    Kubectl,
    KubectlError,
    Unreachable,
    as_list,
    last_words,
    parse_items,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.ownership import OWNER_LABEL, SHOW

PRUNE_TYPES = (
    "configmaps", "serviceaccounts", "services", "daemonsets.apps", "deployments.apps",
    "roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
)  # fmt: skip
# Time limit of one call: many objects on a busy server.
_CALL_SECONDS = 300
_READS = 3
# What kubectl reports for a kind whose definition is not installed yet.
_MISSING_KIND = re.compile(r'no matches for kind "([^"]+)" in version "([^"]+)"')
_STAYS = "fix what the message reports and run again; objects already applied stay and are not applied twice"


class Cluster:
    """The objects behind kubectl as three verbs: read, apply, wait."""

    def __init__(self, kubectl: Kubectl):
        self._kubectl = kubectl

    def read(self, parts: list) -> dict:
        """parts: see planner.prepare. Read again where others changed an object between the read and the dry run."""
        self._kubectl.await_server()
        for _attempt in range(_READS):
            state = self._compared(parts)
            if not planner.moved(state):
                break
        return {**state, "owned": self._owned(parts)}

    def _compared(self, parts: list) -> dict:
        wanted = planner.of_all(parts)
        live, missing = self._live(wanted)
        known = planner.by_key(wanted, live)
        asked = planner.predictable(wanted, known, missing)
        state: dict = {"down": None, "live": known, "predicted": {}, "errors": {}, "edited": {}}
        ways = planner.ways(parts)
        for way in sorted({ways[planner.Key.of(item)] for item in asked}):
            self._predict(state, [item for item in asked if ways[planner.Key.of(item)] == way], *way)
        return state

    def _live(self, wanted: list) -> tuple[list, set]:
        """The live objects, and the kinds whose definition is not installed yet."""
        missing: set = set()
        while True:
            asked = [item for item in wanted if (item["kind"], item["apiVersion"]) not in missing]
            if not asked:
                return [], missing
            try:
                return self._kubectl.existing(asked, SHOW), missing
            except Unreachable:
                raise
            except KubectlError as refused:
                absent = {*_MISSING_KIND.findall(refused.reason)} - missing
                if not absent:
                    raise
            missing |= absent

    def _predict(self, state: dict, asked: list, force: bool, revert_edits: bool) -> None:
        """Each object as the server would store it. One call; if it is rejected, one for each half.

        revert_edits: whether to predict, and later apply, the wanted values of fields changed by hand.
        """
        code, out, error = self._dry_run(asked, force)
        if code and len(asked) > 1:
            middle = len(asked) // 2
            self._predict(state, asked[:middle], force, revert_edits)
            self._predict(state, asked[middle:], force, revert_edits)
            return
        clash = planner.conflict(error) if code else None
        if clash and revert_edits and planner.by_hand(clash):
            state["edited"][planner.Key.of(asked[0])] = clash
            code, out, error = self._dry_run(asked, True)
        if code:
            state["errors"][planner.Key.of(asked[0])] = error
        else:
            state["predicted"].update(planner.by_key(asked, parse_items(out)))

    def _dry_run(self, objects: list, force: bool) -> tuple[int, str, str]:
        return self._kubectl.apply(objects, "--output=json", "--dry-run=server", *["--force-conflicts"] * force)

    def _owned(self, parts: list) -> list:
        types = dict.fromkeys([*PRUNE_TYPES, *(name for part in parts for name in part["prune_types"])])
        selector = f"--selector={OWNER_LABEL} in ({','.join(part['owner'] for part in parts)})"
        return self._kubectl.items_of(types, "--all-namespaces", selector, SHOW)[0]

    def apply(self, changes: list, parts: list, edited: dict):
        """edited: objects by key whose hand-edited fields are reverted."""
        overridden = {key for key, (force, _revert) in planner.ways(parts).items() if force or key in edited}
        sent = {change.object for change in changes if change.action != "prune"}
        for stage in planner.stages([item for item in planner.of_all(parts) if str(planner.Key.of(item)) in sent]):
            names = {str(planner.Key.of(item)) for item in stage}
            for force in (False, True):
                some = [item for item in stage if (planner.Key.of(item) in overridden) is force]
                if not some:
                    continue
                code, _out, error = self._kubectl.apply(some, "--output=json", *["--force-conflicts"] * force)
                if code:
                    raise KubectlError(f"applying {', '.join(sorted(names))}", error, _STAYS)
            yield from (change for change in changes if change.object in names and change.action != "prune")
            kinds = [item for item in stage if item["kind"] == "CustomResourceDefinition"]
            if kinds:
                names = [f"crd/{item['metadata']['name']}" for item in kinds]
                words = ("wait", "--for=condition=Established", *names, "--timeout=60s")
                self._kubectl.output(f"waiting for {', '.join(names)}", *words, next_step=_STAYS)
        pruned = [change for change in changes if change.action == "prune"]
        if pruned:
            leftovers = [_identity(change.before) for change in pruned]
            # kubectl's own timeout names the object blocked by a finalizer.
            words = ("delete", "--filename=-", "--ignore-not-found", f"--timeout={_CALL_SECONDS - 30}s")
            text = as_list(leftovers)
            self._kubectl.output("deleting what is no longer wanted", *words, text=text, next_step=_STAYS)
            yield from pruned

    def wait(self, items: list, live: list) -> list[dict]:
        done = []
        for item in items:
            start = time.monotonic()
            if not planner.satisfied(item, live):
                limit = item["timeout_seconds"] + _CALL_SECONDS
                code, out, error = self._kubectl.run_retrying(*planner.wait_arguments(item), limit=limit)
                if code:
                    raise Refused([_not_reached(item, error or out)])
            done.append(
                {"resource": item["resource"], "until": item["until"], "seconds": round(time.monotonic() - start, 1)}
            )
        return done


def _identity(text: str) -> dict:
    """Enough of an object to delete it; the text is the planner's own."""
    item = json.loads(text)
    meta = {name: item["metadata"][name] for name in ("name", "namespace") if item["metadata"].get(name)}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": meta}


def _not_reached(item: dict, text: str):
    place = f" -n {item['namespace']}" if item.get("namespace") else ""
    target = item["resource"] + (f" -l {item['selector']}" if item.get("selector") else "")
    wanted, seen = f"{item['until']} within {item['timeout_seconds']} s", " ".join(text.split())[-300:]
    step = f"see k3s kubectl{place} describe {target.replace('/', ' ')}, fix what it reports and run again"
    return planner.Finding(f"{item['resource']}{place}", wanted, seen or "no reason given", step)


_STRINGS: dict = {"type": "list", "elements": "str", "default": []}
_OF_OWNER: dict = {
    "prune_types": _STRINGS,
    "takeover_allowed": {"type": "bool"},
    "applied_by": {"type": "str", "choices": ["collection", "gitops"], "default": "collection"},
    "wait": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "resource": {"type": "str", "required": True},
            "namespace": {"type": "str"},
            "selector": {"type": "str"},
            "until": {"type": "str", "default": "rollout"},
            "timeout_seconds": {"type": "int", "default": 300},
            "first": {"type": "bool", "default": False},
        },
    },
}
ARGUMENTS = {
    "objects": {"type": "list", "elements": "dict"},
    "owner": {"type": "str"},
    **_OF_OWNER,
    "parts": {
        "type": "list",
        "elements": "dict",
        "options": {
            "objects": {"type": "list", "elements": "dict", "required": True},
            "owner": {"type": "str", "required": True},
            **_OF_OWNER,
        },
    },
    "tokens": {
        "type": "dict",
        "no_log": False,
        "options": {
            "namespace": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
        },
    },
    "render": {"type": "bool", "default": False},
    "bundle": {"type": "path"},
    "folder": {"type": "path"},
    "rendered": {"type": "dict"},
    "wait_later": {"type": "bool", "default": False},
    "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
    "api_timeout_seconds": {"type": "int", "default": 120},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("objects", "parts", "folder", "tokens")],
        required_one_of=[("objects", "parts", "folder", "tokens")],
        required_together=[("objects", "owner"), ("folder", "rendered")],
        supports_check_mode=True,
    )
    given = module.params
    if given["render"] or given["folder"] or given["bundle"]:
        module.fail_json(msg="render, folder and bundle are for the action plugin of this module, which did not run")
    patience = 0 if module.check_mode else given["api_timeout_seconds"]
    kubectl = Kubectl(given["kubectl"], limit=_CALL_SECONDS, patience=patience)
    if given["tokens"]:
        tokens_of(module, kubectl, **given["tokens"])
    with reported(module):
        parts, findings = planner.prepare(given["parts"] or [given])
        if findings:
            raise Refused(findings)
        carry_out(module, kubectl, parts)


def tokens_of(module, kubectl: Kubectl, namespace: str, names: list) -> None:
    if module.check_mode:
        module.exit_json(changed=bool(names), tokens={})
    with reported(module):
        made, changed = tokens.make(namespace, names, kubectl, module.params["api_timeout_seconds"])
        module.exit_json(changed=changed, tokens=made)


def carry_out(module, kubectl: Kubectl, parts: list) -> None:
    cluster, state, waited = Cluster(kubectl), {}, []
    wait = [item for part in parts for item in part["wait"]]

    def read() -> dict:
        state.clear()
        try:
            state.update(cluster.read(parts))
        except Unreachable as silence:
            if not module.check_mode:
                raise
            state["down"] = last_words(silence.reason)
        return state

    def more(decided: Plan, changes: list) -> dict:
        pending: list = []
        last = [item for item in wait if not item["first"]]
        if module.check_mode:
            if changes and wait:
                names = ", ".join(f"{item['resource']} ({item['until']})" for item in wait)
                decided.not_verified.append(f"check mode does not wait for: {names}")
        elif module.params["wait_later"]:
            pending += [item for item in last if not planner.satisfied(item, state["live"].values())]
        else:
            waited.extend(cluster.wait(last, list(state["live"].values())))
        return {"waited": waited, "pending": pending, "kubectl_calls": kubectl.calls, "down": state.get("down")}

    if not module.check_mode:
        waited += cluster.wait([item for item in wait if item["first"]], [])
    converge(
        module,
        read=read,
        plan=lambda state: planner.plan_parts(state, parts),
        apply=lambda changes: cluster.apply(changes, parts, state["edited"]),
        more=more,
    )


if __name__ == "__main__":
    main()
