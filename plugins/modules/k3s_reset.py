# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_reset
short_description: Remove the cluster layer, and only that, from a node
version_added: 0.1.0
description:
  - Stops k3s, its containers, and the units of the cluster layer; then removes links, mounts, network namespaces,
    firewall rules and files that they created, in this order.
  - Removes files by name or by our header line, never a shared folder; a CNI plugin is removed only if it is still the
    one we installed. RV(notes) lists what remains, and why.
  - Removes mounts, network namespaces, addresses and rules that belong to a container of this cluster's containerd. No
    link is followed and no other file system entered; a folder that is a mount point is emptied and stays mounted.
  - Refuses a node with another Kubernetes, a folder behind a link, and a folder with a foreign mount in it.
  - Unloads no kernel module and never flushes a firewall table.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  allowed:
    description: Whether the node's part of the cluster may be removed. Without a value it fails if there is anything,
      and lists what would go; C(false) only reports it, as check mode does.
    type: bool
  volumes:
    description: Whether the local volumes of pods, below C(/var/lib/rancher/k3s/storage), go too. Without a value it
      fails if there are any.
    type: bool
  ask:
    description: Whether O(allowed) or O(volumes) without a value is refused. If not set, check mode does not refuse it.
    type: bool
  networks_directory:
    description: Where the node's configurations of attached networks are.
    type: path
    default: /etc/cni/multus/net.d
"""

EXAMPLES = r"""
- name: Remove the cluster from the node, and keep the local volumes
  gpufabric.rdma.k3s_reset:
    allowed: true
    volumes: false
"""

RETURN = r"""
notes: {description: 'What remains on the node, and why.', returned: success, type: list, elements: str}
"""

import contextlib
import ipaddress
import os
import re
import signal
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files as core_files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import programs, units
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import reset as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state as k3s_state
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

KILL_SECONDS = 10
# Made with a file system and never removed: fsck puts there what it finds.
FILE_SYSTEM = "lost+found"


class Node:
    def __init__(self, root, run, sleep=time.sleep, volumes=True, networks=planner.NETWORKS):
        self.root, self._run, self._sleep = os.path.realpath(root), run, sleep
        self._volumes, self._networks = volumes, networks
        # The proof that something is ours, kept for when its folders are gone.
        self._containers: set[str] = set()
        self._netns: set[str] = set()
        self._attached: set[str] = set()
        self.live = not root.rstrip("/")

    def read(self) -> dict:
        tree = Tree(self.root)
        texts = k3s_state.units(tree)
        own_units = [path for path, text in texts.items() if planner.ours(path, text)]
        files, foreign = self._files(tree)
        self._containers |= containers_of(tree)
        self._netns |= networks_of(tree)
        self._attached |= attached_networks(tree, self._networks)
        placed, unproven = cni_state(tree, self._containers, self._attached)
        folders = [path for path in (*planner.FOLDERS, *planner.KUBELET) if self._filled(tree, path)]
        points = mounts(tree) if self.live else []
        netns = [name for name in tree.listdir("/run/netns") if planner.NETNS.fullmatch(name)] if self.live else []
        links, other_links = self._links(tree) if self.live else ([], [])
        rules, unread = self._rules() if self.live else ({}, [])
        return {
            "agent": tree.exists(k3s.unit_path("agent")),
            "services": self._services(own_units) if self.live else [],
            "units": own_units,
            "processes": processes(tree) if self.live else [],
            "links": links,
            "mounts": [point for point in points if planner.MOUNTS.match(point)],
            "netns": [name for name in netns if name in self._netns],
            "rules": rules,
            "unread": unread,
            # The records of CNI plugins go first: our files prove whose they are, to a later run too.
            "files": [*placed, *files],
            "folders": folders,
            "foreign": foreign,
            "unproven": [
                *other_links,
                *(f"network namespace {name}" for name in netns if name not in self._netns),
                *unproven,
            ],
            "others": k3s_state.foreign_units(texts),
            "kubernetes": k3s_state.others(tree),
            "linked": {path: tree.realpath(path) for path in folders if tree.realpath(path) != path},
            "mounted": {path: found for path in folders for found in [self._mounted_in(path, points)] if found},
            "volumes": tree.listdir(planner.VOLUMES) if tree.readlink(planner.VOLUMES) is None else [],
        }

    def _kept(self, path: str) -> set[str]:
        """Names in a folder that stay when it goes."""
        kept = {FILE_SYSTEM} if self.live and path in mounts(Tree(self.root)) else set()
        return kept | ({os.path.basename(planner.VOLUMES)} if path == k3s.DATA and self._volumes is False else set())

    def _filled(self, tree: Tree, path: str) -> bool:
        """Whether there is anything to remove: a mount point stays, and so does what is kept."""
        if tree.readlink(path) is not None:
            return True
        kept = self._kept(path)
        return bool(set(tree.listdir(path)) - kept) if kept else tree.exists(path)

    def _mounted_in(self, path: str, points: list[str]) -> list[str]:
        """Mount points in a folder that none of our containers made."""
        kept = [f"{path}/{name}" for name in self._kept(path)]
        return [
            point
            for point in points
            if point.startswith(f"{path}/")
            and not planner.MOUNTS.match(point)
            and not any(f"{point}/".startswith(f"{place}/") for place in kept)
        ]

    def _services(self, paths: list[str]) -> list[str]:
        names = [os.path.basename(path) for path in paths]
        if not names:
            return []
        running = [
            said["Id"]
            for said in units.shown(self._run, ("Id", "ActiveState", "UnitFileState"), *names)
            if said.get("ActiveState") not in (None, "inactive", "failed") or said.get("UnitFileState") == "enabled"
        ]
        # k3s before its helpers: a running kubelet would restart pods.
        return sorted(running, key=lambda name: (not name.startswith("k3s"), name))

    def _files(self, tree: Tree) -> tuple[list[str], list[str]]:
        """Our files, and foreign ones next to them."""
        own = [path for path in planner.FILES if tree.exists(path)]
        foreign = []
        for path in (k3s.CONFIG, k3s.CLUSTER, k3s.EXTRA, k3s.REGISTRIES):
            content = tree.read(path)
            if content is not None:
                (own if planner.ours(path, content) else foreign).append(path)
        if tree.exists(k3s.BINARY):
            (own if own else foreign).append(k3s.BINARY)
        own += [path for path in k3s.LINKS if tree.readlink(path) in (k3s.BINARY, "k3s")]
        shim = "/etc/cni/net.d/00-multus.conf"
        if '"multus-shim"' in (tree.read(shim) or ""):
            own.append(shim)
        for name in tree.listdir(self._networks):
            (own if name.startswith(planner.ATTACHED) else foreign).append(f"{self._networks}/{name}")
        # What the device plugin and DRA gave to containers; other vendors' specs stay.
        own += [f"{planner.CDI}/{name}" for name in tree.listdir(planner.CDI) if name.startswith(planner.CLAIMED)]
        placed, kept = self._plugins(tree)
        others = tree.listdir("/etc/cni/net.d")
        foreign += [f"/etc/cni/net.d/{name}" for name in others if f"/etc/cni/net.d/{name}" not in own]
        foreign += [f"/var/lib/kubelet/{name}" for name in tree.listdir("/var/lib/kubelet")]
        return [*own, *placed], sorted([*(path for path in foreign if path not in planner.KUBELET), *kept])

    def _plugins(self, tree: Tree) -> tuple[list[str], list[str]]:
        """CNI plugins that are still the ones we installed, with their record; and the others in the folder."""
        record, placed, kept = core_files.recorded(tree, planner.CNI_RECORD), [], []
        for name in tree.listdir(planner.CNI_BINARIES):
            path = f"{planner.CNI_BINARIES}/{name}"
            same = name == "multus-shim"
            if name in record:
                same = record[name] == core_files.sha256_of(core_files.under(self.root, path))
            (placed if same else kept).append(path)
        return placed + ([planner.CNI_RECORD] if tree.exists(planner.CNI_RECORD) else []), kept

    def _links(self, tree: Tree) -> tuple[list[str], list[str]]:
        """Our links, and anything else with one of their names."""
        ours, others = [], []
        subnets = re.findall(r"^FLANNEL_(?:IPV6_)?SUBNET=(\S+)", tree.read(planner.SUBNET) or "", re.MULTILINE)
        for name in sorted(os.listdir("/sys/class/net")):
            if not planner.LINKS.fullmatch(name):
                continue
            proven = bool(subnets) or name == "kube-ipvs0"
            if name == planner.BRIDGE:
                proven = {ipaddress.ip_interface(subnet) for subnet in subnets} & self._addresses(name)
            (ours if proven else others).append(name if proven else f"link {name}")
        return ours, others

    def _addresses(self, name: str) -> set:
        _code, out, _error = self._run(["ip", "-oneline", "address", "show", "dev", name])
        return {ipaddress.ip_interface(text) for text in re.findall(r" inet6? (\S+)", out)}

    def _rules(self) -> tuple[dict[str, int], list[str]]:
        """How many of our rules each program shows, and why others could not be asked."""
        counts, unread = {}, []
        for program in self._firewalls():
            try:
                counts[program] = len(self._read_rules(program)[0])
            except Refused as refused:
                seen = refused.findings[0].seen
                unread.append(f"rules of {program}, which stay until the next boot if they are the cluster's: {seen}")
        if not counts and not unread:
            unread.append("rules of the firewall, which stay until the next boot: no iptables-save and no nft is there")
        return counts, unread

    def _firewalls(self) -> list[str]:
        """The programs to read rules with: the node's iptables programs, or nft if it has none."""
        there = []
        for family in programs.FIREWALLS:
            names = [f"{family}{backend}" for backend in programs.BACKENDS]
            usable = [name for name in names if _found(f"{name}-save") and _found(f"{name}-restore")]
            there += usable[:1] if family in usable else usable
        return there or [program for program in ("nft",) if _found(program)]

    def _read_rules(self, program: str) -> tuple[list, str]:
        """(our rules, the text that removes them)."""
        argv = [_found("nft"), "--json", "list", "ruleset"] if program == "nft" else [_found(f"{program}-save")]
        code, said, error = self._run(argv)
        try:
            if code == 0 and program == "nft":
                commands = planner.nft_commands(said)
                return commands, "".join(f"{command}\n" for command in commands)
            if code == 0:
                return planner.cluster_rules(said, self._containers), planner.foreign_rules(said, self._containers)
        except ValueError:
            error = f"not JSON: {said[:100]}"
        raise _unchanged(program, argv, code, error)

    def apply(self, changes):
        yield from units.apply_units(self.root, changes, self._run, self._carry_out)
        alone = () if Tree(self.root).exists(planner.OTHER_CONTAINERD) else planner.EMPTY_OF_CONTAINERD
        for path in (self._networks, *planner.EMPTY, *alone):
            with contextlib.suppress(OSError):  # absent, or with foreign files in it
                os.rmdir(core_files.under(self.root, path))

    def _carry_out(self, change) -> None:
        kind, name = change.object.partition(" ")[::2]
        if change.object.startswith("/"):
            self._remove(change.object)
        elif kind == "service":
            units.systemctl(self._run, change.object, "disable", "--now", name)
        elif kind == "containers":
            self._kill()
        elif kind == "link":
            units.must(self._run, change.object, ["ip", "link", "delete", name])
        elif kind == "mount":
            if name in mounts(Tree(self.root)):  # its container may have ended with it
                units.must(self._run, change.object, ["umount", "--lazy", name])
        elif kind == "network":
            units.must(self._run, change.object, ["ip", "netns", "delete", name.rpartition(" ")[2]])
        else:
            self._drop_rules(name.rpartition(" ")[2])

    def _remove(self, path: str) -> None:
        real = core_files.under(self.root, path)
        if os.path.isdir(real) and not os.path.islink(real):
            core_files.remove_tree(self.root, path, self._kept(path))
        elif os.path.lexists(real):
            core_files.remove(real)

    def _kill(self) -> None:
        for sign, tries in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for _try in range(tries):
                pids = processes(Tree(self.root))
                if not pids:
                    return
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sign)
                self._sleep(1)

    def _drop_rules(self, program: str) -> None:
        _ours, text = self._read_rules(program)
        argv = [_found("nft"), "-f", "-"] if program == "nft" else [_found(f"{program}-restore")]
        code, _out, error = self._run(argv, text)
        if code:
            raise _unchanged(program, argv, code, error)


def _unchanged(program: str, argv: list, code: int, error: str) -> Refused:
    """Why a program's rules are unchanged."""
    seen = f"{argv[0]}: {' '.join(error.split())[:200] or f'exit status {code}'}; no rule was changed"
    step = f"see {' '.join(argv)}, fix what it reports and run again"
    return Refused.because(f"rules of {program}", "foreign rules kept and ours removed", seen, step)


def _found(program: str) -> str | None:
    """Path of a program: the node's own, else the one that k3s brings."""
    return programs.found(program, programs.BUNDLED)


def containers_of(tree: Tree) -> set[str]:
    """Pods and containers that this cluster's containerd knows, by their IDs."""
    ids = {name for space in tree.listdir(planner.BUNDLES) for name in tree.listdir(f"{planner.BUNDLES}/{space}")}
    for folder in planner.CONTAINERD:
        for plugin in tree.listdir(folder):
            ids.update(tree.listdir(f"{folder}/{plugin}/sandboxes"))
    return ids


def networks_of(tree: Tree) -> set[str]:
    """Names of the network namespaces in which our containers were started."""
    namespaces = set()
    for space in tree.listdir(planner.BUNDLES):
        for name in tree.listdir(f"{planner.BUNDLES}/{space}"):
            spec = core_files.recorded(tree, f"{planner.BUNDLES}/{space}/{name}/config.json")
            spaces = (spec.get("linux") or {}).get("namespaces") or []
            networks = [entry for entry in spaces if entry.get("type") == "network"]
            namespaces |= {os.path.basename(entry.get("path") or "") for entry in networks}
    return namespaces - {""}


def attached_networks(tree: Tree, folder: str) -> set[str]:
    """Names of the networks that our files on the node define."""
    ours = [name for name in tree.listdir(folder) if name.startswith(planner.ATTACHED)]
    return {core_files.recorded(tree, f"{folder}/{name}").get("name") for name in ours} - {None, ""}


def cni_state(tree: Tree, containers: set[str], networks: set[str]) -> tuple[list[str], list[str]]:
    """Paths of what CNI plugins and libcni recorded about our containers, and about others.

    networks: our names. Their folders stay after the last pod, with a lock and the last address handed out.
    """
    ours, others = [], []
    own = {planner.POD_NETWORK, *networks}
    for network in tree.listdir(planner.ADDRESSES):
        folder = f"{planner.ADDRESSES}/{network}"
        names = tree.listdir(folder)
        held = [name for name in names if name != "lock" and not name.startswith("last_reserved_ip")]
        mine = [
            name
            for name in held
            if network == planner.POD_NETWORK
            or (tree.read(f"{folder}/{name}") or "").split("\n")[0].strip() in containers
        ]
        if len(mine) == len(held) and (mine or network in own):
            ours.append(folder)
        else:
            ours += [f"{folder}/{name}" for name in mine]
            others.append(folder)
    for folder in planner.RESULTS:
        for name in tree.listdir(folder):
            mine = name.startswith(f"{planner.POD_NETWORK}-") or not containers.isdisjoint(name.split("-"))
            (ours if mine else others).append(f"{folder}/{name}")
    return ours, others


def processes(tree: Tree) -> list[int]:
    """Shims of this cluster's containerd and all their descendants."""
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
    pids = set(shims)
    while True:
        more = {pid for pid, parent in parents.items() if parent in pids} - pids
        if not more:
            return sorted(pids)
        pids |= more


def mounts(tree: Tree) -> list[str]:
    """All mount points; the kernel writes blanks in them as octal numbers."""
    lines = [line.split() for line in (tree.read("/proc/self/mounts") or "").splitlines()]
    points = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line[1]) for line in lines if len(line) > 1]
    return list(dict.fromkeys(points))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "allowed": {"type": "bool"},
            "volumes": {"type": "bool"},
            "ask": {"type": "bool"},
            "networks_directory": {"type": "path", "default": planner.NETWORKS},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root, allowed, volumes = (module.params[name] for name in ("root", "allowed", "volumes"))
    check_mode = module.check_mode or allowed is False
    ask = not check_mode if module.params["ask"] is None else module.params["ask"] and allowed is not False

    def run(argv, text=None):
        return module.run_command(argv, data=text, binary_data=True)

    def plan(state):
        made = planner.plan(state, root, volumes)
        if ask and (made.changes or made.findings):
            made.findings += planner.consent(state, allowed, volumes)
        return made

    node = Node(root, run, volumes=volumes, networks=module.params["networks_directory"])
    converge(module, node.read, plan, node.apply, check_mode=check_mode)


if __name__ == "__main__":
    main()
