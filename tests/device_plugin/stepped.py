"""python stepped.py FILE [flags]: the plugin with a wall clock that is FILE's seconds (a double) away from this one's.

The wall clock of a machine cannot be stepped for one process, and a time namespace moves only the other clocks. So this
is the plugin's own view of it: what its Python reads as the time of day. Time stamps of files stay the machine's, and
so does grpc's clock: its Python half makes deadlines of the time of day, which its core then compares with its own.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
import types

_REAL, _REAL_NS = time.time, time.time_ns


def step(path, seconds):
    """From outside: where the clock is from now on."""
    with open(path, "r+b") as file:
        file.write(struct.pack("d", seconds))


def _main():
    with open(sys.argv.pop(1), "rb") as file:
        shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def away():
        return struct.unpack("d", shared[:8])[0]

    unstepped = types.SimpleNamespace(time=_REAL)

    def now():
        core = sys.modules.get("grpc.aio._utils")
        if core and core.time is not unstepped:
            core.time = unstepped
        return _REAL() + away()

    time.time = now
    time.time_ns = lambda: _REAL_NS() + int(away() * 1e9)
    from rdma_device_plugin.__main__ import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
