"""The ports that a node needs by its role, the probes between nodes, their answers, and the rules that open them."""

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall, variables

DEFAULTS = {name: option.get("default") for name, option in variables.options().items()}
QUIET = {"matrix_host": False, "verification_fabric": False}


ROCE = "RoCE v2"


def rail(index, *addresses, kind="pci", layer="Ethernet", state="ACTIVE", gid=ROCE, gids=None):
    """A rail and its HCA, whose GIDs are those of its IPv4 addresses."""
    netdev = {"name": f"eth{index + 1}", "addresses": list(addresses)}
    texts = ["fe80::1", *(f"::ffff:{text.partition('/')[0]}" for text in addresses if ":" not in text)]
    own = [{"index": 3 * place, "gid": text, "type": gid} for place, text in enumerate(texts)]
    port = {"number": 1, "state": state, "link_layer": layer, "rate_gbps": 400.0, "gids": own if gids is None else gids}
    pci = {"address": f"0000:0{index}:00.0", "link": {"speed_gts": 32.0, "width": 16}} if kind == "pci" else None
    return {
        "hca": {"name": f"mlx5_{index}", "kind": kind, "pci": pci, "netdevs": [netdev], "ports": [port]},
        "rail": {"index": index, "hca": f"mlx5_{index}", "port": 1, "netdev": netdev["name"]},
    }


def node(number, *rails, server=False, member=True, tool="ufw", **changes):
    return {
        "host": f"node{number}",
        "address": f"node{number}.example",
        "member": member,
        "server": server,
        "firewall": {
            "tool": tool,
            "rules": [],
            "zones": {"public": {"interfaces": ["eth0"], "sources": []}},
            "default_zone": "drop",
            "names_vrrp": True,
            "address": f"10.0.0.{number}",
            "netdev": "eth0",
            "addresses": {"eth0": [f"10.0.0.{number}/24"], "bond1": [f"10.1.0.{number}/24"]},
            "bound": {"tcp": [], "udp": []},
            "recorded": [],
        },
        "facts": {"hcas": [one["hca"] for one in rails], "rails": [one["rail"] for one in rails]},
        "variables": {**DEFAULTS, "node_firewall": "open", **changes},
    }


def on_rails(count=2, rails=1, kind="pci", gid=ROCE, **changes):
    return [
        node(n, *(rail(r, f"10.8.{r}.{n}/24", kind=kind, gid=gid) for r in range(rails)), member=False, **changes)
        for n in range(1, count + 1)
    ]


def needed(nodes, host="node1"):
    """{port/protocol: the sources that rules open it to}"""
    opened = {}
    for rule in firewall.plan(nodes)[host]["add"]:
        if rule["kind"] in ("port", "protocol"):
            name = f"{rule['ports']}/{rule['protocol']}" if rule["kind"] == "port" else rule["protocol"]
            opened.setdefault(name, []).append(rule["source"])
    return opened


CONTROL_PLANE = "6443/tcp 2379-2380/tcp 10250/tcp 8472/udp"


@pytest.mark.parametrize(("nodes", "ports"), [
    ([node(1, server=True), node(2), node(4)], "6443/tcp 10250/tcp 8472/udp"),
    ([node(1), node(2, server=True)], "10250/tcp 8472/udp"),
    ([node(1, flannel_backend="wireguard"), node(2)], "10250/tcp 51820/udp"),
    ([node(n, server=True) for n in (1, 2)], CONTROL_PLANE),
    ([node(n, server=True, k3s_api_address="10.0.0.9") for n in (1, 2)], f"{CONTROL_PLANE} vrrp"),
    (on_rails(3, 2), "18600-18603/tcp 18800-18803/tcp"),
    (on_rails(**QUIET), ""),
    (on_rails(kind="software", matrix_host=False), "18600-18601/tcp 4791/udp"),
    (on_rails(kind="software", gid=None, matrix_host=False), "18600-18601/tcp"),  # iWARP
    ([node(1, server=True, tool=None), node(2)], ""),
    ([node(1, server=True, node_firewall="verify"), node(2)], ""),
])  # fmt: skip
def test_ports_by_the_role_of_the_node(nodes, ports):
    assert set(needed(nodes)) == set(ports.split())


def test_sources_are_the_peers_at_their_addresses_joined_and_not_one_more():
    nodes = [node(n, server=n == 1, flannel_interface="bond1") for n in (1, 8, 9, 10, 11, 13)]
    nodes[0]["variables"]["node_firewall_api_clients"] = ["192.0.2.0/24"]
    assert needed(nodes) == {
        "6443/tcp": ["10.0.0.8/30", "10.0.0.13", "192.0.2.0/24"],
        "10250/tcp": ["10.0.0.8/30", "10.0.0.13"],
        "8472/udp": ["10.1.0.8/30", "10.1.0.13"],
    }
    assert needed(on_rails(2, 2))["18600-18603/tcp"] == ["10.8.0.2", "10.8.1.2"]


@pytest.mark.parametrize("told", ["0.0.0.0/0", "10.0.0.0/8", "::/0", "any to any", "-h", "203.0.113.9", "{{ 7 }}", ""])
def test_an_address_that_is_none_of_the_nodes_interfaces_ends_in_no_rule(told):
    lying = node(2)
    lying["firewall"]["address"] = told
    lying["firewall"]["addresses"]["eth0"] = [told, "0.0.0.0/0", "224.0.0.1/4"]
    sources = {rule["source"] for rule in firewall.plan([node(1, server=True), lying])["node1"]["add"]}
    assert sources <= {"10.42.0.0/16", "10.43.0.0/16", *(["203.0.113.9"] if told == "203.0.113.9" else [])}


# --- rules ------------------------------------------------------------------------------------------------------------


def opened(tool="ufw", partial=False, **firewall_info):
    nodes = [node(1, server=True, tool=tool, **QUIET), node(2)]
    nodes[0]["firewall"].update(firewall_info)
    return firewall.plan(nodes, partial)["node1"]


@pytest.mark.parametrize(("tool", "kinds"), [("ufw", ["trust", "trust", "route"]), ("firewalld", ["trust", "trust"])])
def test_pods_and_services_are_trusted_and_what_is_there_is_not_added_again(tool, kinds):
    first = opened(tool)
    assert [rule["kind"] for rule in first["add"] if rule["kind"] != "port"] == kinds
    assert first["record"] == first["add"]
    there = [list(firewall._key(rule)) for rule in first["add"]]
    again = opened(tool, rules=there, recorded=first["add"])
    assert (again["add"], again["remove"], again["record"]) == ([], [], first["add"])
    foreign = opened(tool, rules=there)
    assert (foreign["add"], foreign["record"]) == ([], [])


@pytest.mark.parametrize("partial", [False, True])
def test_a_rule_of_ours_that_nothing_needs_goes_unless_nodes_are_left_out(partial):
    old = {"tool": "ufw", "kind": "port", "source": "10.0.0.77", "protocol": "tcp", "ports": "6443"}
    made = opened(partial=partial, recorded=[old])
    assert made["remove"] == ([] if partial else [old])
    assert (old in made["record"]) is partial


PUBLIC = {"interfaces": ["eth0"], "sources": []}


@pytest.mark.parametrize(("zones", "zone"), [
    ({"public": PUBLIC}, "public"),
    ({"public": PUBLIC, "nodes": {"interfaces": [], "sources": ["10.0.0.0/8"]}}, "nodes"),
    ({"public": {"interfaces": ["eth7"], "sources": ["ipset:x"]}}, "drop"),
])  # fmt: skip
def test_a_rule_of_firewalld_is_in_the_zone_that_the_peer_is_in(zones, zone):
    made = opened("firewalld", zones=zones)["add"]
    assert {rule["zone"] for rule in made if rule["kind"] == "port"} == {zone}


# --- probes between nodes and their answers ---------------------------------------------------------------------------


def asked(nodes):
    """{(who, whom, protocol, port)}"""
    made = firewall.plan(nodes)
    return {
        (host[-1], one["host"][-1], one["protocol"], one["port"]) for host, mine in made.items() for one in mine["ask"]
    }


def test_every_node_asks_each_server_and_in_the_ring_each_is_asked_by_the_one_before_it():
    nodes = [node(1, server=True), node(2), node(3), node(4)]
    calls = asked(nodes)
    assert {call for call in calls if call[3] == 6443} == {(who, "1", "tcp", 6443) for who in "234"}
    assert {"".join(call[:2]) for call in calls if call[3] == 10250} == {"21", "31", "41", "12", "23", "34"}
    assert {one["port"] for one in firewall.plan(nodes)["node1"]["listen"]} == {6443, 10250, 8472}
    both = asked([node(1, server=True), node(2, server=True)])
    assert {call[3] for call in both} == {6443, 2379, 2380, 10250, 8472}
    assert asked([node(1, server=True)]) == set()


def test_a_port_in_use_is_not_listened_at_and_that_of_the_kernel_is_asked_behind_it():
    nodes = [node(1, server=True), node(2)]
    nodes[0]["firewall"]["bound"] = {"tcp": [6443, 10250], "udp": [8472]}
    assert firewall.plan(nodes)["node1"]["listen"] == []
    assert not [call for call in asked(nodes) if call[1:] == ("1", "ping", 8472)]  # no pod network yet
    for number, one in enumerate(nodes):
        one["firewall"]["addresses"]["flannel.1"] = [f"10.42.{number}.0/32"]
    (ping,) = [one for one in firewall.plan(nodes)["node2"]["ask"] if one["protocol"] == "ping"]
    assert (ping["address"], ping["id"]) == ("10.42.0.0", "8472/udp")


def judged(state, mode="verify", tool="ufw", rules=(), listening=None, lacking=None):
    nodes = [node(1, server=True, tool=tool, node_firewall=mode), node(2)]
    nodes[0]["firewall"]["rules"] = list(rules)
    nodes[0]["listening"] = listening or {}
    for one, mine in zip(nodes, firewall.plan(nodes).values()):
        one["told"] = {"answers": [{**ask, "state": state, "why": "no answer within 4 s"} for ask in mine["ask"]]}
    made = firewall.plan(nodes)["node1"]
    return made, firewall.findings(firewall._known(nodes[0]), made, lacking or {})


API, KUBELET, VXLAN = "firewall:6443/tcp", "firewall:10250/tcp", "firewall:8472/udp"


@pytest.mark.parametrize(("state", "means"), [("answered", "passed"), ("silent", "failed"), ("refused", "failed")])
def test_what_an_answer_means(state, means):
    made, findings = judged(state)
    wanted = {**dict.fromkeys((API, KUBELET, VXLAN), means), firewall.PODS: "not_verified"}
    assert {one["id"]: one["status"] for one in made["results"]} == wanted
    assert {one.id for one in findings} == ({API, KUBELET, VXLAN} if means == "failed" else set())


@pytest.mark.parametrize(("listening", "unknown"), [
    ({"deaf": {"6443/tcp": "no such address"}}, {API, KUBELET}),
    ({"unreachable": True, "msg": "no route to host"}, {API, KUBELET, VXLAN}),
])  # fmt: skip
def test_where_nothing_could_listen_silence_says_nothing(listening, unknown):
    made, _findings = judged("silent", listening=listening)
    assert {one["id"] for one in made["results"] if one["status"] == "not_verified"} == unknown | {firewall.PODS}
    answered = judged("answered", listening=listening)[0]["results"]
    assert {one["status"] for one in answered} == {"passed", "not_verified"}


@pytest.mark.parametrize(("tool", "command"), [
    ("ufw", "ufw allow proto tcp from 10.0.0.2 to any port 6443"),
    ("firewalld", "firewall-cmd --zone=public --add-rich-rule='rule family=\"ipv4\" source address=\"10.0.0.2\" port"),
    ("nftables", "nft insert rule inet filter input ip saddr 10.0.0.2 tcp dport 6443 accept"),
    (None, "switch"),
])  # fmt: skip
def test_a_port_that_does_not_answer_is_named_with_both_ends_and_the_command_of_what_runs(tool, command):
    (api,) = [one for one in judged("silent", tool=tool)[1] if one.id == API]
    assert "node2 (10.0.0.2) to node1 (10.0.0.1)" in api.seen
    assert command in api.next_step


def test_open_leaves_to_the_tool_what_it_can_open_and_refuses_what_is_left():
    made, findings = judged("silent", "open")
    assert (len(made["add"]) > 0, findings) == (True, [])
    there = [list(firewall._key(rule)) for rule in made["add"]]
    for what_is_left in ({"rules": there}, {"tool": "nftables"}):
        assert API in {one.id for one in judged("silent", "open", **what_is_left)[1]}


@pytest.mark.parametrize("tool", firewall.COLLECTIONS)
def test_open_without_the_collection_is_refused(tool):
    findings = judged("answered", "open", tool, lacking={tool: "x.y"})[1]
    assert [one.id for one in findings] == ["firewall:collection"]


def test_a_ufw_that_has_no_name_for_vrrp():
    nodes = [node(number, server=True, k3s_api_address="10.0.0.9") for number in (1, 2)]
    nodes[0]["firewall"]["names_vrrp"] = False
    made = firewall.plan(nodes)["node1"]
    assert [one.id for one in firewall.findings(firewall._known(nodes[0]), made, {})] == ["firewall:vrrp"]
    assert not [rule for rule in made["add"] if rule["kind"] == "protocol"]
