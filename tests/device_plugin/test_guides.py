"""Configs of the Go plugin, as printed in published guides, on nodes that fit them."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest
from harness import HERE, Node, Running, document, entry
from kubelet_double import Kubelet
from rdma_device_plugin.config import ConfigError, ExtraSelectors, Health, Selectors, load
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.hca.facts import gather

_spec = importlib.util.spec_from_file_location(
    "role_config", HERE.parents[1] / "plugins/module_utils/_device_plugin/config.py"
)
role_config = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(role_config)

CONFIGS = json.loads((HERE / "configs.json").read_text())
GH200 = ("gh200-cx7-roce", (("enp1s0f0np0", "ens8f0np0"), ("enp1s0f1np1", "ens8f1np1")))
RAILS = (24, 58, 75, 92, 135, 170, 186, 202)
H100 = ("h100-8x-cx7-ib", tuple((f"ibp{bus}s0", f"ens{8 + number}f0np0") for number, bus in enumerate(RAILS)))
IB = ("h100-8x-cx7-ib", (("ibp24s0", "ibs1f0"), ("ibp58s0", "ibs1f1")))
BOTH = ["uverbs0", "uverbs1", "umad0", "umad1", "rdma_cm"]

# Each with what its guide prints: resource, count, files of one container.
PRINTED = {
    "shared-devices-a-b": (
        GH200,
        {
            "rdma/hca_shared_devices_a": (63, ["uverbs0", "umad0", "rdma_cm"]),
            "rdma/hca_shared_devices_b": (63, ["uverbs1", "umad1", "rdma_cm"]),
        },
    ),
    "option-a-interface": (GH200, {"rdma/hca_shared_devices_a": (63, ["uverbs0", "umad0", "rdma_cm"])}),
    "option-b-vendor": (GH200, {"rdma/hca_shared_devices_all": (63, BOTH)}),
    "option-c-driver": (GH200, {"rdma/hca_shared_devices_mlx5": (63, BOTH)}),
    "option-d-model": (GH200, {"rdma/hca_shared_devices_cx7": (63, BOTH)}),
    "operator": (GH200, {"rdma/hca_shared_devices_a": (63, BOTH)}),
    "one-pool-of-100": (GH200, {"rdma/rdma_shared_device": (100, BOTH)}),
    "shared-ib": (
        IB,
        {"rdma/shared_ib": (63, [f"{kind}{number}" for number in (0, 1) for kind in ("issm", "umad", "uverbs")])},
    ),
    "eight-rails": (
        H100,
        {
            f"rdma/hca_shared_devices_{number}": (63, [f"{kind}{number}" for kind in ("issm", "umad", "uverbs")])
            for number in range(8)
        },
    ),
}
INTERVALS = {"shared-devices-a-b": 300}


def test_every_config_has_its_printed_counts():
    assert set(CONFIGS) == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_published_config_gives_what_its_guide_prints(base, name):
    (fixture, rename), printed = PRINTED[name]
    data = json.dumps(CONFIGS[name]).encode()
    config = load(data, strict=True)
    assert config.warnings == ()
    assert config.interval == INTERVALS.get(name, 60)
    node = Node(base / "node", fixture, rename)
    with Kubelet(base, watches=False) as kubelet, Running(base, data, node.root):
        for resource, (count, files) in printed.items():
            # One port of the GH200 has no cable, so its second pool has no healthy device: that is news, not an error.
            healthy = 0 if resource.endswith("_b") else count
            assert kubelet.wait(lambda r=resource, c=count: kubelet.capacity(r) == c)
            kubelet.wait_allocatable(resource, healthy)
            specs = kubelet.allocate(resource, ["0"]).container_responses[0].devices
            given = [spec.host_path.rpartition("/")[2] for spec in specs]
            assert set(files) <= set(given)
            assert len(given) == len(set(given))
            assert len(given) <= len(files) + 1


def test_rendered_rails_have_63_units_each(base):
    """What role device_plugin makes of a node's facts: never upstream's silent 0"""
    node = Node(base / "node", "h100-8x-cx7-ib")
    rails = gather(Tree(str(node.root)))["rails"]
    rendered = role_config.document(role_config.entries("rails", rails), 60).encode()
    with Kubelet(base) as kubelet, Running(base, rendered, node.root):
        for number in range(8):
            kubelet.wait_allocatable(f"rdma/hca_shared_devices_{number}", 63)
            specs = kubelet.allocate(f"rdma/hca_shared_devices_{number}", ["0"]).container_responses[0].devices
            assert f"/dev/infiniband/uverbs{number}" in [spec.host_path for spec in specs]


def test_a_port_without_a_cable_does_not_make_its_pool_unhealthy(base):
    """Guide 004: port 2 has no cable; all 100 stay allocatable, with the files of both ports"""
    node = Node(base / "node", "gh200-cx7-roce")
    data = json.dumps(CONFIGS["one-pool-of-100"]).encode()
    with Kubelet(base) as kubelet, Running(base, data, node.root):
        kubelet.wait_allocatable("rdma/rdma_shared_device", 100)
        specs = kubelet.allocate("rdma/rdma_shared_device", ["0"]).container_responses[0].devices
        assert {spec.host_path.rpartition("/")[2] for spec in specs} == set(BOTH)


def _schema():
    import jsonschema
    import rdma_device_plugin

    schema = json.loads((pathlib.Path(rdma_device_plugin.__file__).parent / "config.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    return schema, validator


def test_the_schema_takes_what_the_plugin_takes():
    _schema_text, validator = _schema()
    for config in CONFIGS.values():
        validator.validate(config)


def test_the_schema_knows_every_key_and_no_other():
    schema, validator = _schema()
    keys = schema["$defs"]["entry"]["properties"]
    for key in keys:
        if key not in ("resourceName", "selectors"):
            load(document({**entry(), key: None}), strict=True)
        wrong = {**entry(), key: {"x": {}}}
        assert not validator.is_valid({"configList": [wrong]}), f"{key} takes anything"
        with pytest.raises(ConfigError):
            load(document(wrong), strict=True)
    for name, room in (("selectors", Selectors), ("extraSelectors", ExtraSelectors), ("health", Health)):
        described = keys[name] if "properties" in keys[name] else schema["$defs"][keys[name]["$ref"].rpartition("/")[2]]
        assert set(described["properties"]) == set(room._fields), name
    with pytest.raises(ConfigError, match="unknown key"):
        load(document(entry(speed=1)), strict=True)
    assert not validator.is_valid(json.loads(document(entry(speed=1))))
    assert not validator.is_valid(json.loads(document(entry(count=-1))))
    assert not validator.is_valid({"configList": []})
