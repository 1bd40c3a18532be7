"""The report: its document, its page, its JUnit. Nothing from a node becomes markup; unknown stays unknown."""

import base64
import functools
import hashlib
import html.parser
import json
import os
import pathlib
import re
from xml.etree import ElementTree

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge as matrix_judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, files, heat, judge, maps, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.tests.tools import report_documents as made

SCHEMA = pathlib.Path(__file__).resolve().parents[4] / "docs/schemas/results-1.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


@functools.cache
def everything():
    """A document with content for each section; no test changes it."""
    cable = made.with_port_down(made.node("a", "two-cards-cx6dx"), "mlx5_0")
    claim = {"claim": "team/rails", "pods": ["team/job"], "hca": "mlx5_0", "rail": 0, "device": "mlx5_0"}
    cable.update(reboot_reasons=["the netns mode"], claims=[claim])
    nodes = [cable, made.blocked_card("b"), made.node("c", None), made.node("d", "vfs")]
    slow = {(0, "a"): (0.3, {"reason": "PCIe", "counters": {"from:symbol_error": 7}}), (1, "b"): (None, {})}
    changed = {"role": "limits", "object": "/etc/x", "wanted": "new", "seen": "old"}
    pending = ("reboot_pending", [], ["older driver"])
    drift = made.drift({"a": ("drift", [changed], []), "b": pending, "elsewhere": pending})
    matrix = made.matrix(["a", "b", "d"], 2, 100.0, slow)
    end = {"host": "a", "hca": "mlx5_5", "rail": 5, "memory": "host", "reason": "no other node has rail 5"}
    matrix["tests"].append(matrix_judge._alone(end, "host"))
    return made.results(nodes, drift, matrix)


@functools.cache
def of_kind(kind):
    results = everything() if kind == "everything" else made.KINDS[kind]()
    return results, page.page(results)


# --- the document ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*made.KINDS, "everything"])
def test_documents_keep_to_the_schema(kind):
    VALIDATOR.check_schema(VALIDATOR.schema)
    assert list(VALIDATOR.iter_errors(of_kind(kind)[0])) == []


@pytest.mark.parametrize("wrong", [None, [], "text", {}, {"schema": "gpufabric.rdma/results/2"}], ids=str)
@pytest.mark.parametrize("kind", document.SCHEMAS)
def test_another_document_is_told_by_its_schema(kind, wrong):
    assert document.finding(kind, wrong).object == "schema"
    assert document.finding(kind, {"schema": document.SCHEMAS[kind]}) is None


def test_a_document_holds_nothing_private_and_no_facts_of_a_node_that_was_not_read():
    facts = {**made.facts("two-cards-cx6dx"), "owned_files": {"/etc/x": "content"}}
    assert "cmdline" in facts["node"]
    judged = [
        {"host": "a", "facts": {"hcas": []}, "checks": made.ports(facts), "reboot_reasons": ["a reason"]},
        {"host": "b", "facts": None, "checks": []},
    ]
    nodes = [{"host": host, "read": {"ansible_facts": {"rdma": facts}}} for host in ("a", "b")]
    collected = document.collect(judged, nodes, made.AT)
    assert VALIDATOR.is_valid(collected)
    first, second = collected["nodes"]
    assert (first["facts"]["hcas"], first["reboot_reasons"]) == (facts["hcas"], ["a reason"])
    assert "cmdline" not in first["facts"]["node"]
    assert "owned_files" not in first["facts"]
    assert second == {"host": "b", "facts": None, "checks": [], "reboot_reasons": []}


# --- where the page goes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "sources", "expected", "refused"), [
    (None, ["racks/"], "racks-report.html", False),
    (None, ["racks/hosts.yml"], "racks/hosts-report.html", False),
    (None, ["node1,node2,", "racks"], "racks-report.html", False),
    ("new/page.html", ["racks"], "new/page.html", False),
    ("racks", [], "racks", True),
    ("racks/hosts.yml/page.html", [], "racks/hosts.yml/page.html", True),
])  # fmt: skip
def test_the_page_is_beside_the_inventory_or_refused(tmp_path, monkeypatch, file, sources, expected, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "racks").mkdir()
    (tmp_path / "racks/hosts.yml").touch()
    path = files.page_path(file, sources)
    assert path == tmp_path / expected
    assert bool(files.unwritable(path, "the page", "another")) == refused
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["hosts.yml", "racks"]


@pytest.mark.parametrize(("content", "refused"), [
    (None, False),
    ('{"clusters": [{"name": "gpufabric"}]}', False),
    ("clusters:\n- name: gpufabric\n- name: of-the-user\n", True),
    ("{", True),
    ("", True),
])  # fmt: skip
def test_a_kubeconfig_replaces_only_its_own(tmp_path, content, refused):
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    assert [finding.id for finding in files.kubeconfig(str(file))] == ["k3s:kubeconfig"] * refused


def test_a_pipe_takes_a_text_and_stays():
    end, begin = os.pipe()
    files.write({f"/proc/self/fd/{begin}": "text"}, False)
    assert (os.read(end, 9), files.unwritable(pathlib.Path(f"/proc/self/fd/{begin}"), "", "")) == (b"text", [])


# --- nothing from a node becomes markup ------------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, texts, and whether every element that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.stack = [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("kind", [*made.KINDS, "everything"])
def test_a_page_is_well_formed_links_to_itself_and_asks_for_nothing(kind):
    text = of_kind(kind)[1]
    seen = assert_harmless(text)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {name for name, _attributes in seen.elements}
    identities = [attributes["id"] for _name, attributes in seen.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    wanted = {attributes["href"] for _name, attributes in seen.elements if "href" in attributes}
    assert wanted <= {f"#{identity}" for identity in identities}
    policy = seen.named("meta")[1]["content"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        (inner,) = re.findall(f"<{name}>(.*?)</{name}>", text, re.S)
        assert f"{name}-src 'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'" in policy


def leaves(value, path=()):
    """The kinds of a document's texts and keys: paths in which [] is any place of a list; a key's ends with {}."""
    if isinstance(value, dict):
        if path[-1:] == ("counters",):
            yield (*path, "{}")
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, (*path, "[]"))
    elif isinstance(value, str):
        yield path


def with_planted(value, kinds, plant, path=()):
    if isinstance(value, dict):
        end = plant if (*path, "{}") in kinds else ""
        return {key + end: with_planted(inner, kinds, plant, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_planted(inner, kinds, plant, (*path, "[]")) for inner in value]
    return value + plant if isinstance(value, str) and path in kinds else value


# A text, an attribute, a comment, a style or script that ends; a template; an address; and words of this page's own.
PLANTS = [
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00\ud800{{ 7*7 }}",
    '" onmouseover=alert(1) x="',
    "' autofocus onfocus=alert(1) '",
    "--><svg onload=alert(1)>",
    "]]></style><style>*{display:none}</style>",
    "{{ cycler.__init__.__globals__ }}{% include '/etc/passwd' %}{# #}",
    "javascript:alert(1)",
    "&lt;script&gt;&#x27;&amp;",
    "\n   two\n   lines",
]
# Keys with a fixed set of words; others are an error.
WORDS = {
    *{("drift", "verdict"), ("drift", "hosts", "[]", "verdict")},
    *{("matrix", "tests", "[]", "verdict"), ("nodes", "[]", "checks", "[]", "status")},
}
KINDS_OF_LEAVES = sorted(set(leaves(everything())))


def assert_harmless(text):
    """A page has only its own elements, attributes and addresses, and its one script and style."""
    seen, own = Reader(text), Reader(of_kind("everything")[1])
    assert {name for name, _attributes in seen.elements} <= {name for name, _attributes in own.elements}
    used = [{key for _name, attributes in page.elements for key in attributes} for page in (seen, own)]
    assert used[0] <= used[1] | {"open"}
    assert not [key for key in used[0] if key.startswith("on")]
    assert not {"src", "srcset", "data", "poster", "action", "style"} & used[0]
    assert all(attributes.get("href", "#").startswith("#") for _name, attributes in seen.elements)
    assert [len(seen.named(name)) for name in ("script", "style", "body")] == [1, 1, 1]
    assert not set("\u202e\x00\ud800") & set(text)
    text.encode()
    return seen


@pytest.mark.parametrize("kind", sorted(WORDS), ids=".".join)
def test_a_word_that_the_page_does_not_know_is_an_error(kind):
    with pytest.raises(KeyError):
        page.page(with_planted(everything(), {kind}, PLANTS[0]))


@pytest.mark.parametrize("plant", ["".join(PLANTS), *PLANTS])
def test_a_hostile_text_in_all_leaves_is_harmless_and_shown_as_it_is(plant):
    planted = with_planted(everything(), set(KINDS_OF_LEAVES) - WORDS, plant)
    text = page.page(planted, plant)
    assert_harmless(text)
    assert clean(plant) in Reader(text).texts
    ElementTree.fromstring(document.junit(planted))


# --- what the page says ----------------------------------------------------------------------------------------------

UNUSED = host_checks.check("port:mlx5_1/1", "port mlx5_1/1", "unused", "no rail needs it", "state DOWN")


@pytest.mark.parametrize(("nodes", "levels", "level"), [
    ([], [], "open"),
    ([made.node("a", "h100-8x-cx7-ib")], ["ok"], "ok"),
    ([{"host": "a", "facts": None, "checks": []}], ["open"], "open"),
    ([{"host": "a", "facts": {}, "checks": [UNUSED]}], ["open"], "open"),
    ([made.node("a", "vfs"), made.node("b", "vfs", reboot=["a reason"])], ["open", "ok"], "open"),
    ([made.node("a", "vfs"), made.node("b", None)], ["bad", "ok"], "bad"),
    (everything()["nodes"], ["bad", "bad", "bad", "ok"], "bad"),
])  # fmt: skip
def test_nothing_is_well_that_was_not_verified_and_the_worst_comes_first(nodes, levels, level):
    judged = judge.nodes(made.results(nodes))
    assert [node["level"] for node in judged] == levels
    assert judge.headline(judged)[0] == level


def test_failures_with_one_fix_are_one_entry_with_its_next_step_and_roots_come_first():
    results, text = of_kind("fleet")
    entries = judge.failures(judge.nodes(results))
    assert [f"{entry['failure']} {len(entry['hosts'])}" for entry in entries] == ["module-absent 1", "None 3", "None 1"]
    follows = [["resource rdma/hca"], ["pod gpufabric-verification/probe"]]
    assert [row["objects"] for row in entries[0]["follows"]] == follows
    assert {entry["next_step"] for entry in entries} <= set(Reader(text).texts)


def test_a_consequence_whose_root_is_not_there_is_a_failure_of_its_own():
    card = made.blocked_card("a")
    card["checks"] = [item for item in card["checks"] if not item.get("root")]
    entries = judge.failures(judge.nodes(made.results([card])))
    assert [entry["failure"] for entry in entries] == ["nothing-allocatable", "pod-pending"]


def test_what_is_the_same_of_several_objects_is_said_once():
    def rails(host):
        rails = [
            host_checks.check(f"verbs:{rail}", f"rail {rail}", "not_verified", "verbs", "soft", "none")
            for rail in range(8)
        ]
        return {"host": host, "facts": None, "checks": rails}

    document = made.results([rails("a"), rails("b")])
    (entry,) = judge.failures(judge.nodes(document), "not_verified")
    names = [f"rail {rail}" for rail in range(8)]
    assert [(row["objects"], [node["host"] for node in row["hosts"]]) for row in entry["rows"]] == [(names, ["a", "b"])]
    assert Reader(page.page(document)).texts.count("soft") == 3  # in the card, and at each node


def test_a_slow_port_does_not_accuse_each_of_its_peers():
    def pair(one, other, rail=0):
        return {"rail": rail, "from": one, "to": other, "verdict": "outlier"}

    blamed = judge.suspects([pair("a", "x"), pair("x", "b"), pair("c", "x"), pair("d", "e", 1)])
    assert {host: len(tests) for host, tests in blamed.items()} == {"x": 3, "d": 1, "e": 1}


@pytest.mark.parametrize(
    ("measured", "expected", "level"),
    [(95, 100, "h5"), (94.9, 100, "h4"), (60, 100, "h2"), (3, 100, "h0"), (None, 100, "hx"), (96, None, "hx")],
)
def test_heat_is_the_share_of_the_expected_value(measured, expected, level):
    assert heat.heat({"gbit_per_s": measured, "expected_gbit_per_s": expected}) == level


def test_each_measurement_has_a_cell_and_outliers_are_marked_by_more_than_colour():
    results, text = of_kind("fleet")
    tests = results["matrix"]["tests"]
    seen = heat.section(results["matrix"], {})
    cells = [cell for shown in seen["maps"] for _pair, cells in shown["rows"] for cell in cells if cell is not None]
    assert len(cells) == len(tests)
    outliers = sum(test["verdict"] == "outlier" for test in tests)
    assert len(seen["outliers"]) == text.count('<span class="vh">outlier</span>') == outliers == 4
    assert judge.bandwidth(None)[0] == judge.bandwidth({"tests": []})[0] == "open"


@pytest.mark.parametrize("fixture", ["h100-8x-cx7-ib", "a100-8x-cx6", "mlx4-two-ports", "vfs", "sfs", "bond"])
def test_the_map_has_every_gpu_and_every_port_of_a_physical_function(fixture):
    facts = made.facts(fixture)
    shown = list(drawn([item for figure in maps.maps(facts) for item in figure["tree"]]))
    physical = [hca for hca in facts["hcas"] if hca["function"] not in ("vf", "sf")]
    names = [f"GPU {gpu['index']}" for gpu in facts["gpus"]] + [hca["name"] for hca in physical]
    assert sorted(leaf["name"] for leaf in shown) == sorted(names)
    lines = [line for leaf in shown for line in leaf["lines"] if leaf["kind"] == "nic"]
    assert len(lines) == sum(len(hca["ports"]) for hca in physical)
    ends = [(line["title"], line["distance"]) for leaf in shown for line in leaf["lines"] if leaf["kind"] == "gpu"]
    assert sorted(ends) == sorted((f"rail {rail['index']}", rail["distance"]) for rail in facts["rails"] if rail["gpu"])


def test_the_map_says_at_both_ends_which_way_the_traffic_of_a_pair_goes():
    facts = made.facts("h100-8x-cx7-ib")
    for path, verdict in zip(
        facts["pcie"]["paths"], ("direct", "root-complex", "translated", "direct-translated-only")
    ):
        path["verdict"] = verdict
    lines = [line for figure in maps.maps(facts) for leaf in drawn(figure["tree"]) for line in leaf["lines"]]
    ways = {index: {line["way"] for line in lines if line["title"] == f"rail {index}"} for index in range(8)}
    told = ("direct", "through the root complex", "translated by the IOMMU", "direct if translated by ATS")
    assert list(ways.values()) == [{way} for way in (*told, *[None] * 4)]


def drawn(items):
    for item in items:
        yield from drawn(item["below"]) if "below" in item else [item]


def test_the_tree_of_the_map_is_that_of_pci():
    (bridge,) = maps.maps(made.facts("a100-8x-cx6"))[1]["tree"]
    assert bridge["label"].startswith("pci0000:")
    assert [leaf["name"] for leaf in drawn([bridge])] == ["GPU 0", "GPU 1", "mlx5_0", "mlx5_1"]


PARTS = ("node", "hcas", "gpus", "rails", "not_rails", "cards_without_rdma", "driver", "gpudirect", "subsystem", "path")


@pytest.mark.parametrize("missing", PARTS)
def test_a_part_of_the_facts_may_be_absent(missing):
    nodes = [made.node("a", "h100-8x-cx7-ib"), made.node("b", "card-without-mlx5-ib")]
    for node in nodes:
        facts = node["facts"]
        facts.pop(missing, None)
        for function in [*facts.get("gpus", []), *(hca["pci"] for hca in facts.get("hcas", []))]:
            function.pop(missing, None)
    Reader(page.page(made.results(nodes)))


@pytest.mark.parametrize("odd", [{"gpus": 5}, {"pcie": "x"}, {"driver": [1]}], ids=str)
def test_odd_facts_of_a_node_take_only_its_own_off_the_page(odd):
    results = made.results([made.node(host, "h100-8x-cx7-ib") for host in "ab"])
    results["nodes"][1]["facts"].update(odd)
    Reader(page.page(results))
    assert [page._readable(node, results)["facts"] is None for node in results["nodes"]] == [False, True]


def test_junit_never_passes_what_was_not_verified():
    results = made.results([*of_kind("fleet")[0]["nodes"], {"host": "empty", "facts": None, "checks": []}])
    root = ElementTree.fromstring(document.junit(results))
    counted = judge.tally([item for node in results["nodes"] for item in node["checks"]])
    assert len(root.findall(".//testcase")) == sum(counted.values()) + 1
    assert len(root.findall(".//failure")) == counted["failed"]
    assert len(root.findall(".//skipped")) == counted["not_verified"] + counted["unused"] + 1
