"""The versions that are claimed say the same in every place, and are those that `make test-versions` runs on; what the
collection needs is what it declares."""

from __future__ import annotations

import pathlib
import re

import ansible_collections
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLE = "docs/examples/drift/execution-environment.yml"
MATRIX = [line.split() for line in (ROOT / "tests/versions.txt").read_text().splitlines() if not line.startswith("#")]


def minor(version):
    return tuple(int(part) for part in version.split(".")[:2])


def read(root, path):
    return (root / path).read_text()


def claims(root):
    """Where an oldest ansible-core stands: {place: (major, minor)}; a place that names none counts as None."""
    found = {}

    def claim(place, pattern, text):
        match = re.search(pattern, text)
        found[place] = match and minor(match[1])

    for path in sorted(root.glob("roles/*")):
        claim(f"roles/{path.name}", r'min_ansible_version: "([\d.]+)"', read(root, f"roles/{path.name}/meta/main.yml"))
    claim("meta/runtime.yml", r'requires_ansible: ">=([\d.]+)"', read(root, "meta/runtime.yml"))
    for page in ("README.md", "docs/development.md"):
        claim(page, r"ansible-core ≥ ([\d.]+)", read(root, page))
    claim("execution environment", r"ansible-core~=([\d.]+)", read(root, EXAMPLE))
    claim("requirements-dev.txt", r"ansible-core==([\d.]+)", read(root, "requirements-dev.txt"))
    return found


def test_every_place_claims_the_oldest_ansible_core_that_is_tested():
    oldest = min(minor(core) for core, _python in MATRIX)
    found = claims(ROOT)
    assert len(found) > 20
    assert {place: claimed for place, claimed in found.items() if claimed != oldest} == {}


def test_every_place_claims_the_oldest_python_that_is_tested():
    controller = min((minor(python) for _core, python in MATRIX))
    readme = re.findall(r"^\| (controller|nodes) .*?Python ≥ ([\d.]+)", read(ROOT, "README.md"), re.MULTILINE)
    assert {where: minor(version) for where, version in readme} == {"controller": controller, "nodes": (3, 9)}
    nodes = yaml.safe_load(read(ROOT, "tests/config.yml"))["modules"]["python_requires"]
    assert minor(nodes.removeprefix(">=")) == (3, 9)


def test_the_page_for_developers_lists_the_matrix():
    page = read(ROOT, "docs/development.md")
    assert [row for row in (f"| {core} | {python} |" for core, python in MATRIX) if row not in page] == []


PLANTED = [
    ("meta/runtime.yml", ">=2.19.0", ">=2.17.0"),
    ("roles/limits/meta/main.yml", '"2.19"', '"2.17"'),
    ("README.md", "ansible-core ≥ 2.19", "ansible-core"),
]


@pytest.mark.parametrize(("path", "text", "instead"), PLANTED)
def test_a_place_with_another_claim_is_seen(path, text, instead, tmp_path):
    whole = read(ROOT, path)
    assert text in whole
    (tmp_path / "roles").mkdir()
    for source in (*ROOT.glob("roles/*/meta/main.yml"), *(ROOT / name for name in FLAT)):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    assert claims(tmp_path) == claims(ROOT)
    (tmp_path / path).write_text(whole.replace(text, instead))
    assert claims(tmp_path) != claims(ROOT)


FLAT = (
    "meta/runtime.yml",
    "README.md",
    "docs/development.md",
    EXAMPLE,
    "requirements-dev.txt",
)


SHIPPED = ("bin", "docs", "inventory/examples", "playbooks", "plugins", "roles")


def collections_used(root):
    """Other collections that shipped code names: {"ansible.posix"}. Python's own ansible.utils is none."""
    installed = pathlib.Path(ansible_collections.__path__[0])
    names = {f"{path.parent.name}.{path.name}" for path in installed.glob("*/*") if path.is_dir()} - {"gpufabric.rdma"}
    assert "ansible.posix" in names
    called = re.compile(rf"(?<![\w./-])(?:ansible_collections\.)?({'|'.join(map(re.escape, sorted(names)))})\.[a-z]\w+")
    files = [
        path
        for folder in SHIPPED
        for path in (root / folder).rglob("*")
        if path.suffix in (".yml", ".yaml", ".j2", ".py")
    ]
    lines = [
        line
        for path in files
        for line in path.read_text().splitlines()
        if not re.match(r"\s*(from|import) ansible\.", line)
    ]
    return {match[1] for line in lines for match in called.finditer(line)}


# Installed by who sets an option, and looked for before the first change: {collection: task file, which only that
# option includes}.
OPTIONAL = {
    "ansible.posix": "roles/node_firewall/tasks/firewalld.yml",
    "community.general": "roles/node_firewall/tasks/ufw.yml",
}


def test_galaxy_requires_the_collections_that_shipped_code_uses():
    required = set(yaml.safe_load(read(ROOT, "galaxy.yml"))["dependencies"])
    assert required | set(OPTIONAL) == collections_used(ROOT)
    assert not required & set(OPTIONAL)


@pytest.mark.parametrize(("collection", "path"), OPTIONAL.items())
def test_an_optional_collection_is_in_one_task_file_that_is_included_dynamically(collection, path):
    users = [
        str(other.relative_to(ROOT))
        for pattern in ("roles/*/tasks/*.yml", "playbooks/**/*.yml")
        for other in ROOT.glob(pattern)
        if f"{collection}." in other.read_text()
    ]
    assert users == [path]
    assert f"import_tasks: {pathlib.Path(path).name}" not in read(ROOT, "roles/node_firewall/tasks/rules.yml")
    assert f"`{collection}`" in read(ROOT, "README.md")
    assert collection in read(ROOT, EXAMPLE)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("roles/x/tasks/main.yml", "- ansible.posix.firewalld:\n    port: 6443/tcp\n"),
        ("plugins/action/x.py", "from ansible_collections.ansible.posix.plugins import module_utils\n"),
        ("playbooks/x.yml", '- debug: {msg: "{{ x | ansible.posix.thing }}"}\n'),
    ],
)
def test_a_collection_that_is_used_is_seen(path, text, tmp_path):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text + "from ansible.utils.display import Display\n")
    assert collections_used(tmp_path) == {"ansible.posix"}


def test_every_list_of_python_libraries_names_the_same():
    """netaddr and jmespath: requirements.txt, README, the pins, and both execution environments."""
    wanted = {"jmespath", "netaddr"}
    named = re.findall(r"^([a-z]\w+)", read(ROOT, "requirements.txt"), re.MULTILINE)
    assert set(named) == wanted
    environment = yaml.safe_load(read(ROOT, "meta/execution-environment.yml"))
    assert environment["dependencies"]["python"] == "requirements.txt"
    example = yaml.safe_load(read(ROOT, EXAMPLE))
    assert wanted <= set(example["dependencies"]["python"])
    for name in wanted:
        assert f"pip install {name}" in read(ROOT, "README.md")
        assert re.search(rf"^{name}==", read(ROOT, "requirements-dev.txt"), re.MULTILINE)
