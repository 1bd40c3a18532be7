"""Runs a Plugin in a thread with a node of tests/fixtures below it, and changes that node."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time

from conftest import PACKAGE
from kubelet_double import PATIENCE
from node import HERE, Node
from rdma_device_plugin import daemon, status
from rdma_device_plugin.lifecycle import Places, Settings, Timing

__all__ = ["COMMAND", "ENVIRONMENT", "FAST", "HERE", "SOON", "Node", "Process", "Running", "document", "entry"]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONWARNINGS": "error"}
COMMAND = [sys.executable, "-m", "rdma_device_plugin"]

# Seconds within which an event must have taken effect, on a machine with other work; bench.py has the figures.
SOON = 8.0
# The real figures, with less patience: tests would wait for seconds to pass.
FAST = Timing(confirm=0.6, grace=0.3, connect=3.0, retry_first=0.1, retry_most=1.0, backstop=0.3)


def entry(name="test_server", count=100, **more):
    """An entry of configList; selects all Mellanox HCAs by default."""
    selectors = {} if {"selectors", "devices", "extraSelectors"} & set(more) else {"selectors": {"vendors": ["15b3"]}}
    return {"resourceName": name, "rdmaHcaMax": count, **selectors, **more}


def document(*entries, interval=None):
    made = {"configList": list(entries)}
    return json.dumps(made if interval is None else {**made, "periodicUpdateInterval": interval}).encode()


class Running:
    """A Plugin in its own thread and loop.

    folder: where its config lies below base; a second plugin needs another. own_netns: listen to the kernel,
    in a network namespace of its own.
    """

    def __init__(
        self,
        base,
        config,
        root,
        timing=FAST,
        mode="auto",
        start=True,
        tree=None,
        link_up=None,
        folder="config",
        own_netns=False,
        settings_mode="device-plugin",
        **settings,
    ):
        self.base = pathlib.Path(base)
        self.config_file = self.base / folder / "config.json"
        self.config_file.parent.mkdir(exist_ok=True)
        self.config_file.write_bytes(config)
        self.settings = Settings(
            config_file=str(self.config_file),
            root=str(root),
            places=Places(f"{base}/plugins_registry", f"{base}/device-plugins", mode),
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
        """Why it is not ready, as /readyz says."""
        return status.problems(self.plugin)

    def rescan(self):
        self.call(self.plugin.rescan)

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
        """Swap the file as editors do; `mount` in test_reload does it as a ConfigMap."""
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
        return self

    def __exit__(self, *_error):
        self.stop()


class Process:
    """The command line as a process, with its real times."""

    def __init__(self, base, config, root, *arguments, under=()):
        (base / "config.json").write_bytes(config)
        self.log = base / "log"
        with open(self.log, "wb") as log, open(base / "out", "wb") as out:
            self.begun = time.monotonic()
            places = ["-kubelet-root", str(base), "-device-plugin-dir", f"{base}/device-plugins"]
            self.process = subprocess.Popen(
                [*under, *COMMAND, "-config-file", str(base / "config.json"), "-root", str(root), *places, *arguments],
                env=ENVIRONMENT,
                stderr=log,
                stdout=out,
            )

    def end(self, number):
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(10)
        return code, time.monotonic() - begun

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
