"""The distribution: generated code, the library inside, Python versions, layers."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import zipfile

import pytest
from conftest import PACKAGE

SOURCES = sorted((PACKAGE / "rdma_device_plugin").glob("*.py"))
LIBRARY = PACKAGE.parent / "plugins/module_utils/hca"
# Lowest first: each imports only from the lines above it, never from its own line.
LAYERS = [
    {"gojson", "log", "sockets", "_build"},
    {"events", "worker"},
    {"config"},
    {"pools"},
    {"allocation", "devices", "modes"},
    {"cdi", "slices", "claims"},
    {"server", "explain", "checkpoint", "kubeapi"},
    {"lifecycle", "publisher", "preparer"},
    {"dra"},
    {"status"},
    {"metrics"},
    {"daemon"},
    {"cli"},
    {"__main__"},
]


def test_the_generated_code_is_that_of_the_contract(base):
    written = subprocess.run(
        [sys.executable, str(PACKAGE / "generate.py"), str(base)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert written.returncode == 0, written.stderr
    made = sorted(path.relative_to(base) for path in base.rglob("*_pb2*.py"))
    assert len(made) == 10
    for path in made:
        assert (base / path).read_text() == (PACKAGE / path).read_text(), f"run device_plugin/generate.py: {path}"


def test_every_module_has_a_layer():
    placed = set().union(*LAYERS)
    assert {path.stem for path in SOURCES} - {"__init__"} <= placed


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_module_imports_only_from_lower_layers(path):
    if path.stem == "__init__":
        return
    level = next(number for number, names in enumerate(LAYERS) if path.stem in names)
    below = set().union(*LAYERS[:level]) | {"hca", "kubelet", "__version__", "hca.text"}
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
            assert names <= below, f"{path.name}:{node.lineno} imports {sorted(names - below)}"


def test_a_wheel_holds_the_package_and_the_library(base):
    """One source of the library: the build puts it in"""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = subprocess.run(
        [*pip, "-w", str(base), str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = base.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(base / "site")
        (licence,) = [archive.read(name) for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert licence == (PACKAGE.parent / "LICENSE").read_bytes()
    assert {f"rdma_device_plugin/hca/{path.name}" for path in LIBRARY.glob("*.py")} <= names
    assert "rdma_device_plugin/config.schema.json" in names
    assert "rdma_device_plugin/kubelet/deviceplugin_pb2.py" in names
    assert not any(name.startswith(("hca/", "build/")) for name in names)
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "import rdma_device_plugin.hca as hca, rdma_device_plugin.cli as cli; print(hca.__file__)",
        ],
        cwd="/",
        env={"PYTHONPATH": str(base / "site")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(base / "site/rdma_device_plugin/hca/__init__.py")
    left = {path.name for path in PACKAGE.iterdir()} | {
        path.name for path in (PACKAGE / "rdma_device_plugin").iterdir()
    }
    assert not [name for name in left if name in ("build", "hca", "_build.py") or name.endswith(".egg-info")]


def test_the_oldest_python():
    """What runs on nodes compiles under 3.9, where one is installed"""
    found = [
        *pathlib.Path("/usr/bin").glob("python3.9"),
        *pathlib.Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"),
    ]
    if not found:
        pytest.skip("not verified: no Python 3.9 here")
    program = "import sys; [compile(open(path).read(), path, 'exec') for path in sys.argv[1:]]"
    answer = subprocess.run(
        [str(found[0]), "-c", program, *map(str, SOURCES)], capture_output=True, text=True, timeout=30, check=False
    )
    assert answer.returncode == 0, answer.stderr
