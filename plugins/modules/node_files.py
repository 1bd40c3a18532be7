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
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  files:
    description: The complete files.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path on the node., type: str, required: true}
      content: {description: The text., type: str, required: true}
      mode: {description: 'Its permissions, four octal digits.', type: str, default: '0644'}
  secrets:
    description: Files with mode 0600 whose text appears in no output.
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
    description: Units of the system manager, whose files are among O(files).
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
    description: Directories in which no foreign file may take effect.
    type: list
    elements: dict
    default: []
    suboptions:
      directory: {description: The directory., type: str, required: true}
      suffixes: {description: Suffixes of the files that take effect., type: list, elements: str, required: true}
      keep: {description: Names that may exist., type: list, elements: str, required: true}
      allowed:
        description: What to do with the others. If not set, the module fails and lists them; V(true) renames each so
          that it no longer takes effect; V(false) leaves and reports them.
        type: bool
      reason: {description: The consequence of leaving them., type: str, required: true}
      consent: {description: Name of the variable that gives consent., type: str, required: true}
  contents: {description: Files whose text to return in RV(contents)., type: list, elements: str, default: []}
  programs:
    description: Names of programs to look for among the running processes, returned in RV(programs).
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
missing_secrets:
  description: Paths of O(secrets) that do not exist and were given no content.
  returned: success
  type: list
  elements: str
contents:
  description: Each path of O(contents) with its text, null if there is no such file.
  returned: success
  type: dict
programs: {description: Each name of O(programs) with whether such a process runs., returned: success, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import (
    apply_file,
    rename,
    set_attribute,
    under,
    write,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, must, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import node_files as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths


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


def main() -> None:
    module = AnsibleModule(argument_spec=planner.ARGUMENTS, supports_check_mode=True)
    root = module.params["root"]
    wanted = {key: module.params[key] for key in planner.PARTS}
    state: dict = {}

    def current() -> dict:
        state.clear()
        state.update(planner.read(root, wanted, module.run_command))
        return state

    converge(
        module,
        read=current,
        plan=lambda state: planner.plan(state, wanted),
        apply=lambda changes: apply(changes, wanted, root, module.run_command),
        more=lambda _decided, _changes: planner.further(root, state, module.params),
    )


if __name__ == "__main__":
    main()
