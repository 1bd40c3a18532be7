"""The page: nothing from a node becomes markup, failures come first, and what is unknown is shown as unknown."""

from __future__ import annotations

import base64
import functools
import hashlib
import html.parser
import re
from xml.etree import ElementTree

import jinja2
import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge as matrix_judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import (
    document,
    drawing,
    judge,
    junit,
    layout,
    page,
)
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.tests.tools import report_documents as made
from hypothesis import given, settings
from hypothesis import strategies as st

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00\ud800{{ 7*7 }}"
VOID = {"meta", "br", "hr"}


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, texts, and whether every element that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.stack = [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def read(results):
    assert document.findings(results) == []
    return Reader(page.page(results))


@functools.cache
def of_kind(kind):
    """A document of a kind, which no test changes, and its page."""
    results = made.KINDS[kind]()
    return results, page.page(results)


@pytest.fixture(scope="module")
def fleet():
    return of_kind("fleet")[0]


@pytest.mark.parametrize("kind", made.KINDS)
def test_a_page_is_well_formed_and_asks_for_nothing(kind):
    seen = Reader(of_kind(kind)[1])
    for name, attributes in seen.elements:
        assert not {"src", "srcset", "data", "poster", "action", "style"} & set(attributes), name
        assert not [key for key in attributes if key.startswith("on")], name
        if "href" in attributes:
            assert attributes["href"].startswith("#"), "only places on this page are linked"
    assert {"link", "img", "iframe", "object", "embed", "base"} & {name for name, _attributes in seen.elements} == set()
    identities = [attributes["id"] for _name, attributes in seen.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    wanted = {attributes["href"][1:] for _name, attributes in seen.elements if "href" in attributes}
    assert wanted <= set(identities)


def test_the_policy_lets_the_one_style_and_the_one_script_of_the_page_through():
    text = page.page(made.lab())
    policy = Reader(text).named("meta")[1]["content"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        inner = re.findall(f"<{name}>(.*?)</{name}>", text, re.S)
        assert len(inner) == 1
        assert f"{name}-src 'sha256-{base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()}'" in policy


def hostile(value):
    """The same document with a hostile text in place of every free text."""
    fixed = {
        "schema",
        "status",
        "verdict",
        "path",
        "at",
        "state",
        "kind",
        "function",
        "address",
        "distance",
        "gpu",
        "physfn",
    }
    if isinstance(value, dict):
        return {key: inner if key in fixed else hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return value + HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["lab", "rails"])
def test_hostile_texts_stay_texts(kind):
    results = hostile(of_kind(kind)[0])
    assert document.findings(results) == []
    text = page.page(results, HOSTILE)
    seen, plain = Reader(text), Reader(of_kind(kind)[1])
    assert [name for name, _attributes in seen.elements] == [name for name, _attributes in plain.elements]
    assert len(seen.named("script")) == 1
    assert not set("\u202e\x00\ud800") & set(text)
    text.encode()
    ElementTree.fromstring(junit.text(results))


@functools.cache
def everything():
    """A document in which each section has something to show; no test changes it."""
    cable = made.with_port_down(made.node("a", "two-cards-cx6dx"), "mlx5_0")
    nodes = [{**cable, "reboot_reasons": ["the netns mode"]}, made.blocked_card("b"), made.node("c", None)]
    nodes.append(made.node("d", "vfs"))
    slow = {(0, "a"): (0.3, {"reason": "PCIe", "counters": {"out_of_sequence": 7}}), (1, "b"): (None, {})}
    changed = {"role": "limits", "object": "/etc/x", "wanted": "new", "seen": "old"}
    pending = ("reboot_pending", [], ["older driver"])
    drift = made.drift({"a": ("drift", [changed], []), "b": pending, "elsewhere": pending})
    return made.results(nodes, drift, made.matrix(["a", "b", "d"], 2, 100.0, slow))


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


def with_planted(value, kind, plant, path=()):
    if isinstance(value, dict):
        end = plant if (*path, "{}") == kind else ""
        return {key + end: with_planted(inner, kind, plant, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_planted(inner, kind, plant, (*path, "[]")) for inner in value]
    return value + plant if isinstance(value, str) and path == kind else value


# A text, an attribute, a comment, a style or script that ends; a template; an address; and words of this page's own.
PLANTS = [
    HOSTILE,
    '" onmouseover=alert(1) x="',
    "' autofocus onfocus=alert(1) '",
    "--><svg onload=alert(1)>",
    "]]></style><style>*{display:none}</style>",
    "{{ cycler.__init__.__globals__ }}{% include '/etc/passwd' %}{# #}",
    "javascript:alert(1)",
    "&lt;script&gt;&#x27;&amp;",
    "\n   two\n   lines",
]


# What a document may hold in one form only is refused instead.
REFUSED = {
    *(
        ("schema",),
        ("drift", "schema"),
        ("matrix", "schema"),
        ("drift", "verdict"),
        ("drift", "hosts", "[]", "verdict"),
    ),
    *(("matrix", "tests", "[]", "verdict"), ("nodes", "[]", "checks", "[]", "status")),
}
KINDS_OF_LEAVES = sorted(set(leaves(everything())))


def is_harmless(text):
    """Whether a page has the elements, attributes and addresses of this page only, and its one script and style."""
    seen, own = Reader(text), Reader(page.page(everything()))
    assert {name for name, _attributes in seen.elements} <= {name for name, _attributes in own.elements}
    allowed = {key for _name, attributes in own.elements for key in attributes} | {"open"}
    assert {key for _name, attributes in seen.elements for key in attributes} <= allowed
    assert all(attributes.get("href", "#").startswith("#") for _name, attributes in seen.elements)
    assert [len(seen.named(name)) for name in ("script", "style", "body")] == [1, 1, 1]
    return True


@pytest.mark.parametrize("kind", KINDS_OF_LEAVES, ids=".".join)
def test_a_hostile_text_in_any_leaf_is_harmless_or_refused(kind):
    planted = with_planted(everything(), kind, "".join(PLANTS))
    assert planted != everything()
    assert bool(document.findings(planted)) == (kind in REFUSED)
    assert kind in REFUSED or is_harmless(page.page(planted))


@pytest.mark.parametrize("plant", PLANTS)
def test_a_hostile_text_in_all_leaves_is_harmless(plant):
    planted = everything()
    for kind in set(KINDS_OF_LEAVES) - REFUSED:
        planted = with_planted(planted, kind, plant)
    assert is_harmless(page.page(planted, plant))


@given(st.text(max_size=40), st.sampled_from(sorted(set(KINDS_OF_LEAVES) - REFUSED)))
@settings(max_examples=60, deadline=None)
def test_any_text_in_any_leaf_is_harmless(plant, kind):
    assert is_harmless(page.page(with_planted(everything(), kind, plant), plant))


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_shown_as_it_is(plant):
    assert clean(plant) in Reader(page.page(everything(), plant)).texts


# --- the templates ---------------------------------------------------------------------------------------------------

TEMPLATES = sorted(layout.FOLDER.iterdir())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_goes_past_escaping(path):
    text = path.read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup|\|\s*(striptags|xmlattr|urlize|tojson)", text)
    if path.suffix == ".j2":
        # An attribute's value without quotes would end at a blank.
        assert not re.search(r"=\s*\{\{", text)
        assert not re.search(r"<(script|style)>(?!\{\{ (script|style) \}\}<)", text)
        assert text.startswith("{# Copyright")


def test_the_environment_escapes_and_misses_nothing():
    environment = layout._environment()
    shown = environment.from_string('<p title="{{ x }}">\n  {{ x }}{{ y }}\n</p>').render(y=None, x="\n  <\"\x1b'")
    assert shown == '<p title="\n  &lt;&#34;\ufffd&#39;">\n  &lt;&#34;\ufffd&#39;</p>'
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ missing }}").render()


@pytest.mark.parametrize(
    ("kind", "headline", "level"),
    [
        ("lab", "All 2 nodes passed every check", "ok"),
        ("rails", "3 of 8 nodes need attention", "bad"),
        ("fleet", "9 of 64 nodes need attention", "bad"),
    ],
)
def test_the_headline_counts_the_nodes(kind, headline, level):
    assert judge.headline(judge.nodes(of_kind(kind)[0])) == (level, headline)


def test_one_node_is_enough_and_no_node_is_reported_as_none():
    one = made.results([made.node("only", "h100-8x-cx7-ib")])
    assert "The node passed every check" in page.page(one)
    none = page.page(made.results([]))
    assert "No node was checked" in none
    assert "No check was made, so nothing is proven." in none


def test_nodes_without_any_check_or_with_unused_ones_only_are_not_passed():
    unused = host_checks.check("port:mlx5_1/1", "port mlx5_1/1", "unused", "no rail needs it", "state DOWN")
    for checks in ([], [unused]):
        results = made.results([{"host": "a", "facts": None, "checks": checks, "reboot_reasons": []}])
        (node,) = judge.nodes(results)
        assert (node["level"], node["notes"]) == ("open", [("open", "nothing verified")])


def test_what_is_not_part_of_the_report_is_not_shown_as_well():
    text = page.page(made.results([made.node("a", "h100-8x-cx7-ib")]))
    assert "Bandwidth was not measured" in text
    assert "Drift was not compared" in text
    assert judge.bandwidth({"tests": []})[0] == "open"
    unmeasured = made.matrix(["a", "b"], 1, 100.0, {(0, "a"): (None, {}), (0, "b"): (None, {})})
    assert judge.bandwidth(unmeasured)[:2] == ("open", "not verified")


def test_a_rail_that_one_host_alone_has_is_shown_as_the_matrix_writes_it():
    matrix = made.matrix(["a", "b"], 1, 100.0, {})
    end = {"host": "a", "hca": "mlx5_5", "rail": 5, "memory": "host", "reason": "no other node has rail 5"}
    matrix["tests"].append(matrix_judge._alone(end, "host"))
    results = made.results([made.node("a", "two-cards-cx6dx"), made.node("b", None)], None, matrix)
    assert document.findings(results) == []
    text = page.page(results)
    assert "a → no peer" in text
    assert "no other node has rail 5" in text


def test_failures_come_before_the_nodes_and_those_nodes_first(fleet):
    text = of_kind("fleet")[1]
    assert text.index("What to fix</h2>") < text.index("modprobe mlx5_ib") < text.index(">Nodes</h2>")
    levels = [node["level"] for node in judge.nodes(fleet)]
    assert levels == sorted(levels, key=["bad", "open", "ok"].index)
    assert len(levels) == 64


def test_failures_with_one_fix_are_one_entry_and_roots_come_first(fleet):
    entries = judge.failures(judge.nodes(fleet))
    assert [(entry["failure"], len(entry["hosts"])) for entry in entries] == [
        ("module-absent", 1),
        (None, 3),
        (None, 1),
    ]
    assert [row["object"] for row in entries[0]["follows"]] == ["resource rdma/hca", "pod gpufabric-verification/probe"]
    assert [node["host"] for node in entries[1]["hosts"]] == ["gpu-007", "gpu-019", "gpu-041"]


def test_a_consequence_whose_root_is_not_there_is_shown_as_a_failure_of_its_own():
    card = made.blocked_card("a")
    card["checks"] = [item for item in card["checks"] if not item.get("root")]
    entries = judge.failures(judge.nodes(made.results([card])))
    assert [entry["title"] for entry in entries] == ["resource rdma/hca", "pod gpufabric-verification/probe"]


def test_every_failed_check_is_on_the_page_with_its_next_step(fleet):
    texts = " ".join(Reader(of_kind("fleet")[1]).texts)
    for node in fleet["nodes"]:
        for item in node["checks"]:
            if item["status"] == "failed" and not item.get("consequence_of"):
                assert item["next_step"] in texts


def test_64_nodes_start_folded_and_few_start_open(fleet):
    def opened(kind):
        seen = Reader(of_kind(kind)[1])
        return [fold for fold in seen.named("details") if fold.get("class", "").startswith("node") and "open" in fold]

    assert opened("fleet") == []
    assert len(opened("lab")) == 2
    assert len(opened("rails")) == 3


def test_a_slow_port_does_not_accuse_each_of_its_peers():
    def pair(one, other, rail=0):
        return {"rail": rail, "from": one, "to": other, "verdict": "outlier"}

    blamed = judge.suspects([pair("a", "x"), pair("x", "b"), pair("c", "x"), pair("d", "e", 1)])
    assert {host: len(tests) for host, tests in blamed.items()} == {"x": 3, "d": 1, "e": 1}


@pytest.mark.parametrize(
    ("measured", "level"), [(96, "h5"), (95, "h5"), (94.9, "h4"), (60, "h2"), (3, "h0"), (None, "hx")]
)
def test_heat_is_the_share_of_the_expected_value(measured, level):
    from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import heat

    assert heat.heat({"gbit_per_s": measured, "expected_gbit_per_s": 100.0}) == level
    assert heat.heat({"gbit_per_s": measured, "expected_gbit_per_s": None}) == "hx"


def test_outliers_are_marked_by_more_than_colour(fleet):
    text = of_kind("fleet")[1]
    assert text.count('class="h1 out"') + text.count('class="h2 out"') == 4
    assert text.count('<span class="vh">outlier</span>') == 4
    assert "PCIe link of mlx5_2 runs at x8 of x16" in text
    assert "+1834" in text


@pytest.mark.parametrize(
    "fixture", ["h100-8x-cx7-ib", "a100-8x-cx6", "gh200-cx7-roce", "mlx4-two-ports", "vfs", "sfs", "bond"]
)
def test_the_map_shows_every_gpu_and_every_port_of_a_physical_function(fixture):
    facts = made.facts(fixture)
    text = page.page(made.results([{"host": "n", "facts": facts, "checks": []}]))
    described = " ".join(re.findall(r"<desc.*?</desc>", text))
    for gpu in facts["gpus"]:
        assert f"GPU {gpu['index']}" in described
    for hca in facts["hcas"]:
        if hca["function"] not in ("vf", "sf"):
            assert f"{hca['name']} (" in described
    assert text.count('class="rail ') == sum(bool(rail["gpu"]) for rail in facts["rails"])
    for rail in facts["rails"]:
        if rail["distance"]:
            assert f"rail {rail['index']}, {rail['distance']} to GPU" in described


def test_the_tree_of_the_map_is_that_of_pci():
    facts = made.facts("a100-8x-cx6")
    leaves = [leaf for leaf in drawing._leaves(facts, []) if leaf["group"] == (0, 1)]
    rows = [(depth, row if isinstance(row, str) else row["name"]) for depth, row in drawing._flat(leaves, (0, 1))]
    names = [name for _depth, name in rows]
    assert [name for name in names if "GPU" in name or "mlx5" in name] == ["GPU 0", "GPU 1", "mlx5_0", "mlx5_1"]
    assert rows[0] == (0, next(name for name in names if name.startswith("pci0000:")))


@pytest.mark.parametrize(
    "missing",
    ["node", "hcas", "gpus", "rails", "rails_excluded", "cards_without_rdma", "driver", "gpudirect", "subsystem"],
)
def test_a_part_of_the_facts_may_be_absent(missing):
    nodes = [made.node("a", "h100-8x-cx7-ib"), made.node("b", "card-without-mlx5-ib")]
    for node in nodes:
        del node["facts"][missing]
    read(made.results(nodes))


def test_facts_of_an_older_version_without_paths_still_make_a_map():
    node = made.node("a", "h100-8x-cx7-ib")
    for function in [*node["facts"]["gpus"], *(hca["pci"] for hca in node["facts"]["hcas"])]:
        del function["path"]
    assert "place in the PCI tree unknown" in page.page(made.results([node]))


def test_empty_facts_are_not_a_healthy_node():
    text = page.page(made.results([{"host": "a", "facts": {}, "checks": [], "reboot_reasons": []}]))
    assert "No HCA port was found on this node." in text


def test_the_same_document_gives_the_same_bytes():
    assert page.page(made.rails()) == page.page(made.rails())


def test_names_are_in_the_order_people_count_in():
    hosts = ["node-10", "node-9", "node-1", "a", "10", "9"]
    assert sorted(hosts, key=judge.natural) == ["9", "10", "a", "node-1", "node-9", "node-10"]


def test_junit_counts_and_never_passes_what_was_not_verified():
    root = ElementTree.fromstring(junit.text(of_kind("fleet")[0]))
    checks = [item for node in of_kind("fleet")[0]["nodes"] for item in node["checks"]]
    counted = judge.tally(checks)
    assert int(root.get("tests")) == len(checks) == len(root.findall(".//testcase"))
    assert int(root.get("failures")) == counted["failed"] == len(root.findall(".//failure"))
    skipped = [int(suite.get("skipped")) for suite in root]
    assert sum(skipped) == counted["not_verified"] + counted["unused"] == len(root.findall(".//skipped"))
    empty = ElementTree.fromstring(junit.text(made.results([{"host": "a", "facts": None, "checks": []}])))
    assert len(empty.findall(".//skipped")) == 1
