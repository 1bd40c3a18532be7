"""Five pitfalls at once: verify reports each, and a second run repairs exactly these.

The short form of test_runs.py and test_pitfalls.py, for every commit.
"""

from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls

# Calls of a converged node, and those that install the plugin.
REMOTE_CALLS = 15 + 6


def test_a_second_run_heals_five_pitfalls_and_touches_nothing_else(breakable):
    worker = breakable.worker
    pids, pods = breakable.main_pids(), set(breakable.pods())

    pitfalls.plant_missing_plugin(breakable, "early")
    breakable.kubectl("delete", "pod", "early", "-n", pitfalls.NAMESPACE, "--wait=false")
    pitfalls.plant_empty_conf(breakable)
    pitfalls.plant_foreign_conf(breakable)
    pitfalls.apply(breakable, pitfalls.SLOT, pitfalls.LARGE)

    with breakable.timed("verify.yml --check with five pitfalls"):
        look = pitfalls.look(breakable)
    found = pitfalls.lines(look, worker)
    assert pitfalls.PLUGIN.rpartition("/")[2] in found["cni:plugin-missing"]
    assert pitfalls.CONF in found["cni:conf-empty"]
    assert pitfalls.FOREIGN in found["cni:foreign-first"]
    of_the_cluster = pitfalls.everywhere(look, breakable)
    assert f"{pitfalls.NAMESPACE}/slot" in of_the_cluster["nad:resource-host-device"]
    assert f"{pitfalls.NAMESPACE}/large" in of_the_cluster["nad:mtu"]

    # The user's own objects are the user's to delete, as verify says; one run does the rest.
    breakable.kubectl("delete", "network-attachment-definition", "slot", "large", "-n", pitfalls.NAMESPACE)
    with breakable.timed("site.yml on the finished cluster, healing three"):
        # The test's own pod below is the proof; the test pods of verify have run once.
        healed = breakable.succeed("site.yml", "-e", '{"multus_foreign_allowed": true, "verification_pods": false}')
    for name in breakable.nodes:
        assert healed.checks(name, "failed") == []
        calls = healed.record[name]["calls"]
        breakable.note(f"{len(calls):7}    remote calls of the second run to {name}")
        assert len(calls) <= REMOTE_CALLS, calls
    changes = [(name, change) for name in breakable.nodes for change in healed.record[name]["changes"]]
    breakable.note(f"        changes of the second run: {sorted({change['object'] for _name, change in changes})}")
    healing = (pitfalls.PLUGIN, pitfalls.CONF, pitfalls.FOREIGN, pitfalls.GUARD)
    unasked = [change for _name, change in changes if not any(thing in change["object"] for thing in healing)]
    assert unasked == []
    assert {name for name, _change in changes} == {worker}
    assert breakable.main_pids() == pids
    assert pods <= set(breakable.pods())

    breakable.wait(
        lambda: "clusterNetwork" in pitfalls.conf_of(breakable), "Multus' configuration is whole", pitfalls.PATIENCE
    )
    pitfalls.start(breakable, pitfalls.pod("after", worker, "default/rail0"))
    assert [*pitfalls.addresses(breakable, "after")] == ["eth0", "net1"]
