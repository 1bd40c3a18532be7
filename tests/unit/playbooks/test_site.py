"""The playbooks, run for real with a local connection against laid-out trees: bad input, plan, check mode, converge."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def play(tmp_path):
    """play(playbook, hosts, *arguments): exit code and output; hosts are {name: variables}."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_SSH_TIMEOUT": "3",
    }

    def run(playbook, hosts, *arguments):
        common = {"ansible_python_interpreter": node_python.path(), "ansible_become": False}
        local = {"ansible_connection": "local"}
        described = {name: {**local, **(variables or {})} for name, variables in hosts.items()}
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"vars": common, "hosts": described}}))
        done = subprocess.run(
            [ansible_playbook.path(), "-i", inventory, f"gpufabric.rdma.{playbook}", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def node(tmp_path):
    """node(fixture): variables of a host whose tree it is; its services are left alone."""

    def lay_out(name, number=0):
        root = tmp_path / f"{name}-{number}"
        tree.lay_out(tree.load(name), root)
        return {"discovery_root": str(root), "limits_services": ["containerd"]}

    return lay_out


def files(root):
    return {path: path.read_bytes() for path in pathlib.Path(root, "etc").rglob("*") if path.is_file()}


def test_all_problems_of_all_hosts_come_in_one_list_before_anything_changes(play, node):
    good = node("h100-8x-cx7-ib")
    before = files(good["discovery_root"])
    code, output = play(
        "site",
        {
            "good": good,
            "typo": {**node("h100-8x-cx7-ib", 1), "kernel_modules_gpudirct": "auto", "rdma_netns_mode": "private"},
            "wrong": {**node("gh200-cx7-roce"), "discovery_expected_hcas": 8, "discovery_expected_ports": ["mlx5_7/1"]},
            "undefined": {**node("gh200-cx7-roce", 1), "limits_memlock": "{{ nobody_defines_this }}"},
            "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9},
        },
    )
    assert code != 0
    assert "6 problems on 4 of 5 nodes; nothing has been changed." in output
    for line in (
        "typo  variable kernel_modules_gpudirct",
        "typo  variable rdma_netns_mode",
        "wrong  HCA",
        "wrong  discovery_expected_ports: mlx5_7/1",
        "undefined  variable limits_memlock",
        "away  connection",
    ):
        assert f"\n{line}\n" in output
    assert "did you mean kernel_modules_gpudirect?" in output
    assert "seen       unreachable: " in output
    assert "Traceback" not in output
    assert "Configure the nodes" not in output
    assert files(good["discovery_root"]) == before


def test_what_the_cluster_layer_refuses_stands_in_the_same_list_before_the_host_layer_changes_anything(
    play, node, tmp_path
):
    common = {
        "k3s_bundle_dir": str(tmp_path / "nothing"),
        "k3s_cluster_cidr": "10.42.0.0/16",
        "k3s_service_cidr": "10.42.128.0/17",
        "cni_plugins_names": ["loopback", "bridge", "host-local", "portmap"],
        "multus_global_namespaces": ["kube-system"],
        "networks_attachments": [{"name": "rail1", "type": "macvlan", "master": "nothing0"}],
    }
    hosts = {f"node{number}": {**node("h100-8x-cx7-ib", number), **common} for number in (1, 2)}
    hosts["node2"]["rdma_netns_mode"] = "private"
    before = [files(variables["discovery_root"]) for variables in hosts.values()]
    code, output = play("site", hosts)
    assert code != 0
    listed = output.partition(" nothing has been changed.")[2]
    assert listed, output
    for line in (
        "node2  variable rdma_netns_mode",
        f"the controller  {tmp_path}/nothing/bundle.yml",
        "k3s_service_cidr",
        "node1, node2  variable cni_plugins_names\n  wanted     the plugins that every pod needs",
        "node1, node2  variable multus_global_namespaces\n  wanted     no namespaces",
        "nothing0",
    ):
        assert line in listed, (line, output)
    assert output.count("k3s_service_cidr") == listed.count("k3s_service_cidr"), "one list, not two"
    assert [files(variables["discovery_root"]) for variables in hosts.values()] == before


def test_a_run_writes_what_check_mode_announced_and_a_second_run_nothing(play, node):
    host = {**node("h100-8x-cx7-ib"), "limits_services": ["k3s"]}
    before = files(host["discovery_root"])
    code, announced = play("site", {"node1": host}, "--check")
    assert (code, files(host["discovery_root"])) == (0, before), announced
    code, first = play("site", {"node1": host})
    assert code == 0, first
    written = {str(path) for path in files(host["discovery_root"]) if path not in before}
    assert written
    for path in written:
        assert path[len(host["discovery_root"]) :] in announced.partition("PLAY [Configure the nodes")[0], (
            "the plan names each file"
        )
    code, second = play("site", {"node1": host})
    assert code == 0, second
    assert "node1: nothing to change" in second
    assert "changed=0" in second


def test_verify_fails_on_a_node_that_was_never_set_up_and_says_what_to_do(play, node):
    code, output = play("verify", {"node1": node("gh200-cx7-roce")})
    assert code != 0
    assert "node1  /etc/modules-load.d/gpufabric-rdma.conf" in output
    assert "next step  run playbooks/host.yml" in output
    assert "not verified" in output.splitlines()[-1] or "Verification on 1 node: " in output


def page_of(output):
    """Where the last line before the recap says that the page is."""
    (path,) = re.findall(r"^The report is (/\S+)$", output, re.MULTILINE)
    return pathlib.Path(path)


def test_a_run_ends_with_the_page_beside_the_inventory_and_says_where(play, node, tmp_path):
    hosts = {f"node{number}": {**node("h100-8x-cx7-ib", number), "limits_services": ["k3s"]} for number in (1, 2)}
    expected = tmp_path / "hosts-report.html"
    code, announced = play("site", hosts, "--check")
    assert (code, expected.exists()) == (0, False), announced
    assert f"\nThe report would be {expected}\n" in announced
    code, output = play("site", hosts)
    assert code == 0, output
    assert page_of(output) == expected
    assert output.index("Verification on 2 nodes") < output.index("The report is") < output.index("PLAY RECAP")
    text = expected.read_text()
    assert "node1" in text
    assert "node2" in text
    expected.unlink()
    code, output = play("site", hosts, "-e", "report_written=false")
    assert (code, expected.exists(), "report would be" in output) == (0, False, False), output


def test_a_run_whose_checks_fail_ends_with_the_page_and_with_its_failure(play, node, tmp_path):
    """That is the run whose page someone needs."""
    hosts = {f"node{number}": {**node("gh200-cx7-roce", number), "limits_services": ["k3s"]} for number in (1, 2)}
    for variables in hosts.values():
        (port,) = pathlib.Path(variables["discovery_root"]).glob("sys/class/infiniband/mlx5_0/ports/1/state")
        port.write_text("1: DOWN\n")
    code, output = play("site", hosts, "-e", f"report_file={tmp_path}/new/page.html", "-e", "report_title='Rack A'")
    assert code == 2, output
    assert "of the checks failed" in output
    assert page_of(output) == tmp_path / "new/page.html"
    assert "Rack A" in (tmp_path / "new/page.html").read_text()


@pytest.mark.parametrize("further", [{}, {"rdma_netns_mode": "private"}])
def test_a_page_that_could_not_be_written_is_in_the_list_before_anything_changes(play, node, tmp_path, further):
    (tmp_path / "file").write_text("no folder")
    hosts = {f"node{number}": {**node("h100-8x-cx7-ib", number), **further} for number in (1, 2)}
    before = [files(variables["discovery_root"]) for variables in hosts.values()]
    code, output = play("site", hosts, "-e", f"report_file={tmp_path}/file/page.html")
    assert code != 0
    assert f"\nthe controller  the report {tmp_path}/file/page.html\n" in output, output
    assert "report_written to false" in output
    assert ("variable rdma_netns_mode" in output) == bool(further)
    assert [files(variables["discovery_root"]) for variables in hosts.values()] == before
    code, output = play("host", hosts, "--check", "-e", f"report_file={tmp_path}/file/page.html")
    assert f"{tmp_path}/file" not in output, "host.yml writes none"
