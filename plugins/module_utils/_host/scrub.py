"""Replace everything that identifies a machine, so that a capture can be shared.

The same original gives the same replacement wherever it appears and however it is written, so relations survive:

- MAC and GUID keep the vendor part and the last octet; the two octets between are numbered. A MAC, the EUI-64 and the
  firmware GUID derived from it and an interface named after it change alike; neighbours stay neighbours.
- An IPv4 network becomes one of the same length in 198.18.0.0/15 (RFC 2544), hosts keep their position in it. An IPv6
  network becomes 2001:db8:0:N::/64 (RFC 3849). Loopback and link-local prefixes stay.
- UUIDs (boot id, disks, GPUs, pods), container ids and machine ids are numbered.
- The machine's name is replaced wherever it appears; network namespaces, and units that no distribution ships, are
  numbered.
"""

from __future__ import annotations

import ipaddress
import re

from ..hca import netns, routes
from . import kept_words

_HEX2 = "[0-9a-fA-F]{2}"
_HEX4 = "[0-9a-fA-F]{4}"
_MAC = rf"{_HEX2}(?::{_HEX2}){{5}}"
_TOKEN = re.compile(
    "|".join(
        (
            rf"(?P<ipoib>(?<![\w:]){_HEX2}(?::{_HEX2}){{19}}(?![\w:]))",
            rf"(?P<mac>(?<![\w:]){_MAC}(?![\w:]))",
            rf"(?P<gid>(?<![\w:]){_HEX4}(?::{_HEX4}){{7}}(?![\w:]))",
            rf"(?P<guid>(?<![\w:]){_HEX4}(?::{_HEX4}){{3}}(?![\w:]))",
            r"(?P<uuid>[0-9a-fA-F]{8}(?P<dash>[-_])[0-9a-fA-F]{4}(?:(?P=dash)[0-9a-fA-F]{4}){2}(?P=dash)[0-9a-fA-F]{12})",
            r"(?P<ipv4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))",
            r"(?P<ipv6>(?<![\w:.])[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}(?![\w:])|"
            r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){0,7}:(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?(?![\w:]))",
            r"(?P<bare>(?<![0-9a-fA-F])(?:[0-9a-fA-F]{32}){1,2}(?![0-9a-fA-F])|"
            r"(?<![0-9a-fA-F])(?:[0-9a-fA-F]{12}|[0-9a-fA-F]{16})(?![0-9a-fA-F]))",
        )
    )
)
# Runs in network namespaces on many machines and reveals nothing about this one.
_KNOWN = re.compile(
    r"^(system|machine|kubepods|runtime|k3s|rke2|kubelet|containerd|docker|crio|cri-containerd|cri-o|podman|libpod|systemd|init|user|session|dbus|ssh|"
    r"sshd|cron|chrony|ntp|haveged|irqbalance|rpc|nfs|lldp|polkit|udisks|upower|accounts|colord|rtkit|bluetooth|cups|"
    r"avahi|ModemManager|NetworkManager|openibd|opensm|rdma|nvidia|pause|sleep|e2scrub|kube|coredns|flannel|multus)"
    r"([-@.:\d].*)?$"
)
_POOL = ipaddress.ip_network("198.18.0.0/15")
_WIDE = ipaddress.ip_network("10.0.0.0/8")


class Scrubber:
    """Replacements for one fixture; `apply` works on it and on the facts gathered from it."""

    def __init__(self, fixture, hostname=None):
        self.macs, self.guids = set(), set()
        self.networks, self.hosts, self.prefixes, self.identifiers = {}, set(), {}, {}
        self.uuids, self.containers, self.ipv6 = {}, {}, {}
        self.replacement = {}
        for text in _texts(fixture):
            self._note(text)
        self._number()
        self._learn_addresses(fixture)
        names = {part: "node" for part in (hostname or "", (hostname or "").partition(".")[0]) if _telling(part)}
        names.update(_private_names(fixture))
        self.names = names
        # Longest first: a host's full name before its first label.
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if names else None

    # Collect.

    def _note(self, text):
        for found in _TOKEN.finditer(text):
            kind, token = found.lastgroup, found.group().lower()
            if kind == "mac" and not _trivial(token):
                self.macs.add(token.replace(":", ""))
            elif kind == "guid" and not _trivial(token):
                self.guids.add(token.replace(":", ""))
            elif kind == "ipoib":
                self.guids.add(token.replace(":", "")[24:])

    def _number(self):
        self.guids |= {f"{int(mac[:2], 16) ^ 2:02x}{mac[2:6]}fffe{mac[6:]}" for mac in self.macs}  # EUI-64
        middles = sorted({digits[-6:-2] for digits in self.macs | self.guids})
        free = (f"{number:04x}" for number in range(1, 1 << 16) if f"{number:04x}" not in set(middles))
        self.replacement = dict(zip(middles, free))

    def _learn_addresses(self, fixture):
        networks = set()
        for addresses in (fixture["seams"].get("addresses") or {}).values():
            for address in addresses if isinstance(addresses, list) else ():
                interface = ipaddress.ip_interface(address)
                self.hosts.add(interface.ip)
                networks.add(interface.network)
        for line in _decoded(fixture["files"].get(routes.IPV4)).splitlines()[1:]:
            self.hosts.update(routes.from_kernel(word) for word in line.split()[1:3])
        for text in _texts(fixture):
            for found in _TOKEN.finditer(text):
                if found.lastgroup == "gid" and _mapped(found.group()):
                    self.hosts.add(_mapped(found.group()))
        for host in sorted(self.hosts):
            if not any(host in network for network in networks):
                networks.add(ipaddress.ip_network(host))
        self._allot(sorted(networks, key=lambda network: (network.prefixlen, network)))
        for line in _decoded(fixture["files"].get("/proc/net/if_inet6")).splitlines():
            digits = line.split()[0].lower()
            self.ipv6[str(ipaddress.IPv6Address(int(digits, 16)))] = digits

    def _allot(self, networks):
        """Map each network to one of the same length; nested ones move with it."""
        taken = 0
        for network in networks:
            if _fixed(network) or any(network.subnet_of(other) for other in self.networks):
                continue
            if network.prefixlen < 16:
                self.networks[network] = ipaddress.ip_network((int(_WIDE.network_address), max(network.prefixlen, 8)))
                continue
            size = network.num_addresses
            taken = -(-taken // size) * size
            while self.networks.get(network, network) == network:
                start = int(_POOL.network_address) + taken % _POOL.num_addresses
                self.networks[network] = ipaddress.ip_network((start, network.prefixlen))
                taken += size

    # Replace.

    def apply(self, value, path=None):
        """The same structure with every text replaced: values, keys, paths."""
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self.apply(item, key) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.apply(item) for item in value]
        if isinstance(value, bytes):
            return self.apply(value.decode("utf-8", "surrogateescape"), path).encode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            return value
        if path == routes.IPV4:
            return self._routes(value)
        if path == "cmdline":
            value = kept_words.command_line(value)
        elif path == "text":  # of a fact: a statement, or a word of the command line
            value = kept_words.statement(value) or kept_words.command_line(value)
        elif path == "/etc/machine-id":
            return "0" * 32
        return self.text(value)

    def text(self, value):
        value = _TOKEN.sub(self._token, value)
        return self._words.sub(lambda found: self.names[found.group()], value) if self._words else value

    def _token(self, found):
        kind, token = found.lastgroup, found.group()
        digits = token.replace(":", "").lower()
        if kind == "ipoib":
            return _pairs(digits[:24] + self._guid(digits[24:]))
        if kind == "mac":
            return token if _trivial(token) else _pairs(self._guid(digits))
        if kind == "guid":
            return token if _trivial(token) else _fours(self._guid(digits))
        if kind == "gid":
            return _fours(self._gid(digits))
        if kind == "uuid":
            dash = found.group("dash")
            number = self.uuids.setdefault(token.lower().replace("_", "-"), len(self.uuids) + 1)
            return f"00000000-0000-4000-8000-{number:012x}".replace("-", dash)
        if kind == "ipv4":
            return str(self._host(ipaddress.ip_address(token))) if _is_ipv4(token) else token
        if kind == "ipv6":
            return self._compressed(token)
        return self._bare(token, digits)

    def _guid(self, digits):
        """A MAC or GUID in bare hexadecimal; one with a known tail changes there."""
        return digits[:-6] + self.replacement.get(digits[-6:-2], digits[-6:-2]) + digits[-2:]

    def _gid(self, digits):
        host = _mapped(digits)
        if host:
            return f"{'0' * 20}ffff{int(self._host(host)):08x}"
        if not digits.strip("0"):
            return digits
        if not digits[12:].strip("0") and digits[:12] in self.macs:  # siw: only the MAC
            return self._guid(digits[:12]) + digits[12:]
        return self._prefix(digits[:16]) + self._identifier(digits[16:])

    def _prefix(self, digits):
        """Subnet prefix of a GID or an IPv6 address; fe80 and fec0 identify no site."""
        if digits.startswith("fe") or not digits.strip("0"):
            return digits
        return f"20010db80000{self.prefixes.setdefault(digits, len(self.prefixes) + 1):04x}"

    def _identifier(self, digits):
        if digits in self.guids:
            return self._guid(digits)
        if int(digits, 16) < 1 << 16:  # assigned by hand: ::1, ::53
            return digits
        return f"{self.identifiers.setdefault(digits, 0x1_0000_0001 + len(self.identifiers)):016x}"

    def _host(self, host):
        if host not in self.hosts or _fixed(host):
            return host
        for network, moved in self.networks.items():
            if host in network:
                inside = int(host) & int(network.hostmask)
                if network.prefixlen < 16:
                    # The network may stay, but not a host.
                    inside ^= 0x0033_0000 & int(network.hostmask)
                return ipaddress.ip_address((int(moved.network_address) | inside) & 0xFFFFFFFF)
        return host

    def _compressed(self, token):
        digits = self.ipv6.get(token.lower())
        return str(ipaddress.IPv6Address(int(self._gid(digits), 16))) if digits else token

    def _bare(self, token, digits):
        size = len(digits)
        if (size == 12 and digits in self.macs) or (size == 16 and digits in self.guids):
            return self._guid(digits)
        if size == 32 and digits in self.ipv6.values():
            return self._gid(digits)
        if size == 64:
            return f"{self.containers.setdefault(digits, len(self.containers) + 1):064x}"
        return token

    def _routes(self, text):
        """Gateways and networks in the kernel table's notation."""
        kept = [line.rstrip() for line in text.splitlines()[:1]]
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) > 7:
                words[0] = self.text(words[0])
                words[1:3] = [self._host(routes.from_kernel(word)).packed[::-1].hex().upper() for word in words[1:3]]
                kept.append("\t".join(words))
        return "\n".join(kept) + "\n"


def _telling(name):
    """Whether a host name identifies a machine; `node` and `gpu` also occur as words in the trees."""
    return len(name) > 4 or bool(re.search(r"\d", name))


def _private_names(fixture):
    """{name: replacement} of network namespaces (netns/NAME) and of units (NAME.service) that no distribution ships."""
    stand_ins = {}
    files = {path: _decoded(data) for path, data in fixture["files"].items()}
    for line in "\n".join(files.get(path, "") for path in ("/proc/1/mountinfo", "/proc/self/mountinfo")).splitlines():
        name = re.search(r" net:\[\d+\] \S*/(netns/(?!cni-[0-9a-f])\S+)", line)
        if name:
            stand_ins.setdefault(name.group(1), f"netns/ns-{len(stand_ins) + 1}")
    for path in sorted(path for path in files if re.match(r"^/proc/\d+/cgroup$", path)):
        for unit in re.split(r"[/\n]", files[path]):
            name, _dot, kind = unit.rpartition(".")
            if kind in ("service", "scope", "slice") and unit not in netns.SHORT_LIVED and not _KNOWN.match(name):
                stand_ins.setdefault(unit, f"unit-{len(stand_ins) + 1}.{kind}")
    return stand_ins


def _texts(value):
    """Every text of a structure, keys too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bytes):
        yield _decoded(value)
    elif isinstance(value, str):
        yield value


def _decoded(data):
    return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data or ""


def _trivial(token):
    return not token.replace(":", "").strip("0") or not token.replace(":", "").lower().strip("f")


def _pairs(digits):
    return ":".join(digits[i : i + 2] for i in range(0, len(digits), 2))


def _fours(digits):
    return ":".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def _mapped(gid):
    """The IPv4 address inside ::ffff:a.b.c.d; None for another GID."""
    digits = gid.replace(":", "").lower()
    return ipaddress.ip_address(int(digits[24:], 16)) if digits.startswith("0" * 20 + "ffff") else None


def _is_ipv4(text):
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _fixed(address):
    """Addresses and networks that every machine has."""
    network = ipaddress.ip_network(address)
    return network.is_loopback or network.is_link_local or network.is_multicast or int(network.network_address) == 0
