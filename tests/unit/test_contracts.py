"""Places that must agree do, references exist, a job is done in one place, and nothing hides a failure."""

import ast
import copy
import json
import pathlib
import re
import subprocess
import sys

import ansible_collections
import jinja2
import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_release, driver_repository
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(path):
    return yaml.safe_load(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_argument_specs_equal_the_defaults_in_names_and_values(role):
    documented: dict = {}
    shared = role.name == "common"
    named_for = [one.name for one in (ROLES if shared else [role])]
    for entry_point, spec in load(role / "meta/argument_specs.yml")["argument_specs"].items():
        assert shared or (role / f"tasks/{entry_point}.yml").is_file(), entry_point
        for name, option in (spec.get("options") or {}).items():
            assert any(name == one or name.startswith(f"{one}_") for one in named_for), name
            assert documented.setdefault(name, option.get("default")) == option.get("default"), name
    assert documented == (load(role / "defaults/main.yml") or {})
    own = set(load(role / "vars/main.yml") or {}) - ({"ansible_pipelining"} if shared else set())
    assert [name for name in own if not name.startswith(f"__{role.name}_")] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_that_reads_a_shared_variable_depends_on_common(role):
    shared = "|".join(load(ROOT / "roles/common/defaults/main.yml"))
    texts = [path.read_text() for folder in ("tasks", "vars", "templates") for path in role.glob(f"{folder}/*")]
    reads = any(re.search(rf"\b({shared})\b", text) for text in texts)
    wanted = [{"role": "gpufabric.rdma.common"}] if reads and role.name != "common" else []
    assert load(role / "meta/main.yml").get("dependencies", []) == wanted


def read_by(value):
    """Names that a variable's templates read."""
    if isinstance(value, (dict, list)):
        return set().union(*map(read_by, value.values() if isinstance(value, dict) else value))
    return {name.name for name in jinja2.Environment().parse(str(value)).find_all(jinja2.nodes.Name)}


def variables_of(tasks):
    """The (name, value) pairs that tasks give each other by `vars`."""
    for task in tasks if isinstance(tasks, list) else ():
        yield from (task.get("vars") or {}).items()
        for part in ("block", "rescue", "always"):
            yield from variables_of(task.get(part))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_no_variable_reads_itself_by_way_of_another(role):
    """Templates are rendered late: a task's variable that reads the one it hides is a loop, and only a run shows it."""
    reads: dict = {}
    for folder in ("defaults", "vars"):
        for name, value in (load(role / folder / "main.yml") or {}).items():
            reads.setdefault(name, set()).update(read_by(value))
    for path in role.glob("tasks/*.yml"):
        for name, value in variables_of(load(path)):
            reads.setdefault(name, set()).update(read_by(value))
    for _hop in reads:
        reads = {name: names.union(*(reads.get(other, ()) for other in names)) for name, names in reads.items()}
    assert [name for name, names in reads.items() if name in names] == []


def test_every_place_claims_the_same_oldest_ansible_core():
    requires = load(ROOT / "meta/runtime.yml")["requires_ansible"].removeprefix(">=")
    tools = (ROOT / "requirements-dev.txt").read_text()
    assert re.search(r"^ansible-core==(\d+\.\d+)", tools, re.MULTILINE)[1] == requires.removesuffix(".0")


def test_galaxy_requires_the_collections_that_shipped_code_uses():
    """ufw.yml and firewalld.yml are included for node_firewall: open, whose preflight asks for their collection."""
    optional = {"roles/node_firewall/tasks/firewalld.yml": "ansible.posix",
                "roles/node_firewall/tasks/ufw.yml": "community.general"}  # fmt: skip
    installed = pathlib.Path(ansible_collections.__path__[0])
    names = {f"{path.parent.name}.{path.name}" for path in installed.glob("*/*") if path.is_dir()} - {"gpufabric.rdma"}
    called = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, sorted(names)))})\.[a-z]\w+")
    used = {
        str(path.relative_to(ROOT)): match[1]
        for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]
        for match in called.finditer(path.read_text())
    }
    assert load(ROOT / "galaxy.yml")["dependencies"] == {}
    assert used == optional


def test_the_action_group_of_the_nodes_holds_each_module_that_runs_there():
    """A module without AnsibleModule documents an action plugin; `bundle` runs on the controller."""
    modules = sorted((PLUGINS / "modules").glob("*.py"))
    for_nodes = [path.stem for path in modules if "AnsibleModule(" in path.read_text() and path.stem != "bundle"]
    groups = load(ROOT / "meta/runtime.yml")["action_groups"]
    assert groups["node"] == [f"gpufabric.rdma.{name}" for name in for_nodes]


def test_each_module_that_runs_on_a_node_has_a_guarded_action():
    """A node's answer besides its result must not set a variable of a role."""
    runtime = load(ROOT / "meta/runtime.yml")
    own = {path.stem: path.read_text() for path in (PLUGINS / "action").glob("*.py")}
    assert [name for name, text in own.items() if "    @guarded\n    def run(" not in text] == []
    modules = runtime["plugin_routing"]["modules"]
    routed = [name for name, routing in modules.items() if routing == {"action_plugin": "gpufabric.rdma.node_facts"}]
    led = {routing["redirect"].rpartition(".")[2] for name, routing in modules.items() if name not in routed}
    assert led <= {*own, *routed}
    assert {*own, *routed} >= {name.rpartition(".")[2] for name in runtime["action_groups"]["node"]}


def imports(path):
    """(level, module) of each import of a file, which the oldest Python of a node can read."""
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


# Allowed imports of each tree besides Python's standard library; import-linter (pyproject.toml) checks their order.
FOREIGN = {
    "plugins/module_utils/hca": set(),
    "plugins/module_utils": {"ansible", "ansible_collections"},
    "plugins/modules": {"ansible", "ansible_collections"},
    "device_plugin/rdma_device_plugin": {"grpc", "google", "lightkube", "prometheus_client", "yaml"},
}


@pytest.mark.parametrize("tree", FOREIGN)
def test_what_runs_on_a_node_needs_the_standard_library_only(tree):
    found = {
        module.partition(".")[0]
        for path in (ROOT / tree).rglob("*.py")
        for level, module in imports(path)
        if not level and "_pb2" not in path.name
    }
    assert found - set(sys.stdlib_module_names) - {"rdma_device_plugin", "__future__"} <= FOREIGN[tree]


LOCK = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "lock/artifacts.schema.json").read_text()))


def test_the_lock_follows_its_schema():
    assert [error.message for error in SCHEMA.iter_errors(LOCK)] == []


CARELESS = [
    (("artifacts", 0, "version"), "latest"),
    (("artifacts", 0, "files", 0, "sha256"), "b98f74"),
    (("artifacts", 0, "files", 0, "url"), "http://github.com/x/v1.9.1.tgz"),
    (("artifacts", 0, "files", 0, "architecture"), "x86_64"),
    (("wheels", 0, "files", 0, "file"), "grpcio-1.80.1.tar.gz"),
    (("wheels", 0, "files", 0, "file"), "../x"),
    (("images", 0, "digests"), {"x86_64": f"sha256:{'0' * 64}"}),
]


@pytest.mark.parametrize(("place", "value"), CARELESS, ids=str)
def test_a_careless_row_of_the_lock_is_refused(place, value):
    lock = copy.deepcopy(LOCK)
    row = lock
    for step in place[:-1]:
        row = row[step]
    row[place[-1]] = value
    assert list(SCHEMA.iter_errors(lock))


def test_a_sum_that_is_null_is_named_as_unpinned():
    lock = copy.deepcopy(LOCK)
    lock["artifacts"][0]["files"][0]["sha256"] = None
    lock["images"][0]["digests"] = {"index": None}
    assert list(SCHEMA.iter_errors(lock)) == []
    before = {finding.object for finding in bundle_lock.unpinned(LOCK, names=None)}
    assert len({finding.object for finding in bundle_lock.unpinned(lock, names=None)} - before) == 2


def test_each_download_has_one_row_and_its_url_names_the_version():
    rows = [
        (artifact["name"], artifact["version"], file["architecture"], file.get("distribution"), file["url"])
        for artifact in LOCK["artifacts"]
        for file in artifact["files"]
    ]
    references = [image["reference"] for image in LOCK["images"]]
    for keys in ([row[:4] for row in rows], references):
        assert len(keys) == len(set(keys))
    assert [url for _name, version, *_rest, url in rows if version.lstrip("v").replace("+", "%2B") not in url] == []


def test_a_trusted_key_is_stated_by_two_projects():
    trusted = [key for row in LOCK["repositories"] for key in row["keys"] if key["fingerprint"]]
    assert trusted
    for key in trusted:
        assert len({"/".join(source.split("/")[3:5]) for source in key["stated_by"]}) >= 2
        assert key["fingerprint"].endswith(key["id"])


def test_the_default_release_of_the_driver_has_a_verified_key_where_there_is_one():
    given = load(ROOT / "roles/driver/defaults/main.yml")["driver_version"]
    for version, trusted in (("24.04", True), ("22.04", False)):
        node = {"os": {"id": "ubuntu", "version_id": version, "like": ["debian"]}, "architecture": "x86_64"}
        row = driver_repository(LOCK, node, "doca", driver_release(given, node, "doca", None))
        assert (bool(row["url"]), bool(row["fingerprints"])) == (True, trusted)


def test_the_wheels_are_what_the_plugin_requires_for_every_python_of_a_supported_distribution():
    required = (ROOT / "device_plugin/requirements.txt").read_text().splitlines()
    locked = {f"{wheel['name']}=={wheel['version']}" for wheel in LOCK["wheels"] if wheel["name"] != "pip"}
    assert locked == {line for line in required if line and not line.startswith("#")}
    for wheel in LOCK["wheels"]:
        files = [entry["file"] for entry in wheel["files"]]
        assert [file for file in files if not file.startswith(f"{wheel['name']}-{wheel['version']}-")] == []
        compiled = [file for file in files if "-abi3-" not in file and "-none-any." not in file]
        for machine in ("x86_64", "aarch64") if compiled else ():
            pythons = {file.split("-")[2] for file in compiled if machine in file}
            assert pythons == {f"cp3{minor}" for minor in range(9, 15)}, (wheel["name"], machine)


# --- references exist -------------------------------------------------------------------------------------------------

SPECS = [load(role / "meta/argument_specs.yml")["argument_specs"] for role in ROLES]
VARIABLES = {name for specs in SPECS for spec in specs.values() for name in spec.get("options") or {}}


def lines(*patterns):
    """(file, line) of every line that git tracks in files of these patterns."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listing = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            yield from ((name, line) for line in (ROOT / name).read_text(errors="replace").splitlines())


def test_a_looked_up_variable_is_documented():
    looked_up = re.compile(r"""__discovery_read['"]?\]?(?:\['|\.)variables(?:'\]\['|\.)(\w+)""")
    names = {name for _file, line in lines("roles", "playbooks") for name in looked_up.findall(line)}
    assert names
    assert names - VARIABLES == set()


def test_no_package_registry_is_named_by_its_host():
    """Mirrors come from the machine's own configuration, so the lab works with any of them."""
    hosts = re.compile(r"://[^/\s]*(" + "|".join(["debian", "ubuntu", "pypi", "npmjs", "golang"]) + r")\.(org|com|io)")
    assert {file for file, line in lines() if hosts.search(line)} == set()


def test_nothing_hides_a_failure():
    hidden = re.compile(
        r"ignore_errors:\s*(true|yes)|failed_when:\s*false|gpgcheck=0|validate_certs:\s*false|trusted=yes"
    )
    assert {file for file, line in lines("*.yml", "*.yaml", "*.j2") if hidden.search(line)} == set()


# Signs of a second place, where to look, and the files with the job.
ONE_PLACE = {
    "writing files": (
        r"mkstemp|NamedTemporaryFile|os\.(replace|rename|symlink|link|chmod|fchmod)\(|symlink_to|\.touch\("
        r"|write_(text|bytes)\(|shutil\.(copy|move)|O_CREAT|open\((?!fileobj=).*\"[wxa]b?\"",
        "plugins/*.py",
        {
            "plugins/module_utils/_core/files.py",
            # Copies in a separate folder, for one simulation.
            "plugins/module_utils/_driver/trial.py",
            # Output of a started process.
            "plugins/module_utils/_traffic/rounds.py",
        },
    ),
    "printing on the controller": (
        r"(?<![\w.])print\(|\b_?[dD]isplay\b(?=[.(])|import Display|[\"']warnings[\"']: (?!terminal\.warnings\(|\[\])",
        "plugins/action plugins/callback plugins/filter plugins/plugin_utils",
        {"plugins/plugin_utils/_core/terminal.py"},
    ),
    "a module's warnings": (r"\.(warn|deprecate)\(", "plugins", {"plugins/module_utils/_core/change.py"}),
    "systemd's reload": (
        r"daemon.reload", "plugins roles playbooks", {"plugins/module_utils/_core/units.py"}
    ),
    "starting kubectl": (
        r"""\[[^\]]*["'](?:/usr/local/bin/)?kubectl["'](?!\],?\s*\})|command.*\bkubectl\b""",
        "roles/*/tasks playbooks",
        set(),
    ),
    "cordon and drain": (
        r"""["'](cordon|uncordon|drain)["'],|\bunschedulable\b""",
        "plugins roles playbooks",
        # The catalogue has the scheduler's own words.
        {"plugins/module_utils/_kube/node.py", "plugins/plugin_utils/_findings/catalogue.yml"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("job", ONE_PLACE)
def test_a_job_is_done_in_one_place(job):
    pattern, where, homes = ONE_PLACE[job]
    assert {file for file, line in lines(*where.split()) if re.search(pattern, line)} == homes


def test_a_task_that_runs_once_for_all_is_not_rescued():
    """Ansible runs the rescue of a run_once task on the first host only; the others continue regardless."""
    parts = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")

    def rescued(items, below=False, once=False):
        for item in items or []:
            here = once or bool(item.get("run_once"))
            if below and here and not any(part in item for part in parts):
                yield item.get("name")
            for part in parts:
                yield from rescued(item.get(part), (below or "rescue" in item) if part == "block" else below, here)

    files = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]
    assert [name for path in files for name in rescued(yaml.safe_load(path.read_text()))] == []
