# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel's packet filter does with the first packet of a connection.

PRIVATE to the collection. Pure: the text of iptables-save or `nft --json list ruleset` in, verdicts out. Both become
the same tables of chains of rules. A condition that this module does not know is neither true nor false: what depends
on it is unknown, with the rule as the reason, and never open.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Callable, NamedTuple, Optional

ACCEPT, DROP, UNKNOWN, JUMP, GOTO, RETURN, NEXT = "accept", "drop", "unknown", "jump", "goto", "return", "next"
# Ports that clients send from: the kernel's default of net.ipv4.ip_local_port_range.
_CLIENT_PORTS = (32768, 60999)
_ALL_PORTS = (0, 65535)
# What Kubernetes and CNI plugins put in themselves: their policies are no firewall, and they open what they need.
_KUBERNETES = ("KUBE-", "CNI-", "cali-", "CILIUM_")
_TABLES_OF_KUBERNETES = ("kube-proxy", "kube-router", "cilium")

Answer = Optional[bool]


# Protocols that packets may have here, with their numbers; VRRP has no ports.
_NUMBERS = {"tcp": "6", "udp": "17", "vrrp": "112"}
WITHOUT_PORTS = frozenset({"vrrp"})


class Packet(NamedTuple):
    """The first packet of a connection. destination is an address of the node where `local`, else of a pod or peer.

    port is 0 where the protocol has none.
    """

    protocol: str
    port: int
    source: str
    destination: str | None
    iif: str | None
    oif: str | None = None
    local: bool = True

    @property
    def family(self) -> str:
        return "ip6" if ":" in self.source else "ip"


class Rule(NamedTuple):
    """conditions: each says whether a packet meets it, None where that cannot be told. ports: limits of port ranges
    that the rule tells apart. text: as its own program writes it; remove: the command that takes it out.
    """

    conditions: tuple[Callable[[Packet], Answer], ...]
    verdict: str
    target: str
    text: str
    remove: str = ""
    ports: tuple[int, ...] = ()

    def meets(self, packet: Packet) -> Answer:
        seen: Answer = True
        for condition in self.conditions:
            answer = condition(packet)
            if answer is False:
                return False
            if answer is None:
                seen = None
        return seen


class Base(NamedTuple):
    """A chain that the kernel enters by itself."""

    chain: str
    hook: str
    policy: str


class Table(NamedTuple):
    """program: iptables, ip6tables (with back end) or nft; families of packets that it sees: ip, ip6."""

    program: str
    name: str
    families: tuple[str, ...]
    chains: dict[str, list[Rule]]
    bases: list[Base]


class Outcome(NamedTuple):
    """What may become of a packet, and through what: a rule, or the policy of a chain (rule None)."""

    verdict: str
    table: Table
    chain: str
    rule: Rule | None
    certain: bool = True

    def said(self) -> str:
        where = f"{self.table.program}, table {self.table.name}"
        if self.rule is None:
            return f"the policy of chain {self.chain} ({where})"
        if self.table.program == "nft":
            return f"rule {self.rule.text} of chain {self.chain} ({where})"
        return f"rule {self.rule.text} ({where})"


# --- verdicts ---------------------------------------------------------------------------------------------------------


def verdict(tables: Iterable[Table], packet: Packet) -> Outcome | None:
    """None for a packet that passes; else what drops it, or (verdict UNKNOWN) what may."""
    doubt = None
    for table in tables:
        if packet.family not in table.families:
            continue
        for base in table.bases:
            if base.hook not in ("prerouting", "input" if packet.local else "forward"):
                continue
            seen = list(_walk(table, base.chain, packet, ()))
            if not seen or seen[-1] == NEXT:
                seen = [*seen[:-1], Outcome(base.policy, table, base.chain, None)]
            dropped = [one for one in seen if one.verdict == DROP]
            if dropped and len(dropped) == len(seen):
                return next((one for one in dropped if one.certain), dropped[-1])
            if doubt is None and any(one.verdict != ACCEPT for one in seen):
                doubt = next((one for one in seen if not one.certain), seen[0])._replace(verdict=UNKNOWN)
    return doubt


def _walk(table: Table, chain: str, packet: Packet, above: tuple[str, ...]) -> list:
    """Outcomes that are possible, the last of them NEXT if the packet may come out at the chain's end."""
    found: list = []
    leaves = False
    for rule in table.chains.get(chain, ()):
        meets = rule.meets(packet)
        if meets is False or rule.verdict == NEXT:
            continue
        if rule.verdict in (JUMP, GOTO):
            if rule.target.startswith(_KUBERNETES) or rule.target in above:
                continue
            inner = _walk(table, rule.target, packet, (*above, chain))
            through = bool(inner) and inner[-1] == NEXT
            found += [one if meets else one._replace(certain=False) for one in (inner[:-1] if through else inner)]
            if meets and not through:
                return [*found, NEXT] if leaves else found
            if rule.verdict == GOTO and through:
                leaves = True
                if meets:
                    return [*found, NEXT]
            continue
        if rule.verdict == RETURN:
            leaves = True
            if meets:
                return [*found, NEXT]
            continue
        found.append(Outcome(rule.verdict, table, chain, rule, certain=meets is True))
        if meets:
            return [*found, NEXT] if leaves else found
    return [*found, NEXT]


def limits(tables: Iterable[Table]) -> list[int]:
    """Ports at which some rule begins to treat a connection differently from the port below it."""
    return sorted(
        {port for table in tables for rules in table.chains.values() for rule in rules for port in rule.ports}
    )


def parts(tables: Iterable[Table], first: int, last: int) -> list[tuple[int, int]]:
    """The ports from first to last in ranges of which no rule tells two ports apart."""
    starts = [first, *(port for port in limits(tables) if first < port <= last)]
    return [(start, after - 1) for start, after in zip(starts, [*starts[1:], last + 1])]


# --- iptables-save ----------------------------------------------------------------------------------------------------

_HOOKS = {"PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward"}
_FINAL = {"ACCEPT": ACCEPT, "DROP": DROP, "REJECT": DROP, "TARPIT": DROP, "RETURN": RETURN, "NFQUEUE": UNKNOWN}
_FINAL.update(QUEUE=UNKNOWN)
# Matches that only annotate, or that a new connection from a routed peer meets whatever their options say.
_NO_CONDITION = frozenset({"comment", "tcp", "udp", "multiport", "conntrack", "state", "addrtype", "mark"})


def from_iptables(saved: str, program: str) -> list[Table]:
    """The tables of iptables-save or ip6tables-save; ValueError for a text that is none. NAT only rewrites."""
    family = "ip6" if program.startswith("ip6") else "ip"
    tables: list[Table] = []
    table = None
    for line in saved.splitlines():
        if line.startswith("*"):
            table = Table(program, line[1:].strip(), (family,), {}, [])
            if table.name != "nat":
                tables.append(table)
        elif table is not None and line.startswith(":"):
            chain, policy = line[1:].split()[:2]
            table.chains.setdefault(chain, [])
            if policy != "-" and chain in _HOOKS:
                table.bases.append(Base(chain, _HOOKS[chain], DROP if policy == "DROP" else ACCEPT))
        elif table is not None and line.startswith("-A "):
            words = shlex.split(line)
            table.chains.setdefault(words[1], []).append(_iptables_rule(words, line, program, table.name))
        elif line.strip() and not line.startswith("#") and line.strip() != "COMMIT":
            raise ValueError(f"not iptables-save: {line[:80]}")
    return tables


def _iptables_rule(words: list[str], line: str, program: str, table: str) -> Rule:
    conditions: list[Callable[[Packet], Answer]] = []
    ports: list[int] = []
    verdict_, target = NEXT, ""
    rest = words[2:]
    while rest:
        no = rest[0] == "!"
        rest = rest[1:] if no else rest
        option, rest = rest[0], rest[1:]
        values = []
        while rest and rest[0] != "!" and not (rest[0].startswith("-") and len(rest[0]) > 1):
            values.append(rest[0])
            rest = rest[1:]
        if option in ("-j", "-g"):
            target = values[0] if values else ""
            verdict_ = _FINAL.get(target) or ((GOTO if option == "-g" else JUMP) if target else NEXT)
            break  # what follows are options of the target
        made = _iptables_condition(option, values, ports)
        if made is not None:
            conditions.append(_not(made) if no else made)
    if "!" in words and "rpfilter" in words:
        conditions.append(lambda _packet: False)
    remove = f"{program} -t {table} -D {line[3:]}"
    return Rule(tuple(conditions), verdict_, target, line, remove, tuple(ports))


def _iptables_condition(option: str, values: list[str], ports: list[int]):
    """A condition, or None where the option asks nothing of a new connection."""
    value = values[0] if values else ""
    simple = {
        "-p": lambda packet: _protocol(value, packet),
        "-s": lambda packet: _inside(packet.source, value),
        "-d": lambda packet: _inside(packet.destination, value),
        "-i": lambda packet: _named(packet.iif, value.replace("+", "*")),
        "-o": lambda packet: _named(packet.oif, value.replace("+", "*")),
        "--dst-type": lambda packet: packet.local if value == "LOCAL" else _never(value, "UNICAST", not packet.local),
        "--src-type": lambda packet: _never(value, "UNICAST", True) if value != "LOCAL" else False,
        "--mark": lambda packet: int(value.partition("/")[0], 0) == 0,
        "--tcp-flags": lambda packet: _syn(values),
        "--syn": lambda packet: packet.protocol == "tcp",
    }
    if option == "-m":
        if value in _NO_CONDITION:
            return None
        if value in ("rpfilter", "rt"):
            return lambda _packet: False  # no route leads back to the sender; a routing header of IPv6
        return lambda _packet: None
    if option == "--comment":
        return None
    if option in ("--dport", "--dports"):
        ranges = [_range(part) for part in value.split(",")]
        ports += [limit for first, last in ranges for limit in (first, last + 1)]
        return lambda packet: any(first <= packet.port <= last for first, last in ranges)
    if option in ("--sport", "--sports"):
        ranges = [_range(part) for part in value.split(",")]
        return lambda _packet: _client(ranges)
    if option in ("--ctstate", "--state"):
        return lambda _packet: "NEW" in value.split(",")
    return simple.get(option) or (lambda _packet: None)


def _never(value: str, name: str, otherwise: bool) -> bool:
    """Whether a unicast packet has this type of address: no packet of ours is a broadcast or a multicast."""
    return otherwise if value == name else False


def _syn(values: list[str]) -> bool:
    mask, flags = (set(part.split(",")) for part in values[:2])
    return ({"SYN"} if mask == {"ALL"} else {"SYN"} & mask) == flags - {"NONE"}


def _range(text: str) -> tuple[int, int]:
    first, _colon, last = text.partition(":")
    low = int(first or 0)
    return low, int(last) if last else (_ALL_PORTS[1] if _colon else low)


def _client(ranges: list[tuple[int, int]]) -> Answer:
    low, high = _CLIENT_PORTS
    if any(first <= low and high <= last for first, last in ranges):
        return True
    return None if any(first <= high and low <= last for first, last in ranges) else False


def _not(condition: Callable[[Packet], Answer]) -> Callable[[Packet], Answer]:
    def negated(packet: Packet) -> Answer:
        answer = condition(packet)
        return None if answer is None else not answer

    return negated


def _protocol(wanted: str, packet: Packet) -> bool:
    return str(wanted).lower() in ("all", packet.protocol, _NUMBERS[packet.protocol])


def _named(name: str | None, pattern: str) -> Answer:
    return None if name is None else fnmatch.fnmatchcase(name, pattern)


def _inside(address: str | None, network: str) -> Answer:
    net = ipaddress.ip_network(network, strict=False)
    if address is None:
        return None if net.prefixlen else True
    ip = ipaddress.ip_address(address)
    return ip.version == net.version and ip in net


# --- nft --json list ruleset ------------------------------------------------------------------------------------------

_FAMILIES = {"ip": ("ip",), "ip6": ("ip6",), "inet": ("ip", "ip6")}
# What a rule does beside its verdict, and asks nothing of a packet.
_SIDE_EFFECTS = frozenset(
    {"counter", "log", "mangle", "ct helper", "ct timeout", "notrack", "quota", "set", "meter", "flow", "comment"}
)
_FINAL_NFT = {"accept": ACCEPT, "drop": DROP, "reject": DROP, "return": RETURN, "queue": UNKNOWN}


def from_nft(listed: str) -> list[Table]:
    """The tables of `nft --json list ruleset` with filters; ValueError for a text that is none."""
    try:
        items = json.loads(listed)["nftables"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no ruleset of nft: {listed[:80]}") from error
    found: dict[tuple, Table] = {}
    sets: dict[tuple, object] = {}
    for item in items:
        if "table" in item and item["table"]["family"] in _FAMILIES:
            family, name = item["table"]["family"], item["table"]["name"]
            found[family, name] = Table("nft", f"{family} {name}", _FAMILIES[family], {}, [])
        for kind in ("set", "map"):
            if kind in item:
                one = item[kind]
                sets[one["family"], one["table"], one["name"]] = one.get("elem") or []
    for item in items:
        if "chain" in item:
            chain = item["chain"]
            table = found.get((chain["family"], chain["table"]))
            if table is None:
                continue
            table.chains.setdefault(chain["name"], [])
            if chain.get("type") == "filter" and chain.get("hook") in ("prerouting", "input", "forward"):
                policy = DROP if chain.get("policy") == "drop" else ACCEPT
                table.bases.append(Base(chain["name"], chain["hook"], policy))
    for item in items:
        if "rule" in item:
            rule = item["rule"]
            table = found.get((rule["family"], rule["table"]))
            if table is not None and rule["table"] not in _TABLES_OF_KUBERNETES:
                named = {
                    key[2]: elements for key, elements in sets.items() if key[:2] == (rule["family"], rule["table"])
                }
                table.chains.setdefault(rule["chain"], []).extend(_nft_rules(rule, named))
    return list(found.values())


def opaque(table: Table) -> bool:
    """Whether nft cannot show all of the table's conditions, because iptables-nft has made it."""
    return any(" xt " in f" {rule.text} " for rules in table.chains.values() for rule in rules)


def _nft_rules(rule: dict, sets: dict) -> Iterator[Rule]:
    """The rule; one with a verdict map becomes one for each of the map's elements."""
    conditions: list[Callable[[Packet], Answer]] = []
    ports: list[int] = []
    words: list[str] = []
    place = f"{rule['family']} {rule['table']} {rule['chain']} handle {rule.get('handle')}"
    remove = f"nft delete rule {place}"
    for statement in rule.get("expr") or []:
        ((kind, value),) = statement.items()
        if kind == "match":
            conditions.append(_match(value, sets, ports))
            words.append(_written(value))
        elif kind in _FINAL_NFT or kind in ("jump", "goto"):
            target = (value or {}).get("target", "") if kind in ("jump", "goto") else ""
            verdict_ = _FINAL_NFT.get(kind) or (JUMP if kind == "jump" else GOTO)
            text = " ".join([*words, kind, target]).strip()
            yield Rule(tuple(conditions), verdict_, target, text, remove, tuple(ports))
            return
        elif kind == "vmap":
            yield from _vmap(value, conditions, ports, words, remove, sets)
        elif kind not in _SIDE_EFFECTS:
            conditions.append(lambda _packet: None)
            words.append("xt match" if kind == "xt" else kind)
    if "xt match" in words:  # its target may be in it, too
        yield Rule((*conditions, lambda _packet: None), UNKNOWN, "", " ".join(words), remove, tuple(ports))


def _vmap(value: dict, conditions: list, ports: list[int], words: list[str], remove: str, sets: dict) -> Iterator[Rule]:
    data = value["data"]
    elements = sets.get(data[1:], []) if isinstance(data, str) else data.get("set") or []
    for key, result in elements:
        ((kind, inner),) = result.items()
        target = (inner or {}).get("target", "") if isinstance(inner, dict) else ""
        mine: list[int] = []
        match = {"op": "==", "left": value["key"], "right": key}
        made = _match(match, sets, mine)
        verdict_ = _FINAL_NFT.get(kind) or {"jump": JUMP, "goto": GOTO}.get(kind, UNKNOWN)
        text = " ".join([*words, _written(match), kind, target]).strip()
        yield Rule((*conditions, made), verdict_, target, text, remove, (*ports, *mine))


def _match(match: dict, sets: dict, ports: list[int]) -> Callable[[Packet], Answer]:
    left, right, operator = match["left"], match["right"], match.get("op", "==")
    values = _values(right, sets)
    field = _field(left)
    if field == "port":
        ports += [limit for first, last in map(_numbers, values) for limit in (first, last + 1)]

    def met(packet: Packet) -> Answer:
        if field is None:
            return None
        applies = _applies(left, packet)
        if not applies:
            return applies
        answers = [_equals(field, left, value, packet) for value in values]
        if operator in ("<", ">", "<=", ">=") or (any(answer is None for answer in answers) and True not in answers):
            return None
        return any(answers) != (operator == "!=")

    return met


def _values(right, sets: dict) -> list:
    if isinstance(right, str) and right.startswith("@"):
        right = {"set": sets.get(right[1:], [])}
    if isinstance(right, dict) and "set" in right:
        right = right["set"]
    found = []
    for value in right if isinstance(right, list) else [right]:
        found.append(value["elem"]["val"] if isinstance(value, dict) and "elem" in value else value)
    return found


def _field(left) -> str | None:
    """What a match looks at, in our words; None for what we do not know."""
    if not isinstance(left, dict):
        return None
    ((kind, value),) = left.items()
    if kind == "payload" and isinstance(value, dict):
        return {
            "dport": "port",
            "sport": "client",
            "saddr": "source",
            "daddr": "destination",
            "protocol": "protocol",
        }.get(value.get("field", ""), None if value.get("protocol") not in ("icmp", "icmpv6") else "other protocol")
    if kind == "meta":
        return {
            "iifname": "iif",
            "iif": "iif",
            "oifname": "oif",
            "oif": "oif",
            "l4proto": "protocol",
            "mark": "mark",
        }.get(value["key"], {"nfproto": "family", "protocol": "family", "pkttype": "pkttype"}.get(value["key"]))
    if kind == "ct":
        return {"state": "state", "status": "status", "mark": "mark"}.get(value["key"])
    if kind == "fib":
        return {"type": "type", "oif": "reverse", "oifname": "reverse"}.get(value.get("result"))
    return None


def _applies(left: dict, packet: Packet) -> bool:
    """A match on a header that the packet does not have is not met, whatever its operator."""
    payload = left.get("payload")
    if not isinstance(payload, dict):
        return True
    wanted = payload.get("protocol")
    return wanted in (packet.protocol, packet.family) or (wanted == "th" and packet.protocol not in WITHOUT_PORTS)


def _equals(field: str, left: dict, value, packet: Packet) -> Answer:
    if field == "port":
        first, last = _numbers(value)
        return first <= packet.port <= last
    if field == "client":
        return _client([_numbers(value)])
    if field in ("source", "destination"):
        return _address(getattr(packet, field), value)
    if field in ("iif", "oif"):
        return _named(getattr(packet, field), str(value))
    if field == "protocol":
        return _protocol(str(value), packet)
    if field == "family":
        return str(value) in ({"ip": ("ipv4", "ip", "2"), "ip6": ("ipv6", "ip6", "10")}[packet.family])
    if field == "state":
        return value == "new"
    if field == "mark":
        return value == 0 if isinstance(value, int) else None
    if field == "type":
        flags = left["fib"].get("flags") or []
        wanted = "local" if packet.local and "daddr" in flags else "unicast"
        return value == wanted
    if field == "reverse":
        return value if isinstance(value, bool) else None  # false: missing; a route leads back to each peer
    if field == "pkttype":
        return value in ("unicast", "host")
    return False  # status (no packet of ours was translated) and headers of other protocols


def _address(address: str | None, value) -> Answer:
    if isinstance(value, dict) and "prefix" in value:
        return _inside(address, f"{value['prefix']['addr']}/{value['prefix']['len']}")
    if isinstance(value, dict) and "range" in value:
        low, high = map(ipaddress.ip_address, value["range"])
        return None if address is None else low <= ipaddress.ip_address(address) <= high
    return _inside(address, value) if isinstance(value, str) else None


def _numbers(value) -> tuple[int, int]:
    if isinstance(value, dict) and "range" in value:
        first, last = value["range"]
        return int(first), int(last)
    return (int(value), int(value)) if isinstance(value, int) else _ALL_PORTS


def _written(match: dict) -> str:
    """A match roughly as nft prints it."""
    left = match["left"]
    if isinstance(left, dict):
        ((kind, value),) = left.items()
        names = value if isinstance(value, dict) else {}
        left = {"payload": f"{names.get('protocol')} {names.get('field')}", "meta": names.get("key")}.get(
            kind, f"{kind} {names.get('key') or names.get('result') or ''}".strip()
        )
    operator = "" if match.get("op") in ("==", "in", None) else f"{match['op']} "
    return f"{left} {operator}{_shown(match['right'])}"


def _shown(value) -> str:
    if isinstance(value, dict) and "prefix" in value:
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    if isinstance(value, dict) and "range" in value:
        return "-".join(map(str, value["range"]))
    if isinstance(value, dict) and "set" in value:
        return f"{{ {', '.join(map(_shown, value['set']))} }}"
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return str(value)
