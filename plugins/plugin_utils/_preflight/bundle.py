"""What a bundle lacks for the roles, found before any node is touched.

Reads the folder on the controller. A node has the form of _preflight.k3s, with `needs`: plugins (names of CNI plugins),
images (references that the roles deploy), pulled (whether nodes may pull an image that is not in the bundle),
wheels (the folder of the device plugin's libraries, or nothing if pip takes them from its index).
"""

import json
import os
from collections.abc import Sequence

from ...module_utils._bundle import lock as bundle_lock
from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding, at
from ...module_utils._device_plugin import wheels as wheels_of
from .._bundle import cni
from .._bundle import folder as bundle_folder

_CONTROLLER = "the controller"
SYSTEM_IMAGES = "k3s-airgap-images"
_MACHINES = {architecture: machine for machine, architecture in cni.ARCHITECTURES.items()}


def read(folder: str | None) -> tuple[dict | None, list[dict]]:
    """The bundle's description and its problems; None if there is no bundle to use."""
    if not folder:
        return None, []
    bundle, unread = bundle_folder.read(folder)
    if unread:
        path = os.path.join(folder, bundle_folder.DESCRIPTION)
        step = "set k3s_bundle_dir to a folder that playbooks/bundle.yml has filled"
        return None, at(_CONTROLLER, [Finding(path, "the bundle's description", unread, step)])
    wrong = at(_CONTROLLER, bundle_folder.findings(bundle, folder))
    return (None if wrong else bundle), wrong


def contradiction(typed: dict) -> list[Finding]:
    """Both a folder with the files and nodes that fetch them."""
    if not typed["k3s_downloads_on_nodes"] or typed["k3s_bundle_dir"] == bundle_folder.cache():
        return []
    wanted = "false with k3s_bundle_dir, whose files are copied to the nodes"
    seen = f"true, and {typed['k3s_bundle_dir']}"
    return [Finding("variable k3s_downloads_on_nodes", wanted, seen, "leave one of the two out and run again")]


def downloading(decided: dict, rows: Sequence[dict]) -> list[str]:
    """What nodes will fetch themselves. decided: of k3s, by host. rows: of the lock."""
    hosts = [host for host, mine in decided.items() if any("url" in item for item in mine["files"] + mine["packages"])]
    sources = [f"{row['name']} {row['version']} from {row.get('url') or row['reference']}" for row in rows]
    return [f"{core_text.listing(hosts)}: missing files are fetched there, {'; '.join(sources)}"] if hosts else []


def lacking_on(nodes: list[dict], bundle: dict, folder: str, lock: dict) -> list[dict]:
    """What the roles need but the bundle, or the folder of wheels, does not hold."""
    pinned, rows = with_digest(lock), []
    for node in [node for node in nodes if node["state"]]:
        where = node["needs"]["wheels"]
        names = set(os.listdir(where)) if where and os.path.isdir(where) else set()
        rows += at(node["host"], lacking(node, bundle, folder, pinned) + lacking_wheels(node, names, lock["wheels"]))
    return rows


def lacking(node: dict, bundle: dict, folder: str, digests: set[str]) -> list[Finding]:
    """What the bundle lacks for one node; _preflight.k3s covers k3s itself and its SELinux policy.

    digests: references with a digest in the lock, for which playbooks/bundle.yml needs no other.
    """
    needs, architecture, found = node.get("needs") or {}, node["state"]["architecture"], []
    plugins = list(needs.get("plugins") or ())
    if [name for name in plugins if name != "flannel"] and not bundle_folder.file_for(
        bundle, cni.REFERENCE, architecture
    ):
        found.append(bundle_folder.missing_file(bundle, cni.REFERENCE, architecture, folder))
    if "flannel" in plugins and not cni.row_of(bundle, cni.FLANNEL, architecture):
        found.append(bundle_folder.missing_file(bundle, cni.FLANNEL, architecture, folder))
    for reference in sorted(set(needs.get("images") or ())):
        found += _image(bundle, reference, architecture, folder, needs, reference in digests)
    system = [row for row in bundle.get("images") or () if row["reference"].startswith(f"{SYSTEM_IMAGES}:")]
    if needs.get("pulled") is False and bundle["origin"] == "release":
        there = [row["architecture"] for row in system]
        if architecture not in there:
            seen = f"that for {', '.join(sorted(there))}" if there else "none"
            step = bundle_folder.fill(bundle, folder, architecture)
            found.append(Finding(f"bundle {folder}", f"{SYSTEM_IMAGES} for {architecture}", seen, step))
    return found


def _image(bundle: dict, reference: str, architecture: str, folder: str, needs: dict, pinned: bool) -> list[Finding]:
    there = {row.get("architecture", "any") for row in bundle.get("images") or () if row["reference"] == reference}
    if {architecture, "any"} & there or (not there and needs.get("pulled") is not False):
        return []
    seen = f"the image for {', '.join(sorted(there))}" if there else "no such image, and k3s_images_pulled is false"
    given = "" if pinned else reference
    step = bundle_folder.fill(bundle, folder, architecture, digest_of=given)
    return [Finding(f"bundle {folder}", f"image {reference} for {architecture}", seen, step)]


def lacking_wheels(node: dict, names: set[str], locked: list[dict]) -> list[Finding]:
    """Files that the folder of wheels lacks for a node's Python. names: the files in it."""
    needs, state = node.get("needs") or {}, node["state"]
    machine = _MACHINES.get(state["architecture"])
    if not needs.get("wheels") or not state.get("python") or not machine:
        return []
    wanted = wheels_of.fitting(locked, state["python"], machine)
    missing = sorted(set(wanted) - names)
    if not missing:
        return []
    folder = needs["wheels"]
    options = {"bundle_architectures": [state["architecture"]], "bundle_pythons": [state["python"]]}
    step = (
        "on a connected machine run ansible-playbook gpufabric.rdma.bundle -e bundle_dir=FOLDER "
        f"-e '{json.dumps(options)}', which adds them to FOLDER/wheels, and copy that folder here"
    )
    wish = f"the device plugin's libraries for Python {state['python']} on {machine}"
    return [Finding(f"device_plugin_wheel_dir {folder}", wish, f"no {', '.join(missing)}", step)]


def with_digest(lock: dict) -> set[str]:
    """References that a bundle can be filled with from the lock."""
    return {
        image["reference"] for image in lock["images"] if not bundle_lock.unpinned({"images": [image]}, [image["name"]])
    }
