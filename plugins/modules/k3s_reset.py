# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_reset
short_description: Take the cluster layer off a node, and only that
version_added: 0.1.0
description:
  - Stops k3s, its containers, and the units of the cluster layer; then removes links, mounts, network namespaces,
    firewall rules and files that they made, in this order.
  - Removes files by name or by our first line, never a folder that others share; a CNI plugin goes only while it is the
    one that was placed. RV(notes) lists what is left, and why.
  - Unloads no kernel module and never flushes a firewall table.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
"""

EXAMPLES = r"""
- name: Take the cluster off the node
  gpufabric.rdma.k3s_reset:
"""

RETURN = r"""
changes:
  description: What was removed, or would be in check mode.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: What it is about, a path or a name such as C(link cni0).
      type: str
    action:
      description: What happened to it.
      type: str
    before:
      description: What was there.
      type: str
    after:
      description: Empty.
      type: str
findings:
  description: What could not be removed.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: What it is about.
      type: str
    wanted:
      description: What was asked for.
      type: str
    seen:
      description: What was found.
      type: str
    next_step:
      description: What to do about it.
      type: str
    id:
      description: Which of the known findings it is; empty for the others.
      type: str
reboot_reasons:
  description: Always empty; every changing module of the collection returns it.
  returned: success
  type: list
  elements: str
not_applied:
  description: What was left as it is on purpose, with the reason.
  returned: success
  type: list
  elements: str
not_verified:
  description: What could not be done or seen from here, with the reason.
  returned: success
  type: list
  elements: str
notes:
  description: What is left on the node, and why.
  returned: success
  type: list
  elements: str
"""

import itertools
import json
import os
import shutil
import signal
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, failure, finish, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import remove, sha256_of, under
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import SYSTEM, apply_units, must, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import reset as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

KILL_SECONDS = 10
FIREWALLS = ("iptables", "ip6tables")


class Node:
    def __init__(self, root, run, sleep=time.sleep):
        self.root, self._run, self._sleep = root, run, sleep
        self.live = not root.rstrip("/")

    def read(self) -> dict:
        tree = Tree(self.root)
        units, others = self._units(tree)
        files, foreign = self._files(tree)
        return {
            "agent": tree.exists(k3s.unit_path("agent")),
            "services": self._services(tree, units) if self.live else [],
            "units": units,
            "processes": processes(tree) if self.live else [],
            "links": self._links() if self.live else [],
            "mounts": mounts(tree) if self.live else [],
            "netns": [name for name in tree.listdir("/run/netns") if planner.NETNS.fullmatch(name)]
            if self.live
            else [],
            "rules": self._rules() if self.live else {},
            "files": files,
            "folders": [path for path in self._folders(tree) if tree.exists(path)],
            "foreign": foreign,
            "others": others,
        }

    @staticmethod
    def _folders(tree: Tree) -> list[str]:
        """Another Kubernetes on the node has its kubelet and its pods' addresses in the same folders."""
        if tree.exists(planner.OTHER_KUBELET):
            return [path for path in planner.FOLDERS if not path.startswith("/var/lib/cni")]
        return [*planner.FOLDERS, *planner.KUBELET]

    def _units(self, tree: Tree) -> tuple[list[str], list[str]]:
        found, foreign = [], []
        for name in sorted(tree.listdir(SYSTEM)):
            path = f"{SYSTEM}/{name}"
            if not name.endswith(".service") or tree.readlink(path) is not None:
                continue
            if planner.ours(path, tree.read(path)):
                found.append(path)
            elif name in ("k3s.service", "k3s-agent.service"):
                foreign.append(path)
        return found, foreign

    def _services(self, tree: Tree, units: list[str]) -> list[str]:
        names = [os.path.basename(path) for path in units]
        if not names:
            return []
        _code, out, _error = self._run(["systemctl", "show", "--property=Id,ActiveState,UnitFileState", *names])
        found = []
        for block in out.split("\n\n"):
            said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            if said.get("ActiveState") not in (None, "inactive", "failed") or said.get("UnitFileState") == "enabled":
                found.append(said["Id"])
        # k3s before its helpers: a kubelet that still runs would start pods again.
        return sorted(found, key=lambda name: (not name.startswith("k3s"), name))

    def _files(self, tree: Tree) -> tuple[list[str], list[str]]:
        """Our files, and those beside them that are not."""
        found = [path for path in planner.FILES if tree.exists(path)]
        foreign = []
        for path in (k3s.CONFIG, k3s.CLUSTER, k3s.EXTRA, k3s.REGISTRIES):
            content = tree.read(path)
            if content is not None:
                (found if planner.ours(path, content) else foreign).append(path)
        if tree.exists(k3s.BINARY):
            (found if found else foreign).append(k3s.BINARY)
        found += [path for path in k3s.LINKS if tree.readlink(path) in (k3s.BINARY, "k3s")]
        shim = "/etc/cni/net.d/00-multus.conf"
        if planner.is_shim(tree.read(shim)):
            found.append(shim)
        placed, kept = self._plugins(tree)
        others = tree.listdir("/etc/cni/net.d")
        foreign += [f"/etc/cni/net.d/{name}" for name in others if f"/etc/cni/net.d/{name}" not in found]
        foreign += [f"/var/lib/kubelet/{name}" for name in tree.listdir("/var/lib/kubelet")]
        return [*found, *placed], sorted([*(path for path in foreign if path not in planner.KUBELET), *kept])

    def _plugins(self, tree: Tree) -> tuple[list[str], list[str]]:
        """CNI plugins that are still the ones that were placed, with their record; and the others in the folder."""
        try:
            record = json.loads(tree.read(planner.CNI_RECORD) or "{}")
        except ValueError:
            record = {}
        placed, kept = [], []
        for name in tree.listdir(planner.CNI_BINARIES):
            path = f"{planner.CNI_BINARIES}/{name}"
            same = record.get(name) == sha256_of(under(self.root, path)) if name in record else name == "multus-shim"
            (placed if same else kept).append(path)
        return placed + ([planner.CNI_RECORD] if tree.exists(planner.CNI_RECORD) else []), kept

    def _links(self) -> list[str]:
        return [name for name in sorted(os.listdir("/sys/class/net")) if planner.LINKS.fullmatch(name)]

    def _rules(self) -> dict[str, str]:
        found = {}
        for program in FIREWALLS:
            try:
                code, out, _error = self._run([f"{program}-save"])
            except OSError:
                continue
            if code == 0:
                found[program] = out
        return found

    def apply(self, changes):
        yield from apply_units(self.root, changes, self._run, self._carry_out)
        tree = Tree(self.root)
        unshared = [paths for other, paths in planner.EMPTY_UNLESS.items() if not tree.exists(other)]
        for path in itertools.chain(planner.EMPTY, *unshared):
            try:
                os.rmdir(under(self.root, path))
            except OSError:
                pass  # not there, or something of others in it

    def _carry_out(self, change) -> None:
        kind, name = change.object.partition(" ")[::2]
        if change.object.startswith("/"):
            self._remove(change.object)
        elif kind == "service":
            systemctl(self._run, change.object, "disable", "--now", name)
        elif kind == "containers":
            self._kill()
        elif kind == "link":
            must(self._run, change.object, ["ip", "link", "delete", name])
        elif kind == "mount":
            must(self._run, change.object, ["umount", "--lazy", name])
        elif kind == "network":
            must(self._run, change.object, ["ip", "netns", "delete", name.rpartition(" ")[2]])
        else:
            self._drop_rules(name.rpartition(" ")[2])

    def _remove(self, path: str) -> None:
        real = under(self.root, path)
        if os.path.isdir(real) and not os.path.islink(real):
            inside = [entry for entry in mounts(Tree(self.root), any_kind=True) if entry.startswith(f"{path}/")]
            if self.live and inside:
                raise Refused.because(
                    path,
                    "a folder that nothing is mounted in",
                    f"mounted: {', '.join(inside[:5])}",
                    "unmount it (umount PATH) and run again; removing the folder would empty what is mounted there",
                )
            shutil.rmtree(real)
        elif os.path.lexists(real):
            remove(real)

    def _kill(self) -> None:
        for sign, tries in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for _try in range(tries):
                pids = processes(Tree(self.root))
                if not pids:
                    return
                for pid in pids:
                    try:
                        os.kill(pid, sign)
                    except ProcessLookupError:
                        pass
                self._sleep(1)

    def _drop_rules(self, program: str) -> None:
        code, saved, _error = self._run([f"{program}-save"])
        kept = planner.foreign_rules(saved)
        if code or self._run([f"{program}-restore"], kept)[0]:
            raise Refused.because(
                f"rules of {program}",
                "the rules of others kept and ours gone",
                f"{program}-save or {program}-restore failed; nothing of them was changed",
                f"see {program}-save, settle what keeps it from working and run again",
            )


def processes(tree: Tree) -> list[int]:
    """Shims of this cluster's containerd and all that runs below them."""
    parents, shims = {}, set()
    for name in tree.listdir("/proc"):
        if not name.isdecimal():
            continue
        stat = tree.read(f"/proc/{name}/stat") or ""
        words = stat.rpartition(")")[2].split()
        if len(words) > 1:
            parents[int(name)] = int(words[1])
        command = (tree.read_bytes(f"/proc/{name}/cmdline") or b"").split(b"\0")
        if b"containerd-shim" in command[0] and planner.SOCKET.encode() in command:
            shims.add(int(name))
    found = set(shims)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return sorted(found)
        found |= more


def mounts(tree: Tree, any_kind: bool = False) -> list[str]:
    """Mount points of the cluster, or all of them."""
    points = [line.split()[1] for line in (tree.read("/proc/self/mounts") or "").splitlines() if len(line.split()) > 1]
    points = [point.encode().decode("unicode_escape") if "\\" in point else point for point in points]
    return points if any_kind else [point for point in dict.fromkeys(points) if planner.MOUNTS.match(point)]


@guarded
def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    root = module.params["root"]

    def run(argv, text=None):
        return module.run_command(argv, data=text, binary_data=True)

    node = Node(root, run)
    try:
        made, changes = settle(
            read=node.read,
            plan=lambda state: planner.plan(state, root),
            apply=node.apply,
            check_mode=module.check_mode,
        )
    except Refused as refused:
        module.fail_json(**failure(refused))
    finish(module, made, changes)


if __name__ == "__main__":
    main()
