"""CNI, Flannel and Multus (K and M of docs/failures.md): each fault planted on a sound node, and its finding.

The nodes are real files below a folder and cni_lint reads them as it does a machine; Multus' socket, which only the
machine itself has, is told to the pure part.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd, node_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import node_files
from ansible_collections.gpufabric.rdma.plugins.modules import cni_lint
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import cluster_checks
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world, rendering

ROOT = pathlib.Path(__file__).resolve().parents[5]
CONF, PRIMARY = "etc/cni/net.d/00-multus.conf", "etc/cni/gpufabric-rdma.d/10-flannel.conflist"
WANTED = {
    "conf_dir": "/etc/cni/net.d",
    "bin_dir": "/opt/cni/bin",
    "primary": f"/{PRIMARY}",
    "multus": True,
    "networks": [],
    "health_port": 8081,
}
MULTUS = {
    "cniVersion": "0.3.1",
    "name": "multus-cni-network",
    "clusterNetwork": f"/host/{PRIMARY}",
    "type": "multus-shim",
    "logToStderr": True,
}
FLANNEL = {
    "name": "cbr0",
    "cniVersion": "0.3.1",
    "plugins": [{"type": "flannel", "delegate": {"isDefaultGateway": True}}, {"type": "portmap"}],
}
PODMAN = {"name": "podman", "cniVersion": "0.4.0", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}
# What roles and users attach: the last comes from a file on the node, and its programs from a DaemonSet.
NETWORKS = [
    {"name": f"NetworkAttachmentDefinition default/{name}", "config": json.dumps(config)}
    for name, config in {
        "rail0": {"type": "macvlan", "master": "eth2", "ipam": {"type": "nv-ipam", "poolName": "rail0"}},
        "rail1": {
            "cniVersion": "0.3.1",
            "plugins": [{"type": "host-device", "ipam": {"type": "static"}}, {"type": "tuning"}],
        },
        "ib": {"type": "ipoib", "master": "ib0", "ipam": {"type": "host-local"}},
    }.items()
]
CONFIG_TOML = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
CNI_TABLE = "[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
PROGRAMS = ("bridge", "flannel", "host-local", "loopback", "macvlan", "multus-shim", "portmap")
ATTACHED = ("macvlan", "nv-ipam", "host-device", "static", "tuning", "ipoib")


def program(machine: int = 62, size: int = 512) -> bytes:
    """An ELF header with one segment that ends at `size`, and that much behind it."""
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    return (header + segment).ljust(size, b"\0")


class Node:
    def __init__(self, root: pathlib.Path):
        self.root = root
        self.changes: dict = {}
        self.wanted = dict(WANTED)
        for name in PROGRAMS:
            self.write(f"opt/cni/bin/{name}", program(), 0o755)
        self.write(CONF, json.dumps(MULTUS), 0o600)
        self.write(PRIMARY, json.dumps(FLANNEL))
        self.write(CONFIG_TOML, "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = 'overlayfs'\n")
        self.write("proc/sys/kernel/arch", "x86_64")
        for key in node_lint.SYSCTLS:
            self.write(f"proc/sys/{key.replace('.', '/')}", "1")

    def attach(self) -> None:
        """The networks, and their programs."""
        self.wanted["networks"] = NETWORKS
        for name in ATTACHED:
            self.write(f"opt/cni/bin/{name}", program(), 0o755)

    def write(self, path: str, content, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        target.chmod(mode)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def findings(self) -> list:
        state = {**cni_lint.read(str(self.root), self.wanted), "socket": "answers", **self.changes}
        return node_lint.lint(state, self.wanted)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# --- the node ---------------------------------------------------------------------------------------------------------


def wrong_dirs(node):
    node.write(
        CONFIG_TOML,
        f'version = 3\n{CNI_TABLE}  bin_dirs = ["/var/lib/rancher/k3s/data/cni"]\n'
        "  conf_dir = '/var/lib/rancher/k3s/agent/etc/cni/net.d'\n",
    )


def wrong_dirs_by_import(node):
    node.write(CONFIG_TOML, f'imports = ["/{os.path.dirname(CONFIG_TOML)}/config-v3.toml.d/*.toml"]\nversion = 3\n')
    node.write(
        f"{os.path.dirname(CONFIG_TOML)}/config-v3.toml.d/cni.toml",
        f"{CNI_TABLE}conf_dir = '/etc/other' # a user's own\n",
    )


def release_dir(node):
    wanted = "/var/lib/rancher/k3s/data/current/bin"
    node.write(CONFIG_TOML, f'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "{wanted}"\n')
    node.wanted["bin_dir"] = wanted
    for name in PROGRAMS:
        node.write(f"{wanted[1:]}/{name}", program(), 0o755)


def several(node):
    node.write(CONFIG_TOML, f"version = 3\n{CNI_TABLE}max_conf_num = 0\n")
    node.write("etc/cni/net.d/87-podman.conflist", json.dumps(PODMAN))


def set_conf(**changes):
    return lambda node: node.write(CONF, json.dumps({**MULTUS, **changes}))


# {row: (plant, id of the finding)}
NODE_ROWS = {
    "K1 directories": (wrong_dirs, "conf-dir-differs"),
    "K1 plugins": (wrong_dirs, "bin-dir-differs"),
    "K1 drop-in": (wrong_dirs_by_import, "conf-dir-differs"),
    "K2": (release_dir, "bin-dir-of-one-release"),
    "K3 loopback": (lambda n: n.remove("opt/cni/bin/loopback"), "plugin-missing"),
    "K3 ipam": (lambda n: n.remove("opt/cni/bin/host-local"), "plugin-missing"),
    "K3 machine": (lambda n: n.write("opt/cni/bin/bridge", program(183), 0o755), "plugin-wrong-machine"),
    "K3 mode": (lambda n: n.write("opt/cni/bin/portmap", program(), 0o644), "plugin-not-executable"),
    "K3 half": (lambda n: n.write("opt/cni/bin/bridge", program()[:300], 0o755), "plugin-cut-short"),
    "K3 no program": (lambda n: n.write("opt/cni/bin/bridge", "<html>", 0o755), "plugin-no-program"),
    "K7": (lambda n: n.remove("proc/sys/net/bridge/bridge-nf-call-iptables"), "no-br-netfilter"),
    "K7 forwarding": (lambda n: n.write("proc/sys/net/ipv4/ip_forward", "0"), "sysctl-off"),
    "K9": (lambda n: n.write("proc/net/tcp", "sl\n 0: 00000000:1F91 00000000:0000 0A 0\n"), "health-port-taken"),
    "K15": (lambda n: n.changes.update(socket="absent"), "multus-not-running"),
    "M3 M11": (lambda n: n.changes.update(socket="refuses"), "multus-not-running"),
    "M4": (lambda n: n.write("etc/cni/net.d/10-flannel.conflist", json.dumps(FLANNEL)), "foreign-configuration"),
    "M5": (lambda n: n.write(CONF, ""), "conf-empty"),
    "M5 half": (lambda n: n.write(CONF, json.dumps(MULTUS)[:40]), "conf-invalid"),
    "M5 list": (lambda n: n.write(CONF, json.dumps(FLANNEL)), "conf-invalid"),
    "M5 no type": (lambda n: n.write(CONF, '{"name": "x"}'), "conf-invalid"),
    "M6": (lambda n: n.remove(PRIMARY), "cluster-network-missing"),
    "M7": (set_conf(clusterNetwork="/host/etc/cni/net.d/87-podman.conflist"), "foreign-cluster-network"),
    "M7 first": (lambda n: n.write("etc/cni/net.d/00-aaa.conflist", json.dumps(PODMAN)), "foreign-first"),
    "M7 none": (set_conf(clusterNetwork=None), "no-cluster-network"),
    "M8": (lambda n: n.write("opt/cni/bin/multus-shim.temp", b"half"), "leftover"),
    "M8 conf": (lambda n: n.write("etc/cni/net.d/.gpufabric-x1", b"{"), "leftover"),
    "M10": (set_conf(cniVersion="1.0.0"), "cni-version-differs"),
    "M11 gone": (lambda n: n.remove(CONF), "no-configuration"),
    "max_conf_num": (several, "several-configurations"),
}


def test_a_sound_node_has_no_finding(node):
    assert node.findings() == []


@pytest.mark.parametrize("row", NODE_ROWS)
def test_each_planted_fault_is_found(node, row):
    plant, identity = NODE_ROWS[row]
    plant(node)
    found = node.findings()
    assert identity in [item.id for item in found]
    assert all(getattr(item, fact) for item in found for fact in ("object", "wanted", "seen", "next_step"))


HARM = {
    "plugin-missing": lambda node, path: node.remove(path),
    "plugin-not-executable": lambda node, path: node.write(path, program(), 0o644),
    "plugin-cut-short": lambda node, path: node.write(path, program()[:300], 0o755),
    "plugin-wrong-machine": lambda node, path: node.write(path, program(183), 0o755),
    "plugin-no-program": lambda node, path: (node.remove(path), os.mkfifo(node.root / path, 0o755)),
}


@pytest.mark.parametrize("name", ATTACHED)
@pytest.mark.parametrize("identity", HARM)
def test_programs_of_networks_are_looked_at_as_those_of_the_runtime(node, identity, name):
    node.attach()
    assert node.findings() == []
    HARM[identity](node, f"opt/cni/bin/{name}")
    (found,) = node.findings()
    assert (found.id, name in found.object) == (identity, True)
    if identity == "plugin-missing":
        assert "used by NetworkAttachmentDefinition default/" in found.wanted
        ours = name in node_lint.REFERENCE
        assert ("add it to cni_plugins_names" if ours else "the pod that installs it") in found.next_step


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        "[]",
        '"x"',
        '{"type": ["a"]}',
        '{"plugins": 3}',
        '{"plugins": [{"type": {}}]}',
        '{"type": "../../etc/shadow"}',
        '{"type": "/bin/sh"}',
        '{"type": "macvlan", "ipam": {"type": []}}',
    ],
)
def test_a_network_that_cannot_be_read_names_no_program_here(node, config):
    node.wanted["networks"] = [{"name": "NetworkAttachmentDefinition default/odd", "config": config}]
    assert node.findings() == []


def test_a_script_is_a_program_and_containerd_may_bring_up_lo_itself(node):
    node.write("opt/cni/bin/portmap", "#!/bin/sh\n", 0o755)
    node.remove("opt/cni/bin/loopback")
    node.write(CONFIG_TOML, f"version = 3\n{CNI_TABLE}use_internal_loopback = true\n")
    assert node.findings() == []


@pytest.mark.parametrize(("names", "named"), [([], False), (["loopback", "bridge", "host-local", "portmap"], True)])
def test_a_missing_plugin_has_one_fix(names, named):
    state = pitfall_world.cni_state()
    del state["programs"]["bridge"]
    found = node_lint.lint(state, {**pitfall_world.CNI_WANTED, "plugins": names})
    (finding,) = [one for one in found if one.id == "plugin-missing"]
    assert (finding.next_step == "run playbooks/site.yml") is named


def test_flannel_itself_may_listen_on_its_health_port(node):
    node.write("proc/net/tcp6", "sl\n 0: 00000000000000000000000000000000:1F91 0:0 0A 0\n")
    assert [item.id for item in node.findings()] == ["health-port-taken"]
    node.write("proc/77/comm", "flanneld\n")
    assert node.findings() == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], {}),
        (["version = 2\n"], {}),
        ([f'{CNI_TABLE}bin_dirs = [\n  "/a", # first\n  "/b",\n]\n'], {"bin_dirs": ["/a", "/b"]}),
        ([f"{CNI_TABLE}conf_dir = '/c#d'\nmax_conf_num = 3\n"], {"conf_dir": "/c#d", "max_conf_num": 3}),
        (['[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/a"\n'], {"bin_dirs": ["/a"]}),
        ([f"{CNI_TABLE}conf_dir = '/one'\n", f"{CNI_TABLE}conf_dir = '/two'\n"], {"conf_dir": "/two"}),
        (["[plugins.'io.containerd.cri.v1.runtime'.containerd]\nconf_dir = '/x'\n"], {}),
    ],
)
def test_containerd_is_read_as_it_reads_itself(texts, expected):
    assert containerd.cni(texts) == {**containerd.DEFAULTS, **expected}


# --- the objects ------------------------------------------------------------------------------------------------------


def objects(role: str, **variables) -> list[dict]:
    """The objects of a role with its defaults."""
    return rendering.of_template(role, "objects.yml.j2", {**rendering.of_role(role), **variables})


def daemon_set(items: list) -> dict:
    return next(item for item in items if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]


def daemon_config(items: list) -> dict:
    return next(item for item in items if item["metadata"]["name"] == "multus-daemon-config")["data"]


def set_config(**changes):
    def plant(items):
        config = {**json.loads(daemon_config(items)["daemon-config.json"]), **changes}
        daemon_config(items)["daemon-config.json"] = json.dumps(config)

    return plant


def limited(items):
    daemon_set(items)["containers"][0]["resources"]["limits"] = {"memory": "50Mi"}


def unpinned(items):
    daemon_set(items)["containers"][0]["image"] = "ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot-thick"


def overwriting(items):
    daemon_set(items)["initContainers"][0]["command"] = [
        "sh",
        "-c",
        "cp -f /usr/src/multus-cni/bin/multus-shim /opt/cni/bin/multus-shim",
    ]


def mounted_elsewhere(items):
    for mount in daemon_set(items)["containers"][0]["volumeMounts"]:
        if mount["name"] == "cni-bin":
            mount["mountPath"] = "/host/opt/cni/bin"


OBJECT_ROWS = {
    "M1": (limited, "multus-memory-limit"),
    "M2": (unpinned, "image-not-pinned"),
    "M4": (set_config(multusAutoconfigDir="/host/etc/cni/net.d"), "pod-network-usable-alone"),
    "M6 M7": (set_config(multusMasterCNI=None), "multus-picks-first"),
    "M8": (overwriting, "shim-overwritten"),
    "M9": (mounted_elsewhere, "bin-dir-mounted-elsewhere"),
    "text": (lambda items: daemon_config(items).update({"daemon-config.json": "{"}), "daemon-config-invalid"),
    "none": (lambda items: items.extend(objects("flannel")), None),
}


@pytest.fixture(scope="module")
def multus_objects():
    return objects("multus")


@pytest.mark.parametrize("row", OBJECT_ROWS)
def test_each_fault_of_a_manifest_is_found(multus_objects, row):
    plant, identity = OBJECT_ROWS[row]
    items = copy.deepcopy(multus_objects)
    plant(items)
    assert [item.id for item in node_lint.lint_objects(items)] == ([identity] if identity else [])


def test_multus_waits_for_flannels_subnet_and_the_startup_taint(multus_objects):
    """M3, M4, M6: no configuration before both, so nothing usable is there after a boot."""
    spec = daemon_set(multus_objects)
    config = json.loads(daemon_config(multus_objects)["daemon-config.json"])
    assert config["readinessindicatorfile"] == "/host/run/flannel/subnet.env"
    assert config["multusAutoconfigDir"] == "/host/etc/cni/gpufabric-rdma.d"
    assert config["multusMasterCNI"] == "10-flannel.conflist"
    waits = spec["initContainers"][1]["command"][2]
    assert "/host/run/flannel/subnet.env" in waits
    assert "/host/run/gpufabric-rdma/startup-taint" in waits
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert config["multusAutoconfigDir"] in mounts
    assert config["cniConfigDir"] in mounts
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["terminationGracePeriodSeconds"] >= 30, "M11: time to take its configuration away"


# --- Flannel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "net_conf", "argument"),
    [
        ({}, {"Network": "10.42.0.0/16", "EnableNFTables": False, "Backend": {"Type": "vxlan"}}, "--iface=$(NODE_IP)"),
        (
            {"flannel_backend": "wireguard", "flannel_mtu": 1400, "flannel_interface": "eth0"},
            {"Network": "10.42.0.0/16", "EnableNFTables": False, "Backend": {"Type": "wireguard", "MTU": 1400}},
            "--iface=eth0",
        ),
        (
            {"flannel_cidr": "10.8.0.0/16", "flannel_health_port": 8081},
            {"Network": "10.8.0.0/16", "EnableNFTables": False, "Backend": {"Type": "vxlan"}},
            "--healthz-port=8081",
        ),
    ],
    ids=["K8 the node's address", "MTU and back end", "K9 K10 port and network"],
)
def test_flannel_gets_what_is_asked_for(variables, net_conf, argument):
    items = objects("flannel", **variables)
    given = next(item for item in items if item["metadata"]["name"] == "kube-flannel-cfg")["data"]
    assert json.loads(given["net-conf.json"]) == net_conf
    container = daemon_set(items)["containers"][0]
    assert argument in container["args"]
    assert ("livenessProbe" in container) is ("flannel_health_port" in variables)
    assert "initContainers" not in daemon_set(items), "K3: what it needs on the node comes before it, from elsewhere"


def pod_nic(address="198.18.0.1", vxlan_mtu=1450, allowed=False):
    host = {
        "host": "node1",
        "rails": [{"index": 0, "netdev": "eth2"}],
        "netdevs": {
            "eth1": {"addresses": ["198.18.0.1/24"], "mtu": 1500},
            "eth2": {"addresses": ["198.18.10.1/24"], "mtu": 9000},
            "flannel.1": {"addresses": ["10.42.0.0/32"], "mtu": vxlan_mtu},
        },
    }
    node = {"name": "node1", "addresses": [], "labels": {}, "pod_cidrs": [], "pod_network_address": address}
    return [item["id"] for _host, item in cluster_checks.lint({"nodes": [node]}, [host], {}, allowed)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, []),
        ({"address": None}, []),
        ({"address": "198.18.10.1", "vxlan_mtu": 8950, "allowed": True}, []),
        ({"address": "198.18.10.1", "vxlan_mtu": 8950}, ["cluster:pod-nic"]),
        ({"vxlan_mtu": 8950}, ["cluster:pod-mtu"]),
    ],
)
def test_k8_verify_names_a_rail_that_carries_pod_traffic_and_an_mtu_that_does_not_fit(given, found):
    assert pod_nic(**given) == found


def test_a_kernel_without_br_netfilter_is_reported_before_flannel_exits_on_it():
    """K7 on RHEL 10, where the module is a package of its own."""
    state = {"modules": {"br_netfilter": "absent"}, "offline": None, "sysctls": {}, "units": {}, "files": {}}
    state.update(secrets={}, links={}, others={})
    empty = dict.fromkeys(("files", "secrets", "absent", "units", "exclusive"), ())
    made = node_files.plan(state, {**empty, "kernel_modules": ["br_netfilter"], "sysctls": {}})
    assert [finding.object for finding in made.findings] == ["module br_netfilter"]
