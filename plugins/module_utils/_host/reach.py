"""Whether a port of another node is reachable: listen there, ask from here.

The answer is a connection over TCP, the same datagram over UDP, and a ping reply of the address behind it if the kernel
has the port (VXLAN, WireGuard).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import struct
import time
from typing import Optional

from .._core.programs import born

ANSWERED, REFUSED, SILENT = "answered", "refused", "silent"
_HELLO = b"gpufabric-rdma port probe"
_EVERY = 1.0  # how often a datagram is sent again
_STREAM = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def listen(ports: list[dict], seconds: float) -> dict:
    """Answer at ports ({protocol, address, port}) in the background for some time.

    listener: input of stop(), None if there is nothing to do. deaf: {port/protocol: why nothing can listen}; a port in
    use answers by itself.
    """
    sockets, deaf = [], {}
    for port in ports:
        listening = socket.socket(_family(port["address"]), _STREAM[port["protocol"]])
        try:
            if port["protocol"] == "tcp":  # connections of the last probe hold the port for a minute (TIME_WAIT)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((port["address"], port["port"]))
            if port["protocol"] == "tcp":
                listening.listen(128)
            listening.setblocking(False)
            sockets.append(listening)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                deaf[f"{port['port']}/{port['protocol']}"] = error.strerror or str(error)
    listener = _background(sockets, seconds) if sockets else None
    for listening in sockets:
        listening.close()
    return {"listener": listener, "deaf": deaf}


def _background(sockets: list[socket.socket], seconds: float) -> dict:
    """A process that outlives this one, without its standard streams, because the caller would wait for those."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.write(writing, str(os.getpid()).encode())
                _only({listening.fileno() for listening in sockets})
                _answer(sockets, time.monotonic() + seconds)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        pid = int(stream.read())
    return {"pid": pid, "born": born(pid)}


def _only(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _answer(sockets: list[socket.socket], until: float) -> None:
    with selectors.DefaultSelector() as waiting:
        for listening in sockets:
            waiting.register(listening, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            for key, _events in waiting.select(left):
                with contextlib.suppress(OSError):  # the client has gone
                    if key.fileobj.type == socket.SOCK_STREAM:
                        key.fileobj.accept()[0].close()
                    else:
                        data, peer = key.fileobj.recvfrom(64)
                        if data == _HELLO:
                            key.fileobj.sendto(data, peer)


def stop(listener: dict) -> None:
    """End a listener, but no other process that has its PID by now."""
    if listener["born"] and born(listener["pid"]) == listener["born"]:
        os.kill(listener["pid"], signal.SIGKILL)


def ask(questions: list[dict], seconds: float) -> list[dict]:
    """Each question ({protocol: tcp, udp or ping, address, port}) with its state and why, all at the same time."""
    states: list = [None] * len(questions)
    until, again = time.monotonic() + seconds, 0.0
    with selectors.DefaultSelector() as waiting:
        for number, question in enumerate(questions):
            try:
                _open(waiting, number, question)
            except OSError as error:
                states[number] = _state(error)
        while None in states and time.monotonic() < until:
            if time.monotonic() >= again:
                again = time.monotonic() + _EVERY
                for key in list(waiting.get_map().values()):
                    _send(key, questions[key.data], states)
            for key, _events in waiting.select(min(again, until) - time.monotonic()):
                state = _heard(key.fileobj, questions[key.data], key.data)
                if state:
                    states[key.data] = state
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
        for key in list(waiting.get_map().values()):
            key.fileobj.close()
    silent = (SILENT, f"no answer within {seconds:g} s")
    return [{**asked, **dict(zip(("state", "why"), state or silent))} for asked, state in zip(questions, states)]


def _open(waiting: selectors.BaseSelector, number: int, question: dict) -> None:
    family = _family(question["address"])
    if question["protocol"] == "ping":
        protocol = socket.getprotobyname("ipv6-icmp" if family == socket.AF_INET6 else "icmp")
        asking = socket.socket(family, socket.SOCK_RAW, protocol)
    else:
        asking = socket.socket(family, _STREAM[question["protocol"]])
    asking.setblocking(False)
    code = asking.connect_ex((question["address"], 0 if question["protocol"] == "ping" else question["port"]))
    if code not in (0, errno.EINPROGRESS):
        asking.close()
        raise OSError(code, os.strerror(code))
    waiting.register(asking, selectors.EVENT_WRITE if question["protocol"] == "tcp" else selectors.EVENT_READ, number)


def _send(key: selectors.SelectorKey, question: dict, states: list) -> None:
    if question["protocol"] == "tcp":
        return
    try:
        key.fileobj.send(_HELLO if question["protocol"] == "udp" else _echo(key.fileobj.family, key.data))
    except OSError as error:
        states[key.data] = states[key.data] or _state(error)


def _heard(asking: socket.socket, question: dict, number: int) -> Optional[tuple[str, str]]:
    """The answer of a ready socket; None if it is not one."""
    if question["protocol"] == "tcp":
        code = asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return _state(OSError(code, os.strerror(code))) if code else (ANSWERED, "")
    try:
        data = asking.recv(2048)
    except OSError as error:
        return _state(error)
    if question["protocol"] == "udp":
        return (ANSWERED, "") if data == _HELLO else None
    data = data if asking.family == socket.AF_INET6 else data[(data[0] & 15) * 4 :]
    wanted = 129 if asking.family == socket.AF_INET6 else 0
    mine = struct.pack("!HH", os.getpid() & 0xFFFF, number & 0xFFFF)
    return (ANSWERED, "") if data[:1] == bytes([wanted]) and data[4:8] == mine else None


def _echo(family: int, number: int) -> bytes:
    kind = 128 if family == socket.AF_INET6 else 8
    packet = struct.pack("!BBHHH", kind, 0, 0, os.getpid() & 0xFFFF, number & 0xFFFF) + _HELLO + b"\0"
    if family == socket.AF_INET6:
        return packet  # the kernel computes the checksum
    total = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    total = (total >> 16) + (total & 0xFFFF)
    return packet[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + packet[4:]


def _state(error: OSError) -> tuple[str, str]:
    return (REFUSED if error.errno == errno.ECONNREFUSED else SILENT), error.strerror or str(error)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
