"""MTU and link state of single NICs, now and at boot, keyed by what does not change: PCI address or MAC.

PRIVATE to the collection. Pure: facts and options in, Plan out. At boot a unit with a small script does it, never
a .link file: udev applies the first .link file that matches, so ours would replace the naming policy and rename the
NIC, and the node might not come back.
"""

from __future__ import annotations

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal
from .._core.units import NIC_SANDBOX
from ..hca import paths
from ..hca.netdevs import GUID, IPOIB, same_address

# The link that `systemctl enable` would create.
ENABLED = "/etc/systemd/system/multi-user.target.wants/gpufabric-rdma-links.service"
LINK_TARGET = "../gpufabric-rdma-links.service"

_UNIT = (
    HEADER
    + f"""[Unit]
Description=MTU and link-up of RDMA NICs
After=openibd.service rdma-hw.target
Before=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {paths.OWN_LINKS_SCRIPT}
{NIC_SANDBOX}RestrictAddressFamilies=AF_UNIX

[Install]
WantedBy=multi-user.target
"""
)
_SCRIPT = """
# set_link FINDER KEY MTU UP: an empty MTU leaves it alone. Drivers take their time at boot, so a NIC is waited for; one
# that never shows up fails the unit, not the others.
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
    [ -e "$1" ] && [ ! -e "$1/parent" ] || return 1
    case $(cat "$1/phys_port_name" 2>/dev/null) in
        pf* | [cp][0-9]*pf*) return 1 ;;
    esac
}
by_pci() {
    for device in /sys/bus/pci/devices/"$1"/net/*; do
        if is_nic "$device"; then basename "$device"; fi
    done
}
by_mac() { by_address "$1"; }
# The last eight of IPoIB's 20 octets; those before change with each load of the driver.
by_guid() { by_address "*:$1"; }
by_address() {
    for device in /sys/class/net/*; do
        # A bond's port or a VLAN may carry the same MAC; only the NIC itself has no lower device.
        # shellcheck disable=SC2254
        case $(cat "$device/address" 2>/dev/null) in
            $1) if is_nic "$device" && ! ls -d "$device"/lower_* >/dev/null 2>&1; then basename "$device"; fi ;;
        esac
    done
}
"""


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: settings (items pci|mac, mtu, up)."""
    made = Plan()
    settings = [_normal(setting) for setting in wanted["settings"]]
    chosen = []
    for setting in settings:
        netdev = _find(facts, setting, made)
        if netdev:
            _refuse_management(setting, netdev, made)
            chosen.append((setting, netdev))
    _refuse_twice(chosen, made)
    if made.findings:
        return made
    if not settings:
        if _enabled(facts):
            made.change(ENABLED, "unlink", LINK_TARGET, "")
        plan_removal(made, facts, paths.OWN_LINKS_UNIT)
        plan_removal(made, facts, paths.OWN_LINKS_SCRIPT)
        return made

    offline = kernel_out_of_reach(facts, root)
    for setting, netdev in chosen:
        _plan_running(setting, netdev, offline, made)
    plan_file(made, facts, paths.OWN_LINKS_SCRIPT, script(settings))
    plan_file(made, facts, paths.OWN_LINKS_UNIT, _UNIT)
    if not _enabled(facts):
        made.change(ENABLED, "link", "", LINK_TARGET)
    return made


def script(settings: list[dict]) -> str:
    calls = []
    for setting in settings:
        finder, key = ("by_pci", setting["pci"]) if setting["pci"] else ("by_mac", setting["mac"])
        if finder == "by_mac" and len(key) == IPOIB:
            finder, key = "by_guid", key[-GUID:]
        calls.append(f'set_link {finder} {key} "{setting["mtu"] or ""}" {int(setting["up"])}\n')
    return "".join([HEADER, _SCRIPT, *calls, "exit $failed\n"])


def _enabled(facts: dict) -> bool:
    """The module checks the link; with facts alone, the unit file implies its link."""
    return facts.get("links_enabled", paths.OWN_LINKS_UNIT in facts["owned_files"])


def _normal(setting: dict) -> dict:
    pci = (setting.get("pci") or "").lower()
    return {
        "pci": f"0000:{pci}" if pci.count(":") == 1 else pci,
        "mac": (setting.get("mac") or "").lower(),
        "mtu": setting.get("mtu"),
        "up": bool(setting.get("up")),
    }


def _key(setting: dict) -> str:
    return f"PCI {setting['pci']}" if setting["pci"] else f"MAC {setting['mac']}"


def _netdevs(facts: dict) -> list[tuple[str, dict]]:
    """(PCI address, netdev) of every NIC of an HCA, each once: no sub-function's interface and no IPoIB child."""
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
    if hits:
        made.finding(
            f"rail_links_settings {_key(setting)}",
            "one network device",
            f"{len(hits)}: " + ", ".join(f"{netdev['name']} (MAC {netdev['mac']})" for netdev in hits),
            "key the setting by MAC instead",
        )
    else:
        seen = ", ".join(
            f"{netdev['name']} (PCI {address or 'none'}, MAC {netdev['mac']})" for address, netdev in netdevs
        )
        made.finding(
            f"rail_links_settings {_key(setting)}",
            "a network device of an HCA on this node",
            f"none with that key; HCAs have {seen or 'no network device at all'}",
            "correct the key, or move the setting to the right host (host_vars)",
        )
    return None


def _refuse_management(setting: dict, netdev: dict, made: Plan) -> None:
    if netdev["management"]:
        made.finding(
            f"NIC {netdev['name']} ({_key(setting)})",
            "a NIC that node management does not depend on",
            f"{netdev['name']} carries {netdev['management']}",
            "set its MTU where the node's network is configured, and remove it from rail_links_settings",
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
            made.not_verified.append(f"NIC {name} is set at boot only: {offline}")
        return
    if wrong_mtu:
        made.change(f"NIC {name} MTU", "set", str(netdev["mtu"]), str(mtu))
    if setting["up"] and not up:
        made.change(f"NIC {name} link", "set", "down", "up")
