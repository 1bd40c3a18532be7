"""Pitfalls of the pod network, planted in the running cluster: what fails, the line that verify prints, and the cure.

Ids in the test names are those of the field guide. Each test first takes the cure away where it is a unit of ours, so
that the fault is seen to be real, then lets the cure work.
"""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools.lab_pitfalls import (
    CONF,
    GUARD,
    NAMESPACE,
    PATIENCE,
    RESOURCE,
    apply,
    attachment,
    complaints,
    conf_of,
    interfaces,
    lines,
    look,
    pod,
    running,
)


def test_n1_n5_n9_verify_names_each_bad_attachment(breakable):
    local = {"type": "host-local", "subnet": "10.99.0.0/24"}
    apply(
        breakable,
        attachment("slot", {"type": "host-device", "device": "eth2"}, RESOURCE),
        attachment("twice", {"type": "macvlan", "master": "eth2", "mode": "bridge", "ipam": local}),
        attachment("large", {"type": "macvlan", "master": "eth3", "mtu": 9000}),
    )

    found = lines(look(breakable), breakable.server)

    assert f"{NAMESPACE}/slot" in found["nad:resource-host-device"]
    if len(breakable.nodes) > 1:
        assert f"{NAMESPACE}/twice" in found["nad:host-local-nodes"]
    else:
        assert "nad:host-local-nodes" not in found, "one node alone hands out no address twice"
    assert f"{NAMESPACE}/large" in found["nad:mtu"]


def test_k3_a_plugin_that_is_gone_stops_each_new_pod_and_one_run_brings_it_back(breakable):
    breakable.node(breakable.worker, "rm /opt/cni/bin/portmap")
    apply(breakable, pod("early", breakable.worker))
    breakable.wait(lambda: "failed to find plugin" in complaints(breakable, "early"), "the pod's failure", PATIENCE)

    assert "portmap" in lines(look(breakable), breakable.worker)["cni:plugin-missing"]

    healed = breakable.run("cluster.yml")
    assert healed.code == 0, healed.text[-4000:]
    breakable.wait(lambda: running(breakable, "early"), "the pod runs", PATIENCE)


def test_m5_an_empty_configuration_is_named_and_written_anew(breakable):
    breakable.node(breakable.worker, f"systemctl stop {GUARD}; : >{CONF}; sleep 20")
    assert breakable.node(breakable.worker, f"stat -c %s {CONF}") == "0", "the daemon alone does not mend it"

    assert CONF in lines(look(breakable), breakable.worker)["cni:conf-empty"]

    breakable.node(breakable.worker, f"systemctl start {GUARD}")
    with breakable.timed("M5: guard started -> configuration whole again"):
        breakable.wait(lambda: "clusterNetwork" in conf_of(breakable), "whole", PATIENCE)
    apply(breakable, pod("after", breakable.worker))
    breakable.wait(lambda: running(breakable, "after"), "a pod runs", PATIENCE)


def test_m11_the_configuration_of_a_daemon_that_is_gone_is_named_and_taken_away(breakable):
    conf = breakable.node(breakable.worker, f"cat {CONF}")
    breakable.node(breakable.worker, f"systemctl stop {GUARD}")
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}
    patch = f"'{json.dumps(nowhere)}'"
    breakable.kubectl("patch", "daemonset", "kube-multus-ds", "-n", "kube-multus", "--type", "merge", "-p", patch)
    gone = "pgrep -x multus-daemon >/dev/null && echo there || echo gone"
    breakable.wait(lambda: breakable.node(breakable.worker, gone) == "gone", "the daemon is gone", PATIENCE)
    # As SIGKILL leaves it: a daemon that is told to stop takes its configuration away.
    breakable.node(breakable.worker, f"cat >{CONF} <<'EOF'\n{conf}\nEOF")
    apply(breakable, pod("stuck", breakable.worker))
    breakable.wait(lambda: "multus" in complaints(breakable, "stuck"), "the pod's failure", PATIENCE)

    assert "cni:multus-not-running" in lines(look(breakable), breakable.worker)

    breakable.node(breakable.worker, f"systemctl start {GUARD}")
    with breakable.timed("M11: guard started -> dead configuration taken away"):
        breakable.wait(lambda: breakable.node(breakable.worker, f"ls {CONF}; true") == "", "gone", PATIENCE)
    healed = breakable.run("cluster.yml")
    assert healed.code == 0, healed.text[-4000:]
    breakable.wait(lambda: running(breakable, "stuck"), "the pod runs", PATIENCE)


def test_m7_a_foreign_configuration_is_named_and_never_taken_over_without_consent(breakable):
    foreign = "/etc/cni/net.d/00-calico.conflist"
    text = json.dumps({"cniVersion": "0.3.1", "name": "foreign", "plugins": [{"type": "loopback"}]})
    breakable.node(breakable.worker, f"cat >{foreign} <<'EOF'\n{text}\nEOF")

    assert foreign in lines(look(breakable), breakable.worker)["cni:foreign-first"]

    told = breakable.run("cluster.yml", "-e", "multus_foreign_allowed=false")
    assert foreign in told.text
    assert breakable.node(breakable.worker, f"ls {foreign}") == foreign
    # Multus itself goes on to delegate to the pod network that it was told, not to what comes first.
    assert "10-flannel" in conf_of(breakable) or "cbr0" in conf_of(breakable)

    healed = breakable.run("cluster.yml", "-e", "multus_foreign_allowed=true")
    assert healed.code == 0, healed.text[-4000:]
    assert breakable.node(breakable.worker, f"ls {foreign} 2>/dev/null; true") == ""


@pytest.mark.parametrize("name", Cluster.nodes[::-1])
def test_m3_m4_n13_a_hard_reset_needs_no_hand_and_no_pod_comes_up_without_multus(breakable, name):
    apply(breakable, pod("bound", name, "default/rail0"))
    breakable.wait(lambda: running(breakable, "bound"), "the pod runs", PATIENCE)
    assert "net1" in interfaces(breakable, "bound")
    failed = len(complaints(breakable, "bound").splitlines())
    with breakable.timed(f"{name}: hard reset -> all nodes Ready, all pods running, taint gone"):
        breakable.reboot(name)
        breakable.wait(breakable.settled, "all Ready", 900)
        breakable.wait(lambda: not breakable.startup_taints(), "no startup taint", 900)

    # The annotation is what Multus wrote last; the pod itself says what it has now.
    inside = breakable.kubectl("exec", "bound", "-n", NAMESPACE, "--", "ls", "/sys/class/net").split()
    assert {"eth0", "net1"} <= set(inside)
    found = complaints(breakable, "bound")
    breakable.figures.append(f"{len(found.splitlines()) - failed:7}    failed sandboxes after the reset of {name}")
    resources = breakable.get("node", name)["status"]["allocatable"]
    assert resources[RESOURCE] == breakable.get("node", name)["status"]["capacity"][RESOURCE] != "0"
    verified = breakable.run("verify.yml")
    assert verified.code == 0, verified.text[-6000:]
