"""playbooks/drift.yml through bin/drift.py over laid-out trees: each verdict, its exit code, and nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEFINED = json.loads((ROOT / "docs/schemas/results-1.json").read_text())["$defs"]
SCHEMA = {"$ref": "#/$defs/drift", "$defs": DEFINED}
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
OWN = {
    "netns": "etc/modprobe.d/zz-gpufabric-rdma.conf",
    "modules": "etc/modules-load.d/gpufabric-rdma.conf",
    "limits": "etc/systemd/system/k3s.service.d/10-gpufabric-rdma.conf",
}


class Site:
    """Hosts with trees of their own, and the commands that a user has."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.hosts = folder, {}
        self.environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_TIMEOUT": "3",
            "PATH": ansible_playbook.search_path(),
            "PWD": str(folder),
        }

    def add(self, name: str, fixture: str = "gh200-cx7-roce", **variables) -> pathlib.Path:
        root = self.folder / name
        tree.lay_out(tree.load(fixture), root)
        self.hosts[name] = {
            "ansible_connection": "local",
            "discovery_root": str(root),
            "limits_services": ["k3s"],
            **variables,
        }
        return root

    def command(self, *words) -> tuple[int, str]:
        common = {"ansible_python_interpreter": node_python.path(), "ansible_become": False, "cluster": False}
        inventory = {"gpu_nodes": {"vars": common, "hosts": self.hosts}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def converge(self) -> None:
        code, output = self.command("ansible-playbook", "-i", "hosts.yml", "gpufabric.rdma.host")
        assert code == 0, output

    def drift(self, *arguments) -> tuple[int, dict | None, str]:
        """Exit code, drift document, output; the trees are the same before and after, byte for byte."""
        written = self.folder / "drift/drift.json"
        written.unlink(missing_ok=True)
        before = self.everything()
        code, output = self.command(sys.executable, ROOT / "bin/drift.py", "-i", "hosts.yml", *arguments)
        assert self.everything() == before
        document = json.loads(written.read_text()) if written.exists() else None
        if document:
            jsonschema.validate(document, SCHEMA)
            assert document["exit_code"] == code, output
        return code, document, output

    def everything(self) -> dict:
        """{path: (what it is, mode, time of change, content)} of all trees."""
        return {
            str(path.relative_to(self.folder)): self._account(path)
            for name in self.hosts
            if (self.folder / name).exists()
            for path in (self.folder / name).rglob("*")
        }

    @staticmethod
    def _account(path: pathlib.Path):
        status = path.lstat()
        if path.is_symlink():
            return "link", os.readlink(path)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        return content, status.st_mode, status.st_mtime_ns


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two converged nodes."""
    found = Site(tmp_path_factory.mktemp("site"))
    for name in ("node1", "node2"):
        found.add(name)
    found.converge()
    return found


@pytest.fixture
def planted(site):
    """planted(host, path, text): writes (None removes), and takes it back afterwards."""
    kept = []

    def write(host, path, text):
        target = site.folder / host / path
        kept.append((target, target.read_bytes() if target.exists() else None))
        if text is None:
            target.unlink()
        else:
            target.write_text(text)

    yield write
    for target, content in reversed(kept):
        if content is None:
            target.unlink()
        else:
            target.write_bytes(content)


def verdicts(document):
    return {host["host"]: host["verdict"] for host in document["hosts"]}


def objects(document, host):
    (entry,) = [entry for entry in document["hosts"] if entry["host"] == host]
    return {(item["role"], item["object"]) for item in entry["differences"]}


def test_converged_nodes_give_0_and_all_reports(site):
    code, document, output = site.drift()
    assert code == 0, output
    assert verdicts(document) == {"node1": "converged", "node2": "converged"}
    written = {path.name for path in (site.folder / "drift").iterdir()}
    assert written == {"drift.json", "drift.xml", "verdict.json"}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (site.folder / "drift").iterdir())


def test_planted_drifts_give_2_with_exactly_these_differences_and_the_other_node_none(site, planted):
    seen = (site.folder / "node2" / OWN["netns"]).read_text()
    planted("node2", OWN["limits"], None)
    planted("node2", OWN["modules"], "mlx5_ib\n")
    planted("node2", OWN["netns"], seen.replace("netns_mode=1", "netns_mode=0"))
    elsewhere = {"drift_junit_file": "reports/d.xml"}
    code, document, output = site.drift("-e", json.dumps(elsewhere))
    assert code == 2, output
    assert verdicts(document) == {"node1": "converged", "node2": "drift"}
    assert objects(document, "node1") == set()
    assert objects(document, "node2") == {
        ("rdma_netns", f"/{OWN['netns']}"),
        ("kernel_modules", f"/{OWN['modules']}"),
        ("limits", f"/{OWN['limits']}"),
    }
    limits = next(item for item in document["hosts"][1]["differences"] if item["role"] == "limits")
    assert limits["seen"] == "absent"
    assert "LimitMEMLOCK=infinity" in limits["wanted"]
    assert (site.folder / "drift/reports/d.xml").exists()


def test_a_pending_reboot_gives_3(site, tmp_path):
    pending = Site(tmp_path)
    pending.add("node1", "doca-loaded-differs-from-disk", limits_services=["containerd"])
    pending.converge()
    code, document, output = pending.drift()
    assert code == 3, output
    assert verdicts(document) == {"node1": "reboot_pending"}
    assert any(reason.startswith("reboot pending: ") for reason in document["hosts"][0]["reasons"])


def test_a_node_that_does_not_answer_and_one_that_is_refused_give_4_and_hide_no_other(site, planted):
    planted("node2", OWN["limits"], None)
    variables = dict(site.hosts)
    try:
        site.hosts.update(
            {
                "away": AWAY,
                "refused": {**site.hosts["node1"], "rdma_netns_mode": "private", "discovery_expected_hcas": 9},
            }
        )
        code, document, output = site.drift()
    finally:
        site.hosts = variables
    assert code == 4, output
    assert verdicts(document) == {
        "node1": "converged",
        "node2": "drift",
        "away": "unreachable",
        "refused": "unsafe",
    }
    assert objects(document, "node2") == {("limits", f"/{OWN['limits']}")}
    reasons = {host["host"]: "\n".join(host["reasons"]) for host in document["hosts"]}
    assert "variable rdma_netns_mode: wanted" in reasons["refused"]
    assert "Next step:" in reasons["refused"]
    assert reasons["away"].count("unreachable: ") == 1


def test_a_single_node_that_does_not_answer_gives_4_although_no_host_is_left(tmp_path):
    lonely = Site(tmp_path)
    lonely.hosts["away"] = AWAY
    code, document, output = lonely.drift()
    assert (code, verdicts(document)) == (4, {"away": "unreachable"}), output


BROKEN = {
    "a playbook that is none": "- hosts: [\n",
    "a play that ends before the comparison": "- hosts: gpu_nodes\n  tasks: [{ansible.builtin.fail: {msg: no}}]\n"
    "- ansible.builtin.import_playbook: gpufabric.rdma.drift\n",
    "a play that compares nothing": "- hosts: gpu_nodes\n  gather_facts: false\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_play_gives_1_and_leaves_no_verdict_of_an_earlier_run(site, text):
    verdict = site.folder / "drift/verdict.json"
    verdict.parent.mkdir(exist_ok=True)
    verdict.write_text('{"exit_code": 0}')
    (site.folder / "broken.yml").write_text(text)
    before = site.everything()
    code, output = site.command(sys.executable, ROOT / "bin/drift.py", "-i", "hosts.yml", "--playbook", "broken.yml")
    assert code == 1, output
    assert "no verdict was reached" in output
    assert not verdict.exists()
    assert site.everything() == before


def test_an_unreadable_inventory_and_reports_that_cannot_be_written_give_1(site):
    assert site.command(sys.executable, ROOT / "bin/drift.py", "-i", "nowhere.yml")[0] == 1
    code, document, output = site.drift("-e", "drift_directory=/proc/nothing")
    assert (code, document) == (1, None)
    assert "set drift_directory" in output


@pytest.mark.parametrize("by", ["-e", "inventory"])
def test_the_verdict_goes_where_the_reports_go(site, by):
    variables = site.folder / "group_vars/gpu_nodes.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text("drift_directory: elsewhere\n" if by == "inventory" else "{}\n")
    given = ("-e", "drift_directory=elsewhere") if by == "-e" else ()
    code, output = site.command(sys.executable, ROOT / "bin/drift.py", "-i", "hosts.yml", *given)
    shutil.rmtree(variables.parent)
    assert code == 0, output
    reports = {"drift.json", "drift.xml", "verdict.json"}
    assert {path.name for path in (site.folder / "elsewhere").iterdir()} == reports
    assert not (site.folder / "drift/verdict.json").exists()
    shutil.rmtree(site.folder / "elsewhere")


def test_without_check_mode_the_playbook_stops_before_it_reads_anything(site):
    code, output = site.command("ansible-playbook", "-i", "hosts.yml", "gpufabric.rdma.drift")
    assert code != 0
    assert "run again with --check" in output
    assert "Gather facts of the node" not in output


def test_ansible_playbook_by_itself_writes_the_same_reports(site):
    (site.folder / "own.yml").write_text("- ansible.builtin.import_playbook: gpufabric.rdma.drift\n")
    words = ("own.yml", "--check", "-e", "drift_directory=by-hand", "-e", "drift_run=r7")
    code, output = site.command("ansible-playbook", "-i", "hosts.yml", *words)
    assert code == 0, output
    verdict = json.loads((site.folder / "by-hand/verdict.json").read_text())
    assert (verdict["run"], verdict["exit_code"], verdict["verdict"]) == ("r7", 0, "converged")
