# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles would create, as a NicClusterPolicy with its networks and pools; what those cannot express is listed.

PRIVATE to the collection. Pure; runs on the controller. Networks come from what role networks renders, so both
agree.
"""

from __future__ import annotations

import json

from ...module_utils._core import text
from ...module_utils._core.change import Finding
from ...module_utils._device_plugin import config as device_plugin_config
from .._preflight import networks as preflight_networks
from .importer import OPERATOR_REPOSITORY, POLICY_NAME
from .networks import DEVICE_PREFIX
from .page import short

# Where Network Operator's chart puts its objects, and from where its nv-ipam reads pools.
NAMESPACE = "nvidia-network-operator"
VERSION = "v25.7.0"
KINDS = {"macvlan": "MacvlanNetwork", "ipoib": "IPoIBNetwork"}
# Keys that the Go plugin and the operator's webhook know; the others are ours.
_ENTRY = ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors")
_IMAGES = {
    "rdmaSharedDevicePlugin": "k8s-rdma-shared-dev-plugin",
    "cniPlugins": "plugins",
    "multus": "multus-cni",
    "ipoib": "ipoib-cni",
    "nvIpam": "nvidia-k8s-ipam",
}
# Variables about our own programs, or without a counterpart in a policy; reported when they are set.
_NO_WORD = {
    "device_plugin_mode": "the operator runs its plugin in pods",
    "device_plugin_api": "a policy has no shared HCAs over DRA; its DRA driver hands out VFs",
    "device_plugin_dra_rails": "a policy has no shared HCAs over DRA; its DRA driver hands out VFs",
    "device_plugin_extended_resources": "a policy has no shared HCAs over DRA; its DRA driver hands out VFs",
    "device_plugin_metrics_address": "the operator's plugin serves no metrics",
    "device_plugin_kubelet_root": "the operator knows /var/lib/kubelet only",
    "device_plugin_image": "the operator's own plugin serves the resources",
    "driver_flavor": "the driver stays on the host: with spec.ofedDriver it would be loaded twice",
    "driver_version": "the driver stays on the host: with spec.ofedDriver it would be loaded twice",
    "networks_sriov": "the SR-IOV operator creates VFs, with a policy of its own",
    "networks_sriov_resources": "it names rails; the operator's SR-IOV device plugin uses other selectors",
    "networks_components_external": "a policy says what the operator installs, so there is nothing external",
    "networks_multus_conf_dir": "the operator's Multus has a configuration of its own",
    "networks_cni_bin_dir": "cniBinDirectory is a value of the operator's chart",
    "networks_default_route_masters": "the operator does not refuse the default route's interface",
    "networks_known_resources": "it concerns the check of attachments here",
    "networks_node_number": "nv-ipam numbers the blocks itself",
}
_COMPONENTS_NO_WORD = {
    "whereabouts": "Network Operator deprecated whereabouts in 25.4; use nv-ipam",
    "sriov-cni": "the SR-IOV operator installs it",
    "ib-sriov-cni": "the SR-IOV operator installs it",
    "sriov-device-plugin": "the SR-IOV operator installs it",
}


def run(variables: dict, given, nodes: list[dict], options: dict | None = None) -> dict:
    """objects (ready for kubectl apply), left_out [{variable, value, why}] and problems.

    variables: effective values of the roles device_plugin, networks and driver. given: names of those the user set;
    only
    these are reported. nodes: [{host, facts}] that were read, if any. options: version and namespace of the
    operator.
    """
    made = _Export(variables, set(given), nodes, options or {})
    made.policy()
    made.networks()
    return {"objects": made.objects, "left_out": made.left_out, "findings": made.findings}


class _Export:
    def __init__(self, variables, given, nodes, options):
        self.variables, self.given = variables, given
        self.nodes = [_node(number, node) for number, node in enumerate(nodes)]
        self.version = options.get("version") or VERSION
        self.namespace = options.get("namespace") or NAMESPACE
        self.objects: list[dict] = []
        self.left_out: list[dict] = []
        self.findings: list[Finding] = []
        self.plan = preflight_networks.plan(
            variables, self.nodes, resources=variables["device_plugin_resources"], nv_ipam_namespace=self.namespace
        )
        self.findings += self.plan["findings"]

    def leave(self, variable: str, value, why: str) -> None:
        self.left_out.append({"variable": variable, "value": short(value), "why": why})

    # --- the policy ---------------------------------------------------------------------------------------------------

    def policy(self) -> None:
        spec: dict = {}
        labels = self.variables["device_plugin_node_selector"]
        if "device_plugin_node_selector" in self.given and labels:
            terms = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
            wanted = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
            spec["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
        config = self._config()
        if config:
            spec["rdmaSharedDevicePlugin"] = {**self._image("rdmaSharedDevicePlugin"), "config": config}
            if self.variables["device_plugin_use_cdi"]:
                spec["rdmaSharedDevicePlugin"]["useCdi"] = True
        components = self.variables["networks_components"]
        if self.plan["attachments"] or components:
            secondary = {name: self._image(name) for name in ("cniPlugins", "multus")}
            if "ipoib-cni" in components:
                secondary["ipoib"] = self._image("ipoib", "ipoib-cni")
            spec["secondaryNetwork"] = secondary
        if "nv-ipam" in components:
            spec["nvIpam"] = {**self._image("nvIpam", "nv-ipam"), "enableWebhook": False}
        for name in components:
            if name in _COMPONENTS_NO_WORD:
                self.leave("networks_components", name, _COMPONENTS_NO_WORD[name])
        for name in self.variables["networks_images"]:
            if name not in ("nv-ipam", "ipoib-cni") or name not in components:
                self.leave("networks_images", name, "the policy has no such sub-state")
        for name, why in _NO_WORD.items():
            if name in self.given:
                self.leave(name, self.variables.get(name), why)
        self.objects.append(_object("NicClusterPolicy", POLICY_NAME, spec))

    def _image(self, sub_state: str, component: str | None = None) -> dict:
        reference = self.variables["networks_images"].get(component) if component else None
        if not reference:
            image = {"image": _IMAGES[sub_state], "repository": OPERATOR_REPOSITORY}
            return {**image, "version": f"network-operator-{self.version}"}
        made, dropped = split_reference(reference)
        if dropped:
            self.leave("networks_images", f"{component}: {reference}", f"{dropped}: the policy has one field, version")
        return made

    def _config(self) -> str | None:
        wanted, rails = self.variables["device_plugin_resources"], []
        if wanted == device_plugin_config.RAILS:
            if not self.nodes:
                why = "no node was read, so there are no rails to list: export with nodes, or list the resources"
                self.leave("device_plugin_resources", wanted, why)
                return None
            rails = self.nodes[0]["rails"]
            why = f"a policy has one list for all nodes: these are the rails of {self.nodes[0]['host']}"
            self.leave("device_plugin_resources", wanted, why)
        try:
            entries = device_plugin_config.entries(wanted, rails)
        except ValueError as error:
            step = "list the resources in device_plugin_resources"
            self.findings.append(Finding("device_plugin_resources", "resources", str(error), step))
            return None
        kept = [entry for entry in map(self._entry, entries) if entry]
        if not kept:
            return None
        document: dict = {"configList": kept}
        if "device_plugin_interval_seconds" in self.given:
            document = {"periodicUpdateInterval": self.variables["device_plugin_interval_seconds"], **document}
        return json.dumps(document, indent=2) + "\n"

    def _entry(self, entry: dict) -> dict | None:
        known = {key.lower(): key for key in _ENTRY}
        made = {known[key.lower()]: value for key, value in entry.items() if key.lower() in known}
        name = made.get("resourceName")
        if not made.get("selectors") and not made.get("devices"):
            why = "only selectors of our own; without them the operator's plugin would take every HCA"
            self.leave("device_plugin_resources", name, why)
            return None
        for key, value in entry.items():
            if key.lower() not in known and not (key == "linkUp" and value is False):
                self.leave("device_plugin_resources", f"{name}: {key}: {short(value)}", "a key of our plugin only")
            elif key == "linkUp":
                why = "the operator's plugin sets links of its interfaces up at its start"
                self.leave("device_plugin_resources", f"{name}: linkUp: false", why)
        return made

    # --- networks -----------------------------------------------------------------------------------------------------

    def networks(self) -> None:
        if self.variables["networks_rails"]:
            why = "each rail's attachment is written out; a rail whose interface has different names is left out"
            self.leave("networks_rails", True, why)
        rendered = {}
        for item in self.plan["objects"]:
            if item["kind"] == "NetworkAttachmentDefinition":
                rendered.setdefault(item["metadata"]["name"], []).append(item)
            elif item["kind"] == "IPPool":
                self.objects.append(item)
        for item in self.plan["attachments"]:
            obj = self._network(item, rendered.get(item["name"], []))
            if obj:
                self.objects.append(obj)

    def _network(self, item: dict, nads: list[dict]) -> dict | None:
        name = item["name"]
        if not nads or not nads[0]["spec"].get("config"):
            if not self.findings:
                why = "its configuration differs from node to node (a block of addresses, or another interface each), "
                why += "but a network of the operator has one for all; use nv-ipam and a master with one name"
                self.leave("networks_attachments", name, why)
            return None
        config = json.loads(nads[0]["spec"]["config"])
        reason = self._unsupported(item, config)
        if reason:
            self.leave("networks_attachments", name, reason)
            return None
        spec: dict = {"networkNamespace": item["namespaces"][0]}
        for namespace in item["namespaces"][1:]:
            why = "a network of the operator has one namespace; pods elsewhere name it as namespace/name"
            self.leave("networks_attachments", f"{name}: namespace {namespace}", why)
        if item["type"] == "host-device":
            kind = "HostDeviceNetwork"
            spec["resourceName"] = item["resource_name"]
        else:
            kind = KINDS[item["type"]]
            spec.update({key: config[key] for key in ("master", "mode", "mtu") if key in config})
            for key, why in (
                (
                    "resource_name",
                    "the operator's network has no such annotation; pods request the resource separately",
                ),
                ("rail", "the network names the interface instead"),
            ):
                if item.get(key) is not None:
                    self.leave("networks_attachments", f"{name}: {key}: {item[key]}", why)
        if config["ipam"]:
            spec["ipam"] = json.dumps(config["ipam"], indent=2) + "\n"
        return _object(kind, name, spec)

    @staticmethod
    def _unsupported(item: dict, config: dict) -> str | None:
        if item["type"] in ("sriov", "ib-sriov"):
            kind = "SriovNetwork" if item["type"] == "sriov" else "SriovIBNetwork"
            return f"use {kind} of the SR-IOV operator"
        if item["type"] == "host-device" and ("device" in config or "pciBusID" in config):
            return "HostDeviceNetwork takes a resource that hands out functions, no interface and no address"
        if item["type"] == "host-device" and not str(item.get("resource_name")).startswith(DEVICE_PREFIX):
            return f"the operator puts {DEVICE_PREFIX} in front of the resource {item.get('resource_name')}"
        if config.get("capabilities"):
            return "a network of the operator cannot express that pods bring their own addresses"
        return None


def _node(number: int, node: dict) -> dict:
    """A node as _preflight.networks takes it."""
    hcas = {hca["name"]: hca for hca in node["facts"]["hcas"]}
    rails = []
    for rail in node["facts"]["rails"]:
        ports = (hcas.get(rail["hca"]) or {}).get("ports") or []
        layer = next((port.get("link_layer") for port in ports if port["number"] == rail["port"]), None)
        rails.append({**{key: rail[key] for key in ("index", "hca", "netdev", "pci")}, "link_layer": layer})
    netdevs = {netdev["name"]: netdev for hca in hcas.values() for netdev in hca["netdevs"]}
    return {"host": node["host"], "number": number, "rails": rails, "netdevs": netdevs}


def _object(kind: str, name: str, spec: dict) -> dict:
    return {"apiVersion": "mellanox.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def split_reference(reference: str) -> tuple[dict, str]:
    """({image, repository, version}, the part of the reference that does not fit)."""
    name, _at, digest = reference.partition("@")
    repository, _slash, last = name.rpartition("/")
    image, _colon, tag = last.partition(":")
    made = {"image": image, "repository": repository, "version": digest or tag or "latest"}
    return made, tag if digest and tag else ""


def explanation(left_out: list[dict]) -> str:
    """For people: what the policy cannot express."""
    lines = [f"{text.count(len(left_out), 'thing')} that the policy cannot express:"] if left_out else []
    for item in left_out:
        lines.append(text.wrapped("  ", f"{item['variable']}: {item['value']}"))
        lines.append(text.wrapped("      ", item["why"]))
    return "\n".join(lines)
