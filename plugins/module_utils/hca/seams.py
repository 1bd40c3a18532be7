"""The few facts that no plain file provides, each behind one call that a test or a capture can replace."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import json
import os
import re
import socket
import struct
import subprocess
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

from . import dcb, netlink
from .text import integer, module_info, unknown
from .tree import Tree

_SIOCGIFCONF = 0x8912
_SIOCGIFNETMASK = 0x891B
_IFREQ = 40  # sizeof(struct ifreq) on 64-bit Linux
_GET_STRINGS, _GET_STATISTICS, _GET_COUNT = 0x1B, 0x1D, 0x37  # ETHTOOL_GSTRINGS, _GSTATS, _GSSET_INFO
_STATISTICS, _NAME = 1, 32  # ETH_SS_STATS, ETH_GSTRING_LEN
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # a login shell's PATH may lack the first one
RECORDED = "/.seams.json"
_SHAPES: dict[str, Any] = {
    "modinfo": {"*": {"*": str}},
    "rpm": str,
    "addresses": {"*": [str]},
    "machine": str,
    "routes": [dict],
    "rules": [dict],
    "sessions": [str],
    "egress": {"*": (str, type(None))},
    "statistics": {"*": {"*": int}},
    "qos": {"*": (dict, type(None))},
}


_UNASKED = dict.fromkeys((*dcb.KEYS, "pause"), unknown("the settings of NICs were not captured"))


@dataclass
class Seams:
    """Each returns None if it cannot know; without arguments all do.

    modinfo: `.modinfo` fields of a zstd-compressed module file. rpm: installed packages, one `name
    version-release` per line; only if an rpm database exists. addresses: IPv4 ones of the current network namespace,
    as {netdev: ["10.0.0.1/24"]}. machine: as `uname -m` prints it. routes: default routes of all tables with every next
    hop. rules: policy rules. sessions: the node's addresses at which SSH connections end. egress: the netdev by which
    the kernel sends from an address of this node to another one. statistics: counters of a netdev's driver, as
    `ethtool -S` shows them. qos: RoCE settings of a netdev, see dcb.read. forks: processes started.
    """

    modinfo: Callable[[str], Optional[dict[str, str]]] = lambda path: None
    rpm: Callable[[], Optional[str]] = lambda: None
    addresses: Callable[[], Optional[dict[str, list[str]]]] = lambda: None
    machine: Callable[[], Optional[str]] = lambda: None
    routes: Callable[[], Optional[list[dict[str, Any]]]] = lambda: None
    rules: Callable[[], Optional[list[dict[str, Any]]]] = lambda: None
    sessions: Callable[[Tree], list[str]] = lambda tree: ssh_addresses(tree, None)
    egress: Callable[[str, str], Optional[str]] = lambda source, destination: None
    statistics: Callable[[str], Optional[dict[str, int]]] = lambda netdev: None
    qos: Callable[[str], dict[str, Any]] = lambda netdev: _UNASKED
    forks: int = 0

    @classmethod
    def live(cls) -> Seams:
        """The machine itself."""
        seams = cls(addresses=_ipv4_addresses, machine=lambda: os.uname().machine)
        seams.routes = lambda: _asked(netlink.routes)
        seams.rules = lambda: _asked(netlink.rules)
        seams.egress = lambda source, destination: _asked(lambda: netlink.egress(source, destination))
        seams.statistics = lambda netdev: _asked(lambda: driver_statistics(netdev))
        seams.qos = dcb.read
        seams.sessions = lambda tree: ssh_addresses(tree, own_session(tree))
        seams.modinfo = lambda path: module_info(seams._run("modinfo", "-0", path) or "") or None
        seams.rpm = lambda: seams._run("rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n")
        return seams

    @classmethod
    def recorded(cls, mapping: dict[str, Any]) -> Seams:
        """The content of a capture, as _SHAPES has it. Without sessions they are read from the tree's files."""
        mapping = {key: mapping[key] for key, shape in _SHAPES.items() if _like(mapping.get(key), shape)}
        modinfo = mapping.get("modinfo") or {}
        sessions = mapping.get("sessions")
        return cls(
            **{name: partial(mapping.get, name) for name in ("rpm", "addresses", "machine", "routes", "rules")},
            modinfo=modinfo.get,
            sessions=lambda tree: ssh_addresses(tree) if sessions is None else sessions,
            egress=lambda source, destination: (mapping.get("egress") or {}).get(source),
            statistics=(mapping.get("statistics") or {}).get,
            qos=lambda netdev: {**_UNASKED, **((mapping.get("qos") or {}).get(netdev) or {})},
        )

    @classmethod
    def of(cls, tree: Tree) -> Seams:
        """Live seams for the machine itself, else those recorded in the tree, else none."""
        if tree.live:
            return cls.live()
        try:
            mapping = json.loads(tree.read(RECORDED) or "null")
        except ValueError:
            mapping = None
        return cls.recorded(mapping) if isinstance(mapping, dict) else cls()

    def _run(self, *argv: str) -> Optional[str]:
        self.forks += 1
        environment = {"PATH": _PATH, "LC_ALL": "C"}
        try:
            done = subprocess.run(argv, env=environment, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _ipv4_addresses() -> Optional[dict[str, list[str]]]:
    """SIOCGIFCONF lists every IPv4 address, secondary ones too; netdevice(7)."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            size = 32 * _IFREQ
            while True:
                buffer = array.array("B", bytes(size))  # struct ifconf takes a pointer
                request = struct.pack("iL", size, buffer.buffer_info()[0])
                used = struct.unpack("iL", fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, request))[0]
                if used < size:
                    break
                size *= 2  # a full buffer may have been cut short
            raw = buffer.tobytes()[:used]
            found: dict[str, list[str]] = {}
            for start in range(0, used, _IFREQ):
                entry = raw[start : start + _IFREQ]
                label = entry[:16].split(b"\0", 1)[0].decode()
                # With the address left in the request the kernel answers for that address, not for the first one.
                try:
                    mask = fcntl.ioctl(sock.fileno(), _SIOCGIFNETMASK, entry)[20:24]
                except OSError:
                    continue  # the address is gone meanwhile
                prefix = bin(int.from_bytes(mask, "big")).count("1")
                found.setdefault(label.partition(":")[0], []).append(f"{socket.inet_ntoa(entry[20:24])}/{prefix}")
            return found
    except (OSError, ValueError):
        return None


def driver_statistics(netdev: str) -> dict[str, int]:
    """{name: value}; OSError if the driver has no counters."""
    answer = dcb.ethtool(netdev, struct.pack("=IIQ", _GET_COUNT, 0, 1 << _STATISTICS), 4)
    _command, _reserved, known, count = struct.unpack("=IIQI", answer)
    if not known:
        return {}
    # The kernel writes all counters, whatever the buffer's size, and a driver adds some with each queue.
    room = 2 * count + 4096
    names = dcb.ethtool(netdev, struct.pack("=III", _GET_STRINGS, _STATISTICS, count), room * _NAME)[12:]
    values = dcb.ethtool(netdev, struct.pack("=II", _GET_STATISTICS, count), room * 8)[8:]
    texts = [
        names[at : at + _NAME].split(b"\0", 1)[0].decode("ascii", "replace") for at in range(0, count * _NAME, _NAME)
    ]
    return dict(zip(texts, struct.unpack_from(f"={count}Q", values)))


def _asked(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (OSError, ValueError, struct.error):
        return None


def _like(value: Any, shape: Any) -> bool:
    """Whether a recorded value has this shape: types, or a list or mapping of shapes."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_like(item, shape["*"]) for item in value.values())
    if isinstance(shape, list):
        return isinstance(value, list) and all(_like(item, shape[0]) for item in value)
    return isinstance(value, shape)


_ESTABLISHED = "01"
_SSH = 22
_SSH_PORT = re.compile(r"^\s*(?:Port[\s=]+|ListenAddress[\s=]+\S+:)(\d{1,5})\s*$", re.MULTILINE | re.IGNORECASE)


def ssh_addresses(tree: Tree, own: Optional[tuple[str, int]] = None) -> list[str]:
    """The node's ends of established connections to the SSH server and to the port of this run. own: its address and
    port.
    """
    ports = {_SSH, own[1] if own else _SSH}
    folder = "/etc/ssh/sshd_config.d"
    for path in ("/etc/ssh/sshd_config", *(f"{folder}/{name}" for name in tree.listdir(folder))):
        ports.update(map(int, _SSH_PORT.findall(tree.read(path) or "")))
    found = {own[0]: None} if own else {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (tree.read(path) or "").splitlines()[1:]:
            part = line.split()
            if len(part) > 3 and part[3] == _ESTABLISHED:
                digits, _colon, port = part[1].partition(":")
                address = socket_address(digits) if integer(f"0x{port}") in ports else None
                if address and not address.is_loopback:
                    found[str(address)] = None
    return list(found)


def socket_address(digits: str) -> Any:
    """An address of /proc/net/tcp: 32-bit words in host byte order (little-endian on ours)."""
    try:
        data = bytes.fromhex(digits)
        address = ipaddress.ip_address(b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4)))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def own_session(tree: Tree) -> Optional[tuple[str, int]]:
    """Our end of this run's SSH session; sudo drops SSH_CONNECTION, so every parent process is searched for it."""
    pid = os.getpid()
    while pid > 1:
        for entry in (tree.read_bytes(f"/proc/{pid}/environ") or b"").split(b"\0"):
            if entry.startswith(b"SSH_CONNECTION="):
                fields = entry.partition(b"=")[2].decode("ascii", "replace").split()
                known = len(fields) == 4 and fields[3].isdecimal()
                return (fields[2].partition("%")[0].replace("::ffff:", ""), int(fields[3])) if known else None
        parent = re.search(r"^PPid:\s+(\d+)", tree.read(f"/proc/{pid}/status") or "", re.MULTILINE)
        pid = int(parent[1]) if parent else 0
    return None
