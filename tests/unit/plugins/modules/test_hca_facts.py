# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import SUBSETS, gather
from ansible_collections.gpufabric.rdma.plugins.modules import hca_facts

OPTIONS_TEXT = yaml.safe_load(hca_facts.DOCUMENTATION)
RETURNED = yaml.safe_load(hca_facts.RETURN)


@pytest.fixture
def run(capsys, tmp_path):
    """Runs the module as Ansible does and returns what it prints."""

    def call(**options):
        with patch_module_args({"root": str(tmp_path), **options}), pytest.raises(SystemExit) as end:
            hca_facts.main()
        return {**json.loads(capsys.readouterr().out), "rc": end.value.code}

    return call


@pytest.fixture(autouse=True)
def hca(tmp_path):
    device = tmp_path / "sys/class/infiniband/rxe0"
    (device / "ports/1").mkdir(parents=True)
    for name, value in (("node_type", "1: CA"), ("node_guid", "1"), ("parent", "eth0"), ("ports/1/state", "4: ACTIVE")):
        (device / name).write_text(value)
    (tmp_path / ".seams.json").write_text('{"addresses": {}}')


def test_the_facts_are_those_of_the_library(run, tmp_path):
    found = run(software_hcas=True)
    facts = gather(Tree(str(tmp_path)), software_hcas=True)
    facts["gpudirect"]["evidence"] = None  # without a GPU there is nothing for the doctor to judge
    assert found["ansible_facts"] == {"rdma": facts}
    assert (found["rc"], found["changed"], found["forks"]) == (0, False, 0)
    assert [rail["hca"] for rail in found["ansible_facts"]["rdma"]["rails"]] == ["rxe0"]


def test_check_mode_returns_the_same(run):
    assert run(_ansible_check_mode=True)["ansible_facts"] == run()["ansible_facts"]


def test_a_subset_and_a_named_rail(run):
    found = run(gather_subset=["hcas", "rails", "!gids"], rails=[{"hca": "rxe0"}])["ansible_facts"]["rdma"]
    assert "driver" not in found
    assert [(rail["hca"], rail["reason"]) for rail in found["rails"]] == [("rxe0", "named")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gather_subset": ["hca"]}, "value of gather_subset must be one or more of"),
        ({"rails": [{}]}, "one of the following is required: hca, pci, netdev, mac found in rails"),
        ({"rails": [{"hca": "a", "pci": "b"}]}, "parameters are mutually exclusive: hca|pci|netdev|mac found in rails"),
        ({"root": "/no/such/tree"}, "root /no/such/tree: wanted the root directory of a node, seen none; use / for"),
    ],
)
def test_bad_options_are_refused(run, options, message):
    found = run(**options)
    assert found["failed"]
    assert message in found["msg"]


def test_every_subset_is_a_documented_choice():
    assert OPTIONS_TEXT["options"]["gather_subset"]["choices"] == hca_facts.CHOICES
    assert set(SUBSETS) < set(hca_facts.CHOICES)


def documented(node: dict) -> dict:
    return node.get("contains", {})


def test_every_fact_is_documented_and_every_documented_fact_exists(tmp_path):
    """Compares RETURN with a gathered model, down to the lists of dictionaries that RETURN spells out."""
    card = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
    for path, values in (
        (card, {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021"}),
        (
            tmp_path / "sys/devices/pci0000:00/0000:00:02.0",
            {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"},
        ),
        (
            tmp_path / "sys/devices/pci0000:00/0000:00:03.0",
            {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021"},
        ),
        (card / "infiniband/mlx5_0", {"node_type": "1: CA"}),
        (card / "infiniband/mlx5_0/ports/1", {"state": "4: ACTIVE"}),
        (card / "net/eth1", {"mtu": "1500"}),
    ):
        path.mkdir(parents=True)
        for name, value in values.items():
            (path / name).write_text(value)
    for number in (1, 2, 3):
        link = tmp_path / f"sys/bus/pci/devices/0000:00:0{number}.0"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/0000:00:0{number}.0")
    (card / "infiniband/mlx5_0/device").symlink_to("../..")
    (tmp_path / "sys/class/infiniband/mlx5_0").symlink_to("../../devices/pci0000:00/0000:00:01.0/infiniband/mlx5_0")
    (tmp_path / "sys/class/net").mkdir()
    (tmp_path / "sys/class/net/eth1").symlink_to("../../devices/pci0000:00/0000:00:01.0/net/eth1")

    def compare(fact, node, where):
        described = documented(node)
        if not described:
            return
        sample = fact[0] if isinstance(fact, list) else fact
        assert set(sample) == set(described), where
        for name, below in described.items():
            compare(sample[name], below, f"{where}.{name}")

    rdma = documented(RETURNED["ansible_facts"])["rdma"]
    compare(gather(Tree(str(tmp_path))), rdma, "rdma")
