# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking the cluster off a node: what is ours, in the order in which it lets go.

PRIVATE to the collection. Pure: what was found in, Plan out. Containers end before the links and mounts that they hold.
"""

from __future__ import annotations

import re

from .._core.change import Plan
from ..hca import paths
from . import config as k3s

CNI_BINARIES = "/opt/cni/bin"
CNI_RECORD = "/var/lib/gpufabric-rdma/cni-plugins.json"
SOCKET = "/run/k3s/containerd/containerd.sock"

# Folders that only this cluster fills.
FOLDERS = (
    "/run/k3s",
    "/run/flannel",
    "/run/multus",
    "/run/gpufabric-rdma",
    "/run/k8s.cni.cncf.io",
    "/var/lib/rancher/k3s",
    "/var/lib/cni/cache",
    "/var/lib/cni/flannel",
    "/var/lib/cni/multus",
    "/var/lib/cni/networks",
    "/var/lib/cni/nv-ipam",
    "/var/lib/cni/results",
    "/etc/cni/gpufabric-rdma.d",
    "/etc/gpufabric-rdma",
    "/etc/rdma-device-plugin",
    "/usr/local/lib/rdma-device-plugin",
)
# What a kubelet puts into its folder; anything else in there is someone's own.
KUBELET = tuple(
    f"/var/lib/kubelet/{name}"
    for name in (
        "actuated_pods_state", "allocated_pods_state", "checkpoints", "cpu_manager_state", "device-plugins",
        "dra_manager_state", "image_manager", "memory_manager_state", "pki", "plugins", "plugins_registry",
        "pod-resources", "pods", "pod_status_manager_state",
    )
)  # fmt: skip
FILES = (
    k3s.KUBECONFIG,
    k3s.TOKEN,
    k3s.RECORD,
    "/etc/rancher/node/password",
    "/etc/modules-load.d/gpufabric-rdma-pod-network.conf",
    "/etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf",
    "/etc/tmpfiles.d/gpufabric-rdma-multus.conf",
    "/usr/local/libexec/gpufabric-rdma-multus",
    "/usr/local/libexec/gpufabric-rdma-node-ready",
)
# Written by roles of the host layer, which this leaves as it is.
_HOST_LAYER = (paths.OWN_LINKS_UNIT,)
# Emptied folders that go with what was in them.
EMPTY = (
    f"{k3s.DIRECTORY}/config.yaml.d",
    k3s.DIRECTORY,
    "/etc/rancher/node",
    "/etc/rancher",
    "/var/lib/rancher",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/etc/cni/net.d",
    "/etc/cni",
    CNI_BINARIES,
    "/opt/cni",
    "/var/lib/gpufabric-rdma",
)
# The file by which another kubelet on the node is known.
OTHER_KUBELET = "/etc/kubernetes/kubelet.conf"
# What the kubelet and containerd inside k3s make and leave empty, by the file that tells of another one of them.
EMPTY_UNLESS = {
    OTHER_KUBELET: (
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
        "/usr/libexec/kubernetes/kubelet-plugins/volume",
        "/usr/libexec/kubernetes/kubelet-plugins",
        "/usr/libexec/kubernetes",
    ),
    "/usr/bin/containerd": ("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd"),
}
LINKS = re.compile(r"cni0|flannel\.1|flannel-v6\.1|flannel-wg(-v6)?|kube-ipvs0")
MOUNTS = re.compile(r"/(run/k3s|var/lib/rancher/k3s|var/lib/kubelet/(pods|plugins)|run/netns/cni-)(/|$|[0-9a-f-])")
NETNS = re.compile(r"cni-[0-9a-f-]{36}")
# Chains of kube-proxy, kube-router (k3s' network policies), the CNI portmap plugin and Flannel.
_RULE = re.compile(r"(^:|-[AIjg] |\s)(KUBE-|CNI-|FLANNEL-)|--comment \"?(flanneld|cali:)|\"name: \\\"cbr0\\\"")


def foreign_rules(saved: str) -> str:
    """The text of iptables-save without the chains and rules of the cluster, for iptables-restore."""
    return "".join(f"{line}\n" for line in saved.splitlines() if not _RULE.search(line))


def cluster_rules(saved: str) -> int:
    return sum(bool(_RULE.search(line)) for line in saved.splitlines())


def plan(state: dict, root: str = "/") -> Plan:
    """What goes, in its order.

    state: services, units (paths of ours), processes, links, mounts, netns, rules {program: saved}, files, folders,
    foreign (what stays), others (units of a k3s that is not ours), agent (whether the node was one).
    """
    made = Plan()
    for path in state["others"]:
        made.finding(
            path,
            "a k3s that this collection set up, or none",
            "a unit of someone else's, whose data a reset would take along",
            "remove that k3s with its own k3s-uninstall.sh, then run again",
        )
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
    for program, saved in state["rules"].items():
        if cluster_rules(saved):
            made.change(f"rules of {program}", "remove", f"{cluster_rules(saved)} of the cluster", "")
    for path in [*state["units"], *state["files"], *state["folders"]]:
        made.change(path, "remove", "there", "")
    made.notes += left(state, root)
    return made


def left(state: dict, root: str) -> list[str]:
    """What stays, and why: what others put there, and what only a boot undoes."""
    stays = [f"{path} stays: it is not ours" for path in state["foreign"]]
    if root.rstrip("/"):
        return stays
    stays.append(
        "kernel modules and sysctls stay as they are until the next boot: no module is unloaded under running work"
    )
    stays.append(
        "the host layer stays (drop-ins with LimitMEMLOCK, modules-load.d, modprobe.d): playbooks/host.yml made it"
    )
    if state["agent"]:
        stays.append("the cluster may still list this node: k3s kubectl delete node NAME on a server that remains")
    return stays


def ours(path: str, content: str | None) -> bool:
    """Whether a unit or configuration file was written by this collection and belongs to the cluster."""
    return bool(content) and content.startswith(paths.HEADER) and path not in _HOST_LAYER


def is_shim(content: str | None) -> bool:
    """Whether a CNI configuration is the one that Multus writes for its shim."""
    return bool(content) and '"multus-shim"' in content
