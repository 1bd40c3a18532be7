"""config.json: upstream's cases (A3 to A16), Go's JSON rules, what the kubelet would refuse, and our extensions."""

from __future__ import annotations

import json
import string

import pytest
from harness import document, entry
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rdma_device_plugin.allocation import Group, Offer
from rdma_device_plugin.config import MAX_DEVICES, Config, ConfigError, Health, load
from rdma_device_plugin.server import device_list


def problems(data, strict=False):
    with pytest.raises(ConfigError) as refused:
        load(data if isinstance(data, bytes) else data.encode(), strict)
    return refused.value.problems


def pool(**more):
    return load(document(entry(**more))).pools[0]


def raw(text):
    """A document with one entry that is fit apart from what is added to it."""
    return load(b'{"configList":[{"resourceName":"a","selectors":{"vendors":["15b3"]}%s}]}' % text.encode()).pools[0]


# Upstream's table.


def test_two_entries_and_an_interval():
    """A3, A4"""
    config = load(document(entry("a", devices=["ib0"]), entry("b"), interval=30))
    assert [one.resource for one in config.pools] == ["rdma/a", "rdma/b"]
    assert config.interval == 30
    assert load(document(entry())).interval == 60
    assert load(document(entry(), interval=0)).interval == 0


def test_devices_are_interface_names():
    """A7"""
    config = load(document(entry("test_config", devices=["ib0"])))
    assert config.pools[0].selectors.ifNames == ("ib0",)
    assert '"devices" field is deprecated' in config.warnings[0]


def test_selectors():
    """A8"""
    chosen = pool(selectors={"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["ib0", "ib1"]}).selectors
    assert (chosen.vendors, chosen.deviceIDs, chosen.ifNames) == (("15b3",), ("1017",), ("ib0", "ib1"))


def test_the_count_may_be_zero_or_absent():
    """A9"""
    assert pool(count=0).count == 0
    assert raw("").count == 0
    assert raw(', "rdmaHcaMax": null').count == 0


@pytest.mark.parametrize("text", ["{}", '{"configList":[]}', '{"configList":null}', "null"])
def test_no_resources(text):
    """A10"""
    assert problems(text) == ["no resources configuration found: configList is empty or absent"]


def test_names_and_counts_that_upstream_refuses():
    """A11, A12, A13"""
    assert problems(document(entry("test_config$$")))[0].startswith(
        'error: resource name "test_config$$" contains invalid characters'
    )
    assert problems(document(entry("a"), entry("a", resourcePrefix="other.io"))) == [
        'error: resource name "a" already exists'
    ]
    assert problems(document(entry(count=-100)))[0].startswith("error: Invalid value for rdmaHcaMax < 0: -100")


def test_devices_and_selectors_together_or_neither():
    """A14, A15"""
    both = entry(devices=["ib0"], selectors={"vendors": ["15b3"]})
    assert "Cannot specify both" in problems(document(both))[0]
    assert 'neither "selectors" nor "devices"' in problems(document(entry(selectors={})))[0]
    assert 'neither "selectors" nor "devices"' in problems(document(entry(selectors={"speeds": ["400"]})))[0]
    assert pool(devices=[], selectors={"vendors": ["15b3"]}).selectors.vendors == ("15b3",)


@pytest.mark.parametrize("interval", [-1, -10, 9223372037, 1 << 62])
def test_intervals_that_nanoseconds_do_not_hold(interval):
    """A16"""
    assert problems(document(entry(), interval=interval))[0].startswith(
        f'invalid "periodicUpdateInterval" configuration "{interval}"'
    )


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
    text = '{"configList":[{"resourceName":"a","selectors":{"vendors":["15b3"],"speed":["1"]},"x":{}}],"y":1}'
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
    config = load(b'{"periodicUpdateInterval":5,"periodicUpdateInterval":null,"configList":[%s]}' % _one())
    assert config.interval == 60


def _one():
    return json.dumps(entry()).encode()


def test_null_is_not_set():
    text = ', "rdmaHcaMax": 5, "rdmaHcaMax": null, "resourcePrefix": null, "devices": null, "health": null, "env": null'
    made = raw(text)
    assert (made.count, made.prefix, made.health, made.env) == (5, "rdma", Health(), ())


@pytest.mark.parametrize("token", ["10.0", "1e3", "1.5", '"10"', "true", "[]", "9223372036854775808", "1" * 5000])
def test_integers_are_integer_tokens(token):
    assert "configList[0].rdmaHcaMax: wanted an integer" in problems(f'{{"configList":[{{"rdmaHcaMax":{token}}}]}}')[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"{} // comment",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":"\x01"}',
        b"[" * 100000,
        b"\xff\xfe{}",
    ],
)
def test_invalid_json(data):
    """A6"""
    assert problems(data)[0].startswith("not valid JSON: ")


@pytest.mark.parametrize("text", ["[]", '"x"', "1", "true"])
def test_the_top_is_an_object(text):
    assert problems(text)[0].startswith("the document: wanted an object")


def test_selectors_are_an_object_and_lists_of_strings():
    assert "selectors: wanted an object, got a list" in problems(document(entry(selectors=[{"vendors": ["15b3"]}])))[0]
    assert "vendors[1]: wanted a string" in problems(document(entry(selectors={"vendors": ["15b3", 5]})))[0]
    assert "vendors: wanted a list" in problems(document(entry(selectors={"vendors": "15b3"})))[0]


def test_half_a_surrogate_pair_can_be_printed():
    assert raw(r', "devices": [], "selectors":{"ifNames":["\ud83d", "\ud83d\ude00"]}').selectors.ifNames == (
        "\ufffd",
        "\U0001f600",
    )


# What the kubelet would refuse, and names that upstream refuses and the kubelet takes.


@pytest.mark.parametrize("name", ["a", "my-name", "my.name", "A_1", "x" * 63])
def test_names_that_the_kubelet_takes(name):
    assert pool(name=name).resource == f"rdma/{name}"


@pytest.mark.parametrize("name", ["", "_a", "a_", "-a", "a.", "a/b", "a b", "\u00e4", "x" * 64, "a\n"])
def test_names_that_the_kubelet_refuses(name):
    assert f'resource name "{name}"' in problems(document(entry(name)))[0]


@pytest.mark.parametrize("prefix", ["rdma", "nvidia.com", "a-b.c-d.e", "x" * 63 + ".io"])
def test_prefixes_that_the_kubelet_takes(prefix):
    assert pool(resourcePrefix=prefix).prefix == prefix


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("example_prefix", "DNS-1123"),
        ("Rdma", "DNS-1123"),
        ("a..b", "DNS-1123"),
        ("-a", "DNS-1123"),
        ("a/b", "DNS-1123"),
        ("kubernetes.io", "kubernetes.io"),
        ("x.kubernetes.io", "kubernetes.io"),
        ("requests.a", "quotas"),
        ("a." * 125 + "io", "too long"),
    ],
)
def test_prefixes_that_the_kubelet_refuses(prefix, why):
    assert why in problems(document(entry(resourcePrefix=prefix)))[0]


def test_a_list_that_no_message_holds():
    assert f"holds {MAX_DEVICES}" in problems(document(entry(count=MAX_DEVICES + 1)))[0]


def test_pci_ids_that_can_match_nothing_are_warned_of():
    config = load(document(entry(selectors={"vendors": ["15B3", "0x15b3", "15b3"]})))
    assert [warning.split()[1] for warning in config.warnings] == ['"15B3"', '"0x15b3"']
    links = {"linkTypes": ["ethernet", "InfiniBand", "ether", "infiniband"]}
    config = load(document(entry(selectors=links, extraSelectors={"pciAddresses": ["0000:3B:00.0", "0000:3b:*"]})))
    assert [warning.split()[1] for warning in config.warnings] == ['"ethernet"', '"InfiniBand"', '"0000:3B:00.0"']


@pytest.mark.parametrize(("key", "told"), [("resourceList", True), ("RESOURCELIST", True), ("other", False)])
def test_the_list_of_another_plugin_is_named(key, told):
    (problem,) = problems(json.dumps({key: [{"resourceName": "a"}]}).encode())
    assert ("resourceList" in problem) is told


# Extensions.


def test_extensions():
    made = pool(
        extraSelectors={"rdmaDevices": ["mlx5_*"], "numaNodes": [0], "pKeys": ["0x8001", "7fff"]},
        allocation="numa",
        hcasPerUnit=2,
        topology="auto",
        charDevices={"issm": "never"},
        health={"ports": "all", "downSeconds": 1.5, "upSeconds": 10},
        env=["nccl", "ucx", "none"],
        linkUp=False,
        maxPerContainer=1,
        softwareDevices=True,
    )
    assert made.extra.rdmaDevices == ("mlx5_*",)
    assert made.extra.pKeys == (0x8001, 0x7FFF)
    assert (made.allocation, made.hcas_per_unit, made.topology) == ("numa", 2, "auto")
    assert (made.char_devices.issm, made.char_devices.umad) == ("never", None)
    assert made.health == Health("all", 1.5, 10)
    assert made.env == ("nccl", "ucx")
    assert (made.link_up, made.max_per_container, made.software) == (False, 1, True)


def test_without_extensions_all_is_as_upstream():
    made = pool()
    assert (made.allocation, made.topology, made.env, made.link_up, made.software) == ("all", "none", (), True, False)
    assert made.health.ports == "any"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"allocation": "each"}, "one of all, spread, numa"),
        ({"topology": "yes"}, "one of none, auto"),
        ({"env": "ib"}, "one of none, generic, nccl, ucx"),
        ({"health": {"ports": "some"}}, "one of any, all, ignore"),
        ({"health": {"upSeconds": -1}}, "0 to 86400 seconds"),
        ({"health": {"upSeconds": "1"}}, "0 to 86400 seconds"),
        ({"charDevices": {"umad": "maybe"}}, "one of required, optional, never"),
        ({"charDevices": {"uverbs": "never"}}, "nothing to work with"),
        ({"extraSelectors": {"pKeys": ["x"]}}, "hexadecimal"),
        ({"extraSelectors": {"numaNodes": ["0"]}}, "an integer"),
        ({"hcasPerUnit": 2}, "only with allocation spread or numa"),
        ({"maxPerContainer": -1}, "0 or more"),
        ({"softwareDevices": "yes"}, "true or false"),
    ],
)
def test_extensions_that_mean_nothing(more, wanted):
    assert wanted in problems(document(entry(**more)))[0]


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
    """A Config, or None where there are problems, of which each is clear."""
    config, found = None, ["none"]
    try:
        config = load(data)
    except ConfigError as refused:
        found = refused.problems
    assert found
    assert all(found)
    assert config is None or (isinstance(config, Config) and config.pools)
    return config


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
@example(b"\xff\xff")
def test_any_bytes_are_a_config_or_problems(data):
    _loads(data)


@settings(max_examples=500, deadline=None)
@given(_VALUES)
def test_any_json_is_a_config_or_problems(value):
    _loads(json.dumps(value).encode())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_config_is_a_config_or_problems(data):
    whole = document(entry("a", env="nccl", health={"ports": "all"}), entry("b"), interval=5)
    at = data.draw(st.integers(0, len(whole)))
    _loads(whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + data.draw(st.integers(0, 4)) :])


@settings(max_examples=200, deadline=None)
@given(st.text(string.ascii_letters + string.digits + "-_.", max_size=70), st.text("abz019-._A", max_size=12))
def test_what_is_accepted_is_what_the_kubelet_accepts(name, prefix):
    import kubelet_double

    wanted = kubelet_double.extended_resource_name(f"{prefix or 'rdma'}/{name}")
    assert (_loads(document(entry(name, resourcePrefix=prefix))) is not None) == wanted


# What only the kubelet would refuse.


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
