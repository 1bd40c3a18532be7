# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.k3s_preflight: reads the bundle folder; _preflight.k3s decides."""

from __future__ import annotations

import os
import pathlib
import time

import yaml
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import bundle as needs
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import k3s
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables

LOCK = pathlib.Path(__file__).resolve().parents[2] / "lock/artifacts.yml"
CONTROLLER = "the controller"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                **fleet.ONE,
                "bundle_dir": {"type": "path"},
                "upgrade": {"type": "bool", "default": False},
                "collect": {"type": "bool", "default": False},
            },
        )
        nodes, findings = typed(fleet.each(task_vars, args["hosts"], args["variable"]))
        folder = args["bundle_dir"] or ""
        bundle, wrong = read(args["bundle_dir"], nodes)
        findings += wrong
        known = task_vars["groups"]["all"]
        decided = k3s.decide(nodes, bundle, folder, args["upgrade"], now=time.time(), inventory=known)
        findings += decided["findings"]
        if bundle is not None:
            findings += lacking(nodes, bundle, folder)
            rows = k3s.needed(decided["nodes"], bundle)
            findings += at(CONTROLLER, bundle_folder.damaged(folder, rows))
        if args["upgrade"]:
            findings += k3s.upgrade(decided["nodes"])
        if findings:
            clean = [{"host": node["host"], "findings": []} for node in nodes]
            head, text = preflight_host.failure_text(preflight_host.with_further(clean, findings))
            if not args["collect"]:
                terminal.show(f"{head}\n\n{text}\n")
            msg = f"{head} Each is listed {'at the end' if args['collect'] else 'above'}."
            return {"changed": False, "failed": True, "msg": msg, "findings": findings}
        notes = decided["notes"]
        return {"changed": False, "nodes": decided["nodes"], "notes": notes, "warnings": terminal.warnings(notes)}


def typed(nodes: list[dict]) -> tuple[list[dict], list[dict]]:
    """The nodes as _preflight.k3s and _preflight.bundle take them, and what is wrong with their variables."""
    made, findings = [], []
    for node in nodes:
        values, invalid = preflight_variables.typed(node["variables"])
        findings += at(node["host"], invalid)
        variables = {name.removeprefix("k3s_"): value for name, value in values.items()}
        needs = {**node["needs"], "plugins": values["cni_plugins_names"], "pulled": values["k3s_images_pulled"]}
        made.append({**node, "variables": variables, "needs": needs})
    return made, findings


def lacking(nodes: list[dict], bundle: dict, folder: str) -> list[dict]:
    """What the roles need and the bundle, or the folder of wheels, does not hold."""
    lock = yaml_load(LOCK.read_text(encoding="utf-8"))
    pinned, found = needs.with_digest(lock), []
    for node in [node for node in nodes if node["state"]]:
        where = (node.get("needs") or {}).get("wheels")
        names = set(os.listdir(where)) if where and os.path.isdir(where) else set()
        lacks = needs.lacking(node, bundle, folder, pinned)
        found += at(node["host"], lacks + needs.lacking_wheels(node, names, lock["wheels"]))
    return found


def read(folder: str | None, nodes: list[dict]) -> tuple[dict | None, list[dict]]:
    """The bundle's description and what is wrong with it; None where there is none to use."""
    bare = [node["host"] for node in nodes if node["state"] and not node["state"]["version"]]
    if not folder:
        lacking = Finding(
            "k3s_bundle_dir",
            "the folder that holds k3s, for nodes that have none",
            "not set",
            "fill a folder with playbooks/bundle.yml on a connected machine and set k3s_bundle_dir to it",
        )
        return None, [row for host in bare for row in at(host, [lacking])]
    path = os.path.join(folder, bundle_folder.DESCRIPTION)
    try:
        with open(path, "rb") as stream:
            bundle = yaml_load(stream)
    except (OSError, yaml.YAMLError) as error:
        seen = getattr(error, "strerror", None) or " ".join(str(error).split())
        step = "set k3s_bundle_dir to a folder that playbooks/bundle.yml has filled"
        return None, at(CONTROLLER, [Finding(path, "the bundle's description", seen, step)])
    wrong = at(CONTROLLER, bundle_folder.findings(bundle, folder))
    return (None if wrong else bundle), wrong
