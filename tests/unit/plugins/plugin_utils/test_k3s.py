"""The plan of a k3s cluster: decisions, and refusals before anything changes (K of docs/failures.md)."""

import copy
import pathlib
import re

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address, config, plan, reset
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import k3s
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles

ROLE = pathlib.Path(__file__).resolve().parents[4] / "roles/k3s"
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
    return {
        "architecture": "amd64", "family": "debian", "distribution": "debian12",
        "addresses": [
            {"netdev": "eth0", "address": f"192.0.2.{number}/24"},
            {"netdev": "rail0", "address": f"10.77.1.{number}/24"},
        ],
        "routes": [{"netdev": "eth0", "destination": "0.0.0.0/0"}, {"netdev": "eth0", "destination": "192.0.2.0/24"}],
        "selinux": "disabled", "selinux_policy": False, "iptables": [1, 8, 9], "version": None, "others": [],
        "listening": [22], "server_url": None, "joined": False, "cluster": False, "sums": {}, "started": {},
        "inputs": {}, "younger": [], "services": services(), "token": {"present": False}, "foreign_files": [],
        **change,
    }  # fmt: skip


def node(number=1, servers=("node1",), seen=None, guessed_from=(), first_addresses=(), hostname=None, **variables):
    return {
        "host": f"node{number}",
        "name": variables.get("node_name") or hostname or f"node{number}",
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


def decide(*nodes, held=None, upgrade=False, now=None, inventory=(), outside=()):
    held = held or bundle()
    return k3s.decide(list(nodes), held, "/srv/bundle", upgrade, now, inventory, outside)


def options(*nodes, host="node1"):
    decided = decide(*nodes)
    assert decided["findings"] == []
    return {name: value for file in decided["nodes"][host]["options"].values() for name, value in file.items()}


def findings(*nodes, **more):
    return [(item["host"], item["object"]) for item in decide(*nodes, **more)["findings"]]


@pytest.mark.parametrize(("seen", "variables", "expected"), [
    ({}, {}, {"disable": ["servicelb", "traefik"], "flannel-backend": "none", "node-ip": "192.0.2.1"}),
    ({}, {}, {"disable-network-policy": None, "node-taint": ["rdma.gpufabric.io/not-ready=true:NoSchedule"]}),
    ({}, {"network_policy": False}, {"disable-network-policy": True}),
    ({}, {"startup_taint": False}, {"node-taint": None}),
    ({}, {"topology_manager_policy": "single-numa-node", "topology_manager_scope": "pod"},
     {"kubelet-arg": ["topology-manager-policy=single-numa-node", "topology-manager-scope=pod"]}),
    # K14: an iptables that duplicates rules is not used.
    ({"iptables": [1, 6, 1]}, {}, {"prefer-bundled-bin": None}),
    ({"iptables": [1, 8, 4]}, {}, {"prefer-bundled-bin": True}),
    ({"iptables": [1, 8, 5]}, {}, {"prefer-bundled-bin": None}),
    ({"iptables": None}, {}, {"prefer-bundled-bin": None}),
])  # fmt: skip
def test_options_of_a_server(seen, variables, expected):
    made = options(node(seen=seen, **variables))
    assert {name: made.get(name) for name in expected} == expected


def test_k7_the_modules_of_the_pod_network_are_loaded_before_k3s():
    for role in ("server", "agent"):
        assert re.findall(r"modprobe (\w+)", config.unit(role)) == ["br_netfilter", "overlay"]


@pytest.mark.parametrize(("port", "expected"), [(6443, ["TCP port 6443"]), (10250, ["TCP port 10250"]), (8080, [])])
def test_k9_a_port_in_use_is_named_unless_k3s_itself_runs(port, expected):
    assert [obj for _host, obj in findings(node(seen={"listening": [port]}))] == expected
    for active in ("active", "activating"):
        assert findings(node(seen={"listening": [port], "services": services(active)})) == []


def test_k12_values_that_servers_must_agree_on_are_compared():
    three = ("node1", "node2", "node3")
    nodes = [node(number, three) for number in (1, 2, 3)]
    assert options(*nodes)["cluster-init"] is True
    assert "cluster-init" not in options(*nodes, host="node2")
    assert options(node(), node(2), host="node2")["server"] == "https://192.0.2.1:6443"
    nodes[1]["variables"].update(secrets_encryption=False, disable=["traefik"])
    assert findings(*nodes) == [("node2", "k3s option disable"), ("node2", "k3s option secrets-encryption")]


# --- K15: the effect of a reset ---------------------------------------------------------------------------------------

# A word in a comment makes no rule ours.
COMMENTS = ("allow KUBE-API", "ssh, in FLANNEL-mgmt", "flanneld", "-j KUBE-X", "CNI-x")
THEIRS = "".join(f'-A INPUT -s 10.0.0.0/8 -m comment --comment "{text}" -j ACCEPT\n' for text in COMMENTS)
SAVED = f"""*filter
:INPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
{THEIRS}-A INPUT -m comment --comment "kubernetes health" -j KUBE-FIREWALL
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
"""


def test_k15_a_reset_takes_our_rules_and_leaves_those_of_others():
    kept = reset.foreign_rules(SAVED)
    assert kept == f"*filter\n:INPUT ACCEPT [0:0]\n{THEIRS}COMMIT\n"
    assert reset.cluster_rules(kept) == []


def test_k15_of_cni_plugins_rules_only_those_of_our_containers_go():
    def entry(chain, name, container, target):
        return f'-A {chain} -m comment --comment "name: \\"{name}\\" id: \\"{container * 64}\\"" -j {target}\n'

    podmans = entry("POSTROUTING", "podman", "b", "CNI-b") + entry("CNI-HOSTPORT-DNAT", "podman", "b", "CNI-DN-b")
    shared = ":CNI-HOSTPORT-DNAT - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n"
    theirs = f":CNI-b - [0:0]\n:CNI-DN-b - [0:0]\n{podmans}-A CNI-b -d 10.88.0.0/16 -j ACCEPT\n"
    calicos = '-A INPUT -m comment --comment "cali:abc" -j cali-INPUT\n'
    ours = entry("POSTROUTING", "rail0", "a", "CNI-a") + entry("CNI-HOSTPORT-DNAT", "cbr0", "c", "CNI-DN-c")
    ours += ":CNI-a - [0:0]\n:CNI-DN-c - [0:0]\n-A CNI-DN-c -p tcp -j DNAT\n"
    assert reset.foreign_rules(shared + theirs + ours + calicos, {"a" * 64}) == shared + theirs + calicos
    assert reset.foreign_rules(shared + ours, {"a" * 64}) == ""


def test_k15_containers_end_before_links_and_mounts_and_what_stays_is_listed():
    seen = {
        "agent": False, "services": ["k3s.service"], "units": ["/etc/systemd/system/k3s.service"],
        "processes": [7, 8], "links": ["cni0"], "mounts": ["/run/k3s/a", "/run/k3s/a/b"],
        "netns": [], "rules": {"iptables": 5}, "unread": [], "unproven": [], "kubernetes": {}, "linked": {},
        "mounted": {}, "volumes": [], "files": ["/etc/cni/net.d/00-multus.conf"], "folders": ["/run/multus"],
        "foreign": ["/opt/cni/bin/mine"], "others": [],
    }  # fmt: skip
    made = reset.plan(seen)
    assert [change.object for change in made.changes] == [
        *("service k3s.service", "containers", "link cni0", "mount /run/k3s/a/b", "mount /run/k3s/a"),
        *("rules of iptables", "/etc/systemd/system/k3s.service", "/etc/cni/net.d/00-multus.conf", "/run/multus"),
    ]
    assert "/opt/cni/bin/mine stays: it is not ours" in made.notes
    refused = reset.plan({**seen, "others": ["/etc/systemd/system/k3s.service"]})
    assert (refused.changes, len(refused.findings)) == ([], 1)


# --- bad input, reported all at once ----------------------------------------------------------------------------------

TWO, SERVICE = ("node1", "node2"), "/etc/systemd/system/k3s.service"
SITE = "/etc/rancher/k3s/config.yaml.d/50-site.yaml"
ENFORCING = {"selinux": "enforcing", "family": "rhel", "distribution": "rhel9"}
TEAM = {"object": "namespace ml-team", "wanted": "w", "seen": "managed by argocd", "next_step": "n", "id": ""}
UPLINKS = [{"netdev": name, "destination": "0.0.0.0/0"} for name in ("eth0", "rail0")]
# {case: (the nodes, the finding)}
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
    "other k3s": ([node(seen={"foreign_files": [SERVICE]})], "cluster"),
    "a file beside ours": ([node(seen={"drop_ins": {SITE: ["agent-token", "flannel-backend"]}})], SITE),
    "namespace of someone else": ([node(seen={"namespaces": [TEAM], "others": ["RKE2"]})], "namespace ml-team"),
    "policy package": ([node(seen=ENFORCING)], "bundle /srv/bundle"),
    "an agent to be a server": ([node(seen={"services": services(agent="active")})], "service k3s-agent"),
    "a server to be an agent": ([node(2, seen={"cluster": True}), node()], "service k3s"),
    "cgroup v1": ([node(seen={"cgroup_v1": True})], "/sys/fs/cgroup"),
    "two servers": ([node(1, TWO), node(2, TWO)], "group k3s_servers"),
    "no servers": ([node(1, ())], "group k3s_servers"),
    "an agent without a server": ([node(2)], "servers of the inventory"),
    "the first server left out": ([node(2, ("node1", "node2", "node3"))], "servers of the inventory"),
    "unreachable": ([{**node(), "state": None, "failure": "unreachable"}], "node"),
    "K8 not on the node": ([node(node_ip="198.51.100.9")], "node-ip 198.51.100.9"),
    "K8 the same on two": ([node(2, seen=state(1)), node(node_ip="192.0.2.1")], "node-ip 192.0.2.1"),
    "K8 none to tell": ([node(seen={"routes": []})], "node-ip"),
    "K8 two to tell": ([node(seen={"routes": UPLINKS})], "node-ip"),
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


@pytest.mark.parametrize(("nodes", "inventory", "hosts"), [
    ([node(1, hostname="gpu"), node(2, hostname="gpu")], (), ["node1", "node2"]),
    ([node(1), node(2, hostname="node1")], (), ["node1", "node2"]),
    ([node(1, hostname="node2")], ["node1", "node2.example.com"], ["node1"]),
    ([node(1, hostname="node2", node_name="gpu1")], ["node1", "node2"], []),
    ([node(1, hostname="node2", node_name="node2")], ["node1", "node2"], []),
    ([node(1), node(2, node_name="node1")], (), ["node1", "node2"]),
])  # fmt: skip
def test_a_name_is_one_nodes(nodes, inventory, hosts):
    rows = decide(*nodes, inventory=inventory)["findings"]
    assert [row["host"] for row in rows if row["id"] == "k3s:node-name"] == hosts


SERVER, AGENT = {"cluster": True}, {"joined": True, "server_url": "https://192.0.2.1:6443"}
GUESSED = {"guessed_from": ("node1", "node2", "node3")}
FRONT = {"servers": ("node3",), "guessed_from": ("node3", "node1", "node2")}
NATTED = {"joined": True, "server_url": "https://198.51.100.7:6443"}
LATE = ("node3", "node1", "node2")


@pytest.mark.parametrize(("nodes", "host", "seen"), [
    ([node(3, **FRONT)], "node3", "not in this run: node1, node2"),
    ([node(3, **FRONT), node(1, seen=SERVER, **FRONT), node(2, seen=AGENT, **FRONT)], "node3", "cluster: node1, node2"),
    ([node(1, **GUESSED), node(2, seen=AGENT, **GUESSED), node(3, **GUESSED)], "node1", "in a cluster: node2"),
    ([node(1, seen=AGENT, **GUESSED), node(2, **GUESSED), node(3, **GUESSED)], "node1", "in a cluster: node1"),
    ([node(number, seen=SERVER, **GUESSED) for number in (1, 2)], "node1", "already in a cluster: node2"),
    ([node(1, seen=SERVER, **GUESSED), node(2, seen=NATTED, **GUESSED)], "node1", "already in a cluster: node2"),
    ([node(2, LATE), node(3, LATE), node(1, seen=SERVER)], "node3", "would start a second cluster next to node1"),
])  # fmt: skip
def test_a_first_server_that_is_not_certain_is_refused(nodes, host, seen):
    for other in nodes:
        other["servers"] = nodes[0]["servers"]
    rows = [item for item in decide(*nodes)["findings"] if item["object"] == "group k3s_servers"]
    assert [(item["host"], seen in item["seen"]) for item in rows] == [(host, True)]


THREE = ("node1", "node2", "node3")
BARE, SECOND, SKEW = node(1, THREE), ["k3s:second-cluster"], ["k3s:version-skew"]
RUNS = {"cluster": True, "version": "v1.35.8+k3s1"}


def silent(number, servers=THREE):
    return {**node(number, servers), "state": None, "failure": "no route"}


def server(number, hostname=None, **seen):
    return node(number, THREE, hostname=hostname, seen={**RUNS, "services": services("active"), **seen})


# {case: (nodes of the run, servers outside of it, ids of the findings)}
LIMITED = {
    "a new cluster, by its first server": ([node(1, THREE)], [node(2, THREE), node(3, THREE)], []),
    "the first server reinstalled": ([node(1, THREE)], [server(2), server(3)], SECOND),
    "the same, and one away": ([node(1, THREE)], [server(2), silent(3)], ["k3s:silent-servers", "k3s:second-cluster"]),
    "the same, and all away": ([node(1, THREE)], [silent(2), silent(3)], ["k3s:silent-servers"]),
    "servers of two clusters": ([node(4, THREE)], [server(1, ca="a"), server(2, ca="b"), silent(3)], SECOND),
    "an agent beside a bare first server": ([node(4, THREE)], [BARE, server(2), server(3)], SECOND),
    "another cluster's agent": ([node(4, THREE, seen={**NATTED, "ca": "b"})], [server(1, ca="a"), server(2)], SECOND),
    "an agent beside bare servers": ([node(4, THREE)], [BARE, node(2, THREE), node(3, THREE)], ["k3s:no-cluster"]),
    "a server in place of a dead one": ([node(3, THREE)], [server(1), server(2)], []),
    "an agent while one is dead": ([node(4, THREE)], [server(1), server(2), silent(3)], []),
    "an agent while two are dead": ([node(4, THREE)], [server(1), silent(2), silent(3)], ["k3s:silent-servers"]),
    "a guessed server that is silent": ([node(2, **GUESSED)], [silent(1, ("node1",))], ["k3s:silent-servers", ""]),
    "an agent too new": ([node(4, THREE)], [server(1), server(2, version="v1.35.7+k3s1"), server(3)], SKEW),
    "a server too new": ([node(3, THREE)], [server(1, version="v1.33.9+k3s1"), server(2)], SKEW),
    "a server one minor newer": ([node(3, THREE)], [server(1, version="v1.34.9+k3s1"), server(2)], []),
    "an address of an outside server": ([node(4, THREE, seen=state(1))], [server(1), server(2)], [""]),
    "the name of an outside server": (
        [node(4, THREE, hostname="gpu")], [server(1, hostname="gpu"), server(2)], ["k3s:node-name"]),
    "another cluster's option": ([node(3, THREE, disable=[])], [server(1), server(2)], [""]),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITED)
def test_what_concerns_the_cluster_is_decided_from_all_servers(name):
    nodes, outside, ids = LIMITED[name]
    assert [item["id"] for item in decide(*nodes, outside=outside)["findings"]] == ids


def etcd(itself, active="abc", known="abc", leader=True):
    return {"cluster": True, "etcd": {"itself": itself, "known": [*known], "active": [*active], "leader": leader}}


OLD = {"known": "a", "active": "abc"}
BROKEN = {"cluster": True, "etcd": {"error": "no answer"}}
# {case: (answers of the run's servers, answers of the others, number of refusals)}
RESETS = {
    "all": ([etcd("a"), etcd("b"), etcd("c")], [], 0),
    "all, one of them bare": ([etcd("a", "ab", "ab"), etcd("b", "ab", "ab"), {}], [], 0),
    "one of three": ([etcd("a")], [etcd("b"), etcd("c")], 0),
    "two of three": ([etcd("a"), etcd("b")], [etcd("c")], 2),
    "one of three, where one is down": ([etcd("a", "ac")], [None, etcd("c", "ac")], 1),
    "the one that is down": ([BROKEN], [etcd("b", "bc"), etcd("c", "bc")], 0),
    "one that is not down, and does not say": ([BROKEN], [etcd("b", "ab"), BROKEN], 1),
    "all that answer": ([etcd("a"), etcd("b")], [None], 2),
    "one that is out of etcd": ([BROKEN], [etcd("b", "bc", "bc"), etcd("c", "bc", "bc")], 0),
    "the second of two": ([etcd("b", "bc", "bc")], [{}, etcd("c", "bc", "bc")], 1),
    "a member outside of the inventory": ([etcd("a", "ad", "ad")], [{}, {}], 1),
    "without a leader": ([etcd("a", leader=False)], [etcd("b", leader=False), BROKEN], 1),
    "etcd 3.5, one of three": ([etcd("a", **OLD)], [etcd("b", "abc", "b"), etcd("c", "abc", "c")], 0),
    "etcd 3.5, one down": ([etcd("a", "ab", "a")], [etcd("b", "ab", "b"), None], 1),
    "SQLite": ([{"cluster": True, "etcd": None}], [], 0),
    "a bare server": ([{}], [etcd("b"), etcd("c")], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", RESETS)
def test_a_reset_leaves_etcd_its_majority_or_takes_all(name):
    here, there, refused = RESETS[name]
    servers = [f"node{number + 1}" for number in range(len(here) + len(there))]
    rows = [node(number, servers, seen=seen) for number, seen in enumerate([*here, *there], 1) if seen is not None]
    mine, others = servers[: len(here)], servers[len(here) :]
    found = k3s.reset([row for row in rows if row["host"] in mine], [row for row in rows if row["host"] in others])
    assert [(item["host"], item["id"]) for item in found] == [(host, "k3s:quorum") for host in mine][:refused]


@pytest.mark.parametrize(("name", "uuid", "refused"), [
    ("gpu1", "4C4C4544-0036", False), ("GPU1", "4c4c4544-0036", False), ("gpu2", "4c4c4544-0036", False),
    ("gpu1", "4c4c4544-0099", True), ("gpu1", "", True), ("bare", "", False), ("bare", "4c4c4544-0036", False),
])  # fmt: skip
def test_the_name_of_another_machine_s_node_is_refused(name, uuid, refused):
    found = k3s.machines({"node1": (name, uuid)}, {"gpu1": "4c4c4544-0036", "bare": ""})
    assert [(host, item.id) for host, item in found] == [("node1", "k3s:machine")] * refused


HOST_GATEWAY = [*state()["routes"], {"netdev": "eth0", "destination": "10.42.1.0/24"}]
ACCEPTED = {
    "bare": [node(number, **GUESSED) for number in (1, 2, 3)],
    "converged": [node(1, seen=SERVER, **GUESSED), node(2, seen=AGENT, **GUESSED), node(3, **GUESSED)],
    "behind an address of the inventory": [node(2, seen=NATTED, **GUESSED, first_addresses=["198.51.100.7"])],
    "a new agent": [node(2, server_url="https://192.0.2.1:6443", **GUESSED)],
    "behind a name": [node(2, server_url="https://k3s.example:6443", **GUESSED)],
    "named, limited": [node(2, seen=AGENT)],
    "an agent of another cluster": [node(2, server_url="https://192.0.2.100:6443")],
    "K10 routes of the pod network": [
        node(seen={"routes": [*state()["routes"], {"netdev": "flannel.1", "destination": "10.42.1.0/24"}]})
    ],
    "cgroup v1, accepted": [node(seen={"cgroup_v1": True}, kubelet_args={"fail-cgroupv1": False})],
    "K10 routes of host-gw": [node(seen={"routes": HOST_GATEWAY, "cluster": True})],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_certain_is_taken(name):
    nodes = ACCEPTED[name]
    outside = [node(1, seen=SERVER)] if nodes[0]["host"] != "node1" else []
    assert findings(*nodes, outside=outside) == []


def test_a_run_that_leaves_the_first_server_out_does_not_make_another_cluster():
    joined = node(2, THREE, server_url="https://192.0.2.1:6443")
    decided = decide(joined, outside=[server(1), server(3)])
    assert "cluster-init" not in decided["nodes"]["node2"]["options"][config.CONFIG]


def test_a_takeover_happens_with_consent_and_is_reported():
    decided = decide(node(seen={"others": ["kubeadm"]}, takeover_allowed=True))
    assert (decided["findings"], "taken over" in decided["notes"][0]) == ([], True)


def test_only_what_a_node_lacks_is_sent_to_it():
    held = bundle(images=[{"reference": name, "path": "images.tar", "sha256": SHA} for name in ("a:1", "b:1")])

    def sent(**seen):
        return [item["dest"] for item in decide(node(seen=seen), held=held)["nodes"]["node1"]["files"]]

    assert sent() == [config.BINARY, f"{config.IMAGES}/images.tar"]
    sums = dict.fromkeys(sent(), SHA)
    assert sent(sums=sums) == []
    assert sent(sums={**sums, config.BINARY: "1" * 64}, version="v1.35.8+k3s1") == [config.BINARY]


def test_a_node_that_fetches_its_files_gets_their_addresses_and_none_of_the_controllers():
    names = ("k3s", "k3s-selinux")
    rows = [{**bundle()["files"][0], "name": name, "path": name, "url": f"https://r/{name}"} for name in names]
    seen = {"selinux": "enforcing", "family": "rhel", "distribution": "rhel9"}
    held = bundle(files=rows)
    for own, urls, needed in ((True, [row["url"] for row in rows], []), (False, [None, None], [*names])):
        decided = decide(node(seen=seen, downloads_on_nodes=own), held=held)["nodes"]
        mine = decided["node1"]["files"] + decided["node1"]["packages"]
        assert [item.get("url") for item in mine] == urls
        assert [row["name"] for row in k3s.needed(decided, held)] == needed
        assert "/var/cache/k3s-selinux" in decided["node1"]["packages_command"]


LABELS = {"feature.node.kubernetes.io/rdma.capable", "feature.node.kubernetes.io/pci-15b3.present"}


def test_the_labels_of_the_seeds_come_from_facts_or_from_nfd_never_from_both():
    ports = [{"link_layer": "InfiniBand"}, {"link_layer": "unknown: the driver is not loaded"}]
    hcas = [{"pci": {"vendor": "15b3"}, "ports": ports}]
    facts = {"hcas": hcas, "rails": [{}, {}], "driver": {"loaded": {"flavor": "inbox"}}}
    made = k3s.labels(facts, TYPED)
    assert set(made) > LABELS
    ours = ("link-layer", "rails", "driver")
    assert [made[f"rdma.gpufabric.io/{name}"] for name in ours] == ["InfiniBand", "2", "inbox"]
    assert not LABELS & set(k3s.labels(facts, {**TYPED, "node_features_by_nfd": True}))
    assert k3s.labels({}, {**TYPED, "node_labels": {"a": 1}}) == {"a": "1"}


@pytest.mark.parametrize(("old", "new", "words"), [
    ("v1.35.6+k3s1", "v1.35.8+k3s1", None),
    ("v1.34.9+k3s1", "v1.35.8+k3s1", None),
    ("v1.33.9+k3s1", "v1.35.8+k3s1", "one minor at a time"),
    ("v1.35.8+k3s1", "v1.35.6+k3s1", "or newer"),
    ("v1.35.8+k3s2", "v1.35.8+k3s1", "or newer"),
    ("nightly", "v1.35.8+k3s1", "versions that can be compared"),
    (None, "v1.35.8+k3s1", "a version to upgrade"),
])  # fmt: skip
def test_an_upgrade_goes_up_one_minor_at_a_time(old, new, words):
    decided = decide(node(seen={"version": old}), held=bundle(new), upgrade=True)
    assert decided["findings"] == []
    assert [words in row["wanted"] for row in k3s.upgrade(decided["nodes"])] == ([True] if words else [])


def test_an_agent_ahead_of_its_server_is_refused():
    nodes = [node(seen={"version": "v1.34.1+k3s1"}), node(2, seen={"version": "v1.35.1+k3s1"})]
    rows = k3s.upgrade(decide(*nodes, upgrade=True)["nodes"])
    assert [(row["host"], row["object"]) for row in rows] == [("node2", "k3s agent")]


NOON, DAY = 1795608000.0, 86400


@pytest.mark.parametrize(("clocks", "named"), [
    ([NOON - 620], ["node1"]),
    # Read within 20 minutes.
    ([NOON - 5 * number for number in range(240)], []),
    ([NOON + DAY], ["node1"]),
    ([NOON, NOON - DAY], ["node2"]),
    ([NOON, NOON + DAY, NOON + 30], ["node2"]),
    ([None, NOON], []),
])  # fmt: skip
def test_a_clock_that_is_off_is_named(clocks, named):
    nodes = [node(number, seen={"clock": clock}) for number, clock in enumerate(clocks, 1)]
    decided = decide(*nodes, now=NOON)
    assert [row["host"] for row in decided["findings"] if row["object"] == "clock"] == named
    assert decided["notes"] == decide(*nodes)["notes"]


# --- one node ---------------------------------------------------------------------------------------------------------

WANTED = {
    "role": "server",
    "options": {config.CONFIG: {"node-ip": "192.0.2.1"}},
    "registries": {"configs": {"r": {"auth": {"password": "hunter2"}}}},
    "token_given": False,
    "takeover_allowed": None,
}


def settled(**change):
    return {
        "files": {path: {"content": text, "mode": mode} for path, (text, mode) in plan.texts(WANTED).items()},
        "foreign_files": [],
        "links": dict.fromkeys(config.LINKS, config.BINARY),
        "binary": {"mode": "0755"},
        "services": services("active"),
        "token": {"present": True, "mode": "0600", "differs": False},
        "started": {"a": "1"},
        "inputs": {"a": "1"},
        "younger": [],
        **change,
    }


def acts(seen):
    return [(change.object, change.action) for change in plan.plan(seen, WANTED).changes]


RESTART, STARTING = [("service k3s", "restart")], services("activating")
FOREIGN_LINK = dict(zip(config.LINKS, (None, config.BINARY, "a separate program")))


@pytest.mark.parametrize(("change", "expected"), [
    ({}, []),
    ({"inputs": {"a": "2"}}, RESTART),
    ({"younger": ["a"]}, RESTART),
    ({"inputs": {"a": "1", "b": "1"}}, RESTART),
    ({"services": services()}, [("service k3s", "enable"), ("service k3s", "start")]),
    # A killed run began it, and recorded nothing.
    ({"services": STARTING, "started": {}}, [("service k3s", "start")]),
    ({"services": STARTING, "younger": ["a"]}, RESTART),
    ({"token": {"present": True, "mode": "0644", "differs": False}}, [(config.TOKEN, "mode")]),
    ({"binary": {"mode": "0644"}}, [(config.BINARY, "mode")]),
    ({"links": FOREIGN_LINK}, [(config.LINKS[0], "link")]),
])  # fmt: skip
def test_k3s_is_restarted_when_and_only_when_what_it_reads_has_changed(change, expected):
    assert acts(settled(**change)) == expected


def test_no_secret_is_in_a_plan():
    made = plan.plan(settled(files={config.CONFIG: {"content": "token: hunter2", "mode": "0644"}}), WANTED)
    assert {config.CONFIG, config.REGISTRIES} < {change.object for change in made.changes}
    assert "hunter2" not in repr(made)
    assert all(mode == "0600" for path, (_text, mode) in plan.texts(WANTED).items() if "rancher" in path)


def test_a_file_of_ours_that_is_no_longer_wanted_goes_and_a_foreign_one_stops_the_run():
    seen = settled()
    seen["files"][config.EXTRA] = {"content": plan.paths.HEADER + "\nv: 1", "mode": "0600"}
    assert acts(seen) == [(config.EXTRA, "remove"), *RESTART]
    foreign = settled(foreign_files=[config.CONFIG])
    assert plan.plan(foreign, WANTED).findings[0].object == config.CONFIG
    assert plan.plan(foreign, {**WANTED, "takeover_allowed": True}).findings == []


def test_another_token_and_another_role_are_refused():
    wrong = {"token": {"present": True, "mode": "0600", "differs": True}, "services": services(agent="activating")}
    assert [item.object for item in plan.plan(settled(**wrong), WANTED).findings] == ["service k3s-agent", config.TOKEN]


# --- k3s_api_address --------------------------------------------------------------------------------------------------

SERVERS = ("node1", "node2", "node3")
SHARED = "192.0.2.5"


def sharing(change=None, seen=None, facts=None, **variables):
    """Three servers and an agent; change: variables of node1 only. seen, facts: of node1."""
    nodes = [node(number + 10, SERVERS, api_address=SHARED, **variables) for number in range(1, 5)]
    for number, made in enumerate(nodes, 1):
        made["host"] = f"node{number}"
    nodes[0]["variables"].update(change or {})
    nodes[0]["state"].update(seen or {})
    nodes[0]["facts"] = facts or {}
    return nodes


def test_nodes_join_at_the_address_and_the_certificate_has_it():
    decided = decide(*sharing(tls_san=["api.example.org"]))
    assert decided["findings"] == []
    made = decided["nodes"]
    for host in SERVERS:
        assert made[host]["options"][config.CLUSTER]["tls-san"] == ["api.example.org", SHARED]
        own = made[host]["node_ip"]
        peers = sorted({"192.0.2.11", "192.0.2.12", "192.0.2.13"} - {own})
        shared = {"address": SHARED, "interface": "eth0", "node_ip": own, "peers": peers, "unknown": []}
        assert made[host]["shared"] == shared
    assert "server" not in made["node1"]["options"][config.CONFIG], "the first server makes the cluster"
    for host in ("node2", "node3", "node4"):
        assert made[host]["options"][config.CONFIG]["server"] == f"https://{SHARED}:6443"
    assert made["node4"]["shared"] is None
    assert [item["shared"] for item in decide(node(), node(2))["nodes"].values()] == [None, None]


TAKEN = {"answers": "52:54:00:00:00:01", "installed": True, "offered": None}
NOT_OFFERED = {"answers": "", "installed": False, "offered": False}


@pytest.mark.parametrize(("variables", "wanted"), [
    ({"api_address": "api"}, "an IPv4 address"),
    ({"api_address": "192.0.2.12"}, "no node has itself"),
    ({"api_address": "198.51.100.5"}, "a host's address in 192.0.2.0/24"),
    ({"api_address": "192.0.2.0"}, "a host's address in 192.0.2.0/24"),
    ({"cluster_cidr": "192.0.0.0/16"}, "outside the cluster's networks"),
    ({"service_cidr": "192.0.0.0/16"}, "outside the cluster's"),
    ({"server_url": "https://192.0.2.99:6443"}, f"https://{SHARED}:6443, or not set"),
    ({"api_interface": "eth7"}, "an interface with an address"),
])  # fmt: skip
def test_an_address_that_cannot_be_is_refused(variables, wanted):
    nodes = sharing()
    for made in nodes:
        made["variables"].update(variables)
    said = [item["wanted"] for item in decide(*nodes)["findings"]]
    assert any(wanted in text for text in said), said


@pytest.mark.parametrize(("given", "part", "words"), [
    ({"facts": {"rails": [{"netdev": "eth0"}]}}, "wanted", "an interface of the management network"),
    ({"seen": {"shared": TAKEN}}, "wanted", "a free address"),
    ({"seen": {"shared": NOT_OFFERED}}, "wanted", "installed, or available"),
    ({"change": {"api_address": None}}, "seen", "node1: none"),
])  # fmt: skip
def test_a_server_that_cannot_have_it_or_disagrees_is_refused(given, part, words):
    (row,) = decide(*sharing(**given))["findings"]
    assert words in row[part]
    assert "node1" in row["host"]


def test_an_address_that_a_server_of_ours_has_is_not_taken():
    nodes = sharing(seen={"shared_address": SHARED, "shared": TAKEN})
    nodes[1]["state"]["shared"] = TAKEN
    assert decide(*nodes)["findings"] == []


BOTH, MISSED = ["192.0.2.12", "192.0.2.13"], [f"k3s_api_address {SHARED}"]


@pytest.mark.parametrize(("given", "peers", "objects"), [
    (("192.0.2.13", "server3.example.org"), BOTH, []),
    (("", "192.0.2.13"), BOTH, []),
    (("", "server3.example.org"), BOTH[:1], MISSED),
    (("", "198.51.100.13"), BOTH[:1], MISSED),
])  # fmt: skip
def test_a_silent_server_outside_the_run_stays_a_peer_or_is_missed(given, peers, objects):
    here = sharing()[:2]
    for made in here:
        made["state"]["cluster"] = True
        made["server_addresses"] = {"node1": ("", ""), "node2": ("", ""), "node3": given}
    decided = decide(*here, outside=[{**sharing()[2], "state": None}])
    assert decided["nodes"]["node1"]["shared"]["peers"] == peers
    assert [item["object"] for item in decided["findings"] if item["host"] == "node1"] == objects


def test_the_role_writes_what_the_node_is_read_and_reset_by():
    known = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    paths = (known["__k3s_address_config"], known["__k3s_address_check"])
    assert (*paths, known["__k3s_address_files"][2]["path"]) == address.FILES
    assert set(paths) <= set(reset.FILES)
    template = (ROLE / "templates/address.conf.j2").read_text()
    text = template.replace("{{ __k3s_header }}", known["__k3s_header"])
    assert address.configured(text.replace("{{ shared['address'] }}", SHARED)) == SHARED
    assert address.configured(template) == address.configured(None) == "", "without our header it is the site's"
    unit = (ROLE / "templates/address.service.j2").read_text()
    assert reset.ours(address.UNIT, unit.replace("{{ __k3s_header }}", known["__k3s_header"]))
