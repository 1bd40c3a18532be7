"""The one plan of a run: readings of all nodes and their typed variables in; findings and decisions out.

Each role's planner is a pure function. Here each gets its input, in the order of the roles, and all nodes' problems are
collected. A node has the form in which the action `plan` returns it when it reads: {host, address,
variables (typed), problems (of these), ansible_facts.rdma, hostname, k3s, networks, firewall, runtime}, or with `lost`
or `failure`, which say why it was not read.
"""

import difflib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding, at
from ...module_utils._device_plugin import config
from ...module_utils._device_plugin import dra as plugin_dra
from ...module_utils._device_plugin import objects as plugin_objects
from ...module_utils._device_plugin import plan as plugin_plan
from ...module_utils._driver import packages
from .._bundle import cni
from .._bundle import folder as bundle_folder
from .._core.rails import dra_rails, network_rails
from . import bundle as needs
from . import fabric_plan, firewall, host, k3s, networks, rail_map, roles, variables

# The whole host layer: every variable of every role, the HCAs, and what its roles would change.
HOST_LAYER = "discovery"
CONTROLLER = "the controller"
# What the controller knows of a node by itself.
OWN = ("host", "address", "variables", "problems")


class Run(NamedTuple):
    """The state of the run, not of one node.

    hosts: of the play. nodes: all of the inventory, in this run or not. servers: {host: (ansible_host,
    k3s_node_ip)}, also of those outside of this run. outside: those, as they were read. registered: {name of a Node of
    the cluster: system UUID of its machine}. bundle: of the first node. lock: of the collection. daemonset: the
    manifest of the device plugin, which `kubectl apply -k` uses too. answers: {host: (what fabric_tests listened
    on, what it was told)}. offered: what cluster_info read about DRA. partial: nodes that could not be read, or whose
    variables are invalid, are left out instead of stopping the run. lacking: {tool: collection missing on the
    controller}.
    fetch: what the controller's cache, used as the bundle, lacks: {files, wheels, described: bundle.yml once it is
    filled, …}; the content of those files cannot be compared yet. downloads: rows of the lock that nodes fetch
    themselves, see _bundle.folder.
    """

    roles: Sequence[str]
    hosts: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    nodes: Sequence[str]
    servers: Mapping[str, tuple]
    bundle: str | None
    lock: dict
    daemonset: dict
    now: float
    offered: dict | None = None
    outside: Sequence[dict] = ()
    registered: Mapping[str, str] = {}
    answers: Mapping[str, tuple] = {}
    lacking: Mapping[str, str] = {}
    upgrade: bool = False
    partial: bool = False
    fetch: Mapping[str, Any] = {}
    downloads: Sequence[dict] = ()


def plan(nodes: list[dict], run: Run) -> dict:
    """_plan(); a node whose answer makes that impossible counts as one that was not read."""
    try:
        return _plan(nodes, run)
    except Exception:
        servers = {**dict.fromkeys([node["host"] for node in nodes], (None, None)), **run.servers}
        alone = run._replace(outside=(), servers=servers)
        odd = {node["host"]: _unplannable(node, nodes, alone) for node in [*nodes, *run.outside]}
        if not any(odd.values()):
            raise
        nodes, outside = ([_doubted(node, odd[node["host"]]) for node in rows] for rows in (nodes, run.outside))
        return _plan(nodes, run._replace(outside=outside))


def _doubted(node: dict, why: str) -> dict:
    return {**{key: node[key] for key in OWN}, "failure": why} if why else node


def _unplannable(node: dict, nodes: list[dict], run: Run) -> str:
    """Why a cluster whose nodes all answered like this one could not be planned."""
    try:
        _plan([{**node, **{key: other[key] for key in OWN}} for other in nodes], run)
    except Exception as error:  # noqa: BLE001 - any error is this node's
        return f"the node's answer cannot be planned with: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _plan(nodes: list[dict], run: Run) -> dict:
    """{roles, hosts: {host: decisions}, findings: [of all, each with host and role], notes}, and the decisions of roles
    for all hosts. The host layer decides `settled`: whether none of its roles has anything to do.
    """
    _described.cache_clear()
    findings: list[dict] = []
    hosts = {node["host"]: _of_host(node, run, findings) for node in nodes}
    for name, odd in rail_map.differing({name: decided.get("rail_map") for name, decided in hosts.items()}).items():
        findings += [{**row, "role": ""} for row in at(name, [odd])]
    findings += [{**row, "role": ""} for row in _twice(nodes) if not run.partial]
    made: dict[str, Any] = {"roles": list(run.roles), "hosts": hosts, "findings": findings, "notes": []}
    read = [node for node in nodes if _facts(node) is not None]
    drains = _drains(nodes, run)
    for node in read:
        hosts[node["host"]]["drain"] = drains[node["host"]]
    if run.partial:
        wrong = {item["host"] for item in findings}
        read = [node for node in read if node["host"] not in wrong]
    run = run._replace(registered=_registered(read, run))
    if {"k3s", "cluster_objects"} & set(run.roles) and not run.partial:
        findings += [{**row, "role": "k3s"} for row in at(CONTROLLER, _selection(run))]
    if run.fetch and not run.partial:
        lacking = ", ".join(run.fetch["files"] + ["the device plugin's libraries"] * run.fetch["wheels"])
        made["notes"].append(f"{run.bundle} is filled first, with {lacking}")
    if read and (run.partial or len(read) == len(nodes)):
        for role, planner in _PLANNERS.items():
            if role in run.roles:
                planner(read, run, made)
    if "node_firewall" in run.roles:
        made["lacking"] = dict(run.lacking)
    made["fetch"] = dict(run.fetch)
    if read and made.get("networks") and made.get("device_plugin"):
        made["pod"] = first_pod(
            made["device_plugin"]["config"], made["networks"]["objects"], read[0]["variables"]["flannel_image"]
        )
    if HOST_LAYER in run.roles:
        made["settled"] = all(decided.get("settled") for decided in hosts.values())
    return with_findings(made, findings)


def _twice(nodes: list[dict]) -> list[dict]:
    """Hosts that are one machine: its changes would race, and traffic between them proves nothing."""
    live = [node for node in nodes if _facts(node) and not node["variables"]["discovery_root"].rstrip("/")]
    names = core_text.grouped(((_facts(node)["node"]["boot_id"], node.get("hostname")), node["host"]) for node in live)
    wanted, step = "a machine that the inventory has once", "leave one of them out, or correct its ansible_host"
    found = []
    for (boot, hostname), hosts in names.items():
        if boot and hostname and len(hosts) > 1:
            odd = Finding("host", wanted, f"one boot of {hostname}: {', '.join(hosts)}", step, "node:twice")
            found += [row for name in hosts for row in at(name, [odd])]
    return found


def merged(earlier: dict, later: dict, same: bool = False) -> dict:
    """The decisions of an earlier plan of this run, and those of roles since. same: both come from one reading, so the
    findings of the other roles hold.
    """
    hosts = {name: {**earlier["hosts"].get(name, {}), **decided} for name, decided in later["hosts"].items()}
    kept = [item for item in earlier["findings"] if same and item["role"] not in later["roles"]]
    both = {**earlier, **later, "hosts": hosts, "roles": list(dict.fromkeys([*earlier["roles"], *later["roles"]]))}
    return with_findings(both, [*kept, *later["findings"]])


def with_findings(made: dict, findings: list[dict]) -> dict:
    """The plan with these findings, each once, for the whole run and for the hosts that fail because of them."""
    unique: dict[tuple, dict] = {}
    for item in findings:
        unique.setdefault(tuple(item[key] for key in ("host", *Finding._fields)), item)
    listed, names = list(unique.values()), made["hosts"].keys()
    of_host: dict[str, list[dict]] = {name: [] for name in names}
    for item in listed:
        about = item["host"].split(", ")
        # A finding about no host of this run is about the controller, and stops all hosts.
        for name in about if names >= set(about) else names:
            of_host[name].append(item)
    hosts = {name: {**decided, "findings": of_host[name]} for name, decided in made["hosts"].items()}
    return {**made, "hosts": hosts, "findings": listed}


def _add(made: dict, role: str, rows: list[dict]) -> None:
    made["findings"] += [{**row, "role": role} for row in rows]


@functools.cache
def _described(folder: str | None) -> dict | None:
    """The description of a bundle, read once for all nodes."""
    return bundle_folder.described(folder)


def _facts(node: dict) -> dict | None:
    return (node.get("ansible_facts") or {}).get("rdma")


# --- one node ---------------------------------------------------------------------------------------------------------


def _of_host(node: dict, run: Run, findings: list[dict]) -> dict:
    typed, facts = node["variables"], _facts(node)
    if facts is not None and "firmware" in node:
        facts = {**facts, "firmware": node["firmware"]}
    rows = [Finding(**item) for item in node["problems"]]
    decided: dict[str, Any] = {}
    if node.get("lost"):
        rows.insert(0, host.unreachable(node["lost"]))
    elif facts is None:
        rows.insert(0, host.unread(node.get("failure") or "no answer"))
    elif HOST_LAYER in run.roles:
        problems, notes = host.combinations(facts, typed, _described(typed["k3s_bundle_dir"]), run.lock)
        outcome, tools = host.plan(facts, typed), host.tools(facts, typed)
        rows += problems + outcome["findings"]
        kept = ("settled", "reboot_reasons", "not_applied", "not_verified")
        decided = {
            **{name: outcome[name] for name in kept},
            "plan": outcome["changes"],
            "notes": notes
            + outcome["notes"]
            + [f"to verify traffic, {name} installs {', '.join(tools[name])}" for name in tools],
            "tools": tools,
            "tools_command": packages.apart_command(tools.get(packages.DNF, [])),
            "rail_map": rail_map.of_node(facts, typed),
            "driver": (facts.get("driver") or {}).get("explanation"),
        }
    elif host.PLANNED.keys() & set(run.roles):
        for role, planned in host.plans(facts, typed).items():
            rows += planned.findings if role in run.roles else []
    if facts is not None:
        if {"device_plugin", "networks"} & set(run.roles):
            files = (node.get("networks") or {}).get("files") or {}
            rows += rail_map.moved(facts, typed, node.get("plugin_config"), files)
        if {"fabric", HOST_LAYER} & set(run.roles):
            decided["fabric"] = fabric_plan.on_node(facts, typed)[1]
        decided.update(boot_id=facts["node"]["boot_id"], name=name_of(node))
    findings += [{**row, "role": ""} for row in at(node["host"], rows)]
    return decided


def name_of(node: dict) -> str:
    return str(node["variables"]["k3s_node_name"] or node.get("hostname") or node["host"]).strip().lower()


def _drains(nodes: list[dict], run: Run) -> dict[str, dict]:
    """{host: {node, host}}: its name in its cluster, and the inventory host whose kubectl drains it: if there is one, a
    server other than the node itself.
    """
    names = {node["host"]: name_of(node) for node in nodes}
    listed = [*names.items(), *((name, name) for name in run.groups.get("all", ()))]
    owners = core_text.grouped((name.lower().partition(".")[0], owner) for owner, name in listed)
    drains = {}
    for node in nodes:
        own, name = node["host"], names[node["host"]]
        label = name.partition(".")[0]
        # A node chooses its host name: that of another host, or an option of kubectl, would drain others.
        claimed = label != own.lower().partition(".")[0] and {*owners[label]} != {own}
        odd = claimed or not host.NODE_NAME.fullmatch(name)
        server = next((other for other in run.servers if other != own), own)
        drains[own] = {"node": own if odd and not node["variables"]["k3s_node_name"] else name, "host": server}
    return drains


# --- the cluster ------------------------------------------------------------------------------------------------------


def _rules(role: str, nodes: list[dict], run: Run, made: dict) -> None:
    for node in nodes:
        typed = node["variables"]
        bundle = run.fetch.get("described") or _described(typed["k3s_bundle_dir"])
        _add(made, role, at(node["host"], roles.findings(role, typed, _facts(node), run.groups, bundle)))


def _k3s(nodes: list[dict], run: Run, made: dict) -> None:
    given = [_k3s_node(node, run) for node in nodes]
    bundle, wrong = (run.fetch["described"], []) if run.fetch else needs.read(run.bundle)
    bundle, where = bundle_folder.with_downloads(bundle, run.downloads), run.bundle or ""
    outside = [_k3s_node(node, run) for node in run.outside]
    decided = k3s.decide(given, bundle, where, run.upgrade, run.now, _related(run), outside)
    # A comparison changes nothing, so it leaves out nodes that could not be read.
    found = [row for row in decided["findings"] if not (run.partial and row["id"] == k3s.SILENT)]
    rows = wrong + found + _machines(nodes, run)
    for node in nodes:
        rows += at(node["host"], needs.contradiction(node["variables"]))
    if bundle is not None:
        rows += needs.lacking_on(given, bundle, where, run.lock)
    if bundle is not None and not run.fetch:
        rows += at(CONTROLLER, bundle_folder.damaged(where, k3s.needed(decided["nodes"], bundle)))
    if run.fetch and run.partial:
        rows += k3s.incomparable(decided["nodes"])
    _add(made, "k3s", rows + (k3s.upgrade(decided["nodes"]) if run.upgrade else []))
    made["notes"] += decided["notes"] + needs.downloading(decided["nodes"], run.downloads)
    for name, decision in decided["nodes"].items():
        made["hosts"][name]["k3s"] = decision


def _guessed(run: Run) -> bool:
    """Whether the first node is the server, for lack of a group."""
    return "k3s_servers" not in run.groups or "gpufabric_first_server" in run.groups


def _selection(run: Run) -> list[Finding]:
    """Groups that may not be the cluster's."""
    guessed = _guessed(run)
    others = set(run.groups) - {"k3s_servers"} if guessed else ()
    if similar := difflib.get_close_matches("k3s_servers", others, 1, 0.85):
        wanted, step = "a group of this name, or none like it", f"rename the group {similar[0]} to k3s_servers"
        return [Finding("group k3s_servers", wanted, similar[0], step, "k3s:servers-group")]
    # Objects are made of all nodes, and accounts of others deleted.
    outside = [] if guessed else [host for host in run.groups.get("gpu_nodes", ()) if host not in run.nodes]
    seen = f"one without {', '.join(outside)} of gpu_nodes" if outside else "a pattern"
    if not outside and set(run.nodes) in map(set, run.groups.values()):
        return []
    step = "give the group of all nodes; to run on some of them add --limit"
    return [Finding("variable discovery_hosts", "a group of all nodes of the cluster", seen, step, "k3s:nodes-group")]


def _k3s_node(node: dict, run: Run) -> dict:
    typed, facts, servers = node["variables"], _facts(node) or {}, list(run.servers)
    guessed = _guessed(run)
    own = {name.removeprefix("k3s_"): typed[name] for name in variables.options(["k3s"]) if name in typed}
    wheels = wheel_dir(typed) if typed["device_plugin_mode"] == "systemd" and not run.fetch else ""
    return {
        "host": node["host"],
        "name": name_of(node),
        "state": node.get("k3s"),
        "failure": node.get("failure"),
        "facts": {key: facts.get(key) or empty for key, empty in (("hcas", []), ("rails", []), ("driver", {}))},
        "variables": own,
        "servers": servers,
        "guessed_from": list(run.nodes) if guessed else [],
        "first_addresses": [servers[0], *run.servers[servers[0]]] if guessed and servers else [],
        "server_addresses": {name: (ip, reached or "") for name, (reached, ip) in run.servers.items()},
        "needs": {
            "images": images(typed, run.lock),
            "wheels": wheels,
            "plugins": typed["cni_plugins_names"],
            "pulled": typed["k3s_images_pulled"],
        },
    }


def images(typed: dict, lock: dict) -> list[str]:
    pinned = {image["name"]: image["reference"] for image in lock["images"] if image["used_by"] == "networks"}
    used = {**pinned, **typed["networks_images"]}
    found = [typed["flannel_image"], typed["multus_image"]]
    found += [used[name] for name in typed["networks_components"] if name in used]
    return found + ([typed["device_plugin_image"]] if typed["device_plugin_mode"] == "daemonset" else [])


def _cni_plugins(nodes: list[dict], run: Run, made: dict) -> None:
    """The programs of the bundle are the same for all nodes of an architecture."""
    _rules("cni_plugins", nodes, run, made)
    chosen: dict[tuple, tuple] = {}
    sound = not made["findings"]  # a bundle that k3s refused is refused only once
    for node in nodes:
        typed, machine = node["variables"], _facts(node)["node"]["architecture"]
        where, names = typed["k3s_bundle_dir"], typed["cni_plugins_names"]
        bundle = _described(where)
        if bundle is None or run.fetch:
            continue
        key = (where, tuple(names), machine)
        if key not in chosen:
            programs, wrong = cni.choose(bundle, where, names, machine)
            chosen[key] = cni.wanted(programs), wrong
        binaries, wrong = chosen[key]
        if sound:
            _add(made, "cni_plugins", at(node["host"], wrong))
        architecture = cni.ARCHITECTURES.get(machine)
        rows = run.downloads if typed["k3s_downloads_on_nodes"] else ()
        sources = [row for row in rows if row["name"] in bundle_folder.READ and row["architecture"] == architecture]
        made["hosts"][node["host"]]["cni_plugins"] = {"binaries": binaries, "sources": sources}


def _firewall(nodes: list[dict], run: Run, made: dict) -> None:
    given = []
    for node in nodes:
        typed, facts = node["variables"], _facts(node) or {}
        listening, told = run.answers.get(node["host"], ({}, {}))
        member = node["host"] in run.groups.get("gpufabric_cluster", ()) or bool(run.groups.get("k3s_servers"))
        given.append(
            {
                "host": node["host"],
                "address": node["address"],
                "member": member or typed["k3s_bundle_dir"] is not None,
                "server": node["host"] in run.servers,
                "firewall": node["firewall"],
                "facts": {"hcas": facts.get("hcas") or [], "rails": facts.get("rails") or []},
                "variables": typed,
                **({"listening": listening} if listening else {}),
                **({"told": told} if told else {}),
            }
        )
    planned = firewall.plan(given, not {node["host"] for node in given} >= set(run.nodes))
    for node in given:
        mine = planned[node["host"]]
        _add(made, "node_firewall", at(node["host"], firewall.findings(node, mine, run.lacking)))
        opens = node["variables"][firewall.OPTION] == "open" or bool(mine["add"] or mine["remove"])
        made["hosts"][node["host"]]["firewall"] = {**mine, "opens": opens}
    made["listen_seconds"] = max(300, 5 * len(nodes))


def wheel_dir(typed: dict, fetched: bool = False) -> str:
    """The folder of the device plugin's libraries: the one that is set, else the bundle's, or none.

    fetched: whether they come into the bundle before the node is changed.
    """
    bundle, given = typed["k3s_bundle_dir"], typed["device_plugin_wheel_dir"]
    in_bundle = os.path.join(bundle, "wheels") if bundle else ""
    return given or (in_bundle if fetched or os.path.isdir(in_bundle) else "")


def _names(nodes: list[dict], run: Run, made: dict) -> None:
    """For roles that make objects by a node's name; the planner of k3s has the same rule."""
    if "k3s" not in run.roles:
        own = {node["host"]: (name_of(node), bool(node["variables"]["k3s_node_name"])) for node in nodes}
        rows = k3s.names(own, {*_related(run), *own})
        _add(made, "node_ready", [row for name, finding in rows for row in at(name, [finding])])
        _add(made, "node_ready", _machines(nodes, run))


def _related(run: Run) -> set[str]:
    """Hosts that may be nodes of this cluster: not BMCs, switches or another cluster's nodes with similar names."""
    wider = [hosts for name, hosts in run.groups.items() if name != "all" and {*hosts} >= {*run.nodes}]
    return {*run.nodes, *run.servers, *(host for hosts in wider for host in hosts)}


def _machines(nodes: list[dict], run: Run) -> list[dict]:
    """Nodes with the name of a Node that another machine registered, if a server answers."""
    own = {node["host"]: (name_of(node), node.get("system_uuid") or "") for node in nodes}
    return [row for name, finding in k3s.machines(own, run.registered) for row in at(name, [finding])]


def _registered(nodes: list[dict], run: Run) -> dict[str, str]:
    found = {name: of_node["system_uuid"] for name, of_node in ((run.offered or {}).get("nodes") or {}).items()}
    for node in [*nodes, *run.outside]:
        told = (node.get("k3s") or {}).get("registered")
        if node["host"] in run.servers and isinstance(told, dict):
            found.update({name: str(uuid) for name, uuid in told.items()})
    return found


def _reset(nodes: list[dict], run: Run, made: dict) -> None:
    # A server that has left the group is still one.
    serving = [node for node in nodes if node["host"] in run.servers or (node.get("k3s") or {}).get("cluster")]
    own = [_k3s_node(node, run) for node in serving]
    _add(made, "reset", k3s.reset(own, [_k3s_node(node, run) for node in run.outside]))


def _node_ready(nodes: list[dict], run: Run, made: dict) -> None:
    _rules("node_ready", nodes, run, made)
    _names(nodes, run, made)


def _networks(nodes: list[dict], run: Run, made: dict) -> None:
    """Planned from rails, which a node gets with its driver: after the host layer this is planned again."""
    made["networks"] = None
    coming = [node for node in nodes if node["variables"]["discovery_hca_required"] and not _facts(node)["rails"]]
    if HOST_LAYER in run.roles and coming and not run.partial:
        return
    first = nodes[0]["variables"]
    known = list(dict.fromkeys([*run.nodes, *run.hosts]))
    given = [_network_node(node, known) for node in nodes]
    cidrs = (first["k3s_cluster_cidr"].split(","), first["k3s_service_cidr"].split(","))
    planned = networks.checked(first, given, known, first["device_plugin_resources"], cidrs)
    _add(made, "networks", at(", ".join(node["host"] for node in nodes), planned["findings"]))
    made["notes"] += planned["notes"]
    made["networks"] = {key: planned[key] for key in ("objects", "complete", "sriov_config")}
    made["networks"]["objects"] += fabric_plan.objects(first, [_facts(node) for node in nodes])
    for node in nodes:
        wanted, directory = planned["files"].get(node["host"]) or {}, node["variables"]["networks_multus_conf_dir"]
        files, findings = networks.node_files(wanted, node["networks"]["files"], directory.rstrip("/"))
        _add(made, "networks", at(node["host"], findings))
        made["hosts"][node["host"]]["networks"] = {**files, "vfs_unit": node["networks"]["vfs_unit"]}


def _network_node(node: dict, known: list[str]) -> dict:
    typed, facts = node["variables"], _facts(node)
    number = typed["networks_node_number"]
    return {
        "host": node["host"],
        "number": known.index(node["host"]) if number is None else number,
        "rails": network_rails(facts),
        "netdevs": node["networks"]["netdevs"],
        "routes": node["networks"]["routes"],
        "dra_rails": list(_over_dra(node)),
    }


def _device_plugin(nodes: list[dict], run: Run, made: dict) -> None:
    configs = {node["host"]: _plugin_config(node) for node in nodes}
    # A server without HCAs needs no plugin, but some node does.
    able = [node for node in nodes if configs[node["host"]]["config"] or node["variables"]["discovery_hca_required"]]
    _rules("device_plugin", able if able or len(nodes) < len(run.nodes) else nodes, run, made)
    served = [node for node in nodes if configs[node["host"]]["config"]]
    mine = configs[(served or nodes)[0]["host"]]
    serving = [node for node in served if node["variables"]["device_plugin_api"] != config.PLUGIN]
    _names(serving, run, made)
    mode = nodes[0]["variables"]["device_plugin_mode"]
    step = f"set one for all nodes, in group_vars: {nodes[0]['host']} has {mode}"
    for node in [node for node in nodes if node["variables"]["device_plugin_mode"] != mode]:
        seen = node["variables"]["device_plugin_mode"]
        _add(made, "device_plugin", at(node["host"], [Finding("variable device_plugin_mode", mode, seen, step)]))
    in_pods = served if mode == "daemonset" else []
    others = [node["host"] for node in in_pods if configs[node["host"]]["config"] != mine["config"]]
    if others:
        made["notes"].append(
            f"the DaemonSet has one config, from the rails of {served[0]['host']}; those of {core_text.names(others)} "
            "differ, and resources are empty there: set device_plugin_mode: systemd, or list device_plugin_resources"
        )
    for node in serving:
        name = name_of(node)
        _add(made, "device_plugin", at(node["host"], roles.over_dra(name, node["runtime"], run.offered)))
        made["hosts"][node["host"]]["dra"] = {"name": name}
    if serving:
        made["notes"] += roles.gates(run.offered, serving[0]["variables"]["device_plugin_extended_resources"])
    for node in nodes:
        wheels, own = wheel_dir(node["variables"], bool(run.fetch)), node.get("k3s") or {}
        made["hosts"][node["host"]]["device_plugin"] = {**configs[node["host"]], "wheel_dir": wheels}
        if node["variables"]["device_plugin_mode"] == "systemd" and not wheels and own.get("ensurepip") is False:
            _add(made, "device_plugin", at(node["host"], [plugin_plan.without_ensurepip(own["python"])]))
    made["device_plugin"] = _plugin_of_cluster(nodes, serving, run, mine)


def _plugin_config(node: dict) -> dict:
    """config.json, and whether the plugin sets interfaces up, which takes CAP_NET_ADMIN. Empty without rails."""
    typed, rails = node["variables"], _facts(node).get("rails")
    given, api = typed["device_plugin_resources"], typed["device_plugin_api"]
    try:
        entries = config.entries(given, rails, api, typed["device_plugin_dra_rails"])
    except ValueError:  # the rules report it
        return {"config": "", "links_up": False}
    interval = typed["device_plugin_interval_seconds"]
    return {"config": config.document(entries, interval), "links_up": config.sets_links_up(entries)}


def _plugin_of_cluster(nodes: list[dict], serving: list[dict], run: Run, mine: dict) -> dict:
    """objects of the DaemonSet and of DRA, the namespace of their accounts, and the config of mine."""
    typed = nodes[0]["variables"]
    in_pods, made = typed["device_plugin_mode"] == "daemonset", []
    if in_pods:
        names = ("image", "node_selector", "use_cdi", "metrics_address", "kubelet_root", "api")
        settings = {name: typed[f"device_plugin_{name}"] for name in names}
        made = plugin_objects.objects(run.daemonset, mine["config"], mine["links_up"], settings)
    # The service account of a DaemonSet is in its namespace, those of nodes are in that of the role node_ready.
    of_dra = {
        "in_pods": in_pods,
        "namespace": "kube-system" if in_pods else "gpufabric-rdma",
        "extended_resources": typed["device_plugin_extended_resources"],
    }
    made += plugin_dra.objects([{"name": name_of(node), "rails": _over_dra(node)} for node in serving], of_dra)
    return {"objects": made, "namespace": of_dra["namespace"], "config": mine["config"]}


def first_pod(configured: str, objects: list[dict], image: str) -> dict | None:
    """A pod that requests the first resource and the network of its rail, and prints what it got; None over DRA only.

    configured: the plugin's config.json. image: one with a shell, present on each node.
    """
    entries = [one for one in json.loads(configured or "{}").get("configList", ()) if one.get("api") != config.DRA]
    if not entries:
        return None
    resource = config.full_name(entries[0])
    metadata: dict[str, Any] = {"name": "rdma-first"}
    for item in objects:
        if (item["metadata"].get("annotations") or {}).get(networks.RESOURCE_ANNOTATION) == resource:
            metadata["namespace"] = item["metadata"]["namespace"]
            metadata["annotations"] = {"k8s.v1.cni.cncf.io/networks": item["metadata"]["name"]}
            break
    says = "ulimit -l; ls -l /dev/infiniband; ip address; grep . /sys/class/infiniband/*/ports/*/state; sleep infinity"
    container = {
        "name": "verbs",
        "image": image,
        "command": ["sh", "-c", says],
        "resources": {"limits": {resource: 1}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def _over_dra(node: dict) -> dict:
    return dra_rails(node["variables"], _facts(node))


def _cluster_objects(nodes: list[dict], run: Run, made: dict) -> None:
    """Objects rendered from some of the nodes would replace those rendered from all."""
    rows, folder = [], nodes[0]["variables"]["cluster_objects_folder"]
    if not folder:
        step = "run again with -e cluster_objects_folder=FOLDER"
        rows.append(Finding("variable cluster_objects_folder", "the folder to write", "nothing", step))
    here = {node["host"] for node in nodes}
    missing = [name for name in run.nodes if name not in here]
    if missing:
        seen = f"{len(here)}, without {', '.join(missing)}"
        step = "run again without --limit; the folder has not been changed"
        rows.append(Finding("nodes of this run", f"all {len(run.nodes)}", seen, step))
    _add(made, "cluster_objects", at(CONTROLLER, rows))


_PLANNERS = {
    "cluster_objects": _cluster_objects,
    "k3s": _k3s,
    "reset": _reset,
    "node_firewall": _firewall,
    "cni_plugins": _cni_plugins,
    "flannel": functools.partial(_rules, "flannel"),
    "node_ready": _node_ready,
    "multus": functools.partial(_rules, "multus"),
    "device_plugin": _device_plugin,
    "networks": _networks,
}


# --- text for people --------------------------------------------------------------------------------------------------


def text(planned: dict, roles_asked: Sequence[str], check_mode: bool) -> str:
    """All problems of all hosts, or what the run will do."""
    hosts = planned["hosts"]
    if planned["findings"]:
        return "{}\n\n{}\n".format(*host.failure_text(planned["findings"], list(hosts)))
    if HOST_LAYER not in roles_asked:
        return ""
    rows = []
    for name, decided in hosts.items():
        rows.append({"host": name, **decided, "notes": [*decided["notes"], *_unasked(decided)]})
    return f"{host.plan_text(rows, check_mode)}\n"


def _unasked(decided: dict) -> list[str]:
    """What no probe can find out about a node's firewall."""
    results = (decided.get("firewall") or {}).get("results") or []
    unknown = [row for row in results if row["id"] == firewall.PODS]
    return [f"not verified: {row['wanted']}: {row['seen']}. {row['next_step']}" for row in unknown]
