"""Which locked wheels a node installs, and the requirements that keep pip from using others.

Pure; standard library only: device_plugin/fetch_wheels.py uses it without Ansible. A wheel is a row of
lock/artifacts.yml: name, version, files with file and sha256.
"""

from __future__ import annotations

PIP = "pip"


def fits(file: str, python: str, machine: str) -> bool:
    """Whether the tags in a wheel's name match this Python ("3.11") on this machine ("x86_64")."""
    tag, abi, platform = file[: -len(".whl")].split("-")[2:]
    return (abi in ("abi3", "none") or tag == f"cp{python.replace('.', '')}") and (
        platform == "any" or platform.endswith(machine)
    )


def fitting(wheels: list[dict], python: str, machine: str) -> dict[str, dict]:
    """{file: {name, version, sha256}} of what one node installs, pip included."""
    return {
        entry["file"]: {"name": wheel["name"], "version": wheel["version"], "sha256": entry["sha256"]}
        for wheel in wheels
        for entry in wheel["files"]
        if fits(entry["file"], python, machine)
    }


def without(wheels: list[dict], python: str, machine: str) -> list[str]:
    """Names of the packages that have no wheel for this Python on this machine."""
    there = {wheel["name"] for wheel in fitting(wheels, python, machine).values()}
    return sorted(wheel["name"] for wheel in wheels if wheel["name"] not in there)


def requirements(wheels: list[dict]) -> str:
    """A pip requirements file with every locked hash; pip itself, which installs the others, is left out."""
    lines = [
        " ".join(
            [f"{wheel['name']}=={wheel['version']}", *(f"--hash=sha256:{one['sha256']}" for one in wheel["files"])]
        )
        for wheel in wheels
        if wheel["name"] != PIP
    ]
    return "".join(f"{line}\n" for line in lines)


def stamp(wheels: list[dict], python: str) -> str:
    """The content of a virtual environment, one package per line: different text means a different environment."""
    packages = sorted(f"{wheel['name']}=={wheel['version']}\n" for wheel in wheels if wheel["name"] != PIP)
    return f"python {python}\n" + "".join(packages)
