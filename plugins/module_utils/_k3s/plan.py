"""k3s on one node: the changed files, and whether they require a start or restart."""

from __future__ import annotations

from .._core.change import Finding, Plan
from ..hca import paths
from . import config as k3s

HIDDEN = "hidden"
_OPTION_FILES = (k3s.CONFIG, k3s.CLUSTER, k3s.EXTRA)


def texts(wanted: dict) -> dict[str, tuple[str, str]]:
    """{path: (text, mode)} of every file except the token.

    wanted: role, options {path: {option: value}}, registries (or empty), token_given (supplied, not generated
    here), takeover_allowed.
    """
    found = {path: (k3s.yaml(options), "0600") for path, options in wanted["options"].items()}
    if wanted["registries"]:
        found[k3s.REGISTRIES] = (k3s.registries(wanted["registries"]), "0600")
    found[k3s.unit_path(wanted["role"])] = (k3s.unit(wanted["role"]), "0644")
    return found


def wanted_of(options: dict) -> dict:
    """The wanted state for the planner, from options of the module k3s_node."""
    wanted = {name: options[name] for name in ("role", "options", "registries", "takeover_allowed")}
    first = options["token_allowed_to_be_made"]
    return {**wanted, "first": first, "token_given": bool(options["token"]) or not first}


def plan(state: dict, wanted: dict, root: str = "/") -> Plan:
    """state: what the module k3s_node reads; see its `read`."""
    made = Plan()
    role = wanted["role"]
    _refuse(made, state, wanted)
    if made.findings:
        return made
    touched = _plan_files(made, state, wanted)
    _plan_token(made, state["token"], wanted["token_given"])
    _plan_links(made, state["links"])
    if state["binary"] and state["binary"]["mode"] != "0755":
        made.change(k3s.BINARY, "mode", state["binary"]["mode"], "0755")
    name, service = f"service {k3s.SERVICES[role]}", state["services"][k3s.SERVICES[role]]
    if root.rstrip("/"):
        made.not_verified.append(f"{root} is a tree of files: {name} is neither enabled nor started")
        return made
    if not service["enabled"]:
        made.change(name, "enable", "disabled", "enabled")
    reasons, now = [], "stopped"
    if service["active"]:
        reasons, now = stale(state, touched), "running"
    elif service["starting"]:
        # It may have been started without a record. It reads what exists at its start, not what comes later.
        reasons, now = sorted(touched | set(state["younger"])), "starting"
    if reasons:
        made.change(name, "restart", f"{now} without: {', '.join(reasons)}", "running with them")
    elif not service["active"]:
        made.change(name, "start", now, "running")
    return made


def stale(state: dict, touched: set[str] = frozenset()) -> list[str]:
    """The inputs of k3s that changed since its start, by the digests recorded when we started it.

    A start by something else is not recorded: files written after it count too.
    """
    started, present = state["started"], state["inputs"]
    changed = {path for path in {*started, *present} if started.get(path) != present.get(path)}
    return sorted(changed | touched | set(state["younger"]))


def _refuse(made: Plan, state: dict, wanted: dict) -> None:
    made.findings += of_role(wanted["role"], state["services"])
    if state["token"]["differs"]:
        step = "rotate it with k3s token rotate on the first server, remove this file on each node and run again; "
        step += "or leave k3s_token empty to keep the one in use"
        made.finding(k3s.TOKEN, "the token in k3s_token", "another one, with which this cluster was created", step)
    if wanted["takeover_allowed"] is not True:
        ours, seen = "a k3s that this collection set up, or none", "a file that this collection did not write"
        step = "set k3s_takeover_allowed: true to replace it (a copy is kept next to it), or leave the node out"
        for path in state["foreign_files"]:
            made.finding(path, ours, seen, step)


def of_role(role: str, services: dict, data: bool = False) -> list[Finding]:
    """Why a node cannot have the role: it has the other one. data: whether it has a server's."""
    server = role == "server"
    other = k3s.SERVICES["agent" if server else "server"]
    told = [word for word in ("active", "starting", "enabled") if services[other][word]]
    if not told and (server or not data):
        return []
    wanted, seen = f"a node that is {'a server' if server else 'an agent'}", f"{other} {(told or ['stopped'])[0]}"
    step = f"{'take it out of' if server else 'leave it in'} the group k3s_servers; to change its role, which k3s "
    step += "cannot do in place, drain the node, run playbooks/reset.yml on it, then run again"
    return [Finding(f"service {other}", wanted, seen, step, "k3s:role")]


def _plan_files(made: Plan, state: dict, wanted: dict) -> set[str]:
    touched = set()
    aim = texts(wanted)
    for path, (text, mode) in aim.items():
        seen = state["files"].get(path)
        if seen is None or seen["content"].strip() != text.strip():
            made.change(path, "write", *_both(path, seen, text))
            touched.add(path)
        elif seen["mode"] != mode:
            made.change(path, "mode", seen["mode"], mode)
    for path in (*_OPTION_FILES, k3s.REGISTRIES):
        seen = state["files"].get(path)
        if path not in aim and seen is not None and ours(seen):
            made.change(path, "remove", HIDDEN if path == k3s.REGISTRIES else seen["content"], "")
            touched.add(path)
    return touched


def _both(path: str, seen: dict | None, text: str) -> tuple[str, str]:
    """The part of a file that a diff may show: nothing of registries.yaml or of foreign files."""
    if path == k3s.REGISTRIES:
        return (HIDDEN if seen else "", f"{HIDDEN}, different text" if seen else HIDDEN)
    return "" if seen is None else seen["content"] if ours(seen) else HIDDEN, text


def ours(seen: dict) -> bool:
    return seen["content"].startswith(paths.HEADER)


def _plan_token(made: Plan, token: dict, given: bool) -> None:
    if not token["present"]:
        made.change(k3s.TOKEN, "write" if given else "generate", "", HIDDEN)
    elif token["mode"] != "0600":
        made.change(k3s.TOKEN, "mode", token["mode"], "0600")


def _plan_links(made: Plan, links: dict) -> None:
    """kubectl, crictl and ctr next to k3s; a foreign program with one of these names stays."""
    for path in k3s.LINKS:
        seen = links.get(path)
        if seen == k3s.BINARY:
            continue
        if seen is None:
            made.change(path, "link", "", k3s.BINARY)
        else:
            made.notes.append(f"{path} is {seen} and stays; use `k3s {path.rpartition('/')[2]}`")
