"""A captured machine (tests/fixtures/hosts/*.yml) as a tree that a node's overlay can carry, laid out once per content."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import fail, run

CHECKOUT = Path(__file__).resolve().parents[2]
FIXTURES = CHECKOUT / "tests/fixtures/hosts"
TREE_TOOL = CHECKOUT / "tests/tools/tree.py"
LAY_OUT = """
import importlib.util, pathlib, sys, yaml
spec = importlib.util.spec_from_file_location("tree", sys.argv[1])
tree = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tree)
tree.lay_out(yaml.safe_load(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")), pathlib.Path(sys.argv[3]))
"""


def _python_with_yaml() -> str:
    for python in (sys.executable, str(CHECKOUT / ".venv/bin/python")):
        try:
            if subprocess.run([python, "-c", "import yaml"], capture_output=True, check=False).returncode == 0:
                return python
        except OSError:
            continue
    fail("captured machines", "a Python with PyYAML to read the fixtures", "none", "run: make venv")


def fixture_path(name: str) -> Path:
    path = Path(name) if name.endswith(".yml") else FIXTURES / f"{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in FIXTURES.glob("*.yml"))) or "none"
        fail(
            f"fixture {name}",
            f"the file {path}",
            f"no such file; there are: {known}",
            "name one of them with --fixture",
        )
    return path


class Machine:
    """One fixture laid out below `cache`; `tree` is a lower layer of every node that plays this machine."""

    def __init__(self, cache: Path, fixture: Path, image_root: Path) -> None:
        self.name = fixture.stem
        key = hashlib.sha256(fixture.read_bytes() + TREE_TOOL.read_bytes() + Path(__file__).read_bytes()).hexdigest()[
            :16
        ]
        self.tree = cache / key
        if not self.tree.is_dir():
            partial = self.tree.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            # A real /lib in the upper layer would hide the image's /lib -> usr/lib, and with it the loader.
            for entry in image_root.iterdir():
                if entry.is_symlink():
                    target = os.readlink(entry)
                    (partial / target).mkdir(parents=True, exist_ok=True)
                    (partial / entry.name).symlink_to(target)
            run(
                [_python_with_yaml(), "-c", LAY_OUT, str(TREE_TOOL), str(fixture), str(partial)],
                f"fixture {fixture}",
                "run: pytest tests/unit/test_fixtures.py",
            )
            (partial / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)  # systemd's own, bound here by the node
            partial.rename(self.tree)

    def links(self) -> list[dict[str, Any]]:
        """The network devices of the machine, to be made as real links: /proc/net cannot be laid over, so it is made true."""
        seams = self.tree / ".seams.json"
        addresses = json.loads(seams.read_text()).get("addresses", {}) if seams.is_file() else {}
        return [
            {
                "name": netdev.name,
                "mac": _read(netdev / "address"),
                "mtu": _read(netdev / "mtu"),
                "up": _read(netdev / "operstate") != "down",
                "addresses": addresses.get(netdev.name, []),
            }
            for netdev in sorted((self.tree / "sys/class/net").glob("*"))
            if netdev.name != "lo" and netdev.is_dir()
        ]

    def default_routes(self) -> list[dict[str, str]]:
        lines = (_read(self.tree / "proc/net/route") or "").splitlines()[1:]
        return list(_default_routes(line.split() for line in lines))


def _default_routes(rows: Iterator[list[str]]) -> Iterator[dict[str, str]]:
    for row in rows:
        if len(row) >= 8 and row[1] == row[7] == "00000000":
            # /proc/net/route prints the address in the byte order of the machine; every supported one is little-endian.
            via = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(row[2]), "little"))
            yield {"netdev": row[0], "via": str(via), "metric": row[6]}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
