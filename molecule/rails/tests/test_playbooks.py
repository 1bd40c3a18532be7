"""Playbooks over all nodes at once: tables for people, and bad input that must be refused as a whole."""

import pathlib
import re

BAD_INPUT = pathlib.Path(__file__).resolve().parents[1] / "bad_input"
DIGEST = "find /etc /usr/local -type f -exec sha256sum {} + | sort | sha256sum"


def digests(ansible) -> dict[str, str]:
    """One sum per node over every file that a role could write."""
    done = ansible("ansible", "all", "-m", "ansible.builtin.raw", "-a", DIGEST, "--one-line")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"^(\S+) .*?\b([0-9a-f]{64})\b", done.stdout, re.MULTILINE))


def test_discover_prints_tables_of_nodes_and_hcas(ansible, groups):
    done = ansible("ansible-playbook", "playbooks/discover.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for node in groups["gpu_nodes"]:
        assert re.search(rf"^\W*{node}\b.*\bmlx5_0\b.*\bConnectX-7\b", done.stdout, re.MULTILINE), done.stdout


def test_all_mistakes_of_all_nodes_are_reported_at_once_and_nothing_changes(ansible, groups):
    before = digests(ansible)
    done = ansible("ansible-playbook", "playbooks/site.yml", "-i", str(BAD_INPUT))
    assert done.returncode != 0
    printed = done.stdout + done.stderr
    (spare,) = groups["spare_nodes"]
    blocks = re.findall(r"^(\w+)  (.+(?:\n  .*)+)", printed, re.MULTILINE)
    for node, mistake in {
        "node1": "rdma_netns_mdoe",
        "node2": "mlx5_9",
        spare: "at least one HCA",
        "unreachable": "a reachable node",
    }.items():
        assert any(block[0] == node and mistake in block[1] for block in blocks), f"{node}: {mistake}\n{printed}"
    recap = re.findall(r"changed=(\d+)", printed)
    assert recap
    assert set(recap) == {"0"}
    assert digests(ansible) == before
