"""kubectl is started in one place, _kube/kubectl.py, and nodes are cordoned and drained in one, _kube/node.py."""

from __future__ import annotations

import ast
import json
import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLIENT, NODE = "plugins/module_utils/_kube/kubectl.py", "plugins/module_utils/_kube/node.py"
COMMANDS = re.compile(r"^(ansible\.builtin\.)?(command|shell|raw|script|expect)$")
# Variables of roles that hold the kubectl command.
PROGRAM = re.compile(r"\bkubectl\b|_kubectl\b|driver_drain_command")
DRAINING = re.compile(r"""["'](cordon|uncordon|drain)["'],|\bunschedulable\b""")


def starts(text):
    """Lines that build a command line with kubectl, other than what is handed to Kubectl(...)."""
    tree = ast.parse(text)
    handed = {
        id(inner)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "Kubectl"
        for inner in ast.walk(call)
    }
    # Defaults of options, and names that a loop goes through.
    options = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Dict) for inner in ast.walk(node)}
    options |= {id(node.iter) for node in ast.walk(tree) if isinstance(node, (ast.comprehension, ast.For))}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.List, ast.Tuple)) or id(node) in handed | options:
            continue
        for part in node.elts:
            word = ast.unparse(part.value if isinstance(part, ast.Starred) else part)
            if word in ("'kubectl'", "'/usr/local/bin/kubectl'") or (
                isinstance(part, ast.Starred) and "kubectl" in word
            ):
                found.append(node.lineno)
    return found


def tasks(items):
    for item in items or []:
        yield item
        for part in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from tasks(item.get(part))


def raw_calls(text):
    """Names of the tasks that run kubectl without a module."""
    return [
        task.get("name")
        for task in tasks(yaml.safe_load(text))
        for key, value in task.items()
        if COMMANDS.match(key) and PROGRAM.search(json.dumps([value, task.get("vars"), task.get("args")]))
    ]


def files(pattern, *folders):
    return {str(path.relative_to(ROOT)): path.read_text() for top in folders for path in (ROOT / top).rglob(pattern)}


CODE = files("*.py", "plugins")
TASKS = {
    **{name: text for name, text in files("*.yml", "roles").items() if "/tasks/" in name or "/handlers/" in name},
    **files("*.yml", "playbooks"),
}


def test_there_is_something_to_look_at():
    assert {CLIENT, NODE} <= set(CODE)
    assert {"roles/k3s/tasks/upgrade.yml", "playbooks/upgrade_k3s.yml"} <= set(TASKS)


def test_only_the_client_starts_kubectl():
    assert {name: lines for name, text in CODE.items() if name != CLIENT and (lines := starts(text))} == {}
    assert {name: found for name, text in TASKS.items() if (found := raw_calls(text))} == {}


def test_nodes_are_cordoned_and_drained_in_one_place():
    assert [name for name, text in CODE.items() if name != NODE and DRAINING.search(text)] == []
    assert [name for name, text in TASKS.items() if DRAINING.search(text)] == []


PLANTED_CODE = [
    'run(["k3s", "kubectl", "get", "nodes"])',
    'subprocess.run(["kubectl", *words], check=True)',
    'module.run_command([*module.params["kubectl"], "get"])',
    "self._run([*self._kubectl, *words])",
]
PLANTED_TASKS = [
    {"ansible.builtin.command": {"argv": ["/usr/local/bin/k3s", "kubectl", "get", "nodes"]}},
    {"command": "k3s kubectl get nodes"},
    {"ansible.builtin.command": {"argv": "{{ driver_drain_command + ['get', 'nodes'] }}"}},
    {"block": [{"ansible.builtin.shell": "{{ device_plugin_kubectl | join(' ') }} get nodes"}]},
]


@pytest.mark.parametrize("line", PLANTED_CODE)
def test_a_planted_call_in_code_is_seen(line):
    text = CODE["plugins/modules/node_drain.py"]
    assert starts(text) == []
    assert starts(f"{text}\n{line}\n") == [len(text.splitlines()) + 2]


@pytest.mark.parametrize("task", PLANTED_TASKS, ids=str)
def test_a_planted_call_in_a_role_is_seen(task):
    text = TASKS["roles/k3s/tasks/upgrade.yml"]
    assert raw_calls(text) == []
    assert len(raw_calls(yaml.safe_dump([*yaml.safe_load(text), {"name": "Planted", **task}]))) == 1


@pytest.mark.parametrize(
    "line",
    [
        'run("uncordon", name)',
        "words = ('drain', name)",
        '{"spec": {"unschedulable": True}}',
        "argv: [k3s, 'cordon', x]",
    ],
)
def test_a_planted_drain_is_seen(line):
    assert DRAINING.search(line)
