"""Who may import whom, by the tree: hca < _core < the domains < _kube < modules; what runs on nodes never imports what
only the controller runs; the device plugin stands on hca alone; no circle.
"""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLUGINS = ROOT / "plugins"
PREFIX = "ansible_collections.gpufabric.rdma.plugins."

# What a node runs. Domains stand side by side: none imports another.
DOMAINS = ("_bundle", "_cni", "_device_plugin", "_driver", "_host", "_k3s", "_traffic")
NODE = [("hca",), ("_core",), DOMAINS, ("_kube",)]
# What only the controller runs, lowest first; packages of one rank do not import each other.
CONTROLLER = [
    ("_core",),
    ("_findings", "_bundle", "_gitops"),
    ("_preflight",),
    ("_verify", "_policy"),
    ("_matrix", "_nccl", "_drift", "_report"),
]
CALLERS = ("action", "callback", "filter", "lookup")


def imports(path, root=None, prefix=PREFIX):
    """Absolute names of what a file imports; relative imports are resolved against its package below root."""
    package = path.relative_to(root or PLUGINS).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([prefix.rstrip("."), *base, *([node.module] if node.module else [])])
            else:
                module = node.module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms():
    """{room: rooms it may import}; a room is a package of module_utils or plugin_utils, or a kind of plugin."""
    allowed, below = {}, set()
    for tree, ranks in (("module_utils", NODE), ("plugin_utils", CONTROLLER)):
        for rank in ranks:
            names = {f"{tree}.{name}" for name in rank}
            allowed.update({name: below | {name} for name in names})
            below = below | names
        if tree == "module_utils":
            allowed["modules"] = set(below)
            allowed["doc_fragments"] = set()
    allowed.update({name: set(below) for name in CALLERS})
    return allowed


ALLOWED = rooms()


def room(parts):
    return ".".join(parts[:2]) if parts[0] in ("module_utils", "plugin_utils") else parts[0]


def faults(path):
    """What a file imports that its room may not, in words."""
    own = room(path.relative_to(PLUGINS).parts)
    if own not in ALLOWED:
        return [f"{path.relative_to(PLUGINS)} stands in {own}, which is no room of the house"]
    found = []
    for module in imports(path):
        if module.startswith(PREFIX):
            target = room(module[len(PREFIX) :].split("."))
            if target not in ALLOWED[own]:
                found.append(f"{own} imports {target} ({path.relative_to(PLUGINS)})")
        elif own == "module_utils.hca" and module.split(".")[0] not in sys.stdlib_module_names:
            found.append(f"hca imports {module} ({path.relative_to(PLUGINS)})")
    return found


# The library for addresses: what a node runs has only that of Python, the controller has one for all, imported in one
# file, which says what to install.
NODE_LIBRARY, CONTROLLER_LIBRARY = "ipaddress", "netaddr"
CONTROLLER_IMPORT = "plugin_utils/_core/addresses.py"


def address_faults(path):
    """Imports of the library for addresses that belongs to the other machine, in words."""
    place = path.relative_to(PLUGINS)
    on_node = place.parts[0] in ("module_utils", "modules")
    refused = CONTROLLER_LIBRARY if on_node else NODE_LIBRARY
    libraries = {module.split(".")[0] for module in imports(path) if not module.startswith(PREFIX)}
    found = [f"{place} imports {refused}"] if refused in libraries else []
    if not on_node and CONTROLLER_LIBRARY in libraries and place.as_posix() != CONTROLLER_IMPORT:
        found.append(f"{place} imports {CONTROLLER_LIBRARY} past {CONTROLLER_IMPORT}")
    return found


FILES = sorted(PLUGINS.rglob("*.py"))


def test_there_are_files_to_look_at():
    assert {room(path.relative_to(PLUGINS).parts) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_a_file_imports_only_from_its_own_layer_and_below(path):
    assert faults(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_addresses_are_read_by_one_library_a_machine(path):
    assert address_faults(path) == []


def test_plugins_that_need_netaddr_declare_it():
    edges = imported(FILES, dotted, imports)
    reached = {dotted(PLUGINS / CONTROLLER_IMPORT)}
    while more := {name for name, targets in edges.items() if targets & reached} - reached:
        reached |= more
    needing = {path for path in FILES if path.parent.name in CALLERS and dotted(path) in reached}
    declaring = set()
    for path in FILES:
        found = re.search(r'^DOCUMENTATION = r?"""(.+?)"""', path.read_text(), re.MULTILINE | re.DOTALL)
        requirements = yaml.safe_load(found[1]).get("requirements", []) if found else []
        if any(line.startswith("netaddr") for line in requirements):
            declaring.add(path)
    # An action plugin is documented in the module of its name.
    assert {PLUGINS / "modules" / path.name if path.parent.name == "action" else path for path in needing} == declaring


def test_no_private_file_lies_flat():
    flat = [path.name for tree in ("module_utils", "plugin_utils") for path in (PLUGINS / tree).glob("*.py")]
    assert flat == []
    assert [path.name for path in FILES if path.name.startswith("_") and path.name != "__init__.py"] == []


def imported(files, name_of, imports_of):
    """{name of a file: names of those it imports}."""
    names = {name_of(path): path for path in files}
    edges = {}
    for name, path in names.items():
        targets = {
            max((known for known in names if f"{module}.".startswith(f"{known}.")), key=len, default=None)
            for module in imports_of(path)
        }
        edges[name] = targets - {None, name}
    return edges


def circles(files, name_of, imports_of):
    """Names of the files that import each other in a circle."""
    edges = imported(files, name_of, imports_of)
    while True:
        ends = {name for name, targets in edges.items() if not targets & edges.keys()}
        if not ends:
            return sorted(edges)
        edges = {name: targets for name, targets in edges.items() if name not in ends}


def dotted(path):
    return PREFIX + ".".join(path.relative_to(PLUGINS).with_suffix("").parts).removesuffix(".__init__")


def test_no_circle_among_the_plugins():
    files = [path for path in FILES if path.name != "__init__.py"]
    assert circles(files, dotted, imports) == []


DEVICE_PLUGIN = ROOT / "device_plugin/rdma_device_plugin"
NAME = "rdma_device_plugin"


def device_plugin_files(package):
    """Its own files, without what the compiler of the kubelet's contract wrote."""
    return [path for path in sorted(package.rglob("*.py")) if "_pb2" not in path.name]


def device_plugin_imports(path):
    return imports(path, DEVICE_PLUGIN, f"{NAME}.")


def device_plugin_name(path):
    parts = path.relative_to(DEVICE_PLUGIN).with_suffix("").parts
    return ".".join([NAME, *parts]).removesuffix(".__init__")


def device_plugin_faults():
    """What it imports of the collection besides hca. Its package path holds all of module_utils in a checkout, so that
    a relative import would find `_core` there, too.
    """
    own = {path.stem for path in DEVICE_PLUGIN.glob("*.py")} | {"kubelet", "_build"}  # the build writes _build
    found = []
    for path in device_plugin_files(DEVICE_PLUGIN):
        for module in device_plugin_imports(path):
            head, _dot, rest = module.partition(".")
            name = rest.partition(".")[0]
            if head == "ansible_collections" or (head == NAME and name not in own | {"hca", "__version__"}):
                found.append(f"{path.name} imports {module}")
    return found


def test_the_device_plugin_stands_on_hca_alone():
    assert device_plugin_faults() == []


def test_no_circle_in_the_device_plugin():
    files = [path for path in device_plugin_files(DEVICE_PLUGIN) if path.name != "__init__.py"]
    assert len(files) > 20
    assert circles(files, device_plugin_name, device_plugin_imports) == []


@pytest.fixture
def planted_device_plugin(tmp_path, monkeypatch):
    """A copy in which faults can be planted: function(file, line)."""
    copy = shutil.copytree(DEVICE_PLUGIN, tmp_path / NAME)
    monkeypatch.setattr(sys.modules[__name__], "DEVICE_PLUGIN", copy)

    def plant(file, line):
        (copy / file).write_text(f"{(copy / file).read_text()}\n{line}\n")

    return plant


@pytest.mark.parametrize(
    "line",
    [
        "from ._core import text",
        "from . import _core",
        f"from {NAME}._host import netns",
        f"from {PREFIX}module_utils._core import text",
    ],
)
def test_a_planted_import_of_the_device_plugin_is_seen(line, planted_device_plugin):
    planted_device_plugin("pools.py", line)
    assert [fault.partition(" imports ")[0] for fault in device_plugin_faults()] == ["pools.py"]


def test_a_planted_circle_of_the_device_plugin_is_seen(planted_device_plugin):
    planted_device_plugin("status.py", "from . import daemon")
    files = [path for path in device_plugin_files(DEVICE_PLUGIN) if path.name != "__init__.py"]
    found = circles(files, device_plugin_name, device_plugin_imports)
    assert {f"{NAME}.daemon", f"{NAME}.endpoints", f"{NAME}.status"} <= set(found)


PLANTED = [
    ("module_utils/hca/paths.py", "from ansible.module_utils import basic", "hca imports ansible"),
    ("module_utils/hca/paths.py", "from .._core import text", "module_utils.hca imports module_utils._core"),
    ("module_utils/_core/text.py", "from .._host import netns", "module_utils._core imports module_utils._host"),
    ("module_utils/_host/netns.py", "from .._driver import plan", "module_utils._host imports module_utils._driver"),
    ("module_utils/_k3s/plan.py", "from .._kube import kubectl", "module_utils._k3s imports module_utils._kube"),
    ("module_utils/_kube/pods.py", f"from {PREFIX}plugin_utils._verify import pairs", "imports plugin_utils._verify"),
    ("modules/hca_facts.py", f"from {PREFIX}plugin_utils._findings import tables", "modules imports plugin_utils"),
    (
        "plugin_utils/_findings/tables.py",
        "from .._preflight import host",
        "plugin_utils._findings imports plugin_utils._pre",
    ),
    (
        "plugin_utils/_preflight/host.py",
        "from .._verify import pairs",
        "plugin_utils._preflight imports plugin_utils._ver",
    ),
    (
        "plugin_utils/_verify/pairs.py",
        "from .._matrix import plan",
        "plugin_utils._verify imports plugin_utils._matrix",
    ),
    (
        "plugin_utils/_core/addresses.py",
        "from .._findings import tables",
        "plugin_utils._core imports plugin_utils._fin",
    ),
    ("plugin_utils/_matrix/plan.py", "from .._report import page", "plugin_utils._matrix imports plugin_utils._report"),
]


@pytest.mark.parametrize(("file", "line", "fault"), PLANTED, ids=[fault for _file, _line, fault in PLANTED])
def test_a_planted_import_is_seen(file, line, fault, tmp_path, monkeypatch):
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f"{(PLUGINS / file).read_text()}\n{line}\n")
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", tmp_path)
    assert [told for told in faults(planted) if fault in told]


PLANTED_LIBRARIES = [
    ("module_utils/_host/netns.py", "import netaddr", "imports netaddr"),
    ("modules/hca_facts.py", "from netaddr import IPNetwork", "imports netaddr"),
    ("plugin_utils/_verify/pairs.py", "import ipaddress", "imports ipaddress"),
    ("action/plan_matrix.py", "from ipaddress import ip_network", "imports ipaddress"),
    ("filter/networks.py", "import ipaddress", "imports ipaddress"),
    ("plugin_utils/_preflight/k3s.py", "import netaddr", f"imports netaddr past {CONTROLLER_IMPORT}"),
]


@pytest.mark.parametrize(("file", "line", "fault"), PLANTED_LIBRARIES, ids=[line[0] for line in PLANTED_LIBRARIES])
def test_a_planted_library_is_seen(file, line, fault, tmp_path, monkeypatch):
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f"{(PLUGINS / file).read_text()}\n{line}\n")
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", tmp_path)
    assert address_faults(planted) == [f"{file} {fault}"]


def test_a_planted_circle_is_seen(tmp_path):
    (tmp_path / "one.py").write_text("from two import x\n")
    (tmp_path / "two.py").write_text("from three import y\n")
    (tmp_path / "three.py").write_text("from one import z\n")
    (tmp_path / "four.py").write_text("from one import z\n")
    files = sorted(tmp_path.glob("*.py"))

    def names(path):
        return [
            f"{node.module}.x" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]

    assert circles(files, lambda path: path.stem, names) == ["four", "one", "three", "two"]
    (tmp_path / "three.py").write_text("")
    assert circles(files, lambda path: path.stem, names) == []


@pytest.mark.parametrize(
    "package", sorted((PLUGINS / "module_utils").glob("*/__init__.py")), ids=lambda p: p.parent.name
)
def test_a_package_brings_no_more_than_its_base_along(package):
    """Ansible sends what its __init__ imports, wherever in the file, with each module that uses any part of it."""
    allowed = {f"{PREFIX}module_utils.hca.tree.Tree"} if package.parent.name == "hca" else set()
    assert {name for name in imports(package) if name.startswith(PREFIX)} <= allowed
