"""Whether a node takes part in deploying the cluster, asked with the options of the roles' own tasks."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template

from ...module_utils._core.text import json_object
from .variables import ROLES

MODULE = "gpufabric.rdma."
NODE_FILES = "node_files"
_IN_PODS = "__device_plugin_in_pods"


class Task(NamedTuple):
    """A task that changes a node: the first one with its module in a role's tasks file. when: the file's condition."""

    role: str
    file: str
    module: str = NODE_FILES
    when: str = "true"


TASKS = (
    Task("flannel", "nodes"),
    Task("node_ready", "nodes"),
    Task("multus", "nodes"),
    Task("networks", "nodes"),
    Task("k3s", "address", when="__k3s_shares"),
    Task("k3s", "node", "k3s_node"),
    Task("device_plugin", "systemd", "device_plugin", f"not {_IN_PODS}"),
    Task("device_plugin", "daemonset", "device_plugin", _IN_PODS),
)


@functools.cache
def written() -> list[tuple[Task, dict, dict]]:
    """Each task as in its role, and the variables of that role."""
    load = functools.partial(DataLoader().load_from_file, trusted_as_template=True)
    documents = []
    for task in TASKS:
        folder = ROLES / task.role
        places = {"role_path": str(folder), "ansible_search_path": [str(folder)]}
        tasks = _flat(load(str(folder / f"tasks/{task.file}.yml")))
        document = next(document for document in tasks if MODULE + task.module in document)
        documents.append((task, document, {**load(str(folder / "vars/main.yml")), **places}))
    return documents


def options(known: Mapping, renderer: Callable) -> dict:
    """The option `settled` of node_facts, without cni_plugins.

    known: variables of the host and defaults of roles. renderer(variables): has template() and evaluate_conditional(),
    with these variables.
    """
    asked: dict[str, Any] = {NODE_FILES: {}}
    for task, document, own in written():
        variables = {**known, **own}
        render = renderer({**variables, **document.get("vars", {})})
        conditions = document.get("when", [])
        conditions = conditions if isinstance(conditions, list) else [conditions]
        if not all(map(render.evaluate_conditional, [trust_as_template(task.when), *conditions])):
            continue
        given = render.template(document[MODULE + task.module])
        for name in ("root", "start_timeout_seconds"):
            given.pop(name, None)
        if task.module == NODE_FILES:
            asked[NODE_FILES][task.role] = given
        else:
            asked[task.module] = given
    asked["k3s_node"]["registries"] = json.dumps(asked["k3s_node"]["registries"])
    return asked


def _flat(tasks: list) -> Iterator[dict]:
    for task in tasks:
        yield task
        yield from _flat(task.get("block", []))


def reasons(answer: dict, decided: dict, typed: dict, boot_id: str | None) -> dict[str, list[str]]:
    """{role or module: objects that are not as wanted}; empty for a node that is settled.

    answer: `settled` of node_facts, from a node, so it is data. decided: the plan for this host. boot_id: None below
    another root.
    """
    left = {name: list(objects) for name, objects in answer["unsettled"].items()}
    planned = decided["k3s"]
    programs = [row["dest"] for row in planned["files"]] + [row["src"] for row in planned["packages"]]
    if programs:
        left["k3s"] = [*left.get("k3s", []), *programs]
    # The role itself asks the module that creates virtual functions.
    if typed["networks_sriov"] or decided["networks"]["vfs_unit"]:
        left["networks"] = [*left.get("networks", []), "virtual functions"]
    if typed["node_ready_taint"] and boot_id is not None and not _ready(answer["contents"], boot_id):
        left["node_ready"] = [*left.get("node_ready", []), "readiness in this boot"]
    return left


def _ready(contents: dict, boot_id: str) -> bool:
    """By the record of the unit of node_ready."""
    states = map(json_object, contents.values())
    return any((status.get("state"), status.get("boot_id")) == ("ready", boot_id) for status in states)
