"""node_facts and host_probe as Ansible runs them: in one call what several roles ask."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.modules import hca_facts, host_probe, node_facts
from ansible_collections.gpufabric.rdma.tests.tools import tree
from ansible_collections.gpufabric.rdma.tests.unit.plugins.modules.test_network_modules import call

MACHINES = ("h100-8x-cx7-ib", "lab-rxe-debian12", "names-persistent")


@pytest.fixture(params=MACHINES)
def root(request, tmp_path):
    found = tree.lay_out(tree.load(request.param), tmp_path / "node")
    (found / "var/lib/rancher/k3s/server/db/etcd/member/snap").mkdir(parents=True)
    (found / "etc/cni/multus/net.d").mkdir(parents=True)
    (found / "etc/cni/multus/net.d/gpufabric-rdma-rail0.conf").write_text("{}")
    return found


def test_in_one_call_it_says_all_that_is_asked(root):
    found = call(node_facts, root, software_hcas=True, k3s={}, networks={}, firewall=True, runtime=True)
    assert found["ansible_facts"] == call(hca_facts, root, software_hcas=True)["ansible_facts"]
    assert found["k3s"]["cluster"] is True
    assert list(found["networks"]["files"]) == ["gpufabric-rdma-rail0.conf"]
    assert found["firewall"]["bound"].keys() >= {"tcp", "udp"}
    assert found["runtime"] == {"source": None, "cdi": None}


def test_what_is_not_asked_is_not_read(root):
    found = call(node_facts, root)
    assert not {"k3s", "networks", "firewall", "runtime"} & found.keys()
    assert "firewall" not in call(host_probe, root)


def test_the_probe_reads_the_firewall_too(root):
    assert call(host_probe, root, firewall=True)["firewall"] == call(node_facts, root, firewall=True)["firewall"]


def test_a_file_that_cannot_be_read_is_named(root):
    (root / "usr/local/bin/k3s").mkdir(parents=True)
    found = call(node_facts, root, k3s={})
    assert found["failed"]
    assert "usr/local/bin/k3s: wanted a readable file, seen Is a directory" in found["msg"]
