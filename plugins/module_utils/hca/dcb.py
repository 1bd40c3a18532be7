"""RoCE settings of a NIC: the priority of each DSCP, the priorities with pause (PFC), and who controls them.

Sources: include/uapi/linux/{dcbnl,ethtool}.h and net/dcb/dcbnl.c for one RTM_GETDCB per netdev, drivers/net/ethernet/
mellanox/mlx5/core/en_dcbnl.c for its meaning in mlx5; MOFED adds files. Pauses by priority are in a NIC's statistics.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from typing import Any, Callable, Optional

from . import netlink, paths
from .text import unknown
from .tree import Tree

KEYS = ("dscp", "pfc", "ets", "buffers", "dcbx")
PRIORITIES = range(8)
_GET_DCB = 78  # RTM_GETDCB
_DCB = struct.Struct("=BBH")  # struct dcbmsg
_IEEE_GET, _IFNAME, _IEEE, _DCBX = 21, 1, 13, 14  # DCB_CMD_IEEE_GET, DCB_ATTR_…
_ETS, _PFC, _APPS, _BUFFER = 1, 2, 3, 10  # DCB_ATTR_IEEE_…, DCB_ATTR_DCB_BUFFER
_APP, _DSCP = 1, 5  # DCB_ATTR_IEEE_APP, IEEE_8021QAZ_APP_SEL_DSCP
_HOST = 1  # DCB_CAP_DCBX_HOST
_SCHEDULERS = {0: "strict", 1: "cb-shaper", 2: "ets", 255: "vendor"}
_SIOCETHTOOL, _GET_PAUSE = 0x8946, 0x12
# Paths of the programs that set it.
PROGRAMS = ("dcb", "ethtool")
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/opt/mellanox/iproute2/sbin")


def state(tree: Tree, ask: Callable[[str], dict[str, Any]], hcas: list[dict[str, Any]], rails: list[dict[str, Any]]):
    """{programs: the installed ones of dcb and ethtool, nics: a row for each rail over Ethernet}.

    In a row null is a setting that the driver does not offer, a text one that cannot be known. ask: the seam `qos`.
    """
    there = [netdev for hca in hcas for netdev in hca["netdevs"] if netdev["type"] == "ether" and netdev["mac"]]
    netdevs = {netdev["name"]: netdev for netdev in there}
    rows = [_row(tree, ask, rail, netdevs[rail["netdev"]]) for rail in rails if rail["netdev"] in netdevs]
    programs = [name for name in PROGRAMS if rows and any(tree.exists(f"{folder}/{name}") for folder in _FOLDERS)]
    return {"programs": programs, "nics": rows}


def _row(tree: Tree, ask: Callable[[str], dict[str, Any]], rail: dict[str, Any], netdev: dict[str, Any]):
    answer = ask(netdev["name"])
    mapped = answer["dscp"]
    trust = mapped if mapped is None or isinstance(mapped, str) else "dscp" if mapped else "pcp"
    base = f"{paths.NET}/{netdev['name']}"
    return {
        "rail": rail["index"],
        "netdev": netdev["name"],
        "pci": rail["pci"],
        **{key: netdev[key] for key in ("mac", "management")},
        # mlx5 trusts the DSCP as long as there is an entry for one.
        "trust": tree.read(f"{base}/qos/trust_state") or trust,
        **answer,
        "ecn": {side: _enabled(tree, f"{base}/ecn/roce_{side}/enable") for side in ("np", "rp")},
    }


def _enabled(tree: Tree, folder: str) -> Optional[list[int]]:
    """Priorities with congestion control; MOFED has a file for each."""
    there = tree.listdir(folder)
    return [number for number in PRIORITIES if tree.read(f"{folder}/{number}") == "1"] if there else None


def read(netdev: str) -> dict[str, Any]:
    """The netdev's KEYS and `pause`, by one rtnetlink request and one ioctl."""
    return {**asked(lambda: parsed(_answer(netdev)), KEYS), **asked(lambda: _pause(netdev), ("pause",))}


def asked(call: Callable[[], dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    """The result of a call; null for each key if the driver has no such settings, else the reason."""
    try:
        return call()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return dict.fromkeys(keys)
        why = error.strerror or str(error)
    except (ValueError, struct.error):
        why = "the kernel's answer is cut off"
    return dict.fromkeys(keys, unknown(why))


def _answer(netdev: str) -> bytes:
    name = netdev.encode()[:15] + b"\0"
    body = _DCB.pack(0, _IEEE_GET, 0) + struct.pack("=HH", 4 + len(name), _IFNAME) + name + bytes(-len(name) % 4)
    return next(netlink.answers(_GET_DCB, netlink.REQUEST, body))


def parsed(answer: bytes) -> dict[str, Any]:
    """KEYS of an answer; OSError for an error of the kernel, ValueError or struct.error for half an answer.

    A DSCP may have several entries; the driver decides which one counts, so all are returned.
    """
    length, kind, *_rest = netlink.HEADER.unpack_from(answer)
    number = netlink.failure(answer)
    if number:
        raise OSError(number, os.strerror(number))
    if length > len(answer) or kind != _GET_DCB:
        raise ValueError("incomplete answer")
    top = dict(netlink.attributes(answer[netlink.HEADER.size + _DCB.size : length]))
    ieee = dict(netlink.attributes(top[_IEEE])) if _IEEE in top else {}
    mapped: dict[str, list[int]] = {}
    for number, entry in netlink.attributes(ieee.get(_APPS, b"")):
        selector, priority, protocol = struct.unpack_from("=BBH", entry)
        if (number, selector) == (_APP, _DSCP):
            mapped.setdefault(str(protocol), []).append(priority)
    return {
        "dscp": {dscp: sorted(mapped[dscp]) for dscp in sorted(mapped, key=int)} if _APPS in ieee else None,
        "pfc": _pfc(ieee[_PFC]) if _PFC in ieee else None,
        "ets": _ets(ieee[_ETS]) if _ETS in ieee else None,
        "buffers": _buffers(ieee[_BUFFER]) if _BUFFER in ieee else None,
        "dcbx": ("host" if top[_DCBX][0] & _HOST else "firmware") if top.get(_DCBX) else None,
    }


def _pfc(data: bytes) -> dict[str, Any]:
    """delay: of the cable and both ends, in bit times or, with mlx5, metres of cable."""
    capable, mask, _bypass, delay = struct.unpack_from("=BBBxH", data)
    on = [number for number in PRIORITIES if mask >> number & 1]
    return {"priorities": on, "capable": capable, "delay": delay}


def _ets(data: bytes) -> dict[str, Any]:
    """classes: the traffic class of each priority. bandwidth (percent) and schedulers: of each class."""
    fields = struct.unpack_from("=3x8s8x8s8s", data)
    bandwidth, schedulers, classes = (list(field) for field in fields)
    named = [_SCHEDULERS.get(number, str(number)) for number in schedulers]
    return {"classes": classes, "bandwidth": bandwidth, "schedulers": named}


def _buffers(data: bytes) -> dict[str, Any]:
    """of: the receive buffer of each priority. bytes: their sizes."""
    of, *sizes = struct.unpack_from("=8s8I", data)
    return {"of": list(of), "bytes": sizes}


def _pause(netdev: str) -> dict[str, Any]:
    """Pause frames for the whole port, before autonegotiation."""
    _command, _negotiate, rx, tx = struct.unpack("=4I", ethtool(netdev, struct.pack("=4I", _GET_PAUSE, 0, 0, 0)))
    return {"pause": {"rx": bool(rx), "tx": bool(tx)}}


def ethtool(netdev: str, fields: bytes, room: int = 0) -> bytes:
    """The driver's answer to a request over SIOCETHTOOL (include/uapi/linux/ethtool.h), with room for it."""
    buffer = array.array("B", fields + bytes(room))
    request = struct.pack("16sP16x", netdev.encode()[:15], buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
    return buffer.tobytes()
