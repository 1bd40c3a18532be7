"""The role node_firewall with real ufw, firewalld and planted rules: named, opened, left alone, closed.

    make firewall-root

What a cluster's pods see of it is for tests/cluster/test_firewall.py.
"""

from __future__ import annotations

import re
import time

import pytest
from ansible_collections.gpufabric.rdma.tests.firewall import root as roots

pytestmark = pytest.mark.skipif(bool(roots.reason_against()), reason=f"not verified: {roots.reason_against()}")

# What a server of k3s needs of its agent, and its pods of it.
DROPPED = {"6443/tcp", "10250/tcp", "8472/udp"}
SHARED = "10.0.0.100"
RECORD = "/var/lib/gpufabric-rdma/firewall.json"
PLANT = "iptables -I INPUT -p udp --dport 8472 -j DROP"


def names(run):
    return {finding["object"].removeprefix("firewall: ") for finding in run.findings()}


def ufw(root):
    root.run("ufw --force enable && ufw allow 22/tcp && ufw allow proto tcp from 10.0.0.77 to any port 9100")
    return "grep '^### tuple' /etc/ufw/user.rules /etc/ufw/user6.rules"


def firewalld(root):
    root.run("mkdir -p /run/dbus && dbus-daemon --system --fork")
    root.start("firewalld", "--nofork", "--nopid")
    for _second in range(300):
        if root.run("firewall-cmd --state 2>/dev/null", check=False) == "running":
            break
        time.sleep(1)
    root.run(
        "firewall-cmd --zone=public --change-interface=eth0 && firewall-cmd --zone=public --add-port=9100/tcp "
        "&& firewall-cmd --permanent --zone=public --add-port=9100/tcp"
    )
    return (
        "for zone in public trusted; do firewall-cmd --zone=$zone --list-all; firewall-cmd --permanent --zone=$zone "
        "--list-all; done"
    )


@pytest.fixture(scope="module", params=[ufw, firewalld], ids=lambda one: one.__name__)
def node(request, tmp_path_factory):
    """(root, name of the firewall, the command that prints all its rules, what it printed first)"""
    root = roots.Root(tmp_path_factory.mktemp(request.param.__name__))
    show = request.param(root)
    yield root, request.param.__name__, show, root.run(show)
    root.close()


def test_verify_names_ports_peers_and_commands_and_changes_nothing(node):
    root, tool, show, before = node
    run = root.play()
    assert run.code != 0
    assert names(run) >= DROPPED, run.text
    for finding in run.findings():
        assert finding["seen"].startswith(f"{tool} drops it"), finding
        assert "10.0.0.2" in finding["wanted"] or "pods 10.42.0.0/16" in finding["wanted"]
        assert "node_firewall: open" in finding["next_step"]
    assert root.run(show) == before


def test_the_commands_that_it_names_open_what_it_names(node):
    root, tool, show, before = node
    commands = {
        command.strip()
        for finding in root.play().findings()
        for command in finding["next_step"].partition("on the node: ")[2].split(";")
    }
    assert all(command.startswith({"ufw": "ufw", "firewalld": "firewall-cmd"}[tool]) for command in commands)
    root.run("; ".join(sorted(commands)))
    run = root.play()
    assert run.code == 0, run.text
    undo = [
        command.replace("--add-", "--remove-")
        .replace("ufw allow", "ufw delete allow")
        .replace("ufw route", "ufw route delete")
        for command in sorted(commands)
    ]
    root.run("; ".join(undo))
    assert root.run(show) == before


def test_check_mode_announces_what_open_would_do(node):
    root, _tool, show, before = node
    run = root.play("--check", node_firewall="open")
    assert run.code == 0, run.text
    assert len(run.items()) >= len(DROPPED), run.text
    assert root.run(show) == before
    assert root.run(f"test -e {RECORD} || echo none") == "none"


def test_open_opens_and_a_second_run_changes_nothing(node):
    root, _tool, _show, _before = node
    first = root.play(node_firewall="open")
    assert first.code == 0, first.text
    assert first.changed > 0
    assert root.play().code == 0, "verify finds nothing any more"
    second = root.play(node_firewall="open")
    assert (second.code, second.changed) == (0, 0), second.text


def test_a_rule_that_was_taken_away_is_announced_and_comes_back(node):
    root, tool, show, _before = node
    opened = root.run(show)
    rich = 'rule family="ipv4" source address="10.0.0.2" port port="6443" protocol="tcp" accept'
    take = f"firewall-cmd --zone=public --remove-rich-rule='{rich}'"
    root.run("ufw delete allow proto tcp from 10.0.0.2 to any port 6443" if tool == "ufw" else take)
    checked = root.play("--check", node_firewall="open")
    assert [item.partition(" ")[0] for item in checked.items()] == ["6443/tcp"], checked.text
    assert root.play(node_firewall="open").code == 0
    assert sorted(root.run(show).splitlines()) == sorted(opened.splitlines())


def test_a_planted_drop_is_named_with_its_port_and_never_opened_around(node):
    root, _tool, show, _before = node
    opened = root.run(show)
    for mode in ("verify", "open"):
        root.run(PLANT)
        run = root.play(node_firewall=mode)
        assert run.code != 0
        (finding,) = run.findings()
        assert finding["object"] == "firewall: 8472/udp"
        # In the words of iptables, or of nft where nft can show all of the table.
        assert re.search(r"--dport 8472 -j DROP|udp dport 8472 drop", finding["seen"]), finding
        root.run(finding["next_step"].partition(";")[0])
        assert root.play(node_firewall=mode).code == 0, "the command that it names has removed the rule"
    assert root.run(show) == opened


def test_a_planted_drop_of_pods_is_a_warning_with_its_port(node):
    root, _tool, _show, _before = node
    root.run("iptables -I FORWARD -p tcp --dport 5000 -j DROP")
    run = root.play()
    root.run("iptables -D FORWARD -p tcp --dport 5000 -j DROP")
    assert run.code == 0
    notes = [note for _name, result in run.tasks for note in result.get("notes") or []]
    dropped = (
        r"5000/tcp of pods: dropped by rule (-A FORWARD .*--dport 5000 -j DROP|tcp dport 5000 drop of chain FORWARD)"
    )
    assert any(re.match(dropped, note) for note in notes), notes


def test_a_run_without_the_peer_gives_nothing_up_and_a_run_with_it_does(node):
    root, _tool, show, _before = node
    opened = root.run(show)
    run = root.play("--limit", "node1", node_firewall="open")
    assert (run.code, run.changed) == (0, 0), run.text
    assert root.run(show) == opened


def test_servers_that_share_an_address_get_vrrp_through(node):
    root, tool, show, _before = node
    run = root.play(k3s_api_address=SHARED)
    assert run.code != 0
    assert names(run) == {"VRRP (IP protocol 112)", "2379-2380/tcp"}, run.text
    assert root.play(node_firewall="open", k3s_api_address=SHARED).code == 0
    assert root.play(k3s_api_address=SHARED).code == 0
    second = root.play(node_firewall="open", k3s_api_address=SHARED)
    assert (second.code, second.changed) == (0, 0), second.text
    assert "vrrp" in root.run(show), tool
    assert root.play(node_firewall="open").code == 0
    assert "vrrp" not in root.run(show), "a rule that nothing needs any longer"


def test_reset_removes_what_was_opened_and_nothing_else(node):
    root, _tool, show, before = node
    checked = root.play("--check", tasks_from="reset")
    assert len(checked.items()) >= len(DROPPED), checked.text
    run = root.play(tasks_from="reset", k3s_reset_allowed=True)
    assert run.code == 0, run.text
    assert root.run(show) == before
    assert root.run(f"test -e {RECORD} || echo none") == "none"
    assert root.play(tasks_from="reset", k3s_reset_allowed=True).changed == 0
