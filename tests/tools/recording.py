"""Runs of ansible-playbook that callback_plugins/run_record.py writes down: how to ask for it, and what it wrote."""

from __future__ import annotations

import json
import pathlib

PLUGINS = pathlib.Path(__file__).resolve().parent / "callback_plugins"


def environment(folder: pathlib.Path | str) -> dict[str, str]:
    """Environment that makes the next run write its record into the folder."""
    return {
        "ANSIBLE_CALLBACK_PLUGINS": str(PLUGINS),
        "ANSIBLE_CALLBACKS_ENABLED": "run_record",
        "RUN_RECORD": str(folder),
    }


def written(folder: pathlib.Path | str) -> dict:
    """The record of the one run that was written into the folder."""
    (record,) = pathlib.Path(folder).glob("*.json")
    return json.loads(record.read_text())
