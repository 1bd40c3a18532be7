"""Which DaemonSets to delete before the device plugin takes over.

PRIVATE to the collection. Pure: what the cluster has and options in, Plan out.
"""

from __future__ import annotations

from .._core.change import Plan


def plan(found: list[dict], replaced: str, allowed: bool | None) -> Plan:
    """found: see _device_plugin.objects.plugins. replaced: namespace/name of the DaemonSet that will be applied and
    so replaces one with this name; empty when none is wanted.
    """
    made = Plan()
    for item in found:
        if replaced == f"{item['namespace']}/{item['name']}" and not item["owner"]:
            continue
        name = f"{item['namespace']}/{item['name']}"
        obj = f"DaemonSet {name}"
        if item["owner"]:
            made.finding(
                obj,
                "no other RDMA device plugin",
                f"image {item['image']}, managed by {item['owner']}",
                f"remove the plugin from {item['owner']}, which would recreate the DaemonSet, and run again",
            )
        elif item["ours"] or allowed:
            made.change(obj, "delete", f"image {item['image']}", "")
        elif allowed is None:
            made.finding(
                obj,
                "no other RDMA device plugin",
                f"image {item['image']}",
                "set device_plugin_migrate_allowed: true to delete it first (running pods keep their devices, new ones "
                "wait a few seconds), or false to leave it",
            )
        else:
            made.not_applied.append(f"{obj} (image {item['image']}) stays: device_plugin_migrate_allowed is false")
    return made
