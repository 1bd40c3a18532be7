"""The plan of a k3s cluster: what is decided, and what is refused before anything changes (K of docs/failures.md)."""

from __future__ import annotations

import copy
import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config, plan, reset
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import k3s
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles

SHA = "0" * 64
TYPED = {
    name[len("k3s_") :]: option.get("default")
    for name, option in documented_roles()["k3s"].items()
    if name not in ("k3s_token", "k3s_registries", "k3s_bundle_dir")
}


def services(server="inactive", agent="inactive"):
    """The state of both units, by systemd's ActiveState."""
    return {
        name: {"active": told == "active", "starting": told == "activating", "enabled": told != "inactive"}
        for name, told in (("k3s", server), ("k3s-agent", agent))
    }


def state(number=1, **change):
    found = {
        "architecture": "amd64",
        "hostname": f"node{number}",
        "family": "debian",
        "distribution": "debian12",
        "addresses": [
            {"netdev": "eth0", "address": f"192.0.2.{number}/24"},
            {"netdev": "rail0", "address": f"10.77.1.{number}/24"},
        ],
        "routes": [{"netdev": "eth0", "destination": "0.0.0.0/0"}, {"netdev": "eth0", "destination": "192.0.2.0/24"}],
        "selinux": "disabled",
        "selinux_policy": False,
        "iptables": [1, 8, 9],
        "version": None,
        "others": [],
        "listening": [22],
        "server_url": None,
        "joined": False,
        "cluster": False,
        "sums": {},
        "started": {},
        "inputs": {},
        "younger": [],
        "services": services(),
        "token": {"present": False},
        "foreign_files": [],
    }
    return {**found, **change}


def node(number=1, servers=("node1",), seen=None, guessed_from=(), first_addresses=(), **variables):
    return {
        "host": f"node{number}",
        "servers": list(servers),
        "guessed_from": list(guessed_from),
        "first_addresses": list(first_addresses),
        "state": state(number, **(seen or {})),
        "failure": None,
        "facts": {},
        "variables": {**copy.deepcopy(TYPED), **variables},
    }


def bundle(version="v1.35.8+k3s1", architecture="amd64", **more):
    row = {"name": "k3s", "version": version, "architecture": architecture, "path": "k3s", "sha256": SHA}
    return {"schema": 1, "origin": "release", "files": [row], "images": [], **more}


def decide(*nodes, held=None, upgrade=False, now=None, inventory=()):
    held = held or bundle()
    return k3s.decide(list(nodes), held, "/srv/bundle", changing_version=upgrade, now=now, inventory=inventory)


def options(*nodes, host="node1"):
    decided = decide(*nodes)
    assert decided["findings"] == []
    return {name: value for file in decided["nodes"][host]["options"].values() for name, value in file.items()}


def findings(*nodes, **more):
    return [(item["host"], item["object"]) for item in decide(*nodes, **more)["findings"]]


def test_two_plain_nodes_have_no_problem_and_the_first_is_the_server():
    decided = decide(node(), node(2))
    assert decided["findings"] == []
    assert [found["role"] for found in decided["nodes"].values()] == ["server", "agent"]
    assert decided["nodes"]["node2"]["options"][config.CONFIG]["server"] == "https://192.0.2.1:6443"
    found = options(node())
    assert (found["disable"], found["flannel-backend"]) == (["servicelb", "traefik"], "none")
    assert found["node-ip"] == "192.0.2.1"


def test_k6_network_policies_stay_enforced_unless_disabled():
    assert "disable-network-policy" not in options(node())
    assert options(node(network_policy=False))["disable-network-policy"] is True


def test_k7_the_modules_of_the_pod_network_are_loaded_before_k3s():
    for role in ("server", "agent"):
        assert re.findall(r"modprobe (\w+)", config.unit(role)) == ["br_netfilter", "overlay"]


PORTS = {"API server": ([6443], "TCP port 6443"), "kubelet": ([10250], "TCP port 10250"), "other": ([8080], None)}


@pytest.mark.parametrize("name", PORTS)
def test_k9_a_port_that_something_else_listens_on_is_named_but_not_that_of_a_k3s_that_runs(name):
    ports, expected = PORTS[name]
    found = [obj for _host, obj in findings(node(seen={"listening": ports}))]
    assert found == ([expected] if expected else [])
    for state_of_it in ("active", "activating"):
        assert findings(node(seen={"listening": ports, "services": services(state_of_it)})) == []


def test_k10_the_routes_of_a_running_pod_network_are_its_own():
    routes = [*state()["routes"], {"netdev": "flannel.1", "destination": "10.42.1.0/24"}]
    assert findings(node(seen={"routes": routes})) == []
    host_gateway = [*state()["routes"], {"netdev": "eth0", "destination": "10.42.1.0/24"}]
    assert findings(node(seen={"routes": host_gateway, "cluster": True})) == []


def test_k12_values_that_servers_must_agree_on_are_compared():
    three = ("node1", "node2", "node3")
    nodes = [node(number, three) for number in (1, 2, 3)]
    assert findings(*nodes) == []
    assert options(*nodes)["cluster-init"] is True
    assert "cluster-init" not in options(*nodes, host="node2")
    nodes[1]["variables"].update(secrets_encryption=False, disable=["traefik"])
    assert findings(*nodes) == [("node2", "k3s option disable"), ("node2", "k3s option secrets-encryption")]


def test_a_namespace_of_someone_else_is_refused_with_all_other_findings():
    found = {"object": "namespace ml-team", "wanted": "w", "seen": "managed by argocd", "next_step": "n", "id": ""}
    decided = decide(node(seen={"namespaces": [found], "others": ["RKE2"]}))
    assert {finding["object"] for finding in decided["findings"]} == {"namespace ml-team", "cluster"}


IPTABLES = {(1, 6, 1): False, (1, 8, 0): True, (1, 8, 4): True, (1, 8, 5): False, (1, 8, 10): False}


@pytest.mark.parametrize("version", IPTABLES)
def test_k14_an_iptables_that_duplicates_rules_is_not_used(version):
    assert options(node(seen={"iptables": list(version)})).get("prefer-bundled-bin", False) is IPTABLES[version]
    assert "prefer-bundled-bin" not in options(node(seen={"iptables": None}))


SAVED = """*filter
:INPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A INPUT -p tcp --dport 22 -j ACCEPT
-A INPUT -m comment --comment "kubernetes health" -j KUBE-FIREWALL
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
"""


def test_k15_a_reset_takes_our_rules_and_leaves_those_of_others():
    kept = reset.foreign_rules(SAVED)
    assert kept.splitlines() == [
        "*filter",
        ":INPUT ACCEPT [0:0]",
        "-A INPUT -p tcp --dport 22 -j ACCEPT",
        "COMMIT",
    ]
    assert reset.cluster_rules(kept) == []


@pytest.mark.parametrize("comment", ["allow KUBE-API", "ssh, in FLANNEL-mgmt", "flanneld", "-j KUBE-X", "CNI-x"])
def test_k15_a_word_in_a_comment_makes_no_rule_ours(comment):
    rule = f'-A INPUT -s 10.0.0.0/8 -m comment --comment "{comment}" -j ACCEPT\n'
    assert reset.foreign_rules(rule) == rule


def test_k15_of_cni_plugins_rules_only_those_of_our_containers_go():
    def entry(chain, name, container, target):
        return f'-A {chain} -m comment --comment "name: \\"{name}\\" id: \\"{container}\\"" -j {target}\n'

    podmans = entry("POSTROUTING", "podman", "b" * 64, "CNI-b") + entry(
        "CNI-HOSTPORT-DNAT", "podman", "b" * 64, "CNI-DN-b"
    )
    shared = ":CNI-HOSTPORT-DNAT - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n"
    theirs = f":CNI-b - [0:0]\n:CNI-DN-b - [0:0]\n{podmans}-A CNI-b -d 10.88.0.0/16 -j ACCEPT\n"
    calicos = '-A INPUT -m comment --comment "cali:abc" -j cali-INPUT\n'
    ours = (
        entry("POSTROUTING", "rail0", "a" * 64, "CNI-a")
        + entry("CNI-HOSTPORT-DNAT", "cbr0", "c" * 64, "CNI-DN-c")
        + ":CNI-a - [0:0]\n:CNI-DN-c - [0:0]\n-A CNI-DN-c -p tcp -j DNAT\n"
    )
    assert reset.foreign_rules(shared + theirs + ours + calicos, {"a" * 64}) == shared + theirs + calicos
    assert reset.foreign_rules(shared + ours, {"a" * 64}) == ""


def reset_state(**change):
    found = {
        "agent": False,
        "services": ["k3s.service"],
        "units": ["/etc/systemd/system/k3s.service"],
        "processes": [7, 8],
        "links": ["cni0", "flannel.1"],
        "mounts": ["/run/k3s/a", "/run/k3s/a/b"],
        "netns": [],
        "rules": {"iptables": 5},
        "unread": [],
        "unproven": [],
        "kubernetes": {},
        "linked": {},
        "mounted": {},
        "volumes": [],
        "files": ["/etc/cni/net.d/00-multus.conf"],
        "folders": ["/run/multus"],
        "foreign": ["/opt/cni/bin/mine"],
        "others": [],
    }
    return {**found, **change}


def test_k15_containers_end_before_links_and_mounts_and_what_stays_is_listed():
    made = reset.plan(reset_state())
    assert [change.object for change in made.changes] == [
        "service k3s.service",
        "containers",
        "link cni0",
        "link flannel.1",
        "mount /run/k3s/a/b",
        "mount /run/k3s/a",
        "rules of iptables",
        "/etc/systemd/system/k3s.service",
        "/etc/cni/net.d/00-multus.conf",
        "/run/multus",
    ]
    assert "/opt/cni/bin/mine stays: it is not ours" in made.notes
    refused = reset.plan(reset_state(others=["/etc/systemd/system/k3s.service"]))
    assert (refused.changes, len(refused.findings)) == ([], 1)


# --- bad input, all of it at once -------------------------------------------------------------------------------------

TWO = ("node1", "node2")
# {what: (the nodes, what is found)}
REFUSED = {
    "unknown option": ([node(config_extra={"flanel-iface": "eth0"})], "k3s_config_extra: flanel-iface"),
    "option of a server": ([node(2, config_extra={"etcd-arg": []}), node()], "k3s_config_extra: etcd-arg"),
    "owned option": ([node(config_extra={"cluster-cidr": "10.0.0.0/8"})], "k3s_config_extra: cluster-cidr"),
    "token": ([node(config_extra={"token": "x"})], "k3s_config_extra: token"),
    "secret": ([node(config_extra={"datastore-endpoint": "p://u:p@db"})], "k3s_config_extra: datastore-endpoint"),
    "kubelet": ([node(kubelet_args={"topology-manager-policy": "x"})], "k3s_kubelet_args: topology-manager-policy"),
    "taint": ([node(node_taints=["gpu"])], "k3s_node_taints"),
    "label": ([node(node_labels={"a b": "c"})], "k3s_node_labels"),
    "processor": ([node(seen={"architecture": "arm64"})], "bundle /srv/bundle"),
    "version": ([node(version="v1.34.1+k3s1")], "k3s_version"),
    "another version": ([node(seen={"version": "v1.34.1+k3s1"})], "k3s"),
    "kubeadm": ([node(seen={"others": ["kubeadm"]})], "cluster"),
    "kubeadm, denied": ([node(seen={"others": ["kubeadm"]}, takeover_allowed=False)], "cluster"),
    "other k3s": ([node(seen={"foreign_files": ["/etc/systemd/system/k3s.service"]})], "cluster"),
    "policy package": (
        [node(seen={"selinux": "enforcing", "family": "rhel", "distribution": "rhel9"})],
        "bundle /srv/bundle",
    ),
    "two servers": ([node(1, TWO), node(2, TWO)], "group k3s_servers"),
    "no servers": ([node(1, ())], "group k3s_servers"),
    "an agent alone": ([node(2)], "k3s_server_url"),
    "unreachable": ([{**node(), "state": None, "failure": "unreachable"}], "node"),
    "K8 not on the node": ([node(node_ip="198.51.100.9")], "node-ip 198.51.100.9"),
    "K8 the same on two": ([node(2, seen=state(1)), node(node_ip="192.0.2.1")], "node-ip 192.0.2.1"),
    "K8 none to tell": ([node(seen={"routes": []})], "node-ip"),
    "K8 two to tell": (
        [node(seen={"routes": [{"netdev": name, "destination": "0.0.0.0/0"} for name in ("eth0", "rail0")]})],
        "node-ip",
    ),
    "K10 pods in services": ([node(cluster_cidr="10.43.128.0/17")], "k3s_cluster_cidr 10.43.128.0/17"),
    "K10 services in pods": ([node(service_cidr="10.42.0.0/24")], "k3s_cluster_cidr 10.42.0.0/16"),
    "K10 pods over a rail": ([node(cluster_cidr="10.77.0.0/16")], "k3s_cluster_cidr 10.77.0.0/16"),
    "K10 services over the LAN": ([node(service_cidr="192.0.2.0/25")], "k3s_service_cidr 192.0.2.0/25"),
    "K10 no network": ([node(cluster_cidr="10.42.0.0/33")], "k3s_cluster_cidr"),
    "K10 DNS outside": ([node(cluster_dns="10.99.0.10")], "k3s_cluster_dns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name):
    nodes, expected = REFUSED[name]
    assert (nodes[0]["host"], expected) in findings(*nodes)


@pytest.mark.parametrize("version", sorted(k3s.BROKEN_VERSIONS))
def test_k4_a_version_that_does_not_start_without_its_flannel_is_refused(version):
    assert ("node1", "k3s") in findings(node(), held=bundle(version))


@pytest.mark.parametrize(
    ("nodes", "inventory", "hosts"),
    [
        ([node(1, seen={"hostname": "gpu"}), node(2, seen={"hostname": "gpu"})], (), ["node1", "node2"]),
        ([node(1), node(2, seen={"hostname": "node1"})], (), ["node1", "node2"]),
        ([node(1, seen={"hostname": "node2"})], ["node1", "node2"], ["node1"]),
        ([node(1, seen={"hostname": "node2"})], ["node1", "node2.example.com"], ["node1"]),
        ([node(1, seen={"hostname": "node2"}, node_name="gpu1")], ["node1", "node2"], []),
        ([node(1, seen={"hostname": "node2"}, node_name="node2")], ["node1", "node2"], []),
        ([node(1), node(2, node_name="node1")], (), ["node1", "node2"]),
        ([node(1, seen={"hostname": "gpu1"}), node(2)], ["node1", "node2", "node3"], []),
    ],
)
def test_a_name_is_one_nodes(nodes, inventory, hosts):
    found = decide(*nodes, inventory=inventory)["findings"]
    assert [row["host"] for row in found if row["id"] == "k3s:node-name"] == hosts


def test_an_agent_has_a_server_by_its_url_or_its_configuration():
    assert findings(node(2, server_url="https://192.0.2.100:6443")) == []
    assert findings(node(2, seen={"server_url": "https://192.0.2.1:6443"})) == []


def test_a_run_that_leaves_the_first_server_out_does_not_make_another_cluster():
    three = ("node1", "node2", "node3")
    assert ("node2", "k3s_server_url") in findings(node(2, three))
    joined = node(2, three, server_url="https://192.0.2.1:6443")
    assert "cluster-init" not in options(joined, host="node2")


SERVER, AGENT = {"cluster": True}, {"joined": True, "server_url": "https://192.0.2.1:6443"}
GUESSED = {"guessed_from": ("node1", "node2", "node3")}
NEW_IN_FRONT = {"servers": ("node3",), "guessed_from": ("node3", "node1", "node2")}
OUTSIDE = {**GUESSED, "first_addresses": ["192.0.2.1", "node1"]}


@pytest.mark.parametrize(
    ("nodes", "host", "seen"),
    [
        ([node(3, **NEW_IN_FRONT)], "node3", "not in this run: node1, node2"),
        (
            [node(3, **NEW_IN_FRONT), node(1, seen=SERVER, **NEW_IN_FRONT), node(2, seen=AGENT, **NEW_IN_FRONT)],
            "node3",
            "already in a cluster: node1, node2",
        ),
        ([node(1, **GUESSED), node(2, seen=AGENT, **GUESSED), node(3, **GUESSED)], "node1", "in a cluster: node2"),
        ([node(1, seen=AGENT, **GUESSED), node(2, **GUESSED), node(3, **GUESSED)], "node1", "in a cluster: node1"),
        (
            [node(1, seen=SERVER, **GUESSED), node(2, seen=SERVER, **GUESSED), node(3, **GUESSED)],
            "node1",
            "already in a cluster: node2",
        ),
        ([node(1, seen=SERVER, **NEW_IN_FRONT)], "node1", "a server of a cluster"),
        ([node(2, seen=AGENT, **NEW_IN_FRONT)], "node2", "https://192.0.2.1:6443"),
        ([node(1, ("node1", "node2", "node3"))], "node1", "does not read node2, node3"),
        (
            [node(2, ("node3", "node1", "node2")), node(3, ("node3", "node1", "node2")), node(1, seen=SERVER)],
            "node3",
            "starts a second cluster beside node1",
        ),
    ],
)
def test_a_first_server_that_is_not_certain_is_refused(nodes, host, seen):
    for other in nodes:
        other["servers"] = nodes[0]["servers"]
    found = [item for item in decide(*nodes)["findings"] if item["object"] == "group k3s_servers"]
    assert [item["host"] for item in found] == [host], found
    assert seen in found[0]["seen"]
    assert "k3s_servers" in found[0]["next_step"]


@pytest.mark.parametrize(
    "nodes",
    [
        [node(1, **GUESSED), node(2, **GUESSED), node(3, **GUESSED)],
        [node(1, seen=SERVER, **GUESSED), node(2, seen=AGENT, **GUESSED), node(3, **GUESSED)],
        [node(1, seen=SERVER, **GUESSED)],
        [node(2, seen=AGENT, **OUTSIDE)],
        [node(2, server_url="https://192.0.2.1:6443", **OUTSIDE)],
        [node(2, server_url="https://k3s.example:6443", **OUTSIDE)],
        [node(1), node(2, seen=AGENT)],
        [node(2, seen=AGENT)],
    ],
    ids=[
        "bare",
        "converged",
        "the server alone",
        "an agent",
        "a new agent",
        "behind a name",
        "named",
        "named, limited",
    ],
)
def test_a_first_server_that_is_certain_is_taken(nodes):
    assert findings(*nodes) == []


def test_a_takeover_happens_with_consent_and_is_reported():
    decided = decide(node(seen={"others": ["kubeadm"]}, takeover_allowed=True))
    assert decided["findings"] == []
    assert "taken over" in decided["notes"][0]


def test_only_what_a_node_lacks_is_sent_to_it():
    images = [{"reference": name, "path": "images.tar", "sha256": SHA} for name in ("a:1", "b:1")]
    held = bundle(images=images)
    files = decide(node(), held=held)["nodes"]["node1"]["files"]
    assert [item["dest"] for item in files] == [config.BINARY, f"{config.IMAGES}/images.tar"]
    sums = {item["dest"]: SHA for item in files}
    assert decide(node(seen={"sums": sums}), held=held)["nodes"]["node1"]["files"] == []
    swapped = {**sums, config.BINARY: "1" * 64}
    (heals,) = decide(node(seen={"sums": swapped, "version": "v1.35.8+k3s1"}), held=held)["nodes"]["node1"]["files"]
    assert heals["dest"] == config.BINARY


LABELS = {"feature.node.kubernetes.io/rdma.capable", "feature.node.kubernetes.io/pci-15b3.present"}


def test_the_labels_of_the_seeds_come_from_facts_or_from_nfd_never_from_both():
    ports = [{"link_layer": "InfiniBand"}, {"link_layer": "unknown: the driver is not loaded"}]
    facts = {
        "hcas": [{"pci": {"vendor": "15b3"}, "ports": ports}],
        "rails": [{}, {}],
        "driver": {"loaded": {"flavor": "inbox"}},
    }
    found = k3s.labels(facts, TYPED)
    assert set(found) > LABELS
    assert found["rdma.gpufabric.io/link-layer"] == "InfiniBand"
    assert (found["rdma.gpufabric.io/rails"], found["rdma.gpufabric.io/driver"]) == ("2", "inbox")
    assert not LABELS & set(k3s.labels(facts, {**TYPED, "node_features_by_nfd": True}))
    assert k3s.labels({}, {**TYPED, "node_labels": {"a": 1}}) == {"a": "1"}


def test_startup_taint_and_topology_policy_reach_the_kubelet():
    found = options(node(topology_manager_policy="single-numa-node", topology_manager_scope="pod"))
    assert found["node-taint"] == ["rdma.gpufabric.io/not-ready=true:NoSchedule"]
    assert found["kubelet-arg"] == ["topology-manager-policy=single-numa-node", "topology-manager-scope=pod"]
    assert "node-taint" not in options(node(startup_taint=False))


UPGRADES = {
    "patch": ("v1.35.6+k3s1", "v1.35.8+k3s1", None),
    "minor": ("v1.34.9+k3s1", "v1.35.8+k3s1", None),
    "two minors": ("v1.33.9+k3s1", "v1.35.8+k3s1", "one minor at a time"),
    "down": ("v1.35.8+k3s1", "v1.35.6+k3s1", "or newer"),
    "build down": ("v1.35.8+k3s2", "v1.35.8+k3s1", "or newer"),
    "same": ("v1.35.8+k3s1", "v1.35.8+k3s1", None),
    "no version": ("nightly", "v1.35.8+k3s1", "versions that can be compared"),
}


@pytest.mark.parametrize("name", UPGRADES)
def test_an_upgrade_goes_up_one_minor_at_a_time(name):
    old, new, words = UPGRADES[name]
    decided = decide(node(seen={"version": old}), held=bundle(new), upgrade=True)
    assert decided["findings"] == []
    found = k3s.upgrade(decided["nodes"])
    assert [words in finding["wanted"] for finding in found] == ([True] if words else [])


def test_an_agent_ahead_of_its_server_is_refused():
    nodes = [node(seen={"version": "v1.34.1+k3s1"}), node(2, seen={"version": "v1.35.1+k3s1"})]
    found = k3s.upgrade(decide(*nodes, upgrade=True)["nodes"])
    assert [(finding["host"], finding["object"]) for finding in found] == [("node2", "k3s agent")]


# --- one node ---------------------------------------------------------------------------------------------------------


def node_state(**change):
    found = {
        "files": {},
        "foreign_files": [],
        "links": dict.fromkeys(config.LINKS, config.BINARY),
        "binary": {"mode": "0755"},
        "services": services("active"),
        "token": {"present": True, "mode": "0600", "differs": False},
        "started": {"a": "1"},
        "inputs": {"a": "1"},
        "younger": [],
    }
    return {**found, **change}


WANTED = {
    "role": "server",
    "options": {config.CONFIG: {"node-ip": "192.0.2.1"}},
    "registries": {"configs": {"r": {"auth": {"password": "hunter2"}}}},
    "token_given": False,
    "takeover_allowed": None,
}


def settled(**change):
    files = {path: {"content": text, "mode": mode} for path, (text, mode) in plan.texts(WANTED).items()}
    return node_state(files=files, **change)


def acts(found, wanted=None):
    return [(change.object, change.action) for change in plan.plan(found, wanted or WANTED).changes]


DRIFTS = {
    "nothing": ({}, []),
    "something it reads": ({"inputs": {"a": "2"}}, [("service k3s", "restart")]),
    "a file that was away when someone else started it": ({"younger": ["a"]}, [("service k3s", "restart")]),
    "an image came": ({"inputs": {"a": "1", "b": "1"}}, [("service k3s", "restart")]),
    "stopped": ({"services": services()}, [("service k3s", "enable"), ("service k3s", "start")]),
    # A run that was killed began it, and wrote nothing down.
    "starting": ({"services": services("activating"), "started": {}}, [("service k3s", "start")]),
    "starting, without what was written since": (
        {"services": services("activating"), "younger": ["a"]},
        [("service k3s", "restart")],
    ),
    "token mode": ({"token": {"present": True, "mode": "0644", "differs": False}}, [(config.TOKEN, "mode")]),
    "program mode": ({"binary": {"mode": "0644"}}, [(config.BINARY, "mode")]),
    "link gone, another a program of its own": (
        {"links": dict(zip(config.LINKS, (None, config.BINARY, "a program of its own")))},
        [(config.LINKS[0], "link")],
    ),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_k3s_is_restarted_when_and_only_when_what_it_reads_has_changed(name):
    change, expected = DRIFTS[name]
    assert acts(settled(**change)) == expected


def test_no_secret_is_in_a_plan():
    foreign = {config.CONFIG: {"content": "token: hunter2", "mode": "0644"}}
    made = plan.plan(node_state(files=foreign), WANTED)
    assert {config.CONFIG, config.REGISTRIES} < {change.object for change in made.changes}
    assert "hunter2" not in repr(made)
    assert all(mode == "0600" for path, (_text, mode) in plan.texts(WANTED).items() if "rancher" in path)


def test_a_file_of_ours_that_is_no_longer_wanted_goes_and_a_foreign_one_stops_the_run():
    extra = {config.EXTRA: {"content": plan.paths.HEADER + "\nv: 1", "mode": "0600"}}
    found = settled()
    found["files"].update(extra)
    assert acts(found) == [(config.EXTRA, "remove"), ("service k3s", "restart")]
    foreign = settled(foreign_files=[config.CONFIG])
    assert plan.plan(foreign, WANTED).findings[0].object == config.CONFIG
    assert plan.plan(foreign, {**WANTED, "takeover_allowed": True}).findings == []


def test_another_token_and_another_role_are_refused():
    assert plan.plan(settled(token={"present": True, "mode": "0600", "differs": True}), WANTED).findings
    for found in ("active", "activating"):
        agent = services(agent=found)
        assert plan.plan(settled(services=agent), WANTED).findings[0].object == "service k3s-agent"


NOON, DAY = 1795608000.0, 86400


@pytest.mark.parametrize(
    ("clocks", "named"),
    [
        ([NOON], []),
        ([NOON - 590], []),
        ([NOON - 620], ["node1"]),
        # Read within 20 minutes.
        ([NOON - 5 * number for number in range(240)], []),
        ([NOON + DAY], ["node1"]),
        ([NOON, NOON - DAY], ["node2"]),
        ([NOON, NOON + DAY, NOON + 30], ["node2"]),
        ([None, NOON], []),
    ],
)
def test_a_clock_that_is_off_is_named(clocks, named):
    nodes = [node(number, seen={"clock": clock}) for number, clock in enumerate(clocks, 1)]
    decided = decide(*nodes, now=NOON)
    assert [row["host"] for row in decided["findings"] if row["object"] == "clock"] == named
    assert decided["notes"] == decide(*nodes)["notes"]
