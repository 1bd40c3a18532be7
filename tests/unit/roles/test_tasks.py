"""Roles read like an operator's list: task files that earn their place, searchable names, news as warnings."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
TASK_FILES = sorted((ROOT / "roles").glob("*/tasks/*.yml"))
PLAYS = sorted(
    path
    for folder, pattern in (("roles", "*/handlers/*.yml"), ("playbooks", "*.yml"), ("molecule", "**/*.yml"))
    for path in (ROOT / folder).glob(pattern)
)
# What a person says; Ansible's logs are searched for what is done: Install, Configure, Verify, Drain, Wait, Report.
_SPOKEN = """
    Ask Await Begin Bring Decide End Forget Give Go Hand Have Judge Keep Leave Let Look Make Name Put Refuse Say See
    Settle Take Tell Work
"""
SPOKEN = frozenset(_SPOKEN.split())
STEPS = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
ROLES = ("ansible.builtin.import_role", "ansible.builtin.include_role")
# main is where a role starts, preflight what others run of it before anything changes.
# What a playbook runs on all hosts before the first one changes is an entry point of its own: reset_preflight.
BY_CONVENTION = {"main", "preflight", "reset_preflight"}


def name_of(path):
    return str(path.relative_to(ROOT))


def walk(tasks):
    """All tasks of a list, those in blocks too; of plays, the plays and their tasks."""
    for task in tasks:
        yield task
        for section in ("block", "rescue", "always", "pre_tasks", "tasks", "post_tasks", "handlers"):
            yield from walk(task.get(section) or [])


def load(path):
    found = yaml.safe_load(path.read_text())
    return list(walk(found)) if isinstance(found, list) and all(isinstance(item, dict) for item in found) else []


def users():
    """{(role or "*", task file): how many tasks run it}; "*" where the role's name is a template."""
    found: dict = {}
    for path in [*TASK_FILES, *PLAYS]:
        for task in load(path):
            for word in STEPS:
                if word in task:
                    key = (path.parents[1].name, task[word].removesuffix(".yml"))
                    found.setdefault(key, []).append(path.parents[1].name)
            for word in ROLES:
                if "tasks_from" in task.get(word, {}):
                    role = task[word]["name"].rpartition(".")[2]
                    key = ("*" if "{" in task[word]["name"] else role, task[word]["tasks_from"].removesuffix(".yml"))
                    found.setdefault(key, []).append(path.parents[1].name)
    return found


@pytest.mark.parametrize("path", TASK_FILES, ids=name_of)
def test_a_file_of_one_task_is_run_from_more_than_one_place(path):
    tasks = [task for task in load(path) if "block" not in task]
    role, stem = path.parents[1].name, path.stem
    if len(tasks) > 1 or stem in BY_CONVENTION:
        return
    run = users()
    by = [*run.get((role, stem), []), *run.get(("*", stem), [])]
    # What another role runs is an entry point: it cannot be merged into a file of that role.
    assert len(by) > 1 or by not in ([], [role]), "merge it into the file that runs it"


@pytest.mark.parametrize("path", [*TASK_FILES, *PLAYS], ids=name_of)
def test_names_start_with_what_an_operator_searches_for(path):
    for task in load(path):
        name = task.get("name", "")
        if name or "hosts" in task:
            assert re.match(r"[A-Z]", name), name
            assert name.split()[0].rstrip(",") not in SPOKEN, name


@pytest.mark.parametrize("path", TASK_FILES, ids=name_of)
def test_every_task_has_a_name(path):
    assert all(task.get("name") for task in load(path))


@pytest.mark.parametrize("path", TASK_FILES, ids=name_of)
def test_news_is_a_warning_or_a_report_and_no_debug_task(path):
    assert not [task["name"] for task in load(path) if "ansible.builtin.debug" in task]


@pytest.mark.parametrize("path", TASK_FILES, ids=name_of)
def test_a_host_that_may_not_be_there_is_no_empty_name(path):
    """Ansible works out delegate_to before `when`, and refuses an empty name."""
    for task in load(path):
        host = re.fullmatch(r"{{ (\w+) }}", task.get("delegate_to", ""))
        conditions = task.get("when", [])
        guards = conditions if isinstance(conditions, list) else [conditions]
        assert not (host and f"{host[1]} in groups['all']" in guards), task["name"]


OF_ALL = re.compile(
    r"ansible_play_hosts(_all)?\b[^}]*\|\s*map\('extract', hostvars|groups\['all'\] \| map\('extract', hostvars"
)
SECTIONS = ("block", "rescue", "always", "pre_tasks", "tasks", "post_tasks", "handlers", "roles")


def looks_at_all(text, names):
    return bool(OF_ALL.search(text)) or any(re.search(rf"\b{name}\b", text) for name in names)


def per_node(tasks, names, once=False):
    """Tasks that every node runs and that look at all nodes, themselves or by one of these variables."""
    for task in tasks:
        own = {key: value for key, value in task.items() if key not in SECTIONS}
        # What one host does for all is as good as run_once.
        here = (
            once
            or own.get("run_once")
            or own.get("hosts") == "localhost"
            or re.search(
                r"inventory_hostname == ansible_play_hosts(_all)? \| first|\b__\w+_asking\b", str(own.get("when", ""))
            )
        )
        below = set(names)
        for name, value in (own.pop("vars", None) or {}).items():
            if looks_at_all(str(value), below):
                below.add(name)
        if not here and looks_at_all(str({**own, "name": ""}), below):
            yield task.get("name", "a play")
        for section in SECTIONS:
            yield from per_node([one for one in task.get(section) or [] if isinstance(one, dict)], below, here)


@pytest.mark.parametrize("path", [*TASK_FILES, *PLAYS], ids=name_of)
def test_what_looks_at_all_nodes_is_done_once_for_all(path):
    """Done by each of 1,000 nodes, it is done a million times."""
    variables = path.parents[1] / "vars/main.yml"
    known = yaml.safe_load(variables.read_text()) if "tasks" in path.parts and variables.exists() else {}
    names: set = set()
    for _again in known:
        names |= {name for name, value in known.items() if looks_at_all(str(value), names)}
    found = yaml.safe_load(path.read_text())
    if isinstance(found, list) and all(isinstance(item, dict) for item in found):
        assert list(per_node(found, names)) == []
