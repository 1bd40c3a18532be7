"""A firewall on nodes: reported before the first change, opened, then a usual site.yml; a planted DROP is reported.

Each of Debian's two firewalls starts with its packages' defaults, closed except for SSH. In a lab with one node there
are no peers to probe, so there is nothing to report, but its pods' networks are opened anyway.
"""

import json
import re

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls

OF_PEERS = {"6443/tcp", "10250/tcp", "8472/udp"}
FIREWALLS = {
    "ufw": (
        "systemctl -q unmask ufw; ufw allow 22/tcp >/dev/null; ufw --force enable",
        "ufw status | sort",
        "ufw --force reset >/dev/null; ufw disable",
    ),
    "firewalld": (
        "systemctl -q unmask firewalld; systemctl start firewalld; firewall-cmd --state",
        "for zone in public trusted; do firewall-cmd --permanent --zone=$zone --list-all; done",
        "systemctl stop firewalld",
    ),
}
# VXLAN carries the pods of all nodes.
PLANT = "iptables {} INPUT -p udp --dport 8472 -j DROP"


def named(run):
    """Ports in the message of a refused run: {"6443/tcp"}"""
    return set(re.findall(r"firewall: ([\d-]+/\w+)", run.text))


def refuses(cluster, *arguments):
    run = cluster.run("site.yml", *arguments)
    assert run.code != 0, run.text[-4000:]
    assert "nothing has been changed" in run.text
    return named(run)


def verified(cluster):
    """{check: its status} of the worker's firewall after verify"""
    found = lab_pitfalls.lines(lab_pitfalls.look(cluster), cluster.worker)
    return {name: text for name, text in found.items() if name.startswith("firewall:")}


@pytest.mark.parametrize("tool", FIREWALLS)
def test_a_firewall_is_named_then_opened_then_the_cluster_is_whole(breakable, tool):
    start, show, stop = FIREWALLS[tool]
    for name in breakable.nodes:
        breakable.node(name, start)
    before = {name: breakable.node(name, show) for name in breakable.nodes}

    if len(breakable.nodes) > 1:
        with breakable.timed(f"{tool}: named by the preflight"):
            missing = refuses(breakable)
        assert missing >= OF_PEERS
    assert {name: breakable.node(name, show) for name in breakable.nodes} == before

    breakable.succeed("site.yml", "--check", "-e", "node_firewall=open")
    assert {name: breakable.node(name, show) for name in breakable.nodes} == before

    with breakable.timed(f"{tool}: opened, and site.yml green"):
        breakable.succeed("site.yml", "-e", "node_firewall=open")
    after = {name: breakable.node(name, show) for name in breakable.nodes}
    assert all(after[name] != before[name] for name in breakable.nodes)

    with breakable.timed(f"{tool}: second run"):
        again = breakable.succeed("site.yml", "-e", "node_firewall=open")
    for name in breakable.nodes:
        assert again.changes(name) == set()
        assert breakable.node(name, show) == after[name]

    rules = json.loads(breakable.node(breakable.worker, "cat /var/lib/gpufabric-rdma/firewall.json"))["rules"]
    breakable.note(f"{len(rules):7}    rules that node_firewall made in {tool} of {breakable.worker}")
    for name in breakable.nodes:
        breakable.node(name, stop)


def test_a_planted_drop_is_named_with_its_port(breakable):
    if len(breakable.nodes) == 1:
        pytest.skip("not verified: a single node has no peer to probe")
    worker = breakable.worker
    breakable.node(worker, PLANT.format("-I"))

    assert "8472/udp" in "".join(verified(breakable))
    assert "8472/udp" in refuses(breakable)
    code, entries, text = breakable.drift()
    assert code == 4, text
    assert any("firewall: 8472/udp" in reason for reason in entries[worker]["reasons"])

    breakable.node(worker, PLANT.format("-D"))
    assert verified(breakable) == {}
