"""A bad link to a fast node, where the kernel has no netem: two TUN devices, and between them this program.

Each packet waits for its turn at the link's rate and then its delay, or is lost; both ways alike. The devices are gone
when it ends.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
LARGEST = 65536


@dataclasses.dataclass(frozen=True)
class Link:
    delay: float  # seconds
    loss: float  # of 1
    rate: float  # bits a second
    queue: int = 100  # packets that wait before more are dropped


def device(name: str, address: str, peer: str, pid: int | None = None) -> int:
    """Descriptor of a new TUN device; with pid, in the network namespace of that process."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    inside = []
    if pid:
        subprocess.run(["ip", "link", "set", name, "netns", str(pid)], check=True)
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    for words in (["address", "add", address, "peer", peer, "dev", name], ["link", "set", name, "up"]):
        subprocess.run([*inside, "ip", *words], check=True)
    return handle


class _Way:
    """One direction: what waits, and when each packet is due."""

    def __init__(self, link: Link, out: int, chance: random.Random) -> None:
        self._link, self._out, self._chance = link, out, chance
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._free = 0.0
        self.lost = self.sent = 0  # packets, bytes

    def take(self, packet: bytes, now: float) -> None:
        if self._chance.random() < self._link.loss or len(self._waiting) >= self._link.queue:
            self.lost += 1
            return
        self._free = max(self._free, now) + len(packet) * 8 / self._link.rate
        self._waiting.append((self._free + self._link.delay, packet))

    def give(self, now: float) -> float:
        """Sends what is due; seconds until the next is."""
        while self._waiting and self._waiting[0][0] <= now:
            with contextlib.suppress(OSError):  # the node is gone, or its device is not up yet: a lost packet
                self.sent += os.write(self._out, self._waiting.popleft()[1])
        return self._waiting[0][0] - now if self._waiting else 1.0


def _carry(ends: tuple[int, int], ways: tuple[_Way, _Way], stop: threading.Event) -> None:
    with selectors.DefaultSelector() as ready:
        for end, way in zip(ends, ways):
            ready.register(end, selectors.EVENT_READ, way)
        while not stop.is_set():
            pause = min(way.give(time.monotonic()) for way in ways)
            for key, _events in ready.select(max(0.0, min(pause, 0.2))):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        key.data.take(os.read(key.fd, LARGEST), time.monotonic())


@contextlib.contextmanager
def between(here: str, there: str, pid: int, link: Link, seed: str) -> Iterator[tuple[_Way, _Way]]:
    """The link between this machine (address here) and the network namespace of a process (address there)."""
    chance = random.Random(seed)
    ends = (device("rdmaslow0", here, there), device("rdmaslow1", there, here, pid))
    ways = (_Way(link, ends[1], chance), _Way(link, ends[0], chance))
    stop = threading.Event()
    carrier = threading.Thread(target=_carry, args=(ends, ways, stop))
    carrier.start()
    try:
        yield ways
    finally:
        stop.set()
        carrier.join()
        for end in ends:
            os.close(end)
