"""Rules of ufw and firewalld as their files have them, and which of the two runs."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall, reach
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


# Whether a port answers.


def free(kind):
    with socket.socket(socket.AF_INET, kind) as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def port(protocol):
    return {"protocol": protocol, "address": "127.0.0.1", "port": free(reach._STREAM[protocol])}


def states(*questions):
    return [one["state"] for one in reach.ask(list(questions), 1.5)]


@pytest.fixture
def listening():
    """A function: listens for so long; what is left at the end is stopped."""
    made = []

    def listen(ports, seconds=30):
        made.append(reach.listen(ports, seconds))
        return made[-1]

    yield listen
    for one in made:
        if one["listener"]:
            reach.stop(one["listener"])


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_port_answers_while_somebody_listens(listening, protocol):
    one = port(protocol)
    assert states(one) == ["refused"]
    found = listening([one])
    assert found["deaf"] == {}
    assert states(one, {**one, "id": "kept"}) == ["answered"] * 2
    assert reach.ask([{**one, "id": "kept"}], 1)[0]["id"] == "kept"
    reach.stop(found["listener"])
    assert wait_for(lambda: states(one) == ["refused"])


def wait_for(done):
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if done():
            return True
    return False


def test_a_listener_ends_at_its_deadline(listening):
    pid = listening([port("tcp")], 0.3)["listener"]["pid"]
    assert wait_for(lambda: not os.path.exists(f"/proc/{pid}") or reach._born(pid) is None)


def test_no_other_process_is_ended():
    reach.stop({"pid": os.getpid(), "born": "1"})


def test_a_port_in_use_answers_by_itself_and_an_address_of_another_node_is_named(listening):
    with socket.create_server(("127.0.0.1", 0)) as used:
        taken = {"protocol": "tcp", "address": "127.0.0.1", "port": used.getsockname()[1]}
        found = listening([taken, {**taken, "address": "192.0.2.1", "port": 1}])
        assert found["listener"] is None
        assert list(found["deaf"]) == ["1/tcp"]
        assert states(taken) == ["answered"]


def test_a_port_that_says_nothing_is_silent_and_what_it_says_must_be_what_was_sent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        one = {"protocol": "udp", "address": "127.0.0.1", "port": mute.getsockname()[1]}
        (answer,) = reach.ask([one], 0.3)
        assert (answer["state"], bool(answer["why"])) == ("silent", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="not verified: a raw socket takes root")
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"])
def test_an_address_echoes(address):
    one = {"protocol": "ping", "address": address, "port": 8472}
    assert states(one, one) == ["answered"] * 2


def test_an_address_without_a_route_is_an_answer_too(monkeypatch):
    assert states({"protocol": "tcp", "address": "255.255.255.255", "port": 1}) == ["silent"]
