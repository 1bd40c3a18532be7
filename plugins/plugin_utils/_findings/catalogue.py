# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of failures: the symptom, its cause, where to look, and the fix.

PRIVATE to the collection. Data; standard library only. `diagnosis` matches checks against it, and docs/failures.md is
generated from it. In causal order: an entry may cause those below it, never those above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Sign(NamedTuple):
    """The symptom of a failure: a check's id (with * and ?) and a regular expression for its object and what it saw.

    hint: matches a check that was not verified, too, but only where a check has failed that the failure explains.
    """

    check: str
    text: str = ""
    hint: bool = False


class Failure(NamedTuple):
    """rows: (published guide, its own words). level: E1 planted in captured facts and composed
    objects, E3 planted in a real cluster too.

    signs: any one is enough. leads_to: ids of checks (with * and ?) that fail because of it. refused: regular
    expressions for "OBJECT: wanted WANTED, seen SEEN" of a problem that stops a run before anything changes.
    """

    id: str
    title: str
    rows: Sequence[tuple[str, str]]
    sees: str
    cause: str
    evidence: str
    fix: str
    signs: Sequence[Sign]
    leads_to: Sequence[str] = ()
    refused: Sequence[str] = ()
    level: str = "E1"


SHARED, POLICY, SRIOV, AKS, GH200 = "shared plugin", "NicClusterPolicy", "SR-IOV", "AKS", "GH200"

_MODULE_FILES = ("state:/etc/modules-load.d/*", "state:/etc/modprobe.d/*", "state:NIC *")
_STARTS = ("pod:running", "pod:*:running", "pod:tests")
_NCCL = ("nccl:*",)
_TRAFFIC = ("pod:pod-*", "pod:peer:*", *_NCCL)
_GIDS = ("pod:gids", "pod:*:gid:*")
_DEVICES = ("pod:devices", "pod:*:devices")
_VERBS = ("pod:*:verbs:*", "pod:*:ibstat:*", "pod:*:registration*", *_GIDS)
_NETWORK = ("pod:net[0-9]*", "pod:*:net[0-9]*", "pod:address:*", "pod:*:network-status")
_INSIDE = (
    *_NETWORK,
    *_DEVICES,
    *_VERBS,
    "pod:*:default-route",
    "pod:*:dns",
    "pod:*:peer",
    "pod:answer",
    "pod:*:answer",
)
_PODS = (*_STARTS, *_INSIDE, *_TRAFFIC)
_OFFERED = ("resource:*", "cluster:node", *_PODS)

CATALOGUE = (
    Failure(
        "driver-loaded-twice",
        "the host and a container both install the RDMA driver",
        (
            (
                POLICY,
                "Driver double-load. … module conflict, node NotReady",
            ),
        ),
        "modules conflict or are missing after a reload, the node goes NotReady, mofed pods never terminate",
        "the NicClusterPolicy sets ofedDriver while DOCA or MLNX_OFED is installed on the node",
        "kubectl get nicclusterpolicy -o yaml (spec.ofedDriver); the node's driver in: playbooks/discover.yml",
        "remove the ofedDriver block from the policy and let the driver role manage the driver, or uninstall the "
        "host's "
        "first",
        [Sign("policy:driver")],
        ("module:*", "device:*", "port:*", *_MODULE_FILES, "policy:state", "fabric:*", *_OFFERED),
    ),
    Failure(
        "mlx5-ib-absent",
        "the RDMA driver mlx5_ib is not loaded",
        ((GH200, "If only mlx5_core is loaded but mlx5_ib is absent, RDMA is not active"),),
        "lsmod shows mlx5_core alone; rdma link and ibv_devices list nothing; the NIC works as plain Ethernet",
        "the module is not loaded, is blocked by a line in modprobe.d, or is not built for the running kernel",
        "lsmod | grep mlx5; modprobe --showconfig | grep mlx5_ib; modinfo mlx5_ib",
        "remove the line that blocks it or install the package that provides it, then run playbooks/host.yml, which "
        "loads "
        "the module now and at boot",
        [Sign("module:mlx5_ib")],
        ("module:*", "device:*", "port:*", "netns", *_MODULE_FILES, "fabric:*", "plugin:*", "policy:state", *_OFFERED),
        [r"^module mlx5_ib\b"],
    ),
    Failure(
        "netns-exclusive",
        "the RDMA subsystem is in exclusive mode",
        (
            (
                POLICY,
                "RDMA subsystem in exclusive mode. Shared device plugin cannot multiplex; only one pod ever schedules",
            ),
            (GH200, "rdma system show … If this shows exclusive, change it"),
        ),
        'the reference plugin exits with "can not change : incorrect RDMA subsystem network namespace"; nothing is '
        "allocatable, or pods see no HCA",
        "ib_core runs with netns_mode exclusive, or a file in modprobe.d, the initramfs or the kernel command line "
        "restores it at boot; the kernel refuses to change it while any other network namespace exists",
        "rdma system show; grep -r netns_mode /etc/modprobe.d /proc/cmdline; lsns -t net",
        "run playbooks/host.yml before pods exist (role rdma_netns: now and at boot); if pods are running, it asks "
        "for a "
        "reboot. rdma system set alone is lost at the next boot",
        [Sign("netns", r"running exclusive|at boot exclusive")],
        ("state:/etc/modprobe.d/*", "plugin:*", "policy:state", *_OFFERED),
        [r"^RDMA netns mode: wanted shared at boot"],
    ),
    Failure(
        "port-down",
        "a required port is not ACTIVE",
        ((GH200, "link mlx5_1/1 state DOWN physical_state DISABLED"),),
        "rdma link: state DOWN, physical_state DISABLED or POLLING; ibv_devinfo: PORT_DOWN; the resource of the "
        "rail is 0",
        "no cable or link partner, the interface was taken down, or (InfiniBand, INIT) no subnet manager answers",
        "rdma link show; ip -br link; ibstat; the switch port",
        "bring the link up (rail_links_settings: up), check cable and switch port; for InfiniBand start a subnet "
        "manager",
        [Sign("port:*")],
        ("state:NIC *", "fabric:*", "plugin:*", *_OFFERED),
    ),
    Failure(
        "peermem-absent",
        "GPUDirect is requested but nvidia_peermem is not loaded",
        ((GH200, "nvidia_peermem … Its presence means the system is configured for GPU-to-GPU RDMA transfers"),),
        "NCCL logs no GDRDMA; modprobe nvidia_peermem: Invalid argument, often with nothing in dmesg",
        "the module was built without OFED or against another one, was loaded before the driver and not reloaded, or "
        "is "
        "not needed at all: with the open GPU kernel modules, dma-buf replaces it",
        "lsmod | grep peermem; modinfo -F depends nvidia_peermem; the verdict of gpufabric.rdma.gpudirect_doctor",
        "rebuild the NVIDIA module after the RDMA driver as the doctor says, or set kernel_modules_gpudirect: dmabuf",
        [Sign("state:module nvidia_peermem"), Sign("module:nvidia_peermem")],
        ("state:/etc/modules-load.d/*", "state:/etc/modprobe.d/*", *_NCCL),
        [r"^module nvidia_peermem\b"],
    ),
    Failure(
        "infiniband-permission-denied",
        "the pod sees the node's /dev/infiniband but cannot open it",
        ((SHARED, "Permission denied on /dev/infiniband"),),
        "open of /dev/infiniband/uverbs0: Operation not permitted or Permission denied, even though ls shows the file",
        "the device files come from a hostPath volume, so the device cgroup does not allow them. Only the device "
        "plugin's "
        "Allocate grants access",
        "kubectl get pod -o yaml: a hostPath volume with /dev and no rdma/… in resources.limits",
        "remove the volume and request the resource: resources.limits rdma/NAME: 1. More privileges do not help",
        [
            Sign("pod:host-path"),
            Sign("pod:*", r"(?i)(registered|MiB;|uverbs|infiniband).*(permission denied|not permitted)"),
        ],
        ("pod:resource", "pod:resource:*", "pod:annotation", *_DEVICES, *_VERBS, *_TRAFFIC),
    ),
    Failure(
        "memlock-too-low",
        "containers cannot lock the memory that RDMA registers",
        (
            (POLICY, "Missing IPC_LOCK. Verbs apps fail to pin memory (Cannot allocate memory)"),
            (AKS, 'A pod without this will have a low locked memory value … ulimit … of "64"'),
        ),
        "ibv_reg_mr or ibv_create_cq: Cannot allocate memory, even with the resource granted; ulimit -l prints 64 or "
        "8192",
        "the service that starts containers has no LimitMEMLOCK, so they inherit its 64 KiB or 8 MiB. IPC_LOCK only "
        "bypasses the limit for root (the number stays the same) and does nothing for other users",
        "systemctl show -p LimitMEMLOCK k3s; in the pod: ulimit -l, grep CapEff /proc/self/status, id -u",
        "run playbooks/host.yml (role limits: LimitMEMLOCK=infinity), restart the service and recreate the pods; a "
        "pod that runs as root can add the capability IPC_LOCK instead",
        [
            Sign("memlock:*"),
            Sign("pod:ipc-lock"),
            Sign("pod:*:registration*", r"ulimit -l (?!unlimited)(?!.*(?i:permission denied|not permitted))"),
        ],
        ("state:/etc/systemd/*", "pod:*:registration*", "pod:ipc-lock", "cluster:node", *_TRAFFIC),
        level="E3",
    ),
    Failure(
        "pod-cidr-mismatch",
        "Flannel and Kubernetes have different pod networks",
        (
            (
                GH200,
                "Download and patch the Flannel manifest to match k3s's default pod CIDR",
            ),
        ),
        "Flannel's pod restarts; pods of different nodes do not reach each other; errors name podCIDR",
        "Network in Flannel's net-conf.json does not contain the node's podCIDR: its manifest says 10.244.0.0/16, k3s "
        "allocates from 10.42.0.0/16",
        "kubectl get cm -n kube-flannel kube-flannel-cfg -o yaml; kubectl get nodes -o jsonpath with spec.podCIDR",
        "set flannel_cidr to the cluster-cidr of k3s (that of a running cluster cannot be changed) and run "
        "playbooks/site.yml",
        [Sign("cluster:pod-cidr")],
        ("cluster:node", "cni:no-configuration", "cni:cluster-network-missing", *_PODS),
        [r"^variable flannel_cidr: wanted k3s_cluster_cidr"],
    ),
    Failure(
        "cni-binaries",
        "a CNI program is missing or cannot run on this machine",
        (
            (
                GH200,
                "The default k3s installation only includes a minimal set of CNI binaries … replace arm64 with amd64",
            ),
        ),
        'pods stay in ContainerCreating: failed to find plugin "bridge" in path [/opt/cni/bin], or exec format error',
        "Flannel's manifest installs only flannel; the reference plugins are missing, truncated, not executable or "
        "built "
        "for another architecture",
        "ls -l /opt/cni/bin; file /opt/cni/bin/*; uname -m",
        "run playbooks/site.yml (role cni_plugins): it installs the pinned plugins for the node's architecture first",
        [Sign("cni:plugin-*"), Sign("pod:*running", r"failed to find plugin|exec format error")],
        ("cluster:node", "cni:*", *_PODS),
    ),
    Failure(
        "multus-not-first",
        "another CNI configuration comes before 00-multus.conf",
        ((GH200, "The alphabetical ordering matters. … 00-multus.conf ensures Multus is invoked"),),
        "pods run but never get net1; ls /etc/cni/net.d shows another file before, or beside, 00-multus.conf",
        "the runtime uses the first file by name: one from podman, CRI-O or Flannel itself sorts before Multus, or is "
        "used "
        "while Multus is not up",
        "ls /etc/cni/net.d; the pod's annotation k8s.v1.cni.cncf.io/network-status",
        "uninstall whatever wrote the file, or set multus_foreign_allowed: true and run playbooks/site.yml; recreate "
        "the pods",
        [
            Sign("cni:foreign-*"),
            Sign("cni:several-configurations"),
            Sign("pod:*:network-status", "no network-status annotation"),
        ],
        ("cni:*", *_NETWORK, *_GIDS, "pod:*:dns", "pod:*:peer", *_TRAFFIC),
    ),
    Failure(
        "no-cni",
        "the node has no CNI configuration yet",
        ((GH200, "The node will start in NotReady state until a CNI is installed"),),
        "node NotReady: cni plugin not initialized; CoreDNS Pending; every pod ContainerCreating",
        "k3s runs with flannel-backend none and nothing has written a configuration: Flannel or Multus is not "
        "deployed, or "
        "is still waiting. Normal until then; do not wait for all pods to be Ready",
        "kubectl describe node (Ready condition); ls /etc/cni/net.d; the pods of kube-flannel and kube-multus",
        "run playbooks/site.yml: reference plugins, then Flannel, then Multus; see the log of the one that does "
        "not start",
        [Sign("cni:no-configuration"), Sign("cluster:node", r"(?i)cni (plugin not initialized|config uninitialized)")],
        ("cluster:node", "cni:*", *_PODS),
        level="E3",
    ),
    Failure(
        "pod-security-refuses",
        "the namespace's Pod Security level refuses the pods",
        ((AKS, "namespace must be labeled with pod-security.kubernetes.io/enforce=privileged"),),
        'pods are not created: events of the DaemonSet say violates PodSecurity "restricted" or "baseline"',
        "pods that use the node's devices need the level privileged, and their namespace's label enforces a stricter "
        "one",
        "kubectl get ns --show-labels; kubectl describe ds",
        "label the namespace of the plugin or operator (not those of workloads): "
        "pod-security.kubernetes.io/enforce=privileged",
        [
            Sign("namespace:pod-security"),
            Sign("pod:*running", "violates PodSecurity"),
            Sign("pod:tests", "violates"),
        ],
        ("policy:state", *_OFFERED),
    ),
    Failure(
        "nfd-label-missing",
        "the node lacks the label that the plugin's pods select",
        ((AKS, "Mellanox NICs are labeled with label feature.node.kubernetes.io/pci-15b3.present: true"),),
        "the plugin's DaemonSet has 0 pods on the node, without an error anywhere",
        "Node Feature Discovery is not running, has no rule for the NIC, or sets a label other than the one in the "
        "nodeSelector",
        "kubectl get nodes --show-labels; kubectl get ds -A; the NodeFeatureRule",
        "set k3s_node_features_by_nfd: false to label the node from its facts, or run NFD with its rule; never both",
        [Sign("plugin:node-label")],
        ("policy:state", "plugin:*", *_OFFERED),
    ),
    Failure(
        "policy-config-map",
        "the NicClusterPolicy has the plugin's config as a YAML map",
        ((POLICY, "config as a YAML map instead of a JSON string. The plugin ignores it; no resource appears"),),
        "the policy is accepted or refused without mentioning config; no rdma/ resource appears",
        "rdmaSharedDevicePlugin.config is a string that contains JSON, but the manifest gives it as YAML",
        "kubectl get nicclusterpolicy -o yaml, spec.rdmaSharedDevicePlugin.config",
        "write it as a block scalar (config: |) with valid JSON",
        [Sign("policy:config", "mapping|list")],
        ("policy:state", "plugin:*", *_OFFERED),
    ),
    Failure(
        "plugin-config-invalid",
        "the device plugin cannot read its config.json",
        ((SHARED, "Plugin CrashLoopBackOff … Wrong config.json format"),),
        "the plugin's pod is in CrashLoopBackOff; nothing is allocatable",
        "config.json of the ConfigMap is not valid JSON, or has no configList",
        "kubectl logs of the plugin's pod; kubectl get cm rdma-devices -o yaml",
        "fix the JSON (for our plugin: device_plugin_resources; a bad config is refused before it is installed); "
        "check it with: rdma-device-plugin check-config -strict FILE",
        [Sign("plugin:config"), Sign("policy:config", "not valid JSON|configList")],
        ("policy:state", "plugin:*", *_OFFERED),
        [r"variable device_plugin_resources\b"],
    ),
    Failure(
        "selector-too-narrow",
        "the plugin's selectors miss some of the node's rails",
        ((SHARED, "Multiple NICs not detected … Selector too narrow"),),
        "some rails have a resource and others none; pods that ask for all rails stay Pending",
        "ifNames lists fewer interfaces than the node has rails, or names that other nodes use",
        "kubectl describe node (allocatable) beside ip -br link and the plugin's config",
        "one resource a rail: device_plugin_resources: rails; a vendor selector would put all NICs, including the "
        "management "
        "NIC, in one pool",
        [Sign("plugin:coverage"), Sign("resource:*", r"not advertised; there are .*rdma/")],
        _OFFERED,
    ),
    Failure(
        "policy-not-ready",
        "a state of the NicClusterPolicy is not ready",
        ((POLICY, "status.state: notReady. Read status.appliedStates for the sub-state stuck off ready"),),
        "kubectl get nicclusterpolicy: notReady or error",
        "one of the operator's components does not come up: its image cannot be pulled, its pod is rejected, or it is "
        "waiting for the driver",
        "status.appliedStates of the policy, then the log of the operator and of that component's pods",
        "fix the component that it names; components that this collection installs do not belong in the policy",
        [Sign("policy:state")],
        _OFFERED,
    ),
    Failure(
        "nothing-allocatable",
        "the device plugin advertises nothing on the node",
        ((SHARED, "rdma/hca_shared_devices_a: 0 on node … Device plugin not finding NIC"),),
        "kubectl describe node: rdma/… 0 or absent from Allocatable",
        "ifNames in the config match no interface of the node (renamed by a driver or kernel: enp1s0f0 and "
        "enp1s0f0np0), or the plugin is not running. Driver, ports and netns mode are fine if this is the root cause",
        "ip -br link beside the plugin's config; journalctl -u rdma-device-plugin",
        "correct the names; better, set device_plugin_resources: rails, which takes them from the node's facts at "
        "each run",
        [Sign("plugin:selector"), Sign("resource:*", r"not advertised; there are (?!.*rdma/)|allocatable 0")],
        _OFFERED,
    ),
    Failure(
        "roce-or-infiniband",
        "an attachment for Ethernet on InfiniBand, or the reverse",
        ((GH200, "link_layer: Ethernet … this is RoCE (RDMA over Converged Ethernet), not InfiniBand"),),
        "pods stay in ContainerCreating: macvlan on ib0 gives invalid argument; or someone followed a guide for the "
        "other "
        "fabric",
        "link_layer decides, not transport (which says InfiniBand for RoCE too): macvlan and ipvlan are for "
        "Ethernet, ipoib is for InfiniBand",
        "ibv_devinfo | grep link_layer; cat /sys/class/net/NETDEV/type (1 Ethernet, 32 InfiniBand)",
        "use type macvlan on Ethernet and ipoib on InfiniBand, or no attachment at all: verbs over InfiniBand need "
        "none",
        [
            Sign("nad:macvlan-infiniband"),
            Sign("nad:ipoib-ethernet"),
            Sign("pod:*running", r"failed to create macvlan: invalid argument"),
        ],
        _PODS,
        [r"wanted an Ethernet interface for (macvlan|ipvlan)", r"wanted an InfiniBand interface, seen .* is Ethernet"],
    ),
    Failure(
        "active-mtu-1024",
        "RoCE runs with an active MTU below the fabric's",
        ((GH200, "max_mtu: 4096 (5), active_mtu: 1024 (3)"),),
        "ibv_devinfo: active_mtu 1024 under max_mtu 4096; bandwidth well below the link's",
        "the active MTU follows the MTU of the interface: 1500 gives 1024, 4200 and more 4096; a macvlan cannot exceed "
        "its master",
        "ip link (mtu of net1, of its master, of the switch); ibv_devinfo on the node and in the pod",
        "raise the MTU of the switch, then of the rail (rail_links_settings: mtu), then of the attachment",
        [
            Sign("pod:*:verbs:*", r"PORT_ACTIVE, Ethernet, active_mtu (256|512|1024)\b"),
            Sign("state:NIC * MTU"),
            Sign("nad:mtu"),
        ],
        ("state:/etc/*", "nad:mtu", "fabric:*", "pod:*:verbs:*", *_STARTS, *_TRAFFIC),
    ),
    Failure(
        "duplicate-addresses",
        "two pods get the same address",
        (
            (SRIOV, "Multiple pods get same IP … Whereabouts leader election failure or stale IP leases"),
            (GH200, '"type": "host-local", "subnet": "192.168.50.0/24"'),
        ),
        "pods of two nodes have the same address on net1; traffic comes and goes as the ARP entry flips",
        "host-local keeps its leases on each node, so each hands out .2 first; whereabouts can do the same with stale "
        "leases",
        "the network-status of the pods; ls /var/lib/cni/networks on each node; kubectl get ippools -A",
        "give each node a block of its own: nv-ipam, or networks_attachments, which renders the blocks; for "
        "whereabouts release the stale allocation and recreate the pods",
        [Sign("nad:host-local-nodes"), Sign("nad:block-clash"), Sign("pod:address-clash")],
        ("pod:address-clash", *_TRAFFIC),
        [r"host-local for \d+ nodes|both hand out"],
    ),
    Failure(
        "macvlan-on-management",
        "an attachment uses the interface of the default route",
        ((GH200, '"type": "macvlan", "master": "enp1s0f0np0"'),),
        "pods cannot reach their own node over net1; a provider's switch drops or blocks the port",
        "macvlan isolates its children from the parent interface, and their MAC addresses appear on the management "
        "port",
        "ip route show default; the master in the NetworkAttachmentDefinition",
        "attach to a NIC of the fabric (networks_rails); on a test machine with one port: "
        "networks_default_route_masters",
        [Sign("nad:default-route")],
        ("pod:*:net[0-9]*", *_TRAFFIC),
        [r"carries the default route"],
    ),
    Failure(
        "network-name-differs",
        "the pod names a network that does not exist in its namespace",
        ((SRIOV, "net1 not appearing in pod … match NetworkAttachmentDefinition name"),),
        "no net1; the pod stays in ContainerCreating: cannot find a network-attachment-definition",
        "the annotation and the NetworkAttachmentDefinition differ in spelling or namespace",
        "the pod's annotation k8s.v1.cni.cncf.io/networks beside kubectl get net-attach-def -A",
        "correct the name, or create the network in the pod's namespace (networks_namespaces)",
        [Sign("pod:network:*"), Sign("pod:*running", "cannot find a network-attachment-definition")],
        _PODS,
    ),
    Failure(
        "gpus-exhausted",
        "all GPUs of the nodes are taken",
        (
            (
                AKS,
                "no additional pods of the same type can schedule on that node due to GPU exhaustion",
            ),
        ),
        "pod Pending: Insufficient nvidia.com/gpu, while rdma/… is still allocatable",
        "GPUs are counted one by one and other pods hold them; the slots of a shared RDMA resource are not the limit",
        "kubectl describe node: Allocated resources; kubectl get pods -A -o wide",
        "delete the pods that hold them or wait for them, or request fewer; rdmaHcaMax does not help",
        [Sign("pod:*running", r"Insufficient nvidia\.com/gpu")],
        _PODS,
    ),
    Failure(
        "vf-exhausted",
        "no VF is left on the node",
        ((SRIOV, "Failed to allocate SR-IOV VF … All VFs on the node are in use"),),
        "pod Pending: Insufficient openshift.io/…, or the event Failed to allocate SR-IOV VF",
        "each pod holds its VF until it is deleted, and all are taken; or a reboot or a driver reload removed the VFs",
        "allocatable of the node; cat /sys/class/net/NETDEV/device/sriov_numvfs",
        "delete pods that hold VFs, or create more: networks_sriov sets them at each boot",
        [Sign("pod:*running", r"allocate SR-IOV VF|Insufficient (?!rdma/|nvidia\.com/gpu)[\w.-]+/")],
        _PODS,
    ),
    Failure(
        "pods-pending",
        "no slot of the RDMA resource is left",
        ((SHARED, "Pod stuck Pending … No RDMA resource available"),),
        "pod Pending: Insufficient rdma/…, while the node's allocatable is not 0",
        "other pods hold all slots, or the pod requests a name that no node advertises. rdmaHcaMax is only the number "
        "of "
        "advertised slots; the NIC has no such limit",
        "kubectl describe node: Allocatable beside Allocated resources; the name in the pod's limits",
        "delete pods that no longer need RDMA, correct the name, or raise rdmaHcaMax of the resource",
        [Sign("pod:*running", r"Insufficient rdma/")],
        _PODS,
    ),
    Failure(
        "net1-without-address",
        "net1 exists but has no address",
        ((SRIOV, "net1 exists but no IP assigned … IPAM exhausted or misconfigured"),),
        "ip addr show net1 has no inet line, or the pod hangs with no IP addresses available in range set",
        "the pool or the node's block is used up or does not exist, or the IPAM's range is not a network",
        "kubectl get ippools -A; the range in the NetworkAttachmentDefinition; /var/lib/cni/networks on the node",
        "enlarge per_node_block_size and the subnet, or create the pool that the network names",
        [
            Sign("pod:address:*"),
            Sign("pod:*:net[0-9]*", "addresses none"),
            Sign("nad:block-size"),
            Sign("pod:*running", r"(?i)no (free )?(IP )?addresses available|IPPool .*not found|no free IP"),
        ],
        _PODS,
    ),
    Failure(
        "resource-without-network",
        "the pod has the RDMA resource but no network for it",
        ((POLICY, "Pod gets the resource but no IP. The networks annotation is absent"),),
        "/dev/infiniband exists, ip addr shows eth0 alone; over RoCE all GIDs are zero",
        "the resource only provides device files: the interface comes from Multus, for a network that the pod must "
        "name",
        "the pod's annotation k8s.v1.cni.cncf.io/networks; ip -br addr in the pod",
        "add the annotation with a network of the same NIC. Over InfiniBand verbs need none, only IP does",
        [Sign("pod:annotation", "without a networks annotation", hint=True)],
        ("pod:annotation", *_NETWORK, *_GIDS, *_TRAFFIC),
    ),
    Failure(
        "infiniband-missing",
        "the pod has the network but no RDMA resource",
        ((SRIOV, "/dev/infiniband missing despite net1 present … not in resource request"),),
        "ls /dev/infiniband: No such file or directory, while net1 has its address",
        "the annotation resourceName links network and resource but requests nothing: the pod has to. For a VF: "
        "isRdma is not set in its policy",
        "resources.limits of the containers; ls /dev/infiniband",
        "add the resource to the limits of a container",
        [Sign("pod:resource"), Sign("pod:resource:*"), Sign("pod:devices"), Sign("pod:*:devices", "without .*uverbs")],
        ("pod:annotation", *_DEVICES, *_VERBS, *_TRAFFIC),
    ),
    Failure(
        "nccl-tcp",
        "NCCL falls back to TCP",
        ((SHARED, "NCCL falls back to TCP … Missing hostNetwork"),),
        "NCCL_DEBUG=INFO shows NET/Socket where NET/IB is expected; bandwidth is a tenth or less",
        "over RoCE the pod has no interface of the HCA that it may use (net1 is on another NIC, or missing), so all "
        "its GIDs "
        "are zero; or NCCL_IB_GID_INDEX pins an index that differs from pod to pod",
        "in the pod: /sys/class/infiniband/*/ports/*/gid_attrs/ndevs; the NCCL log; env | grep NCCL",
        "attach net1 on the same HCA as the resource, set NCCL_IB_ADDR_RANGE to its subnet and unset "
        "NCCL_IB_GID_INDEX. "
        "hostNetwork is not needed",
        [Sign("nccl:*", "NET/Socket"), *(Sign(one) for one in _GIDS), Sign("pod:gid-index")],
        ("pod:gid-index", *_GIDS, *_TRAFFIC),
    ),
)

BY_ID = {failure.id: failure for failure in CATALOGUE}


def prevented(finding: dict) -> str | None:
    """The failure that refusing a run has prevented; None where the catalogue does not name the problem."""
    text = f"{finding['object']}: wanted {finding['wanted']}, seen {finding['seen']}"
    return next((one.id for one in CATALOGUE if any(re.search(word, text) for word in one.refused)), None)
