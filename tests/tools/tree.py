"""Captured nodes (tests/fixtures/hosts) and composed ones (tests/fixtures/machines.yml), loaded and laid out alike.

    tree.py NAME TARGET    lays out the node of this name or file below TARGET
    tree.py NAME FILE.yml  writes it as a capture, in one file

The format is described in tests/fixtures/README.md.
"""

import atexit
import base64
import copy
import functools
import json
import os
import pathlib
import runpy
import shutil
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = HERE.parent / "fixtures/hosts"
# The content that an entry of `repeat` repeats, and its section.
REPEATED = {"content": "files", "link": "links", "error": "errors"}
_FACTS: dict[tuple[str, str], dict] = {}
# By its path, because a program that loads this file by path has no package to import from.
COMPOSED = runpy.run_path(str(HERE / "compose_hosts.py"))


def names() -> list[str]:
    return sorted([*COMPOSED["names"](), *(path.stem for path in HOSTS.glob("*.yml"))])


def load(name: str | os.PathLike) -> dict:
    """A node by its name, or a capture by the path of its file."""
    if str(name) in COMPOSED["names"]():
        return COMPOSED["compose"](str(name))
    path = pathlib.Path(name) if str(name).endswith(".yml") else HOSTS / f"{name}.yml"
    if not path.is_file():
        raise FileNotFoundError(f"no node {name}; there are: {', '.join(names())}")
    return expand(yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def expand(fixture: dict) -> dict:
    """Expands the short forms of fixtures: folders of files become paths, `repeat` becomes one entry per number."""
    full = dict(fixture)
    for section in ("files", "links", "errors"):
        full[section] = dict(unfold(fixture.get(section) or {}))
    for pattern in full.pop("repeat", None) or ():
        ((section, value),) = ((name, pattern[key]) for key, name in REPEATED.items() if key in pattern)
        for number in map(str, range(pattern["from"], pattern["to"] + 1)):
            full[section][pattern["path"].replace("{n}", number)] = value.replace("{n}", number)
    for section, empty in (("binary", {}), ("modes", {}), ("mtimes", {}), ("directories", []), ("seams", {})):
        full[section] = fixture.get(section) or empty
    return full


def unfold(section: dict, folder: str = ""):
    """(path, content) of every leaf; a mapping below a path is a folder."""
    for name, value in section.items():
        path = f"{folder}/{name}" if folder else name
        if isinstance(value, dict):
            yield from unfold(value, path)
        else:
            yield path, value


def entries(name: str) -> dict:
    return yaml.safe_load((HERE.parent / f"fixtures/{name}.yml").read_text())


@functools.cache
def texts(name: str) -> pathlib.Path:
    """A folder of the texts in tests/fixtures/NAME.yml, each a file KEY.txt, until this process ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for key, text in entries(name).items():
        (folder / f"{key}.txt").write_text(text)
    return folder


def write(name: str, target: str | os.PathLike) -> pathlib.Path:
    """Writes a node as a capture: the file target, or NAME.yml in the folder target; returns the file."""
    target = pathlib.Path(target)
    path = target / f"{name}.yml" if target.is_dir() else target
    path.write_text(yaml.dump(load(name), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))
    return path


def lay_out(fixture: dict, target: str | os.PathLike) -> pathlib.Path:
    """Writes the tree below target and returns target. An `errors` entry becomes a folder, which cannot be read."""
    fixture = expand(fixture) if "repeat" in fixture or any(map(_is_folded, fixture.values())) else fixture
    target = pathlib.Path(target)
    made = set()

    def place(path: str) -> str:
        """Where a node path is below target, with links of the tree followed for every folder on the way."""
        parent = os.path.dirname(path)
        if parent not in made:
            _real(target, parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        return f"{target}{path}"

    # Links to folders (/lib -> usr/lib) come before the files that are reached through them.
    for path, goal in sorted(fixture.get("links", {}).items(), key=lambda item: item[0].count("/")):
        os.symlink(goal, place(path))
    for path in fixture.get("directories", ()):
        _real(target, path).mkdir(parents=True, exist_ok=True)
    for path, content in fixture.get("files", {}).items():
        with open(place(path), "w") as file:
            file.write(content if content.endswith("\n") or not content else f"{content}\n")
    for path, content in fixture.get("binary", {}).items():
        with open(place(path), "wb") as file:
            file.write(base64.b64decode(content))
    for path in fixture.get("errors", {}):
        os.makedirs(place(path), exist_ok=True)
    for path, mode in fixture.get("modes", {}).items():
        os.chmod(f"{target}{path}", int(mode, 8))
    for path, seconds in fixture.get("mtimes", {}).items():
        os.utime(f"{target}{path}", (seconds, seconds))
    (target / ".seams.json").write_text(json.dumps(fixture.get("seams") or {}))
    return target


def facts(name: str, **options: object) -> dict:
    """The result of hca_facts for a node; a copy each time. Needs the collection on Python's path."""
    from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import complete
    from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
    from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
    from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

    key = (name, repr(sorted(options.items())))
    if key not in _FACTS:
        # Thousands of small files: kept in memory if possible.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            root = Tree(str(lay_out(load(name), folder)))
            _FACTS[key] = complete(gather(root, Seams.of(root), **options), root, Seams.of(root))
    return copy.deepcopy(_FACTS[key])


def contents(root: pathlib.Path, *folders: str) -> dict[str, object]:
    """{path: what it links to, or mode and content} of all files and links below these folders of the root."""
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else (path.stat().st_mode & 0o7777, path.read_bytes())
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }


def _is_folded(section: object) -> bool:
    return isinstance(section, dict) and any(key.startswith("/") and isinstance(section[key], dict) for key in section)


def _real(target: pathlib.Path, path: str) -> pathlib.Path:
    """The folder that a node path refers to: absolute links lead to the tree's root, not to this machine's."""
    real = target
    for part in pathlib.PurePosixPath(path).parts[1:]:
        step = real / part
        if step.is_symlink():
            goal = os.readlink(step)
            step = _real(target, goal) if goal.startswith("/") else pathlib.Path(os.path.normpath(real / goal))
        real = step
    return real


def add_modalias(root: pathlib.Path) -> None:
    """The file modalias of each PCI device, from which ghw, and so the Go plugin, takes vendor, device and class."""
    for device in (root / "sys/bus/pci/devices").iterdir():
        paths = [device / name for name in ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")]
        *ids, code = (int(path.read_text(), 16) if path.is_file() else 0 for path in paths)
        text = "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}".format(*ids)  # drivers/pci/pci-driver.c
        (device / "modalias").write_text(f"{text}bc{code >> 16:02X}sc{code >> 8 & 255:02X}i{code & 255:02X}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    put = write if sys.argv[2].endswith(".yml") else lambda name, target: lay_out(load(name), target)
    print(put(*sys.argv[1:]))
