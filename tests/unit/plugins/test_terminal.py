"""What a node says reaches no terminal, log or page as something that they obey."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import change, text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import formats
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import tables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files, junit, page
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, report_documents

ROOT = pathlib.Path(__file__).resolve().parents[3]
# C0, DEL and C1 (an 8-bit terminal reads 0x9b as ESC [); bidi, invisible ones, separators of lines; the sequences.
CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
BIDI = [*map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))]
OTHERS = [*map(chr, (0xAD, 0x200B, 0x2028, 0x2029, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF, 0xD800, 0xDFFF, 0xE0041))]
SEQUENCES = [
    "\x1b[2J\x1b[1;32mok",
    "\x1b]0;title\x07",
    "\x1b]8;;https://example.com\x1b\\x",
    "\x9b31m",
    "a\rok",
    "\x1bc",
]
UNFIT = [*CONTROLS, *BIDI, *OTHERS]
PLANT = "".join([*SEQUENCES, *UNFIT])
FORGED = "\nnode9  all passed"
# What a node says nothing in: words that the collection itself has set.
OWN = {"schema", "at", "kind", "status", "verdict", "id", "failure", "host", "from", "to", "path", "memory", "state"}
OWN |= {"phys_state", "link_layer", "address", "name", "hca", "netdev", "pci", "flavor", "netns_mode", "distance"}


def planted(value):
    """The same data with PLANT at the end of each text of it."""
    if isinstance(value, dict):
        return {key: item if key in OWN and isinstance(item, str) else planted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item) for item in value]
    return f"{value}{PLANT}" if isinstance(value, str) else value


def outputs():
    """(which, text) of all that is made for people, from what hostile nodes have said."""
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
    yield "the drift JUnit", formats.junit(drift)
    results = planted(report_documents.rails())
    yield "the report's page", page.page(results, PLANT)
    yield "the report's JUnit", junit.text(results)
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

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {"gpufabric.rdma.report": {"kind": "text", "text": "shown {{ hostile }}"}},
            {"gpufabric.rdma.report": {"kind": "warning", "text": "warned {{ hostile }}"}},
            {
                "gpufabric.rdma.refuse": {
                    "findings": [{"object": "{{ hostile }}", "wanted": "x", "seen": "{{ hostile }}", "next_step": "y"}]
                },
                "ignore_errors": True,
            },
        ],
    },
]


def test_a_play_prints_none_of_it(tmp_path):
    (tmp_path / "play.yml").write_text(json.dumps(PLAY))
    hostile = PLANT.replace("\ud800", "").replace("\udfff", "")  # Ansible itself takes no lone surrogate
    (tmp_path / "vars.json").write_text(json.dumps({"hostile": hostile}))
    done = subprocess.run(
        [ansible_playbook.path(), "-i", "localhost,", "play.yml", "-e", "@vars.json"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        check=False,
    )
    printed = (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    assert done.returncode == 0, printed[-2000:]
    assert printed.count("shown") >= 1
    assert printed.count("warned") >= 1
    assert [ascii(bad) for bad in UNFIT if bad in printed] == []


# --- nobody goes past it ----------------------------------------------------------------------------------------------

TERMINAL = ROOT / "plugins/plugin_utils/_core/terminal.py"


def prints(source):
    """Lines of a file that print by themselves."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.ImportFrom) and any(alias.name == "Display" for alias in node.names):
            found.append(node.lineno)
        if name in ("Display", "_display") or (name == "print" and isinstance(node, ast.Name)):
            found.append(node.lineno)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value == "warnings" and not _cleaned(value):
                    found.append(node.lineno)
    return found


def _cleaned(value):
    return ast.unparse(value).startswith("terminal.warnings(") or ast.unparse(value) == "[]"


# What runs on the controller and can print. The modules' warnings are made by _core.change.finish alone.
PRINTING = sorted(
    path
    for name in ("action", "callback", "filter", "lookup", "plugin_utils")
    for path in (ROOT / "plugins" / name).rglob("*.py")
)


def test_a_plugin_prints_through_the_one_place():
    assert [path.name for path in PRINTING if path != TERMINAL and prints(path.read_text())] == []
    assert prints("self._display.display('x')")
    assert prints("result = {'warnings': notes}")


def test_a_module_warns_through_the_one_place():
    warning = [
        path.name for path in (ROOT / "plugins").rglob("*.py") if re.search(r"\.(warn|deprecate)\(", path.read_text())
    ]
    assert warning == ["change.py"]


def test_a_role_prints_what_it_was_told_through_report():
    """debug, fail, assert and pause print as it is whatever a variable holds: only numbers of ours."""
    found = []
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]:
        blocks = re.findall(r"ansible\.builtin\.(?:debug|fail|assert|pause):\n((?: {4,}.*\n)+)", path.read_text())
        found += [line.strip() for block in blocks for line in block.splitlines() if "{{" in line]
    assert {re.match(r'msg: "{{ (.*?) }} of the ', line)[1] for line in found} == {
        "__matrix_report['tally']['outlier']",
        "__verification_report['failing'][inventory_hostname]",
    }
