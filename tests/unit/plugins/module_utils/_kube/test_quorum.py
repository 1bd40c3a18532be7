"""Whether the cluster can spare a node, or has it back: from its nodes and from what etcd says of its members."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import quorum
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

SERVER = {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
# Of etcd 3.6.5, three members, the third one killed.
METRICS = """\
# HELP etcd_network_active_peers The current number of active peer connections.
# TYPE etcd_network_active_peers gauge
etcd_network_active_peers{Local="a1",Remote="b2"} 1
etcd_network_active_peers{Local="a1",Remote="c3"} 0
etcd_network_known_peers{Local="a1",Remote="a1"} 1
etcd_network_known_peers{Local="a1",Remote="b2"} 1
etcd_network_known_peers{Local="a1",Remote="c3"} 1
etcd_server_has_leader 1
"""
WHOLE = {"known": {"a", "b", "c"}, "active": {"a", "b", "c"}, "leader": True}


def node(name, ready="True", boot="boot-1", labels=None, **more):
    found = kubectl_cluster.node(name, labels=SERVER if labels is None else labels)
    conditions = [{"type": kind, "status": status} for kind, status in {"Ready": ready, **more}.items()]
    found["status"] = {"conditions": conditions, "nodeInfo": {"bootID": boot}}
    return found


NODES = [node("s1"), node("s2"), node("s3"), node("worker", labels={})]


def seen(*args, **options):
    return [(found.object, found.seen) for found in quorum.against(*args, **options)]


@pytest.mark.parametrize(("nodes", "etcd", "said"), [
    ([*NODES[:2], node("s3", "Unknown")], WHOLE, [("server s3", "no report for a while")]),
    ([*NODES[:2], node("s3", EtcdIsVoter="False")], WHOLE, [("server s3", "not one now")]),
    (NODES, {**WHOLE, "active": {"a", "b"}}, [("etcd of the cluster", "2 of 3 members, without c")]),
    (NODES, {**WHOLE, "leader": False}, [("etcd of the cluster", "no leader")]),
    # An etcd that does not say whom it knows: the nodes do.
    (NODES, {"known": {"a"}, "active": {"a", "b"}, "leader": True}, [("etcd of the cluster", "2 of 3 members")]),
    (NODES, {"error": "refused"}, [("etcd of the cluster", "refused")]),
])  # fmt: skip
def test_what_is_away_is_named(nodes, etcd, said):
    assert seen(nodes, etcd, "s1") == said
    assert seen(NODES, WHOLE, "s1") == seen(NODES, None, "worker") == []
    # A worker that is away, and nodes before the pod network, hold nothing up.
    assert seen([node("s1", "False"), node("worker", "Unknown", labels={})], None, "s1") == []
    assert seen(NODES, None, "other") == [("node other", "no node of that name")]


@pytest.mark.parametrize(
    ("ready", "boot", "said"),
    [("True", "boot-1", "that of the previous boot"), ("False", "boot-2", "not Ready"), ("True", "boot-2", None)],
)
def test_a_node_is_back_when_it_has_reported_its_new_boot(ready, boot, said):
    nodes = [node("worker", ready, boot, labels={})]
    found = quorum.against(nodes, None, "worker", left="boot-1", ready=True)
    assert [finding.seen for finding in found] == ([said] if said else [])


@pytest.fixture
def etcd(tmp_path):
    def read(config, fetch=lambda url: METRICS):
        path = tmp_path / quorum.ETCD_CONFIG.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config)
        return quorum.etcd(Tree(tmp_path), fetch)

    return read


def test_etcd_is_asked_at_the_address_that_its_configuration_has(etcd):
    asked = []

    def fetch(url):
        asked.append(url)
        return METRICS

    found = etcd("name: s1\nlisten-metrics-urls: http://127.0.0.1:2381,http://192.0.2.1:2381\n", fetch)
    assert asked == ["http://127.0.0.1:2381/metrics"]
    assert found == {"known": {"a1", "b2", "c3"}, "active": {"a1", "b2"}, "leader": True}


def test_an_etcd_that_cannot_be_asked_is_not_taken_for_one_that_is_whole(etcd, tmp_path):
    def refused(_url):
        raise ConnectionRefusedError("refused")

    assert quorum.etcd(Tree(tmp_path)) is None, "a server without etcd has none"
    assert "error" in etcd("listen-metrics-urls: http://127.0.0.1:2381\n", refused)
    assert "error" in etcd("name: s1\n")


def test_it_waits_until_nothing_stands_against_it_and_no_longer_than_told():
    now, answers = [0.0], [["away"], ["away"], []]

    class Client:
        def items(self, _kind):
            return NODES

    def sleep(seconds):
        now[0] += seconds

    def wait(seconds, judge):
        return quorum.wait(Client(), Tree("/nowhere"), seconds, judge, lambda: now[0], sleep)[1]

    assert wait(60, lambda _nodes, _etcd: answers.pop(0)) == []
    assert now == [6.0]
    assert wait(5, lambda _nodes, _etcd: ["away"]) == ["away"]
    assert now == [12.0]
