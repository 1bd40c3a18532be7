"""What several modules would change on a node, by their own planners."""

from __future__ import annotations

import json
from typing import Any, Callable

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .._cni import plugins as cni_plugins
from .._device_plugin import node as device_plugin
from .._device_plugin import plan as device_plugin_plan
from .._host import node_files
from .._k3s import plan as k3s_plan
from .._k3s import state as k3s_state


def settled(asked: dict, root: str, run: Callable) -> dict[str, Any]:
    """unsettled, {name: objects that would change or have a finding}, and contents, {path: text} for node_files.

    asked: the option `settled` of node_facts.
    """
    plans, contents, further = {}, {}, {}
    for name, given in asked["node_files"].items():
        wanted = _options(node_files.ARGUMENTS, given)
        state = node_files.read(root, wanted, run)
        plans[name] = node_files.plan(state, wanted)
        more = node_files.further(root, state, wanted)
        contents.update(more["contents"])
        further[name] = more["missing_secrets"] + [program for program, runs in more["programs"].items() if runs]
    if asked["cni_plugins"] is not None:
        binaries, directory = asked["cni_plugins"]["binaries"], asked["cni_plugins"]["directory"]
        plans["cni_plugins"] = cni_plugins.plan(cni_plugins.read(root, binaries, directory), binaries, directory)
    if asked["k3s_node"] is not None:
        given = asked["k3s_node"]
        wanted = k3s_plan.wanted_of({**given, "registries": json.loads(given["registries"])})
        state = k3s_state.converging(root, run, given["token"], wanted["first"])
        plans["k3s_node"] = k3s_plan.plan(state, wanted, root)
    if asked["device_plugin"] is not None:
        given = _options(device_plugin.ARGUMENTS, asked["device_plugin"])
        state = device_plugin.read_for(root, given)
        wanted = device_plugin.wants(given, state)
        plans["device_plugin"] = device_plugin_plan.plan(state, wanted)
        further["device_plugin"] = device_plugin_plan.in_pods(state, wanted)
    objects = {
        name: [item.object for item in [*plan.changes, *plan.findings]] + further.get(name, [])
        for name, plan in plans.items()
    }
    return {"unsettled": {name: listed for name, listed in objects.items() if listed}, "contents": contents}


def _options(spec: dict, given: dict) -> dict:
    """Typed and with defaults, as the module itself gets them."""
    checked = ArgumentSpecValidator(spec).validate(given)
    if checked.error_messages:
        raise ValueError("; ".join(checked.error_messages))
    return checked.validated_parameters
