"""read_all.py: imports every file that runs on nodes and prints the facts of every fixture as JSON.

Runs under the oldest supported Python; needs no YAML library there: the fixtures are laid out by the caller's newer
Python once and read from .cache/fixtures.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "ansible_collections.gpufabric.rdma.plugins"
LAID_OUT = ROOT / ".cache/fixtures"


def lay_out():
    """Lays out the fixtures with PyYAML; an older Python without it uses the virtual environment."""
    script = (
        "import pathlib, shutil, sys; sys.path.insert(0, 'tests/tools'); import tree; "
        "target = pathlib.Path('.cache/fixtures'); shutil.rmtree(target, ignore_errors=True); "
        "[tree.lay_out(tree.load(name), target / name) for name in tree.names()]"
    )
    subprocess.run([ROOT / os.environ.get("VENV", ".venv") / "bin/python", "-c", script], cwd=ROOT, check=True)


def main():
    for path in sorted((ROOT / "plugins").glob("module*/**/*.py")):
        name = path.relative_to(ROOT / "plugins").with_suffix("").as_posix().replace("/", ".")
        importlib.import_module(f"{PACKAGE}.{name}".removesuffix(".__init__"))
    lay_out()
    names = ("hca", "hca.facts", "_host.gpudirect")
    hca, read, gpudirect = (importlib.import_module(f"{PACKAGE}.module_utils.{name}") for name in names)
    facts = {}
    for folder in sorted(LAID_OUT.iterdir()):
        tree = hca.Tree(str(folder))
        facts[folder.name] = gpudirect.complete(read.gather(tree, software_hcas=True), tree)
    json.dump(facts, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
