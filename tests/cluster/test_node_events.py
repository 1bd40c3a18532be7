"""What happens to a node over time, on the real kubelet: ports, HCAs, restarts, limits. Times are figures."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls

LAST_RAIL = "rdma/hca_shared_devices_7"


def offered(cluster, resource):
    """How much of it the worker offers, once the API server reports it."""
    cluster.wait(lambda: cluster.allocatable(resource) is not None, "an answer", pitfalls.PATIENCE)
    return cluster.allocatable(resource)


def falls_and_returns(cluster, resource, what, take, give):
    """The node's allocatable goes to 0 and comes back on its own."""
    whole = offered(cluster, resource)
    assert whole > 0
    with cluster.timed(f"{what} gone -> allocatable 0"):
        cluster.node(cluster.worker, take)
        cluster.wait(lambda: cluster.allocatable(resource) == 0, f"{resource} 0", pitfalls.PATIENCE)
    with cluster.timed(f"{what} back -> allocatable whole"):
        cluster.node(cluster.worker, give)
        cluster.wait(lambda: cluster.allocatable(resource) == whole, f"{resource} {whole}", pitfalls.PATIENCE)


def test_a_port_that_goes_down_takes_its_resource_along(cluster):
    falls_and_returns(cluster, pitfalls.RESOURCE, "link of rail 0", "ip link set eth2 down", "ip link set eth2 up")


def test_an_hca_that_is_unplugged_takes_its_resource_along(cluster):
    shown = cluster.node(cluster.worker, "rdma link show rxe7/1").split()
    netdev = shown[shown.index("netdev") + 1]
    add = f"rdma link add rxe7 type rxe netdev {netdev}"
    falls_and_returns(cluster, LAST_RAIL, "HCA of rail 7", "rdma link delete rxe7", add)


def test_n14_a_kubelet_that_restarts_has_its_resources_again(breakable):
    whole = offered(breakable, pitfalls.RESOURCE)
    with_devices = pitfalls.pod("holder", breakable.worker)
    with_devices["spec"]["containers"][0]["resources"] = {"limits": {pitfalls.RESOURCE: "1"}}
    pitfalls.apply(breakable, with_devices)
    breakable.wait(lambda: pitfalls.running(breakable, "holder"), "the pod runs", pitfalls.PATIENCE)
    before, plugin = breakable.pods(), breakable.main_pids()[breakable.worker].splitlines()[0]

    service = breakable.kubelet_service(breakable.worker)
    with breakable.timed(f"{service} restarted -> all Ready, allocatable whole, pods as before"):
        breakable.node(breakable.worker, f"systemctl restart {service}")
        breakable.wait(
            lambda: (
                breakable.settled()
                and breakable.allocatable(pitfalls.RESOURCE) == whole
                and breakable.pods().keys() == before.keys()
            ),
            "all as before",
        )
    assert breakable.main_pids()[breakable.worker].splitlines()[0] == plugin, "the plugin needs no restart"


def test_r5_without_the_drop_in_verify_names_the_limit_and_one_run_puts_it_back(breakable):
    worker = breakable.worker
    service = breakable.kubelet_service(worker)
    drop_in = f"/etc/systemd/system/{service}.service.d/10-gpufabric-rdma.conf"
    breakable.node(worker, f"rm {drop_in}; systemctl daemon-reload; systemctl restart {service}")
    breakable.wait(breakable.settled, "all Ready")

    verified = breakable.run("verify.yml")
    failed = {check["id"]: check["seen"] for check in verified.checks(worker, "failed")}
    assert verified.code != 0
    assert f"memlock:{service}" in failed, failed
    assert [name for name in failed if ":registration" in name], failed
    roots = {check["failure"] for check in verified.checks(worker, "failed") if check.get("failure")}
    assert roots == {"memlock-too-low"}, failed

    with breakable.timed("site.yml putting the memlock drop-in back"):
        healed = breakable.run("site.yml")
    assert healed.code == 0, healed.text[-6000:]
    assert healed.checks(worker, "failed") == []
