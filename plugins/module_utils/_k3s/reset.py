"""Remove our cluster from a node, in dependency order.

Pure: state in, Plan out. Containers stop before the links and mounts they hold.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection

from .._core.change import Finding, Plan
from .._core.text import listing
from ..hca import paths
from . import address
from . import config as k3s

CNI_BINARIES = "/opt/cni/bin"
CNI_RECORD = "/var/lib/gpufabric-rdma/cni-plugins.json"
SOCKET = "/run/k3s/containerd/containerd.sock"
BUNDLES = "/run/k3s/containerd/io.containerd.runtime.v2.task"
CONTAINERD = ("/run/k3s/containerd", f"{k3s.DATA}/agent/containerd")
SUBNET = "/run/flannel/subnet.env"
POD_NETWORK = "cbr0"  # the name in the role flannel
VOLUMES = f"{k3s.DATA}/storage"
NETWORKS = "/etc/cni/multus/net.d"
ATTACHED = "gpufabric-rdma-"  # prefix of our files there

CDI = "/run/cdi"
CLAIMED = ("gpufabric.io_rdma-shared_", "gpufabric.io_rdma-claim_")  # prefixes of our specs there

# Folders that only this cluster fills.
FOLDERS = (
    "/run/k3s",
    "/run/flannel",
    "/run/multus",
    "/run/gpufabric-rdma",
    "/run/k8s.cni.cncf.io",
    "/var/lib/rancher/k3s",
    "/var/lib/cni/flannel",
    "/var/lib/cni/multus",
    "/var/lib/cni/nv-ipam",
    "/var/lib/cni/rdma-claim",
    "/etc/cni/gpufabric-rdma.d",
    "/etc/gpufabric-rdma",
    "/etc/rdma-device-plugin",
    "/usr/local/lib/rdma-device-plugin",
)
# What a kubelet creates in its folder; anything else there is not ours.
KUBELET = tuple(
    f"/var/lib/kubelet/{name}"
    for name in (
        "actuated_pods_state", "allocated_pods_state", "checkpoints", "cpu_manager_state", "device-plugins",
        "dra_manager_state", "image_manager", "memory_manager_state", "pki", "plugins", "plugins_registry",
        "pod-resources", "pods", "pod_status_manager_state",
    )
)  # fmt: skip
# Where CNI plugins and libcni keep their records of containers, ours and foreign.
ADDRESSES = "/var/lib/cni/networks"
RESULTS = ("/var/lib/cni/cache", "/var/lib/cni/results")
# Data that is lost with the folders, as worded in the question for consent.
_DATA = {
    k3s.DATA: "datastore, certificates, tokens, images",
    "/var/lib/kubelet/pods": "emptyDir and other data of pods",
}
FILES = (
    k3s.KUBECONFIG,
    k3s.TOKEN,
    k3s.RECORD,
    address.CONFIG,
    address.CHECK,
    "/etc/rancher/node/password",
    "/etc/modules-load.d/gpufabric-rdma-pod-network.conf",
    "/etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf",
    "/etc/tmpfiles.d/gpufabric-rdma-multus.conf",
    "/usr/local/libexec/gpufabric-rdma-multus",
    "/usr/local/libexec/gpufabric-rdma-node-ready",
    paths.OWN_VFS_SCRIPT,
    f"{CNI_BINARIES}/rdma-claim",
)
# Written by roles of the host layer, which a reset leaves alone.
_HOST_LAYER = (paths.OWN_LINKS_UNIT, paths.OWN_ROUTES_UNIT)
# Folders that are removed once they are empty.
EMPTY = (
    f"{k3s.DIRECTORY}/config.yaml.d",
    k3s.DIRECTORY,
    "/etc/rancher/node",
    "/etc/rancher",
    "/var/lib/rancher",
    "/var/lib/kubelet",
    ADDRESSES,
    *RESULTS,
    "/var/lib/cni",
    "/etc/cni/net.d",
    NETWORKS,
    "/etc/cni/multus",
    "/etc/cni",
    CNI_BINARIES,
    "/opt/cni",
    "/var/lib/gpufabric-rdma",
)
# Created by the kubelet inside k3s and left empty.
_PLUGINS = "/usr/libexec/kubernetes/kubelet-plugins"
EMPTY += (f"{_PLUGINS}/volume/exec", f"{_PLUGINS}/volume", _PLUGINS, "/usr/libexec/kubernetes")
# Created by containerd and left empty, unless this program reveals a foreign containerd.
OTHER_CONTAINERD = "/usr/bin/containerd"
EMPTY_OF_CONTAINERD = ("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd")
BRIDGE = "cni0"
LINKS = re.compile(rf"{BRIDGE}|flannel\.1|flannel-v6\.1|flannel-wg(-v6)?|kube-ipvs0")
# Mounts of containerd and the kubelet, always below their own folders: a folder with its own file system is the
# administrator's.
MOUNTS = re.compile(
    r"(/run/k3s/containerd|/var/lib/rancher/k3s/agent/(containerd|stargz)"
    r"|/var/lib/kubelet/(pods/[0-9a-f-]{32,36}|plugins/kubernetes\.io))/."
)
NETNS = re.compile(r"cni-[0-9a-f-]{36}")
# Chains of kube-proxy, kube-router (k3s' network policies) and Flannel. Those of CNI plugins are not only ours.
_CHAIN = re.compile(r"(KUBE|FLANNEL)-")
_TABLES = ("kube-proxy", "flannel-ipv4", "flannel-ipv6")
_NAMED = re.compile(r'name: \\"([^"\\]*)\\" id: \\"([^"\\]*)\\"')
_CNI = "CNI-"
_NAMES_CHAIN = ("-A", "--append", "-j", "--jump", "-g", "--goto")


def cluster_rules(saved: str, ours: Collection[str] = ()) -> list[int]:
    """The lines of iptables-save with chains and rules of the cluster.

    ours: the containers of our containerd. CNI plugins write network and container into the rules that jump to their
    chains; chains that several containers share go with the last of them.
    """
    lines = saved.splitlines()
    fields = [_chains(line) for line in lines]
    cni = [{name for name in named if name.startswith(_CNI)} for named in fields]
    entered: dict[bool, set[int]] = {True: set(), False: set()}
    for number, line in enumerate(lines):
        named = _NAMED.search(line) if cni[number] else None
        if named:
            entered[named[1] == POD_NETWORK or named[2] in ours].add(number)
    kept = {name for number in entered[False] for name in cni[number]}
    if kept:
        kept |= {name for names in cni for name in names if name.startswith("CNI-HOSTPORT-")}
    return [
        number
        for number, names in enumerate(fields)
        if any(map(_CHAIN.match, names))
        or number in entered[True]
        or (number not in entered[False] and cni[number] - kept)
    ]


def _chains(line: str) -> list[str]:
    """The chain that a line of iptables-save declares or appends to, and the target chain of a rule."""
    if line.startswith(":"):
        return line[1:].split()[:1]
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word in _NAMES_CHAIN]


def foreign_rules(saved: str, ours: Collection[str] = ()) -> str:
    """The text of iptables-save without the chains and rules of the cluster, for iptables-restore."""
    gone = set(cluster_rules(saved, ours))
    return "".join(f"{line}\n" for number, line in enumerate(saved.splitlines()) if number not in gone)


def nft_commands(listed: str) -> list[str]:
    """One transaction that removes the cluster's tables, chains and rules in `nft --json list ruleset`."""
    items = json.loads(listed)["nftables"]
    tables = [item["table"] for item in items if "table" in item]
    gone = [f"{table['family']} {table['name']}" for table in tables if table["name"] in _TABLES]
    chains = [item["chain"] for item in items if "chain" in item and _CHAIN.match(item["chain"]["name"])]
    jumps = [item["rule"] for item in items if "rule" in item and not _CHAIN.match(item["rule"]["chain"])]
    places = [f"{chain['family']} {chain['table']} {chain['name']}" for chain in chains]
    places = [place for place in places if place.rpartition(" ")[0] not in gone]
    return [
        *(f"delete table {table}" for table in gone),
        *(
            f"delete rule {rule['family']} {rule['table']} {rule['chain']} handle {rule['handle']}"
            for rule in jumps
            if f"{rule['family']} {rule['table']}" not in gone and any(map(_enters_ours, rule["expr"]))
        ),
        *(f"flush chain {place}" for place in places),
        *(f"delete chain {place}" for place in places),
    ]


def _enters_ours(expression: dict) -> bool:
    return any(_CHAIN.match((expression.get(verb) or {}).get("target") or "") for verb in ("jump", "goto"))


def plan(state: dict, root: str = "/", volumes: bool | None = True) -> Plan:
    """The removals, in order.

    state: services, units (our paths), processes, links, mounts, netns, rules {program: number of the cluster's},
    files, folders, foreign (stays), unproven (possibly foreign, stays), unread (why rules could not be read), others
    (units of a k3s that is not ours), kubernetes ({path: owner}), linked ({folder: target}), mounted ({folder: mounts
    in it that belong to no container}), volumes (names), agent (whether the node was one).
    volumes: whether local volumes go; None if not set.
    """
    made = Plan()
    _refuse(made, state)
    if made.findings:
        return made
    for name in state["services"]:
        made.change(f"service {name}", "stop", "running or enabled", "")
    if state["processes"]:
        made.change("containers", "stop", f"{len(state['processes'])} processes", "")
    for name in state["links"]:
        made.change(f"link {name}", "remove", "there", "")
    for path in sorted(state["mounts"], key=len, reverse=True):
        made.change(f"mount {path}", "remove", "there", "")
    for name in state["netns"]:
        made.change(f"network namespace {name}", "remove", "there", "")
    for program, number in state["rules"].items():
        if number:
            made.change(f"rules of {program}", "remove", f"{number} of the cluster", "")
    for path in [*state["units"], *state["files"], *state["folders"]]:
        made.change(path, "remove", "there", "")
    made.notes += left(state, root)
    if volumes is False:
        made.notes += [f"{VOLUMES}/{name} stays: k3s_reset_volumes is false" for name in state["volumes"]]
    made.not_verified += state["unread"]
    return made


def _refuse(made: Plan, state: dict) -> None:
    for path in state["others"]:
        seen = "a foreign unit, whose data a reset would remove too"
        step = "remove that k3s with its own k3s-uninstall.sh, then run again"
        made.finding(path, "a k3s that this collection set up, or none", seen, step)
    for path, name in state["kubernetes"].items():
        wanted = "no other Kubernetes, whose mounts, links and rules have the same names"
        step = f"remove {name} with its own tool, or {path} if nothing else is left of it, then run again"
        made.finding("the cluster layer of the node", wanted, f"{name}, by {path}", step)
    for path, target in state["linked"].items():
        step = "stop k3s, replace the link by a bind mount of the same folder, and run again: the folder is then "
        step += "emptied and stays mounted"
        made.finding(path, "a folder, with no link on the way to it", f"a link leads there: it is {target}", step)
    for path, found in state["mounted"].items():
        step = "unmount it (umount PATH) and run again; the mount's content stays unchanged"
        made.finding(path, "a folder with no mounts except those of containers", f"mounted: {listing(found)}", step)


def consent(state: dict, allowed: bool | None, volumes: bool | None) -> list[Finding]:
    """The consents that the changes of plan() need."""
    local = [f"{VOLUMES}/{name}" for name in state["volumes"]] if volumes is not False else []
    found = []
    if allowed is None:
        folders = [f"{path} ({what})" for path, what in _DATA.items() if path in state["folders"]]
        seen = "that k3s_reset_allowed is not set. All pods of the node would end, with its last server the cluster's "
        seen += f"datastore is lost, and this data goes: {', '.join([*folders, *local]) or 'none'}"
        step = "look at it with --check --diff, then run again with -e k3s_reset_allowed=true"
        found.append(Finding("the cluster layer of the node", "it gone", seen, step))
    if volumes is None and local:
        seen = f"that k3s_reset_volumes is not set, and {', '.join(local)}"
        step = "run again with -e k3s_reset_volumes=false to keep them where they are, or with true to delete them"
        found.append(Finding("local volumes of pods", "whether they go with the cluster", seen, step))
    return found


def left(state: dict, root: str) -> list[str]:
    """What stays, and why: foreign files, and state that only a reboot clears."""
    stays = [f"{path} stays: it is not ours" for path in state["foreign"]]
    stays += [f"{name} stays: nothing shows that this cluster made it" for name in state["unproven"]]
    if root.rstrip("/"):
        return stays
    stays.append(
        "kernel modules and sysctls stay unchanged until the next boot: no module is unloaded under running work"
    )
    stays.append(
        "the host layer stays (drop-ins with LimitMEMLOCK, modules-load.d, modprobe.d): see playbooks/host.yml"
    )
    if state["agent"]:
        stays.append("the cluster may still list this node: k3s kubectl delete node NAME on a remaining server")
    return stays


def ours(path: str, content: str | None) -> bool:
    """Whether a unit or configuration file was written by this collection and belongs to the cluster."""
    return bool(content) and content.startswith(paths.HEADER) and path not in _HOST_LAYER
