"""An option given as text, as -e and INI inventories give it, does what the typed value does."""

from __future__ import annotations

import collections
import json
import subprocess
import sys

import pytest

PROGRAM = (
    "from ansible.plugins.loader import init_plugin_loader; init_plugin_loader([]); "
    "from ansible_collections.gpufabric.rdma.tests.tools import rendered_options; rendered_options.main()"
)


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_option_in_every_spelling_renders_as_its_typed_value_does(found):
    assert found["differences"] == []


def test_an_option_is_read_by_its_plain_name_only_where_its_default_is_in_scope(found):
    assert found["out_of_scope"] == []


def test_the_property_looks_at_all_options_and_renders_what_reads_them(found):
    assert found["unseen"] == {}, "put what the expression lacks into _REGISTERED of tests/tools/rendered_options.py"
    kinds = collections.Counter(found["options"].values())
    assert (kinds["bool"] >= 39, kinds["int"] >= 32) == (True, True), kinds
    assert (found["cases"] >= 900, found["rendered"] >= 1700) == (True, True), found
