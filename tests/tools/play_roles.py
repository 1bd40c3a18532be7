"""The roles that a play of ours applies."""

from __future__ import annotations


def applied(play):
    """Names in their order; of some the nodes come first and the objects of all later."""
    found = [role["role"] for role in play.get("roles", [])]
    for task in [*play.get("pre_tasks", []), *play.get("tasks", [])]:
        named = task.get("ansible.builtin.import_role") or task.get("ansible.builtin.include_role")
        if named and named.get("tasks_from", "main") in ("main", "nodes"):
            found += task.get("loop") or [named["name"]]
    # The role discovery plans for the others.
    return [name for name in (role.rpartition(".")[2] for role in found) if name != "discovery"]
