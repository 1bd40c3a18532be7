"""Combinations of variables, with each other, the host or the cluster, that cannot work.

Pure. Roles with their own planner module (driver, k3s, networks) are not here.
"""

import re

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from ...module_utils._device_plugin import config
from .._bundle import folder as bundle_folder
from . import pod_network

_NO_SERVER = "nothing, and no host in group k3s_servers"
_CORRECT = "correct it where it is set (inventory, group_vars or -e)"
# Plugins that every pod needs, besides any others.
_PLUGINS = ("loopback", "bridge", "host-local", "portmap", "flannel")
_LEAST = (1, 34)
_BACK = "or set device_plugin_api: device-plugin"
_UPGRADE = f"upgrade it (k3s: playbooks/upgrade_k3s.yml), {_BACK}"
_GATES = {
    "DRAConsumableCapacity": (
        "each HCA is one device that several claims share",
        "each HCA is published as one unit per share",
    ),
    "DRADeviceTaints": ("an HCA whose port is down stays, with a taint", "an HCA whose port is down leaves its pool"),
}


def findings(role: str, values: dict, facts: dict | None, groups: dict, bundle: dict | None = None) -> list[Finding]:
    """values: the typed variables of all roles. facts: of the host, None if they were not read. groups: of the
    inventory. bundle: the description of the bundle folder, if there is one.
    """
    found = _plugin_image(values, bundle) if role == "device_plugin" else []
    return found + (_RULES[role](values, facts, groups) if role in _RULES else [])


def _cni_plugins(values: dict, _facts: dict | None, _groups: dict) -> list[Finding]:
    found = []
    missing = [name for name in _PLUGINS if name not in values["cni_plugins_names"]]
    if missing:
        seen = f"a list without {', '.join(missing)}"
        step = "add them where the list is set (inventory, group_vars or -e)"
        found.append(Finding("variable cni_plugins_names", "the plugins that every pod needs", seen, step))
    return found


def _device_plugin(values: dict, facts: dict | None, groups: dict) -> list[Finding]:
    found = []
    if values["device_plugin_resources"] == config.RAILS and not (facts or {}).get("rails"):
        wanted, step = "one rail or more in the node's facts", "list the resources, or set discovery_rails"
        found.append(Finding("variable device_plugin_resources", wanted, "none", step))
    server = values["device_plugin_server"] or next(iter(groups.get("k3s_servers") or []), "")
    daemonset, dra = values["device_plugin_mode"] == "daemonset", values["device_plugin_api"] != config.PLUGIN
    if (daemonset or dra) and server not in groups["all"]:
        wanted = f"a host of the inventory that reaches the API server{'' if daemonset else ', which DRA needs'}"
        step = f"set one, or set device_plugin_{'mode: systemd' if daemonset else 'api: device-plugin'}"
        found.append(Finding("variable device_plugin_server", wanted, server or _NO_SERVER, step))
    if values["networks_in_claims"] and (daemonset or not dra):
        wanted = "device_plugin_api: dra or both, and device_plugin_mode: systemd, with networks_in_claims"
        seen = f"device_plugin_api: {values['device_plugin_api']}, device_plugin_mode: {values['device_plugin_mode']}"
        step = "set them, or networks_in_claims: false"
        found.append(Finding("variable networks_in_claims", wanted, seen, step))
    return found + _apis(values, facts)


def _apis(values: dict, facts: dict | None) -> list[Finding]:
    """Which entries are served over which API; no HCA over both, because each would count its units separately."""
    api, given, rails = (values[f"device_plugin_{name}"] for name in ("api", "resources", "dra_rails"))
    obj, found = "variable device_plugin_resources", []
    if rails and (api != config.BOTH or given != config.RAILS):
        wanted = "none without device_plugin_api: both and device_plugin_resources: rails"
        found.append(Finding("variable device_plugin_dra_rails", wanted, core_text.listing(map(str, rails)), _CORRECT))
    known = [rail["index"] for rail in (facts or {}).get("rails") or []]
    unknown = [index for index in rails if index not in known]
    if unknown and known and not found:
        seen = f"{core_text.listing(map(str, unknown))}; the node has {core_text.listing(map(str, known))}"
        found.append(Finding("variable device_plugin_dra_rails", "numbers of the node's rails", seen, _CORRECT))
        return found
    try:
        entries = config.entries(given, known and facts["rails"], api, rails)
    except ValueError:
        return found  # already reported
    for entry in entries if api != config.BOTH else ():
        said = config.api_of(entry, config.BOTH)
        if said != config.PLUGIN and said != api:
            step = "set device_plugin_api: both, or take the key out"
            found.append(
                Finding(
                    obj, f"entries for device_plugin_api: {api}", f"{config.full_name(entry)} with api: {said}", step
                )
            )
    if api != config.BOTH:
        return found
    of_kind = {
        kind: [entry for entry in entries if config.api_of(entry, api) == kind] for kind in (config.PLUGIN, config.DRA)
    }
    for kind, some in of_kind.items():
        if not some:
            step = "with rails, list those for DRA in device_plugin_dra_rails; in a list, give their entries api: dra"
            seen = f"no entry for {kind}"
            found.append(Finding(obj, "entries of both kinds with device_plugin_api: both", seen, step))
    for entry in of_kind[config.DRA]:
        for other in of_kind[config.PLUGIN]:
            shared = set(config.matching(entry, facts or {})) & set(config.matching(other, facts or {}))
            if shared:
                wanted = "each HCA in entries of one kind, because each API counts its units separately"
                names = core_text.listing(sorted(shared))
                seen = f"{names} in {config.full_name(other)} and, with api: dra, in {config.full_name(entry)}"
                found.append(Finding(obj, wanted, seen, "narrow the selectors of one of them"))
    return found


def _plugin_image(values: dict, bundle: dict | None) -> list[Finding]:
    """An image of localhost cannot be pulled from anywhere: nodes get it from the bundle, or not at all."""
    image, folder = values["device_plugin_image"], values["k3s_bundle_dir"]
    wanted = values["device_plugin_mode"] == "daemonset" and bundle is not None and image.startswith("localhost/")
    images = (bundle or {}).get("images") or []
    if not wanted or image in {row.get("reference") for row in images if isinstance(row, dict)}:
        return []
    # The cache holds what nodes cannot pull, and nothing else for long.
    place = "FOLDER" if folder == bundle_folder.cache() else folder
    step = f"add it with: ansible-playbook gpufabric.rdma.bundle -e bundle_dir={place} -e bundle_plugin_image=true"
    step += (
        " and set k3s_bundle_dir to it" * (place != folder) + "; or set an image of a registry in device_plugin_image"
    )
    return [Finding(f"bundle {folder}", f"image {image}, for device_plugin_mode: daemonset", "no such image", step)]


def _flannel(values: dict, facts: dict | None, _groups: dict) -> list[Finding]:
    if facts is None:
        return [
            Finding("facts", "the RDMA facts of the node", "not read", "run playbooks/cluster.yml, which reads them")
        ]
    return pod_network.findings(facts, values)


def _multus(values: dict, _facts: dict | None, _groups: dict) -> list[Finding]:
    found = []
    theirs, ours = values["cni_plugins_directory"], values["multus_plugin_directory"]
    if theirs != ours:
        wanted = f"{theirs}, where cni_plugins_directory puts the plugins"
        step = "set both to the path where the container runtime looks"
        found.append(Finding("variable multus_plugin_directory", wanted, ours, step))
    exempt = values["multus_global_namespaces"]
    if exempt and not values["multus_namespace_isolation"]:
        wanted = "no namespaces without multus_namespace_isolation"
        step = "set multus_namespace_isolation to true, or take them out"
        found.append(Finding("variable multus_global_namespaces", wanted, ", ".join(exempt), step))
    return found


def _node_ready(values: dict, _facts: dict | None, _groups: dict) -> list[Finding]:
    found = []
    if values["k3s_startup_taint"] and not values["node_ready_taint"]:
        wanted = "true with k3s_startup_taint, otherwise nothing removes the taint"
        found.append(Finding("variable node_ready_taint", wanted, "false", "set both to the same value"))
    return found


_RULES = {
    "cni_plugins": _cni_plugins,
    "device_plugin": _device_plugin,
    "flannel": _flannel,
    "multus": _multus,
    "node_ready": _node_ready,
}


def over_dra(name: str, runtime: dict, cluster: dict | None) -> list[Finding]:
    """What keeps a node from serving over DRA: the cluster, its kubelet, its container runtime.

    name: of the node in the cluster. runtime: what node_facts returned. cluster: what cluster_info returned as dra;
    None if no API server responds yet; then only the node's own state counts.
    """
    found = []
    node = (cluster or {}).get("nodes", {}).get(name)
    if cluster and (not cluster["served"] or _release(cluster["version"]) < _LEAST):
        wanted = "Kubernetes 1.34 or newer, which serves resource.k8s.io/v1"
        seen = cluster["version"] if _release(cluster["version"]) < _LEAST else f"{cluster['version']} without it"
        found.append(Finding("API server", wanted, seen, _UPGRADE))
    if node and node["kubelet"] and _release(node["kubelet"]) < _LEAST:
        found.append(Finding(f"kubelet of {name}", "1.34 or newer, for DRA", node["kubelet"], _UPGRADE))
    return found + _without_cdi(name, runtime, (node or {}).get("runtime") or "")


def _without_cdi(name: str, runtime: dict, program: str) -> list[Finding]:
    """The runtime passes a claim's devices to containers only by CDI."""
    obj, wanted = f"container runtime of {name}", "CDI switched on, by which a claim's devices reach containers"
    place = runtime["source"] or "/etc/containerd/config.toml"
    step = f"remove enable_cdi = false (configuration of containerd: {place}) and restart the runtime, {_BACK}"
    if runtime["cdi"] is False:
        return [Finding(obj, wanted, f"enable_cdi = false in {place} or a file that it imports", step)]
    kind, _colon, version = program.partition("://")
    release = _release(version)
    if not program or (kind == "containerd" and release >= (2, 0)) or (kind == "cri-o" and release >= (1, 28)):
        return []
    if kind == "containerd" and release >= (1, 7):
        step = (
            f"set enable_cdi = true for the CRI plugin in {place} and restart it, or upgrade to containerd 2, {_BACK}"
        )
        return [] if runtime["cdi"] else [Finding(obj, wanted, f"containerd {version}, which has it off", step)]
    step = f"upgrade to containerd 2 or CRI-O 1.28, {_BACK}"
    return [Finding(obj, wanted, program, step)]


def gates(cluster: dict | None, extended_resources: bool) -> list[str]:
    """What the API server's feature gates mean for this cluster."""
    gates = (cluster or {}).get("gates") or {}
    made = [f"{gate} is {'on' if gates[gate] else 'off'}: {_GATES[gate][not gates[gate]]}" for gate in _GATES if gates]
    if gates and extended_resources and not gates["DRAExtendedResource"]:
        made.append(
            "DRAExtendedResource is off: the API server drops the name of the extended resource from the classes, so "
            "pods have to make claims; requests such as rdma/hca_shared_devices_0: 1 stay Pending"
        )
    return made


def _release(version: str) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
