"""DaemonSets of other RDMA device plugins, which are removed before the collection's takes over."""

from __future__ import annotations

from .._core.change import Change, Plan
from .._device_plugin.objects import OWNER
from . import ownership
from .kubectl import Kubectl

_STEP = "check that the API server responds there, or set another host in device_plugin_server, and run again"


class DaemonSets:
    """The cluster's DaemonSets that are a device plugin."""

    def __init__(self, kubectl: list[str], timeout: int):
        self._kubectl, self._timeout = Kubectl(kubectl, next_step=_STEP), timeout

    def read(self) -> list[dict]:
        return plugins(self._kubectl.items("daemonsets", "--all-namespaces", ownership.SHOW))

    def apply(self, changes: list[Change]):
        for change in changes:
            namespace, _slash, name = change.object.split()[1].partition("/")
            # The call returns once the pods are gone: stop theirs before ours starts.
            words = ("delete", "daemonset", name, f"--namespace={namespace}", "--cascade=foreground", "--wait")
            limits = ("--ignore-not-found", f"--timeout={self._timeout}s")
            wanted = f"{change.object} deleted within {self._timeout} s"
            self._kubectl.output(wanted, *words, *limits, limit=self._timeout + 60)
            yield change


def plugins(daemon_sets: list[dict]) -> list[dict]:
    """The device plugins among the DaemonSets of a cluster.

    Each with namespace, name, image, ours (whether the collection applied it), owner (the object that would bring it
    back, or "").
    """
    found = []
    for item in daemon_sets:
        meta, containers = item["metadata"], item["spec"]["template"]["spec"]["containers"]
        image = next((container.get("image", "") for container in containers if _is_plugin(container)), None)
        if image is not None:
            known = {"namespace": meta["namespace"], "name": meta["name"], "image": image}
            owner = ", ".join(f"{owner['kind']} {owner['name']}" for owner in meta.get("ownerReferences", []))
            found.append({**known, "ours": ownership.ours(item, OWNER), "owner": owner})
    return found


def _is_plugin(container: dict) -> bool:
    """The Go plugin's image has the path as its entry point; its manifests need not contain it."""
    words = [*container.get("command", []), *container.get("args", []), container.get("image", "")]
    return any("k8s-rdma-shared-d" in word for word in words)


def plan(seen: list[dict], options: dict) -> Plan:
    """Which DaemonSets to delete before the device plugin takes over. seen: see plugins. options: of device_plugin."""
    made, replaced, allowed = Plan(), options["replaced"], options["migrate_allowed"]
    for item in seen:
        name = f"{item['namespace']}/{item['name']}"
        if replaced == name and not item["owner"]:
            continue
        obj = f"DaemonSet {name}"
        wanted, image = "no other RDMA device plugin", f"image {item['image']}"
        if item["owner"]:
            step = f"remove the plugin from {item['owner']}, which would recreate the DaemonSet, and run again"
            made.finding(obj, wanted, f"{image}, managed by {item['owner']}", step)
        elif item["ours"] or allowed:
            made.change(obj, "delete", image, "")
        elif allowed is None:
            step = "set device_plugin_migrate_allowed: true to delete it first (running pods keep their devices, new "
            step += "ones wait a few seconds), or false to leave it"
            made.finding(obj, wanted, image, step)
        else:
            made.not_applied.append(f"{obj} ({image}) stays: device_plugin_migrate_allowed is false")
    return made
