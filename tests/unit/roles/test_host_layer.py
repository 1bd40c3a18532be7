"""The roles of the host layer as a play: a captured node's tree, this machine's Python, no SSH."""

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import enabled
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths
from ansible_collections.gpufabric.rdma.tests.tools import running, tree

GATE = "Fail without consent or if the node would not come back"
ROLES = ["rdma_netns", "kernel_modules", "limits", "rail_links", "pcie", "fabric"]


@pytest.fixture
def play(tmp_path):
    """Runs one play over hosts {name: variables} with ansible-playbook; its output is JSON."""

    def run(hosts: dict, roles: list[str], *arguments: str):
        ends = [{"name": "gpufabric.rdma.kernel_modules", "tasks_from": "initramfs"}, {"name": "gpufabric.rdma.reboot"}]
        playbook = {
            "name": "Host layer",
            "hosts": "all",
            "gather_facts": False,
            "roles": [f"gpufabric.rdma.{role}" for role in roles],
            "post_tasks": [{"ansible.builtin.import_role": role} for role in ends],
        }
        # Never this machine: a host without a tree gets an empty one.
        (tmp_path / "empty").mkdir(exist_ok=True)
        common = running.local(discovery_root=str(tmp_path / "empty"))
        inventory = {"all": {"hosts": hosts, "vars": common}}
        return running.told(tmp_path, *arguments, inventory=inventory, plays=[playbook])

    return run


def results(done) -> dict:
    """{host: {task name: result}}"""
    seen: dict = {}
    for task in done[1]["plays"][0]["tasks"]:
        for host, result in task["hosts"].items():
            seen.setdefault(host, {})[task["task"]["name"].rpartition(" : ")[2]] = result
    return seen


def changes(done) -> set:
    seen = [result for tasks in results(done).values() for result in tasks.values()]
    return {change["object"] for result in seen for change in result.get("changes", [])}


def files(root) -> dict:
    return tree.contents(root, "etc", "usr/local")


def test_check_then_run_then_nothing_left_to_do(play, tmp_path):
    root, _plain = (tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / name) for name in ("node", "plain"))
    hosts = {name: {"discovery_root": str(tmp_path / name)} for name in ("node", "plain")}
    hosts["node"]["rail_links_settings"] = [{"pci": "0000:01:00.1", "mtu": 9000, "up": True}]
    hosts["node"].update(fabric_plan="doroce", fabric_publish=True, fabric_nic_settings=True)
    hosts["node"]["discovery_rails"] = [{"pci": "0000:01:00.1"}]
    seams = json.loads((root / ".seams.json").read_text())
    nic = {"dscp": {}, "pfc": {"priorities": [3]}, "ets": None, "buffers": None, "dcbx": "host", "pause": None}
    (root / ".seams.json").write_text(json.dumps({**seams, "qos": {"enp1s0f1np1": nic}}))
    (root / "usr/sbin").mkdir(parents=True, exist_ok=True)
    (root / "usr/sbin/dcb").touch()
    before = files(root)
    checked = play(hosts, ROLES, "--check", "--diff")
    assert files(root) == before, "check mode has written something"
    done, settled = play(hosts, ROLES), files(root)
    again = play(hosts, ROLES)
    assert [run[0] for run in (checked, done, again)] == [0, 0, 0], done[2]
    assert changes(done) == changes(checked)
    written = {paths.OWN_MODPROBE, paths.OWN_MODULES_LOAD, paths.own_drop_in("k3s-agent")}
    written |= {paths.OWN_LINKS_UNIT, paths.OWN_LINKS_SCRIPT, paths.NCCL_CONF}
    written |= {paths.OWN_NIC_RULE, paths.OWN_NIC_UNIT, paths.OWN_NIC_SCRIPT}
    assert changes(done) >= written | {enabled(paths.OWN_LINKS_UNIT)[0]}
    for path in written:
        mode, text = settled[path.lstrip("/")]
        assert (mode, text.startswith(f"{paths.HEADER}\n".encode())) == (0o644, True), path
    for result in results(checked)["node"].values():
        made = [change["after"].strip() for change in result.get("changes", [])]
        assert [entry["after"].strip() for entry in result.get("diff") or []] == made
    assert (changes(again), again[1]["stats"]["node"]["changed"], files(root)) == (set(), 0, settled)
    skipped = results(again)["plain"]["Configure MTU, link state and routes by source"]
    assert skipped["skipped"] is True, "an empty list must cost no remote call"


def test_consent_to_a_reboot_has_three_states(play):
    reasons = {"rdma_reboot_reasons": ["RDMA netns mode is exclusive.", "The loaded driver is not the one on disk."]}
    hosts = {
        "unanswered": reasons,
        "later": {**reasons, "reboot_allowed": False},
        "consented": {**reasons, "reboot_allowed": True},
        "settled": {"reboot_allowed": True},
    }
    # A real run may not see the host that consented: it would reboot the machine that runs this test.
    real = {name: hosts[name] for name in ("unanswered", "later", "settled")}
    asked = results(play(real, []))["unanswered"][GATE]
    assert asked["failed"] is True
    words = ("node unanswered", *reasons["rdma_reboot_reasons"], "reboot_allowed=true", "reboot_allowed=false")
    assert [text for text in words if text not in asked["msg"]] == []

    found = results(play(hosts, [], "--check"))
    for host in ("unanswered", "later"):
        (told,) = found[host]["Report the pending reboot"]["warnings"]
        assert told.endswith(" ".join(reasons["rdma_reboot_reasons"]))
        assert "Reboot" not in found[host]
    # Over a local connection ansible.builtin.reboot refuses to go further; the VM scenario reboots for real.
    assert "Reboot" in found["consented"]
    assert "Reboot" not in found["settled"]


def test_a_node_that_would_not_come_back_is_not_rebooted(play, tmp_path):
    """The image that dracut removed, on a node of a cluster."""
    root = tmp_path / "node"
    for path in ("boot/vmlinuz-5.14", "lib/modules/5.14/modules.dep", "var/lib/rancher/k3s/agent/kubelet.kubeconfig"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    host = {"rdma_reboot_reasons": ["RDMA netns mode is exclusive."], "discovery_root": str(root)}
    hosts = {"allowed": {**host, "reboot_allowed": True}, "later": {**host, "reboot_allowed": False}}
    # In check mode: a run that is not refused would reach the reboot.
    found = results(play(hosts, [], "--check"))
    refused = found["allowed"][GATE]
    assert refused["failed"] is True
    assert "kernel 5.14, which boots next" in refused["msg"]
    assert "the entry has no image" in refused["msg"]
    assert "Reboot" not in found["allowed"]
    assert not any(result.get("failed") for result in found["later"].values())


def test_all_questions_about_a_node_of_a_cluster_are_asked_at_once(play, tmp_path):
    joined = tmp_path / "node/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
    joined.parent.mkdir(parents=True)
    joined.touch()
    host = {"rdma_reboot_reasons": ["RDMA netns mode is exclusive."], "discovery_root": str(tmp_path / "node")}
    found = results(play({"both": host, "drain": {**host, "reboot_allowed": True}}, []))
    for host, tasks in found.items():
        text = tasks[GATE]["msg"]
        assert ("reboot_allowed is not set" in text, "reboot_drain_allowed=true" in text) == (host == "both", True)
        assert ("ansible_connection: local" in text) == (host == "drain")
