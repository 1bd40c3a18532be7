"""What a run of playbooks/site.yml left on each node, seen over SSH."""

from __future__ import annotations

import sys

import pytest
from conftest import CHECKOUT, groups

sys.path.insert(0, str(CHECKOUT / "tests/tools"))
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather
from tree import lay_out, load

MANAGED = "# Managed by Ansible collection gpufabric.rdma; changes here are overwritten."
DROP_IN = "/etc/systemd/system/{}.service.d/10-gpufabric-rdma.conf"
FIXTURES = {
    node: group.removeprefix("playing_")
    for group, nodes in groups().items()
    if group.startswith("playing_")
    for node in nodes
}
# What the container cannot take from the captured machine: its own processes, links, boot and files of ours.
OWN = ("node", "limits", "subsystem", "modules", "initramfs", "owned_files", "reboot_reasons", "virtualization")


def fixture_name(node: str) -> str:
    return FIXTURES[node].replace("_", "-")


def lines(host, path: str) -> list[str]:
    file = host.file(path)
    assert file.exists, f"{path}: wanted: written by the roles; seen: absent"
    assert (file.mode, file.user) == (0o644, "root")
    first, *rest = file.content_string.splitlines()
    assert first == MANAGED
    return rest


def test_systemd_is_content_with_the_node(host):
    assert host.check_output("systemctl is-system-running") == "running"


def test_modules_load_at_boot_and_ipoib_only_where_a_port_is_infiniband(host, node, facts):
    loaded = lines(host, "/etc/modules-load.d/gpufabric-rdma.conf")
    assert loaded[:6] == ["mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm"]
    layers = {port["link_layer"] for hca in facts[node]["hcas"] for port in hca["ports"]}
    assert ("ib_ipoib" in loaded) == ("InfiniBand" in layers)


def test_the_netns_mode_is_kept_for_the_next_boot(host):
    assert "options ib_core netns_mode=1" in lines(host, "/etc/modprobe.d/zz-gpufabric-rdma.conf")


def test_a_service_that_starts_now_may_lock_all_memory(host, node):
    service = {"h100_8x_cx7_ib": "containerd", "gh200_cx7_roce": "k3s"}[FIXTURES[node]]
    assert "LimitMEMLOCK=infinity" in lines(host, DROP_IN.format(service))
    host.check_output(f"systemctl start {service}")
    pid = host.check_output(f"systemctl show --property=MainPID --value {service}")
    limits = host.file(f"/proc/{pid}/limits").content_string
    locked = next(line for line in limits.splitlines() if line.startswith("Max locked memory"))
    assert locked.split()[3:5] == ["unlimited", "unlimited"]


def test_facts_over_ssh_are_those_of_the_captured_machine(node, facts, tmp_path):
    fixture = load(fixture_name(node))
    tree = lay_out(fixture, tmp_path)
    expected = gather(Tree(str(tree)), Seams.recorded(fixture["seams"]))
    seen = facts[node]
    assert seen["node"]["container"] == "systemd-nspawn"
    assert seen["node"]["kernel"] == expected["node"]["kernel"]
    assert {key: value for key, value in seen.items() if key not in OWN} == {
        key: value for key, value in expected.items() if key not in OWN
    }


def test_an_h100_node_has_eight_rails_each_beside_a_gpu_of_its_own(node, facts):
    if FIXTURES[node] != "h100_8x_cx7_ib":
        pytest.skip("another machine")
    rails = facts[node]["rails"]
    assert [rail["index"] for rail in rails] == list(range(8))
    assert [rail["hca"] for rail in rails] == [f"mlx5_{index}" for index in range(8)]
    assert {rail["distance"] for rail in rails} == {"PIX"}
    assert len({rail["gpu"] for rail in rails}) == 8
    assert [gpu["address"] for gpu in facts[node]["gpus"]] == [rail["gpu"] for rail in rails]


def test_a_gh200_node_leaves_the_default_route_out_of_its_automatic_rails(node, facts):
    if FIXTURES[node] != "gh200_cx7_roce":
        pytest.skip("another machine")
    excluded = {entry["hca"]: entry["reason"] for entry in facts[node]["rails_excluded"]}
    assert "default route" in excluded["mlx5_0"]
