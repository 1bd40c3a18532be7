"""Problems in a node's CNI setup, as the module cni_lint reads it, and in the DaemonSets behind it."""

from __future__ import annotations

import json
import posixpath
import re

from .._core.change import Finding
from .._core.text import json_object, quantity

MULTUS_CONF = "00-multus.conf"
SHIM = "multus-shim"
CLAIM = "rdma-claim"  # of the role flannel, with networks_in_claims
PRIMARY_DIRECTORY = "/etc/cni/gpufabric-rdma.d"
PRIMARY_NAME = "10-flannel.conflist"
# Prefix under which the Multus pod sees the node's /etc and /run.
HOST_PREFIX = "/host"
SYSCTLS = ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables")
CONF_SUFFIXES = (".conf", ".conflist", ".json")
LEFTOVER = re.compile(r"^\.gpufabric-|\.(tmp|temp|new|part|swp|old|dpkg-\w+|rpmnew|rpmsave)$|~$")
# Programs of the reference plugins and of Flannel, which the role cni_plugins can install.
_REFERENCE = """
    bandwidth bridge dhcp dummy firewall flannel host-device host-local ipvlan loopback macvlan portmap ptp sbr static
    tap tuning vlan vrf
"""
REFERENCE = frozenset(_REFERENCE.split())
# Valid program names: libcni finds no other, and a path would lead out of the plugin directory.
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RUN_ROLE = "run playbooks/site.yml"


# --- reading one configuration ----------------------------------------------------------------------------------------


def parse(conf: dict) -> tuple[dict | None, str | None]:
    """(configuration as a list with `plugins`, why the runtime cannot use it); one of the two is None."""
    content = conf["content"]
    if content is None:
        return None, "it cannot be read"
    if not content.strip():
        return None, "it is empty"
    try:
        document = json.loads(content)
    except ValueError as error:
        return None, f"it is not valid JSON ({error}), perhaps half-written"
    if not isinstance(document, dict):
        return None, f"it is a JSON {type(document).__name__}, not an object"
    if conf["path"].endswith(".conflist"):
        plugins = document.get("plugins")
        if not isinstance(plugins, list) or not plugins:
            return None, "it is a list (.conflist) without plugins"
    elif document.get("plugins") and not document.get("type"):
        return None, "it is a list of plugins in a file for one plugin; its name has to end in .conflist"
    else:
        plugins = [document]
    nameless = [plugin for plugin in plugins if not isinstance(plugin, dict) or not plugin.get("type")]
    if nameless:
        return None, "a plugin in it has no type"
    if not document.get("name"):
        return None, "it has no name"
    return {**document, "plugins": plugins}, None


def is_multus(configuration: dict | None) -> bool:
    return bool(configuration) and configuration["plugins"][0]["type"] in (SHIM, "multus")


def cluster_network(configuration: dict) -> str | None:
    """The file on the node from which Multus takes the pod network; the pod's path has a prefix."""
    path = configuration["plugins"][0].get("clusterNetwork")
    if not isinstance(path, str) or not path:
        return None
    return path[len(HOST_PREFIX) :] if path.startswith(HOST_PREFIX + "/") else path


def types(configuration: dict) -> list[str]:
    """Every program that a configuration starts: plugins, their address management, flannel's delegates."""
    found = []
    for plugin in configuration["plugins"]:
        found.append(plugin["type"])
        ipam = plugin.get("ipam")
        if isinstance(ipam, dict) and ipam.get("type"):
            found.append(ipam["type"])
        if plugin["type"] == "flannel":
            delegate = plugin.get("delegate") if isinstance(plugin.get("delegate"), dict) else {}
            found += [delegate.get("type") or "bridge", "host-local"]
    return list(dict.fromkeys(name for name in found if isinstance(name, str)))


def network_programs(text: str) -> list[str]:
    """Every program that a network of Multus starts; none if its configuration cannot be read, which nad_lint reports.
    Unlike the runtime's configurations it needs no name.
    """
    document = json_object(text)
    plugins = document.get("plugins") or [document]
    plugins = [one for one in plugins if isinstance(one, dict) and one.get("type")] if isinstance(plugins, list) else []
    return [name for name in types({"plugins": plugins}) if _PROGRAM.fullmatch(name)]


# --- the node ---------------------------------------------------------------------------------------------------------


def lint(state: dict, wanted: dict) -> list[Finding]:
    """state: see the module's `read`. wanted: the module's options."""
    parsed = [(conf, *parse(conf)) for conf in state["confs"]]
    return [
        *_runtime(state, wanted),
        *_order(state, wanted, parsed),
        *_contents(parsed),
        *_multus(state, wanted, parsed),
        *_programs(state, wanted, parsed),
        *_leftovers(state),
        *_kernel(state),
        *_ports(state, wanted),
    ]


def _runtime(state: dict, wanted: dict):
    """K1, K2: runtime and plugins must use the same directories."""
    runtime, source = state["runtime"], state["runtime"]["source"]
    said = f"containerd ({source})" if source else "containerd (its defaults, no config.toml)"
    step = "set flannel-backend: none (k3s then keeps the standard directories), or"
    if runtime["conf_dir"] != wanted["conf_directory"]:
        wish, seen = f"conf_dir {wanted['conf_directory']}, where Multus writes", f"conf_dir {runtime['conf_dir']}"
        yield Finding(said, wish, seen, f"{step} multus_conf_directory to it", "conf-dir-differs")
    place = wanted["plugin_directory"]
    if place not in runtime["bin_dirs"]:
        wish, seen = f"bin_dir {place}, where the plugins are", f"bin_dir {', '.join(runtime['bin_dirs'])}"
        yield Finding(said, wish, seen, f"{step} cni_plugins_directory to it", "bin-dir-differs")
    for directory in sorted({place, *runtime["bin_dirs"]}):
        if re.search(r"/data/(current|[0-9a-f]{64})/bin", directory):
            obj, wish = f"plugin directory {directory}", "a directory that survives a k3s upgrade"
            seen = "one that belongs to a single release: the plugins are gone after the next upgrade"
            step = "use /opt/cni/bin with flannel-backend none, or /var/lib/rancher/k3s/data/cni"
            yield Finding(obj, wish, seen, step, "bin-dir-of-one-release")


def _order(state: dict, wanted: dict, parsed: list):
    """M4, M7: the file that the runtime uses, and the one while Multus' file is missing."""
    directory, limit = state["runtime"]["conf_dir"], state["runtime"]["max_conf_num"]
    if not parsed:
        wish = f"{MULTUS_CONF} of a running Multus" if wanted["multus"] else "a CNI configuration"
        seen = "no configuration: the node is NotReady and starts no pod"
        step = "check that the Flannel pod runs, then the Multus pod, on this node (k3s kubectl get pods -A -o wide)"
        yield Finding(directory, wish, seen, step, "no-configuration")
        return
    for conf, other, _why in parsed:
        if not wanted["multus"] or other is None or is_multus(other):
            continue
        seen = f"network {other['name']} ({', '.join(types(other))})"
        step = (
            "remove what installed it (podman, CRI-O, another CNI), or set multus_foreign_allowed to have it put aside"
        )
        if conf is parsed[0][0]:
            seen, identity = f"{seen}, read first: pods get no other network", "foreign-first"
        else:
            seen += f", used while {MULTUS_CONF} is missing (each boot): pods come up without net1"
            identity = "foreign-configuration"
        yield Finding(conf["path"], f"no configuration next to {MULTUS_CONF}", seen, step, identity)
    used = parsed[:limit] if limit > 0 else parsed
    if len(used) > 1:
        names = ", ".join(posixpath.basename(conf["path"]) for conf, _one, _two in used)
        obj, wish = f"containerd max_conf_num {limit}", "one configuration (max_conf_num 1)"
        seen = f"{len(used)} are loaded, each gives every pod an interface: {names}"
        step = "remove max_conf_num from the containerd configuration (config.toml.tmpl)"
        yield Finding(obj, wish, seen, step, "several-configurations")


def _contents(parsed: list):
    """M5: a file that exists but is unusable."""
    for conf, configuration, why in parsed:
        if configuration:
            continue
        empty = conf["content"] is not None and not conf["content"].strip()
        first, step = parsed[0][0], "make its owner write it again, or remove it"
        read = f"it is not read while {first['path']} exists"
        if conf is first:
            read = "the runtime reports cni plugin not initialized and stops reading"
        if posixpath.basename(conf["path"]) == MULTUS_CONF:
            step = "systemctl restart gpufabric-rdma-multus.service makes Multus write it again"
        identity = "conf-empty" if empty else "conf-invalid"
        yield Finding(conf["path"], "a whole CNI configuration", f"{why}; {read}", step, identity)


def _multus(state: dict, wanted: dict, parsed: list):
    """M3, M7, M10, M11."""
    for conf, configuration, _why in parsed:
        if not is_multus(configuration):
            continue
        if configuration["plugins"][0]["type"] == SHIM and state["socket"] in ("refuses", "absent"):
            wish = "a Multus that responds on /run/multus/multus.sock"
            seen = f"{'no socket' if state['socket'] == 'absent' else 'nothing is listening'}: every new pod fails"
            step = "see the Multus pod of this node; gpufabric-rdma-multus.service removes the file meanwhile"
            yield Finding(conf["path"], wish, seen, step, "multus-not-running")
        yield from _cluster_network(state, wanted, conf, configuration)


def _cluster_network(state: dict, wanted: dict, conf: dict, configuration: dict):
    path = cluster_network(configuration)
    plugin = configuration["plugins"][0]
    if path is None:
        if not plugin.get("delegates"):
            wish, seen = f"clusterNetwork {HOST_PREFIX}{wanted['primary']}", "neither clusterNetwork nor delegates"
            step = "delete the Multus pod of this node, it writes the file again"
            yield Finding(conf["path"], wish, seen, step, "no-cluster-network")
        return
    if path != wanted["primary"]:
        seen = f"clusterNetwork {path}: Multus used the first file in its directory"
        step = "set multusMasterCNI and multusAutoconfigDir in the ConfigMap multus-daemon-config; "
        step += f"{_RUN_ROLE} does, then restart the Multus pod"
        yield Finding(conf["path"], f"clusterNetwork {wanted['primary']}", seen, step, "foreign-cluster-network")
        return
    if not state["existing"].get(path):
        wish, seen = "the pod network's configuration that Multus uses", "no such file: every new pod fails"
        yield Finding(path, wish, seen, _RUN_ROLE, "cluster-network-missing")
        return
    primary = next((parse(item)[0] for item in state["primary"] or () if item["path"] == path), None)
    if primary and _version(plugin.get("cniVersion")) >= (0, 4, 0) > _version(primary.get("cniVersion")):
        wish = f"cniVersion below 0.4.0, as {path} has {primary.get('cniVersion')}"
        seen = f"cniVersion {plugin.get('cniVersion')}: Multus refuses the pair"
        step = "set cniVersion 0.3.1 in the ConfigMap multus-daemon-config"
        yield Finding(conf["path"], wish, seen, step, "cni-version-differs")


def _version(text) -> tuple[int, ...]:
    """In the CNI specification a configuration without a version is 0.1.0."""
    return tuple(int(part) for part in re.findall(r"\d+", str(text or "0.1.0"))[:3])


def _programs(state: dict, wanted: dict, parsed: list) -> list[Finding]:
    """K3, M8: every program that a configuration or a network starts exists, is complete, fits this machine and is
    executable.
    """
    used: dict[str, str] = {}
    primary = [(conf, *parse(conf)) for conf in state["primary"] or ()]
    for conf, configuration, _why in [*parsed, *primary]:
        for name in types(configuration) if configuration else ():
            used.setdefault(name, conf["path"])
    for network in state["networks"]:
        for name in network_programs(network["config"]):
            used.setdefault(name, network["name"])
    if not state["runtime"]["use_internal_loopback"]:
        used.setdefault("loopback", "containerd, for every pod")
    return [item for name, by in sorted(used.items()) for item in _program(name, by, state, wanted)]


def _program(name: str, by: str, state: dict, wanted: dict):
    """The problem of a program: one finding, or none."""
    place = ", ".join(state["runtime"]["bin_dirs"])
    program = state["programs"].get(name)
    if program is None:
        seen = f'none: pods stay in ContainerCreating (failed to find plugin "{name}" in path [{place}])'
        wish = f"a program in {place}, used by {by}"
        yield Finding(f"plugin {name}", wish, seen, _placing(name, wanted), "plugin-missing")
        return
    path, elf, machine, replace = program["path"], program["elf"], state["machine"], _replacing(name, wanted)
    wish = f"a program for {machine}"
    if not int(program["mode"], 8) & 0o111:
        seen, step = f"mode {program['mode']}", f"chmod 0755, or {replace}"
        yield Finding(path, "mode 0755", seen, step, "plugin-not-executable")
    elif program["script"]:
        return
    elif elf is None:
        yield Finding(path, wish, f"{program['size']} bytes that are not a program", replace, "plugin-no-program")
    elif machine and elf["machine"] != machine:
        seen = f"one for {elf['machine']}: pods fail with exec format error"
        yield Finding(path, wish, seen, replace, "plugin-wrong-machine")
    elif program["size"] < elf["size"]:
        wish, seen = f"{elf['size']} bytes or more", f"{program['size']} bytes: half-written"
        yield Finding(path, wish, seen, replace, "plugin-cut-short")


def _placing(name: str, wanted: dict) -> str:
    if name == SHIM:
        return "see the Multus pod's init container"
    if name == CLAIM or name in wanted["plugins"]:
        return _RUN_ROLE
    if name in REFERENCE:
        return f"add it to cni_plugins_names and {_RUN_ROLE}"
    return "see the log of the pod that installs it on this node (k3s kubectl get pods -A -o wide), or install it there"


def _replacing(name: str, wanted: dict) -> str:
    if name == SHIM:
        return "delete the Multus pod of this node"
    if name == CLAIM or name in wanted["plugins"] or name in REFERENCE:
        return _RUN_ROLE
    return "delete the pod that installs it on this node, or install it again"


def _leftovers(state: dict):
    directory = state["runtime"]["conf_dir"]
    paths = [f"{directory}/{name}" for name in state["others"] if LEFTOVER.search(name)] + state["leftovers"]
    seen = "one left by an interrupted write; the runtime does not read it"
    return [Finding(path, "no half-written file", seen, "remove it", "leftover") for path in sorted(paths)]


def _kernel(state: dict):
    """K7: Flannel exits without br_netfilter; pods reach no Service without the two sysctls."""
    step = f"{_RUN_ROLE} (role flannel sets it now and at boot)"
    for key in SYSCTLS:
        value = state["sysctls"].get(key)
        if value is None and "bridge" in key:
            seen = "missing: br_netfilter is not loaded, Flannel exits with Failed to check br_netfilter"
            yield Finding(f"sysctl {key}", "1", seen, step, "no-br-netfilter")
        elif value != "1":
            yield Finding(f"sysctl {key}", "1", str(value), step, "sysctl-off")


def _ports(state: dict, wanted: dict):
    """K9: Flannel's health port is on the node's own network."""
    port = wanted["health_port"]
    if port and port in state["ports"] and not state["flannel"]:
        wish, seen = "a free port for Flannel's health endpoint (flannel_health_port)", "another program listens on it"
        step = "set flannel_health_port to a free one, or to 0"
        yield Finding(f"TCP port {port}", wish, seen, step, "health-port-taken")


# --- the DaemonSets ---------------------------------------------------------------------------------------------------


def lint_objects(objects: list[dict], bin_dir: str = "/opt/cni/bin") -> list[Finding]:
    """Findings in the objects that run Flannel and Multus, ours or foreign."""
    found: list[Finding] = []
    for item in objects:
        if item.get("kind") == "DaemonSet":
            spec = item["spec"]["template"]["spec"]
            for kind in ("initContainers", "containers"):
                for container in spec.get(kind) or ():
                    found += _daemon(item, kind, container, bin_dir)
        elif item.get("kind") == "ConfigMap":
            found += _daemon_config(item)
    return found


def _daemon(item: dict, kind: str, container: dict, bin_dir: str):
    image = str(container.get("image", ""))
    command = " ".join([*container.get("command", []), *container.get("args", [])])
    name = f"DaemonSet {item['metadata'].get('namespace', 'default')}/{item['metadata']['name']} {container['name']}"
    if not any(word in f"{image} {command}" for word in ("multus", "flannel")):
        return
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if "@sha256:" not in image and (not tag or re.match(r"(latest|snapshot|master|main|stable)\b", tag)):
        seen = f"{image}: it may change at any time and need other RBAC rules"
        step = "pin a release (multus_image, flannel_image)"
        yield Finding(name, "an image of one release", seen, step, "image-not-pinned")
    if "multus" not in image + command:
        return
    memory = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    if memory and quantity(memory) < 512 << 20:
        seen = f"{memory}: it is killed when many pods start at once, typically after a reboot"
        step = "remove the limit; the plugins it starts count too"
        yield Finding(name, "no memory limit, or 512Mi and more", seen, step, "multus-memory-limit")
    if kind == "initContainers" and _overwrites(command):
        wish = "the shim written to a temporary name and renamed"
        seen = f"{command}: Text file busy while a pod starts, and an incomplete program meanwhile"
        step = "copy to another name in the same directory and mv it, or use install_multus"
        yield Finding(name, wish, seen, step, "shim-overwritten")
    volumes = {volume["name"]: volume for volume in item["spec"]["template"]["spec"].get("volumes") or ()}
    for mount in container.get("volumeMounts") or () if kind == "containers" else ():
        path = ((volumes.get(mount["name"]) or {}).get("hostPath") or {}).get("path", "").rstrip("/")
        if path == bin_dir and mount["mountPath"].rstrip("/") != path:
            wish = f"{path} of the node at the same path in the pod"
            seen = f"at {mount['mountPath']}: the daemon does not find the plugins"
            yield Finding(name, wish, seen, "mount it at the same path", "bin-dir-mounted-elsewhere")


def _overwrites(command: str) -> bool:
    copies = re.search(r"\bcp\b[^;&|]*\bmultus-shim\b[^;&|]*", command)
    return bool(copies) and not re.search(r"\bmv\b[^;&|]*\bmultus-shim\b", command)


def _daemon_config(item: dict):
    """M4, M6, M7: how Multus finds the pod network's configuration."""
    text = (item.get("data") or {}).get("daemon-config.json")
    if text is None:
        return
    name = f"ConfigMap {item['metadata'].get('namespace', 'default')}/{item['metadata']['name']}"
    try:
        config = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        yield Finding(name, "a JSON object", f"{error}", _RUN_ROLE, "daemon-config-invalid")
        return
    if config.get("multusConfigFile") == "auto" and not config.get("multusMasterCNI"):
        seen = f"none: Multus uses the first file in {config.get('multusAutoconfigDir')}, and exits when none appears "
        wish, step = "multusMasterCNI, the pod network's configuration", f"set it to {PRIMARY_NAME}"
        yield Finding(name, wish, f"{seen}within 120 s", step, "multus-picks-first")
    if config.get("multusAutoconfigDir") == config.get("cniConfigDir"):
        wish = "the pod network's configuration where only Multus reads it"
        seen = f"in {config.get('cniConfigDir')}, where the runtime reads it as well: while Multus is down, pods start "
        step = f"set multusAutoconfigDir to {HOST_PREFIX}{PRIMARY_DIRECTORY} and put Flannel's configuration there"
        yield Finding(name, wish, f"{seen}without net1", step, "pod-network-usable-alone")
