"""Who may import whom: module_utils/hca stands on the standard library alone; nothing below imports from above."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
PREFIX = "ansible_collections.gpufabric.rdma.plugins."

# Layers, lowest first: a file imports only from layers named for it.
ALLOWED = {
    "module_utils/hca": ("module_utils.hca",),
    "module_utils": ("module_utils",),
    "modules": ("module_utils",),
    "filter": ("module_utils",),
    "callback": ("module_utils",),
    "action": ("module_utils",),
    "doc_fragments": (),
}


def imports(path):
    """Absolute names of what a file imports; relative imports are resolved against its package."""
    package = ".".join(path.relative_to(PLUGINS).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                yield PREFIX + ".".join([*base, node.module or ""]).rstrip(".")
            else:
                yield node.module


def layer(path):
    relative = path.relative_to(PLUGINS).as_posix()
    return next(name for name in ALLOWED if relative.startswith(f"{name}/"))


FILES = sorted(PLUGINS.rglob("*.py"))


def test_there_are_files_to_look_at():
    assert sum(layer(path) == "module_utils/hca" for path in FILES) > 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_a_file_imports_only_from_its_own_layer_and_below(path):
    name = layer(path)
    for module in imports(path):
        if module.startswith(PREFIX):
            inner = module[len(PREFIX) :]
            assert inner.startswith(ALLOWED[name]), f"{path.name} ({name}) imports {inner}"
        elif name == "module_utils/hca":
            assert module.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"
