"""Files, units, kernel modules and sysctls that one role manages on a node.

PRIVATE to the collection. Pure: state and options in, Plan out.

State, as the module reads it:
    files    {path: {mode, content, mtime} or None}
    secrets  {path: {mode, content} or None}
    links    {path of a link that enables a unit: its target or None}
    units    {name: {active: bool, started: seconds since the epoch or None}}, None where no systemd runs
    modules  {name: loaded, builtin, loadable, absent or unknown}
    sysctls  {key: running value or None}
    offline  why this kernel must not be touched, or None
    others   {directory: [(name, content)]} of files with the suffixes of an item of `exclusive`
"""

from __future__ import annotations

from .._core.change import Plan
from .._core.units import SYSTEM

# Replaces the text of a secret wherever a plan is shown.
HIDDEN = "(not shown)\n"
# Suffix of a file that is put aside.
ASIDE = ".gpufabric-rdma-aside"
LOADED, BUILTIN, LOADABLE, ABSENT = "loaded", "builtin", "loadable", "absent"


def links(unit: dict) -> dict[str, str]:
    """The links `systemctl enable` would create: {path: target}."""
    return {f"{SYSTEM}/{target}.wants/{unit['name']}": f"../{unit['name']}" for target in unit["wanted_by"]}


def plan(state: dict, wanted: dict) -> Plan:
    """wanted: files [{path, content, mode}], secrets [{path, content or None}], absent [path],
    units [{name, present, wanted_by, running, restarted_by: [path]}], kernel_modules [name], sysctls {key: value},
    exclusive [{directory, suffixes, keep, allowed, reason, consent}].
    """
    made = Plan()
    for item in wanted["exclusive"]:
        _exclusive(made, item, state["others"].get(item["directory"], ()))
    for unit in wanted["units"]:
        _stopped(made, state, unit)
    for item in wanted["files"]:
        _file(made, item["path"], state["files"].get(item["path"]), item["content"], item["mode"])
    for item in wanted["secrets"]:
        _secret(made, item, state["secrets"].get(item["path"]))
    _units_enabled(made, state, wanted["units"])
    for path in wanted["absent"]:
        found = state["files"].get(path)
        if found:
            made.change(path, "remove", found["content"], "")
    for name in wanted["kernel_modules"]:
        _module(made, name, state)
    for key, value in sorted(wanted["sysctls"].items()):
        _sysctl(made, key, str(value), state)
    for unit in wanted["units"]:
        _running(made, state, unit)
    return made


def missing_secrets(state: dict, wanted: dict) -> list[str]:
    """Paths of secrets that are missing on the node and were given no content."""
    return [
        item["path"] for item in wanted["secrets"] if item["content"] is None and not state["secrets"].get(item["path"])
    ]


def _exclusive(made: Plan, item: dict, others) -> None:
    """Other files in a directory where only ours may apply: put aside on consent, never deleted."""
    for name, content in others:
        path = f"{item['directory']}/{name}"
        if name in item["keep"]:
            continue
        if item["allowed"]:
            made.change(path, "put aside", content, "")
        elif item["allowed"] is None:
            made.finding(
                path,
                f"no file beside {', '.join(item['keep'])}",
                f"one that this collection did not write: {item['reason']}",
                f"remove what put it there, or set {item['consent']}: true puts it aside "
                f"({name}{ASIDE}), false leaves it",
            )
        else:
            made.not_applied.append(f"{path} is left as it is ({item['consent']}: false): {item['reason']}")


def _file(made: Plan, path: str, found: dict | None, content: str, mode: str) -> None:
    if found is None:
        made.change(path, "write", "", content)
    elif found["content"] != content:
        made.change(path, "write", found["content"], content)
    elif found["mode"] != mode:
        made.change(path, "mode", found["mode"], mode)


def _secret(made: Plan, item: dict, found: dict | None) -> None:
    if item["content"] is not None and (found is None or found["content"] != item["content"]):
        made.change(item["path"], "write secret", HIDDEN if found else "", HIDDEN)
    elif found and found["mode"] != "0600":
        made.change(item["path"], "mode", found["mode"], "0600")


def _units_enabled(made: Plan, state: dict, units: list[dict]) -> None:
    for unit in units:
        for path, target in links(unit).items():
            found = state["links"].get(path)
            if not unit["present"]:
                if found:
                    made.change(path, "unlink", found, "")
            elif found != target:
                made.change(path, "link", found or "", target)


def _module(made: Plan, name: str, state: dict) -> None:
    found = state["modules"].get(name)
    if found in (LOADED, BUILTIN):
        return
    if state["offline"]:
        made.not_verified.append(f"module {name} is loaded at boot only: {state['offline']}")
    elif found == ABSENT:
        made.finding(
            f"module {name}",
            "a kernel that includes it",
            "neither built in nor below /lib/modules of the running kernel",
            "install the rest of the kernel's modules (RHEL 10: kernel-modules-extra-$(uname -r); Ubuntu: "
            "linux-modules-extra-$(uname -r)), or reboot if the kernel was upgraded, and run again",
        )
    else:
        made.change(f"module {name}", "load", "not loaded", LOADED)


def _sysctl(made: Plan, key: str, value: str, state: dict) -> None:
    running = state["sysctls"].get(key)
    if running == value:
        return
    if state["offline"]:
        made.not_verified.append(f"sysctl {key} is set at boot only: {state['offline']}")
    else:
        made.change(f"sysctl {key}", "set", running or "not there", value)


def _stopped(made: Plan, state: dict, unit: dict) -> None:
    """Before its file goes: without it systemd no longer knows how to stop the unit."""
    if not unit["present"] and (state["units"] or {}).get(unit["name"], {}).get("active"):
        made.change(unit["name"], "stop", "running", "not running")


def _running(made: Plan, state: dict, unit: dict) -> None:
    if not unit["present"] or not unit["running"]:
        return
    if state["units"] is None:
        made.not_verified.append(f"{unit['name']} starts at boot only: no systemd runs here")
        return
    found = state["units"].get(unit["name"]) or {"active": False, "started": None}
    read = [f"{SYSTEM}/{unit['name']}", *unit["restarted_by"]]
    touched = [change.object for change in made.changes if change.object in read and change.action != "mode"]
    newer = [
        path
        for path in read
        if found["started"] is not None and ((state["files"].get(path) or {}).get("mtime") or 0) > found["started"]
    ]
    if not found["active"]:
        made.change(unit["name"], "start", "not running", "running")
    elif touched or newer:
        made.change(unit["name"], "restart", "started before " + ", ".join(touched or newer), "running")
