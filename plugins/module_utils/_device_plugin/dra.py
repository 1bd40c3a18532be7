"""Shared RDMA over DRA as objects of a cluster: classes of devices, and what a node's plugin may do. Pure."""

from __future__ import annotations

from . import config
from .objects import ACCOUNT, LABELS

DRIVER = "rdma.gpufabric.io"
CLASS = f"rail.{DRIVER}"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
# One account per node has this prefix before the node's name.
ACCOUNT_OF_NODE = f"{ACCOUNT}-"
SLICES = f"slices.{DRIVER}"
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
# The claim in a token that was issued for a pod; a token in a Secret has none.
_NODE_CLAIM = "authentication.kubernetes.io/node-name"
# Conditions for each slice that a plugin writes.
_RULES = (
    {
        "expression": "variables.node != ''",
        "message": "the plugin's token has no node: it must be that of a pod on a node",
    },
    {
        "expression": "variables.of == variables.node",
        "messageExpression": "'the plugin of node ' + variables.node + ' may not write slices of node \"'"
        " + variables.of + '\"'",
    },
    {
        "expression": f"variables.slice.driver == '{DRIVER}'",
        "messageExpression": "'the RDMA plugin may not write slices of driver ' + variables.slice.driver",
    },
    # A higher generation in another node's pool would make the scheduler ignore that node's slices.
    {
        "expression": "variables.slice.pool.name == variables.node"
        " || variables.slice.pool.name.startsWith(variables.node + '/')",
        "messageExpression": "'the plugin of node ' + variables.node + ' may not write pool '"
        " + variables.slice.pool.name",
    },
)


def class_of(index: int) -> str:
    return f"rail-{index}.{DRIVER}"


def served(given, api: str, dra_rails: list[int], facts: dict) -> tuple[list[dict], list[dict]]:
    """(entries for the device plugin, entries for DRA) of a node's configList.

    given, api, dra_rails: device_plugin_resources, device_plugin_api and device_plugin_dra_rails. facts: of the node.
    """
    entries = config.entries(given, facts.get("rails"), api, dra_rails)
    over_dra = [entry for entry in entries if config.api_of(entry, api) == config.DRA]
    return [entry for entry in entries if entry not in over_dra], over_dra


def rails(over_dra: list[dict], facts: dict) -> dict[int, str | None]:
    """{rail: its one extended resource, or None} of the rails that entries serve over DRA."""
    matched = [(entry, set(config.matching(entry, facts))) for entry in over_dra]
    found: dict[int, str | None] = {}
    for rail in facts.get("rails") or []:
        mine = [entry for entry, names in matched if rail["hca"] in names]
        if mine:
            # A pool of several HCAs is not one rail, and a name belongs to one class.
            alone = [entry for entry, names in matched if names == {rail["hca"]}]
            found[rail["index"]] = config.full_name(alone[0]) if len(alone) == 1 and mine == alone else None
    return found


def objects(nodes: list[dict], settings: dict) -> list[dict]:
    """Classes, accounts, rights and the policy.

    nodes: name (in the cluster) and rails (see rails) of each node that serves over DRA. settings: in_pods (one account
    for the DaemonSet; otherwise one per node), namespace (of the accounts), extended_resources (whether classes carry
    the names of extended resources). Without nodes there are none.
    """
    if not nodes:
        return []
    space = settings["namespace"]
    accounts = [ACCOUNT] if settings["in_pods"] else sorted(ACCOUNT_OF_NODE + node["name"] for node in nodes)
    made = [] if settings["in_pods"] else [_namespace(space)]
    made += [_object("v1", "ServiceAccount", name, space, automountServiceAccountToken=False) for name in accounts]
    made += [_role(), _binding(accounts, space), *_policy(settings["in_pods"], space)]
    return made + classes(nodes, settings["extended_resources"])


def classes(nodes: list[dict], extended_resources: bool) -> list[dict]:
    """One DeviceClass for all rails, and one for each."""
    device = f"device.driver == '{DRIVER}'"
    rail = f"device.attributes['{DRIVER}']"
    made = [_class(CLASS, f"{device} && 'rail' in {rail}")]
    for index in sorted({index for node in nodes for index in node["rails"]}):
        names = {node["rails"][index] for node in nodes if index in node["rails"]}
        # If nodes disagree on the name, pods of one rail would get the resource of another.
        name = names.pop() if extended_resources and len(names) == 1 else None
        made.append(_class(class_of(index), f"{device} && 'rail' in {rail} && {rail}.rail == {index}", name))
    return made


def _class(name: str, expression: str, resource: str | None = None) -> dict:
    spec: dict = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    return _object("resource.k8s.io/v1", "DeviceClass", name, spec=spec)


def _namespace(name: str) -> dict:
    # As written by the role node_ready.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _object(version: str, kind: str, name: str, namespace: str = "", **fields) -> dict:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": dict(LABELS)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _role() -> dict:
    """RBAC cannot name slices that do not exist yet: the policy restricts each plugin to its own node's."""
    slices = ["get", "list", "watch", "create", "update", "patch", "delete"]
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": slices},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        # For the owner reference of its slices: they go with the node.
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    return _object(f"{_RBAC}/v1", "ClusterRole", DRIVER, rules=rules)


def _binding(accounts: list[str], namespace: str) -> dict:
    return _object(
        f"{_RBAC}/v1",
        "ClusterRoleBinding",
        DRIVER,
        roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": DRIVER},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in accounts],
    )


def _policy(in_pods: bool, namespace: str) -> list[dict]:
    """A plugin writes slices of this driver, for its own node, in that node's pool. Other users are not affected."""
    user, before = "request.userInfo.username", f"system:serviceaccount:{namespace}:"
    if in_pods:
        who = f"{user} == '{before}{ACCOUNT}'"
        claim = f"'{_NODE_CLAIM}'"
        # A token without a pod has no such claim, and a user without any claims has no `extra`.
        node = f"request.userInfo.?extra[?{claim}][?0].orValue('')"
    else:
        prefix = before + ACCOUNT_OF_NODE
        who = f"{user}.startsWith('{prefix}')"
        node = f"{user}.substring({len(prefix)})"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "apiVersions": ["*"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": ["resourceslices"],
                }
            ]
        },
        "matchConditions": [{"name": "is-a-plugin", "expression": who}],
        "variables": [
            {"name": "node", "expression": node},
            {"name": "slice", "expression": "request.operation == 'DELETE' ? oldObject.spec : object.spec"},
            {"name": "of", "expression": "has(variables.slice.nodeName) ? variables.slice.nodeName : ''"},
        ],
        "validations": [{**rule, "reason": "Forbidden"} for rule in _RULES],
    }
    bound = {"policyName": SLICES, "validationActions": ["Deny"]}
    return [
        _object(f"{_ADMISSION}/v1", "ValidatingAdmissionPolicy", SLICES, spec=spec),
        _object(f"{_ADMISSION}/v1", "ValidatingAdmissionPolicyBinding", SLICES, spec=bound),
    ]
