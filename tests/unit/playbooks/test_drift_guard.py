"""Drift cannot change anything: the guard, what it lets through, and that drift compares all that site applies."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.callback import drift as recorder
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, play_roles

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLAYBOOK = yaml.safe_load((ROOT / "playbooks/drift.yml").read_text())
WRITING = {
    "asks to be left out of check mode": {"ansible.builtin.copy": {"content": "x", "dest": "{{ folder }}/copied"}},
    "a command that would run": {"ansible.builtin.command": {"argv": ["touch", "{{ folder }}/touched"]}},
    "a shell": {"ansible.builtin.shell": "touch {{ folder }}/shelled"},
    "a raw command": {"ansible.builtin.raw": "touch {{ folder }}/raw"},
    "a script": {"ansible.builtin.script": "{{ folder }}/script.sh"},
    "an included file": {"ansible.builtin.include_tasks": "included.yml"},
}


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "and without the guard it would have"])
def test_a_guarded_play_writes_nothing_whatever_its_tasks_ask_for(tmp_path, guarded):
    (tmp_path / "script.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/scripted\n")
    (tmp_path / "included.yml").write_text(
        json.dumps(
            [{"check_mode": False, "ansible.builtin.file": {"path": "{{ folder }}/included", "state": "directory"}}]
        )
    )
    asks = {
        name: {} if "ansible.builtin.include_tasks" in task else {"check_mode": False} for name, task in WRITING.items()
    }
    tasks = [
        {"block": [{"name": name, **asks[name], **task}], "rescue": [{"ansible.builtin.meta": "noop"}]}
        for name, task in WRITING.items()
    ]
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"folder": str(tmp_path), "__drift_guarded": guarded, "ansible_python_interpreter": node_python.path()},
        "tasks": tasks,
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [ansible_playbook.path(), "-i", "localhost,", "play.yml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "ANSIBLE_CALLBACKS_ENABLED": "gpufabric.rdma.drift",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    written = {
        name for name in ("copied", "touched", "shelled", "raw", "scripted", "included") if (tmp_path / name).exists()
    }
    assert done.returncode == 0, done.stdout + done.stderr
    if guarded:
        assert written == set()
        for name in ("a shell", "a raw command", "a script"):
            assert f"task {name}: wanted an action that is known to respect check mode" in done.stdout + done.stderr
    else:
        assert written == {"copied", "touched", "shelled", "raw", "scripted", "included"}


@pytest.mark.parametrize("action", ["gpufabric.rdma.node_facts", "ansible.builtin.command", "drift", "x.y.drift"])
@pytest.mark.parametrize("mark", ["begin", "note", "end"])
def test_a_nodes_answer_is_no_mark(tmp_path, mark, action):
    answer = {"drift_mark": mark, "hosts": ["node1", "node2"], "text": "clean", "settings": {}}
    host = types.SimpleNamespace(get_name=lambda: "node1")
    task = types.SimpleNamespace(action=action, get_name=lambda: "Read", _role=None)
    result = types.SimpleNamespace(_result=answer, _host=host, _task=task, _task_fields={})
    listener = recorder.CallbackModule()
    listener.v2_runner_on_ok(result)
    assert listener._record is None
    listener._record = recorder.verdicts.Record(["node1", "node2"])
    listener.v2_runner_on_ok(result)
    assert listener._record.unfinished() == ["node1", "node2"]


def test_every_play_on_nodes_is_guarded_and_in_check_mode():
    plays = [play for play in PLAYBOOK if "hosts" in play]
    assert len(plays) == 4
    for play in plays:
        assert play["check_mode"] is True
        assert play["vars"][recorder.GUARD_VARIABLE] is True
        assert play["strategy"] == "ansible.builtin.linear"
        assert "any_errors_fatal" not in play
    imported = [play["ansible.builtin.import_playbook"] for play in PLAYBOOK if "hosts" not in play]
    in_memory = {f"ansible.builtin.{name}" for name in ("group_by", "add_host", "set_fact")}
    in_memory |= {"gpufabric.rdma.refuse", "gpufabric.rdma.report"}
    tasks = [task for playbook in imported for task in steps_of(playbook)]
    assert len(tasks) > 2
    assert all(set(task) & in_memory for task in tasks)


def steps_of(playbook):
    """The tasks of a playbook and of those that it imports, those of blocks one by one."""
    found = []
    for play in yaml.safe_load((ROOT / "playbooks" / playbook).read_text()):
        if "hosts" not in play:
            found += steps_of(play["ansible.builtin.import_playbook"])
        for task in play.get("tasks", []):
            found += task.get("block", [task])
    return found


def test_every_module_of_ours_knows_check_mode():
    for path in sorted((ROOT / "plugins/modules").glob("*.py")):
        text = path.read_text()
        documentation = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])
        fragments = documentation.get("extends_documentation_fragment", [])
        own = documentation.get("attributes", {}).get("check_mode", {}).get("support")
        assert own in ("full", "partial") or fragments, path.name
        if "AnsibleModule(" in text:
            assert "supports_check_mode=True" in text, path.name


def tasks_of(path):
    """All tasks of a file, those in blocks too."""

    def walk(tasks):
        for task in tasks:
            yield task
            for section in ("block", "rescue", "always"):
                yield from walk(task.get(section) or [])

    return list(walk(yaml.safe_load(path.read_text()) or []))


def roles_named(path):
    """(role, tasks_from) of each role that a task file brings in."""
    words = ("ansible.builtin.import_role", "ansible.builtin.include_role")
    found = [task[word] for task in tasks_of(path) for word in words if word in task]
    return [(item["name"].rpartition(".")[2], item.get("tasks_from", "main")) for item in found]


def test_drift_compares_every_role_that_host_and_cluster_apply_in_their_order():
    def order(name):
        plays = yaml.safe_load((ROOT / "playbooks" / name).read_text())
        return [role for play in plays if "hosts" in play for role in play_roles.applied(play)]

    compared = list(dict.fromkeys(role for role, _file in roles_named(ROOT / "roles/drift/tasks/host.yml")))
    assert compared == ["driver", *(role for role in order("layers/host.yml") if role != "reboot")]
    compared = list(dict.fromkeys(role for role, _file in roles_named(ROOT / "roles/drift/tasks/cluster.yml")))
    assert compared == order("layers/cluster.yml")


def pieces_of(role):
    main = tasks_of(ROOT / f"roles/{role}/tasks/main.yml")
    words = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
    return [task[word].removesuffix(".yml") for task in main for word in words if word in task]


def test_a_role_that_is_compared_in_pieces_is_compared_whole():
    named = roles_named(ROOT / "roles/drift/tasks/cluster.yml")
    for role in {role for role, file in named if file != "main"}:
        assert [file for name, file in named if name == role] == pieces_of(role)


def test_the_host_layers_roles_are_compared_whole():
    named = roles_named(ROOT / "roles/drift/tasks/host.yml")
    assert [(role, file) for role, file in named if file != "main"] == [
        ("driver", "plan"),
        ("kernel_modules", "initramfs"),
    ]
    whole = {"node_firewall", "rdma_netns", "kernel_modules", "limits", "rail_links"}
    assert {role for role, file in named if file == "main"} == whole


def test_no_action_on_the_way_is_one_that_the_guard_would_refuse():
    for path in [*(ROOT / "roles").glob("*/tasks/*.yml")]:
        # Drift has set up no address to verify.
        if path.name == "address_verify.yml" or path.parents[1].name in ("verification", "reboot"):
            continue
        for task in tasks_of(path):
            actions = [key for key in task if key.startswith(("ansible.", "community.", "gpufabric.rdma."))]
            for action in actions:
                assert action in recorder.HARMLESS or action.startswith(recorder.OURS), f"{path}: {action}"
