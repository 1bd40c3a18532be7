"""A machine of tests/fixtures as a tree that a node's overlay can include, laid out once."""

import hashlib
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.settings import CHECKOUT, LabError, run

TREE_TOOL = CHECKOUT / "tests/tools/tree.py"
UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system")
STAND_IN = """#!/usr/bin/python3
# Replaces the program of a captured service: it runs and does nothing, so that systemd has a process to limit.
import os, signal, socket
address = os.environ.get("NOTIFY_SOCKET")
if address:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", address.replace("@", "\\0", 1))
signal.pause()
"""


def _python_with_yaml() -> str:
    pythons = (sys.executable, str(CHECKOUT / ".venv/bin/python"))
    for python in pythons:
        if (
            shutil.which(python)
            and not subprocess.run([python, "-c", "import yaml"], stderr=subprocess.DEVNULL).returncode
        ):
            return python
    raise LabError("captured machines", "a Python that has PyYAML", f"none of {', '.join(pythons)}", "run: make venv")


def fixture_path(name: str, cache: Path) -> Path:
    """The capture of that name, or the given file itself."""
    if name.endswith(".yml"):
        return Path(name)
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{name}.yml"
    run([_python_with_yaml(), str(TREE_TOOL), name, str(path)], f"fixture {name}", "use an existing one")
    return path


class Machine:
    """One fixture laid out below `cache`; `tree` is a lower layer of every node that plays this machine."""

    def __init__(self, cache: Path, fixture: Path, image_root: Path) -> None:
        self.name = fixture.stem
        sources = (fixture, TREE_TOOL, Path(__file__))
        key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
        self.tree = cache / key
        if self.tree.is_dir():
            return
        partial = self.tree.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        run(
            [_python_with_yaml(), str(TREE_TOOL), str(fixture.absolute()), str(partial)],
            f"fixture {fixture}",
            "run: pytest tests/unit/test_fixtures.py",
        )
        _follow_links(partial, image_root)
        _stand_in(partial, image_root)
        (partial / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)  # the node binds its own here, for systemd
        partial.rename(self.tree)

    def links(self) -> list[dict[str, Any]]:
        """The machine's netdevs, to be created as real links, because /proc/net cannot be overlaid."""
        recorded = json.loads((self.tree / ".seams.json").read_text()).get("addresses")
        ipv4 = recorded if isinstance(recorded, dict) else {}  # else a text with the reason
        ipv6 = _inet6(_read(self.tree / "proc/net/if_inet6"))
        return [
            {
                "name": netdev.name,
                "mac": _read(netdev / "address"),
                "mtu": int(_read(netdev / "mtu") or 0),
                "up": _read(netdev / "operstate") != "down",
                "addresses": [*ipv4.get(netdev.name, []), *ipv6.get(netdev.name, [])],
            }
            for netdev in sorted((self.tree / "sys/class/net").glob("*"))
            if netdev.name != "lo" and netdev.is_dir()
        ]

    def default_routes(self) -> list[dict[str, str]]:
        rows = [line.split() for line in _read(self.tree / "proc/net/route").splitlines()[1:]]
        return [
            {"netdev": row[0], "via": str(ipaddress.ip_address(bytes.fromhex(row[2])[::-1])), "metric": row[6]}
            for row in rows
            if int(row[1], 16) == int(row[7], 16) == 0 != int(row[2], 16)
        ]


def _follow_links(tree: Path, image_root: Path) -> None:
    """Moves the tree's /lib to where the image's link /lib points: a real folder above it would hide the loader."""
    for link in image_root.iterdir():
        ours = tree / link.name
        if link.is_symlink() and ours.is_dir() and not ours.is_symlink():
            shutil.copytree(ours, tree / os.readlink(link), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(ours)


def _stand_in(tree: Path, image_root: Path) -> None:
    """Gives captured services a program to start if the capture has only their units."""
    for unit in (path for folder in UNIT_FOLDERS for path in (tree / folder).glob("*.service")):
        for program in re.findall(r"^ExecStart=[-@:+!]*/(\S+)", unit.read_text(), re.MULTILINE):
            if not (tree / program).exists() and not (image_root / program).exists():
                (tree / program).parent.mkdir(parents=True, exist_ok=True)
                (tree / program).write_text(STAND_IN)
                (tree / program).chmod(0o755)


def _inet6(table: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for address, _, prefix, _, _, netdev in (line.split() for line in table.splitlines()):
        found.setdefault(netdev, []).append(f"{ipaddress.IPv6Address(bytes.fromhex(address))}/{int(prefix, 16)}")
    return found


def _read(path: Path) -> str:
    """The content; empty if the machine has no such file, or reading it failed there too."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
