"""Runs modules and playbooks for tests like Ansible: real processes, this machine's Python, no SSH."""

import json
import os
import pathlib
import subprocess
import sys

from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGINS = pathlib.Path(__file__).resolve().parent / "callback_plugins"


def environment(folder: pathlib.Path | str) -> dict[str, str]:
    """Environment that makes the next run write its record into the folder, see callback_plugins/run_record.py."""
    return {"ANSIBLE_CALLBACK_PLUGINS": str(PLUGINS), "RUN_RECORD": str(folder)}


def written(folder: pathlib.Path | str) -> dict:
    """The record of the run that was written into the folder, by host."""
    return json.loads(pathlib.Path(folder, "record.json").read_text())


def module(what, check: bool = False, path: str = os.environ["PATH"], **options) -> dict:
    arguments = {**options, "_ansible_check_mode": check, "_ansible_diff": True}
    done = subprocess.run(
        [sys.executable, what.__file__],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8", "PATH": path},
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def local(**variables) -> dict:
    own = {"ansible_connection": "local", "ansible_python_interpreter": node_python.path(), "ansible_become": False}
    return {**own, **variables}


def play(folder: pathlib.Path, *words, program=None, inventory=None, plays=None, **environment) -> tuple[int, str]:
    """Exit code and output of ansible-playbook in a folder, with this repository's settings; folder/bin comes first.

    inventory, plays: content of hosts.json and play.yml for the run.
    """
    settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = _run(folder, words, program, inventory, plays, {**settings, **environment})
    return done.returncode, done.stdout + done.stderr


def told(folder: pathlib.Path, *words, inventory=None, plays=None) -> tuple[int, dict, str]:
    """Exit code, report as data and output of ansible-playbook in a folder, without settings."""
    settings = {
        "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
        "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
    }
    done = _run(folder, words, None, inventory, plays, settings)
    return done.returncode, json.loads(done.stdout[done.stdout.index("{\n") :]), done.stdout + done.stderr


def _run(folder, words, program, inventory, plays, environment):
    if inventory is not None:
        (folder / "hosts.json").write_text(json.dumps(inventory))
        words = ("-i", "hosts.json", *words)
    if plays is not None:
        (folder / "play.yml").write_text(json.dumps(plays))
        words = (*words, "play.yml")
    path = f"{folder}/bin:{os.environ['PATH']}"
    return subprocess.run(
        [*(program or [ansible_playbook.path()]), *map(str, words)],
        cwd=folder,
        env={**os.environ, "LC_ALL": "C.UTF-8", "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
