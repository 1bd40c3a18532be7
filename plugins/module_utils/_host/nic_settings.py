"""RoCE settings of NICs against the switch plan, set now and each time the driver creates the NIC.

Pure: facts and options in, Plan out. A udev rule keyed by PCI address starts a unit for
the NIC: systemd stops it with the device, so a driver reload starts it again.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator
from typing import NamedTuple

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal
from .._core.units import NIC_SANDBOX
from ..hca import paths
from ..hca.text import is_unknown
from . import firmware

NOT_SETTABLE = "not settable here: the driver has no such setting"
_KEPT = frozenset(f"{string.ascii_letters}{string.digits}:_.")
_UNIT = f"""{HEADER}[Unit]
Description=RoCE settings of %f
BindsTo=%i.device
After=%i.device

[Service]
Type=oneshot
RemainAfterExit=yes
{NIC_SANDBOX.rstrip()}
ExecStart=:/bin/sh {paths.OWN_NIC_SCRIPT} %f
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET
"""
_SCRIPT = """
# $1: folder of the network device below /sys/devices. In this order: who decides, priorities, PFC, pause.
netdev=${1##*/}
failed=0
PATH=$PATH:/opt/mellanox/iproute2/sbin
# Representors have the NIC's PCI address; what is above the NIC may have its MAC.
case $(cat "$1/phys_port_name" 2>/dev/null) in pf* | [cp][0-9]*pf*) exit 0 ;; esac
if ls -d "$1"/lower_* >/dev/null 2>&1; then exit 0; fi
shown() { printf ' %s ' "$("$@" | tr -s ' \\t\\n' ' ')"; }
if dcb dcbx show dev "$netdev" >/dev/null 2>&1; then
    dcb dcbx set dev "$netdev" host ieee || failed=1
fi
# mlx5 itself drops the entry that another one replaces, and dcb then calls its own attempt to do so an error.
for entry in ENTRIES; do
    case $(shown dcb -N app show dev "$netdev" dscp-prio) in *" $entry "*) continue ;; esac
    dcb app replace dev "$netdev" dscp-prio "$entry"
    case $(shown dcb -N app show dev "$netdev" dscp-prio) in *" $entry "*) ;; *) failed=1 ;; esac
done
if [ -e "$1/qos/trust_state" ] && [ "$(cat "$1/qos/trust_state")" != dscp ]; then
    echo dscp >"$1/qos/trust_state" || failed=1
fi
"""
_SCRIPT_PFC = """# Another mask takes the link down for seconds.
case $(shown dcb pfc show dev "$netdev" prio-pfc) in
    *" MASK "*) ;;
    *) dcb pfc set dev "$netdev" prio-pfc MASK || failed=1 ;;
esac
"""
_SCRIPT_PAUSE = """if ethtool -a "$netdev" 2>/dev/null | grep -Eq '^[RT]X:[[:space:]]*on'; then
    ethtool -A "$netdev" rx off tx off || failed=1
fi
"""


class Setting(NamedTuple):
    """A setting of a NIC: correct or not, None if unknown; the command that sets it by hand."""

    id: str
    good: bool | None
    wanted: str
    seen: str
    command: str


def settings(nic: dict, traffic: dict) -> Iterator[Setting]:
    """The plan's settings of a NIC, in the order of setting them. traffic: FabricPlan as a mapping."""
    name, lossless = shlex.quote(nic["netdev"]), [traffic["priority"]] if traffic["lossless"] else []
    mapping = {"dscp": (traffic["dscp"], traffic["priority"])}
    mapping["cnp-dscp"] = (traffic["cnp_dscp"], traffic["cnp_priority"])
    entry = f"dcb app replace dev {name} dscp-prio {{}}:{{}}"
    yield _setting("dcbx", nic["dcbx"], "host", ("host", nic["dcbx"]), f"dcb dcbx set dev {name} host ieee")
    seen = "pcp: untagged packets are in priority 0" if nic["trust"] == "pcp" else nic["trust"]
    yield _setting("trust", nic["trust"], "dscp", ("dscp", seen), entry.format(*mapping["dscp"]))
    for identity, (dscp, priority) in mapping.items():
        mapped = nic["dscp"].get(str(dscp), []) if isinstance(nic["dscp"], dict) else nic["dscp"]
        seen = f"DSCP {dscp} in {_listed(mapped)}" if mapped else f"no entry for DSCP {dscp}: priority 0"
        said = (f"DSCP {dscp} in priority {priority}", seen)
        yield _setting(identity, mapped, [priority], said, entry.format(dscp, priority))
    on = nic["pfc"]["priorities"] if isinstance(nic["pfc"], dict) else nic["pfc"]
    said = (f"PFC on for {_listed(lossless)}", f"PFC on for {_listed(on)}{_paused_cnps(traffic, on)}")
    words = " ".join(["all:off", *(f"{number}:on" for number in lossless)])
    yield _setting("pfc", on, lossless, said, f"dcb pfc set dev {name} prio-pfc {words}")
    if lossless:
        ways = [way for way, is_on in nic["pause"].items() if is_on] if isinstance(nic["pause"], dict) else nic["pause"]
        said = ("no pause of the whole port", f"pause of the whole port on: {', '.join(ways or ())}")
        yield _setting("pause", ways, [], said, f"ethtool -A {name} rx off tx off")


def _paused_cnps(traffic: dict, on) -> str:
    number = traffic["cnp_priority"]
    starved = isinstance(on, list) and number in on
    return f"; {number} is the CNPs', which are paused with the traffic that they should slow down" if starved else ""


def _setting(identity: str, value, wanted, said: tuple, command: str) -> Setting:
    """value: the present one; null or a reason if unknown. said: the wanted and the present one in words."""
    if value is None or is_unknown(value):
        return Setting(identity, None, said[0], NOT_SETTABLE if value is None else value, command)
    return Setting(identity, value == wanted, said[0], said[value != wanted], command)


def _listed(priorities) -> str:
    return f"priority {', '.join(map(str, priorities))}" if priorities else "no priority"


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: traffic (see settings; None removes the files of an earlier run), link_flap_allowed; firmware and
    firmware_allowed (see firmware.plan).
    """
    made = Plan()
    if wanted["traffic"] is None:
        for path in (paths.OWN_NIC_RULE, paths.OWN_NIC_UNIT, paths.OWN_NIC_SCRIPT):
            plan_removal(made, facts, path)
    else:
        _settings(facts, wanted, root, made)
    firmware.plan(facts, wanted.get("firmware") or {}, wanted.get("firmware_allowed"), root, made)
    return made


def _settings(facts: dict, wanted: dict, root: str, made: Plan) -> None:
    nics = [nic for nic in facts["qos"]["nics"] if _settable(nic, made)]
    wrong = [(nic, row) for nic in nics for row in settings(nic, wanted["traffic"]) if row.good is False]
    _refuse(facts, nics, wrong, wanted["link_flap_allowed"], made)
    if made.findings or not nics:
        return
    may_flap = wanted["link_flap_allowed"] is not False
    plan_file(made, facts, paths.OWN_NIC_SCRIPT, script(wanted["traffic"], may_flap))
    plan_file(made, facts, paths.OWN_NIC_UNIT, _UNIT)
    plan_file(made, facts, paths.OWN_NIC_RULE, HEADER + "".join(_rule(facts, nic) for nic in nics))
    offline = kernel_out_of_reach(facts, root)
    for nic, row in wrong:
        if offline:
            made.not_verified.append(f"NIC {nic['netdev']} {row.id} is only set at boot: {offline}")
        elif row.id == "pfc" and not may_flap:
            made.not_applied.append(f"NIC {nic['netdev']} pfc: {row.seen}; fabric_link_flap_allowed is false")
        else:
            made.change(f"NIC {nic['netdev']} {row.id}", "set", row.seen, row.wanted)


def _settable(nic: dict, made: Plan) -> bool:
    for key in ("dscp", "pfc"):
        if nic[key] is None:
            made.not_applied.append(f"NIC {nic['netdev']} {key}: {NOT_SETTABLE} (VFs, bonds and soft-RoCE have none)")
            return False
        if is_unknown(nic[key]):
            made.not_verified.append(f"NIC {nic['netdev']} {key} is left as it is: {nic[key]}")
            return False
    return True


def _refuse(facts: dict, nics: list[dict], wrong: list[tuple[dict, Setting]], allowed: bool | None, made: Plan) -> None:
    for nic in nics:
        if nic["management"]:
            made.finding(
                f"NIC {nic['netdev']} (rail {nic['rail']})",
                "a NIC that node management does not depend on",
                f"{nic['netdev']} carries {nic['management']}",
                "take it out of discovery_rails, or set fabric_nic_settings: false for this host",
            )
    needed = {"dcb"} if nics else set()
    needed |= {"ethtool"} if any(row.id == "pause" for _nic, row in wrong) else set()
    for program in sorted(needed - {*facts["qos"]["programs"]}):
        package = {"dcb": "iproute2 5.11 or newer (RHEL: iproute)"}.get(program, program)
        made.finding(f"program {program}", "installed", "not there", f"install {package} on the node and run again")
    for nic, row in wrong:
        if row.id == "pfc" and allowed is None:
            made.finding(
                f"NIC {nic['netdev']} pfc",
                row.wanted,
                f"{row.seen}; the change takes the link of {nic['netdev']} down for seconds, and its users may fail",
                "set fabric_link_flap_allowed: true when no job runs, or false to leave PFC unchanged",
            )


def script(traffic: dict, may_flap: bool) -> str:
    mask = " ".join(
        f"{number}:{'on' if traffic['lossless'] and number == traffic['priority'] else 'off'}" for number in range(8)
    )
    entries = f"{traffic['dscp']}:{traffic['priority']} {traffic['cnp_dscp']}:{traffic['cnp_priority']}"
    parts = [_SCRIPT.replace("ENTRIES", entries)]
    parts += [_SCRIPT_PFC.replace("MASK", mask)] if may_flap else []
    parts += [_SCRIPT_PAUSE] if traffic["lossless"] else []
    return f"{HEADER}{''.join(parts)}exit $failed\n"


def _rule(facts: dict, nic: dict) -> str:
    """By PCI address, unless ports of one function share it."""
    own = [hca for hca in facts["hcas"] if nic["pci"] and (hca["pci"] or {}).get("address") == nic["pci"]]
    alone = sum(len(hca["netdevs"]) for hca in own) == 1
    key = f'KERNELS=="{nic["pci"]}"' if alone else f'ATTR{{address}}=="{nic["mac"]}"'
    template = paths.OWN_NIC_UNIT.rpartition("/")[2]
    return f'ACTION!="remove", SUBSYSTEM=="net", {key}, TAG+="systemd", ENV{{SYSTEMD_WANTS}}+="{template}"\n'


def instance(folder: str) -> str:
    """The unit of a network device, from its folder below /sys/devices, as by systemd-escape(1)."""
    escaped = "-".join(
        "".join(letter if letter in _KEPT else f"\\x{ord(letter):02x}" for letter in part)
        for part in folder.strip("/").split("/")
    )
    return paths.OWN_NIC_UNIT.rpartition("/")[2].replace("@", f"@{escaped}")
