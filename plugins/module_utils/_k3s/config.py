"""The input of k3s: its options by name, their files, the unit that starts it.

Pure: typed values in, text out. Runs on the controller and on the node.
"""

from __future__ import annotations

from .._core.text import yaml_value
from ..hca import paths

DIRECTORY = "/etc/rancher/k3s"
CONFIG = f"{DIRECTORY}/config.yaml"
CLUSTER = f"{DIRECTORY}/config.yaml.d/10-gpufabric-rdma-cluster.yaml"
EXTRA = f"{DIRECTORY}/config.yaml.d/90-gpufabric-rdma-extra.yaml"
REGISTRIES = f"{DIRECTORY}/registries.yaml"
TOKEN = f"{DIRECTORY}/token"
KUBECONFIG = f"{DIRECTORY}/k3s.yaml"
DATA = "/var/lib/rancher/k3s"
IMAGES = f"{DATA}/agent/images"
BINARY = "/usr/local/bin/k3s"
LINKS = tuple(f"/usr/local/bin/{name}" for name in ("kubectl", "crictl", "ctr"))
SERVICES = {"server": "k3s", "agent": "k3s-agent"}
# What k3s is started with besides its configuration; %N is the name of the service.
ENVIRONMENT = ("/etc/default/%N", "/etc/sysconfig/%N", "/etc/systemd/system/%N.service.env")
# The running k3s' input at its start; it is restarted only if that changes.
RECORD = "/var/lib/gpufabric-rdma/k3s.json"
STARTUP_TAINT = "rdma.gpufabric.io/not-ready=true:NoSchedule"

# `k3s agent --help` of v1.35: what config.yaml may hold on any node.
_ON_ANY_NODE = """
    airgap-extra-registry alsologtostderr bind-address container-runtime-endpoint data-dir debug default-runtime
    disable-apiserver-lb disable-default-registry-endpoint docker flannel-cni-conf flannel-conf flannel-iface
    image-credential-provider-bin-dir image-credential-provider-config image-service-endpoint kube-proxy-arg kubelet-arg
    lb-server-port log node-external-dns node-external-ip node-internal-dns node-ip node-label node-name node-taint
    nonroot-devices pause-image prefer-bundled-bin private-registry protect-kernel-defaults resolv-conf rootless selinux
    server snapshotter token token-file v vmodule vpn-auth vpn-auth-file with-node-id
"""
_ON_SERVERS = """
    advertise-address advertise-port agent-token agent-token-file cluster-cidr cluster-dns cluster-domain cluster-init
    cluster-reset cluster-reset-restore-path datastore-cafile datastore-certfile datastore-endpoint datastore-keyfile
    default-local-storage-path disable disable-agent disable-apiserver disable-cloud-controller
    disable-controller-manager disable-etcd disable-helm-controller disable-kube-proxy disable-network-policy
    disable-scheduler egress-selector-mode embedded-registry enable-pprof etcd-arg etcd-disable-snapshots
    etcd-expose-metrics etcd-s3 etcd-s3-access-key etcd-s3-bucket etcd-s3-bucket-lookup-type etcd-s3-config-secret
    etcd-s3-endpoint etcd-s3-endpoint-ca etcd-s3-folder etcd-s3-insecure etcd-s3-proxy etcd-s3-region etcd-s3-retention
    etcd-s3-secret-key etcd-s3-session-token etcd-s3-skip-ssl-verify etcd-s3-timeout etcd-snapshot-compress
    etcd-snapshot-dir etcd-snapshot-name etcd-snapshot-reconcile-interval etcd-snapshot-retention
    etcd-snapshot-schedule-cron flannel-backend flannel-external-ip flannel-ipv6-masq helm-job-image https-listen-port
    kine-tls kube-apiserver-arg kube-cloud-controller-manager-arg kube-controller-manager-arg kube-scheduler-arg
    secrets-encryption secrets-encryption-provider service-cidr service-node-port-range servicelb-namespace
    supervisor-metrics system-default-registry tls-san tls-san-security write-kubeconfig write-kubeconfig-group
    write-kubeconfig-mode
"""
AGENT_KEYS = frozenset(_ON_ANY_NODE.split())
SERVER_KEYS = AGENT_KEYS | frozenset(_ON_SERVERS.split())

# Options that k3s_config_extra may not set, and what to use instead.
OWNED = {
    "cluster-cidr": "k3s_cluster_cidr",
    "cluster-dns": "k3s_cluster_dns",
    # Secrets: variables end up in logs sooner or later.
    "datastore-endpoint": "K3S_DATASTORE_ENDPOINT in /etc/systemd/system/k3s.service.env, mode 0600, which k3s reads",
    "etcd-s3-access-key": "etcd-s3-config-secret",
    "etcd-s3-secret-key": "etcd-s3-config-secret",
    "etcd-s3-session-token": "etcd-s3-config-secret",
    "vpn-auth": "vpn-auth-file, and the file with mode 0600",
    "cluster-init": "the group k3s_servers (three or more make embedded etcd)",
    "data-dir": f"nothing: the roles only support {DATA}",
    "disable": "k3s_disable",
    "disable-network-policy": "k3s_network_policy",
    "flannel-backend": "nothing: it is none, and the role flannel provides the pod network",
    "kubelet-arg": "k3s_kubelet_args",
    "node-ip": "k3s_node_ip",
    "node-label": "k3s_node_labels",
    "node-name": "k3s_node_name",
    "node-taint": "k3s_node_taints",
    "prefer-bundled-bin": "nothing: it is set if the node's iptables requires it",
    "secrets-encryption": "k3s_secrets_encryption",
    "selinux": "k3s_selinux",
    "server": "k3s_server_url",
    "service-cidr": "k3s_service_cidr",
    "tls-san": "k3s_tls_san",
    "token": "k3s_token, which is written to a file with mode 0600",
    "token-file": f"nothing: it is {TOKEN}",
    "agent-token": "agent-token-file, and the file with mode 0600",
    "write-kubeconfig-mode": "nothing: it is 0600",
}
# Options that servers must share, or the second one refuses to join (critical configuration value mismatch).
CRITICAL = (
    "cluster-cidr", "service-cidr", "cluster-dns", "cluster-domain", "disable", "disable-network-policy",
    "disable-cloud-controller", "disable-helm-controller", "disable-kube-proxy", "egress-selector-mode",
    "embedded-registry", "flannel-backend", "secrets-encryption", "servicelb-namespace",
)  # fmt: skip


def files(node: dict) -> dict[str, dict]:
    """{option: value} of each file of a node: its own options, the cluster's (servers only), the user's.

    node: role, first, servers (how many), node_ip, node_name (or None), server_url, labels, taints, kubelet_args,
    selinux, bundled_bin, variables (typed, without the prefix k3s_). No option appears in two files: k3s uses the last.
    """
    typed = node["variables"]
    server = node["role"] == "server"
    own = {
        "token-file": TOKEN,
        "node-ip": node["node_ip"],
        "node-name": node["node_name"],
        "node-label": [f"{name}={value}" for name, value in sorted(node["labels"].items())],
        "node-taint": list(node["taints"]),
        "kubelet-arg": [f"{name}={value}" for name, value in sorted(node["kubelet_args"].items())],
        "selinux": bool(node["selinux"]),
        "prefer-bundled-bin": bool(node["bundled_bin"]),
        "server": None if server and node["first"] else node["server_url"],
        "cluster-init": server and node["first"] and node["servers"] > 1,
    }
    found = {CONFIG: {option: value for option, value in own.items() if value}}
    if server:
        found[CLUSTER] = cluster(typed)
    if typed["config_extra"]:
        found[EXTRA] = dict(typed["config_extra"])
    return found


def cluster(typed: dict) -> dict:
    """The fragment that is the same on every server."""
    options = {
        "flannel-backend": "none",
        "cluster-cidr": typed["cluster_cidr"],
        "service-cidr": typed["service_cidr"],
        "disable": sorted(typed["disable"]),
        "secrets-encryption": typed["secrets_encryption"],
        "write-kubeconfig-mode": "0600",
    }
    if typed["cluster_dns"]:
        options["cluster-dns"] = typed["cluster_dns"]
    if not typed["network_policy"]:
        options["disable-network-policy"] = True
    names = [*typed["tls_san"], *([typed["api_address"]] if typed.get("api_address") else [])]
    if names:
        options["tls-san"] = list(dict.fromkeys(names))
    return options


def critical(options: dict[str, dict]) -> dict:
    """The values that servers must agree on, from one server's files."""
    merged = {name: value for file in options.values() for name, value in file.items()}
    return {name: merged[name] for name in CRITICAL if name in merged}


def kubelet_args(typed: dict) -> dict[str, str]:
    args = {name: str(value) for name, value in typed["kubelet_args"].items()}
    if typed["topology_manager_policy"] != "none":
        args["topology-manager-policy"] = typed["topology_manager_policy"]
        args["topology-manager-scope"] = typed["topology_manager_scope"]
    return args


def yaml(options: dict) -> str:
    """Block YAML, strings always quoted, so `none` and `0600` stay strings."""
    lines = [paths.HEADER]
    for name, value in sorted(options.items()):
        if isinstance(value, list):
            lines.append(f"{name}:" if value else f"{name}: []")
            lines += [f"  - {yaml_value(item)}" for item in value]
        else:
            lines.append(f"{name}: {yaml_value(value)}")
    return "\n".join(lines) + "\n"


def registries(mirrors: dict) -> str:
    """registries.yaml as JSON, which is YAML; it may hold passwords and is never shown."""
    return f"{paths.HEADER}\n{yaml_value(mirrors, indent=2, sort_keys=True)}\n"


def unit(role: str) -> str:
    """Like the vendor's installer. The role limits adds the memlock limit and the start order."""
    environment = "\n".join(f"EnvironmentFile=-{path}" for path in ENVIRONMENT)
    return f"""{paths.HEADER}
[Unit]
Description=Lightweight Kubernetes ({role})
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=notify
{environment}
KillMode=process
Delegate=yes
User=root
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart={BINARY} {role}
"""


def unit_path(role: str) -> str:
    return f"/etc/systemd/system/{SERVICES[role]}.service"
