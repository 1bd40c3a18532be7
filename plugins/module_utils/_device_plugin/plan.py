"""The device plugin as a service on a node: actual against wanted state. Pure: state and options in, Plan out."""

from __future__ import annotations

import json

from .._core.change import Finding, Plan
from .._core.files import plan_text

NAME = "rdma-device-plugin"
SERVICE = f"{NAME}.service"
HOME = f"/usr/local/lib/{NAME}"
CODE = f"{HOME}/plugin.pyz"
CODE_SUM = f"{CODE}.sha256"
VENV = f"{HOME}/venv"
STAMP = f"{VENV}/packages.txt"
CONFIG = f"/etc/{NAME}/config.json"
KUBECONFIG = f"/etc/{NAME}/kubeconfig"
TOKEN = f"/etc/{NAME}/token"
UNIT = f"/etc/systemd/system/{SERVICE}"
ENABLED = f"/etc/systemd/system/multi-user.target.wants/{SERVICE}"
OBJECT = f"service {NAME}"
GO, OURS = "the Go plugin", "another copy of this plugin"


def rivals(state: dict, names: list[str]) -> list[dict]:
    """The other plugins on the node that serve one of these resources, or unknown resources."""
    return [rival for rival in state["rivals"] if rival["names"] is None or set(rival["names"]) & set(names)]


def in_pods(state: dict, wanted: dict) -> list[str]:
    """Plugins in pods that the API server has to end before this one is installed, with consent; as objects."""
    goes = wanted["present"] and wanted["migrate_allowed"]
    others = rivals(state, wanted["names"]) if goes else []
    return [f"process {rival['pid']} ({rival['kind']})" for rival in others if rival["pod"]]


def plan(state: dict, wanted: dict) -> Plan:
    """state: see _device_plugin.node.read. wanted: present; and, if true: code (sha256), stamp, config, unit
    (texts), names (of the resources), wheels_missing (packages without a wheel for this node), from_index,
    migrate_allowed, kubeconfig (None if the plugin does not need the API server; else source, the kubelet's own,
    and server, which overrides that one's).
    """
    made = Plan()
    if not wanted["present"]:
        _absent(state, made)
        return made
    if _kept_out(state, wanted, made):
        return made
    _requirements(state, wanted, made)
    if made.findings:
        return made
    if state["code"] != wanted["code"]:
        made.change(CODE, "install", _sum(state["code"]), _sum(wanted["code"]))
    if state["stamp"] != wanted["stamp"]:
        made.change(VENV, "install", state["stamp"], wanted["stamp"])
    plan_text(made, CONFIG, state["config"], wanted["config"])
    _credential(state, wanted["kubeconfig"], made)
    plan_text(made, UNIT, state["unit"], wanted["unit"])
    if not state["enabled"]:
        made.change(ENABLED, "link", "", UNIT)
    _service(state, made)
    return made


def _kept_out(state: dict, wanted: dict, made: Plan) -> bool:
    """Another plugin serves the same resource: needs consent. True when ours must not be installed now."""
    others = rivals(state, wanted["names"])
    if not others:
        return False
    allowed = wanted["migrate_allowed"]
    if allowed is None:
        for rival in others:
            made.finding(
                f"process {rival['pid']} ({rival['kind']}, {rival['where']})",
                "no other plugin that serves " + _names(rival, wanted["names"]),
                f"it runs, with {rival['config']}",
                "set device_plugin_migrate_allowed: true to stop it first and take over (running pods keep their "
                "devices, new ones wait a few seconds), false to leave it and install nothing, or rename the "
                "resources",
            )
        return True
    if not allowed:
        made.not_applied += [
            f"{rival['kind']} ({rival['where']}, process {rival['pid']}) keeps serving "
            f"{_names(rival, wanted['names'])}: device_plugin_migrate_allowed is false"
            for rival in others
        ]
        return True
    # A pod is deleted through the API server, not here.
    pods = [rival for rival in others if rival["pod"]]
    if pods:
        made.notes += [
            f"{rival['kind']} serves {_names(rival, wanted['names'])} in a pod (process {rival['pid']}): its DaemonSet "
            "must be removed before anything is installed here"
            for rival in pods
        ]
        return True
    for rival in others:
        if rival["unit"]:
            made.change(f"unit {rival['unit']}", "stop and disable", "active", "inactive")
        else:
            obj, seen = f"process {rival['pid']} ({rival['kind']})", "one that neither systemd nor a kubelet started"
            step = f"stop it the way it was started (its program is {rival['program']}) and run again"
            made.finding(obj, "a unit or a DaemonSet that can stop it", seen, step)
    return False


def _names(rival: dict, names: list[str]) -> str:
    shared = sorted(set(names) & set(rival["names"])) if rival["names"] is not None else names
    return ", ".join(shared)


def _requirements(state: dict, wanted: dict, made: Plan) -> None:
    if state["stamp"] == wanted["stamp"]:
        return
    if wanted["wheels_missing"]:
        obj, wish = f"Python {state['python']} on {state['machine']}", ", ".join(wanted["wheels_missing"])
        step = "set ansible_python_interpreter to a Python from 3.9 to 3.14, or device_plugin_mode: daemonset"
        seen = "none in lock/artifacts.yml for this Python and architecture"
        made.finding(obj, f"a locked wheel of {wish}", seen, step)
    elif wanted["from_index"] and not state["ensurepip"]:
        made.findings.append(without_ensurepip(state["python"]))


def without_ensurepip(python: str) -> Finding:
    return Finding(
        f"Python {python} of the node",
        "the module ensurepip, to create the plugin's virtual environment",
        "not installed",
        "run ansible-playbook gpufabric.rdma.bundle -e bundle_dir=FOLDER and set k3s_bundle_dir to it (the "
        "libraries come from there), or install the distribution's package for it (Debian, Ubuntu: python3-venv)",
    )


def _credential(state: dict, wanted: dict | None, made: Plan) -> None:
    """The kubeconfig of the plugin: the API server and the CA of the kubelet, and a separate token."""
    if wanted is None:
        for path, name in ((KUBECONFIG, "kubeconfig"), (TOKEN, "token")):
            if state[name] is not None:
                made.change(path, "remove", state[name]["content"], "")
        return
    cluster = state["clusters"].get(wanted["source"])
    if cluster is None:
        made.not_verified.append(
            f"{KUBECONFIG} is not written: the kubelet's kubeconfig {wanted['source']} is missing or has no "
            "server, so the node has not joined a cluster; until then the plugin serves nothing over DRA. Run again "
            "once it has"
        )
        return
    reached = {**cluster, "server": wanted["server"] or cluster["server"]}
    plan_text(made, KUBECONFIG, state["kubeconfig"], kubeconfig(reached))


def kubeconfig(cluster: dict) -> str:
    """The file as text, without secrets. It is JSON, which is also YAML."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    return json.dumps(document, indent=2) + "\n"


def _service(state: dict, made: Plan) -> None:
    service = state["service"]
    if service is None:
        made.not_verified.append(f"{OBJECT}: no systemd to start it; it starts with the node")
        return
    # A changed config is not among these: the plugin rereads it, and running allocations are not disturbed.
    replaced = {change.object for change in made.changes} & {CODE, VENV, UNIT, KUBECONFIG}
    if not service["active"]:
        made.change(OBJECT, "start", service["state"], "active")
    elif replaced or service["stale"]:
        why = ", ".join(sorted(replaced)) if replaced else "deleted code or unit"
        made.change(OBJECT, "restart", f"running with the old {why}" if replaced else f"running with {why}", "active")


def _absent(state: dict, made: Plan) -> None:
    service = state["service"]
    if service and service["active"]:
        made.change(OBJECT, "stop", "active", "inactive")
    if state["enabled"]:
        made.change(ENABLED, "unlink", UNIT, "")
    for path, name in ((UNIT, "unit"), (KUBECONFIG, "kubeconfig"), (TOKEN, "token"), (CONFIG, "config")):
        seen = state[name]
        if seen is not None:
            made.change(path, "remove", seen["content"], "")
    if state["home"]:
        made.change(HOME, "remove", "code and virtual environment", "")


def _sum(value: str | None) -> str:
    return f"sha256 {value}" if value else ""
