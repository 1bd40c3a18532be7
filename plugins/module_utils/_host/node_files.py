"""Files, units, kernel modules and sysctls that one role manages on a node.

`read` asks the node; `plan` is pure: state and options in, Plan out.

State:
    files    {path: {mode, content, mtime} or None}
    secrets  {path: {mode, content} or None}
    links    {path of a link that enables a unit: its target or None}
    units    {name: {active: bool, started: seconds since the epoch or None}}, None without systemd
    modules  {name: loaded, loadable, absent or unknown}
    sysctls  {key: running value or None}
    offline  why this kernel must not be touched, or None
    others   {directory: [(name, content)]} of files with the suffixes of an item of `exclusive`
"""

from __future__ import annotations

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import plan_text, seen_file
from .._core.units import SYSTEM, running, shown, started_at
from ..hca import Tree, modules, node

# Replaces the text of a secret in every shown plan.
HIDDEN = "(not shown)\n"
# Suffix of a file that was put aside.
ASIDE = ".gpufabric-rdma-aside"
LOADED, LOADABLE, ABSENT = "loaded", "loadable", "absent"  # built in counts as loaded


_TEXT = {"type": "str", "required": True}
_TEXTS = {"type": "list", "elements": "str", "required": True}
_STRINGS = {"type": "list", "elements": "str", "default": []}


def _rows(**options: dict) -> dict:
    return {"type": "list", "elements": "dict", "default": [], "options": options}


ARGUMENTS = {
    "files": _rows(path=_TEXT, content=_TEXT, mode={"type": "str", "default": "0644"}),
    "secrets": {**_rows(path=_TEXT, content={"type": "str", "no_log": True}), "no_log": False},
    "absent": _STRINGS,
    "units": _rows(
        name=_TEXT,
        present={"type": "bool", "default": True},
        wanted_by={"type": "list", "elements": "str", "default": ["multi-user.target"]},
        running={"type": "bool", "default": True},
        restarted_by=_STRINGS,
    ),
    "kernel_modules": _STRINGS,
    "sysctls": {"type": "dict", "default": {}},
    "exclusive": _rows(
        directory=_TEXT, suffixes=_TEXTS, keep=_TEXTS, allowed={"type": "bool"}, reason=_TEXT, consent=_TEXT
    ),
    "contents": _STRINGS,
    "programs": _STRINGS,
    "root": {"type": "path", "default": "/"},
}
PARTS = ("files", "secrets", "absent", "units", "kernel_modules", "sysctls", "exclusive")
PROPERTIES = ("Id", "ActiveState", "ExecMainStartTimestampMonotonic")


def read(root: str, wanted: dict, run, live: bool | None = None) -> dict:
    """The state, as above. run: of AnsibleModule. live: whether systemd runs there; None to look it up."""
    tree = Tree(root)
    every = [item["path"] for item in wanted["files"]] + wanted["absent"]
    watched = [path for unit in wanted["units"] for path in unit["restarted_by"]]
    names = {path for unit in wanted["units"] for path in links(unit)}
    return {
        "files": {path: file(tree, path) for path in [*every, *watched]},
        "secrets": {item["path"]: file(tree, item["path"]) for item in wanted["secrets"]},
        "links": {path: tree.readlink(path) for path in names},
        "units": _unit_states([unit["name"] for unit in wanted["units"]], run)
        if (running(root) if live is None else live)
        else None,
        "modules": _module_states(tree, wanted["kernel_modules"]),
        "sysctls": {key: _sysctl_value(tree, key) for key in wanted["sysctls"]},
        "offline": kernel_out_of_reach({"node": {"container": node.container(tree)}}, root),
        "others": {item["directory"]: _others(tree, item) for item in wanted["exclusive"]},
    }


def _others(tree: Tree, item: dict) -> list:
    names = [name for name in tree.listdir(item["directory"]) if name.endswith(tuple(item["suffixes"]))]
    return [(name, (file(tree, f"{item['directory']}/{name}") or {"content": ""})["content"]) for name in names]


def file(tree: Tree, path: str):
    seen = seen_file(tree, path)
    return seen and {**seen, "mtime": tree.mtime(path)}


def _unit_states(names: list, run) -> dict:
    if not names:
        return {}
    units = {}
    for fields in shown(run, PROPERTIES, *names):
        units[fields.get("Id")] = {
            "active": fields.get("ActiveState") in ("active", "activating", "reloading"),
            "started": started_at(fields) if fields.get(PROPERTIES[2]) not in (None, "", "0") else None,
        }
    return units


def _module_states(tree: Tree, names: list) -> dict:
    states = {}
    for name, state in (modules.state(tree, names) if names else {}).items():
        can = {True: LOADABLE, False: ABSENT}.get(state["available"], "unknown")
        states[name] = LOADED if state["loaded"] else can
    return states


def _sysctl_value(tree: Tree, key: str):
    value = tree.read(f"/proc/sys/{key.replace('.', '/')}")
    return None if value is None else " ".join(value.split())


def further(root: str, state: dict, wanted: dict) -> dict:
    """What a role asks besides: the paths of missing secrets, texts of files, whether programs run."""
    tree = Tree(root)
    texts = {path: (file(tree, path) or {"content": None})["content"] for path in wanted["contents"]}
    return {
        "missing_secrets": missing_secrets(state, wanted),
        "contents": texts,
        "programs": _programs(tree, wanted["programs"]),
    }


def _programs(tree: Tree, names: list) -> dict:
    """Whether a process of this name runs; the kernel truncates names to 15 characters."""
    comms = {tree.read(f"/proc/{pid}/comm") for pid in tree.listdir("/proc") if pid.isdecimal()} if names else set()
    return {name: name[:15] in comms for name in names}


def links(unit: dict) -> dict[str, str]:
    """The links `systemctl enable` would create: {path: target}."""
    return {f"{SYSTEM}/{target}.wants/{unit['name']}": f"../{unit['name']}" for target in unit["wanted_by"]}


def plan(state: dict, wanted: dict) -> Plan:
    """wanted: the PARTS of ARGUMENTS."""
    made = Plan()
    for item in wanted["exclusive"]:
        _exclusive(made, item, state["others"].get(item["directory"], ()))
    for unit in wanted["units"]:
        # Before its file goes: without the file systemd cannot stop the unit.
        if not unit["present"] and (state["units"] or {}).get(unit["name"], {}).get("active"):
            made.change(unit["name"], "stop", "running", "not running")
    for item in wanted["files"]:
        plan_text(made, item["path"], state["files"].get(item["path"]), item["content"], item["mode"])
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
    """Foreign files in a directory where only ours may apply: put aside on consent, never deleted."""
    for name, content in others:
        path = f"{item['directory']}/{name}"
        if name in item["keep"]:
            continue
        if item["allowed"]:
            made.change(path, "put aside", content, "")
        elif item["allowed"] is None:
            made.finding(
                path,
                f"no file except {', '.join(item['keep'])}",
                f"one that this collection did not write: {item['reason']}",
                f"remove what put it there, or set {item['consent']}: true puts it aside "
                f"({name}{ASIDE}), false leaves it",
            )
        else:
            made.not_applied.append(f"{path} is left as it is ({item['consent']}: false): {item['reason']}")


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
    if found == LOADED:
        return
    if state["offline"]:
        made.not_verified.append(f"module {name} is only loaded at boot: {state['offline']}")
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
        made.not_verified.append(f"sysctl {key} is only set at boot: {state['offline']}")
    else:
        made.change(f"sysctl {key}", "set", running or "not there", value)


def _running(made: Plan, state: dict, unit: dict) -> None:
    if not unit["present"] or not unit["running"]:
        return
    if state["units"] is None:
        made.not_verified.append(f"{unit['name']} only starts at boot: no systemd runs here")
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
