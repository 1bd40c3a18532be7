"""What a node says reaches no terminal, log or page as something that they obey."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from xml.etree import ElementTree

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import change, text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import formats
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import tables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, files, page
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, report_documents, running

ROOT = pathlib.Path(__file__).resolve().parents[3]
# C0, DEL and C1 (an 8-bit terminal reads 0x9b as ESC [); bidi, invisible ones, separators of lines; the sequences.
CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
BIDI = [*map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))]
OTHERS = [*map(chr, (0xAD, 0x200B, 0x2028, 0x2029, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF, 0xD800, 0xDFFF, 0xE0041))]
SEQUENCES = ["\x1b[2J\x1b[1;32mok", "\x1b]0;title\x07", "\x1b]8;;https://a.b\x1b\\x", "\x9b31m", "a\rok", "\x1bc"]
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
    {"gpufabric.rdma.refuse": {"findings": [FINDING]}, "ignore_errors": True},
]


def test_a_play_prints_none_of_it(tmp_path):
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": TASKS}]))
    hostile = PLANT.replace("\ud800", "").replace("\udfff", "")  # Ansible itself takes no lone surrogate
    (tmp_path / "vars.json").write_text(json.dumps({"hostile": hostile}))
    ours = {"ANSIBLE_CONFIG": ansible_playbook.no_settings(), "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path)}
    code, printed = running.play(tmp_path, "-i", "localhost,", "play.yml", "-e", "@vars.json", **ours)
    assert code == 0, printed[-2000:]
    assert [word for word in ("shown", "warned") if word not in printed] == []
    assert [ascii(bad) for bad in UNFIT if bad in printed] == []


# --- nobody goes past it ----------------------------------------------------------------------------------------------


def test_a_role_prints_what_it_was_told_through_show():
    """debug, fail, assert and pause print as it is whatever a variable holds: only numbers of ours."""
    found = []
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]:
        blocks = re.findall(r"ansible\.builtin\.(?:debug|fail|assert|pause):\n((?: {4,}.*\n)+)", path.read_text())
        found += [line.strip() for block in blocks for line in block.splitlines() if "{{" in line]
    assert {re.match(r'msg: "{{ (.*?) }} of the ', line)[1] for line in found} == {
        "__matrix_report['tally']['outlier']",
        "__verification_report['failing'][inventory_hostname]",
    }
