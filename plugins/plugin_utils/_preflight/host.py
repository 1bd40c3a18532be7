"""Everything that is wrong with a host's variables and facts, found before anything changes. Pure."""

import difflib
import re

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Change, Finding
from ...module_utils._device_plugin import config
from ...module_utils._driver import packages
from ...module_utils._driver import plan as driver_plan
from ...module_utils._host import firmware, kernel_modules, memlock, netns, pcie, rail_links
from ...module_utils.hca import facts as hca_facts
from ...module_utils.hca import hcas as devices
from ...module_utils.hca import node as hca_node
from ...module_utils.hca import rails
from .._bundle import driver as driver_bundle
from .._findings import catalogue
from . import fabric_plan

# Variables of the plays themselves, which no role documents.
PLAY_VARIABLES = frozenset({"cluster", "discovery_hosts"})
# Groups of the inventory, by names that an operator might give a variable.
GROUPS = frozenset({"k3s_servers", "gpu_nodes"})

_NEAR = 0.9
NO_HCA = "discovery_rails:absent"
_LOADED = ("mlx5_core", "mlx5_ib", "mlx4_ib")
_BOOLEANS = frozenset({"true", "yes", "on", "1", "false", "no", "off", "0"})
_ROOT_ONLY = "set become: true, or connect as root"


def unreachable(message: str) -> Finding:
    step = "check address, user and key with: ansible HOST -m ansible.builtin.ping\nor leave the host out with --limit"
    return Finding("connection", "a reachable node", f"unreachable: {core_text.reason(message)}", step)


def unread(message: str) -> Finding:
    step = "fix the cause given here (Python 3.9 or newer on the node, become rights) and run again"
    return Finding("facts", "a node that can be read", message, step)


# --- variables -------------------------------------------------------------------------------------------------------


def validate(options: dict, values: dict) -> tuple[dict, list[Finding]]:
    """Check each variable against its option; returns the effective values and the problems.

    An invalid value is replaced by the default, so that the later checks can still run.
    """
    effective, findings = {}, []
    for name, option in sorted(options.items()):
        value, default, problem = values.get(name, option.get("default")), option.get("default"), None
        # ansible-core reads a null as "not given"; here it would silently switch a default off.
        if value is None and default is not None:
            problem = _odd(name, describe(option), "null (no value after the colon?)")
        # YAML reads 3.10 as 3.1, and no conversion brings the zero back.
        elif name == "driver_version" and isinstance(value, (int, float)):
            step = "put it in quotes where it is set (inventory, group_vars or -e)"
            problem = Finding(f"variable {name}", 'text, such as "3.10"', f"the number {value}", step)
        # Its type would split the text at commas, brackets and all.
        elif option.get("type") == "list" and isinstance(value, str) and value.strip()[:1] in ("", "["):
            step = f"""give it as JSON, -e '{{"{name}": […]}}', or in a file"""
            problem = Finding(f"variable {name}", describe(option), f"the text {config.short(value)}", step)
        # Ansible's filter bool reads the other spellings that argument specs accept as false.
        elif option.get("type") == "bool" and isinstance(value, str) and value.lower() not in _BOOLEANS:
            problem = _odd(name, describe(option), config.short(value))
        else:
            checked = ArgumentSpecValidator({name: option}).validate({name: value})
            if checked.error_messages:
                problem = _odd(name, describe(option), _seen(option, value, checked.error_messages))
            else:
                value = _given(checked.validated_parameters[name])
        effective[name] = default if problem else value
        findings += [problem] if problem else []
    return effective, findings


def _seen(option: dict, value, messages: list[str]) -> str:
    """The value; with the messages, which quote it, if they say more than that its type is wrong."""
    if option.get("no_log"):
        return "another type"
    more = [text for text in messages if "unable to convert" not in text and "could not parse" not in text]
    return "; ".join([config.short(value), *more])


def _given(value):
    """Without the nulls that the validator adds for unset suboptions, which a module would take as set."""
    if isinstance(value, list):
        return [_given(item) for item in value]
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


# What a type cannot express: names that end up in a file or a command, and numbers with a valid range.
_MODULE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SERVICE_NAME = re.compile(r"[A-Za-z0-9:_@-]+")
# RFC 1123, as the API server accepts names of nodes (subdomains) and of namespaces (labels).
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
NODE_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
NODE_NAME_WANTED = "a DNS name in lower case (RFC 1123), as Kubernetes requires"
_NAMESPACE = re.compile(_LABEL)
_DIRECTORY = re.compile(r"(?:/[A-Za-z0-9._+@-]+)+/?|/")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]-]*")
_SERVER = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}")
_URL = re.compile(r"https://[^/]+")
_DIRECTORY_WANTED = "an absolute path of letters, digits and . _ + @ -"
_IMAGE_WANTED = "an image reference"
_URL_WANTED = "a URL such as https://192.0.2.10:6443, or nothing"


# Variables that end up in a file, a command or an object, and the form of their values.
_TEXTS = (
    ("kernel_modules_required", _MODULE_NAME, "names of kernel modules"),
    ("limits_services", _SERVICE_NAME, "names of services without .service"),
    ("node_ready_services", _SERVICE_NAME, "names of services without .service"),
    ("k3s_node_name", NODE_NAME, NODE_NAME_WANTED),
    ("driver_drain_node", NODE_NAME, NODE_NAME_WANTED),
    ("verification_namespace", _NAMESPACE, "the name of a namespace"),
    ("nccl_tests_namespace", _NAMESPACE, "the name of a namespace"),
    ("networks_namespaces", _NAMESPACE, "names of namespaces"),
    ("multus_global_namespaces", _NAMESPACE, "names of namespaces"),
    ("cni_plugins_directory", _DIRECTORY, _DIRECTORY_WANTED),
    ("device_plugin_kubelet_root", _DIRECTORY, _DIRECTORY_WANTED),
    ("multus_conf_directory", _DIRECTORY, _DIRECTORY_WANTED),
    ("multus_plugin_directory", _DIRECTORY, _DIRECTORY_WANTED),
    ("networks_cni_bin_dir", _DIRECTORY, _DIRECTORY_WANTED),
    ("networks_multus_conf_dir", _DIRECTORY, _DIRECTORY_WANTED),
    ("device_plugin_image", _IMAGE, _IMAGE_WANTED),
    ("flannel_image", _IMAGE, _IMAGE_WANTED),
    ("multus_image", _IMAGE, _IMAGE_WANTED),
    ("networks_images", _IMAGE, "image references"),
    ("nccl_tests_image", _IMAGE, _IMAGE_WANTED),
    ("verification_image", _IMAGE, _IMAGE_WANTED),
    ("device_plugin_metrics_address", _ADDRESS, "an address and a port, or :PORT"),
    ("multus_api_server", _SERVER, "an address and a port"),
    ("flannel_api_server", _SERVER, "an address and a port"),
    ("k3s_server_url", _URL, _URL_WANTED),
    ("device_plugin_api_server", _URL, _URL_WANTED),
    ("node_ready_api_server", _URL, _URL_WANTED),
)


def values(variables: dict, options: dict) -> list[Finding]:
    """Findings about single values; a value that no planner can work with is reset to its default.

    variables: those of all roles, or of some.
    """
    found = []
    for name, pattern, wanted in _TEXTS:
        value = variables.get(name) or ()
        items = [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value
        odd = [item for item in items if not pattern.fullmatch(str(item))]
        if odd:
            found.append(_odd(name, wanted, ", ".join(map(repr, odd))))
    for name, option in options.items():
        if name in variables and _unprintable(
            variables[name], option["type"] in ("dict", "raw") or "options" in option
        ):
            seen = "one of these" if option.get("no_log") else config.short(variables[name])
            found.append(_odd(name, "text without control, bidi and invisible characters", seen))
    for name, least in _LEAST.items():
        if variables.get(name) is not None and variables[name] < least:
            found.append(_odd(name, f"{least} or more", str(variables[name])))
    port = variables.get("verification_port")
    if port is not None and not 1024 <= port <= 65000:
        found.append(_odd("verification_port", "a TCP port from 1024 to 65000", str(port)))
    for name in ("verification_namespace", "nccl_tests_namespace"):
        space = variables.get(name) or ""
        if space == "default" or space.startswith("kube-") or space in (variables.get("networks_namespaces") or ()):
            found.append(_odd(name, "a separate namespace for the tests, which can be deleted completely", space))
    try:
        memlock.parse(variables.get("limits_memlock") or "infinity")
    except ValueError as error:
        found.append(_odd("limits_memlock", "infinity, or a number of bytes with K, M, G, T, P or E", str(error)))
        variables["limits_memlock"] = options["limits_memlock"]["default"]
    if variables.get("pcie_read_request") not in (None, pcie.READ_REQUEST):
        found.append(_odd("pcie_read_request", f"{pcie.READ_REQUEST}, or null", str(variables["pcie_read_request"])))
        variables["pcie_read_request"] = None
    resources = variables.get("device_plugin_resources")
    if resources is not None and not config.is_known(resources):
        found.append(_odd("device_plugin_resources", config.WANTED, config.short(resources)))
    if firmware.malformed(variables.get("fabric_firmware", {})):
        found.append(_odd("fabric_firmware", firmware.WANTED, config.short(variables["fabric_firmware"])))
        variables["fabric_firmware"] = {}
    found += fabric_plan.findings(variables)
    odd = [item for item in variables.get("discovery_rails") or () if len(item.keys() - {"port"}) != 1]
    if odd:
        found.append(_odd("discovery_rails", "items with exactly one of hca, pci, netdev and mac", config.short(odd)))
        variables["discovery_rails"] = [item for item in variables["discovery_rails"] if item not in odd]
    odd = [item for item in variables.get("rail_links_settings") or () if not _is_setting(item)]
    if odd:
        wanted = "items with exactly one of pci and mac, and an mtu from 68 to 65535 or up: true"
        found.append(_odd("rail_links_settings", wanted, config.short(odd)))
        variables["rail_links_settings"] = [item for item in variables["rail_links_settings"] if item not in odd]
    return found


_LEAST = {
    "device_plugin_interval_seconds": 0,
    "matrix_peers": 1,
    "matrix_round_seconds": 1,
    "matrix_seconds": 1,
    "rdma_netns_retry_seconds": 0,
    "reboot_serial": 1,
    "reboot_timeout_seconds": 1,
    "verification_bandwidth_seconds": 1,
    "verification_bandwidth_minimum_percent": 0,
    "verification_timeout_seconds": 1,
}


def _unprintable(value, several_lines: bool) -> bool:
    """Whether a value, or a part of it, has characters that a terminal or a file format interprets."""
    if isinstance(value, dict):
        return any(_unprintable(part, several_lines) for item in value.items() for part in item)
    if isinstance(value, list):
        return any(_unprintable(item, several_lines) for item in value)
    if not isinstance(value, str):
        return False
    return core_text.clean(value) != value or (not several_lines and ("\n" in value or "\t" in value))


def _is_setting(item: dict) -> bool:
    mtu = item.get("mtu")
    keyed = (item.get("pci") is None) != (item.get("mac") is None)
    return keyed and (68 <= mtu <= 65535 if mtu is not None else bool(item.get("up")))


def _odd(name: str, wanted: str, seen: str) -> Finding:
    return Finding(f"variable {name}", wanted, seen, "correct it where it is set (inventory, group_vars or -e)")


def describe(option: dict) -> str:
    kind = {"str": "text", "int": "a whole number", "bool": "true or false", "path": "a path", "dict": "a mapping"}
    if option.get("choices"):
        return "one of: " + ", ".join(str(choice) for choice in option["choices"])
    text = kind.get(option["type"], option["type"])
    if option["type"] == "list":
        elements = option.get("elements", "str")
        text = f"a list of {'mappings' if elements == 'dict' else kind.get(elements, elements)}"
        if option.get("options"):
            text += f" with {', '.join(sorted(option['options']))}"
    return f"{text}, or null" if "default" not in option or option["default"] is None else text


def unresolved(name: str, message: str) -> Finding:
    step = "define what it refers to, or give the value itself"
    return Finding(f"variable {name}", "a value that resolves for this host", message, step)


def unknown(names, options, roles, accepted=()) -> list[dict]:
    """Variables that look like ours (by prefix, or one typo away) but that no role knows."""
    prefixes = tuple(f"{role}_" for role in roles)
    known = set(options) | PLAY_VARIABLES
    findings = []
    for name in sorted(set(names) - known - set(accepted)):
        if name.startswith("ansible_"):  # Ansible's own: dozens for each host, none similar to ours
            continue
        ours = name.startswith(prefixes)
        if name in GROUPS:
            step = f"make {name} a group of the inventory, and the nodes its hosts"
            facts = ("a group of the inventory", "a variable", step)
        else:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6 if ours else _NEAR)
            if not near and not ours:
                continue
            hint = f"did you mean {near[0]}?" if near else "no variable has a similar name"
            step = f"{hint} If it belongs to something else, list it in discovery_known_variables"
            wanted = "a variable that a role of gpufabric.rdma knows"
            facts = (wanted, "no role knows it, so it would have no effect", step)
        findings.append(Finding(f"variable {name}", *facts))
    return findings


def without_cluster(names, options) -> list[Finding]:
    """Variables of k3s and its pod network, which no play reads with cluster: false."""
    step = "take it out, or take out cluster: false"
    seen = "cluster: false, so it would have no effect"
    return [Finding(f"variable {name}", "a cluster layer", seen, step) for name in sorted(set(names) & set(options))]


# --- the node against the variables ----------------------------------------------------------------------------------


def combinations(
    facts: dict, variables: dict, bundle: dict | None = None, lock: dict | None = None
) -> tuple[list[Finding], list[str]]:
    """Problems, and notes (worth knowing, no reason to stop). bundle: content of bundle.yml. lock: of the run."""
    findings: list[Finding] = []
    notes = [
        f"{_card(card)}: {card['reason']} {card.get('next_step') or ''}".strip()
        for card in facts["cards_without_rdma"]
        if not _will_get_rdma(card, facts)
    ]
    notes += [
        f"discovery_rails[{rail['index']}] ({rail['hca']}/{rail['port']}) is used as named, although: {rail['lacks']}"
        for rail in facts.get("rails") or ()
        if rail.get("lacks")
    ]
    notes += _one_subnet(facts, variables)
    findings += _system(facts)
    findings += _driver(facts, variables, bundle, lock or {})
    findings += _hcas(facts, variables)
    named = _rails(facts, variables)
    # The missing card is known, and its rail stays empty.
    if variables["discovery_expected_hcas"] == len(counted(facts, variables)):
        notes += [row["reason"] for row in facts.get("not_rails") or () if row["code"] == "named"]
        named = [finding for finding in named if finding.id != NO_HCA]
    findings += named
    findings += _expected_ports(facts, variables)
    return findings, notes


def _one_subnet(facts: dict, variables: dict) -> list[str]:
    if variables["rail_links_source_routes"]:
        return []
    shared = [(subnet["network"], subnet["rails"]) for subnet in facts.get("shared_subnets") or ()]
    return [
        f"rails {core_text.listing(str(rail['index']) for rail in rails)} share {network}: Linux sends through one of "
        "them; give each a subnet, or set rail_links_source_routes: true"
        for network, rails in shared
        if any(rail["leaves_by"] not in (rail["netdev"], None) for rail in rails)
    ]


def _system(facts: dict) -> list[Finding]:
    found = []
    node = facts["node"]
    system = node["os"]
    if isinstance(system, dict) and not hca_node.family(system):
        seen = f"{system.get('pretty_name') or system.get('id') or 'no os-release'}"
        step = "the roles do not know the modprobe and initramfs layout of other systems; leave the node out"
        found.append(Finding("operating system", "Debian, Ubuntu, RHEL or a derivative", seen, step))
    if node.get("euid") not in (None, 0):
        found.append(Finding("privilege", "root on the node", f"user id {node['euid']}", _ROOT_ONLY))
    return found


def _changes_driver(variables: dict) -> bool:
    return variables["driver_flavor"] != "verify"


def _driver(facts: dict, variables: dict, bundle: dict | None, lock: dict) -> list[Finding]:
    """What the role driver can never do on this node; it looks for blockers itself, node by node."""
    node = facts["node"]
    if not _changes_driver(variables) or not isinstance(node["os"], dict):
        return []
    foreign = driver_plan.unsupported(node)
    return [Finding(*foreign)] if foreign else driver_bundle.findings(variables, node, bundle, lock)


def admitted(facts: dict, variables: dict) -> list[dict]:
    """HCAs that count, with software ones if allowed."""
    able = [hca for hca in facts["hcas"] if not rails.only_manages(hca, facts["hcas"])]
    return [hca for hca in able if hca["kind"] == "pci" or variables["discovery_software_hcas"]]


def counted(facts: dict, variables: dict) -> list[dict]:
    """Those of discovery_expected_hcas. VFs and sub-functions come and go with settings, and hide a missing card."""
    return [hca for hca in admitted(facts, variables) if hca["function"] not in ("vf", "sf")]


def _hcas(facts: dict, variables: dict) -> list[Finding]:
    able, names = admitted(facts, variables), [hca["name"] for hca in counted(facts, variables)]
    software = [hca["name"] for hca in facts["hcas"] if hca not in able]
    coming = [card for card in facts["cards_without_rdma"] if _will_get_rdma(card, facts)]
    dead = [card for card in facts["cards_without_rdma"] if card not in coming]
    found = []
    if variables["discovery_hca_required"] and not able and not coming:
        if dead:
            seen = "; ".join(f"{_card(card)}: {card['reason']}" for card in dead)
            step = " ".join(sorted({card.get("next_step") or "" for card in dead})).strip()
        else:
            seen = f"only software HCAs: {core_text.listing(software)}" if software else "no infiniband device"
            seen += " and no card of vendor 15b3 on PCI"
            step = "check the slot, the BIOS and lspci -d 15b3: on the node; for a node without HCAs: "
            step += "discovery_hca_required: false"
            if not variables["discovery_software_hcas"]:
                step += "; to admit soft-RoCE devices: discovery_software_hcas: true"
        found.append(Finding("HCA", "at least one HCA", seen, step))
    wanted = variables["discovery_expected_hcas"]
    if wanted is not None and wanted != len(names) and not coming:
        seen = f"{len(names)}: {core_text.listing(names) or 'none'}"
        seen += "".join(f"; {_card(card)} has no RDMA: {card['reason']}" for card in dead)
        step = "find the missing card (lspci, kernel log), or correct discovery_expected_hcas"
        found.append(Finding("HCA", f"{core_text.count(wanted, 'HCA')} (discovery_expected_hcas)", seen, step))
    return found


def _will_get_rdma(card: dict, facts: dict) -> bool:
    """Whether the card lacks only a module that the role kernel_modules loads."""
    name = devices.lacking(card.get("device"), card.get("driver"))
    return name in _LOADED and not (facts["modules"].get(name) or {}).get("loaded", False)


def _card(card: dict) -> str:
    return f"card {card['address']} ({card.get('model') or card.get('device') or 'unknown model'})"


def _expected_ports(facts: dict, variables: dict) -> list[Finding]:
    there = [f"{hca['name']}/{port['number']}" for hca in facts["hcas"] for port in hca["ports"]]
    if not there and facts["cards_without_rdma"]:
        return []
    seen = f"ports here: {core_text.listing(there) or 'none'}"
    step = "correct the name (the driver or udev may have renamed the HCA), or set it for the hosts that have it"
    return [
        Finding(f"discovery_expected_ports: {wanted}", "a port of this node, as HCA/port", seen, step)
        for wanted in variables["discovery_expected_ports"]
        if wanted not in there
    ]


def _rails(facts: dict, variables: dict) -> list[Finding]:
    found, taken = [], {}
    waiting = any(_will_get_rdma(card, facts) for card in facts["cards_without_rdma"])
    for position, item in enumerate(variables["discovery_rails"]):
        given = {key: value for key, value in item.items() if value is not None and key != "port"}
        ((key, value),) = given.items()
        obj = f"discovery_rails[{position}]: {key} {value}"
        matches = matching(facts["hcas"], key, value)
        if not matches:
            cards = [card["address"] for card in facts["cards_without_rdma"]]
            if waiting and (key == "hca" or str(value).lower() in cards or key in ("netdev", "mac")):
                continue
            seen = f"HCAs here: {core_text.listing(map(_identity, facts['hcas'])) or 'none'}"
            seen += f"; cards without RDMA: {core_text.listing(cards)}" if cards else ""
            step = "use one of these, or set discovery_rails for the hosts that have it; for a rail that should stay "
            step += f"empty, discovery_expected_hcas: {len(counted(facts, variables))} for this host"
            found.append(Finding(obj, f"an HCA with this {key}", seen, step, NO_HCA))
        for place in [(name, item.get("port")) for name in matches]:
            if place in taken:
                seen = f"{place[0]} is already the rail of discovery_rails[{taken[place]}]"
                found.append(Finding(obj, "each HCA port in one rail", seen, "remove one of the two"))
            taken.setdefault(place, position)
        ports = [port["number"] for hca in facts["hcas"] if hca["name"] in matches for port in hca["ports"]]
        if item.get("port") and matches and item["port"] not in ports:
            seen = f"{', '.join(matches)} has port {', '.join(map(str, ports))}"
            found.append(Finding(obj, f"port {item['port']}", seen, "correct the number, or leave it out"))
        elif len(ports) > 1 and not item.get("port") and key in ("hca", "pci"):
            step = "add port: with its number, or name the rail by netdev or mac"
            found.append(Finding(obj, "one port", f"{len(ports)} ports: {', '.join(map(str, ports))}", step))
    return found


def matching(hcas, key: str, value) -> list[str]:
    """Names of the HCAs that a rail item selects."""
    return [hca["name"] for hca in hcas if rails.matches(hca, key, str(value).lower())]


def _identity(hca: dict) -> str:
    parts = [(hca["pci"] or {}).get("address") or hca["kind"]]
    for netdev in hca["netdevs"]:
        # All but the last eight octets of an IPoIB address change with each load of the driver.
        mac = netdev["mac"] if len(netdev["mac"] or "") == 17 else None
        parts.append(" ".join(filter(None, (netdev["name"], mac))))
    return f"{hca['name']} ({', '.join(parts)})"


# The roles of `plans`, and the reason for the changes of each planner.
PLANNED = {
    "kernel_modules": "verbs need these modules, now and at boot",
    "rdma_netns": "the RDMA netns mode should be {rdma_netns_mode}, now and at boot",
    "limits": "containers inherit locked memory and start order from it",
    "rail_links": "rail_links_settings, rail_links_source_routes",
    "fabric": "jobs use the traffic class of fabric_plan; values of fabric_firmware",
    "pcie": "pcie_acs: {pcie_acs}, pcie_read_request: {pcie_read_request}",
}


def tools(facts: dict, variables: dict) -> dict[str, list[str]]:
    """{apt or dnf: packages to verify traffic with that the node lacks}, in the version of its own rdma-core: any other
    would replace it.
    """
    manager = packages.manager(facts["node"])
    if (
        not variables["verification_tools"]
        or variables["discovery_root"].rstrip("/")
        or not facts["hcas"]
        or not manager
    ):
        return {}
    there = facts["driver"]["installed"]["packages"]
    version = there.get("libibverbs1") or there.get("libibverbs")
    begin, joint = {packages.APT: ("", "="), packages.DNF: ("lib", "-")}[manager]
    of_rdma_core = (f"{begin}rdmacm-utils", f"{begin}ibverbs-utils", "infiniband-diags")
    wanted = {name: f"{name}{joint}{version}" if version else name for name in of_rdma_core} | {"perftest": "perftest"}
    lacking = [package for name, package in wanted.items() if name not in there]
    return {manager: lacking} if lacking else {}


# Planners of the modules of these roles, in the order they run, and the variables that each reads, without its role.
_PLANNERS = {
    "rdma_netns": (netns.plan, "mode", "override_allowed"),
    "kernel_modules": (kernel_modules.plan, "required", "ipoib", "gpudirect", "gpu_initiated"),
    "limits": (memlock.plan, "services", "memlock"),
    "rail_links": (rail_links.plan, "settings", "source_routes"),
    "fabric": (None,),
    "pcie": (pcie.plan, "acs", "read_request"),
}


def plans(facts: dict, variables: dict) -> dict:
    """The Plan of each role."""
    made, changes = {}, _changes_driver(variables)
    for role, (planner, *names) in _PLANNERS.items():
        if planner is None:
            made[role] = fabric_plan.on_node(facts, variables)[0]
            continue
        wanted = {name: variables[f"{role}_{name}"] for name in names} | {"driver_changes": changes}
        made[role] = planner(facts, wanted, variables["discovery_root"])
    return made


def plan(facts: dict, variables: dict) -> dict:
    """What a run would change on this node: changes, problems, reboot_reasons, notes; what it skips or cannot verify.

    settled: whether the roles of the host layer would only repeat the notes.
    """
    made_by = plans(facts, variables)
    made = list(made_by.values())
    pending = any(each.changes or each.findings or each.reboot_reasons or each.stale_images for each in made)
    whys = {role: PLANNED[role].format(**variables) for role in made_by}
    rows = [(role, whys[role], change) for role, each in made_by.items() for change in each.changes]
    if variables["kernel_modules_initramfs"] != "never":
        why = "the initramfs contains an older copy of our modprobe.d file"
        stale = dict.fromkeys(image for each in made for image in each.stale_images)
        rows += [("kernel_modules", why, Change(image, "rebuild", "older", "rebuilt")) for image in stale]
    # Reasons that no role of the run causes; the planner of rdma_netns reports its own.
    notes = hca_facts.reboot_reasons({"driver": facts["driver"]})
    notes += [note for each in made for note in (*each.not_applied, *each.not_verified, *each.notes)]
    return {
        "settled": not (_changes_driver(variables) or facts["unfinished"] or pending),
        "changes": [{**change._asdict(), "why": why, "role": role} for role, why, change in rows],
        "findings": [finding for each in made for finding in each.findings],
        "reboot_reasons": list(dict.fromkeys(reason for each in made for reason in each.reboot_reasons)),
        "notes": list(dict.fromkeys(notes)),
        "not_applied": [text for each in made for text in each.not_applied],
        "not_verified": [text for each in made for text in each.not_verified],
    }


# --- text for people --------------------------------------------------------------------------------------------------


def failure_text(findings: list[dict], hosts: list[str]) -> tuple[str, str]:
    """Headline and list of problems for a run that must not start."""
    listed = [{**item, "failure": catalogue.prevented(item)} for item in findings]
    concerned = {name for item in findings for name in item["host"].split(", ")} & set(hosts)
    where = f" on {len(concerned)} of {core_text.count(len(hosts), 'node')}" if concerned else ""
    different = {tuple(item[fact] for fact in Finding._fields) for item in findings}
    head = f"{core_text.count(len(different), 'problem')}{where}; nothing has been changed."
    return head, core_text.four_facts(listed)


def plan_text(results, check_mode: bool = False) -> str:
    """What the run will do, for all hosts; hosts with the same plan share a block."""
    lines = ["Plan" + (" (check mode: none of it is applied)" if check_mode else "")]
    shapes = []
    for result in results:
        rows = [(item["object"], item["action"], item["why"]) for item in result["plan"]]
        shapes.append((result["host"], (rows, result["reboot_reasons"], result["notes"], result.get("driver"))))
    for hosts, (changes, reasons, notes, driver) in core_text.alike(shapes):
        lines.append(
            f"  {core_text.of_nodes(hosts)}: "
            + (core_text.count(len(changes), "change") if changes else "nothing to change")
        )
        if changes:
            lines += [f"    {line}" for line in core_text.table(("object", "action", "why"), changes).splitlines()]
        lines += [f"    driver: {driver}"] if driver else []
        lines += [f"    reboot needed: {reason}" for reason in reasons]
        lines += [f"    note: {note}" for note in notes]
    return "\n".join(lines)
