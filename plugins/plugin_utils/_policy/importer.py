"""A NicClusterPolicy and its companions as variables of the roles, with a line for every field.

Pure. Kinds and fields are those of Network Operator's API mellanox.com/v1alpha1 and of nv-ipam.nvidia.com/v1alpha1
(docs/nicclusterpolicy.md names the versions).
"""

import re

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from . import networks, resources
from .page import LEFT_OUT, NOTHING, TAKEN, WRONG, Page, line, short, template

POLICY, NODE_POLICY, POOL = "NicClusterPolicy", "NicNodePolicy", "IPPool"
GROUPS = dict.fromkeys((POLICY, NODE_POLICY), "mellanox.com/v1alpha1")
GROUPS[POOL] = "nv-ipam.nvidia.com/v1alpha1"
GROUPS.update({kind: resources.API if kind in resources.KINDS else "mellanox.com/v1alpha1" for kind in networks.TYPES})
GROUPS[resources.NODE_POLICY] = resources.API
# The only one that the operator reconciles.
POLICY_NAME = "nic-cluster-policy"
OPERATOR_REPOSITORY = "nvcr.io/nvidia/mellanox"
_NOT_OURS = {
    "docaTelemetryService": "the collection installs no telemetry service",
    "ibKubernetes": "the collection installs no ib-kubernetes: partition keys are up to the subnet manager",
    "nicFeatureDiscovery": "node labels are up to Node Feature Discovery",
    "nicConfigurationOperator": "firmware settings stay with the operator; role rail_links sets MTU and link only",
    "spectrumXOperator": "the collection does not support Spectrum-X",
    "nvPeerDriver": "role kernel_modules loads nvidia_peermem of the GPU driver",
    "tolerations": "the collection's own pods on the nodes tolerate every taint",
    **dict.fromkeys(("labels", "annotations"), "no variable sets those of pods"),
    "deploymentNodeAffinity": "it places the operator's own deployments",
    "deploymentTolerations": "it places the operator's own deployments",
}
_IMAGE_FIELDS = {
    "imagePullSecrets": "nodes take images from the bundle folder, not with a secret of the cluster",
    "containerResources": "the roles set the resources of their pods",
}
_NO_WEBHOOK = "role networks checks attachments before they are applied; it runs no webhook"
_OWN_DRIVERS = ("doca", "mlnx_ofed", "ubuntu_archive")
_OF_CONTAINER = ("startupProbe", "livenessProbe", "readinessProbe", "terminationGracePeriodSeconds")
_DRIVER_FIELDS = {
    "repository": "a container registry; packages come from lock/artifacts.yml or driver_repository_url",
    "env": "settings of the driver container",
    "upgradePolicy": "gpufabric.rdma.upgrade_driver drains and reboots, on consent (driver_*_allowed, reboot_allowed)",
    **dict.fromkeys(_OF_CONTAINER, "there is no driver container"),
    "forcePrecompiled": "packages come from the driver's repository",
    "certConfig": "the node's own certificates are used",
    "repoConfig": "set driver_repository_url for a mirror",
    **_IMAGE_FIELDS,
}
_NOT_IMPORTED = {
    "CIDRPool": "role networks creates IPPools only",
    "SriovNetworkPoolConfig": "set rdma_netns_mode to its rdmaMode",
}
# Groups of the inventory that already have a meaning.
_TAKEN_GROUPS = ("all", "ungrouped", "gpu_nodes", "k3s_servers", "k3s_agents")
# Sub-states that become a component of role networks.
_COMPONENTS = {"nvIpam": "nv-ipam", "ipoib": "ipoib-cni", "ipamPlugin": "whereabouts"}


def run(
    documents: list[dict], nodes: list[dict] | None = None, pinned: dict | None = None, lock: dict | None = None
) -> dict:
    """variables (ready for group_vars), groups ({group of the inventory: {selector, variables}} of NicNodePolicies),
    lines (one for each field, see Page) and problems; with any, write nothing.

    documents: [{source, content}], content as YAML gives it. nodes: [{host, facts}] that were read, if any. pinned:
    {component: image reference} of lock/artifacts.yml, which is lock.
    """
    made = _Import(nodes or [], pinned or {}, lock or {})
    objects = [item for document in documents for item in _objects(document["content"], document["source"])]
    # Its spec.global is also that of NicNodePolicies.
    for content, source in sorted(
        objects, key=lambda item: not (isinstance(item[0], dict) and item[0].get("kind") == POLICY)
    ):
        made.read(content, source)
    return made.result()


class _Import:
    def __init__(self, nodes: list[dict], pinned: dict, lock: dict):
        self.nodes, self.pinned, self.lock = nodes, pinned, lock
        self.variables: dict = {}
        self.groups: dict = {}
        # Repository and version for images that have none.
        self.shared: dict = {}
        self.findings: list[Finding] = []
        self.pages: list[Page] = []
        self.components: list[str] = []
        self.items: list[tuple[Page, dict]] = []
        self.pools: dict = {}
        self.seen: dict = {}

    def result(self) -> dict:
        owners = networks.join(self.items, {name: made for name, (_page, made) in self.pools.items()})
        for name, (page, made) in self.pools.items():
            networks.explain_pool(page, made, owners.get(name), len(self.nodes))
        for page, item in self.items:
            page.finish()
            if ("CIDRPool", item.get("pool")) in self.seen and item["pool"] not in self.pools:
                step = "make it an IPPool; role networks creates no other kind"
                page.refuse(("spec", "ipam", "poolName"), "an IPPool", f"CIDRPool {item['pool']}", step)
        items = [item for _page, item in self.items]
        names = [item["name"] for item in items]
        for name in sorted({name for name in names if names.count(name) > 1}):
            step = "rename one of them: the plugins track addresses by this name, across namespaces"
            self._refuse(f"network {name}", "one network of this name", f"{names.count(name)} of them", step)
        lines = [line for page in self.pages for line in page.lines]
        for component in networks.components(items):
            if component not in self.components:
                self.components.append(component)
                lines.append(self._needed(component, items))
        parts = [self.variables, *(one["variables"] for one in self.groups.values())]
        if any("networks_sriov_resources" in one for one in parts):
            self.components.append("sriov-device-plugin")
        if self.components:
            self.variables["networks_components"] = self.components
        if items:
            self.variables["networks_attachments"] = items
        taken = {line["verdict"] for line in lines} & {TAKEN, WRONG}
        if not taken and not self.findings:
            step = "give files with a NicClusterPolicy, its networks, or the ConfigMap of the shared device plugin"
            self._refuse("the files", "a field to import", "none", step)
        return {"variables": self.variables, "groups": self.groups, "lines": lines, "findings": self.findings}

    def _needed(self, component: str, items: list[dict]) -> dict:
        users = [item["name"] for item in items if component in networks.components([item])]
        why = f"{core_text.listing(users)} cannot work without it"
        was, became = "no sub-state of a policy installs it", f"networks_components: [{component}]"
        return line("all files", "networks together", component, WRONG, was, became, why)

    def _refuse(self, obj: str, wanted: str, seen: str, next_step: str) -> None:
        self.findings.append(Finding(obj, wanted, seen, next_step))

    # --- objects ------------------------------------------------------------------------------------------------------

    def read(self, content, source: str) -> None:
        if content is None:
            return
        meta = content.get("metadata") if isinstance(content, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        if not (name and isinstance(name, str) and isinstance(content.get("kind"), str)):
            wanted = "a Kubernetes object: apiVersion, kind, metadata with a name"
            step = "check its indentation; of a Helm chart, give what helm template makes from its values"
            self._refuse(source, wanted, short(content), step)
            return
        kind = content["kind"]
        if template(name) or any(template(key) for key in _keys(content)):
            step = "write it without braces: names and keys are not templates"
            self._refuse(source, "names and keys that are plain words", "a template among them", step)
            return
        page = Page(content, source, self.findings)
        known = self.seen.setdefault((kind, page.name), source)
        if known != source:
            step = "remove one of them"
            self._refuse(page.object, "one object of this kind and name", f"another in {known}", step)
            return
        self.pages.append(page)
        if kind == "ConfigMap" and page.has("data", "config.json"):
            path = ("data", "config.json")
            given = resources.sriov_resources if "resourceList" in str(page.get(*path)) else resources.read
            given(page, path, self.nodes, self.variables)
            page.finish()
        elif kind not in GROUPS:
            why = _NOT_IMPORTED.get(kind, f"{kind} is not a kind that is imported; the object stays unchanged")
            page.say((), LEFT_OUT, why=why, was=kind)
        elif content.get("apiVersion") != GROUPS[kind]:
            step = "check which version of the operator it was written for"
            self._refuse(page.object, f"apiVersion {GROUPS[kind]}", short(content.get("apiVersion")), step)
        elif not isinstance(content.get("spec"), dict):
            self._refuse(page.object, "a spec", short(content.get("spec")), "check its indentation")
        elif kind == POLICY:
            self._policy(page)
        elif kind == NODE_POLICY:
            self._node_policy(page)
        elif kind == resources.NODE_POLICY:
            resources.functions(page, self.nodes, self.variables)
            page.finish()
        elif kind == POOL:
            self.pools[page.name] = (page, networks.pool(page))
        else:
            netdevs = {node["host"]: resources.netdevs(node["facts"]) for node in self.nodes}
            self.items.append((page, networks.attachment(page, netdevs)))

    def _policy(self, page: Page) -> None:
        if page.name != POLICY_NAME:
            why = f"the operator reconciles {POLICY_NAME} only and ignores this one"
            page.say(("metadata", "name"), WRONG, NOTHING, why)
        policies = [name for kind, name in self.seen if kind == POLICY]
        if len(policies) > 1:
            step = f"keep the one that it reconciles, {POLICY_NAME}"
            self._refuse(page.object, "one policy", f"{len(policies)} of them", step)
        self._global(page)
        self._drivers(page)
        if page.has("spec", "nodeAffinity"):
            self._affinity(page)
        self._secondary(page)
        if page.has("spec", "nvIpam"):
            self._component(page, ("spec", "nvIpam"), "nv-ipam")
        page.leave(("spec",), _NOT_OURS)
        page.finish()

    def _node_policy(self, page: Page) -> None:
        """Its three sections, for the nodes of its selector: the variables of a group of the inventory."""
        group = re.sub(r"[^a-z0-9_]", "_", page.name)
        selector = page.get("spec", "nodeSelector")
        group = f"policy_{group}" if group in _TAKEN_GROUPS else group
        if group in self.groups:
            self._refuse(page.object, "a name that makes a separate group", f"group {group}", "rename the policy")
            return
        common, self.variables = self.variables, {}
        self._drivers(page)
        self.groups[group] = {"selector": selector if isinstance(selector, dict) else {}, "variables": self.variables}
        self.variables = common
        nodes = f"the nodes with {short(selector)}" if selector else "all nodes"
        page.say(("spec", "nodeSelector"), TAKEN, f"group {group} of the inventory", f"put {nodes} into it")
        page.leave(("spec",), _NOT_OURS)
        page.finish()

    def _global(self, page: Page) -> None:
        given = page.get("spec", "global")
        if not isinstance(given, dict):
            return
        self.shared = {key: given[key] for key in ("repository", "version") if given.get(key)}
        for key in self.shared:
            page.say(("spec", "global", key), TAKEN, f"{key} of each image that has none")
        page.leave(("spec", "global"), _IMAGE_FIELDS)

    def _drivers(self, page: Page) -> None:
        """What a NicClusterPolicy and a NicNodePolicy have in common."""
        if page.has("spec", "ofedDriver"):
            self._driver(page)
        if page.has("spec", "rdmaSharedDevicePlugin"):
            self._device_plugin(page)
        path = ("spec", "sriovDevicePlugin")
        if page.has(*path):
            self._image(page, path, "sriov-device-plugin", "networks_sriov_resources")
            self._config(page, path, resources.sriov_resources)
            page.leave(path, {**_IMAGE_FIELDS, "useCdi": "the role's plugin hands out devices itself"})

    # --- sub-states ---------------------------------------------------------------------------------------------------

    def _driver(self, page: Page) -> None:
        path = ("spec", "ofedDriver")
        if not isinstance(page.get(*path), dict):
            page.refuse(path, "image, repository and version", short(page.get(*path)), "check its indentation")
            return
        version = str(page.get(*path, "version") or self.shared.get("version") or "")
        flavor, number = driver_version(version)
        flavors = [((node["facts"].get("driver") or {}).get("on_disk") or {}).get("flavor") for node in self.nodes]
        own = [node["host"] for node, known in zip(self.nodes, flavors) if known in _OWN_DRIVERS]
        if own:
            self.variables["driver_flavor"] = "verify"
            why = f"{core_text.names(own)} has its own driver stack: with the container's the modules are loaded "
            why += "twice and the node goes NotReady"
            page.say((*path, "image"), WRONG, "driver_flavor: verify", why)
        elif not self.nodes or not number:
            self.variables["driver_flavor"] = "verify"
            why = "no node was read, so it is unknown whether one has its own driver; verify changes nothing and "
            why += "reports what is there"
            unlocked = self._unlocked(flavor, number)
            why += f". Without one: driver_flavor: {flavor}, driver_version: {number}{unlocked}" if number else ""
            page.say((*path, "image"), WRONG if self.nodes else TAKEN, "driver_flavor: verify", why)
        else:
            self.variables.update(driver_flavor=flavor, driver_version=number)
            why = "the nodes have the inbox driver only; the package replaces the container, on consent"
            why += self._unlocked(flavor, number)
            page.say((*path, "image"), TAKEN, f"driver_flavor: {flavor}", why)
        if page.has(*path, "version"):
            given = self.variables.get("driver_version")
            verdict, became = (TAKEN, f"driver_version: {given}") if given else (LEFT_OUT, NOTHING)
            page.say((*path, "version"), verdict, became, "" if given else "see spec.ofedDriver.image")
        page.leave(path, _DRIVER_FIELDS)

    def _unlocked(self, flavor: str, number: str | None) -> str:
        """What to know about a release that is not in the lock for any platform."""
        rows = [row for row in self.lock.get("repositories") or [] if row["name"] == flavor]
        known = list(dict.fromkeys(str(row["version"]) for row in rows))
        if number in known:
            return ""
        had = f"of {flavor} it has {', '.join(known)}: set one of them, or" if known else f"it has no {flavor}:"
        return f". {number} is not in lock/artifacts.yml; {had} set driver_repository_url to a mirror that has {number}"

    def _device_plugin(self, page: Page) -> None:
        path = ("spec", "rdmaSharedDevicePlugin")
        became = "role device_plugin, as a service of the node"
        why = "device_plugin_mode: daemonset runs it in pods, as the operator does"
        self._image(page, path, None, became, why, ours="the collection's own plugin")
        if not isinstance(page.get(*path), dict):
            return
        cdi = page.get(*path, "useCdi")
        if isinstance(cdi, bool):
            self.variables["device_plugin_use_cdi"] = cdi
            page.say((*path, "useCdi"), TAKEN, f"device_plugin_use_cdi: {short(cdi)}")
        elif cdi is not None:
            page.refuse((*path, "useCdi"), "true or false", repr(cdi), "write it without quotes")
        self._config(page, path, resources.read)
        page.leave(path, _IMAGE_FIELDS)

    def _config(self, page: Page, path: tuple, read) -> None:
        if page.has(*path, "config"):
            read(page, (*path, "config"), self.nodes, self.variables)
        else:
            page.refuse(
                (*path, "config"), "a configuration", "none", "set the list of resources that the plugin serves"
            )

    def _affinity(self, page: Page) -> None:
        path = ("spec", "nodeAffinity")
        labels = plain_labels(page.get(*path))
        if labels is None:
            why = "more than labels with one value each; groups of the inventory choose the nodes"
            page.say(path, LEFT_OUT, why=why)
            return
        self.variables["device_plugin_node_selector"] = labels
        why = "with device_plugin_mode: daemonset; otherwise groups of the inventory choose the nodes"
        page.say(path, TAKEN, f"device_plugin_node_selector: {short(labels)}", why)

    def _secondary(self, page: Page) -> None:
        path = ("spec", "secondaryNetwork")
        for name, role in (("multus", "multus"), ("cniPlugins", "cni_plugins")):
            if page.has(*path, name):
                self._image(page, (*path, name), None, f"role {role}, which is always there")
                page.leave((*path, name), {**_IMAGE_FIELDS, "config": "role multus writes its own"})
        for name in ("ipoib", "ipamPlugin"):
            if page.has(*path, name):
                self._component(page, (*path, name), _COMPONENTS[name])
        if page.has(*path, "nvIpam"):
            why = "nvIpam is a field of spec itself; below secondaryNetwork the API server drops it, or refuses the "
            why += "policy, and no pool ever hands out an address"
            self._component(page, (*path, "nvIpam"), "nv-ipam", why)

    def _component(self, page: Page, path: tuple, component: str, wrong: str = "") -> None:
        if component not in self.components:
            self.components.append(component)
        became = f"networks_components: [{component}]"
        why = wrong or ("Network Operator deprecated whereabouts in 25.4" if component == "whereabouts" else "")
        self._image(page, path, component, became, why, WRONG if wrong else TAKEN)
        page.leave(path, {"enableWebhook": _NO_WEBHOOK, **_IMAGE_FIELDS})

    def _image(self, page, path, component, became, why="", verdict=TAKEN, ours="the image of lock/artifacts.yml"):
        """image, repository, version; a component's pinned image is taken, unless it is the operator's own build."""
        given = page.get(*path)
        if not isinstance(given, dict):
            page.refuse(path, "image, repository and version", short(given), "check its indentation")
            return
        page.say((*path, "image"), verdict, became, why)
        page.cover((*path, "repository"))
        where = (*path, "version")
        given = {**self.shared, **{key: value for key, value in given.items() if value}}
        version = str(given.get("version") or "")
        mark = "@" if version.startswith("sha256:") else ":"
        reference = "/".join(str(given[key]) for key in ("repository", "image") if given.get(key)) + mark + version
        if version in ("", "latest") or not given.get("repository"):
            missing = "version" if version in ("", "latest") else "repository"
            words = f"no {missing} is set, so the running image can change unnoticed"
            page.say(where, WRONG, ours, words, was=reference)
        elif component and given.get("repository") != OPERATOR_REPOSITORY and reference != self.pinned.get(component):
            self.variables.setdefault("networks_images", {})[component] = reference
            page.say(where, TAKEN, f"networks_images: {component}: {reference}", was=reference)
        else:
            page.say(where, LEFT_OUT, ours, "the version that the roles are tested with, pinned", was=reference)


def _objects(content, source: str):
    """(object, source) of a document, or of each item of a list."""
    items = content.get("items") if isinstance(content, dict) and str(content.get("kind")).endswith("List") else None
    if not isinstance(items, list):
        yield content, source
        return
    for number, item in enumerate(items, 1):
        yield from _objects(item, f"{source}, item {number}")


# --- small decisions --------------------------------------------------------------------------------------------------


def driver_version(text: str) -> tuple[str, str | None]:
    """(driver_flavor, driver_version) of an image's version: doca3.1.0-25.07-0.9.7.0-0, or 24.10-0.7.0.0-0."""
    doca = re.match(r"doca(\d+\.\d+\.\d+)-", text)
    if doca:
        return "doca", doca.group(1)
    ofed = re.match(r"(\d+\.\d+-\d+(?:\.\d+)+)", text)
    return "mlnx_ofed", ofed.group(1) if ofed else None


def _keys(value):
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield key
        yield from _keys(inner)


def plain_labels(affinity) -> dict | None:
    """{label: value} of an affinity that a nodeSelector could express."""
    if not isinstance(affinity, dict) or set(affinity) != {"requiredDuringSchedulingIgnoredDuringExecution"}:
        return None
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = terms.get("nodeSelectorTerms") if isinstance(terms, dict) else None
    term = terms[0] if isinstance(terms, list) and len(terms) == 1 else None
    expressions = term.get("matchExpressions") if isinstance(term, dict) and len(term) == 1 else None
    found = {}
    for one in expressions if isinstance(expressions, list) else []:
        if not isinstance(one, dict) or one.get("operator") != "In" or not isinstance(one.get("key"), str):
            return None
        values = one.get("values")
        if not isinstance(values, list) or len(values) != 1 or one["key"] in found:
            return None
        found[one["key"]] = str(values[0])
    return found or None
