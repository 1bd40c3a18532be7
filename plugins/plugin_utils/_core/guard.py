"""How action plugins end: change.reported() for actions, and a guard against variables from a node's facts.

Ansible turns all facts that a module on a node returns into variables, which override the inventory and the defaults: a
compromised node could use them to choose files of the controller, or commands on another host. Each module of this
collection has a guarded action (meta/runtime.yml), which also refuses what a builtin module on a node returned before.
"""

import functools
import pathlib

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.yaml import yaml_load

from ...module_utils._core.change import Finding, Refused, failure, unforeseen

ROOT = pathlib.Path(__file__).resolve().parents[3]
_PREFIXES = ("__", *sorted(f"{path.stem}_" for place in ("roles", "playbooks") for path in (ROOT / place).iterdir()))
_NAMES = frozenset({"cluster", "policy_files", "policy_dest", "policy_hosts"})


def guarded(run):
    """Decorate ActionModule.run(). Ansible's own errors pass: they say what is wrong with the task."""

    @functools.wraps(run)
    def typed(self, tmp=None, task_vars=None):
        try:
            _refuse_facts((task_vars or {}).get("ansible_facts") or {})
            return _kept(run(self, tmp, task_vars))
        except AnsibleError:
            raise
        except Refused as refused:
            return {"failed": True, **failure(refused)}
        except Exception as error:
            told = unforeseen(f"action {self._task.action.rpartition('.')[2]}", error)
            raise AnsibleActionFail(told["msg"], result=told) from error

    return typed


def _kept(result: dict) -> dict:
    """The result with the one fact that modules of this collection document."""
    facts, others = result.get("ansible_facts"), {key: result[key] for key in result if key != "ansible_facts"}
    return (
        {**others, "ansible_facts": {"rdma": facts["rdma"]}} if isinstance(facts, dict) and "rdma" in facts else others
    )


def _refuse_facts(facts) -> None:
    names = sorted(str(name) for name in facts if str(name).startswith(_PREFIXES) or name in _NAMES)
    if names:
        wanted, seen = "a value of the inventory, of -e or the default", "one that the node sets by its facts"
        step = "look for its source on the node (a file in /etc/ansible/facts.d, or a break-in); until then leave the "
        step += "node out with --limit"
        raise Refused([Finding(f"variable {name}", wanted, seen, step, "node:variable") for name in names])


def options(documentation: str | dict) -> dict:
    """An action's argument_spec: the options as its module's documentation, their only home, lists them."""
    documented = documentation if isinstance(documentation, dict) else yaml_load(documentation)["options"]
    made = {}
    for name, option in documented.items():
        made[name] = {key: value for key, value in option.items() if key not in ("description", "suboptions")}
        if "suboptions" in option:
            made[name]["options"] = options(option["suboptions"])
    return made
