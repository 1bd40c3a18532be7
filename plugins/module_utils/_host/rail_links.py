"""MTU and link state of single NICs, and routes by source for rails that share a subnet: now and at boot.

Pure: facts and options in, Plan out. NICs are keyed by PCI address or MAC, which do not change. At boot units with a
small script do it, never a .link file: udev applies the first .link file that matches, so ours would replace the naming
policy and rename the NIC, and the node might not come back.
"""

from __future__ import annotations

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal
from .._core.units import IS_CHILD, NIC_SANDBOX, plan_unit
from ..hca import paths, pci
from ..hca.netdevs import GUID, IPOIB, same_address

# The tables and the priority of the rules by source: a table per rail, before the main one.
TABLES, _PRIORITY = 48600, 4860
# Answer ARP only for the interface's own addresses, and ask with its own.
ARP = {"arp_ignore": 1, "arp_announce": 2}
_INSTALL = """
[Install]
WantedBy=multi-user.target
"""
_SERVICE = f"""
[Service]
Type=oneshot
RemainAfterExit=yes
{NIC_SANDBOX}""".rstrip()
_LINKS = f"""{HEADER}[Unit]
Description=MTU and link-up of RDMA NICs
After=openibd.service rdma-hw.target
Before=network-online.target
{_SERVICE}
ExecStart=/bin/sh {paths.OWN_LINKS_SCRIPT}
RestrictAddressFamilies=AF_UNIX
{_INSTALL}"""
# Routes need addresses; on a restart, the service that configures these drops routes that it does not know.
_ROUTES = f"""{HEADER}[Unit]
Description=Routes by source for RDMA NICs in one subnet
Wants=network-online.target
After=network-online.target systemd-networkd.service NetworkManager.service networking.service
PartOf=systemd-networkd.service NetworkManager.service networking.service
{_SERVICE}
ExecStart=/bin/sh {paths.OWN_LINKS_SCRIPT} routes
ExecStop=/bin/sh {paths.OWN_LINKS_SCRIPT} unroute
ProcSubset=all
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
{_INSTALL}"""
UNITS = (paths.OWN_LINKS_UNIT, paths.OWN_ROUTES_UNIT)
_SCRIPT = """
# set_link FINDER KEY MTU UP: an empty MTU leaves it alone. Drivers take their time at boot, so a NIC is waited for; one
# that never shows up fails the unit, not the others. The name of a NIC may have an asterisk.
set -f
failed=0
set_link() {
    waited=0
    netdevs=$("$1" "$2")
    while [ -z "$netdevs" ] && [ "$waited" -lt "${LINK_WAIT_SECONDS:-60}" ]; do
        sleep 1
        waited=$((waited + 1))
        netdevs=$("$1" "$2")
    done
    if [ -z "$netdevs" ]; then
        echo "gpufabric-rdma-links: no network device for $2" >&2
        failed=1
    fi
    for netdev in $netdevs; do
        if [ -n "$3" ]; then
            echo "$3" >"/sys/class/net/$netdev/mtu" || failed=1
        fi
        if [ "$4" = 1 ]; then
            flags=$(cat "/sys/class/net/$netdev/flags")
            echo "$((flags | 1))" >"/sys/class/net/$netdev/flags" || failed=1
        fi
    done
}
# Not a representor of a VF or SF, and not an IPoIB child: those share address and folder with the NIC itself.
is_nic() {
    if [ ! -e "$1" ] || is_child "$1"; then return 1; fi
    case $(cat "$1/phys_port_name" 2>/dev/null) in
        pf* | [cp][0-9]*pf*) return 1 ;;
    esac
}
by_pci() {
    set +f
    for device in /sys/bus/pci/devices/"$1"/net/*; do
        if is_nic "$device"; then basename "$device"; fi
    done
}
by_mac() { by_address "$1"; }
# The last eight of IPoIB's 20 octets; those before change with each load of the driver.
by_guid() { by_address "*:$1"; }
by_address() {
    set +f
    for device in /sys/class/net/*; do
        # A bond's port or a VLAN may carry the same MAC; only the NIC itself has no lower device.
        # shellcheck disable=SC2254
        case $(cat "$device/address" 2>/dev/null) in
            $1) if is_nic "$device" && ! ls -d "$device"/lower_* >/dev/null 2>&1; then basename "$device"; fi ;;
        esac
    done
}
# route_by_source FINDER KEY TABLE: what an address of the NIC sends leaves by the NIC, and only the NIC answers for it.
# networkd and netplan leave rules of the protocol `kernel` alone.
route_by_source() {
    unroute "$3"
    netdevs=$("$1" "$2")
    [ -n "$netdevs" ] || failed=1
    for netdev in $netdevs; do
        echo 1 >"/proc/sys/net/ipv4/conf/$netdev/arp_ignore" || failed=1
        echo 2 >"/proc/sys/net/ipv4/conf/$netdev/arp_announce" || failed=1
        for family in -4 -6; do
            # ip shows what it does not take: flags, the rest of a life, a nexthop object beside its gateway.
            ip $family route show table main dev "$netdev" |
                sed 's/ linkdown//; s/ dead//; s/ expires [0-9]*sec//; s/ nhid [0-9]*//' | while read -r route; do
                case $route in fe80:* | multicast*) continue ;; esac
                # shellcheck disable=SC2086
                ip $family route replace $route dev "$netdev" table "$3" || exit 1
            done || failed=1
            ip $family -o address show dev "$netdev" scope global | while read -r _index _name _kind address _rest; do
                ip $family rule add from "${address%%/*}" table "$3" priority PRIORITY protocol kernel || exit 1
            done || failed=1
        done
    done
}
unroute() {
    for family in -4 -6; do
        while ip $family rule del table "$1" 2>/dev/null; do :; done
        ip $family route flush table "$1" 2>/dev/null
    done
}
""".replace("PRIORITY", str(_PRIORITY))


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: settings (items pci|mac, mtu, up), source_routes (whether rails in one subnet get routes by source)."""
    made = Plan()
    settings = [_normal(setting) for setting in wanted["settings"]]
    rails = [rail for subnet in facts.get("shared_subnets", ()) for rail in subnet["rails"]]
    rails = rails if wanted.get("source_routes") else []
    chosen = []
    for setting in settings:
        netdev = _find(facts, setting, made)
        if netdev:
            _refuse_management(f"{netdev['name']} ({_key(setting)})", netdev, "rail_links_settings", made)
            chosen.append((setting, netdev))
    _refuse_twice(chosen, made)
    for rail in rails:
        netdev = {"name": rail["netdev"], "management": rail["management"]}
        _refuse_management(f"{rail['netdev']} (rail {rail['index']})", netdev, "discovery_rails", made)
    if made.findings:
        return made
    offline = kernel_out_of_reach(facts, root)
    for setting, netdev in chosen:
        _plan_running(setting, netdev, offline, made)
    for rail in rails:
        _plan_source(rail, offline, made)
    if settings or rails:
        plan_file(made, facts, paths.OWN_LINKS_SCRIPT, script(facts, settings, rails))
    plan_unit(made, facts, paths.OWN_LINKS_UNIT, _LINKS, bool(settings))
    plan_unit(made, facts, paths.OWN_ROUTES_UNIT, _ROUTES, bool(rails))
    if not settings and not rails:
        plan_removal(made, facts, paths.OWN_LINKS_SCRIPT)
    return made


def script(facts: dict, settings: list[dict], rails: list[dict]) -> str:
    links = []
    for setting in settings:
        key = _finder(setting["pci"], setting["mac"])
        links.append(f'    set_link {key} "{setting["mtu"] or ""}" {int(setting["up"])}\n')
    tables = {rail["index"]: (_rail_key(facts, rail), TABLES + rail["index"]) for rail in rails}
    calls = {
        "routes": [f"    route_by_source {key} {table}\n" for key, table in tables.values()],
        "unroute": [f"    unroute {table}\n" for _key, table in tables.values()],
        "*": links,
    }
    cases = "".join(f"{word})\n{''.join(lines)}    ;;\n" for word, lines in calls.items())
    return f"{HEADER}{IS_CHILD}{_SCRIPT}case ${{1-}} in\n{cases}esac\nexit $failed\n"


def _finder(pci: str | None, mac: str) -> str:
    if pci:
        return f"by_pci {pci}"
    return f"by_guid {mac[-GUID:]}" if len(mac) == IPOIB else f"by_mac {mac}"


def _rail_key(facts: dict, rail: dict) -> str:
    """By PCI address, unless ports of one function share it."""
    beside = [address for address, _netdev in _netdevs(facts) if address == rail["pci"]]
    return _finder(rail["pci"] if len(beside) == 1 else None, rail["mac"])


def _normal(setting: dict) -> dict:
    return {
        "pci": pci.full(setting.get("pci") or ""),
        "mac": (setting.get("mac") or "").lower(),
        "mtu": setting.get("mtu"),
        "up": bool(setting.get("up")),
    }


def _key(setting: dict) -> str:
    return f"PCI {setting['pci']}" if setting["pci"] else f"MAC {setting['mac']}"


def _netdevs(facts: dict) -> list[tuple[str, dict]]:
    """(PCI address, netdev) of every NIC of an HCA, each once, without sub-functions and IPoIB children."""
    by_name = {}
    for hca in facts["hcas"]:
        for netdev in hca["netdevs"] if hca.get("function") != "sf" else ():
            if not netdev.get("parent"):
                by_name[netdev["name"]] = ((hca["pci"] or {}).get("address", ""), netdev)
    return [by_name[name] for name in sorted(by_name)]


def _find(facts: dict, setting: dict, made: Plan) -> dict | None:
    netdevs = _netdevs(facts)
    hits = [
        netdev
        for address, netdev in netdevs
        if (setting["pci"] and address == setting["pci"]) or same_address(netdev["mac"], setting["mac"])
    ]
    if len(hits) == 1:
        return hits[0]
    bond = next(iter({netdev.get("master") for netdev in hits} & {netdev["name"] for netdev in hits}), None)
    wanted = "one network device"
    step = f"set it where {bond} is configured, and remove it here" if bond else "key the setting by MAC instead"
    seen = f"{len(hits)}: " + ", ".join(f"{netdev['name']} (MAC {netdev['mac']})" for netdev in hits)
    if not hits:
        wanted = "a network device of an HCA on this node"
        there = [f"{netdev['name']} (PCI {address or 'none'}, MAC {netdev['mac']})" for address, netdev in netdevs]
        seen = f"none with that key; HCAs have {', '.join(there) or 'no network device at all'}"
        step = "correct the key, or move the setting to the right host (host_vars)"
    made.finding(f"rail_links_settings {_key(setting)}", wanted, seen, step)
    return None


def _refuse_management(name: str, netdev: dict, variable: str, made: Plan) -> None:
    if netdev["management"]:
        made.finding(
            f"NIC {name}",
            "a NIC that node management does not depend on",
            f"{netdev['name']} carries {netdev['management']}",
            f"set it where the node's network is configured, and remove it from {variable}",
        )


def _refuse_twice(chosen: list[tuple[dict, dict]], made: Plan) -> None:
    names = [netdev["name"] for _setting, netdev in chosen]
    for name in sorted({name for name in names if names.count(name) > 1}):
        keys = " and ".join(_key(setting) for setting, netdev in chosen if netdev["name"] == name)
        made.finding(f"NIC {name}", "one setting in rail_links_settings", keys, "keep one of them")


def _plan_running(setting: dict, netdev: dict, offline: str | None, made: Plan) -> None:
    name, mtu = netdev["name"], setting["mtu"]
    # The kernel reports the carrier of a NIC only while it is administratively up.
    up = netdev["carrier"] is not None
    wrong_mtu = mtu is not None and netdev["mtu"] != mtu
    if offline:
        if wrong_mtu or (setting["up"] and not up):
            made.not_verified.append(f"NIC {name} is only set at boot: {offline}")
        return
    if wrong_mtu:
        made.change(f"NIC {name} MTU", "set", str(netdev["mtu"]), str(mtu))
    if setting["up"] and not up:
        made.change(f"NIC {name} link", "set", "down", "up")


def _plan_source(rail: dict, offline: str | None, made: Plan) -> None:
    """The unit sets everything. IPv6 has no sysctls for ARP."""
    name = f"NIC {rail['netdev']} source route"
    if offline or rail["leaves_by"] is None:
        why = offline or f"the kernel has no route from {rail['address']} (is the link up?)"
        made.not_verified.append(f"{name} is only set at boot: {why}")
        return
    arp = [(sysctl, rail[sysctl], least) for sysctl, least in ARP.items() if rail[sysctl] is not None]
    if rail["leaves_by"] != rail["netdev"] or any(value < least for _sysctl, value, least in arp):
        before = [f"by {rail['leaves_by']}", *(f"{sysctl} {value}" for sysctl, value, _least in arp)]
        after = [f"by {rail['netdev']}", *(f"{sysctl} {max(value, least)}" for sysctl, value, least in arp)]
        made.change(name, "set", ", ".join(before), ", ".join(after))
