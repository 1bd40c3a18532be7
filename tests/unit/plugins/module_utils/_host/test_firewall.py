"""A node's firewall from what its programs printed: which needs are dropped, by whom, and which rules open them."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import programs
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures/firewall"
PEER, OTHER, NODE, PODS = "10.0.0.9", "10.0.0.8", "10.0.0.1", "10.42.0.0/16"
ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\tFE00000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)


def text(name):
    return (FIXTURES / name).read_text()


class Node(Tree):
    """A live tree with these files alone."""

    def __init__(self, files):
        super().__init__("/")
        self.files = {"/proc/net/route": ROUTES, "/proc/modules": "nf_tables 1 0 - Live 0x0\n", **files}

    def read(self, path):
        return self.files.get(path)

    def exists(self, path):
        return path in self.files

    def readlink(self, path):
        return self.files.get(f"-> {path}")

    def listdir(self, path):
        return [name[len(path) + 1 :] for name in self.files if name.startswith(f"{path}/")]


@pytest.fixture
def node(monkeypatch):
    """node(said, files, kernel): the state that firewall.read makes of it. said: {command line: output or status}.

    kernel: tables of nftables that the kernel names, or what asking it raises.
    """

    def read(said=(), files=(), kernel=(), protocols=("vrrp",)):
        said, asked = dict(said), []
        names = {command.split()[0] for command in said}
        monkeypatch.setattr(programs, "found", lambda name, *_folders: name if name in names else None)

        def run(argv):
            asked.append(" ".join(argv))
            answer = said[" ".join(argv)]
            return (answer, "", "no such luck") if isinstance(answer, int) else (0, answer, "")

        def tables():
            if isinstance(kernel, Exception):
                raise kernel
            return list(kernel)

        return firewall.read(Node(dict(files)), run, tables, protocols)

    return read


NFT = "nft --json list ruleset"
UFW = {
    NFT: text("ufw.nft.json"),
    "iptables-nft-save": text("ufw.iptables-save"),
    "ip6tables-nft-save": text("ufw.ip6tables-save"),
}
FIREWALLD = {
    NFT: text("firewalld.nft.json"),
    "firewall-cmd --state": "running\n",
    "firewall-cmd --get-default-zone": "public\n",
    "firewall-cmd --get-active-zones": text("firewalld.active-zones"),
}
OF_UFW, OF_FIREWALLD = ["ip filter", "ip6 filter"], ["inet firewalld"]
ENABLED = {"/etc/ufw/ufw.conf": "ENABLED=yes\nLOGLEVEL=low\n"}
ZONES = {f"/etc/firewalld/zones/{zone}.xml": text(f"firewalld.{zone}.xml") for zone in ("public", "trusted")}


def need(ports=(6443, 6443), protocol="tcp", peers=(PEER,), **more):
    written = str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"
    return {
        "id": f"{written}/{protocol}",
        "what": "a service",
        "hook": "input",
        "protocol": protocol,
        "ports": list(ports),
        "peers": [{"host": peer, "address": peer} for peer in peers],
        "to": NODE,
        "iif": None,
        "oif": None,
        "later": False,
        "rules": [{"kind": "port", "source": peer, "protocol": protocol, "ports": written} for peer in peers],
        **more,
    }


TRUST = [{"kind": "trust", "source": PODS}]
FROM_PODS = need(peers=["10.42.0.2"], id="pods:6443/tcp", iif="cni0", rules=TRUST)
ACROSS = need(
    (1, 65535), peers=["10.42.0.2"], id="pods:all", hook="forward", to="10.42.0.3", iif="cni0", oif="flannel.1",
    later=True, rules=TRUST,
)  # fmt: skip


def shown(state, *needs):
    """(state, ports, peers, tool) of each answer."""
    return [
        (one["state"], one["ports"], [peer["host"] for peer in one["peers"]], one["tool"])
        for one in firewall.answers(state, list(needs))
    ]


def sources(rules):
    return [(rule["kind"], rule["source"], rule.get("ports"), rule.get("zone")) for rule in rules]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_node_without_a_filter_is_open_and_nothing_is_asked(node):
    state = node()
    assert (state["tool"], state["unread"], shown(state, need())) == (None, [], [("open", "6443", [PEER], "")])


def test_modules_that_are_not_loaded_are_not_loaded_to_look(node):
    state = node(files={"/proc/modules": "xfs 1 0 - Live 0x0\n"}, kernel=AssertionError("asked"))
    assert state["unread"] == []


def test_ufw_by_its_own_chains_with_the_ports_and_peers_that_it_drops(node):
    state = node(UFW, ENABLED, OF_UFW)
    assert (state["tool"], state["unread"], state["at_boot"]) == ("ufw", [], [])
    assert shown(state, need(), need((9100, 9100), peers=[PEER, OTHER]), need((22, 22))) == [
        ("blocked", "6443", [PEER], "ufw"),
        ("open", "9100", [PEER], ""),
        ("blocked", "9100", [OTHER], "ufw"),
        ("open", "22", [PEER], ""),
    ]


def test_firewalld_by_zone_and_source(node):
    state = node(FIREWALLD, ZONES, OF_FIREWALLD)
    assert (state["tool"], state["default_zone"], state["unread"]) == ("firewalld", "public", [])
    assert state["zones"] == {
        "public": {"interfaces": ["eth0"], "sources": []},
        "trusted": {"interfaces": [], "sources": [PODS]},
    }
    assert shown(state, need((9100, 9100), peers=[PEER, OTHER]), FROM_PODS, ACROSS) == [
        ("open", "9100", [PEER], ""),
        ("blocked", "9100", [OTHER], "firewalld"),
        ("open", "6443", ["10.42.0.2"], ""),
        ("open", "1-65535", ["10.42.0.2"], ""),
    ]


def test_a_rule_of_neither_is_named_and_nobodys(node):
    state = node({NFT: text("nftables.nft.json")}, kernel=["inet filter"])
    (one,) = firewall.answers(state, [need((8472, 8472), "udp")])
    assert (one["state"], one["tool"]) == ("blocked", "")
    assert "rule udp dport 8472 ip saddr 10.0.0.0/24 drop" in one["by"]
    assert one["remove"].startswith("nft delete rule inet filter input handle ")
    assert shown(state, ACROSS) == [
        ("open", "1-4999, 5001-65535", ["10.42.0.2"], ""),
        ("blocked", "5000", ["10.42.0.2"], ""),
    ]


def test_legacy_tables_are_read_where_the_kernel_has_them(node):
    said = {"iptables-legacy-save": text("legacy.iptables-save")}
    state = node(said, {"/proc/net/ip_tables_names": "filter\n", "/proc/modules": ""})
    assert shown(state, need((10250, 10250), peers=[PEER, OTHER])) == [
        ("open", "10250", [PEER], ""),
        ("blocked", "10250", [OTHER], ""),
    ]


def test_a_plain_iptables_counts_as_the_back_end_that_it_says(node):
    said = {"iptables-save": text("legacy.iptables-save"), "iptables-save --version": "iptables-save v1.8.9 (legacy)\n"}
    there = {"/proc/net/ip_tables_names": "filter\n", "/proc/modules": ""}
    assert node(said, there)["unread"] == []
    said["iptables-save --version"] = "iptables-save v1.8.9 (nf_tables)\n"
    assert "no iptables-legacy-save is there" in node(said, there)["unread"][0]


UNREADABLE = [
    ({NFT: 1}, {}, ["inet filter"], "nft --json list ruleset: no such luck"),
    ({NFT: "rubbish"}, {}, ["inet filter"], "nft --json list ruleset: "),
    ({}, {}, ["inet mine", "ip filter"], "table inet mine of nftables, and no nft is there"),
    ({NFT: text("ufw.nft.json")}, {}, OF_UFW, "tables ip filter of iptables-nft, and no iptables-nft-save"),
    ({**UFW, "iptables-nft-save": 4}, {}, OF_UFW, "iptables-nft-save: no such luck"),
    ({}, {}, PermissionError(1, "Operation not permitted"), "tables of nftables: Operation not permitted"),
    (
        {},
        {"/proc/net/ip_tables_names": "filter\n"},
        [],
        "tables filter of iptables-legacy, and no iptables-legacy-save",
    ),
    ({}, {"/proc/net/ip_tables_names": None}, [], "/proc/net/ip_tables_names: not readable"),
]


@pytest.mark.parametrize(("said", "files", "kernel", "reason"), UNREADABLE)
def test_what_cannot_be_read_is_unknown_with_the_reason_and_never_open(node, said, files, kernel, reason):
    state = node(said, files, kernel)
    assert reason in " ".join(state["unread"])
    found = firewall.answers(state, [need((22, 22)), need((9, 9))])
    assert "open" not in {one["state"] for one in found}
    assert all(reason in one["by"] for one in found if one["state"] == "unknown")


def test_a_kernel_without_nftables_has_no_tables(node):
    assert node(kernel=OSError(93, "Protocol not supported"))["unread"] == []


def test_a_captured_tree_filters_nothing_and_says_so(tmp_path):
    state = firewall.read(Tree(str(tmp_path)), lambda _argv: (0, "", ""), list)
    assert "is a tree of files" in state["unread"][0]


def test_running_and_at_boot_are_two_states(node):
    assert "not enabled" in node(UFW, {}, OF_UFW)["at_boot"][0]
    assert "its rules are not in the kernel" in node({}, ENABLED)["at_boot"][0]
    stopped = {"firewall-cmd --state": 252}
    unit = "-> /etc/systemd/system/multi-user.target.wants/firewalld.service"
    enabled = {unit: "/lib/systemd/system/firewalld.service"}
    assert "firewalld is enabled and does not run" in node(stopped, enabled)["at_boot"][0]
    assert node(stopped, {**enabled, "-> /etc/systemd/system/firewalld.service": "/dev/null"})["at_boot"] == []
    assert node(stopped)["at_boot"] == []


def test_firewall_cmd_is_asked_only_where_rules_of_firewalld_are_or_may_be(node):
    """It is a program that takes a second on a busy node, and the preflight of each run would call it twice."""
    said = {"firewall-cmd --state": "running\n", "firewall-cmd --get-default-zone": "public\n"}
    said["firewall-cmd --get-active-zones"] = ""
    assert node(said)["tool"] is None
    assert node({**UFW, **said}, ENABLED, OF_UFW)["tool"] == "ufw"
    assert node(said, kernel=OSError(1, "Operation not permitted"))["tool"] == "firewalld"


# --- the FORWARD chain before Flannel ---------------------------------------------------------------------------------


def test_a_policy_of_forward_is_no_obstacle_to_what_flannel_appends_and_a_rule_is(node):
    assert shown(node(UFW, ENABLED, OF_UFW), ACROSS) == [("open", "1-65535", ["10.42.0.2"], "")]
    assert shown(node(UFW, ENABLED, OF_UFW), {**ACROSS, "later": False})[0][0] == "blocked"
    rejecting = text("ufw.iptables-save").replace("COMMIT", "-A FORWARD -j REJECT\nCOMMIT", 1)
    assert shown(node({**UFW, "iptables-nft-save": rejecting}, ENABLED, OF_UFW), ACROSS)[0][0] == "blocked"


# --- opening ----------------------------------------------------------------------------------------------------------


def opening(state, *needs, partial=False):
    return firewall.opening(state, list(needs), firewall.answers(state, list(needs)), partial)


def test_ufw_gets_a_rule_for_each_peer_that_it_drops_and_for_no_other(node):
    made = opening(node(UFW, ENABLED, OF_UFW), need((9100, 9100), peers=[PEER, OTHER]), need((22, 22)), FROM_PODS)
    assert sources(made["add"]) == [("port", OTHER, "9100", None), ("trust", PODS, None, None)]
    assert made["record"] == made["add"]
    assert made["remove"] == []


VRRP = need((0, 0), "vrrp", id="vrrp", rules=[{"kind": "protocol", "source": PEER, "protocol": "vrrp"}])
NAMES_VRRP = {**UFW, "ufw version": "ufw 0.36.2\nCopyright 2008-2023 Canonical Ltd.\n"}


def test_vrrp_has_no_port_and_gets_a_rule_by_its_name(node):
    state = node(NAMES_VRRP, ENABLED, OF_UFW)
    assert shown(state, VRRP) == [("blocked", "0", [PEER], "ufw")]
    assert opening(state, VRRP)["add"] == [{**VRRP["rules"][0], "tool": "ufw"}]
    state = node(FIREWALLD, ZONES, OF_FIREWALLD)
    assert opening(state, VRRP)["add"] == [{**VRRP["rules"][0], "tool": "firewalld", "zone": "public"}]


@pytest.mark.parametrize("said", ["ufw 0.36.1\n", "ufw 0.36\n", "", "ERROR: no such thing\n"])
def test_a_ufw_without_a_name_for_vrrp_is_not_asked_to_open_it(node, said):
    state = node({**UFW, "ufw version": said}, ENABLED, OF_UFW)
    assert shown(state, VRRP) == [("blocked", "0", [PEER], "")]
    assert opening(state, VRRP)["add"] == []


def test_ufw_is_asked_for_its_version_only_for_a_protocol_that_it_may_not_know(node):
    said = {name: answer for name, answer in NAMES_VRRP.items() if name != "ufw version"} | {"ufw status": ""}
    assert node(said, ENABLED, OF_UFW, protocols=("tcp", "udp"))["unnamed"] == frozenset()
    with pytest.raises(KeyError, match="ufw version"):
        node(said, ENABLED, OF_UFW, protocols=("tcp", "vrrp"))


def test_firewalld_knows_its_own_rule_for_vrrp(node):
    mine = {**VRRP["rules"][0], "tool": "firewalld", "zone": "public"}
    rule = f'<rule family="ipv4"><source address="{PEER}"/><protocol value="vrrp"/><accept/></rule>'
    files = {**ZONES, "/etc/firewalld/zones/public.xml": f"<zone>{rule}</zone>", **recorded(mine)}
    state = node(FIREWALLD, files, OF_FIREWALLD)
    assert firewall.key(mine) in state["permanent"]


def test_firewalld_gets_rich_rules_in_the_zone_that_the_peer_is_in(node):
    state = node(FIREWALLD, ZONES, OF_FIREWALLD)
    state["zones"]["work"] = {"interfaces": [], "sources": ["10.0.0.8/31"]}
    made = opening(state, need((2379, 2380), peers=[PEER, "10.0.0.3"]))
    assert sources(made["add"]) == [("port", PEER, "2379-2380", "work"), ("port", "10.0.0.3", "2379-2380", "public")]


def test_pods_are_trusted_by_source_and_only_where_they_are_dropped(node):
    state = node(FIREWALLD, ZONES, OF_FIREWALLD)
    assert opening(state, FROM_PODS, ACROSS)["add"] == []
    elsewhere = {
        **FROM_PODS,
        "peers": [{"host": "pods", "address": "10.44.0.2"}],
        "rules": [{"kind": "trust", "source": "10.44.0.0/16"}],
    }
    assert sources(opening(state, elsewhere)["add"]) == [("trust", "10.44.0.0/16", None, "trusted")]


def test_what_a_rule_of_neither_drops_is_not_opened_around_it(node):
    assert (
        opening(node({NFT: text("nftables.nft.json")}, kernel=["inet filter"]), need((8472, 8472), "udp"))["add"] == []
    )


def recorded(*rules):
    return {firewall.RECORD: json.dumps({"rules": list(rules)})}


MINE = {"kind": "port", "source": PEER, "protocol": "tcp", "ports": "9100", "tool": "ufw"}


def test_a_second_run_changes_nothing(node):
    state = node(UFW, {**ENABLED, **recorded(MINE)}, OF_UFW)
    made = opening(state, need((9100, 9100)))
    assert (made["add"], made["remove"], made["record"]) == ([], [], [MINE])


def test_an_open_port_of_others_never_becomes_ours(node):
    made = opening(node(UFW, ENABLED, OF_UFW), need((9100, 9100)))
    assert made == {"add": [], "remove": [], "record": []}


def test_a_rule_of_ours_that_is_gone_comes_back(node):
    mine = {**MINE, "ports": "6443"}
    made = opening(node(UFW, {**ENABLED, **recorded(mine)}, OF_UFW), need())
    assert (made["add"], made["record"]) == ([mine], [mine])


def test_a_rule_of_ours_that_nothing_needs_goes_unless_this_run_leaves_nodes_out(node):
    state = node(UFW, {**ENABLED, **recorded(MINE)}, OF_UFW)
    made = opening(state)
    assert (made["add"], made["remove"], made["record"]) == ([], [MINE], [])
    made = opening(state, partial=True)
    assert (made["remove"], made["record"]) == ([], [MINE])


def test_firewalld_opens_again_what_is_open_now_and_not_at_boot(node):
    mine = {**MINE, "tool": "firewalld", "zone": "public"}
    files = {**ZONES, **recorded(mine)}
    assert opening(node(FIREWALLD, files, OF_FIREWALLD), need((9100, 9100)))["add"] == []
    files["/etc/firewalld/zones/public.xml"] = "<zone/>"
    assert opening(node(FIREWALLD, files, OF_FIREWALLD), need((9100, 9100)))["add"] == [mine]


@pytest.mark.parametrize("record", ["", "{", "[]", '{"rules": 1}', '{"rules": [1]}', "null"])
def test_a_record_that_is_none_proves_nothing(node, record):
    assert node(UFW, {**ENABLED, firewall.RECORD: record}, OF_UFW)["recorded"] == []


def test_remarks_name_what_stops_nothing(node):
    state = node({NFT: text("nftables.nft.json")}, kernel=["inet filter"])
    needs = [ACROSS, need((10250, 10250), peers=[OTHER])]
    found = {"answers": firewall.answers(state, needs), "at_boot": ["x"]}
    said = firewall.remarks(found)
    assert said["notes"][0] == "x"
    assert said["notes"][1].startswith("5000/tcp of pods: dropped by rule iifname cni* tcp dport 5000 drop")
    assert said["not_verified"] == [
        "what the firewall lets through: rule tcp dport 10250 limit accept of chain input (nft, table inet filter)"
    ]
