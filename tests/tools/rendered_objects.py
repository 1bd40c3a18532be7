"""Every object that the collection applies to a cluster, rendered with every part that an option can switch on."""

from __future__ import annotations

import copy

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpufabric.rdma.tests.tools import hostile_templates as templates

# Includes the templates of the chosen components, which are rendered one by one.
GATHERED = ("networks", "components.yml.j2")
PLUGIN = templates.ROOT / "device_plugin/deploy"
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "Job", "CronJob", "Pod")


def of_template(role: str, name: str, values: dict | None = None) -> list[dict]:
    """The objects of one template, with the defaults and variables of all roles."""
    roles = [templates.of_role(path.name) for path in sorted(templates.ROLES.iterdir())]
    variables = {
        **{key: value for role in roles for key, value in role.items()},
        **copy.deepcopy(templates.GIVEN),
        **templates.CHOSEN,
        "__node_ready_hosts": ["node1"],
        "__discovery_planned": {"hosts": {"node1": {"name": "node1"}}},
        "__networks_used_images": templates.role_vars("networks")["__networks_pinned_images"],
        **(values or {}),
    }
    text = (templates.ROLES / role / "templates" / name).read_text()
    documented = {name: option.get("default") for name, option in templates.options().items()}
    given = {name: value for name, value in variables.items() if name in documented}
    variables["__discovery_read"] = {"variables": {**documented, **given}}
    made = Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))
    return [item for item in yaml.safe_load_all(made) if item]


def by_source() -> dict[str, list[dict]]:
    """{path below the repository: its objects}: the roles' templates and the device plugin's files."""
    found = {}
    for role, name in templates.texts():
        if name.endswith(".yml.j2") and (role, name) != GATHERED:
            found[f"roles/{role}/templates/{name}"] = of_template(role, name)
    for path in sorted(PLUGIN.rglob("*.yaml")):
        items = [item for item in yaml.safe_load_all(path.read_text()) if item]
        patches = [entry["patch"] for item in items for entry in item.get("patches") or () if "patch" in entry]
        items += [made for text in patches for made in [yaml.safe_load(text)] if isinstance(made, dict)]
        found[str(path.relative_to(templates.ROOT))] = items
    return found


def pod_of(item: dict) -> dict:
    """The pod's spec of a workload."""
    spec = item["spec"]
    if item["kind"] == "Pod":
        return spec
    return (spec["jobTemplate"]["spec"] if item["kind"] == "CronJob" else spec)["template"]["spec"]


def workloads() -> dict[str, dict]:
    """{Kind namespace/name: object} of all that runs pods."""
    found = {}
    for items in by_source().values():
        for item in items:
            if item.get("kind") in WORKLOADS and "containers" in pod_of(item):
                meta = item["metadata"]
                found[f"{item['kind']} {meta['namespace']}/{meta['name']}"] = copy.deepcopy(item)
    return found


def tolerates(pod: dict, taint: dict) -> bool:
    """As the scheduler decides it: taint {key, value, effect}."""
    return any(
        (one.get("effect") or taint["effect"]) == taint["effect"]
        and (
            (one.get("operator") == "Exists" and one.get("key") in (None, taint["key"]))
            or (one.get("key"), one.get("value", "")) == (taint["key"], taint["value"])
        )
        for one in pod.get("tolerations") or ()
    )
