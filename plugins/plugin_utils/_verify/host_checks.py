"""What must be true of a node and of the fabric, each as a named check (_findings.checks). Pure."""

from collections.abc import Collection

from ...module_utils._core import text as core_text
from ...module_utils._core.change import kernel_out_of_reach
from ...module_utils._device_plugin.ask import DRIVERS
from ...module_utils._device_plugin.plan import SERVICE
from ...module_utils._host import firmware, memlock
from ...module_utils.hca import pcie_path, rails
from .._core.rails import is_active, rail_states
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, STATUSES, UNUSED, check, tally
from .._preflight import host as preflight_host
from . import traffic_class

_SET_ACS = "ansible-playbook -i INVENTORY gpufabric.rdma.host -e pcie_acs=topology -e reboot_allowed=true"
_ACS_COST = " (GB300, all_reduce: 361 GB/s so, 428 GB/s with ACS by topology)"
_SITE = "run playbooks/host.yml, which fixes it"
_PACKAGES = {
    "rping": "rdmacm-utils (Debian, Ubuntu) or librdmacm-utils (RHEL)",
    "ib_write_bw": "perftest",
}
# Character devices by the module that creates them.
_NEEDS_UMAD, _NEEDS_CM = "ib_umad", "rdma_ucm"
# The kernel's modes for its devices: verbs and connections for everybody, fabric management only for root.
_EVERYBODY, _ROOT = "0666", "0600"


# --- one node --------------------------------------------------------------------------------------------------------


def host_checks(
    facts: dict, variables: dict, probe: dict, check_mode: bool = False, loaded: Collection[str] = ()
) -> list[dict]:
    """All checks that one node's facts and probe can answer. loaded: modules that the fabric tests loaded."""
    plans = preflight_host.plans(facts, variables)
    offline = kernel_out_of_reach(facts, variables["discovery_root"])
    checks = {
        "kernel_modules": _modules(facts, plans["kernel_modules"], variables, offline)
        + ([] if offline else _loaded(facts, variables, probe["loaded"], loaded))
        + _devices(facts, variables, probe, offline),
        "rail_links": _ports(facts, variables) + _sources(facts),
        "rdma_netns": _netns(facts, variables, offline),
        "limits": _memlock(facts, variables, probe),
        "fabric": traffic_class.nic_checks(facts, variables) + _firmware(facts, plans["fabric"], variables),
        "pcie": _paths(facts) + _acs(facts),
        "device_plugin": _plugins(probe),
    }
    covered = {item["object"] for group in checks.values() for item in group}
    for role, plan in plans.items():
        checks[role] += _left_over(plan, covered)
        covered |= {item["object"] for item in checks[role]}
    if check_mode:
        _defer(checks, plans)
    return [item for group in checks.values() for item in group]


def _defer(checks: dict, plans: dict) -> None:
    """In check mode nothing was changed, so a failure that a planned change explains counts as not verified."""
    pending = {role: plan.changes or plan.reboot_reasons for role, plan in plans.items()}
    pending["device_plugin"] = False
    # Ports and devices exist only once the modules are loaded.
    pending["rail_links"] = pending["rail_links"] or pending["kernel_modules"]
    for role, group in checks.items():
        for item in group:
            if item["status"] == FAILED and pending[role]:
                item.update(
                    status=NOT_VERIFIED, next_step="check mode: this run would change it; verified in a real run"
                )


def _modules(facts: dict, plan, variables: dict, offline) -> list[dict]:
    blocked = {finding.object: finding for finding in plan.findings}
    checks = []
    for name in variables["kernel_modules_required"]:
        state = facts["modules"].get(name) or {}
        obj, wanted = f"module {name}", "loaded"
        if offline:
            checks.append(check(f"module:{name}", obj, NOT_VERIFIED, wanted, offline, "run on the node itself"))
            continue
        good = bool(state.get("loaded") or state.get("builtin"))
        seen = ("built into the kernel" if state.get("builtin") else "loaded") if good else "not loaded"
        step = _SITE
        if obj in blocked:
            seen, step = f"{seen}: {blocked[obj].seen}", blocked[obj].next_step
        checks.append(check(f"module:{name}", obj, good, wanted, seen, step))
    return checks


def _loaded(facts: dict, variables: dict, reading: Collection[str], testing: Collection[str]) -> list[dict]:
    """Modules that this run loaded itself: they are there now, but not after a boot. If one was loaded before the facts
    were read, its own check has passed only for that reason.
    """
    checks = []
    for name in sorted({*reading, *testing}):
        obj, wanted = f"module {name}, loaded by verify", "loaded before verify ran, or not needed"
        by = "reading the node" if name in reading else "a tool of the fabric tests opened a device, which"
        seen = f"not loaded before: {by} loaded it, so it is gone after a boot"
        required = name in variables["kernel_modules_required"]
        passed = required and name in reading and (facts["modules"].get(name) or {}).get("loaded")
        checks.append(check(f"loaded:{name}", obj, FAILED if passed else UNUSED, wanted, seen, _SITE))
    return checks


def _devices(facts: dict, variables: dict, probe: dict, offline) -> list[dict]:
    """Each HCA needs its uverbs device, and every device that programs open must be a character device with the
    kernel's owner and rights, because containers get a copy of both.
    """
    required = variables["kernel_modules_required"]
    present = probe["char_devices"]
    expected = []
    if _NEEDS_CM in required:
        expected.append(("rdma_cm", "char device rdma_cm", _EVERYBODY))
    for hca in facts["hcas"]:
        devices = hca["char_devices"]
        if not rails.only_manages(hca, facts["hcas"]):
            expected.append((devices["uverbs"], f"uverbs device of {hca['name']}", _EVERYBODY))
        expected += [
            (name, f"umad device {name} of {hca['name']}", _ROOT) for name in devices["umad"] if _NEEDS_UMAD in required
        ]
    return [_device(name, obj, mode, variables, present, offline) for name, obj, mode in expected]


def _device(name, obj: str, mode: str, variables: dict, present, offline) -> dict:
    path = f"/dev/infiniband/{name or 'uverbsN'}"
    who = variables["verification_user"] if mode == _EVERYBODY else "root"
    wanted = f"{path}, a character device of root that {who} may read and write"
    identity = f"device:{name or obj}"
    if present is None:
        return check(identity, obj, NOT_VERIFIED, wanted, offline or "not probed", "run on the node itself")
    if name not in present:
        if offline:
            return check(identity, obj, NOT_VERIFIED, wanted, f"absent; {offline}", "run on the node itself")
        seen = f"/dev/infiniband holds {core_text.listing(present) or 'nothing'}"
        step = "check that ib_uverbs, ib_umad and rdma_ucm are loaded and that udev runs (udevadm trigger)"
        return check(identity, obj, FAILED, wanted, seen, step)
    device = present[name]
    usable = device["usable"] if mode == _EVERYBODY else int(device["mode"], 8) & 0o600 == 0o600
    seen = f"{path}, mode {device['mode']}, owner {device['owner']}:{device['group']}"
    step = (
        f"remove the udev rule that sets it (grep -r infiniband /etc/udev/rules.d), chown root:root {path}, "
        f"chmod {mode} {path}, and recreate the pods that have it"
    )
    return check(identity, obj, usable and device["owner"] == "root", wanted, seen, step)


def _ports(facts: dict, variables: dict) -> list[dict]:
    rails = {(rail["hca"], rail["port"]): rail for rail in facts["rails"]}
    expected = set(variables["discovery_expected_ports"])
    checks = []
    for hca in facts["hcas"]:
        for port in hca["ports"]:
            name = f"{hca['name']}/{port['number']}"
            rail = rails.get((hca["name"], port["number"]))
            roles = [f"rail {rail['index']}"] if rail else []
            roles += ["expected"] if name in expected else []
            roles += [f"netdev {port['netdev']}"] if port["netdev"] else []
            obj = f"port {name}" + (f" ({', '.join(roles)})" if roles else "")
            seen = f"state {port['state']}, phys_state {port['phys_state']}"
            needed = rail is not None or name in expected
            status = PASSED if port["state"] == "ACTIVE" else FAILED if needed else UNUSED
            wanted = "state ACTIVE" if needed else "no rail and no expectation needs it"
            checks.append(check(f"port:{name}", obj, status, wanted, seen, _port_step(hca, port)))
    missing = expected - {f"{hca['name']}/{port['number']}" for hca in facts["hcas"] for port in hca["ports"]}
    seen = f"no such port; HCAs here: {core_text.listing(hca['name'] for hca in facts['hcas']) or 'none'}"
    step = "run playbooks/discover.yml to see why the HCA is gone"
    gone = [(f"port:{name}", f"port {name} (expected)") for name in sorted(missing)]
    return checks + [check(*port, FAILED, "state ACTIVE", seen, step) for port in gone]


def _port_step(hca: dict, port: dict) -> str:
    netdev = port["netdev"]
    if port["link_layer"] == "InfiniBand":
        if port["phys_state"] == "LinkUp":
            return "the cable is fine, but no subnet manager answers: start opensm on one node, or the switch's own"
        return f"check the cable and the switch port; check the link with: ibstat {hca['name']} {port['number']}"
    up = f"; bring the link up with: ip link set {netdev} up" if netdev else ""
    return f"check the cable and the switch port{up}"


def _sources(facts: dict) -> list[dict]:
    """Rails of one subnet: the NIC by which the kernel sends from each address."""
    checks = []
    for subnet in facts["shared_subnets"]:
        indices = core_text.listing(str(rail["index"]) for rail in subnet["rails"])
        for rail in subnet["rails"]:
            netdev, leaves = rail["netdev"], rail["leaves_by"]
            checks.append(
                check(
                    f"source:{rail['address']}",
                    f"rail {rail['index']} ({netdev}, {rail['address']})",
                    NOT_VERIFIED if leaves is None else PASSED if leaves == netdev else FAILED,
                    f"packets from this address leave by {netdev}",
                    f"they leave by {leaves or 'unknown'}; rails {indices} share {subnet['network']}",
                    "give each rail a subnet, or set rail_links_source_routes: true and " + _SITE,
                )
            )
    return checks


def _netns(facts: dict, variables: dict, offline) -> list[dict]:
    mode, subsystem = variables["rdma_netns_mode"], facts["subsystem"]
    running = subsystem["netns_mode"]
    identity, obj, wanted = "netns", "RDMA netns mode", f"{mode}, now and at boot"
    seen = f"running {running}, at boot {subsystem['persisted_netns_mode'] or 'the default of the kernel'}"
    if offline:
        return [check(identity, obj, NOT_VERIFIED, wanted, f"{seen}; {offline}", "run on the node itself")]
    if str(running).startswith("unknown"):
        return [check(identity, obj, NOT_VERIFIED, wanted, seen, "load ib_core; " + _SITE)]
    good = running == mode and subsystem["persisted_netns_mode"] in (mode, None)
    step = _SITE if subsystem["persisted_netns_mode"] != mode else "reboot the node: the mode set for boot is right"
    return [check(identity, obj, good, wanted, seen, step)]


def _paths(facts: dict) -> list[dict]:
    """Whether each rail's HCA reaches its GPU as the topology allows."""
    found = facts["pcie"]
    setting = pcie_path.setting(found, facts["node"]["kernel"])
    if not found["paths"]:
        return [check("path", "PCIe paths", UNUSED, "no rail has a GPU", "no pair of a GPU and an HCA")]
    checks = []
    for path in found["paths"]:
        obj = f"path of rail {path['rail']}: {path['hca']} ({path['function']}) to GPU {path['gpu']}"
        wanted, status, step = "no redirect that the topology does not want", PASSED, ""
        if path["verdict"] == pcie_path.UNKNOWN:
            guest = path["topology"] == "guest"
            where = "check ACS on the host of this virtual machine: lspci -vvv"
            status, step = (
                NOT_VERIFIED,
                where if guest else "read the node as root (ansible_become: true), not a capture",
            )
        elif pcie_path.against_rule(path, found["functions"]):
            status, wanted = FAILED, f"ACS {path['masks'][path['bridge']]} on {path['bridge']} ({path['topology']})"
            step = f"{_SET_ACS} sets {setting.parameter}" if setting.parameter else str(setting.reason)
        elif path["topology"] == "unsupported" and path["bridge"]:
            status, step = NOT_VERIFIED, "no published rule covers this topology: measure it with playbooks/matrix.yml"
        seen = f"{path['verdict']}: {path['reason']}" + (_ACS_COST if status == FAILED else "")
        checks.append(check(f"path:{path['rail']}:{path['hca']}", obj, status, wanted, seen, step))
    return checks


def _acs(facts: dict) -> list[dict]:
    """Whether the kernel applied its parameter. A parameter that waits for a reboot is not checked here."""
    parameter = pcie_path.persisted(facts["owned_files"])
    if parameter not in pcie_path.booted(facts["node"]["cmdline"]):
        return []
    checks = []
    unlike = pcie_path.unlike(str(parameter), facts["pcie"]["functions"])
    for bridge, mask in pcie_path.parsed(str(parameter)).items():
        wrong = unlike.get(bridge)
        seen = f"other than wanted: {' '.join(wrong)}" if wrong else "as wanted"
        if bridge not in facts["pcie"]["functions"]:
            seen = "on no path between a GPU and an HCA: bus numbers have moved, or a card is gone"
        step = f"look for ACS in dmesg; {_SET_ACS} writes the parameter again"
        checks.append(check(f"acs:{bridge}", f"ACS of bridge {bridge}", not wrong, mask, seen, step))
    return checks


def _memlock(facts: dict, variables: dict, probe: dict) -> list[dict]:
    limit, user = variables["limits_memlock"], variables["verification_user"]
    checks = []
    for service in variables["limits_services"]:
        verdict = _memlock_of(service, facts["limits"]["services"].get(service), probe["memlock"].get(service), limit)
        obj, wanted = f"memlock of user {user} under {service}", f"LimitMEMLOCK {limit}, and locking memory works"
        checks.append(check(f"memlock:{service}", obj, verdict[0], wanted, *verdict[1:]))
    return checks


def _memlock_of(service: str, state, tried, limit: str) -> tuple:
    """(status, seen, next step) for one service: its files, its running process, and how much a child could lock."""
    if state is None:
        look = f"look at: systemctl show -p LimitMEMLOCK {service}"
        return NOT_VERIFIED, "the facts do not cover this service", look
    if not state["exists"]:
        return UNUSED, f"{service} is not installed"
    seen = f"a new start gets {state['memlock']}"
    running = state["memlock_running"] if state["active"] else None
    if running is not None:
        seen += f", the running one has {running}"
        if not memlock.same(running, limit):
            restart = f"restart it when its workloads permit: systemctl restart {service}"
            return FAILED, seen, f"{restart}; containers keep the limit they started with"
    if tried is None or tried["reason"]:
        reason = tried["reason"] if tried else "not tried here"
        seen = seen if reason in seen else f"{seen}; {reason}"
        return NOT_VERIFIED, seen, "run as root on the node itself"
    if tried["error"]:
        return FAILED, f"{seen}; {tried['error']}", _SITE
    seen += f"; locked {tried['locked'] // 2**20} MiB"
    return memlock.same(state["memlock"], limit), seen, _SITE


def _plugins(probe: dict) -> list[dict]:
    """Asks each RDMA resource's device plugin on its sockets: systemd calls a stopped process active, and the kubelet
    keeps advertising its devices. The sockets of plugins other than ours are unknown.
    """
    if probe["plugins"] is None:
        wanted, step = "answers on their sockets", "run as root (become)"
        return [check("plugin:socket", "device plugins", NOT_VERIFIED, wanted, "only root may ask them", step)]
    checks = []
    for name, plugin in sorted(probe["plugins"].items()):
        if not plugin["sockets"] and plugin["by"] != SERVICE:
            continue
        obj = f"{'DRA driver' if name.endswith(DRIVERS) else 'device plugin of'} {name}"
        silent = {path: why for path, why in plugin["sockets"].items() if why}
        seen = "; ".join(f"{path}: {why}" for path, why in sorted(silent.items()))
        if not plugin["sockets"]:
            seen = f"no socket {name}.sock in the kubelet's folder"
        seen = f"{seen} ({plugin['by']})" if seen else f"an answer on {core_text.listing(sorted(plugin['sockets']))}"
        good = bool(plugin["sockets"]) and not silent
        wanted = "an answer on each of its sockets"
        checks.append(check(f"plugin:socket:{name}", obj, good, wanted, seen, _restart(plugin["by"])))
    return checks


def _restart(by: str) -> str:
    if by.endswith(".service"):
        return f"see journalctl -u {by}, then: systemctl restart {by}"
    return "delete its pod" if by.endswith("in a pod") else f"end it and start it again: {by}"


def _firmware(facts: dict, plan, variables: dict) -> list[dict]:
    findings = {finding.object: finding for finding in plan.findings}
    checks = []
    for obj, values in firmware.answered(facts, variables["fabric_firmware"]).items():
        if not values and obj not in findings:
            continue
        used = {value.used for value in values}
        status = FAILED if obj in findings or False in used else PASSED if used == {True} else NOT_VERIFIED
        wanted = ", ".join(f"{value.key}={value.wanted}" for value in values)
        seen, step = "; ".join(value.told for value in values), _SITE
        if obj in findings:
            wanted, seen, step = findings[obj][1:4]
        checks.append(check(f"state:{obj}", obj, status, wanted, seen, step))
    return checks


def _left_over(plan, covered: set) -> list[dict]:
    """What a run would still change or refuse that no check above covers."""
    rows = [(change.object, _brief(change.after), _brief(change.before), _SITE) for change in plan.changes]
    rows += [finding[:4] for finding in plan.findings]
    return [check(f"state:{obj}", obj, FAILED, *facts) for obj, *facts in rows if obj not in covered]


def _brief(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("#")]
    return "; ".join(lines) or "absent"


def absent(reason: str) -> list[dict]:
    """A node that could not be verified."""
    step = "fix that and run playbooks/verify.yml"
    return [check("node", "node", FAILED, "a node that can be verified", reason, step)]


def firewall_checks(
    results: list[dict] | None, failure: str | None, variables: dict, check_mode: bool = False
) -> list[dict]:
    """Whether the node's ports answer its peers.

    results: as from _preflight.firewall.plan; None if the node's peers were not asked, because of `failure`.
    """
    if results is None:
        why, step = failure or "an earlier step of this run failed", "fix that and run playbooks/verify.yml again"
        return [check("firewall", "firewall", NOT_VERIFIED, "ports that answer the node's peers", why, step)]
    if not check_mode or variables["node_firewall"] != "open":
        return results
    later = {"status": NOT_VERIFIED, "next_step": "check mode: this run would open it; verified in a real run"}
    return [{**port, **later} if port["status"] == FAILED else port for port in results]


# --- the fabric ------------------------------------------------------------------------------------------------------


def fabric_checks(
    plan: dict, results: dict, servers: dict, percents: dict, check_mode: bool = False
) -> list[tuple[str, dict]]:
    """(host, check) for each test, each end without one, and each clash. The host is the sender.

    results: {test id: client result}; servers: {test id: error of the server, or None}; percents: the
    threshold of each host.
    """
    checks = [(test["client"]["host"], _test(test, results, servers, percents, check_mode)) for test in plan["tests"]]
    for end in plan["unpaired"]:
        obj = f"fabric rail {end['rail']} ({end['hca']}/{end['port']})"
        step = "give this rail addresses in one subnet on two nodes, or see its port check"
        identity = f"fabric:rail{end['rail']}:{end['hca']}"
        checks.append(
            (end["host"], check(identity, obj, NOT_VERIFIED, "verbs traffic with a peer", end["reason"], step))
        )
    for clash in plan["clashes"]:
        seen = " and ".join(f"{end['host']} ({end['netdev']})" for end in clash["ends"])
        step = "give each node its own address on this rail"
        obj = f"address {clash['address']}"
        checks.append((clash["ends"][0]["host"], check(f"address:{obj}", obj, FAILED, "one holder", seen, step)))
    return checks


def _test(test: dict, results: dict, servers: dict, percents: dict, check_mode: bool) -> dict:
    client, server, tool = test["client"], test["server"], test["tool"]
    obj = f"{tool} rail {test['rail']}: {client['host']} {client['hca']} -> {server['host']} {server['hca']}"
    wanted = f"{'answered pings' if tool == 'rping' else 'RDMA writes'} over {test['network']}"
    judged = check(f"fabric:{test['id']}", obj, NOT_VERIFIED, wanted, "", "")
    result, server_error = results.get(test["id"]), servers.get(test["id"])
    if test["missing"]:
        seen = f"{tool} is not installed on {core_text.names(test['missing'])}"
        return {**judged, "seen": seen, "next_step": f"install {_PACKAGES[tool]}"}
    if check_mode:
        return {**judged, "seen": "check mode sends no traffic", "next_step": "verified in a real run"}
    if result is None or not result["ok"]:
        errors = [result["error"]] if result else []
        errors += [f"{server['host']}: {server_error}"] if server_error else []
        seen = "; ".join(errors) or "no result: one of the two nodes failed or became unreachable"
        return {**judged, "status": FAILED, "seen": seen, "next_step": _fabric_step(test)}
    judged.update(status=PASSED, seen=f"{result['seconds']} s")
    if "tos" in result:
        judged["seen"] += f", with ToS {result['tos']}, rdma_cm's default on {client['host']}"
    judged["figures"] = {key: result[key] for key in ("seconds", "mb_per_s", "gbps") if key in result}
    if tool == "ib_write_bw":
        judged["seen"] += f", {result['mb_per_s']} MB/s" + (f" ({result['note']})" if result.get("note") else "")
        _judge_bandwidth(judged, test, result["gbps"], percents[client["host"]])
    return judged


def _judge_bandwidth(judged: dict, test: dict, gbps: float, percent: int) -> None:
    """Real HCAs must reach a share of their capacity; software HCAs only have to work."""
    if test["software"]:
        judged["seen"] += " (software HCA: function only, no threshold)"
    elif test["gbps"] and percent:
        floor = round(test["gbps"] * percent / 100, 1)
        judged["wanted"] += f" at {floor} Gb/s or more ({percent} % of what link and PCIe carry)"
        judged["seen"] += f" ({gbps} Gb/s)"
        if gbps < floor:
            step = "look for a slow PCIe link, errors on the cable, a small MTU or missing flow control on this rail"
            judged.update(status=FAILED, next_step=step)


def _fabric_step(test: dict) -> str:
    server = test["server"]
    roce = "UDP 4791 (RoCE v2) and " if test["server"]["gid"] is not None else ""
    ping = f"ping {server['ip'] or server['host']} from {test['client']['host']}"
    return f"{ping}; then let {roce}TCP {test['tcp_port']} through firewalls on that network"


# --- text for people --------------------------------------------------------------------------------------------------


def report_text(nodes: list[dict], check_mode: bool = False) -> str:
    """Failures first with their four facts, then unverified checks, the fabric's figures, one line per node.

    node: host, checks, facts (or None), planned, pending, reboot_reasons, rebooted.
    """
    every = [{"host": node["host"], **item} for node in nodes for item in node["checks"]]
    total = tally(every)
    parts = []
    for status, title in ((FAILED, "Failed"), (NOT_VERIFIED, "Not verified")):
        # What a root explains is listed beneath it.
        chosen = [item for item in every if item["status"] == status and not item.get("consequence_of")]
        if chosen:
            parts.append(f"{title}\n{core_text.four_facts(chosen) if status == FAILED else _short_rows(chosen)}")
    unused = [item for item in every if item["status"] == UNUSED]
    if unused:
        parts.append(f"Unused\n{_short_rows(unused)}")
    measured = [item for item in every if item.get("figures")]
    if measured:
        rows = [(item["object"], *_figures(**item["figures"]), item["status"]) for item in measured]
        parts.append("Fabric\n" + _indent(core_text.table(("test", "seconds", "MB/s", "Gb/s", "result"), rows)))
    shapes = core_text.alike((node["host"], _node_row(node, check_mode)) for node in nodes)
    rows = [(core_text.of_nodes(hosts), *row) for hosts, row in shapes]
    parts.append("Nodes\n" + _indent(core_text.table(_HEADER, rows)))
    parts.append(
        f"Verification on {core_text.count(len(nodes), 'node')}: {total[PASSED]} passed, {total[FAILED]} failed, "
        f"{total[NOT_VERIFIED]} not verified, {total[UNUSED]} unused"
    )
    return "\n\n".join(parts)


def _figures(seconds: float, mb_per_s="", gbps="") -> tuple:
    return f"{seconds:.1f}", mb_per_s, gbps


_HEADER = ("node", "HCAs", "rails", "changes", "reboot", "passed", "failed", "not verified", "unused")


def _node_row(node: dict, check_mode: bool) -> tuple:
    counts = tally(node["checks"])
    facts = node.get("facts")
    if facts is None:
        shape = ("?", "?", "?", "?")
    else:
        rails = rail_states(facts)
        active = sum(is_active(port) for _rail, port in rails)
        changes = f"{len(node['pending'])} to make" if check_mode else str(len(node["planned"]) - len(node["pending"]))
        reboot = "needed" if node["reboot_reasons"] else "done" if node["rebooted"] else "no"
        shape = (len(facts["hcas"]), f"{active} of {len(rails)} active" if rails else "0", changes, reboot)
    return (*shape, *(counts[status] for status in STATUSES))


def _short_rows(items) -> str:
    """One line per reason: the objects of a host that share it, and the hosts that share those."""
    rows = core_text.grouped(((item["host"], _reason(item)), item["object"]) for item in items)
    groups = core_text.alike((host, (tuple(objects), reason)) for (host, reason), objects in rows.items())
    return "\n".join(
        core_text.wrapped(f"  {core_text.of_nodes(hosts)}  ", f"{core_text.listing(objects)}: {reason}", "    ")
        for hosts, (objects, reason) in groups
    )


def _reason(item: dict) -> str:
    return f"{item['seen']}; {item['next_step']}" if item["next_step"].startswith("check mode") else item["seen"]


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
