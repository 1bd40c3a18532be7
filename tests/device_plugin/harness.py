"""Runs a Plugin in a thread or as a process, with a changing node of tests/fixtures below it."""

import asyncio
import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import threading
import time

from conftest import PACKAGE
from kubelet_double import PATIENCE
from rdma_device_plugin import daemon, status
from rdma_device_plugin.config import load
from rdma_device_plugin.lifecycle import Places, Settings, Timing

HERE = pathlib.Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("fixture_tree", HERE.parent / "tools/tree.py")
fixture_tree = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fixture_tree)

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONWARNINGS": "error"}
COMMAND = [sys.executable, "-m", "rdma_device_plugin"]

# Seconds within which an event must have taken effect on a busy machine; bench.py has the figures.
SOON = 8.0
# The real figures with shorter timeouts, because tests would have to wait for them.
FAST = Timing(confirm=0.6, grace=0.3, connect=3.0, retry_first=0.1, retry_most=1.0, backstop=0.3)


def entry(name="test_server", count=100, **more):
    """An entry of configList; selects all Mellanox HCAs by default."""
    selectors = {} if {"selectors", "devices", "extraSelectors"} & set(more) else {"selectors": {"vendors": ["15b3"]}}
    return {"resourceName": name, "rdmaHcaMax": count, **selectors, **more}


def document(*entries, interval=None):
    made = {"configList": list(entries)}
    return json.dumps(made if interval is None else {**made, "periodicUpdateInterval": interval}).encode()


class Node:
    """A laid-out node of tests/fixtures below `root`, which changes like hardware."""

    MADE_BY = {"ib_umad": "/sys/class/infiniband_mad", "rdma_ucm": "/sys/module/rdma_ucm"}

    def __init__(self, root, fixture="gh200-cx7-roce", rename=()):
        self.root = pathlib.Path(root)
        fixture = fixture_tree.load(fixture)
        if rename:
            text = json.dumps(fixture, default=str)
            for before, after in rename:
                text = text.replace(before, after)
            fixture = json.loads(text)
        fixture_tree.lay_out(fixture, self.root)
        self._aside = self.root / "aside"
        self._aside.mkdir()

    def path(self, name):
        return self.root / name.lstrip("/")

    def hcas(self):
        return sorted(path.name for path in self.path("/sys/class/infiniband").iterdir())

    def port(self, hca, state, number=1):
        """state: `4: ACTIVE`, `1: DOWN`"""
        path = self.path(f"/sys/class/infiniband/{hca}/ports/{number}/state")
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{state}\n")
        os.rename(unfinished, path)

    def unplug(self, hca):
        self._move(self.path(f"/sys/class/infiniband/{hca}"), self._aside / hca)

    def plug(self, hca):
        self._move(self._aside / hca, self.path(f"/sys/class/infiniband/{hca}"))

    def _move(self, before, after):
        os.symlink(os.readlink(before), after)
        os.unlink(before)

    def unload(self, module):
        """Remove a module's files."""
        os.rename(self.path(self.MADE_BY[module]), self._aside / module)
        return self

    def load(self, module):
        os.rename(self._aside / module, self.path(self.MADE_BY[module]))

    def netns(self, mode):
        self.path("/sys/module/ib_core/parameters/netns_mode").write_text(mode + "\n")

    def nodes(self, *names):
        """Make /dev/infiniband visible with these entries only."""
        directory = self.path("/dev/infiniband")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).touch()


class Running:
    """A Plugin in its own thread and loop.

    folder: where its config lies below base; a second plugin needs another. own_netns: listen to the kernel,
    in its own network namespace. kubelet: the one that has to have all its units before the block.
    """

    def __init__(
        self, base, config, root, timing=FAST, start=True, tree=None, link_up=None, folder="config", own_netns=False,
        settings_mode="device-plugin", kubelet=None, **settings,
    ):  # fmt: skip
        self.base = pathlib.Path(base)
        self.config_file = self.base / folder / "config.json"
        self.config_file.parent.mkdir(exist_ok=True)
        self.config_file.write_bytes(config)
        self.settings = Settings(
            config_file=str(self.config_file),
            root=str(root),
            places=Places(f"{base}/plugins_registry", f"{base}/device-plugins"),
            timing=timing,
            cdi_directory=f"{base}/cdi",
            mode=settings_mode,
            **{"port_poll": 0.05, "settle": 0.02, **settings},
        )
        self.plugin = None
        self.error = None
        self.stopped_in = None
        self.ready_in = None
        self._tree, self._link_up, self._own_netns = tree, link_up, own_netns
        self._served = (kubelet, config)
        self._loop = None
        self._stop = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if start:
            self.start()

    def start(self):
        begun = time.monotonic()
        self._thread.start()
        assert self._ready.wait(20), "the plugin did not become ready"
        self.ready_in = time.monotonic() - begun
        return self

    def _run(self):
        if self._own_netns and ctypes.CDLL(None).unshare(0x40000000) != 0:  # CLONE_NEWNET, of this thread
            self.error = "cannot make a network namespace"
            self._ready.set()
            return
        try:
            asyncio.run(self._main())
        except daemon.Fatal as error:
            self.error = str(error)
        self._ready.set()

    async def _main(self):
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.plugin = daemon.Plugin(self.settings, tree=self._tree, link_up=self._link_up, listen=self._own_netns)
        work = asyncio.ensure_future(self.plugin.run(self._stop))
        ready = asyncio.ensure_future(self.plugin.ready.wait())
        await asyncio.wait({work, ready}, return_when=asyncio.FIRST_COMPLETED)
        self._ready.set()
        await work

    def call(self, function, *arguments):
        """Run in the plugin's loop; its result."""

        async def wrapped():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop).result(10)

    def kernel_event(self):
        """A real uevent in the plugin's network namespace: an interface comes and goes with a descriptor."""

        def tap():
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"plug0", 0x1002))  # TUNSETIFF: IFF_TAP, IFF_NO_PI
            os.close(device)

        self.call(tap)

    def problems(self):
        """Why it is not ready, as in /readyz."""
        return status.problems(self.plugin)

    def rescan(self, condition=lambda: True):
        self.call(self.plugin.rescan)
        return self.until(condition)

    def resource(self, name="test_server"):
        return self.plugin.served[name].resource

    def until(self, condition, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.01)
        return False

    def configure(self, config):
        """Swap the file as editors do."""
        unfinished = self.config_file.with_suffix(".new")
        unfinished.write_bytes(config)
        os.rename(unfinished, self.config_file)

    def stop(self):
        if self._thread.is_alive():
            begun = time.monotonic()
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
            assert not self._thread.is_alive(), "the plugin did not stop"
            self.stopped_in = time.monotonic() - begun
        return self

    def __enter__(self):
        wait_for_units(*self._served)
        return self

    def __exit__(self, *_error):
        self.stop()


def wait_for_units(kubelet, config):
    for pool in load(config).pools if kubelet else ():
        kubelet.wait_allocatable(pool.resource, pool.count)


class Process:
    """The command line as a process, with its real times. kubelet: see Running."""

    def __init__(self, base, config, root, *arguments, under=(), log=None, kubelet=None):
        self._served = (kubelet, config)
        (base / "config.json").write_bytes(config)
        self.log = base / "log"
        places = ["-kubelet-root", str(base), "-device-plugin-dir", f"{base}/device-plugins", "-root", str(root)]
        command = [*under, *COMMAND, "-config-file", str(base / "config.json"), *places, *arguments]
        with open(self.log, "wb") as own, open(base / "out", "wb") as out:
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stderr=log or own, stdout=out)

    def end(self, number):
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(10)
        return code, time.monotonic() - begun

    def __enter__(self):
        wait_for_units(*self._served)
        return self

    def __exit__(self, *_error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


# Files whose reads never return, like sysfs of a card with stuck firmware: a FIFO, a file system in user space.

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_HEADER = struct.Struct("IIQQIIII")  # struct fuse_in_header: length, opcode, unique, node, uid, gid, pid, padding
_ANSWER = struct.Struct("IiQ")
_FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 3, 14, 15, 26, 36, 42
_ENOSYS = 38


class Fifo:
    """A named pipe instead of the file: a plain open(2) waits for a writer forever; that of the library does not."""

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

    Not even SIGKILL ends the wait for a pending answer, as with a driver that waits for its firmware. OSError if this
    process may not mount, or there is no FUSE.
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
        """Unmount; pending readers get an error. A second time does nothing."""
        if not self._thread.is_alive():
            return
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
