"""A node's answer, or a foreign file, never controls the controller: actions and callbacks in one process.

Each string of node2's answer becomes a hostile one, all at once and one at a time. Nothing more is written, read or
started than with an honest node2, and the decisions for node1 stay, except for OF_PEERS. `tests/endurance/hostile.py`
does the same to whole playbooks.
"""

import importlib
import itertools
import json
import os
import pathlib
import re
import sys
import types
from xml.etree import ElementTree

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.template import Templar
from ansible_collections.gpufabric.rdma.plugins.action import node_facts as node_action
from ansible_collections.gpufabric.rdma.plugins.action import plan as plan_action
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import change, text
from ansible_collections.gpufabric.rdma.plugins.modules import node_facts
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import verdicts
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import tables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, files, page
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, report_documents, running, tree
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[3]
# {kind: what a string becomes}; @ is the folder of the run.
KINDS = {
    "up": "../../../../../../@/home/notes",
    "absolute": "@/home/notes",
    "template": "{{ lookup('ansible.builtin.pipe', 'touch @/executed') }}",
    "lines": "x\n[gpu_nodes]\r\x1b[2J\x00fatal: [node1]: FAILED! => {}\n---\n- {}",
    "option": "--kubeconfig=@/home/notes",
    "another": "node1",
}
# Additions of a node to a result: marks of the drift recorder, and variables that choose files and commands.
MARKS = {
    "drift_mark": "begin", "hosts": ["node1"], "settings": dict.fromkeys(("json_file", "junit_file"), "@/home/notes"),
    "add_host": {"host_name": "node1", "groups": ["gpu_nodes"], "host_vars": {"ansible_host": "node2"}},
    "ansible_facts": {
        "driver_host_package": "@/home/.ssh/id_ed25519", "k3s_bundle_dir": "@/home/.ssh", "report_file": "@/home/notes",
        "driver_drain_host": "localhost", "driver_drain_command": ["touch", "@/executed"], "driver_drain_allowed": True,
        "device_plugin_kubectl": ["touch", "@/executed"], "discovery_root": "@/home", "__discovery_read": {},
        "driver_repository_key": "@/home/.ssh/id_ed25519", "capture_dir": "@/home", "verification_results": "@/home/x",
    },
}  # fmt: skip
ROLES = ["discovery", "rdma_netns", "kernel_modules", "limits", "rail_links", "k3s", "node_firewall", "cni_plugins"]
ROLES += ["pcie", "flannel", "node_ready", "multus", "device_plugin", "networks"]
# node1's needs from node2: its addresses and the networks of all nodes; and why the run stops.
OF_PEERS = ("firewall", "findings", "networks")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate")


class Watch:
    """Watches the files that are read and written and the programs that are started."""

    def __init__(self):
        self.seen: set | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.seen is not None and (event == "open" or event in STARTS or event in CHANGES):
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
            self.seen.add(f"{event} {'for writing ' if writes else ''}{arguments[0]}")

    def during(self, work):
        self.seen = set()
        try:
            return work(), self.seen
        finally:
            self.seen = None


class HostVars(dict):
    raw_get = dict.__getitem__


@pytest.fixture(scope="module")
def watch():
    return Watch()


def act(name: str, args: dict, known: dict, answer: dict | None = None, host: str = "node1") -> dict:
    """The result of an action if its module answers like this."""
    groups = {"all": [*known], "gpu_nodes": [*known], "k3s_servers": ["node1"]}
    variables = {**known.get(host, {}), "hostvars": known, "groups": groups, "inventory_hostname": host}
    task = types.SimpleNamespace(args=args, action=f"gpufabric.rdma.{name}", check_mode=False, async_val=0)
    task.get_play = lambda: types.SimpleNamespace(strategy="linear")
    loader, connection = DataLoader(), types.SimpleNamespace(_shell=types.SimpleNamespace(tmpdir="/nonexistent"))
    action = name if (ROOT / f"plugins/action/{name}.py").exists() else "node_facts"
    module = importlib.import_module(f"ansible_collections.gpufabric.rdma.plugins.action.{action}")
    plugin = module.ActionModule(task, connection, PlayContext(), loader, Templar(loader, variables=variables), None)
    plugin._execute_module = lambda *_args, **_more: answer
    return plugin.run(task_vars=variables)


class Site(Cluster):
    """node1 and node2, with what each answers to node_facts."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder)
        self.known = {name: {**self.variables, **of_host} for name, of_host in self.hosts.items()}
        asked = {"software_hcas": True, "k3s": {}, "networks": {}, "firewall": True, "runtime": True}
        self.answers = {}
        for name, root in self.nodes.items():
            answer = running.module(node_facts, root=str(root), **asked)
            self.answers[name] = {key: value for key, value in answer.items() if key != "invocation"}

    def run(self, answer: dict) -> dict:
        known = HostVars({name: dict(variables) for name, variables in self.known.items()})
        both = {"roles": ROLES, "hosts": [*known]}
        for name, said in (("node1", self.answers["node1"]), ("node2", answer)):
            read = act("plan", {"step": "read", "roles": ROLES}, known, said, name)
            node = {"facts": read.get("ansible_facts", {}).get("rdma"), "host": name, "expected_ports": []}
            known[name].update(__discovery_read=read, ansible_facts=read.get("ansible_facts", {}), node=node)
        planned = act("plan", {"step": "plan", **both}, known)
        for name in known:
            known[name]["__discovery_planned"] = planned
        act("plan", {"step": "print", **both}, known)
        for query in ({}, {"query": "[].rails[].netdev"}):
            act("report", {"kind": "facts", "hosts": [*known], **query}, known)
        return {key: value for key, value in planned["hosts"]["node1"].items() if key not in OF_PEERS}


def places(value, path=()):
    """The keys of each string; of a list only those of its first item."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for item in value[:1]:
            yield from places(item, (*path, 0))
    elif isinstance(value, str):
        yield path


def replaced(value, text, only=None, path=()):
    """The value with its strings, or the one at these keys, as text."""
    if isinstance(value, dict):
        return {key: replaced(item, text, only, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, text, only, (*path, at)) for at, item in enumerate(value)]
    return text if isinstance(value, str) and only in (None, path) else value


def trials(value, folder, megabytes=10):
    """(replaced strings, text): all by each kind, each by one kind, and some by ten megabytes."""
    each = list(places(value))
    texts = {kind: text.replace("@", str(folder)) for kind, text in KINDS.items()}
    yield from (((kind, None), text) for kind, text in texts.items())
    yield from (((kind, path), texts[kind]) for path, kind in zip(each, itertools.cycle(texts)))
    yield from ((("large", path), "x" * (megabytes << 20)) for path in each[:: len(each) // 4])
    yield ("large", None), "x" * 1_000
    yield from ((("type", path), ["x"]) for path in [None, *each])


def test_no_string_of_a_node_s_answer_steers_the_controller(tmp_path, watch):
    site = Site(tmp_path)
    answer = site.answers["node2"]
    site.run(answer)  # imports what it needs
    honest, usual = watch.during(lambda: site.run(answer))
    assert len(list(places(answer))) > 120
    wrong = {}
    for what, lie in trials(answer, tmp_path):
        decided, seen = watch.during(lambda lie=lie, only=what[1]: site.run(replaced(answer, lie, only)))
        # A node whose answer cannot be planned with stops the cluster's plan, not the other node's.
        wrong[what] = [*(seen - usual), *(key for key in decided if decided[key] != honest[key])]
    assert {what: found for what, found in wrong.items() if found} == {}


def test_no_later_answer_of_a_node_replaces_what_the_controller_knows_of_it():
    own = dict.fromkeys(("host", "address", "variables", "problems"), "known")
    later = {**dict.fromkeys(own, "told"), "ansible_facts": {}}
    hostvars = {"node1": {"__discovery_read": own, "since": later}}
    assert plan_action._read_of({"hostvars": hostvars}, ["node1"], "since") == [{**own, "ansible_facts": {}}]


def test_no_key_of_a_node_s_result_is_a_variable():
    facts = {**MARKS["ansible_facts"], "rdma": {"x": 1}}
    kept = act("node_facts", {}, {}, {**MARKS, "ansible_facts": facts})
    assert kept["ansible_facts"] == {"rdma": {"x": 1}}
    assert "ansible_facts" not in act("node_facts", {}, {}, MARKS)
    refused = act("report", {"kind": "text"}, {"node1": {"ansible_facts": facts}})
    names = {item["object"].removeprefix("variable ") for item in refused["findings"]}
    assert (names, {item["id"] for item in refused["findings"]}) == ({*MARKS["ansible_facts"]}, {"node:variable"})


def test_what_a_node_gives_as_an_address_is_one_or_the_node_is_not_planned_with(tmp_path):
    site = Site(tmp_path)
    answer = site.answers["node2"]
    meant = [path for path in places(answer) if {"addresses", "routes"} & {*path} and path[-1] != "netdev"]
    assert {path[0] for path in meant} == {"ansible_facts", "firewall", "k3s", "networks"}
    for path, lie in itertools.product(meant, KINDS.values()):
        told = replaced(answer, lie, path)
        read = act("plan", {"step": "read", "roles": ROLES}, HostVars(site.known), told, "node2")
        assert (path, bool(read.get("failure"))) == (path, True)


@pytest.mark.parametrize("name", ["../../home/.ssh/x.pyz", "/home/x.whl", "x.whl", "plugin.pyz/../x.pyz"])
def test_no_file_is_sent_that_the_lock_does_not_name(monkeypatch, name):
    monkeypatch.setattr(device_plugin, "check_config", lambda *_given: None)
    monkeypatch.setattr(node_action.ActionModule, "_sent", lambda *_given: pytest.fail("sent"))
    answer = act("device_plugin", {"wheel_dir": "/"}, {}, {"needs": [name]})
    assert (answer["failed"], name in answer["msg"]) == (True, True)


@pytest.mark.parametrize("guide", ["000-nicclusterpolicy", "001-nicclusterpolicy", "macvlan", "host-device"])
def test_no_string_of_a_foreign_policy_is_evaluated(tmp_path, watch, guide):
    documents = list(yaml.safe_load_all((tree.texts("guides") / f"{guide}.txt").read_text()))
    path = tmp_path / "policy.yml"

    def run():
        return act("policy_import", {"files": [str(path)]}, {})

    path.write_text(yaml.safe_dump_all(documents))
    run()
    usual = watch.during(run)[1]
    for what, lie in trials(documents, tmp_path, 0):
        path.write_text(yaml.safe_dump_all(replaced(documents, lie, what[1])))
        answer, seen = watch.during(run)
        scalars = [event for event in yaml.parse(answer.get("text") or "") if isinstance(event, yaml.ScalarEvent)]
        texts = [scalar.value for scalar in scalars if "{{" in scalar.value and scalar.tag != "!unsafe"]
        assert (what, seen - usual, texts) == (what, set(), [])


# --- nor does it reach a terminal, a log or a page as control sequences -----------------------------------------------

# C0, DEL and C1 (an 8-bit terminal reads 0x9b as ESC [); bidi, invisible ones, separators of lines; the sequences.
CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
BIDI = [*map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))]
OTHERS = [*map(chr, (0xAD, 0x200B, 0x2028, 0x2029, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF, 0xD800, 0xDFFF, 0xE0041))]
SEQUENCES = ["\x1b[2J\x1b[1;32mok", "\x1b]0;title\x07", "\x1b]8;;https://a.b\x1b\\x", "\x9b31m", "a\rok", "\x1bc"]
UNFIT = [*CONTROLS, *BIDI, *OTHERS]
PLANT = "".join([*SEQUENCES, *UNFIT])
FORGED = "\nnode9  all passed"
# Keys without a node's text: words that the collection itself has set.
OWN = {"schema", "at", "kind", "status", "verdict", "id", "failure", "host", "from", "to", "path", "memory", "state"}
OWN |= {"phys_state", "link_layer", "address", "name", "hca", "netdev", "pci", "flavor", "netns_mode", "distance"}


def planted(value):
    if isinstance(value, dict):
        return {key: item if key in OWN and isinstance(item, str) else planted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item) for item in value]
    return f"{value}{PLANT}" if isinstance(value, str) else value


def outputs():
    """(which, text) of all texts for people, from the answers of hostile nodes."""
    finding = change.Finding(f"HCA {PLANT}", f"firmware {PLANT}", f"firmware {PLANT}", f"flash {PLANT}")
    told = {"host": "node1", **finding._asdict()}
    yield "a sentence", text.sentence(finding)
    yield "four facts", text.four_facts([told])
    yield "a table", text.table(("a", "b"), [(PLANT, PLANT)])
    yield "a folded text", text.wrapped("  ", PLANT)
    failure = change.failure(change.Refused([finding], [change.Change("/etc/x", "write", PLANT, PLANT)]))
    yield "a failure", failure["msg"] + "".join(failure["findings"][0].values())
    yield "a diff", "".join(failure["diff"][0][side] for side in ("before", "after"))
    yield "the plan's problems", "".join(host.failure_text([told], ["node1"]))
    facts = planted(report_documents.facts("h100-8x-cx7-ib"))
    yield "tables of nodes", tables.report({"node1": {"facts": facts, "failure": None, "expected_ports": []}})
    drift = planted(report_documents.fleet(64)["drift"])
    drift["hosts"][0]["host"] += PLANT
    yield "the drift JUnit", verdicts.junit(drift)
    results = planted(report_documents.rails())
    yield "the report's page", page.page(results, PLANT)
    yield "the report's JUnit", document.junit(results)
    yield "the report's JSON", files.as_json(results)


@pytest.mark.parametrize(("which", "made"), [pytest.param(*item, id=item[0]) for item in outputs()])
def test_nothing_that_a_terminal_obeys_is_in(which, made):
    assert len(made) > 20
    assert [ascii(bad) for bad in UNFIT if bad in made] == []
    assert "\ufffd" in made or "\\u001b" in made, "what was there is not hidden"
    if "JUnit" in which:
        ElementTree.fromstring(made)


def test_a_cell_of_a_table_makes_no_line_of_its_own_and_what_people_write_stays():
    assert len(text.table(("a",), [(f"x{FORGED}",)]).splitlines()) == 2
    for kept in ("Café 北京 שלום 👩‍💻", "two\nlines\tand a tab"):
        assert text.clean(kept) == kept
    for bad in (*UNFIT, *SEQUENCES):
        shown = text.clean(f"28.39{bad}2048")
        assert (shown[:5], shown[-4:], "\ufffd" in shown) == ("28.39", "2048", True)
        assert not set(shown) & set(UNFIT)


# --- the operator's terminal itself -----------------------------------------------------------------------------------

FINDING = {"object": "{{ hostile }}", "wanted": "x", "seen": "{{ hostile }}", "next_step": "y"}
TASKS = [
    {"gpufabric.rdma.report": {"kind": "text", "text": "shown {{ hostile }}"}},
    {"gpufabric.rdma.report": {"kind": "warning", "text": "warned {{ hostile }}"}},
    {"gpufabric.rdma.report": {"kind": "findings", "findings": [FINDING]}, "ignore_errors": True},
]


def test_a_play_prints_none_of_it(tmp_path):
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": TASKS}]))
    hostile = PLANT.replace("\ud800", "").replace("\udfff", "")  # Ansible itself refuses a lone surrogate
    (tmp_path / "vars.json").write_text(json.dumps({"hostile": hostile}))
    ours = {"ANSIBLE_CONFIG": ansible_playbook.no_settings(), "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path)}
    code, printed = running.play(tmp_path, "-i", "localhost,", "play.yml", "-e", "@vars.json", **ours)
    assert code == 0, printed[-2000:]
    assert [word for word in ("shown", "warned") if word not in printed] == []
    assert [ascii(bad) for bad in UNFIT if bad in printed] == []


# --- no task bypasses it ----------------------------------------------------------------------------------------------


def test_a_role_prints_what_it_was_told_through_show():
    """debug, fail, assert and pause print any variable unchanged: only our numbers are allowed."""
    found = []
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]:
        blocks = re.findall(r"ansible\.builtin\.(?:debug|fail|assert|pause):\n((?: {4,}.*\n)+)", path.read_text())
        found += [line.strip() for block in blocks for line in block.splitlines() if "{{" in line]
    assert {re.match(r'msg: "{{ (.*?) }} of the ', line)[1] for line in found} == {
        "__matrix_report['tally']['outlier']",
        "__verification_report['failing'][inventory_hostname]",
    }
