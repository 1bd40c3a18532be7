"""Files whose reads never come back, as sysfs of a card with stuck firmware: a FIFO, a file system in user space."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_HEADER = struct.Struct("IIQQIIII")  # struct fuse_in_header: length, opcode, unique, node, uid, gid, pid, padding
_ANSWER = struct.Struct("IiQ")
_FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 3, 14, 15, 26, 36, 42
_ENOSYS = 38


class Fifo:
    """A named pipe in place of the file: a plain open(2) waits for a writer for ever; that of the library does not."""

    hangs = False

    def __init__(self, path):
        self._path = path
        os.mkfifo(f"{path}.new")
        os.rename(f"{path}.new", path)

    def close(self):
        with contextlib.suppress(OSError):  # ENXIO: no reader
            os.close(os.open(self._path, os.O_WRONLY | os.O_NONBLOCK))


class Fuse:
    """A file system of one regular file, mounted over it: open(2) works, read(2) gets no answer.

    Not even SIGKILL ends a wait for an answer to what is asked already, as with a driver that waits for its firmware.
    OSError where this process may not mount, or there is no FUSE.
    """

    hangs = True

    def __init__(self, path):
        self._path = os.fsencode(path)
        self.asked = threading.Event()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=100644,user_id=0,group_id=0,allow_other".encode()
        if _LIBC.mount(b"hanging", self._path, b"fuse", 0, options) != 0:
            os.close(self._fd)
            raise OSError(ctypes.get_errno(), "cannot mount FUSE")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        """Unmount; pending readers get an error."""
        _LIBC.umount2(self._path, 1)  # MNT_FORCE aborts the requests that wait
        _LIBC.umount2(self._path, _MNT_DETACH)
        self._thread.join(5)
        os.close(self._fd)

    def _serve(self):
        while True:
            try:
                request = os.read(self._fd, 1 << 17)
            except OSError:
                return  # unmounted
            _length, opcode, unique, *_rest = _HEADER.unpack_from(request)
            if opcode == _READ:
                self.asked.set()
            elif opcode not in (_FORGET, _INTERRUPT, _BATCH_FORGET):
                body = self._body(opcode)
                error = 0 if body is not None else -_ENOSYS
                with contextlib.suppress(OSError):
                    os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(body or b""), error, unique) + (body or b""))

    def _body(self, opcode):
        if opcode == _INIT:
            return struct.pack("IIIIHHIIHHI28x", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, 0)
        if opcode == _GETATTR:
            attributes = struct.pack("6Q3I7I", 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
            return struct.pack("QII", 0, 0, 0) + attributes
        if opcode == _OPEN:
            return struct.pack("QII", 1, 1, 0)  # FOPEN_DIRECT_IO: each read comes here
        return None
