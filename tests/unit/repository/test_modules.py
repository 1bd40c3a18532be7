"""What a module's name says is what it does: no stages under one name, _facts returns facts, _info changes nothing."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest
import yaml

PLUGINS = pathlib.Path(__file__).resolve().parents[3] / "plugins"
MODULES = sorted((PLUGINS / "modules").glob("*.py"))
# Lines of code outside the documentation, with the argument spec: room for a call and an exit, none for the logic.
THIN = 100


def document(path, name="DOCUMENTATION"):
    found = re.search(rf'^{name} = r"""(.+?)"""', path.read_text(), re.MULTILINE | re.DOTALL)
    return yaml.safe_load(found[1])


def faults(path, action=None):
    """What contradicts the name of a module. action: its action plugin, if it has one."""
    options, returned = document(path).get("options") or {}, document(path, "RETURN") or {}
    specs = [path.read_text(), *([action.read_text()] if action and action.exists() else [])]
    facts = "ansible_facts" in returned
    found = []
    if "stage" in options or any('"stage":' in text for text in specs):
        found.append("has an option stage: a name for each job instead")
    if path.stem.endswith("_facts") and not facts:
        found.append("is called facts and returns no ansible_facts")
    if path.stem.endswith("_info"):
        if facts:
            found.append("is called info and returns ansible_facts")
        if re.search(r"exit_json\((?!changed=False\b)", path.read_text()):
            found.append("is called info and may report a change")
        if lines_of_code(path) > THIN:
            found.append(f"is called info and has more than {THIN} lines of code")
    return found


def lines_of_code(path):
    text = path.read_text()
    documented = sum(
        node.end_lineno - node.lineno + 1
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    )
    return len(text.splitlines()) - documented


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_does_what_its_name_says(path):
    assert faults(path, PLUGINS / "action" / path.name) == []


def test_there_are_modules_of_each_kind_to_look_at():
    kinds = {path.stem.rpartition("_")[2] for path in MODULES}
    assert {"facts", "info"} <= kinds


# What runs a test on nodes or pods is a call into its package.
PROBES = ("host_probe", "fabric_server", "fabric_client", "matrix_rounds", "test_pods", "pod_traffic")


@pytest.mark.parametrize("name", PROBES)
def test_a_module_that_runs_tests_is_thin(name):
    assert lines_of_code(PLUGINS / "modules" / f"{name}.py") <= THIN


PLANTED = [
    ("pod_info", "  pod:\n", "  stage:\n    description: x\n    type: str\n  pod:\n", "option stage"),
    ("drift", "options:\n  mark:\n", "options:\n  stage:\n", "option stage"),
    ("hca_facts", "\nansible_facts:\n", "\nfacts:\n", "returns no ansible_facts"),
    ("k3s_info", "\nk3s:\n", "\nansible_facts:\n", "returns ansible_facts"),
    ("cluster_info", "exit_json(changed=False,", "exit_json(changed=True,", "may report a change"),
    ("network_info", "def main() -> None:\n", "def main() -> None:\n" + "    pass\n" * THIN, "more than"),
]


@pytest.mark.parametrize(("name", "text", "instead", "fault"), PLANTED, ids=lambda value: value[:12].strip())
def test_a_planted_fault_is_seen(name, text, instead, fault, tmp_path):
    whole = (PLUGINS / "modules" / f"{name}.py").read_text()
    assert text in whole
    planted = tmp_path / f"{name}.py"
    planted.write_text(whole.replace(text, instead, 1))
    assert fault in " ".join(faults(planted))


# What stands by itself on the controller: no node has it to be given defaults for.
ON_THE_CONTROLLER = {"bundle"}


def for_nodes(path):
    """A module of which something runs on the node; the others are their action plugin alone."""
    return "AnsibleModule(" in path.read_text() and path.stem not in ON_THE_CONTROLLER


def test_the_action_group_of_the_nodes_holds_each_module_that_runs_there():
    groups = yaml.safe_load((PLUGINS.parent / "meta/runtime.yml").read_text())["action_groups"]
    assert groups["node"] == [f"gpufabric.rdma.{path.stem}" for path in MODULES if for_nodes(path)]
