"""Five pitfalls at once: each breaks or is wrong, verify names each, and a second run puts right just these.

The short form of test_second_run.py and test_pitfalls.py, for every commit.
"""

from __future__ import annotations

import json

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

# Those of a converged node, and what carries the plugin there.
REMOTE_CALLS = 30 + 6
PLUGIN = "/opt/cni/bin/portmap"
FOREIGN = "/etc/cni/net.d/00-calico.conflist"


def test_a_second_run_heals_five_pitfalls_and_touches_nothing_else(breakable):
    worker = breakable.worker
    pids, pods = breakable.main_pids(), set(breakable.pods())

    # K3: a CNI plugin is gone, and each new pod fails.
    breakable.node(worker, f"rm {PLUGIN}")
    apply(breakable, pod("early", worker))
    breakable.wait(lambda: "failed to find plugin" in complaints(breakable, "early"), "the pod's failure", PATIENCE)
    breakable.kubectl("delete", "pod", "early", "-n", NAMESPACE, "--wait=false")
    # M5: Multus' configuration is empty, and the daemon leaves it so.
    breakable.node(worker, f"systemctl stop {GUARD}; : >{CONF}; sleep 20")
    assert breakable.node(worker, f"stat -c %s {CONF}") == "0", "the daemon alone does not mend it"
    # M7: a foreign configuration comes first.
    foreign = json.dumps({"cniVersion": "0.3.1", "name": "foreign", "plugins": [{"type": "loopback"}]})
    breakable.node(worker, f"cat >{FOREIGN} <<'EOF'\n{foreign}\nEOF")
    # N1 and N9: attachments that no pod can use.
    apply(
        breakable,
        attachment("slot", {"type": "host-device", "device": "eth2"}, RESOURCE),
        attachment("large", {"type": "macvlan", "master": "eth3", "mtu": 9000}),
    )

    with breakable.timed("verify.yml --check with five pitfalls"):
        found = lines(look(breakable), worker)
    assert PLUGIN.rpartition("/")[2] in found["cni:plugin-missing"]
    assert CONF in found["cni:conf-empty"]
    assert FOREIGN in found["cni:foreign-first"]
    assert f"{NAMESPACE}/slot" in found["nad:resource-host-device"]
    assert f"{NAMESPACE}/large" in found["nad:mtu"]

    # Objects of the user's own are the user's to take away, as verify says; the rest is one run's.
    breakable.kubectl("delete", "network-attachment-definition", "slot", "large", "-n", NAMESPACE)
    with breakable.timed("site.yml on the finished cluster, healing three"):
        # The test's own pod below is the proof; the test pods of verify have run once.
        healed = breakable.run("site.yml", "-e", '{"multus_foreign_allowed": true, "verification_pods": false}')
    assert healed.code == 0, healed.text[-6000:]
    for name in breakable.nodes:
        assert healed.checks(name, "failed") == []
        calls = healed.record["hosts"][name]["calls"]
        breakable.figures.append(f"{len(calls):7}    remote calls of the second run to {name}")
        assert len(calls) <= REMOTE_CALLS, calls
    changes = {
        (name, change["object"]) for name in breakable.nodes for change in healed.record["hosts"][name]["changes"]
    }
    breakable.figures.append(f"        changes of the second run: {sorted(changes)}")
    assert {name for name, _object in changes} == {worker}
    healing = (PLUGIN, CONF, FOREIGN, GUARD)
    assert [change for change in changes if not any(thing in change[1] for thing in healing)] == []
    assert breakable.main_pids() == pids
    assert pods <= set(breakable.pods())

    breakable.wait(lambda: "clusterNetwork" in conf_of(breakable), "Multus' configuration is whole", PATIENCE)
    apply(breakable, pod("after", worker, "default/rail0"))
    breakable.wait(lambda: running(breakable, "after"), "a pod runs", PATIENCE)
    assert interfaces(breakable, "after") == ["eth0", "net1"]
