"""Rules of ufw and firewalld as their files have them, and which of the two runs."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

UFW = """### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
-A ufw-user-input -p tcp --dport 22 -j ACCEPT

### tuple ### allow tcp 2379:2380 0.0.0.0/0 any 10.0.0.8/30 in comment=6770
### tuple ### allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### route:allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### allow vrrp any 0.0.0.0/0 any 10.0.0.2 in comment=6770
### tuple ### deny tcp 6443 0.0.0.0/0 any 10.0.0.9 in
### tuple ### allow udp 8472 ::/0 any fd00::2 in
"""
PUBLIC = """<zone><service name="ssh"/><source address="10.42.0.0/16"/>
<rule family="ipv4"><source address="10.0.0.2"/><port port="6443" protocol="tcp"/><accept/></rule>
<rule family="ipv4"><source address="10.0.0.3"/><protocol value="vrrp"/><accept/></rule>
<rule family="ipv4"><source address="10.0.0.4"/><port port="6443" protocol="tcp"/><drop/></rule></zone>"""


def test_rules_of_ufw():
    assert firewall.ufw_rules(UFW) == [
        ["port", "0.0.0.0/0", "tcp", "22", ""],
        ["port", "10.0.0.8/30", "tcp", "2379-2380", ""],
        ["trust", "10.42.0.0/16", "", "", ""],
        ["route", "10.42.0.0/16", "", "", ""],
        ["protocol", "10.0.0.2", "vrrp", "", ""],
        ["port", "fd00::2", "udp", "8472", ""],
    ]


def test_rules_and_zones_of_firewalld():
    assert firewall.firewalld_rules("public", PUBLIC) == [
        ["trust", "10.42.0.0/16", "", "", "public"],
        ["port", "10.0.0.2", "tcp", "6443", "public"],
        ["protocol", "10.0.0.3", "vrrp", "", "public"],
    ]
    assert firewall.firewalld_rules("public", "<zone>") == []
    assert firewall.zones("public (default)\n  interfaces: eth0 eth1\ntrusted\n  sources: 10.42.0.0/16\n") == {
        "public": {"interfaces": ["eth0", "eth1"], "sources": []},
        "trusted": {"interfaces": [], "sources": ["10.42.0.0/16"]},
    }


@pytest.mark.parametrize(
    ("said", "names"), [("ufw 0.36.2\n", True), ("ufw 0.36.1", False), ("ufw 0.35", False), ("", False)]
)
def test_which_ufw_names_vrrp(said, names):
    assert firewall._names_vrrp(said) is names


@pytest.mark.parametrize(
    ("programs", "running", "enabled", "tool"),
    [
        ({"ufw", "firewall-cmd", "nft"}, True, True, "firewalld"),
        ({"ufw", "firewall-cmd", "nft"}, False, True, "ufw"),
        ({"ufw", "nft"}, False, False, "nftables"),
        (set(), False, True, None),
    ],
)
def test_the_tool_is_the_one_that_runs(monkeypatch, programs, running, enabled, tool):
    class Live(Tree):
        live = True

        def read(self, path):
            return f"ENABLED={'yes' if enabled else 'no'}" if path == "/etc/ufw/ufw.conf" else None

    monkeypatch.setattr(firewall.programs, "found", lambda name, *_: name if name in programs else None)
    assert firewall._tool(Live("/"), lambda argv: (0 if running else 252, "", "")) == tool


@pytest.mark.parametrize(("text", "count"), [(json.dumps({"rules": [{"kind": "port"}, "x"]}), 1), ("[]", 0), ("{", 0)])
def test_a_record_that_is_not_ours_proves_nothing(tmp_path, text, count):
    path = tmp_path / firewall.RECORD.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text("head\n 0: 00000000:192B 00000000:0000 0A x\n 1: 0100007F:0016 0:0 01 x\n")
    (tmp_path / "proc/net/udp").write_text("head\n 0: 00000000:2118 00000000:0000 07 x\n")
    (tmp_path / ".seams.json").write_text('{"addresses": {}}')
    found = firewall.info(Tree(str(tmp_path)), None)
    assert len(found["recorded"]) == count
    assert (found["tool"], found["bound"]) == (None, {"tcp": [6443], "udp": [8472]})
