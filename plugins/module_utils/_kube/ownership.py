"""The owner of an object: one rule for everything that the collection deletes, empties or overwrites.

A copied object keeps its label, and a field manager stays when the label is gone; only both prove an object ours.
kubectl shows managers only with SHOW among its arguments.
"""

from __future__ import annotations

from .._core.change import Refused
from .kubectl import MANAGER, Kubectl

OWNER_LABEL = "rdma.gpufabric.io/owner"
TESTS = "verification"  # owner of the namespace of test pods
SHOW = "--show-managed-fields"


def manager_names(item: dict) -> set[str]:
    return {entry.get("manager", "?") for entry in item["metadata"].get("managedFields") or []}


def managers(item: dict) -> str:
    return ", ".join(sorted(manager_names(item))) or "no named manager"


def labelled(item: dict, owner: str) -> bool:
    return (item["metadata"].get("labels") or {}).get(OWNER_LABEL) == owner


def applied(item: dict) -> bool:
    entries = item["metadata"].get("managedFields") or []
    return any(entry.get("manager") == MANAGER and entry.get("operation", "Apply") == "Apply" for entry in entries)


def ours(item: dict, owner: str) -> bool:
    """Whether the object has our label with this owner, and we have applied it."""
    return applied(item) and labelled(item, owner)


def tests_namespace(kubectl: Kubectl, name: str) -> bool:
    """Whether the namespace of test pods exists; Refused if it is not ours to use, empty and delete."""
    # A list is printed even if empty, so half an answer does not look like an absence.
    namespaces = kubectl.items("namespaces", f"--field-selector=metadata.name={name}", SHOW)
    for item in namespaces:
        if not ours(item, TESTS):
            label = (item["metadata"].get("labels") or {}).get(OWNER_LABEL)
            raise Refused.because(
                f"namespace {name}",
                f"one that does not exist, or that the tests created: with label {OWNER_LABEL}={TESTS}, applied by "
                f"{MANAGER}",
                f"one with {f'label {OWNER_LABEL}={label}' if label else 'no such label'}, managed by {managers(item)}",
                "set verification_namespace to an unused name; all pods in it and the namespace itself are deleted",
            )
    return bool(namespaces)
