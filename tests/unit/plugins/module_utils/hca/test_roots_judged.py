# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCIe roots beside those of Kubernetes' own helper (tests/dra_judge/pcie_roots.py) on the same trees."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import roots
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.tree import Tree
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixture_tree

CHECKOUT = pathlib.Path(__file__).resolve().parents[5]
_spec = importlib.util.spec_from_file_location("pcie_roots", CHECKOUT / "tests/dra_judge/pcie_roots.py")
pcie_roots = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pcie_roots)

ROOTS = json.loads(pcie_roots.TABLE.read_text())["roots"]


@pytest.mark.parametrize("name", ROOTS)
def test_the_roots_are_those_of_the_helper(tmp_path, name):
    fixture_tree.lay_out(pcie_roots.fixtures()[name], tmp_path)
    tree = Tree(str(tmp_path))
    assert {address: roots.pcie_root(tree, address) for address in ROOTS[name]} == ROOTS[name]


def test_the_table_is_about_every_tree():
    assert set(ROOTS) == set(pcie_roots.fixtures())
    assert sum(root is None for root in ROOTS["odd"].values()) == 5
