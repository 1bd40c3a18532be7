"""config.json: upstream's cases, Go's JSON rules, what the kubelet would refuse, and our extensions.

The last part compares a config and a node with a kubelet's view over its sockets.
"""

import json
import pathlib
import signal
import string

import pytest
from harness import Node, Process, Running, document, entry, fixture_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelet_double import Kubelet, extended_resource_name
from rdma_device_plugin import allocation, pools
from rdma_device_plugin.allocation import Group, Offer
from rdma_device_plugin.config import MAX_DEVICES, Config, ConfigError, ExtraSelectors, Health, Selectors, load
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.server import device_list


def problems(data, strict=False):
    with pytest.raises(ConfigError) as refused:
        load(data if isinstance(data, bytes) else data.encode(), strict)
    return refused.value.problems


def pool(**more):
    return load(document(entry(**more))).pools[0]


def raw(text):
    """A document with one entry that is valid except for the additions."""
    return load(b'{"configList":[{"resourceName":"a","selectors":{"vendors":["15b3"]}%s}]}' % text.encode()).pools[0]


# Upstream's table.


def test_devices_selectors_and_counts():
    config = load(document(entry("test_config", devices=["ib0"])))
    assert config.pools[0].selectors.ifNames == ("ib0",)
    assert '"devices" field is deprecated' in config.warnings[0]
    assert pool(devices=[], selectors={"vendors": ["15b3"]}).selectors.vendors == ("15b3",)
    assert (pool(count=0).count, raw("").count, raw(', "rdmaHcaMax": null').count) == (0, 0, 0)


def test_all_problems_are_reported_in_upstreams_order():
    found = problems(document(entry("a b", -1, selectors={}), entry("c", resourcePrefix="A_b"), interval=-1))
    kinds = ["periodicUpdateInterval", "invalid characters", "rdmaHcaMax < 0", "neither", "prefix"]
    assert [kind for kind, problem in zip(kinds, found) if kind in problem] == kinds
    assert len(found) == len(kinds)


# Go's JSON.


def test_keys_in_any_case():
    text = (
        b'{"CONFIGLIST":[{"ResourceName":"a","RDMAHCAMAX":3,"Selectors":{"IFNAMES":["x"]}}],"PERIODICUPDATEINTERVAL":7}'
    )
    config = load(text)
    assert (config.interval, config.pools[0].count, config.pools[0].selectors.ifNames) == (7, 3, ("x",))


def test_unknown_keys_are_ignored_and_strict_refuses_them():
    text = '{"configList":[{"resourceName":"a","rdmaHcaMax":1,"selectors":{"drivers":["a"],"speed":[]},"x":{}}],"y":1}'
    config = load(text.encode())
    assert [warning.split(":")[0] for warning in config.warnings] == [
        "unknown key configList[0].selectors.speed",
        "unknown key configList[0].x",
        "unknown key y",
    ]
    assert len(problems(text, strict=True)) == 3


def test_the_last_duplicate_wins_and_objects_merge():
    assert raw(', "rdmaHcaMax": 1, "rdmahcamax": 2').count == 2
    merged = raw(', "selectors":{"drivers":["mlx5_core"]}').selectors
    assert (merged.vendors, merged.drivers) == (("15b3",), ("mlx5_core",))
    assert raw(', "selectors":{"vendors":["8086"]}').selectors.vendors == ("8086",)
    config = load(
        b'{"periodicUpdateInterval":5,"periodicUpdateInterval":null,"configList":[%s]}' % json.dumps(entry()).encode()
    )
    assert config.interval == 60


def test_null_is_not_set():
    text = ', "rdmaHcaMax": 5, "rdmaHcaMax": null, "resourcePrefix": null, "devices": null, "health": null, "env": null'
    made = raw(text)
    assert (made.count, made.prefix, made.health, made.env) == (5, "rdma", Health(), ())


def test_half_a_surrogate_pair_can_be_printed():
    assert raw(r', "devices": [], "selectors":{"ifNames":["\ud83d", "\ud83d\ude00"]}').selectors.ifNames == (
        "\ufffd",
        "\U0001f600",
    )


# Names that the kubelet would refuse, and those that upstream refuses but the kubelet accepts.


def test_pci_ids_that_can_match_nothing_are_warned_of():
    config = load(document(entry(selectors={"vendors": ["15B3", "0x15b3", "15b3"]})))
    assert [warning.split()[1] for warning in config.warnings] == ['"15B3"', '"0x15b3"']
    given = {"linkTypes": ["ethernet", "ether"], "ifNames": ["ens*", "mlx5_0", "enp194s0f0np0-alt", "ens8f0np0"]}
    given |= {"drivers": ["mlx5", "mlx5_ib", "mlx5_core"]}
    extra = {"pciAddresses": ["0000:3B:00.0", "0000:3b:00", "18:*", "000[01]:*", "0000:3b*", "0000:3b:00.1"]}
    config = load(document(entry(selectors=given, extraSelectors={**extra, "rdmaDevices": ["mlx5_0:1", "mlx5_[01]"]})))
    wrong = ['"mlx5"', '"mlx5_ib"', '"ens*"', '"mlx5_0"', '"enp194s0f0np0-alt"', '"ethernet"', '"mlx5_0:1"']
    wrong += ['"0000:3B:00.0"', '"0000:3b:00"', '"18:*"']
    assert [warning.split()[1] for warning in config.warnings] == wrong
    assert "rdmaHcaMax" in load(document(entry(count=0))).warnings[0]


@pytest.mark.parametrize(("given", "place"), [
    ({"RESOURCELIST": [{"resourceName": "a"}]}, "here it is configList)"),
    ({"configList": [entry(selectors={"pfNames": ["ens1f0"]})]}, "here it is selectors.ifNames)"),
    ({"configList": [{"resourceName": "a", "vendors": ["15b3"]}]}, "(here it is selectors.vendors)"),
    ({"resources": []}, "resources"),
])  # fmt: skip
def test_a_key_of_another_plugin_or_place_is_named(given, place):
    assert problems(json.dumps(given))[-1].endswith(place)


# Refused configs.


def one(**more):
    return document(entry(**more))


EMPTY = "no resources configuration found: configList is empty or absent"
JSON = [b"", b"{", b"\xef\xbb\xbf{}", b"{} {}", b"{} // comment", b'{"a":NaN}', b'{"a":Infinity}', b"{'a':1}"]
JSON += [b'{"a":01}', b'{"a":"\x01"}', b"[" * 100000, b"\xff\xfe{}"]
INTEGERS = ["10.0", "1e3", "1.5", '"10"', "true", "[]", "9223372036854775808", "1" * 5000]
NAMES = ["", "_a", "a_", "-a", "a.", "a/b", "a b", "\u00e4", "x" * 64, "a\n"]
REFUSED = [
    *((text.encode(), EMPTY) for text in ("{}", '{"configList":[]}', '{"configList":null}', "null")),
    *((text.encode(), "the document: wanted an object") for text in ("[]", '"x"', "1", "true")),
    *((data, "not valid JSON: ") for data in JSON),
    *((f'{{"configList":[{{"rdmaHcaMax":{token}}}]}}'.encode(), "rdmaHcaMax: wanted an integer") for token in INTEGERS),
    *(
        (document(entry(), interval=number), f'invalid "periodicUpdateInterval" configuration "{number}"')
        for number in (-1, -10, 9223372037, 1 << 62)  # nanoseconds do not hold them
    ),
    *((one(name=name), f'resource name "{name}"') for name in NAMES),
    *((one(resourcePrefix=prefix), "DNS-1123") for prefix in ("example_prefix", "Rdma", "a..b", "-a", "a/b")),
    *((one(resourcePrefix=prefix), "kubernetes.io") for prefix in ("kubernetes.io", "x.kubernetes.io")),
    (one(resourcePrefix="requests.a"), "quotas"),
    (one(resourcePrefix="a." * 125 + "io"), "too long"),
    (one(name="test_config$$"), 'error: resource name "test_config$$" contains invalid characters'),
    (document(entry("a"), entry("a", resourcePrefix="other.io")), 'error: resource name "a" already exists'),
    (one(count=-100), "error: Invalid value for rdmaHcaMax < 0: -100"),
    (one(count=MAX_DEVICES + 1), f"holds {MAX_DEVICES}"),
    (one(devices=["ib0"], selectors={"vendors": ["15b3"]}), "Cannot specify both"),
    (one(selectors={}), 'neither "selectors" nor "devices"'),
    (one(selectors=[{"vendors": ["15b3"]}]), "selectors: wanted an object, got a list"),
    (one(selectors={"vendors": ["15b3", 5]}), "vendors[1]: wanted a string"),
    (one(selectors={"vendors": "15b3"}), "vendors: wanted a list"),
    (one(allocation="each"), "one of all, spread, numa"),
    (one(env="ib"), "one of none, generic, nccl, ucx"),
    (one(health={"ports": "some"}), "one of any, all, ignore"),
    (one(health={"upSeconds": -1}), "0 to 86400 seconds"),
    (one(health={"flaps": -1}), "health.flaps"),
    (one(charDevices={"umad": "maybe"}), "one of required, optional, never"),
    (one(charDevices={"uverbs": "never"}), "nothing to work with"),
    (one(extraSelectors={"pKeys": ["x"]}), "hexadecimal"),
    (one(extraSelectors={"numaNodes": ["0"]}), "an integer"),
    (one(hcasPerUnit=2), "only with allocation spread or numa"),
    (one(maxPerContainer=-1), "0 or more"),
    (one(softwareDevices="yes"), "true or false"),
]


@pytest.mark.parametrize(("data", "wanted"), REFUSED, ids=range(len(REFUSED)))
def test_what_means_nothing_is_refused(data, wanted):
    """What the kubelet would refuse"""
    assert wanted in problems(data)[0]


# Properties.

_KEYS = st.sampled_from(
    ["configList", "CONFIGLIST", "periodicUpdateInterval", "resourceName", "resourcePrefix", "rdmaHcaMax", "devices"]
) | st.sampled_from(
    ["selectors", "vendors", "ifNames", "extraSelectors", "pKeys", "numaNodes", "health", "upSeconds", "env", "x"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "15b3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


def _loads(data):
    """A Config, or None if there are problems, each of which is clear."""
    config, found = None, ["none"]
    try:
        config = load(data)
    except ConfigError as refused:
        found = refused.problems
    assert found
    assert all(found)
    assert config is None or (isinstance(config, Config) and config.pools)
    return config


@settings(max_examples=500)
@given(_VALUES)
def test_any_json_is_a_config_or_problems(value):
    _loads(json.dumps(value).encode())


@settings(max_examples=200)
@given(st.text(string.ascii_letters + string.digits + "-_.", max_size=70), st.text("abz019-._A", max_size=12))
def test_what_is_accepted_is_what_the_kubelet_accepts(name, prefix):
    wanted = extended_resource_name(f"{prefix or 'rdma'}/{name}")
    assert (_loads(document(entry(name, resourcePrefix=prefix))) is not None) == wanted


# Entries that only the kubelet would refuse.


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "b", "resourcePrefix": "UPPER"}, "resource prefix"),
        ({"name": "b" * 64}, "too long"),
        ({"name": "kubelet"}, "kubelet.sock"),
    ],
    ids=["prefix", "length", "kubelet.sock"],
)
def test_an_entry_that_the_kubelet_would_refuse_is_left_out_of_a_lenient_start(wrong, text):
    """The Go plugin serves the others; check-config and a reload stay strict"""
    data = document(entry("a"), entry(**wrong), entry("c"))
    with pytest.raises(ConfigError, match=text):
        load(data)
    config = load(data, lenient=True)
    assert [kept.name for kept in config.pools] == ["a", "c"]
    assert len(config.refused) == 1
    assert text in config.refused[0]
    with pytest.raises(ConfigError, match=text):
        load(document(entry(**wrong)), lenient=True)


@pytest.mark.parametrize(
    ("topology", "allocation", "count", "good"),
    [
        ("none", "all", 150_000, True),
        ("auto", "all", 100_000, False),
        ("auto", "numa", 100_000, True),
        ("auto", "spread", 100_000, True),
    ],
)
def test_a_list_fits_into_one_message_to_the_kubelet(topology, allocation, count, good):
    """gRPC's 4 MiB, seen: 100,000 units with the nodes of eight HCAs made 5 MB"""
    data = document(entry(count=count, topology=topology, allocation=allocation))
    if good:
        pool = load(data).pools[0]
        nodes = (127,) if topology == "auto" else ()
        group = Group(hcas=(), healthy=False, nodes=nodes)
        offer = Offer(pool=pool, groups=(group,), count=count, known=count)
        assert device_list(offer).ByteSize() <= 4 << 20
    else:
        with pytest.raises(ConfigError, match="one message to the kubelet"):
            load(data)


# End to end, at a kubelet.

NAME = "rdma/test_server"


@pytest.mark.parametrize(("options", "text"), [(("-config-file", "/none"), "/none"), ((), "rdmaHcaMax < 0: -100")])
def test_a_config_that_upstream_refuses(base, node, options, text):
    """The process ends with code 1 and one line; nothing was registered."""
    with Kubelet(base) as kubelet, Process(base, one(count=-100), node.root, *options) as plugin:
        assert plugin.process.wait(20) == 1
        assert kubelet.log == []
    (line,) = plugin.log.read_text().splitlines()
    assert text in line


def test_a_node_without_pci(base):
    """No device, no error"""
    (base / "nothing").mkdir()
    with Kubelet(base) as kubelet, Running(base, document(entry()), base / "nothing") as plugin:
        assert kubelet.wait(lambda: NAME in kubelet.clients and kubelet.clients[NAME].lists)
        assert kubelet.devices(NAME) == {}
        assert plugin.plugin.scan_failures == 0


def test_another_kubelet_root(base, node):
    """plugins_registry moves with --root-dir, the directory of kubelet.sock does not"""
    kubelet = Kubelet(base)
    kubelet.registry = str(base / "data/kubelet/plugins_registry")
    (base / "data/kubelet/plugins_registry").mkdir(parents=True)
    root = ("-kubelet-root", f"{base}/data/kubelet")
    with kubelet, Process(base, document(entry()), node.root, *root, kubelet=kubelet) as plugin:
        assert (base / "data/kubelet/plugins_registry/test_server.sock").exists()
        assert kubelet.count("register") == 0
        assert plugin.end(signal.SIGTERM)[0] == 0


def test_the_environment_names_the_hcas_of_a_container(base):
    """Upstream silently gives all HCAs to each container"""
    node = Node(base / "node", "h100-8x-cx7-ib")
    config = document(
        entry(count=16, allocation="spread", env="nccl"), entry("numa", 2, allocation="numa", topology="auto")
    )
    with Kubelet(base) as kubelet, Running(base, config, node.root, kubelet=kubelet):
        answer = kubelet.allocate(NAME, ["2", "5"]).container_responses[0]
        wanted = {"RDMA_TEST_SERVER_DEVICES": "mlx5_2,mlx5_5", "NCCL_IB_HCA": "=mlx5_2:1,mlx5_5:1"}
        assert dict(answer.envs) == wanted
        units = kubelet.clients["rdma/numa"].devices
        assert [[one.ID for one in units[unit].topology.nodes] for unit in ("0", "1")] == [[0], [1]]
        assert not kubelet.allocate("rdma/numa", ["1"]).container_responses[0].envs


# Configs of the Go plugin from published guides, on matching nodes.


CONFIGS = json.loads((fixture_tree.texts("guides") / "configs.txt").read_text())
GH200 = ("gh200-cx7-roce", (("enp1s0f0np0", "ens8f0np0"), ("enp1s0f1np1", "ens8f1np1")))
IB = ("h100-8x-cx7-ib", (("ibp24s0", "ibs1f0"), ("ibp58s0", "ibs1f1")))
BOTH = ["uverbs0", "uverbs1", "umad0", "umad1", "rdma_cm"]

# Each with its guide's output: resource, count, files of one container.
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
    "one-pool-of-100": (GH200, {"rdma/rdma_shared_device": (100, BOTH)}),
    "shared-ib": (
        IB,
        {"rdma/shared_ib": (63, [f"{kind}{number}" for number in (0, 1) for kind in ("issm", "umad", "uverbs")])},
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_published_config_gives_what_its_guide_prints(base, name):
    (fixture, rename), printed = PRINTED[name]
    config = load(json.dumps(CONFIGS[name]).encode(), strict=True)
    assert (config.warnings, config.interval) == ((), 300 if name == "shared-devices-a-b" else 60)
    assert {pool.resource for pool in config.pools} == set(printed)
    inventory = pools.discover(Tree(str(Node(base / "node", fixture, rename).root)))
    for pool in config.pools:
        offer = allocation.offer(pool, pools.members(pool, inventory), {})
        given = [path.rpartition("/")[2] for path in offer.files(offer.members)]
        count, files = printed[pool.resource]
        assert (pool.count, set(files) <= set(given)) == (count, True)
        assert len(set(given)) == len(given) <= len(files) + 1


def test_the_schema_knows_every_key_and_no_other():
    import jsonschema
    import rdma_device_plugin

    schema = json.loads((pathlib.Path(rdma_device_plugin.__file__).parent / "config.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
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
