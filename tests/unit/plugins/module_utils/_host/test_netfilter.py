"""The first packet of a connection through recorded rulesets of ufw, firewalld, nftables and legacy iptables."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import netfilter
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.netfilter import Packet

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures/firewall"
PEER, OTHER, NODE, POD, THEIRS = "10.0.0.9", "10.0.0.8", "10.0.0.1", "10.42.0.5", "10.42.1.7"
OPEN = "open"


def recorded(name):
    text = (FIXTURES / name).read_text()
    return netfilter.from_nft(text) if name.endswith(".json") else netfilter.from_iptables(text, "iptables-nft")


def into(port, source=PEER, protocol="tcp", iif="eth0"):
    return Packet(protocol, port, source, NODE, iif)


def across(port, protocol="tcp", iif="cni0", oif="flannel.1"):
    return Packet(protocol, port, POD, THEIRS, iif, oif, local=False)


def seen(tables, packet):
    """(verdict, what decides)"""
    outcome = netfilter.verdict(tables, packet)
    return (OPEN, "") if outcome is None else (outcome.verdict, outcome.said())


def verdict(tables, packet):
    return seen(tables, packet)[0]


RECORDED = [
    ("ufw.iptables-save", into(22), OPEN),
    ("ufw.iptables-save", into(9100), OPEN),
    ("ufw.iptables-save", into(9100, OTHER), "the policy of chain INPUT"),
    ("ufw.iptables-save", into(8472, protocol="udp"), "the policy of chain INPUT"),
    ("ufw.iptables-save", into(0, protocol="vrrp"), "the policy of chain INPUT"),
    ("ufw.iptables-save", into(6443, POD, iif="cni0"), "the policy of chain INPUT"),
    ("ufw.iptables-save", across(80), "the policy of chain FORWARD"),
    ("firewalld.nft.json", into(22), OPEN),
    ("firewalld.nft.json", into(9100), OPEN),
    ("firewalld.nft.json", into(9100, OTHER), "rule reject of chain filter_IN_public (nft, table inet firewalld)"),
    ("firewalld.nft.json", into(0, protocol="vrrp"), "rule reject of chain filter_IN_public"),
    ("firewalld.nft.json", into(6443, POD, iif="cni0"), OPEN),
    ("firewalld.nft.json", across(80), OPEN),
    ("firewalld.nft.json", Packet("tcp", 80, "10.99.0.1", THEIRS, "eth0", "cni0", False), "reject of chain filter_F"),
    ("nftables.nft.json", into(6443), OPEN),
    ("nftables.nft.json", into(10250, "10.0.0.7"), OPEN),
    ("nftables.nft.json", into(10250, "10.0.9.200"), OPEN),
    ("nftables.nft.json", into(18602), OPEN),
    ("nftables.nft.json", into(18602, "10.0.9.1"), "the policy of chain input (nft, table inet filter)"),
    ("nftables.nft.json", into(18608), "the policy of chain input"),
    ("nftables.nft.json", into(8472, protocol="udp"), "rule udp dport 8472 ip saddr 10.0.0.0/24 drop of chain input"),
    ("nftables.nft.json", across(5000), "rule iifname cni* tcp dport 5000 drop of chain forward"),
    ("nftables.nft.json", across(5001), OPEN),
    ("legacy.iptables-save", into(6443), OPEN),
    ("legacy.iptables-save", into(10250), OPEN),
    ("legacy.iptables-save", into(10250, OTHER), "the policy of chain INPUT"),
    ("legacy.iptables-save", across(80), OPEN),
]


@pytest.mark.parametrize(("name", "packet", "wanted"), RECORDED)
def test_recorded_rulesets_say_what_the_kernel_did(name, packet, wanted):
    found = seen(recorded(name), packet)
    assert found == (OPEN, "") if wanted == OPEN else (found[0] == "drop" and wanted in found[1]), found


@pytest.mark.parametrize("spelled", ["vrrp", "112"])
def test_vrrp_passes_where_its_name_or_number_is_accepted(spelled):
    saved = f"*filter\n:INPUT DROP [0:0]\n-A INPUT -s {PEER}/32 -p {spelled} -j ACCEPT\nCOMMIT\n"
    tables = netfilter.from_iptables(saved, "iptables-nft")
    assert verdict(tables, into(0, protocol="vrrp")) == OPEN
    assert verdict(tables, into(0, OTHER, "vrrp")) == "drop"
    assert verdict(tables, into(6443)) == "drop"


def test_a_rule_for_ports_is_none_for_vrrp():
    port = {"match": {"op": "==", "left": {"payload": {"protocol": "th", "field": "dport"}}, "right": 0}}
    chain = {"family": "inet", "table": "t", "name": "input", "type": "filter", "hook": "input", "policy": "accept"}
    rule = {"family": "inet", "table": "t", "chain": "input", "handle": 2, "expr": [port, {"drop": None}]}
    listed = {"nftables": [{"table": {"family": "inet", "name": "t"}}, {"chain": chain}, {"rule": rule}]}
    tables = netfilter.from_nft(json.dumps(listed))
    assert verdict(tables, into(0)) == "drop"
    assert verdict(tables, into(0, protocol="vrrp")) == OPEN


def test_a_rate_limit_makes_the_answer_unknown_and_names_the_rule():
    found = seen(recorded("nftables.nft.json"), into(10250, OTHER))
    assert found == ("unknown", "rule tcp dport 10250 limit accept of chain input (nft, table inet filter)")


def test_what_nft_cannot_show_of_iptables_is_known_to_be_opaque_and_never_open():
    tables = recorded("ufw.nft.json")
    assert all(map(netfilter.opaque, tables))
    assert verdict(tables, into(8472, OTHER, "udp")) != OPEN
    assert not any(map(netfilter.opaque, recorded("firewalld.nft.json")))


def rules(*lines, policy="ACCEPT", hook="INPUT"):
    text = f"*filter\n:INPUT {policy if hook == 'INPUT' else 'ACCEPT'} [0:0]\n"
    text += f":FORWARD {policy if hook == 'FORWARD' else 'ACCEPT'} [0:0]\n"
    chains = dict.fromkeys(line.split()[1] for line in lines if line.split()[1] not in ("INPUT", "FORWARD"))
    text += "".join(f":{chain} - [0:0]\n" for chain in chains)
    return netfilter.from_iptables(text + "".join(f"{line}\n" for line in lines) + "COMMIT\n", "iptables")


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("-A INPUT -p udp -m udp --dport 8472 -j DROP", "drop"),
        ("-A INPUT -p tcp -m tcp --dport 8472 -j DROP", OPEN),
        ("-A INPUT -p udp -m udp --dport 8000:9000 -j REJECT --reject-with icmp-port-unreachable", "drop"),
        ("-A INPUT -p udp -m multiport --dports 53,8472:8473 -j DROP", "drop"),
        ("-A INPUT -p udp -m udp ! --dport 53 -j DROP", "drop"),
        ("-A INPUT ! -s 10.0.0.0/24 -p udp -j DROP", OPEN),
        ("-A INPUT -s 10.0.0.0/24 -i eth+ -j DROP", "drop"),
        ("-A INPUT ! -i lo -j DROP", "drop"),
        ("-A INPUT -d 10.0.0.1/32 -j DROP", "drop"),
        ("-A INPUT -d 10.0.0.2/32 -j DROP", OPEN),
        ("-A INPUT -m conntrack --ctstate INVALID -j DROP", OPEN),
        ("-A INPUT -m conntrack --ctstate NEW -j DROP", "drop"),
        ("-A INPUT -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP", "drop"),
        ("-A INPUT -m addrtype --dst-type BROADCAST -j DROP", OPEN),
        ("-A INPUT -m addrtype ! --dst-type LOCAL -j DROP", OPEN),
        ("-A INPUT -m addrtype --dst-type LOCAL -j DROP", "drop"),
        ("-A INPUT -m mark --mark 0x8000/0x8000 -j DROP", OPEN),
        ("-A INPUT -p udp -m udp --sport 53 -j DROP", OPEN),
        ("-A INPUT -p udp -m udp --sport 1024:65535 -j DROP", "drop"),
        ("-A INPUT -p udp -m udp --sport 40000 -j DROP", "unknown"),
        ("-A INPUT -m set --match-set blocked src -j DROP", "unknown"),
        ("-A INPUT -p udp -m recent --update --seconds 60 --name DEFAULT --rsource -j DROP", "unknown"),
        ('-A INPUT -p udp -m comment --comment "drop --dport 1 -j ACCEPT" -j DROP', "drop"),
        ("-A INPUT -p udp -j NFQUEUE --queue-num 1", "unknown"),
        ('-A INPUT -p udp -m limit --limit 3/min -j LOG --log-prefix "x "', OPEN),
        ("-A INPUT -m rpfilter --invert -j DROP", OPEN),
    ],
)
def test_each_condition_of_iptables(rule, wanted):
    assert verdict(rules(rule), into(8472, protocol="udp")) == wanted


def test_of_tcp_flags_a_connection_begins_with_syn_alone():
    only = "-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"
    never = "-A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"
    assert [verdict(rules(rule), into(22)) for rule in (only, never)] == ["drop", OPEN]


def test_chains_return_and_are_left_for_good():
    chains = ("-A INPUT -j mine", "-A mine -s 10.0.0.9/32 -j RETURN", "-A mine -j DROP")
    assert [verdict(rules(*chains), into(22, source)) for source in (PEER, OTHER)] == [OPEN, "drop"]
    gone = ("-A INPUT -j one", "-A INPUT -j ACCEPT", "-A one -g two", "-A one -j DROP", "-A two -s 10.0.0.9/32 -j DROP")
    assert [verdict(rules(*gone), into(22, source)) for source in (PEER, OTHER)] == ["drop", OPEN]


def test_a_doubt_that_leads_to_the_same_end_is_none():
    doubtful = ("-A INPUT -m set --match-set a src -j mine", "-A INPUT -j DROP", "-A mine -j DROP")
    assert verdict(rules(*doubtful), into(22)) == "drop"
    maybe = ("-A INPUT -m set --match-set a src -j RETURN", "-A INPUT -j DROP")
    assert verdict(rules(*maybe), into(22)) == "unknown"


def test_policies_of_kubernetes_are_no_firewall_and_flannels_rules_count():
    forward = (
        "-A FORWARD -j KUBE-ROUTER-FORWARD",
        '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
        "-A KUBE-ROUTER-FORWARD -j DROP",
        '-A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT',
    )
    assert verdict(rules(*forward, policy="DROP", hook="FORWARD"), across(80)) == OPEN
    assert verdict(rules(*forward[:1], forward[2], policy="DROP", hook="FORWARD"), across(80)) == "drop"


def test_every_port_is_covered_by_one_part_and_a_rules_limits_part_them():
    tables = rules("-A FORWARD -p tcp -m tcp --dport 5000:5009 -j DROP", "-A FORWARD -p tcp -m tcp --dport 80 -j DROP")
    found = netfilter.parts(tables, 1, 65535)
    assert found == [(1, 79), (80, 80), (81, 4999), (5000, 5009), (5010, 65535)]
    assert [verdict(tables, across(first)) for first, _last in found] == [OPEN, "drop", OPEN, "drop", OPEN]


def test_each_table_has_to_let_a_packet_through():
    tables = [*recorded("firewalld.nft.json"), *rules("-A INPUT -p tcp -m tcp --dport 22 -j DROP")]
    assert seen(tables, into(22))[1] == "rule -A INPUT -p tcp -m tcp --dport 22 -j DROP (iptables, table filter)"
    raw = netfilter.from_iptables("*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j DROP\nCOMMIT\n", "iptables")
    assert verdict(raw, into(22)) == "drop"


def test_ipv6_peers_meet_the_rules_of_ipv6():
    tables = netfilter.from_iptables((FIXTURES / "ufw.ip6tables-save").read_text(), "ip6tables-nft")
    packet = Packet("tcp", 22, "fd00::9", "fd00::1", "eth0")
    assert [verdict(tables, packet), verdict(tables, packet._replace(port=80))] == [OPEN, "drop"]
    assert verdict(tables, into(80)) == OPEN, "tables of ip6tables see no IPv4"
    assert verdict(recorded("firewalld.nft.json"), packet) == OPEN


def test_a_text_that_is_no_ruleset_is_an_error_and_no_empty_firewall():
    for text in ("iptables-save: command failed\n", "*filter\nnonsense\n"):
        with pytest.raises(ValueError, match="not iptables-save"):
            netfilter.from_iptables(text, "iptables")
    for text in ("", "{}", "[]", "null"):
        with pytest.raises(ValueError, match=r"no ruleset of nft|Expecting value"):
            netfilter.from_nft(text)


def test_a_rule_says_how_it_is_removed():
    outcome = netfilter.verdict(rules("-A INPUT -p udp -m udp --dport 8472 -j DROP"), into(8472, protocol="udp"))
    assert outcome.rule.remove == "iptables -t filter -D INPUT -p udp -m udp --dport 8472 -j DROP"
    outcome = netfilter.verdict(recorded("nftables.nft.json"), across(5000))
    ruleset = json.loads((FIXTURES / "nftables.nft.json").read_text())["nftables"]
    handle = next(item["rule"]["handle"] for item in ruleset if item.get("rule", {}).get("chain") == "forward")
    assert outcome.rule.remove == f"nft delete rule inet filter forward handle {handle}"
