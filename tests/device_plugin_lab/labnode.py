"""The lab node that the device plugin is tried on: booting it, what it needs there, running programs on it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
CACHE = CHECKOUT / ".cache/plugin-lab"
# One node, in a lab of its own beside those of `make lab` and of molecule.
LAB = {
    "LAB_DIR": os.environ.get("LAB_DIR") or str(CHECKOUT / ".lab/plugin"),
    "LAB_PORT_BASE": os.environ.get("LAB_PORT_BASE") or "22600",
    "LAB_NODES": "node1",
}
NODE = "node1"
TARGET = "/opt/plugin-lab"
# Programs with the kubelet double: it forks with its threads idle, and loses its plugins on purpose all the time.
PYTHON = "env GRPC_ENABLE_FORK_SUPPORT=0 GRPC_VERBOSITY=NONE python3"
# What runs there; the rest of this folder runs on this machine.
PROGRAMS = ("scenarios.py", "traced.py", "peer_node.py")
# The node image is Debian 12; its Python is not asked, so that the wheels are there before it boots.
WHEELS = ("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp")
SKIP = shutil.ignore_patterns("__pycache__")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


class Failed(Exception):
    """What did not work, and what to look at."""


def labctl(*words, **settings):
    command = [str(CHECKOUT / "lab/labctl"), *words]
    return subprocess.run(command, env={**os.environ, **LAB}, text=True, check=False, **settings)


def call(*words):
    done = labctl(*words)
    if done.returncode:
        raise Failed(f"lab/labctl {' '.join(words)}: exit code {done.returncode}, see above")


@contextlib.contextmanager
def running():
    """The node is up; afterwards it is as it was before: a node that had to be booted is switched off."""
    table = labctl("status", capture_output=True).stdout.splitlines()
    was_up = any(line.split()[0] == NODE and line.split()[1] not in ("off", "missing") for line in table)
    call("up")
    try:
        yield
    finally:
        if not was_up:
            labctl("power", NODE, "off")


def on_node(script, **settings):
    """Run a script on the node; its CompletedProcess."""
    return labctl("ssh", NODE, script, **settings)


def libraries():
    """A folder with what the plugin runs on, for the node's Python; made once for each requirements.txt."""
    requirements = CHECKOUT / "device_plugin/requirements.txt"
    folder = CACHE / f"libraries-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        work = folder.with_suffix(".unfinished")
        shutil.rmtree(work, ignore_errors=True)
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(work), *WHEELS, *platforms]
        done = subprocess.run([*command, "--requirement", str(requirements)], check=False)
        if done.returncode:
            raise Failed(f"pip could not get the wheels of {requirements} (exit code {done.returncode}, see above)")
        work.rename(folder)
    return folder


def package(checkout, folder):
    """The plugin of a checkout, as its build lays it out, below the folder."""
    shutil.copytree(checkout / "device_plugin/rdma_device_plugin", folder / "rdma_device_plugin", ignore=SKIP)
    shutil.copytree(checkout / "plugins/module_utils/hca", folder / "rdma_device_plugin/hca", ignore=SKIP)


def payload():
    """Everything the node needs in one folder: libraries, the plugin as its build lays it out, the double, programs."""
    folder = CACHE / "payload"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(libraries(), folder, ignore=SKIP)
    package(CHECKOUT, folder)
    double = CHECKOUT / "tests/device_plugin"
    for file in (double / "kubelet_double.py", double / "measure.py", *(HERE / name for name in PROGRAMS)):
        shutil.copy(file, folder)
    return folder


def bring(folder, target=TARGET):
    """Copy a folder to the node, unless it is there already just so."""
    command = ["tar", "--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-C", str(folder), "-cf", "-", "."]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    digest = hashlib.sha256(packed).hexdigest()
    if on_node(f"cat {target}.sha256 2>/dev/null", capture_output=True).stdout.strip() == digest:
        return
    # Written out before it counts as there: the node is switched off without a warning.
    unpack = f"mkdir {target} && tar -C {target} -xf - && sync && echo {digest} >{target}.sha256"
    command = [str(CHECKOUT / "lab/labctl"), "ssh", NODE, f"rm -rf {target} {target}.sha256 && {unpack}"]
    done = subprocess.run(command, env={**os.environ, **LAB}, input=packed, check=False)
    if done.returncode:
        raise Failed(f"copying {len(packed) >> 20} MiB to {NODE}: exit code {done.returncode}, see above")
