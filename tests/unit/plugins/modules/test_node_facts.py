"""node_facts and host_probe as Ansible runs them: what one call says is what the modules of each say by themselves."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.modules import (
    firewall_info,
    hca_facts,
    host_probe,
    k3s_info,
    network_info,
    node_facts,
)
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


def without_time(state):
    return {name: value for name, value in state.items() if name != "clock"}


def test_in_one_call_it_says_what_four_modules_say(root):
    found = call(node_facts, root, software_hcas=True, k3s={}, networks={}, firewall=True)
    assert found["ansible_facts"] == call(hca_facts, root, software_hcas=True)["ansible_facts"]
    assert without_time(found["k3s"]) == without_time(call(k3s_info, root)["k3s"])
    alone = call(network_info, root)
    assert found["networks"].items() <= alone.items()
    assert list(found["networks"]["files"]) == ["gpufabric-rdma-rail0.conf"]
    alone = call(firewall_info, root)
    assert found["firewall"] == alone["firewall"]
    assert found.get("warnings") == alone.get("warnings")


def test_what_is_not_asked_is_not_read(root):
    found = call(node_facts, root)
    assert not {"k3s", "networks", "firewall"} & found.keys()
    assert "firewall" not in call(host_probe, root)


def test_the_probe_reads_the_firewall_too(root):
    assert call(host_probe, root, firewall=True)["firewall"] == call(firewall_info, root)["firewall"]


def test_a_file_that_cannot_be_read_is_named(root):
    (root / "usr/local/bin/k3s").mkdir(parents=True)
    found = call(node_facts, root, k3s={})
    assert found["failed"]
    assert "usr/local/bin/k3s: wanted a readable file, seen Is a directory" in found["msg"]
