# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python fetch_wheels.py FOLDER [--python 3.11 …] [--architecture amd64 …]: the wheels that nodes install offline.

Fills FOLDER with the wheels of lock/artifacts.yml for these Pythons and architectures from pip's configured index, and
refuses a file whose sha256 is not the locked one. Set device_plugin_wheel_dir of the role device_plugin to this folder;
the Containerfile installs from it too. Its requirements.txt has the hashes.
Needs pip and PyYAML.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import yaml

COLLECTION = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COLLECTION / "plugins/module_utils"))

from _device_plugin.wheels import fitting, requirements  # noqa: E402

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def fetch(folder: pathlib.Path, python: str, machine: str, wheels: list[dict]) -> None:
    """Download missing wheels. SystemExit if pip fails or a file does not match the lock."""
    wanted = fitting(wheels, python, machine)
    missing = [wheel for file, wheel in wanted.items() if not (folder / file).is_file()]
    if missing:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as lines:
            lines.writelines(f"{one['name']}=={one['version']} --hash=sha256:{one['sha256']}\n" for one in missing)
            lines.flush()
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            command += ["--require-hashes", "--implementation", "cp", "--python-version", python]
            for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
                command += ["--abi", abi]
            for platform in PLATFORMS:
                command += ["--platform", f"{platform}_{machine}"]
            command += ["--dest", str(folder), "--requirement", lines.name]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"fetch_wheels: pip could not get the wheels for Python {python} on {machine}")
    for file, wheel in wanted.items():
        seen = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        if seen != wheel["sha256"]:
            raise SystemExit(f"fetch_wheels: {folder / file}: wanted sha256 {wheel['sha256']}, seen {seen}: remove it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--python", nargs="+", default=["3.11"], metavar="X.Y")
    parser.add_argument("--architecture", nargs="+", default=["amd64", "arm64"], choices=sorted(MACHINES))
    chosen = parser.parse_args()
    wheels = yaml.safe_load((COLLECTION / "lock/artifacts.yml").read_text(encoding="utf-8"))["wheels"]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for python in chosen.python:
        for architecture in chosen.architecture:
            fetch(chosen.folder, python, MACHINES[architecture], wheels)
    (chosen.folder / "requirements.txt").write_text(requirements(wheels))


if __name__ == "__main__":
    main()
