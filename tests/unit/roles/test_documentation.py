"""What a user reads about a role is what the role does: options, defaults, preflight, README."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(path):
    return yaml.safe_load(path.read_text()) if path.exists() else None


def entry_points(role):
    return load(role / "meta/argument_specs.yml")["argument_specs"]


def test_there_are_roles_to_look_at():
    assert {"discovery", "kernel_modules", "limits", "rdma_netns", "reboot", "verification"} <= {r.name for r in ROLES}


@pytest.fixture(params=ROLES, ids=lambda role: role.name)
def role(request):
    return request.param


def test_argument_specs_equal_the_defaults_in_names_and_values(role):
    defaults = load(role / "defaults/main.yml") or {}
    documented = {}
    for entry_point, spec in entry_points(role).items():
        for name, option in (spec.get("options") or {}).items():
            value = option.get("default")
            assert documented.setdefault(name, value) == value, f"{entry_point}: {name} has two defaults"
    assert documented == defaults


def test_every_option_says_what_it_is_and_carries_the_name_of_its_role(role):
    for entry_point, spec in entry_points(role).items():
        assert spec.get("short_description"), f"{entry_point} has no short_description"
        for name, option in (spec.get("options") or {}).items():
            assert name == role.name or name.startswith(f"{role.name}_"), name
            assert option.get("description"), f"{name} has no description"
            assert option.get("type"), f"{name} has no type"


def test_every_entry_point_is_described_and_has_its_tasks(role):
    """Ansible validates by the name of the tasks file, and antsibull-docs refuses one without a description."""
    for entry_point, spec in entry_points(role).items():
        assert spec.get("description"), f"{entry_point} has no description"
        assert (role / f"tasks/{entry_point}.yml").is_file(), f"{entry_point} has no tasks"
        assert "RV(" not in yaml.safe_dump(spec), f"{entry_point}: a role returns nothing"


def test_public_variables_live_in_defaults_only(role):
    for name in load(role / "vars/main.yml") or {}:
        assert name.startswith(f"__{role.name}_"), f"{name} is public but stands in vars"


# What an operator takes in at a glance; beyond it, main.yml names steps and the steps stand in files of their own.
HANDFUL = 4


def test_the_main_file_is_a_table_of_contents_or_a_handful_of_tasks(role):
    tasks = load(role / "tasks/main.yml")
    assert tasks
    steps = {"ansible.builtin.import_tasks", "ansible.builtin.include_tasks"}
    own = [task["name"] for task in tasks if not steps & set(task)]
    assert len(own) <= HANDFUL, own


def test_the_role_has_a_readme_and_galaxy_metadata(role):
    assert (role / "README.md").stat().st_size > 100
    meta = load(role / "meta/main.yml")
    assert meta["galaxy_info"]["license"] == "GPL-3.0-or-later"


def test_the_option_list_in_the_docs_is_the_one_of_the_roles():
    checked = subprocess.run(
        [sys.executable, ROOT / "tests/tools/render_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
