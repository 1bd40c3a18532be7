"""The k3s state of a node, with what its cluster and its neighbours say. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

from .._core.change import Refused
from .._k3s import address
from .._k3s import state as k3s_state
from ..hca import Tree
from . import ownership, quorum
from .kubectl import OF_K3S, Kubectl, KubectlError

PATIENCE = 20  # seconds
_UUIDS = '{range .items[*]}{.metadata.name} {.status.nodeInfo.systemUUID}{"\\n"}{end}'


def state(
    run: Callable,
    root: str,
    tests_namespace: Optional[str],
    shared_address: Optional[str],
    kubectl: Sequence[str] = OF_K3S,
) -> dict:
    """What node_facts returns as k3s. run: as AnsibleModule.run_command. Raises OSError."""
    node = k3s_state.node(root, run)
    if shared_address and not root.rstrip("/"):
        node["shared"] = address.shared(shared_address, run)
    serving = node["services"]["k3s"]["active"]
    client = Kubectl(kubectl, limit=PATIENCE)
    node["etcd"] = quorum.etcd(Tree(root))
    node["registered"] = registered(client) if serving else {}
    node["namespaces"] = refused_namespaces(client, tests_namespace) if tests_namespace and serving else []
    return node


def registered(kubectl: Kubectl) -> dict[str, str]:
    """{name of a Node: system UUID of its machine}; nothing if the API server is silent."""
    try:
        code, out, _error = kubectl.run_retrying("get", "nodes", f"--output=jsonpath={_UUIDS}")
    except KubectlError:
        return {}
    rows = [line.partition(" ") for line in out.splitlines()] if code == 0 else []
    return {name: uuid for name, _space, uuid in rows}


def refused_namespaces(kubectl: Kubectl, name: str) -> list[dict]:
    """Why test pods cannot use the namespace; nothing if the API server is silent, for they ask again themselves."""
    try:
        ownership.tests_namespace(kubectl, name)
    except KubectlError:
        return []
    except Refused as refused:
        return [finding._asdict() for finding in refused.findings]
    return []
