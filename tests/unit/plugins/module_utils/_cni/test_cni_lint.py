"""CNI on a node, objects of Multus and Flannel, NetworkAttachmentDefinitions: each planted fault and its finding."""

import copy
import json
import os
import pathlib
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd, node_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni.nad_lint import from_objects, lint
from ansible_collections.gpufabric.rdma.plugins.modules import cni_lint
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import cluster_checks
from ansible_collections.gpufabric.rdma.tests.tools import rendering

CONF, PRIMARY = "etc/cni/net.d/00-multus.conf", "etc/cni/gpufabric-rdma.d/10-flannel.conflist"
WANTED = {"conf_directory": "/etc/cni/net.d", "plugin_directory": "/opt/cni/bin", "plugins": [], "multus": True}
WANTED |= {"networks": [], "health_port": 8081, "primary": f"/{PRIMARY}"}
MULTUS = {"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus-shim", "logToStderr": True}
MULTUS["clusterNetwork"] = f"/host/{PRIMARY}"
CHAIN = [{"type": "flannel", "delegate": {"isDefaultGateway": True}}, {"type": "portmap"}]
FLANNEL = {"name": "cbr0", "cniVersion": "0.3.1", "plugins": CHAIN}
PODMAN = {"name": "podman", "cniVersion": "0.4.0", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}
# Attachments of roles and users: the last comes from a file on the node, and its programs from a DaemonSet.
CHAINED = [{"type": "host-device", "ipam": {"type": "static"}}, {"type": "tuning"}]
NETWORKS = [
    {"name": f"NetworkAttachmentDefinition default/{name}", "config": json.dumps(config)}
    for name, config in {
        "rail0": {"type": "macvlan", "master": "eth2", "ipam": {"type": "nv-ipam", "poolName": "rail0"}},
        "rail1": {"cniVersion": "0.3.1", "plugins": CHAINED},
        "ib": {"type": "ipoib", "master": "ib0", "ipam": {"type": "host-local"}},
    }.items()
]
CONFIG_TOML = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
CNI_TABLE = "[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
PROGRAMS = ("bridge", "flannel", "host-local", "loopback", "macvlan", "multus-shim", "portmap")
ATTACHED = ("macvlan", "nv-ipam", "host-device", "static", "tuning", "ipoib")


def program(machine: int = 62, size: int = 512) -> bytes:
    """An ELF header with one segment that ends at `size`, and that much after it."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
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


def containerd_of(text, version=3):
    return lambda node: node.write(CONFIG_TOML, f"version = {version}\n{text}")


def imported(node):
    folder = os.path.dirname(CONFIG_TOML)
    node.write(CONFIG_TOML, f'imports = ["/{folder}/config-v3.toml.d/*.toml"]\nversion = 3\n')
    node.write(f"{folder}/config-v3.toml.d/cni.toml", f"{CNI_TABLE}conf_dir = '/etc/other' # a user's own\n")


def release_dir(node):
    node.wanted["plugin_directory"] = wanted = "/var/lib/rancher/k3s/data/current/bin"
    containerd_of(f'[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "{wanted}"\n', 2)(node)
    for name in PROGRAMS:
        node.write(f"{wanted[1:]}/{name}", program(), 0o755)


def several(node):
    containerd_of(f"{CNI_TABLE}max_conf_num = 0\n")(node)
    node.write("etc/cni/net.d/87-podman.conflist", json.dumps(PODMAN))


def set_conf(**changes):
    return lambda node: node.write(CONF, json.dumps({**MULTUS, **changes}))


# {row: (plant, id of the finding)}
NODE_ROWS = {
    "K1 directories": (containerd_of(f"{CNI_TABLE}conf_dir = '/var/lib/rancher/k3s/net.d'\n"), "conf-dir-differs"),
    "K1 plugins": (containerd_of(f'{CNI_TABLE}bin_dirs = ["/var/lib/rancher/k3s/cni"]\n'), "bin-dir-differs"),
    "K1 drop-in": (imported, "conf-dir-differs"),
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


@pytest.mark.parametrize("row", NODE_ROWS)
def test_each_planted_fault_is_found(node, row):
    plant, identity = NODE_ROWS[row]
    plant(node)
    found = node.findings()
    assert identity in [item.id for item in found]
    assert all(getattr(item, fact) for item in found for fact in ("object", "wanted", "seen", "next_step"))


@pytest.mark.parametrize("name", ATTACHED)
def test_programs_of_networks_are_looked_at_as_those_of_the_runtime(node, name):
    node.attach()
    node.write(f"opt/cni/bin/{name}", program()[:300], 0o755)
    assert [(found.id, name in found.object) for found in node.findings()] == [("plugin-cut-short", True)]
    node.remove(f"opt/cni/bin/{name}")
    (found,) = node.findings()
    assert (found.id, name in found.object) == ("plugin-missing", True)
    assert "used by NetworkAttachmentDefinition default/" in found.wanted


@pytest.mark.parametrize(
    "config",
    [
        *("", "{", "[]", '"x"', '{"type": ["a"]}', '{"plugins": 3}', '{"plugins": [{"type": {}}]}'),
        *('{"type": "../../etc/shadow"}', '{"type": "/bin/sh"}', '{"type": "macvlan", "ipam": {"type": []}}'),
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


def test_flannel_itself_may_listen_on_its_health_port(node):
    node.write("proc/net/tcp6", "sl\n 0: 00000000000000000000000000000000:1F91 0:0 0A 0\n")
    assert [item.id for item in node.findings()] == ["health-port-taken"]
    node.write("proc/77/comm", "flanneld\n")
    assert node.findings() == []


@pytest.mark.parametrize(("texts", "expected"), [
    ([], {}),
    (["version = 2\n"], {}),
    ([f'{CNI_TABLE}bin_dirs = [\n  "/a", # first\n  "/b",\n]\n'], {"bin_dirs": ["/a", "/b"]}),
    ([f"{CNI_TABLE}conf_dir = '/c#d'\nmax_conf_num = 3\n"], {"conf_dir": "/c#d", "max_conf_num": 3}),
    (['[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/a"\n'], {"bin_dirs": ["/a"]}),
    ([f"{CNI_TABLE}conf_dir = '/one'\n", f"{CNI_TABLE}conf_dir = '/two'\n"], {"conf_dir": "/two"}),
    (["[plugins.'io.containerd.cri.v1.runtime'.containerd]\nconf_dir = '/x'\n"], {}),
    (["[plugins.'io.containerd.cri.v1.runtime']\ncni = {bin_dirs = ['/a', '/b'], max_conf_num = 3}\n"],
     {"bin_dirs": ["/a", "/b"], "max_conf_num": 3}),
    (['plugins."io.containerd.grpc.v1.cri".cni.conf_dir = "/a"\n'], {"conf_dir": "/a"}),
    ([f"{CNI_TABLE}conf_dir = 5\nbin_dirs = []\nbin_dir = ['/a']\nmax_conf_num = '2'\n"], {}),
])  # fmt: skip
def test_containerd_is_read_as_it_reads_itself(texts, expected):
    assert containerd.cni(texts) == {**containerd.DEFAULTS, **expected}


def objects(role: str, **variables) -> list[dict]:
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


def container(**changes):
    return lambda items: daemon_set(items)["containers"][0].update(changes)


COPY = ["sh", "-c", "cp -f /usr/src/multus-cni/bin/multus-shim /opt/cni/bin/multus-shim"]
ELSEWHERE = [{"name": "cni-bin", "mountPath": "/host/opt/cni/bin"}]
OBJECT_ROWS = {
    "M1": (container(resources={"limits": {"memory": "50Mi"}}), "multus-memory-limit"),
    "M2": (container(image="ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot-thick"), "image-not-pinned"),
    "M4": (set_config(multusAutoconfigDir="/host/etc/cni/net.d"), "pod-network-usable-alone"),
    "M6 M7": (set_config(multusMasterCNI=None), "multus-picks-first"),
    "M8": (lambda items: daemon_set(items)["initContainers"][0].update(command=COPY), "shim-overwritten"),
    "M9": (container(volumeMounts=ELSEWHERE), "bin-dir-mounted-elsewhere"),
    "text": (lambda items: daemon_config(items).update({"daemon-config.json": "{"}), "daemon-config-invalid"),
    "no object": (lambda items: daemon_config(items).update({"daemon-config.json": "7"}), "daemon-config-invalid"),
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
    waits = spec["initContainers"][1]["command"][2]
    assert "/host/run/flannel/subnet.env" in waits
    assert "/host/run/gpufabric-rdma/startup-taint" in waits
    mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert {config["multusAutoconfigDir"], config["cniConfigDir"], "/host/etc/cni/gpufabric-rdma.d"} <= mounts
    assert spec["terminationGracePeriodSeconds"] >= 30, "M11: time to take its configuration away"


def pod_nic(address="198.18.0.1", vxlan_mtu=1450, allowed=False, default="eth1", selector=None):
    host = {"host": "node1", "rails": [{"index": 0, "netdev": "eth2"}]}
    host["netdevs"] = {
        "eth1": {"addresses": ["198.18.0.1/24"], "mtu": 1500},
        "eth2": {"addresses": ["198.18.10.1/24"], "mtu": 9000},
        "flannel.1": {"addresses": ["10.42.0.0/32"], "mtu": vxlan_mtu},
    }
    for name, netdev in host["netdevs"].items():
        netdev["default_route"] = name == default
    node = {"name": "node1", "addresses": [], "labels": {"a": "b"}, "pod_cidrs": [], "pod_network_address": address}
    plugin = {"config": '{"configList": [{"resourceName": "a", "selectors": {"ifNames": ["eth9"]}}]}'}
    spec = {"ofedDriver": True, "nodeSelector": selector or {"a": "c"}, "rdmaSharedDevicePlugin": plugin}
    policy = {"kind": "NicNodePolicy", "metadata": {"name": "p"}, "spec": spec}
    cluster, drivers = {"nodes": [node], "policies": [policy]}, {"node1": {"installed": {"flavor": "doca"}}}
    return [item["id"] for _host, item in cluster_checks.lint(cluster, [host], drivers, allowed)]


@pytest.mark.parametrize(("given", "found"), [
    ({}, []),
    ({"address": None}, []),
    ({"address": "198.18.10.1", "vxlan_mtu": 8950, "allowed": True}, []),
    ({"address": "198.18.10.1", "vxlan_mtu": 8950, "default": "eth2"}, []),
    ({"address": "198.18.10.1", "vxlan_mtu": 8950}, ["cluster:pod-nic"]),
    ({"vxlan_mtu": 8950}, ["cluster:pod-mtu"]),
    ({"selector": {"a": "b"}}, ["policy:driver", "plugin:selector"]),
])  # fmt: skip
def test_k8_verify_names_a_rail_with_pod_traffic_an_mtu_that_does_not_fit_and_policies_of_the_node(given, found):
    assert pod_nic(**given) == found


NETDEVS = {
    "lo": {"mtu": 65536, "type": "772", "addresses": ["127.0.0.1/8"], "default_route": False},
    "eth0": {"mtu": 1500, "type": "ether", "addresses": ["10.0.0.11/24"], "default_route": True, "pci": "0000:03:00.0"},
    "eth2": {"mtu": 9000, "type": "ether", "addresses": ["198.18.2.1/24"], "default_route": False},
    "eth4": {"mtu": 9000, "type": "ether", "addresses": [], "default_route": False, "port_of": "bond0"},
    "ib0": {"mtu": 2044, "type": "infiniband", "addresses": [], "default_route": False},
}
ROUTES = [{"destination": "10.0.0.0/24", "netdev": "eth0"}, {"destination": "198.18.2.0/24", "netdev": "eth2"}]
CLUSTER = {"pod_cidrs": ["10.42.0.0/16"], "service_cidrs": ["10.43.0.0/16"], "pods_per_node": 16}
CLUSTER |= {"shared_resources": ["rdma/rail0"], "device_resources": ["nvidia.com/vfs"]}
LOCAL = {"type": "host-local", "subnet": "198.18.2.0/24", "rangeStart": "198.18.2.100", "rangeEnd": "198.18.2.199"}
MACVLAN = {"cniVersion": "0.3.1", "name": "data", "type": "macvlan", "master": "eth2", "mode": "bridge", "ipam": LOCAL}
VFS = "nvidia.com/vfs"
WHEREABOUTS = {"type": "whereabouts", "range": "198.18.2.0/24", "range_start": "198.18.2.100"}


def nodes(count=1):
    described = {"netdevs": NETDEVS, "routes": ROUTES}
    return [{"host": f"node{number + 1}", **copy.deepcopy(described)} for number in range(count)]


def nad(config, name="data", resource=None, namespace="default"):
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else {}
    meta = {"name": name, "namespace": namespace, "annotations": annotations}
    spec = {} if config is None else {"config": config if isinstance(config, str) else json.dumps(config)}
    return {"kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": spec}


def ids(objects, count=1, files=None, **cluster):
    findings = lint(from_objects(objects, files), nodes(count), {**CLUSTER, **cluster})
    for item in findings:
        assert set(item._fields) == {"id", "object", "wanted", "seen", "next_step"}
        assert all(item), item
    return [item.id for item in findings]


def without(*keys, **changes):
    return nad({key: value for key, value in {**MACVLAN, **changes}.items() if key not in keys})


def macvlan(resource=None, **changes):
    return nad({**MACVLAN, **changes}, resource=resource)


def addressed(ipam, **changes):
    return nad({**MACVLAN, "ipam": {**ipam, **changes}})


def bare(resource=None, **config):
    return nad({"cniVersion": "0.3.1", "name": "data", **config}, resource=resource)


EXCLUDING = {"type": "whereabouts", "ipRanges": [{"range": "198.18.2.0/24", "exclude": ["198.18.2.0/30"]}]}
BOTH_FAMILIES = {**EXCLUDING, "range": "fd00:5::/64", "gateway": "198.18.2.3"}
HOST_LOCAL, EVERYWHERE = {"type": "host-local"}, [{"dst": "0.0.0.0/0"}]
SBR = [{**MACVLAN, "ipam": {**LOCAL, "routes": EVERYWHERE}}, {"type": "sbr"}]
LATER_PLUGIN = [{"type": "own"}, {**MACVLAN, "master": "eth0", "ipam": {}}]
RDMA_CHAIN = [{"type": "sriov"}, {"type": "rdma"}]
# {row: (planted, the only finding; a sound network has none)}
ROWS = {
    "a rail": (macvlan("rdma/rail0"), None),
    "the master's MTU": (macvlan(mtu=9000), None),
    "no addresses": (macvlan(ipam={}), None),
    "a newer version": (macvlan(cniVersion="1.0.0"), None),
    "ipoib": (macvlan("rdma/rail0", type="ipoib", master="ib0", ipam={}), None),
    "VFs": (bare(VFS, type="sriov", ipam={}), None),
    "host-device by name": (bare(type="host-device", device="eth2", ipam={}), None),
    "host-device by resource": (bare(VFS, type="host-device", ipam={}), None),
    "a chain": (bare(plugins=[MACVLAN, {"type": "tuning"}]), None),
    "an exclusion": (addressed(EXCLUDING), None),
    "a gateway for one of two families": (addressed(BOTH_FAMILIES), None),
    "a VLAN that macvlan ignores": (macvlan(vlan=7), "value"),
    "Flannel's bridge": (bare(type="bridge", ipam={}), "taken"),
    "two plugins that make the interface": (bare(plugins=[MACVLAN, {"type": "bond"}]), "chain"),
    "an exclusion from one to another": (addressed(WHEREABOUTS, exclude=["198.18.2.110-198.18.2.120"]), "address"),
    "a range of two addresses": (addressed({"type": "whereabouts", "range": "198.51.100.0/31"}), "address"),
    "sbr keeps a default route apart": (bare(plugins=SBR), None),
    "no JSON": (nad("{"), "json"),
    "a list": (nad("[]"), "json"),
    "no name": (without("name"), "name"),
    "no version": (without("cniVersion"), "cniVersion"),
    "a version of the future": (macvlan(cniVersion="2.0.0"), "cniVersion"),
    "no type": (bare(), "type"),
    "what kubectl prints": ({"kind": "List", "items": [bare()]}, "type"),
    "a config that is no text": ({**nad(None), "spec": {"config": MACVLAN}}, "json"),
    "a name that nearly exists": (macvlan(type="mac-vlan", ipam={}), "type"),
    "an IPAM that nearly exists": (addressed({"type": "nv_ipam"}), "type"),
    "IPoIB with dhcp": (macvlan(type="ipoib", master="ib0", ipam={"type": "dhcp"}), "ipam"),
    "static without an address": (addressed({"type": "static"}), "ipam"),
    "options beside the chain": (bare(ipam=LOCAL, plugins=[{**MACVLAN, "ipam": {}}]), "chain"),
    "an interface of the pod as master": (macvlan(master="net1", linkInContainer=True, ipam={}), None),
    "an address of PCI without its domain": (bare(type="host-device", pciBusID="18:00.0", ipam={}), "value"),
    "trust as a bool": (bare(VFS, type="sriov", trust=True), "value"),
    "an exclusion as text": (addressed(WHEREABOUTS, exclude="198.18.2.128/25"), "value"),
    "an empty spec and no file": (nad(None), "file"),
    "nobody serves the resource": (macvlan("rdma/rail7"), "resource-unknown"),
    "a shared resource with host-device": (bare("rdma/rail0", type="host-device", ipam={}), "resource-host-device"),
    "a port of a bond": (macvlan(master="eth4", ipam={}), "taken"),
    "sriov without a resource": (bare(type="sriov", ipam={}), "resource-missing"),
    "host-device without a device": (bare(type="host-device", ipam={}), "resource-missing"),
    "no master": (without("master", ipam={}), "master-missing"),
    "a master that is not there": (macvlan(master="eth9", ipam={}), "master-absent"),
    "macvlan on InfiniBand": (macvlan(master="ib0", ipam={}), "macvlan-infiniband"),
    "ipoib on Ethernet": (macvlan(type="ipoib", ipam={}), "ipoib-ethernet"),
    "the NIC of the default route": (macvlan(master="eth0", ipam={}), "default-route"),
    "host-device takes the default route": (bare(type="host-device", device="eth0", ipam={}), "default-route"),
    "and by its address": (bare(type="host-device", pciBusID="0000:03:00.0", ipam={}), "default-route"),
    "an MTU above the master's": (macvlan(mtu=9216), "mtu"),
    "the pod network": (addressed(HOST_LOCAL, subnet="10.42.7.0/24"), "overlap-pod"),
    "the service network": (addressed({"type": "whereabouts", "range": "10.43.0.9-10.43.0.20/20"}), "overlap-service"),
    "a route of the host": (addressed(HOST_LOCAL, subnet="10.0.0.128/25"), "overlap-route"),
    "an address of the host": (addressed(HOST_LOCAL, subnet="198.18.2.0/24"), "host-address"),
    "a later plugin of a chain without a type": (bare(plugins=[MACVLAN, {"mtu": 9000}]), "type"),
    "a later plugin that raises the MTU": (bare(plugins=[MACVLAN, {"type": "tuning", "mtu": 9216}]), "mtu"),
    "the interface is made by a later plugin": (bare(plugins=LATER_PLUGIN), "default-route"),
    "rdma behind sriov while the nodes run shared": (bare(VFS, plugins=RDMA_CHAIN), "netns-mode"),
    "rdmaIsolation while the nodes run shared": (bare(VFS, type="ib-sriov", rdmaIsolation=True), "netns-mode"),
    "rdmaIsolation of no plugin": (bare(VFS, rdmaIsolation=True), "type"),
    "a second default route": (addressed(WHEREABOUTS, routes=EVERYWHERE), "default-route-pod"),
    "half of the address space": (addressed(LOCAL, routes=[{"dst": "128.0.0.0/1"}]), "default-route-pod"),
    "a route that takes the services": (addressed(LOCAL, routes=[{"dst": "10.0.0.0/8"}]), "route-cluster"),
    "a route through another subnet": (
        addressed(LOCAL, routes=[{"dst": "9.0.0.0/8", "gw": "9.1.1.1"}]),
        "route-gateway",
    ),
    "an address without a prefix": (addressed({"type": "static", "addresses": [{"address": "9.1.1.1"}]}), "address"),
    "a subnet with host bits": (addressed(HOST_LOCAL, subnet="198.18.2.5/24"), "address"),
    "a start with a prefix": (addressed(LOCAL, rangeStart="198.18.2.100/24"), "address"),
    "a route to default": (addressed(LOCAL, routes=[{"dst": "default"}]), "address"),
    "a plugin that needs one before it": (bare(plugins=[{"type": "sbr"}]), "chain"),
    "an MTU as text": (macvlan(mtu="9000"), "value"),
    "a gateway elsewhere": (addressed(WHEREABOUTS, gateway="198.18.3.1"), "outside"),
    "a gateway that a pod would get": (addressed(WHEREABOUTS, gateway="198.18.2.254"), "host-address"),
    "an exclusion elsewhere": (addressed(WHEREABOUTS, exclude=["198.18.3.0/30", "198.18.2.101"]), "outside"),
    "all of it excluded": (addressed(WHEREABOUTS, exclude=["198.18.2.64/26", "198.18.2.128/25"]), "blocks"),
    "fewer addresses than pods": (addressed(LOCAL, rangeEnd="198.18.2.107"), "block-size"),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_planted_fault_is_the_only_finding(row):
    planted, identity = ROWS[row]
    assert ids([planted]) == ([f"nad:{identity}"] if identity else [])


SUBNET = {"subnet": "198.51.100.0/24", "perNodeBlockSize": 16}
PREFIXES = {"cidr": "198.51.100.0/24", "perNodeNetworkPrefix": 26}


def pooled(spec=None, kind="IPPool", name="pool", **ipam):
    pool = {"kind": kind, "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "metadata": {"name": "pool"}, "spec": spec}
    return [addressed({"type": "nv-ipam", "poolName": name}, **ipam), pool]


def subnet(**changes):
    return pooled({**SUBNET, **changes})


def per_node(**changes):
    return pooled({**PREFIXES, **changes}, "CIDRPool", poolType="cidrpool")


def taken(first, last):
    return subnet(exclusions=[{"startIP": f"198.51.100.{first}", "endIP": f"198.51.100.{last}"}])


def both(ipam, other):
    return [nad({**MACVLAN, "name": "a", "ipam": ipam}, "a"), nad({**MACVLAN, "name": "b", "ipam": other}, "b")]


BOOK = {"type": "whereabouts", "range": "198.51.101.0/24", "network_name": "x"}
POOLED, POOL = {"type": "nv-ipam", "poolName": "pool"}, pooled(SUBNET)[1]
SLICED = {"type": "whereabouts", "range": "198.51.100.0/24", "node_slice_size": "/26"}


@pytest.mark.parametrize(("objects", "count", "found"), [
    (subnet(), 15, None), (subnet(), 16, "blocks"),
    (subnet(nodeSelector={"nodeSelectorTerms": []}), 16, None),
    (subnet(gateway="198.51.101.1"), 1, "outside"),
    (subnet(gateway="198.51.100.1", defaultGateway=True), 1, "default-route-pod"),
    (subnet(perNodeBlockSize=4), 1, "block-size"),
    (subnet(subnet="10.42.0.0/24"), 2, "overlap-pod"),
    (taken(9, 2), 1, "address"), (subnet(perNodeBlockSize=None), 1, "address"),
    (taken(1, 2), 1, None), (taken(1, 16), 1, "blocks"), (taken(1, 13), 2, "blocks"),
    (taken(17, 32), 1, None), (taken(17, 32), 2, "blocks"),
    (per_node(), 4, None), (per_node(), 5, "blocks"),
    (per_node(gatewayIndex=1), 4, None), (per_node(gatewayIndex=64), 4, "address"),
    (per_node(perNodeNetworkPrefix=23), 1, "address"), (per_node(perNodeNetworkPrefix=33), 1, "address"),
    (per_node(perNodeNetworkPrefix=-(10**12)), 1, "address"),
    (per_node(perNodeExclusions=[{"startIndex": 0, "endIndex": 63}]), 2, "blocks"),
    (pooled(SUBNET, name="pool,pool,pool"), 1, "pools"),
    ([macvlan(), bare(type="ipvlan", master=MACVLAN["master"], ipam={})], 1, "taken"),
    ([macvlan(), bare(type="host-device", device=MACVLAN["master"], ipam={})], 1, "taken"),
    ([macvlan(), macvlan(mode="passthru", ipam={})], 1, "taken"),
    ([addressed(SLICED)], 4, None), ([addressed(SLICED)], 5, "blocks"),
    (pooled(SUBNET, name="other"), 1, "pool-missing"), (pooled(SUBNET, name="pool,other"), 1, "pool-missing"),
    ([macvlan()], 2, "host-local-nodes"), ([addressed(WHEREABOUTS)], 2, None),
    # Networks that share a record of addresses must share the range, and a subnet only with its record.
    (both(BOOK, {**BOOK, "range": "198.51.100.0/24"}), 1, "same-name"),
    (both(BOOK, {**BOOK, "range": "198.51.100.0/24", "network_name": "y"}), 1, None),
    (both(BOOK, {**BOOK, "network_name": "y"}), 1, "overlap-nad"),
    (both(WHEREABOUTS, {**WHEREABOUTS, "range": "198.18.2.7/24"}), 1, None),
    ([*both(POOLED, POOLED), POOL], 1, None),
    ([{**POOL, "metadata": {"name": "q"}}, *pooled({**SUBNET, "subnet": "10.42.0.0/24"}, name="q,pool")],
        *(1, "overlap-pod")),
    (both(BOOK, BOOK), 1, None), (both(WHEREABOUTS, WHEREABOUTS), 1, None),
    (both(LOCAL, LOCAL), 1, "overlap-nad"), ([macvlan(), nad(MACVLAN, namespace="train")], 1, None),
])  # fmt: skip
def test_what_pools_and_other_networks_leave_for_a_node(objects, count, found):
    assert ids(objects, count) == ([f"nad:{found}"] if found else [])


ODD = [None, 0, "x", [], ["x"], {}, {"x": None}, [["x"]], [{"x": []}], 1.5, True]
PLACES = ("ipam", "plugins", "master", "device", "pciBusID", "mtu", "type", "name", "rdmaIsolation")
IN_IPAM = ("range", "ranges", "ipRanges", "exclude", "gateway", "routes", "subnet", "addresses", "poolName")
IN_POOL = ("exclusions", "gateway", "gatewayIndex", "perNodeExclusions", "routes", "defaultGateway", "nodeSelector")


@pytest.mark.parametrize("kind", ["host-local", "whereabouts", "nv-ipam", "static"])
def test_no_value_however_odd_breaks_the_linter(kind):
    for value in ODD:
        configs = [{**MACVLAN, key: value} for key in PLACES] + [
            {**MACVLAN, "ipam": {"type": kind, "subnet": "198.18.2.0/24", key: value}} for key in IN_IPAM
        ]
        for config in configs:
            lint(from_objects([nad(config), nad(config, "other")]), nodes(2), CLUSTER)
        for spec, kind_of_pool in ((SUBNET, "IPPool"), (PREFIXES, "CIDRPool")):
            for key in (*spec, *IN_POOL):
                objects = pooled({**spec, key: value}, kind_of_pool, poolType=kind_of_pool.lower())
                lint(from_objects(objects), nodes(2), CLUSTER)
        lint(from_objects(pooled(None)), nodes(2), CLUSTER)


@pytest.mark.parametrize(("ipam", "pods", "enough"), [
    # Addresses that host-local of the CNI plugins v1.9.1 handed out of these before it reported that none is left.
    ({"subnet": "10.9.0.0/28"}, 13, True),
    ({"subnet": "10.9.0.0/28"}, 14, False),
    ({"subnet": "10.9.0.0/28", "gateway": "10.9.0.14", "rangeEnd": "10.9.0.8"}, 8, True),
    ({"subnet": "10.9.0.0/28", "rangeStart": "10.9.0.1", "rangeEnd": "10.9.0.8"}, 8, False),
    ({"subnet": "10.9.0.0/28", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.9"}, 8, True),
])  # fmt: skip
def test_addresses_are_counted_as_host_local_hands_them_out(ipam, pods, enough):
    found = ids([nad({**MACVLAN, "ipam": {"type": "host-local", **ipam}})], pods_per_node=pods)
    assert found == ([] if enough else ["nad:block-size"])


def test_files_of_the_nodes_are_read_for_an_empty_spec():
    def block(first):
        ipam = {**LOCAL, "rangeStart": f"198.18.2.{first}", "rangeEnd": f"198.18.2.{first + 49}"}
        return {"data": json.dumps({**MACVLAN, "ipam": ipam})}

    assert ids([nad(None)], count=2, files={"node1": block(50), "node2": block(100)}) == []
    assert ids([nad(None)], count=2, files={"node1": block(50), "node2": block(50)}) == ["nad:block-clash"]


def test_what_is_unknown_is_not_a_finding():
    assert ids([macvlan("rdma/rail7")], shared_resources=None) == []
    assert ids([macvlan(master="eth0", ipam={})], forbidden_masters_allowed=["eth0"]) == []
    assert lint(from_objects([macvlan()]), [], {}) == []
