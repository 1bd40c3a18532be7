"""Whatever strings variables and facts hold: what roles render keeps its structure."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.tests.tools import rendering

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, rendering.__file__],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": ":".join(filter(None, sys.path)),
            "ANSIBLE_HOME": str(tmp_path_factory.mktemp("home")),
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_value_stays_a_value_in_every_text_that_roles_render(told):
    assert told["faults"] == []


def test_what_is_refused_is_refused_where_systemd_has_no_quotes_for_it(told):
    """Objects take every string; a unit and tmpfiles.d take words only."""
    refusing = {name.split()[1] for name, text in told["texts"].items() if text["refused"]}
    assert refusing == {
        "rdma-device-plugin.service.j2",
        "guard.service.j2",
        "__multus_files",  # tmpfiles.d, and the unit above
        "__node_ready_files",  # a memlock limit that is no number of bytes
    }


def test_every_text_that_a_task_writes_is_one_of_those():
    """`content` of a task takes a text from a module that builds it from data, or a token."""
    found = set()
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")]:
        found |= set(re.findall(r"^ *(?:- )?content: (.*)$", path.read_text(), re.MULTILINE))
    # What a filter writes as JSON has its quotes.
    found = {text for text in found if not re.search(r"\| to_(nice_)?json }}(\\n)?\"$", text)}
    assert found == {
        "\"{{ __device_plugin_tokens['tokens']['rdma-device-plugin-' ~ __device_plugin_dra['name']] }}\"",
        "\"{{ __node_ready_tokens['tokens']['node-ready-' ~ __node_ready_name] }}\"",
        "\"{{ item['text'] }}\"",
        '""',
    }


@pytest.mark.parametrize("text", [*rendering.HOSTILE, "\U0001f600", "a\U0010fffdb"], ids=ascii)
def test_k3s_reads_the_strings_that_it_was_given(text):
    options = {"node-name": text, "node-label": [text, "x"]}
    assert yaml.safe_load(k3s.yaml(options)) == options
    mirrors = {"configs": {text[:99]: {"auth": {"password": text}}}}
    assert yaml.safe_load(k3s.registries(mirrors)) == mirrors


# --- refused before anything changes ----------------------------------------------------------------------------------

UNPRINTABLE = ["a\x00", "a\x1b[2J", "a\x7f", "a\x85", "a\x9b31m", "a\u2028b", "a\u202eb", "a\u200bb", "\ufeffa"]
LINES = ["a\nb", "a\n[Service]\nExecStartPre=/bin/evil", "a\tb"]


def findings_of(name, value):
    known = rendering.options()
    typed, findings = host.validate({name: known[name]}, {name: value})
    return findings + host.values(typed, known)


TEXTS = sorted(name for name, option in rendering.options().items() if rendering.plantable(option))


@pytest.mark.parametrize("name", TEXTS)
def test_no_option_takes_what_cannot_be_printed(name):
    option = rendering.options()[name]
    several = option["type"] == "dict" or "options" in option
    for text in UNPRINTABLE + ([] if several else LINES):
        value = [text] if option["type"] == "list" else {"x": text} if option["type"] == "dict" else text
        if option.get("options"):
            value = [{next(iter(option["options"])): text}]
        found = findings_of(name, value)
        assert [finding.object for finding in found] != [], ascii(text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "k3s_node_name",
            ["node1", "gpu-1.example.com", "1"],
            ['bad1 #","good1', "Node1", "-a", "a..b", "a" * 254],
        ),
        ("verification_namespace", ["gpufabric-verification"], ["a.b", "A", "a b", "-a", "x" * 64, "kube-system\n"]),
        ("multus_conf_directory", ["/etc/cni/net.d"], ["etc", "/a b", "/a%n", "/a$b", '/a"', "/a\nb", "/a:b"]),
        ("multus_image", ["ghcr.io/a/b:v1", "localhost:5000/x@sha256:0a"], ["a b", "a: b", "-a", 'a"', "{a}"]),
        ("device_plugin_metrics_address", [":9808", "[::1]:9808", ""], [":1 -x", ":1\n", "$HOME:1"]),
    ],
)
def test_names_paths_and_images_are_what_they_say(name, good, bad):
    assert [value for value in good if findings_of(name, value)] == []
    assert [value for value in bad if not findings_of(name, value)] == []
