"""Nodes that go away on purpose: an upgrade beside someone else's cordon, and the reboot of both nodes under a pod."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls

PATIENCE = 900
# What the role records that k3s was started with. Of another program: a run was cut off before the restart.
STARTED = "/var/lib/gpufabric-rdma/k3s.json"
HALF_WAY = rf"""sed -i 's#"/usr/local/bin/k3s": "[0-9a-f]*"#"/usr/local/bin/k3s": "0"#' {STARTED}"""
SINCE = 'date -d "$(systemctl show --property=ActiveEnterTimestamp --value {})" +%s'
BOOTED = "sed -n 's/^btime //p' /proc/stat"
REBOOT = [
    {
        "name": "Reboot one node after the other",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "become": True,
        "serial": 1,
        "max_fail_percentage": 0,
        "any_errors_fatal": True,
        "pre_tasks": [
            {
                "name": "Give a reason",
                "ansible.builtin.set_fact": {"rdma_reboot_reasons": ["Planted by a test."]},
            }
        ],
        "roles": [{"role": "gpufabric.rdma.reboot"}],
    }
]


def deployment(name, node):
    """One pod that belongs on this node alone, and is made anew when it is evicted."""
    spec = pitfalls.pod(name, None, on=node)["spec"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": pitfalls.NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def pods(cluster, name):
    """{uid: node} of the deployment's running pods."""
    found = cluster.get("pods", "-n", pitfalls.NAMESPACE, f"--selector=app={name}").get("items", ())
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for pod in found
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def cordoned(cluster, name):
    return bool(cluster.get("node", name)["spec"].get("unschedulable"))


@pytest.fixture
def bound(breakable):
    """The cluster with a pod bound to each node; {node: uid of its pod}."""
    pitfalls.apply(breakable, *(deployment(f"bound-{name}", name) for name in breakable.nodes))
    breakable.wait(lambda: all(pods(breakable, f"bound-{name}") for name in breakable.nodes), "pods run", PATIENCE)
    return {name: next(iter(pods(breakable, f"bound-{name}"))) for name in breakable.nodes}


def test_a_node_left_half_way_is_upgraded_and_someone_elses_cordon_stays(breakable, bound):
    worker = breakable.worker
    breakable.kubectl("cordon", worker)
    breakable.node(worker, HALF_WAY)
    service = breakable.kubelet_service(worker)
    before = breakable.node(worker, SINCE.format(service))

    with breakable.timed("upgrade_k3s.yml with one node left half-way"):
        done = breakable.run("upgrade_k3s.yml", "-e", '{"k3s_drain_allowed": true}')

    assert done.code == 0, done.text[-6000:]
    assert breakable.node(worker, SINCE.format(service)) != before, "k3s was restarted"
    assert bound[worker] not in pods(breakable, f"bound-{worker}"), "the node was drained"
    assert cordoned(breakable, worker)
    if worker != breakable.server:
        assert list(pods(breakable, f"bound-{breakable.server}")) == [bound[breakable.server]]
        assert not cordoned(breakable, breakable.server)

    again = breakable.run("upgrade_k3s.yml", "-e", '{"k3s_drain_allowed": true}')
    assert again.code == 0, again.text[-6000:]
    assert [again.record["hosts"][name]["changed"] for name in breakable.nodes] == [[]] * len(breakable.nodes)
    assert cordoned(breakable, worker)


def test_both_nodes_are_rebooted_one_after_the_other_each_drained_and_back(breakable, bound, tmp_path):
    playbook = pathlib.Path(tmp_path, "reboot.yml")
    playbook.write_text(json.dumps(REBOOT))
    before = {name: breakable.node(name, BOOTED) for name in breakable.nodes}

    asked = breakable.run(playbook, "-e", '{"reboot_allowed": true, "reboot_drain_allowed": null}')
    assert asked.code != 0
    assert "reboot_drain_allowed=true" in asked.text
    assert {name: breakable.node(name, BOOTED) for name in breakable.nodes} == before, "no consent, no reboot"

    with breakable.timed("both nodes drained, rebooted and back, one after the other"):
        done = breakable.run(playbook, "-e", '{"reboot_allowed": true, "reboot_drain_allowed": true}')

    assert done.code == 0, done.text[-6000:]
    booted = {name: int(breakable.node(name, BOOTED)) for name in breakable.nodes}
    assert all(booted[name] > int(before[name]) for name in breakable.nodes)
    # In the order of the inventory: the next node goes only when the kubelet of the one before reports again.
    for earlier, later in zip(breakable.nodes, breakable.nodes[1:]):
        service = breakable.kubelet_service(earlier)
        assert booted[later] > int(breakable.node(earlier, SINCE.format(service)))
    assert not any(cordoned(breakable, name) for name in breakable.nodes)
    records = [breakable.node(name, "ls /var/lib/gpufabric-rdma/reboot.json 2>/dev/null; true") for name in booted]
    assert records == [""] * len(records)
    breakable.wait(
        lambda: all(set(pods(breakable, f"bound-{name}").values()) == {name} for name in breakable.nodes),
        "the pods are back on their nodes",
        PATIENCE,
    )
    assert all(bound[name] not in pods(breakable, f"bound-{name}") for name in breakable.nodes), "each was evicted"
