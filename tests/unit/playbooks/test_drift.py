"""playbooks/drift.yml through bin/drift.py over laid-out trees: each verdict, its exit code, and nothing changed.

The wrapper: an exit code is an answer only if this very run reached a verdict. And the guard: drift cannot change
anything, and which actions pass.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.callback import drift as recorder
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
WRAPPER = ROOT / "bin/drift.py"
DEFINED = json.loads((ROOT / "docs/schemas/results-1.json").read_text())["$defs"]
SCHEMA = {"$ref": "#/$defs/drift", "$defs": DEFINED}
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
OWN = {
    "netns": "etc/modprobe.d/zz-gpufabric-rdma.conf",
    "modules": "etc/modules-load.d/gpufabric-rdma.conf",
    "limits": "etc/systemd/system/k3s.service.d/10-gpufabric-rdma.conf",
}


class Site:
    """Hosts with their own trees, and a user's commands."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.hosts = folder, {}

    def add(self, name: str, fixture: str = "gh200-cx7-roce", **variables) -> None:
        root = tree.lay_out(tree.load(fixture), self.folder / name)
        own = {"ansible_connection": "local", "discovery_root": str(root), "limits_services": ["k3s"]}
        self.hosts[name] = {**own, **variables}

    def command(self, *words, program=None) -> tuple[int, str]:
        common = {name: value for name, value in running.local(cluster=False).items() if name != "ansible_connection"}
        inventory = {"gpu_nodes": {"vars": common, "hosts": self.hosts}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
        ours = {"ANSIBLE_SSH_TIMEOUT": "3", "PATH": ansible_playbook.search_path(), "PWD": str(self.folder)}
        ours["XDG_CACHE_HOME"] = str(self.folder / "cache")
        return running.play(self.folder, *words, program=program, **ours)

    def wrapper(self, *words) -> tuple[int, str]:
        return self.command(WRAPPER, *words, program=[sys.executable])

    def converge(self) -> None:
        code, output = self.command("-i", "hosts.yml", "gpufabric.rdma.host")
        assert code == 0, output

    def drift(self, *arguments) -> tuple[int, dict | None, str]:
        """Exit code, drift document, output; the trees are the same before and after, byte for byte."""
        written = self.folder / "drift/drift.json"
        written.unlink(missing_ok=True)
        before = self.everything()
        code, output = self.wrapper("-i", "hosts.yml", *arguments)
        assert self.everything() == before
        document = json.loads(written.read_text()) if written.exists() else None
        if document:
            jsonschema.validate(document, SCHEMA)
            assert document["exit_code"] == code, output
        return code, document, output

    def everything(self) -> dict:
        """{path: (mode, time of change, content)} of all trees."""

        def account(path):
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            return path.lstat().st_mode, path.lstat().st_mtime_ns, content

        trees = [self.folder / name for name in self.hosts]
        return {str(path): account(path) for root in trees if root.exists() for path in root.rglob("*")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    found = Site(tmp_path_factory.mktemp("site"))
    for name in ("node1", "node2"):
        found.add(name)
    found.converge()
    return found


@pytest.fixture
def planted(site):
    """planted(host, path, text): writes (None removes), and undoes it afterwards."""
    kept = []

    def write(host, path, text):
        target = site.folder / host / path
        kept.append((target, target.read_bytes()))
        target.unlink() if text is None else target.write_text(text)

    yield write
    for target, content in reversed(kept):
        target.write_bytes(content)


def verdicts(document):
    return {host["host"]: host["verdict"] for host in document["hosts"]}


def objects(document, host):
    (entry,) = [entry for entry in document["hosts"] if entry["host"] == host]
    return {(item["role"], item["object"]) for item in entry["differences"]}


def test_converged_nodes_give_0_and_all_reports(site):
    code, document, output = site.drift()
    assert (code, verdicts(document)) == (0, {"node1": "converged", "node2": "converged"}), output
    written = {path.name for path in (site.folder / "drift").iterdir()}
    assert written == {"drift.json", "drift.xml", "verdict.json"}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (site.folder / "drift").iterdir())


def test_planted_drifts_give_2_with_exactly_these_differences_and_the_other_node_none(site, planted):
    seen = (site.folder / "node2" / OWN["netns"]).read_text()
    planted("node2", OWN["limits"], None)
    planted("node2", OWN["modules"], "mlx5_ib\n")
    planted("node2", OWN["netns"], seen.replace("netns_mode=1", "netns_mode=0"))
    code, document, output = site.drift("-e", "drift_junit_file=reports/d.xml")
    assert (code, verdicts(document)) == (2, {"node1": "converged", "node2": "drift"}), output
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
    assert (code, verdicts(document)) == (3, {"node1": "reboot_pending"}), output
    assert any(reason.startswith("reboot pending: ") for reason in document["hosts"][0]["reasons"])


def test_a_node_that_does_not_answer_and_one_that_is_refused_give_4_and_hide_no_other(site, planted):
    planted("node2", OWN["limits"], None)
    variables = dict(site.hosts)
    refused = {**site.hosts["node1"], "rdma_netns_mode": "private", "discovery_expected_hcas": 9}
    site.hosts.update(away=AWAY, refused=refused)
    try:
        code, document, output = site.drift()
    finally:
        site.hosts = variables
    assert code == 4, output
    seen = {"node1": "converged", "node2": "drift", "away": "unreachable", "refused": "unsafe"}
    assert verdicts(document) == seen
    assert objects(document, "node2") == {("limits", f"/{OWN['limits']}")}
    reasons = {host["host"]: "\n".join(host["reasons"]) for host in document["hosts"]}
    assert "variable rdma_netns_mode: wanted" in reasons["refused"]
    assert "Next step:" in reasons["refused"]
    assert reasons["away"].count("unreachable: ") == 1


def test_an_empty_cache_on_the_controller_leaves_out_the_cni_plugins_only(tmp_path):
    bare = Site(tmp_path)
    bare.add("node1", "h100-8x-cx7-ib")
    code, document, output = bare.drift("-e", "cluster=true")
    assert code == 4, output
    assert {role for role, _object in objects(document, "node1")} >= {"flannel", "node_ready", "multus"}
    reasons = document["hosts"][0]["reasons"]
    assert [row.split(":")[1] for row in reasons if row.startswith("role ")] == [" /usr/local/bin/k3s"]
    assert [row[:13] for row in reasons if "gpufabric.rdma on the controller lacks" in row] == ["not verified:"]
    assert not (tmp_path / "cache").exists()


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
    code, output = site.wrapper("-i", "hosts.yml", "--playbook", "broken.yml")
    assert code == 1, output
    assert "no verdict was reached" in output
    assert not verdict.exists()
    assert site.everything() == before


def test_an_unreadable_inventory_and_reports_that_cannot_be_written_give_1(site):
    assert site.wrapper("-i", "nowhere.yml")[0] == 1
    code, document, output = site.drift("-e", "drift_directory=/proc/nothing")
    assert (code, document) == (1, None)
    assert "set drift_directory" in output


def test_the_verdict_goes_where_the_inventory_sends_the_reports(site):
    variables = site.folder / "group_vars/gpu_nodes.yml"
    variables.parent.mkdir()
    variables.write_text("drift_directory: elsewhere\n")
    code, output = site.wrapper("-i", "hosts.yml")
    shutil.rmtree(variables.parent)
    assert code == 0, output
    reports = {"drift.json", "drift.xml", "verdict.json"}
    assert {path.name for path in (site.folder / "elsewhere").iterdir()} == reports
    assert not (site.folder / "drift/verdict.json").exists()


def test_without_check_mode_the_playbook_stops_before_it_reads_anything(site):
    code, output = site.command("-i", "hosts.yml", "gpufabric.rdma.drift")
    assert code != 0
    assert "run again with --check" in output
    assert "Gather facts of the node" not in output


def test_ansible_playbook_by_itself_writes_the_same_reports(site):
    (site.folder / "own.yml").write_text("- ansible.builtin.import_playbook: gpufabric.rdma.drift\n")
    words = ("own.yml", "--check", "-e", "drift_directory=by-hand", "-e", "drift_run=r7")
    code, output = site.command("-i", "hosts.yml", *words)
    assert code == 0, output
    verdict = json.loads((site.folder / "by-hand/verdict.json").read_text())
    assert (verdict["run"], verdict["exit_code"], verdict["verdict"]) == ("r7", 0, "converged")


# --- the wrapper ------------------------------------------------------------------------------------------------------

CODES = {"converged": 0, "drift": 2, "reboot_pending": 3, "unsafe": 4, "unreachable": 4}
# Replaces ansible-playbook and the recorder: writes PLAN's verdict to the requested file, and ends as PLAN
# says.
RUNNER = """#!{python}
import json, os, pathlib, signal, sys, time
plan = json.loads(os.environ["PLAN"])
handed = json.loads(sys.argv[sys.argv.index("--extra-vars") + 1])
pathlib.Path("arguments.json").write_text(json.dumps(sys.argv[1:]))
if "verdict" in plan:
    written = {{"run": handed["drift_run"], **plan["verdict"]}}
    place = handed.get("drift_verdict_file", "drift/verdict.json")
    for path in (pathlib.Path(place), pathlib.Path(os.environ["GPUFABRIC_RDMA_DRIFT_ANSWER"])):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(plan.get("text") or json.dumps(written))
if plan.get("sleep"):
    pathlib.Path("started").touch()
    time.sleep(plan["sleep"])
if plan.get("signal"):
    os.kill(os.getpid(), plan["signal"])
sys.exit(plan.get("code", 0))
"""


def verdict(*answers, **change):
    worst = max(answers, key=list(CODES).index)
    hosts = {f"node{number}": answer for number, answer in enumerate(answers)}
    found = {"schema": "gpufabric.rdma/drift-verdict/1", "at": "2026-11-22T07:10:00Z", "verdict": worst}
    return {**found, "exit_code": CODES[worst], "hosts": hosts, **change}


@pytest.fixture
def call(tmp_path):
    """call(plan of the runner, *arguments): (exit code, output of the wrapper)."""
    runner = tmp_path / "bin/ansible-playbook"
    runner.parent.mkdir()
    runner.write_text(RUNNER.format(python=sys.executable))
    runner.chmod(0o755)
    environment = {**os.environ, "PATH": f"{runner.parent}:{os.environ['PATH']}"}

    def run(plan, *arguments, background=False):
        command = [sys.executable, WRAPPER, *arguments]
        settings = {"cwd": tmp_path, "env": {**environment, "PLAN": json.dumps(plan)}, "text": True}
        if background:
            return subprocess.Popen(command, stderr=subprocess.PIPE, **settings)
        done = subprocess.run(command, capture_output=True, check=False, **settings)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize(("answers", "ansible", "code"), [
    (["converged"], 0, 0),
    (["converged", "drift"], 0, 2),
    (["drift", "reboot_pending", "converged"], 0, 3),
    (["drift", "unsafe", "reboot_pending"], 2, 4),
    (["converged", "unreachable"], 4, 4),
])  # fmt: skip
def test_the_worst_host_gives_the_exit_code(call, answers, ansible, code):
    seen, told = call({"verdict": verdict(*answers), "code": ansible})
    assert seen == code, told
    assert f"exit code {code}" in told


NO_VERDICT = {
    "ansible-playbook ended at once": {"code": 4},
    "ansible-playbook ended well and nobody wrote": {"code": 0},
    "an earlier run's verdict": {"code": 0, "verdict": verdict("converged", run="an earlier one")},
    "not JSON": {"code": 0, "verdict": {}, "text": "{"},
    "JSON that is no verdict": {"code": 0, "verdict": {}, "text": "[]"},
    "another schema": {"code": 0, "verdict": verdict("converged", schema="gpufabric.rdma/drift/1")},
    "no host": {"code": 0, "verdict": verdict("converged", hosts={})},
    "a code that is not the worst host's": {"code": 0, "verdict": verdict("drift", verdict="converged", exit_code=0)},
    "an answer that nobody knows": {"code": 0, "verdict": verdict("converged", hosts={"a": "fine"})},
    "converged, and yet a host failed": {"code": 2, "verdict": verdict("converged")},
    "drift, and yet an unexpected exception": {"code": 250, "verdict": verdict("drift")},
    "unreachable, and yet an error": {"code": 1, "verdict": verdict("unreachable")},
    "killed after its verdict": {"signal": signal.SIGKILL, "verdict": verdict("converged")},
}


@pytest.mark.parametrize("plan", NO_VERDICT.values(), ids=NO_VERDICT)
def test_without_a_verdict_of_this_run_the_exit_code_is_1(call, plan):
    seen, told = call(plan)
    assert (seen, "no verdict was reached" in told) == (1, True)


def test_a_stale_verdict_goes_and_a_runner_that_is_not_there_is_no_verdict(call, tmp_path):
    assert call({"verdict": verdict("converged")})[0] == 0
    assert (tmp_path / "drift/verdict.json").exists()
    assert call({"code": 4})[0] == 1
    assert not (tmp_path / "drift/verdict.json").exists()
    assert [call({}, *words)[0] for words in (("--runner", "no-such-program"), ("--runner",))] == [1, 1]


def test_what_ansible_is_handed(call, tmp_path):
    assert call({"verdict": verdict("drift")}, "--verdict-file", "out/v.json", "-i", "hosts", "--limit", "a:b")[0] == 2
    passed = json.loads((tmp_path / "arguments.json").read_text())
    assert passed[:5] == ["-i", "hosts", "--limit", "a:b", "--check"]
    assert passed[-1] == "gpufabric.rdma.drift"
    assert json.loads(passed[-2])["drift_verdict_file"] == str(tmp_path / "out/v.json")
    assert call({"verdict": verdict("drift")}, "-e", "drift_directory=out")[0] == 2
    handed = json.loads((tmp_path / "arguments.json").read_text())[-2]
    assert set(json.loads(handed)) == {"drift_run"}, "where the verdict goes is for the options to say"


def test_ended_from_outside_it_ends_ansible_and_gives_no_verdict(call, tmp_path):
    process = call({"verdict": verdict("converged"), "sleep": 60}, background=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=10) == 1
    process.stderr.close()


# --- the guard --------------------------------------------------------------------------------------------------------


def loaded(path):
    return yaml.safe_load((ROOT / path).read_text()) or []


PLAYBOOK = loaded("playbooks/drift.yml")
# The files that a task would write, and how it does it.
WRITING = {
    "copied": {"copy": {"content": "x", "dest": "{{ folder }}/copied"}},
    "touched": {"command": {"argv": ["touch", "{{ folder }}/touched"]}},
    "shelled": {"shell": "touch {{ folder }}/shelled"},
    "raw": {"raw": "touch {{ folder }}/raw"},
    "scripted": {"script": "{{ folder }}/script.sh"},
    "included": {"include_tasks": "included.yml"},
}


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "and without the guard it would have"])
def test_a_guarded_play_writes_nothing_whatever_its_tasks_ask_for(tmp_path, guarded):
    (tmp_path / "script.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/scripted\n")
    folder = {"path": "{{ folder }}/included", "state": "directory"}
    (tmp_path / "included.yml").write_text(json.dumps([{"check_mode": False, "ansible.builtin.file": folder}]))
    tasks = []
    for name, task in WRITING.items():
        asks = {} if name == "included" else {"check_mode": False}
        own = {"name": name, **asks, **{f"ansible.builtin.{action}": given for action, given in task.items()}}
        tasks.append({"block": [own], "rescue": [{"ansible.builtin.meta": "noop"}]})
    known = running.local(folder=str(tmp_path), __drift_guarded=guarded)
    play = {"hosts": "localhost", "gather_facts": False, "vars": known, "tasks": tasks}
    ours = {"ANSIBLE_CONFIG": ansible_playbook.no_settings(), "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path)}
    ours["ANSIBLE_CALLBACKS_ENABLED"] = "gpufabric.rdma.drift"
    code, output = running.play(tmp_path, "-i", "localhost,", plays=[play], **ours)
    assert code == 0, output
    assert {name for name in WRITING if (tmp_path / name).exists()} == (set() if guarded else set(WRITING))
    for name in ("shelled", "raw", "scripted"):
        assert (f"task {name}: wanted an action that is known to respect check mode" in output) is guarded


@pytest.mark.parametrize("action", ["gpufabric.rdma.node_facts", "ansible.builtin.command", "drift", "x.y.drift"])
@pytest.mark.parametrize("mark", ["begin", "note", "end"])
def test_a_nodes_answer_is_no_mark(tmp_path, mark, action):
    answer = {"drift_mark": mark, "hosts": ["node1", "node2"], "text": "clean", "settings": {}}
    host = types.SimpleNamespace(get_name=lambda: "node1")
    task = types.SimpleNamespace(action=action, get_name=lambda: "Read", _role=None)
    result = types.SimpleNamespace(_result=answer, _host=host, _task=task, _task_fields={})
    listener = recorder.CallbackModule()
    listener.v2_runner_on_ok(result)
    assert listener._record is None
    listener._record = recorder.verdicts.Record(["node1", "node2"])
    listener.v2_runner_on_ok(result)
    assert listener._record.unfinished() == ["node1", "node2"]


def test_every_play_on_nodes_is_guarded_and_in_check_mode():
    plays = [play for play in PLAYBOOK if "hosts" in play]
    assert len(plays) == 3
    for play in plays:
        assert play["check_mode"] is True
        assert play["vars"][recorder.GUARD_VARIABLE] is True
        assert play["strategy"] == "ansible.builtin.linear"
        assert "any_errors_fatal" not in play
    imported = [play["ansible.builtin.import_playbook"] for play in PLAYBOOK if "hosts" not in play]
    in_memory = {f"ansible.builtin.{name}" for name in ("group_by", "add_host", "meta")}
    in_memory |= {"gpufabric.rdma.report"}
    tasks = [task for playbook in imported for task in steps_of(playbook)]
    assert len(tasks) > 2
    assert all(set(task) & in_memory for task in tasks)


def steps_of(playbook):
    """The tasks of a playbook and its imports, including those of blocks."""
    found = []
    for play in loaded(f"playbooks/{playbook}"):
        imported = play.get("ansible.builtin.import_playbook")
        found += steps_of(imported) if imported else [task for task in walk(play.get("tasks")) if "block" not in task]
    return found


def walk(tasks):
    for task in tasks or []:
        yield task
        for section in ("block", "rescue", "always"):
            yield from walk(task.get(section))


def test_every_module_of_ours_knows_check_mode():
    for path in sorted((ROOT / "plugins/modules").glob("*.py")):
        text = path.read_text()
        assert "AnsibleModule(" not in text or "supports_check_mode=True" in text, path.name


def test_no_action_on_the_way_is_one_that_the_guard_would_refuse():
    for path in [*(ROOT / "roles").glob("*/tasks/*.yml")]:
        # Drift has set up no address to verify.
        if path.name == "address_verify.yml" or path.parents[1].name in ("verification", "reboot"):
            continue
        for task in walk(loaded(path)):
            actions = [key for key in task if key.startswith(("ansible.", "community.", "gpufabric.rdma."))]
            for action in actions:
                assert action in recorder.HARMLESS or action.startswith(recorder.OURS), f"{path}: {action}"
