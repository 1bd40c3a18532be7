"""k3s from one release of Kubernetes to the next, with the device plugin and pods on the nodes."""

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls

CONSENT = ("-e", '{"k3s_drain_allowed": true}')


@pytest.fixture
def bundle(breakable, monkeypatch):
    """Fills the bundle folder with another release's k3s."""

    def fill(release):
        monkeypatch.setenv("LAB_K3S", release)
        breakable.labctl("bundle")

    yield fill
    monkeypatch.undo()
    breakable.labctl("bundle")


def releases(cluster):
    return {row["status"]["nodeInfo"]["kubeletVersion"].rpartition(".")[0] for row in cluster.get("nodes")["items"]}


def test_k3s_goes_up_one_release_at_a_time_skips_none_and_leaves_a_foreign_cordon(breakable, bundle):
    worker, whole = breakable.worker, breakable.allocatable(pitfalls.RESOURCE)
    bundle("1.37")
    assert breakable.run("upgrade_k3s.yml", *CONSENT).code != 0
    assert releases(breakable) == {"v1.35"}

    for release in ("1.36", "1.37"):
        bundle(release)
        breakable.kubectl("cordon", worker)
        with breakable.timed(f"upgrade_k3s.yml to {release}"):
            breakable.succeed("upgrade_k3s.yml", *CONSENT)
        assert releases(breakable) == {f"v{release}"}
        again = breakable.succeed("upgrade_k3s.yml", *CONSENT)
        assert [again.record[name]["changed"] for name in breakable.nodes] == [[]] * len(breakable.nodes)
        assert breakable.get("node", worker)["spec"]["unschedulable"]
        breakable.kubectl("uncordon", worker)
        with breakable.timed(f"site.yml on {release}"):
            healthy = breakable.succeed("site.yml")
        assert [healthy.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)
        assert breakable.allocatable(pitfalls.RESOURCE) == whole
