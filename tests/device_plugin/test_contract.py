"""Rows A3 to A20 of the guide end to end: a config and a node in, what a kubelet gets to see over its sockets out."""

import json
import pathlib
import signal

import pytest
from harness import Node, Process, Running, document, entry, fixture_tree
from kubelet_double import Kubelet
from rdma_device_plugin.config import ConfigError, ExtraSelectors, Health, Selectors, load

NAME = "rdma/test_server"


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        pytest.param(document(entry()), ("-config-file", "/none"), "fail to read config file /none", id="A5"),
        pytest.param(document(entry(count=-100)), (), "error: Invalid value for rdmaHcaMax < 0: -100", id="A13"),
    ],
)
def test_a_config_that_upstream_refuses(base, node, config, options, text):
    """The process ends with code 1 and one line; nothing was registered."""
    with Kubelet(base) as kubelet, Process(base, config, node.root, *options) as plugin:
        assert plugin.process.wait(20) == 1
        assert kubelet.log == []
    (line,) = plugin.log.read_text().splitlines()
    assert text in line


def test_a_node_without_pci(base):
    """A20: no device, no error"""
    (base / "nothing").mkdir()
    with Kubelet(base) as kubelet, Running(base, document(entry()), base / "nothing") as plugin:
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.devices(NAME) == {}
        assert plugin.plugin.scan_failures == 0


def test_another_kubelet_root(base, node):
    """Pitfall 1, #96: plugins_registry moves with --root-dir, the directory of kubelet.sock does not"""
    kubelet = Kubelet(base)
    kubelet.registry = str(base / "data/kubelet/plugins_registry")
    (base / "data/kubelet/plugins_registry").mkdir(parents=True)
    root = ("-kubelet-root", f"{base}/data/kubelet")
    with kubelet, Process(base, document(entry()), node.root, *root) as plugin:
        kubelet.wait_allocatable(NAME, 100)
        assert (base / "data/kubelet/plugins_registry/test_server.sock").exists()
        assert kubelet.count("register") == 0
        assert plugin.end(signal.SIGTERM)[0] == 0


def test_the_environment_names_the_hcas_of_a_container(base):
    """Pitfall 10: upstream gives all HCAs to each container and no word"""
    node = Node(base / "node", "h100-8x-cx7-ib")
    config = document(
        entry(count=16, allocation="spread", env="nccl"), entry("numa", 2, allocation="numa", topology="auto")
    )
    with Kubelet(base) as kubelet, Running(base, config, node.root):
        kubelet.wait_allocatable(NAME, 16)
        kubelet.wait_allocatable("rdma/numa", 2)
        answer = kubelet.allocate(NAME, ["2", "5"]).container_responses[0]
        wanted = {"RDMA_TEST_SERVER_DEVICES": "mlx5_2,mlx5_5", "NCCL_IB_HCA": "=mlx5_2:1,mlx5_5:1"}
        assert dict(answer.envs) == wanted
        units = kubelet.clients["rdma/numa"].devices
        assert [[one.ID for one in units[unit].topology.nodes] for unit in ("0", "1")] == [[0], [1]]
        assert not kubelet.allocate("rdma/numa", ["1"]).container_responses[0].envs


# --- configs of the Go plugin, as printed in published guides, on nodes that fit them ---------------------------------


CONFIGS = json.loads((fixture_tree.texts("guides") / "configs.txt").read_text())
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


@pytest.mark.parametrize("name", PRINTED)
def test_a_published_config_gives_what_its_guide_prints(base, name):
    (fixture, rename), printed = PRINTED[name]
    data = json.dumps(CONFIGS[name]).encode()
    config = load(data, strict=True)
    assert config.warnings == ()
    assert config.interval == (300 if name == "shared-devices-a-b" else 60)
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


def _schema():
    import jsonschema
    import rdma_device_plugin

    schema = json.loads((pathlib.Path(rdma_device_plugin.__file__).parent / "config.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    return schema, validator


def test_the_schema_knows_every_key_and_no_other():
    schema, validator = _schema()
    for config in CONFIGS.values():
        validator.validate(config)
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
