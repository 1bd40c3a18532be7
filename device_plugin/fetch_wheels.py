# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python fetch_wheels.py FOLDER [--python 3.11 …] [--architecture amd64 …]: the wheels that nodes install offline.

Fills FOLDER with the wheels of lock/artifacts.yml for these Pythons and processors, from wherever pip is configured to
look, and refuses a file whose sha256 is not the locked one. The folder is what device_plugin_wheel_dir of role
device_plugin names. Needs pip and PyYAML.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import yaml

LOCK = pathlib.Path(__file__).resolve().parents[1] / "lock/artifacts.yml"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def fits(file: str, python: str, machine: str) -> bool:
    """Whether a wheel's tags are for this Python ("311") on this machine ("x86_64")."""
    tag, abi, platform = file.removesuffix(".whl").split("-")[2:]
    return (abi in ("abi3", "none") or tag == f"cp{python}") and (platform == "any" or platform.endswith(machine))


def fetch(folder: pathlib.Path, python: str, machine: str, wheels: list[dict]) -> None:
    """Download what is missing. SystemExit when pip cannot."""
    wanted = {
        entry["file"]: (f"{wheel['name']}=={wheel['version']}", entry["sha256"])
        for wheel in wheels
        for entry in wheel["files"]
        if fits(entry["file"], python, machine)
    }
    missing = [line for file, line in wanted.items() if not (folder / file).is_file()]
    if missing:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write("".join(f"{name} --hash=sha256:{sha256}\n" for name, sha256 in missing))
            requirements.flush()
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            command += ["--require-hashes", "--implementation", "cp", "--python-version", python]
            for abi in (f"cp{python}", "abi3", "none"):
                command += ["--abi", abi]
            for platform in PLATFORMS:
                command += ["--platform", f"{platform}_{machine}"]
            command += ["--dest", str(folder), "--requirement", requirements.name]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"fetch_wheels: pip could not get the wheels for Python {python} on {machine}")
    for file, (_name, sha256) in wanted.items():
        seen = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        if seen != sha256:
            raise SystemExit(f"fetch_wheels: {folder / file}: wanted sha256 {sha256}, seen {seen}: remove it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--python", nargs="+", default=["3.11"], metavar="X.Y")
    parser.add_argument("--architecture", nargs="+", default=["amd64", "arm64"], choices=sorted(MACHINES))
    chosen = parser.parse_args()
    wheels = yaml.safe_load(LOCK.read_text(encoding="utf-8"))["wheels"]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for python in chosen.python:
        for architecture in chosen.architecture:
            fetch(chosen.folder, python.replace(".", ""), MACHINES[architecture], wheels)


if __name__ == "__main__":
    main()
