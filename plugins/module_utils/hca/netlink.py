"""Default routes and policy rules of all tables, from the kernel over rtnetlink.

procfs shows only the main table, and only the first next hop of an IPv4 route. Rows are as `ip -j route`
and `ip -j rule` print them. Numbers: include/uapi/linux/{netlink,rtnetlink,fib_rules}.h; they are kernel ABI.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Any, Optional

_GET_ROUTE, _GET_RULE = 26, 34
REQUEST, _DUMP = 0x1, 0x301  # NLM_F_REQUEST; with NLM_F_ROOT, NLM_F_MATCH
ERROR, _DONE = 2, 3
HEADER = struct.Struct("=IHHII")
_BODY = struct.Struct("=8BI")  # rtmsg and fib_rule_hdr: family, lengths, …, table, …, type or action; flags
_DST, _FROM, _OIF, _MULTIPATH, _TABLE = 1, 2, 4, 9, 15  # RTA_
_SRC, _IIF, _MARK, _OUT, _L3MDEV = 2, 3, 10, 17, 19  # FRA_
_UNICAST, _TO_TABLE = 1, 1  # RTN_UNICAST, FR_ACT_TO_TBL
_SECONDS = 5


def routes() -> Optional[list[dict[str, Any]]]:
    """Default routes of both families and all tables; None if the kernel does not answer."""
    found = []
    for body, attributes in _dump(_GET_ROUTE) or ():
        if body[1] or body[7] != _UNICAST:
            continue
        destination = "::/0" if body[0] == socket.AF_INET6 else "default"
        row: dict[str, Any] = {"dst": destination, "table": _number(attributes.get(_TABLE)) or body[4]}
        if _OIF in attributes:
            row["dev"] = _name(_number(attributes[_OIF]))
        hops = list(_next_hops(attributes.get(_MULTIPATH, b"")))
        found.append({**row, "nexthops": [{"dev": _name(index)} for index in hops]} if hops else row)
    return found


def rules() -> Optional[list[dict[str, Any]]]:
    """Policy rules that look up a table."""
    found = []
    for body, attributes in _dump(_GET_RULE) or ():
        if body[7] != _TO_TABLE:
            continue
        row: dict[str, Any] = {"table": _number(attributes.get(_TABLE)) or body[4], "src": "all"}
        if _SRC in attributes:
            row["src"] = f"{ipaddress.ip_address(attributes[_SRC])}/{body[2]}"
        for key, name in ((_IIF, "iif"), (_OUT, "oif")):
            if key in attributes:
                row[name] = attributes[key].rstrip(b"\0").decode("utf-8", "replace")
        if _number(attributes.get(_MARK)):
            row["fwmark"] = _number(attributes[_MARK])
        if attributes.get(_L3MDEV, b"\0")[0]:
            row["l3mdev"] = True
        found.append(row)
    return found


def egress(source: str, destination: str) -> Optional[str]:
    """The netdev by which this node sends from one of its addresses to another one's; None without a route."""
    ends = [ipaddress.ip_address(address) for address in (destination, source)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    bits = ends[0].max_prefixlen
    body = _BODY.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
    for kind, address in zip((_DST, _FROM), ends):
        body += struct.pack("=HH", 4 + len(address.packed), kind) + address.packed
    for _body, attributes in _messages(_GET_ROUTE, REQUEST, body):
        return _name(_number(attributes.get(_OIF)))
    return None


def _number(data: Optional[bytes]) -> int:
    return int.from_bytes(data or b"", "little")


def _name(index: int) -> Optional[str]:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return None


def _next_hops(data: bytes) -> Iterator[int]:
    """Interface indexes of a list of struct rtnexthop."""
    while len(data) >= 8:
        length, _flags, _hops, index = struct.unpack_from("=HBBi", data)
        yield index
        data = data[max((length + 3) & ~3, 8) :]


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each; ValueError for a truncated one."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if not 4 <= length <= len(data):
            raise ValueError("a truncated attribute")
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def _dump(kind: int) -> list[tuple[tuple[int, ...], dict[int, bytes]]]:
    """(fixed part, attributes) of each message of both families. OSError if the kernel refuses or does not answer."""
    families = (_BODY.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) for family in (socket.AF_INET, socket.AF_INET6))
    return [message for body in families for message in _messages(kind, _DUMP, body)]


def _messages(kind: int, flags: int, body: bytes) -> list[tuple[tuple[int, ...], dict[int, bytes]]]:
    """The kernel's answer to a request: all messages of a dump, one of any other."""
    found = []
    for data in answers(kind, flags, body):
        while len(data) >= HEADER.size:
            length, message, _flags, _sequence, _port = HEADER.unpack_from(data)
            if message in (ERROR, _DONE):
                return found
            if message == kind - 2:  # RTM_NEW…
                fixed = _BODY.unpack_from(data, HEADER.size)
                found.append((fixed, dict(attributes(data[HEADER.size + _BODY.size : length]))))
            data = data[max((length + 3) & ~3, HEADER.size) :]
        if flags == REQUEST:
            break
    return found


def answers(kind: int, flags: int, body: bytes, protocol: int = 0) -> Iterator[bytes]:
    """Each datagram of the kernel's answer, until the caller stops."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as channel:
        channel.settimeout(_SECONDS)
        channel.send(HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body)
        while True:
            yield channel.recv(1 << 18)


def failure(answer: bytes) -> Optional[int]:
    """The errno in an acknowledgement or error message (0 is success); None in any other message."""
    _length, kind, *_rest = HEADER.unpack_from(answer)
    return -struct.unpack_from("=i", answer, HEADER.size)[0] if kind == ERROR else None
