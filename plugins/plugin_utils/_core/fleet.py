# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run knows of its hosts, for actions that judge all of them.

PRIVATE to the collection. An argument such as `hosts | map('extract', hostvars, 'known')` is walked value by value for
templates before an action sees it: at 1,000 nodes most of the time of `verify`. Facts and registered results hold none;
here they are taken as they are, and a host's variables are put together once however many of them an action asks for.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError

from ...module_utils._core.change import Finding
from ...module_utils._core.text import sentence

_HOSTS = {"hosts": {"type": "list", "elements": "str", "required": True}}
_NAME = {"type": "str", "required": True}
# Options of an action that takes one variable of each host.
ONE = {**_HOSTS, "variable": _NAME}


def several(*keys: str) -> dict:
    """Options of an action that takes several variables of each host, whose names it is given by these keys."""
    return {**_HOSTS, "variables": {"type": "dict", "required": True, "options": dict.fromkeys(keys, _NAME)}}


def variables(task_vars: dict, hosts: list[str], names: dict[str, str]) -> list[dict[str, Any]]:
    """Of each host those of the variables that are defined, in the order of the hosts. names: {key: variable}."""
    known = [task_vars["hostvars"].raw_get(host) for host in hosts]
    return [{key: of_host[name] for key, name in names.items() if name in of_host} for of_host in known]


def registered(task_vars: dict, name: str) -> dict:
    """What an earlier task of this host registered under the name; empty where it did not run."""
    return task_vars.get(name) or {}


def some(task_vars: dict, hosts: list[str], name: str) -> list[Any]:
    """The variable of each host that has it."""
    return [value for of_host in variables(task_vars, hosts, {name: name}) for value in of_host.values()]


def each(task_vars: dict, hosts: list[str], name: str) -> list[Any]:
    """The variable of each host. AnsibleError names all hosts that lack it."""
    known = variables(task_vars, hosts, {name: name})
    lacking = [host for host, of_host in zip(hosts, known) if not of_host]
    if lacking:
        step = "see above which task failed on these hosts, fix that and run again"
        raise AnsibleError(sentence(Finding(", ".join(lacking), f"the variable {name}", "undefined", step)))
    return [of_host[name] for of_host in known]
