"""Whether device plugins answer on their sockets, asked like the kubelet: one gRPC call, without grpcio.

Standard library only; runs on the node. GetDevicePluginOptions changes nothing in any plugin; a ListAndWatch would look
like the kubelet's own.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import socket
import struct
import time

METHOD = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
# Seconds for one answer. It comes from memory within milliseconds; a node can be busy.
PATIENCE = 10.0

# The end of the name of a DRA driver's socket. It has no such call, and refuses it if it is alive; a call for its name
# would make it take us for the kubelet.
DRIVERS = "-reg"
_REFUSED = "it answers, but refuses the call GetDevicePluginOptions"

# RFC 9113: frame types and flags.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_STREAM = 1
# gRPC over HTTP/2: a flag (compressed) and the length come before each message.
_PREFIX = 5
_EMPTY = bytes(_PREFIX)


def ask_all(served: dict[str, str], folders: list[str]) -> dict[str, dict]:
    """{resource: sockets {path: why it does not answer, empty if it does}, by}. All at once: together they take no
    longer than one.

    served: the server of each resource. folders: the kubelet's folders for sockets; a plugin may use either or both.
    """
    paths = {name: [f"{folder}/{name}.sock" for folder in folders] for name in served if os.sep not in name}
    there = [path for places in paths.values() for path in places if pathlib.Path(path).is_socket()]
    with concurrent.futures.ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(there, pool.map(ask, there)))
    lives = {path for path, why in answers.items() if why == _REFUSED and path.endswith(f"{DRIVERS}.sock")}
    answers.update(dict.fromkeys(lives, ""))
    return {
        name: {"sockets": {path: answers[path] for path in places if path in answers}, "by": served[name]}
        for name, places in paths.items()
    }


def ask(path: str, seconds: float = PATIENCE) -> str:
    """Why the plugin at a socket does not answer; empty if it does. Effect: one connection. Never takes longer than
    `seconds`.
    """
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(seconds)
        try:
            channel.connect(path)
            channel.sendall(_request())
            return _answer(channel, deadline)
        except socket.timeout:
            return f"no answer within {seconds:g} s: the process is stopped or stuck"
        except BlockingIOError:
            return "its queue of connections is full: the process is stopped or stuck"
        except OSError as error:
            return error.strerror or str(error)


def _request() -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", METHOD.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    # RFC 7541, 6.2.2: literal fields that no table keeps; each text is below 127 bytes.
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0)
        + _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        + _frame(_DATA, _END_STREAM, _STREAM, _EMPTY)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _answer(channel: socket.socket, deadline: float) -> str:
    """Read frames until our call has its message, or its end."""
    received = 0
    while received < _PREFIX:
        head = _read(channel, 9, deadline)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0] & 0x7FFFFFFF
        payload = _read(channel, int.from_bytes(head[:3], "big"), deadline)
        if kind == _SETTINGS and not flags & _ACK:
            channel.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _GOAWAY or (kind == _RESET and stream == _STREAM):
            return "it closes the connection on the call"
        elif kind == _DATA and stream == _STREAM:
            received += len(payload)
        elif kind == _HEADERS and stream == _STREAM and flags & _END_STREAM:
            return _REFUSED
    return ""


def _read(channel: socket.socket, size: int, deadline: float) -> bytes:
    found = b""
    while len(found) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout
        channel.settimeout(left)
        part = channel.recv(size - len(found))
        if not part:
            raise ConnectionError("it closes the connection")
        found += part
    return found
