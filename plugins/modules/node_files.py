# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Manage files, units, kernel modules and sysctls of one role on a node in one call
version_added: 0.1.0
description:
  - Writes files atomically, enables and runs units, loads kernel modules, sets sysctls, and reads the result back.
  - A unit is restarted when a file it was started from is newer than its start, even if an earlier run was
    interrupted in between.
  - Running and persisted values are separate. The caller passes the files for the boot as O(files);
    O(kernel_modules) and O(sysctls) set the running kernel.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  files:
    description:
      - The complete files.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path on the node., type: str, required: true}
      content: {description: The text., type: str, required: true}
      mode: {description: 'Its permissions, four octal digits.', type: str, default: '0644'}
  secrets:
    description:
      - Files with mode 0600 whose text appears in no output.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path on the node., type: str, required: true}
      content:
        description: The text. If not set, the file stays unchanged; RV(missing_secrets) lists missing ones.
        type: str
  absent: {description: Files that must not exist., type: list, elements: str, default: []}
  units:
    description:
      - Units of the system manager, whose files are among O(files).
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the unit with its type., type: str, required: true}
      present:
        description: Whether it is wanted. V(false) stops and disables it; list its file in O(absent) then.
        type: bool
        default: true
      wanted_by: {description: Units that start it., type: list, elements: str, default: [multi-user.target]}
      running: {description: Whether it must run now., type: bool, default: true}
      restarted_by:
        description: Files besides the unit's own that it reads when it starts.
        type: list
        elements: str
        default: []
  kernel_modules: {description: Kernel modules to load now., type: list, elements: str, default: []}
  sysctls: {description: 'Kernel parameters to set now, such as V(net.ipv4.ip_forward).', type: dict, default: {}}
  exclusive:
    description:
      - Directories in which no foreign file may take effect.
    type: list
    elements: dict
    default: []
    suboptions:
      directory: {description: The directory., type: str, required: true}
      suffixes: {description: Suffixes of the files that take effect., type: list, elements: str, required: true}
      keep: {description: Names that may exist., type: list, elements: str, required: true}
      allowed:
        description:
          - What to do with the others. If not set, the module fails and names them; V(true) renames each so that it no
            longer takes effect; V(false) leaves and reports them.
        type: bool
      reason: {description: The consequence of leaving them., type: str, required: true}
      consent: {description: Name of the variable that gives consent., type: str, required: true}
  contents: {description: Files whose text to return in RV(contents)., type: list, elements: str, default: []}
  programs:
    description:
      - Names of programs to look for among the running processes, returned in RV(programs).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Load br_netfilter now and at boot
  gpufabric.rdma.node_files:
    files:
      - path: /etc/modules-load.d/example.conf
        content: |
          br_netfilter
    kernel_modules: [br_netfilter]
    sysctls:
      net.bridge.bridge-nf-call-iptables: "1"
"""

RETURN = r"""
changes:
  description:
    - What was changed, or would be in check mode, each with C(object), C(action), C(before) and C(after). The content
      of a secret is never in it.
  returned: always
  type: list
  elements: dict
findings:
  description: Why the node is not as wanted, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: always
  type: list
  elements: dict
not_applied:
  description: What was left alone on purpose, with the reason.
  returned: success
  type: list
  elements: str
not_verified:
  description: What could not be done or checked from here, with the reason.
  returned: success
  type: list
  elements: str
missing_secrets:
  description: Paths of O(secrets) that do not exist and were given no content.
  returned: success
  type: list
  elements: str
contents:
  description: Each path of O(contents) with its text, null where there is no such file.
  returned: success
  type: dict
programs: {description: Each name of O(programs) with whether such a process runs., returned: success, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, converge, kernel_out_of_reach
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import (
    apply_file,
    rename,
    set_attribute,
    under,
    write,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, must, running, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import node_files as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, modules, node, paths

PROPERTIES = ("Id", "ActiveState", "ExecMainStartTimestamp")


def read(root: str, wanted: dict, run, live: bool | None = None) -> dict:
    tree = Tree(root)
    every = [item["path"] for item in wanted["files"]] + wanted["absent"]
    watched = [path for unit in wanted["units"] for path in unit["restarted_by"]]
    names = {path for unit in wanted["units"] for path in planner.links(unit)}
    return {
        "files": {path: _file(tree, path) for path in [*every, *watched]},
        "secrets": {item["path"]: _file(tree, item["path"]) for item in wanted["secrets"]},
        "links": {path: tree.readlink(path) for path in names},
        "units": _units([unit["name"] for unit in wanted["units"]], run)
        if (running(root) if live is None else live)
        else None,
        "modules": _modules(tree, wanted["kernel_modules"]),
        "sysctls": {key: _sysctl(tree, key) for key in wanted["sysctls"]},
        "offline": kernel_out_of_reach({"node": {"container": node.container(tree)}}, root),
        "others": {item["directory"]: _others(tree, item) for item in wanted["exclusive"]},
    }


def _others(tree: Tree, item: dict) -> list:
    names = [name for name in tree.listdir(item["directory"]) if name.endswith(tuple(item["suffixes"]))]
    return [(name, (_file(tree, f"{item['directory']}/{name}") or {"content": ""})["content"]) for name in names]


def _file(tree: Tree, path: str):
    data, mode = tree.read_bytes(path), tree.mode(path)
    if data is None or mode is None:
        return None
    return {"content": data.decode("utf-8", "replace"), "mode": f"{mode:04o}", "mtime": tree.mtime(path)}


def _units(names: list, run) -> dict:
    if not names:
        return {}
    code, out, _error = run(
        ["systemctl", "show", "--timestamp=unix", *(f"--property={key}" for key in PROPERTIES), *names]
    )
    units = {}
    for block in out.split("\n\n") if code == 0 else ():
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        started = fields.get("ExecMainStartTimestamp", "").lstrip("@")
        units[fields.get("Id")] = {
            "active": fields.get("ActiveState") in ("active", "activating", "reloading"),
            "started": int(started) if started.isdecimal() else None,
        }
    return units


def _modules(tree: Tree, names: list) -> dict:
    if not names:
        return {}
    catalogue = modules.Catalogue(tree, node.kernel(tree))
    states = {}
    for name in names:
        if tree.isdir(f"/sys/module/{name.replace('-', '_')}"):
            states[name] = planner.LOADED
        elif name.replace("-", "_") in catalogue.builtin:
            states[name] = planner.BUILTIN
        else:
            states[name] = {True: planner.LOADABLE, False: planner.ABSENT}.get(catalogue.available(name), "unknown")
    return states


def _sysctl(tree: Tree, key: str):
    value = tree.read(f"/proc/sys/{key.replace('.', '/')}")
    return None if value is None else " ".join(value.split())


def programs(root: str, names: list) -> dict:
    """Whether a process of that name runs; the kernel truncates names to 15 characters."""
    tree = Tree(root)
    comms = {tree.read(f"/proc/{pid}/comm") for pid in tree.listdir("/proc") if pid.isdecimal()} if names else set()
    return {name: name[:15] in comms for name in names}


def apply(changes, wanted: dict, root: str, run, live: bool | None = None):
    """Files and the kernel first, then the units."""
    modes = {item["path"]: int(item["mode"], 8) for item in wanted["files"]}
    contents = {item["path"]: item["content"] for item in wanted["secrets"]}

    def act(change: Change) -> None:
        _carry_out(change, modes, contents, root, run)

    starts = [change for change in changes if change.action in ("start", "restart")]
    rest = [change for change in changes if change not in starts]
    yield from apply_units(root, rest, run, act, starting=bool(starts), live=live)
    for change in starts:
        systemctl(run, change.object, change.action, change.object)
        yield change


def _carry_out(change: Change, modes: dict, contents: dict, root: str, run) -> None:
    path = under(root, change.object)
    if change.action == "write secret":
        write(path, contents[change.object], 0o600)
    elif change.action == "stop":
        systemctl(run, change.object, "stop", change.object)
    elif change.action == "put aside":
        rename(path, path + planner.ASIDE)
    elif change.action == "load":
        must(run, change.object, ["modprobe", "--", change.object.partition(" ")[2]])
    elif change.action == "set":
        set_attribute(under(root, "/proc/sys/" + change.object.partition(" ")[2].replace(".", "/")), change.after)
    else:
        apply_file(root, change, modes.get(change.object, paths.MODE))


_PATH = {"type": "str", "required": True}
_STRINGS = {"type": "list", "elements": "str", "default": []}
ARGUMENTS = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": _PATH,
            "content": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
        },
    },
    "secrets": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "no_log": False,
        "options": {"path": _PATH, "content": {"type": "str", "no_log": True}},
    },
    "absent": _STRINGS,
    "units": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "present": {"type": "bool", "default": True},
            "wanted_by": {"type": "list", "elements": "str", "default": ["multi-user.target"]},
            "running": {"type": "bool", "default": True},
            "restarted_by": _STRINGS,
        },
    },
    "kernel_modules": _STRINGS,
    "sysctls": {"type": "dict", "default": {}},
    "exclusive": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "directory": _PATH,
            "suffixes": {"type": "list", "elements": "str", "required": True},
            "keep": {"type": "list", "elements": "str", "required": True},
            "allowed": {"type": "bool"},
            "reason": {"type": "str", "required": True},
            "consent": {"type": "str", "required": True},
        },
    },
    "contents": _STRINGS,
    "programs": _STRINGS,
    "root": {"type": "path", "default": "/"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    root = module.params["root"]
    parts = ("files", "secrets", "absent", "units", "kernel_modules", "sysctls", "exclusive")
    wanted = {key: module.params[key] for key in parts}
    state: dict = {}

    def current() -> dict:
        state.clear()
        state.update(read(root, wanted, module.run_command))
        return state

    def more(_decided, _changes) -> dict:
        tree = Tree(root)
        return {
            "missing_secrets": planner.missing_secrets(state, wanted),
            "contents": {
                path: (_file(tree, path) or {"content": None})["content"] for path in module.params["contents"]
            },
            "programs": programs(root, module.params["programs"]),
        }

    converge(
        module,
        read=current,
        plan=lambda state: planner.plan(state, wanted),
        apply=lambda changes: apply(changes, wanted, root, module.run_command),
        more=more,
    )


if __name__ == "__main__":
    main()
