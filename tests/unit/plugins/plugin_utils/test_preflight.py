"""Preflight's refusals as tables: variables by themselves, variables against facts, and the one plan of all roles."""

import json
import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Finding, Plan, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra as kube_dra
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import networks as preflight_networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import plan, pod_network, rail_map, roles
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as variables_of
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils import test_k3s as machines

ROLES = ("discovery", "kernel_modules", "limits", "rail_links", "rdma_netns", "reboot", "verification")
TYPED = {name: option.get("default") for name, option in variables_of.options().items()}
DAEMONSET = pathlib.Path(__file__).resolve().parents[4] / "device_plugin/deploy/daemonset.yaml"
LAB, GH200, H100 = "lab-rxe-debian12", "gh200-cx7-roce", "h100-8x-cx7-ib"


def objects(findings):
    assert all(all(getattr(finding, fact) for fact in Finding._fields if fact != "id") for finding in findings)
    return [finding.object for finding in findings]


# --- single variables ------------------------------------------------------------------------------------------------

OF_RAILS = "a list of mappings with hca, mac, netdev, pci, port"


@pytest.mark.parametrize(("name", "value", "wanted", "seen"), [
    ("kernel_modules_gpudirect", "pearmem", "one of: auto, peermem, dmabuf, off", "'pearmem'"),
    ("discovery_expected_hcas", "eight", "a whole number, or null", "'eight'"),
    ("discovery_rails", [{"device": "mlx5_0"}], OF_RAILS, "device"),
    ("limits_services", None, "a list of text", "null"),
    *(("k3s_disable", text, "a list of text", f"the text '{text}'") for text in ("", "[traefik]")),
    ("reboot_allowed", "later", "true or false, or null", "'later'"),
])  # fmt: skip
def test_a_wrong_type_or_choice_names_the_variable_and_what_it_takes(options, name, value, wanted, seen):
    effective, (finding,) = preflight_host.validate(options, {name: value})
    assert (finding.object, finding.wanted) == (f"variable {name}", wanted)
    assert seen in finding.seen
    assert effective[name] == options[name].get("default"), "the other checks go on with the default"


def test_a_secret_of_the_wrong_type_is_refused_without_being_shown(options):
    names = [name for name, option in options.items() if option.get("no_log")]
    assert {"k3s_token", "k3s_registries"} <= set(names)
    _effective, findings = preflight_host.validate(options, {key: ["s3cret", "text"] for key in names})
    assert findings
    assert "s3cret" not in str(findings)


@pytest.mark.parametrize(("name", "given", "value", "wrong"), [
    ("kernel_modules_gpudirect", False, "off", 0),
    ("reboot_allowed", None, None, 0),
    ("reboot_allowed", "yes", True, 0),
    # A version that YAML has read as a number is not what was written.
    *(("driver_version", number, None, 1) for number in (3.1, 3)),
    *(("driver_version", text, text, 0) for text in ("3.10", "", None)),
])  # fmt: skip
def test_words_and_numbers_of_yaml_become_what_the_variable_takes(options, name, given, value, wrong):
    effective, findings = preflight_host.validate(options, {name: given})
    assert (effective[name], len(findings)) == (value, wrong)


PCI = "0000:01:00.0"


@pytest.mark.parametrize(("name", "value"), [
    ("kernel_modules_required", ["mlx5_core", "../evil"]),
    ("limits_services", ["k3s.service/../x"]),
    ("limits_memlock", "lots"),
    ("reboot_serial", 0),
    ("verification_port", 80),
    ("verification_namespace", "kube-system"),
    ("matrix_peers", 0),
    ("rail_links_settings", [{"pci": PCI, "mac": "02:00:00:00:00:01", "mtu": 9000}]),
    ("rail_links_settings", [{"mtu": 9000}]),
    ("fabric_firmware", {"mlx5_0": {"ATS_ENABLED": False}}),
    ("rail_links_settings", [{"pci": PCI, "mtu": 99999}]),
    *((f"{name}_api_server", "10.0.0.1") for name in ("flannel", "device_plugin", "node_ready")),
    ("k3s_server_url", "10.0.0.1:6443"),
])  # fmt: skip
def test_a_value_of_the_right_type_can_still_be_wrong(options, name, value):
    effective, invalid = preflight_host.validate(options, {name: value})
    assert invalid == []
    assert objects(preflight_host.values(effective, options)) == [f"variable {name}"]


@pytest.mark.parametrize(("name", "step"), [
    ("kernel_modules_gpudirct", "did you mean kernel_modules_gpudirect?"),
    ("discovery_rail", "did you mean discovery_rails?"),
    ("limits_zebra_quux_frobnicate", "no variable has a similar name"),
])  # fmt: skip
def test_a_mistyped_variable_is_found_with_what_to_use(options, name, step):
    assert name not in options
    (finding,) = preflight_host.unknown([*options, name], options, ROLES)
    assert finding.object == f"variable {name}"
    assert step in finding.next_step
    assert preflight_host.unknown([name], options, ROLES, accepted=[name]) == []


@pytest.mark.parametrize("name", ["ansible_host", "limit", "k3s_version", "discovery_hosts"])
def test_a_variable_of_someone_else_is_left_alone(options, name):
    assert preflight_host.unknown([name], options, ROLES) == []


# --- variables against the node ---------------------------------------------------------------------------------------


def combined(facts, variables, **changed):
    return objects(preflight_host.combinations(facts, {**variables, **changed})[0])


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("discovery_expected_hcas", 4, 1),
    ("discovery_expected_hcas", 2, 0),
    ("discovery_expected_ports", ["mlx5_1/1", "mlx5_9/1", "mlx5_0/2"], 2),
    ("discovery_rails", [{"hca": "mlx5_9"}], 1),
    ("discovery_rails", [{"hca": "mlx5_0"}, {"pci": PCI}], 1),
    ("discovery_rails", [{"mac": "02:00:00:00:00:99"}, {"netdev": "eth99"}], 2),
    ("discovery_rails", [{"hca": "mlx5_0"}, {"hca": "mlx5_1"}], 0),
])  # fmt: skip
def test_what_the_variables_name_has_to_be_on_the_node(facts_of, variables, name, value, expected):
    assert len(combined(facts_of(GH200), variables, **{name: value})) == expected


def test_a_node_without_any_hca_is_refused_unless_that_is_wanted(facts_of, variables):
    facts = facts_of(GH200)
    facts.update(hcas=[], cards_without_rdma=[], rails=[])
    assert combined(facts, variables) == ["HCA"]
    assert combined(facts, variables, discovery_hca_required=False) == []


def test_software_hcas_make_a_node_only_where_they_are_admitted(facts_of, variables):
    assert combined(facts_of(LAB), variables) == ["HCA"]
    assert combined(facts_of(LAB), variables, discovery_software_hcas=True, discovery_expected_hcas=8) == []


def test_a_card_is_no_problem_if_the_run_loads_its_module_and_one_with_its_reason_if_not(facts_of, variables):
    facts = facts_of("card-without-mlx5-ib")
    assert {card["driver"] for card in facts["cards_without_rdma"]} == {"mlx5_core"}
    assert combined(facts, variables, discovery_rails=[{"hca": "mlx5_0"}]) == []
    older = [{**card, "driver": "mlx4_core"} for card in facts["cards_without_rdma"]]
    assert combined({**facts, "cards_without_rdma": older}, variables) == []
    for node in ("xdr-cx8", "vfs", "sfs"):
        assert combined(facts_of(node), variables, discovery_expected_hcas=1) == []
    findings, notes = preflight_host.combinations({**facts_of("card-on-vfio"), "hcas": []}, variables)
    assert objects(findings) == ["HCA"]
    assert any("vfio" in note for note in notes)


def test_a_strange_system_and_a_lack_of_rights_are_refused(facts_of, variables):
    facts = facts_of(GH200)
    facts["node"]["os"] = {"id": "alpine", "like": [], "pretty_name": "Alpine Linux v3.20"}
    facts["node"]["euid"] = 1000
    assert combined(facts, variables) == ["operating system", "privilege"]


@pytest.mark.parametrize("flavor", ["doca", "inbox"])
def test_rhel_8_is_refused_before_its_driver_is_touched_and_verify_is_not(variables, facts_of, flavor):
    facts = facts_of(H100)
    facts["node"]["os"] = {"id": "rocky", "version_id": "8.10", "like": ["rhel", "fedora"], "pretty_name": "Rocky 8.10"}
    assert combined(facts, variables) == []
    assert combined(facts, variables, driver_flavor=flavor) == ["distribution"]
    facts["node"]["os"]["version_id"] = "9.6"
    assert combined(facts, variables, driver_flavor=flavor) == []


WHOLE = {index: f"0000:{bus}:00.0" for index, bus in enumerate(("18", "3a", "4b"))}
LESS, MORE = {0: WHOLE[0], 2: WHOLE[2]}, {**WHOLE, 3: "0000:5c:00.0"}
OTHER = {**WHOLE, 1: "0000:5c:00.0"}


@pytest.mark.parametrize(("nodes", "odd"), [
    ({"a": WHOLE, "b": WHOLE, "c": LESS}, {"c": "discovery_expected_hcas: 2"}),
    ({"a": WHOLE, "b": LESS}, {"b": "discovery_expected_hcas: 2"}),
    ({"a": WHOLE, "b": WHOLE, "c": OTHER}, {"c": "discovery_rails: NAMED"}),
    ({"a": WHOLE, "b": WHOLE, "c": MORE}, {"c": "discovery_rails: NAMED"}),
    ({"a": WHOLE, "b": WHOLE}, {}),
    ({"a": WHOLE, "b": OTHER}, {}),  # either of the two may be right
    ({"a": WHOLE, "b": LESS, "stated": ["b"]}, {}),
    ({"a": WHOLE, "b": OTHER, "c": WHOLE, "stated": ["b"]}, {"b": "discovery_rails: NAMED"}),
])  # fmt: skip
def test_a_node_with_other_rails_than_its_like_stops(nodes, odd):
    stated = nodes.pop("stated", ())
    maps = {host: rails and {"product": ["DGX", "x86_64"], "rails": rails, "lacks": {1: "No card."}, "hcas": len(rails),
                             "stated": len(rails) if host in stated else None, "named": "NAMED"}
            for host, rails in nodes.items()}  # fmt: skip
    alone = {"product": ["another"], "rails": {}, "lacks": {}, "hcas": 0, "stated": None, "named": ""}
    made = rail_map.differing({**maps, "other": alone})
    assert {host: odd[host] in finding.next_step for host, finding in made.items()} == dict.fromkeys(odd, True)
    assert all("No card." in finding.seen for finding in made.values() if "expected_hcas" in finding.next_step)


def test_rails_that_a_dead_card_has_moved_stop_with_the_variable_that_keeps_them(facts_of, variables):
    """An older version numbered the rails of a node by the cards that work."""
    facts = facts_of(H100)
    netdevs = [rail["netdev"] for rail in facts["rails"]]
    typed = {**variables, "device_plugin_resources": "rails", "networks_rails": True}

    def stops(order, **changes):
        entries = config.entries("rails", [{"index": n, "netdev": name, "pci": "x"} for n, name in enumerate(order)])
        files = {f"gpufabric-rdma-rail{n}.conf": json.dumps({"master": name}) for n, name in enumerate(order)}
        texts = (config.document(entries, 60), files)
        found = rail_map.moved(facts, {**typed, **changes}, *texts)
        for finding in found:
            old, new = (yaml.safe_load(part.split("]")[0] + "]")
                        for part in finding.next_step.split("discovery_rails: ")[1:])  # fmt: skip
            assert [item["netdev"] for item in old] == order
            assert [item["pci"] for item in new] == [rail["pci"] for rail in facts["rails"]]
        return len(found), [("expected_hcas: 8" in finding.next_step) for finding in found]

    assert stops(netdevs) == (0, [])
    assert stops([*netdevs[:5], *netdevs[6:]]) == (2, [False, False])
    assert stops([*netdevs[:5], "gone0", *netdevs[6:]]) == (0, [])  # renamed, or its card replaced
    assert stops([*netdevs[1:], "gone0"]) == (2, [True, True])
    assert stops(netdevs[::-1], discovery_rails=[{"hca": "mlx5_0"}]) == (0, [])
    assert stops(netdevs[::-1], device_plugin_resources=[{}], networks_rails=False) == (0, [])
    assert rail_map.moved(facts, typed, "[", {"gpufabric-rdma-rail0.conf": '{"master": "{{ x }}"}'}) == []
    for key in ("pci", "netdev", "hca"):
        facts["rails"][0][key] = "{{ x }}"
        assert "{{" not in rail_map.of_node(facts, typed)["named"]


def test_a_rail_of_a_dead_card_stays_empty_where_the_operator_states_the_number_of_hcas(facts_of, variables):
    facts, named = facts_of(H100), [{"pci": "0000:18:00.0"}, {"pci": "0000:99:00.0"}]
    assert combined(facts, variables, discovery_rails=named) == ["discovery_rails[1]: pci 0000:99:00.0"]
    assert combined(facts, variables, discovery_rails=named, discovery_expected_hcas=8) == []
    assert combined(facts, variables, discovery_rails=[*named, {"hca": "mlx5_0"}], discovery_expected_hcas=8) == [
        "discovery_rails[2]: hca mlx5_0"
    ]


# --- the pod network --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes", "obj", "seen"), [
    (LAB, {}, None, ""),
    (GH200, {"interface": "enp1s0f0np0"}, None, ""),
    (LAB, {"interface": "eth2", "fabric_allowed": True}, None, ""),
    (LAB, {"backend": "host-gw"}, None, ""),
    (LAB, {"interface": "eth2"}, "NIC eth2", "it is rail 0"),
    (LAB, {"k3s_node_ip": "198.18.2.2"}, "NIC eth2", "pod traffic would share it with RDMA"),
    (GH200, {"interface": "enp1s0f1np1"}, "NIC enp1s0f1np1", "does not carry the default route"),
    (LAB, {"cidr": "10.244.0.0/16"}, "variable flannel_cidr", "10.244.0.0/16"),
    (LAB, {"cidr": "10.42.0.0/33"}, "variable flannel_cidr", "10.42.0.0/33"),
    (LAB, {"cidr": "fd00::/56"}, "variable flannel_cidr", "fd00::/56"),
    (LAB, {"k3s_service_cidr": "10.42.128.0/20"}, "variable flannel_cidr", "overlaps k3s_service_cidr"),
    (LAB, {"cidr": "198.18.0.0/15"}, "variable flannel_cidr", "overlaps 198.18.2.2/24 of eth2"),
    (LAB, {"backend": "host-gw", "mtu": 1400}, "variable flannel_mtu", "1400"),
    (GH200, {"mtu": 1480}, "variable flannel_mtu", "1480, with MTU"),
])  # fmt: skip
def test_a_pod_network_that_cannot_work_is_refused(facts_of, name, changes, obj, seen):
    given = {key if key.startswith("k3s_") else f"flannel_{key}": value for key, value in changes.items()}
    findings = pod_network.findings(facts_of(name, software_hcas=True), {**TYPED, **given})
    assert bool(findings) == bool(obj)
    assert not obj or [item for item in findings if item.object == obj and seen in item.seen], findings


# --- DRA, and the device plugin's resources ---------------------------------------------------------------------------

GATES = ["DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource"]
DEFAULTS = {"source": "/etc/containerd/config.toml", "cdi": None}
OLD, NEW = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
CRI_O = {"version": "v1.34.0", "kubelet": "v1.34.0", "runtime": "cri-o://1.34.1"}


def cluster(version="v1.35.8+k3s1", kubelet="v1.35.8+k3s1", runtime="containerd://2.1.4-k3s1", served=True):
    gates = dict.fromkeys(GATES, False) if served else {}
    nodes = {"node1": {"kubelet": kubelet, "runtime": runtime}}
    return {"version": version, "served": served, "gates": gates, "nodes": nodes}


@pytest.mark.parametrize(("runtime", "seen", "words"), [
    ({}, cluster(), None),
    ({}, None, None),
    ({}, cluster(**CRI_O), None),
    ({}, cluster(version="v1.33.9"), "v1.33.9"),
    ({}, cluster(served=False), "v1.35.8+k3s1 without it"),
    ({}, cluster(runtime="containerd://1.7.27"), "containerd 1.7.27, which has it off"),
    ({"cdi": True}, cluster(runtime="containerd://1.7.27"), None),
    ({"cdi": True}, cluster(runtime="containerd://1.6.33"), "containerd://1.6.33"),
    ({}, cluster(runtime="cri-o://1.27.0"), "cri-o://1.27.0"),
    # The node's files count even before there is a cluster.
    ({"cdi": False}, None, "enable_cdi = false"),
    ({"source": None}, cluster(runtime="containerd://1.7.2"), "containerd 1.7.2"),
])  # fmt: skip
def test_what_cannot_serve_over_dra_is_refused(runtime, seen, words):
    findings = roles.over_dra("node1", {**DEFAULTS, **runtime}, seen)
    assert [words in one.seen for one in findings] == ([True] if words else [])
    assert all("device_plugin_api: device-plugin" in one.next_step for one in findings)


@pytest.mark.parametrize(("texts", "cdi"), [
    ([], None),
    ([f"version = 2\n[{OLD}]\n  sandbox_image = 'pause'\n"], None),
    ([f"version = 2\n[{OLD}]\n  enable_cdi = true\n"], True),
    # A later file wins.
    ([f"[{NEW}]\n  enable_cdi = false\n", f"[{NEW}]\n  enable_cdi = true\n"], True),
])  # fmt: skip
def test_cdi_in_the_files_of_containerd(texts, cdi):
    assert containerd.cdi(texts) is cdi


@pytest.mark.parametrize("on", [[], GATES[:1], GATES])
def test_the_gates_are_what_the_api_server_keeps(tmp_path, on):
    double = kubectl_cluster.make(tmp_path / "cluster.json")
    double.state(gates=on)
    seen = kube_dra.capabilities(double.client())
    assert [gate for gate, kept in seen["gates"].items() if kept] == on
    assert (seen["served"], seen["version"]) == (True, "v1.35.8+k3s1")
    assert not [item for item in double.objects.values() if item["kind"] in ("DeviceClass", "ResourceSlice")]
    told = " ".join(roles.gates(seen, extended_resources=True))
    assert ("DRAConsumableCapacity is on" in told) == ("DRAConsumableCapacity" in on)
    assert ("stay Pending" in told) == ("DRAExtendedResource" not in on)
    double.state(without=["DeviceClass", "ResourceSlice"], version="v1.33.1")
    assert kube_dra.capabilities(double.client())["served"] is False


FACTS = {
    "hcas": [
        {"name": f"mlx5_{n}", "pci": {"vendor": "15b3"}, "netdevs": [{"name": f"eth{n}", "type": "ether"}]}
        for n in (0, 1)
    ],
    "rails": [{"index": n, "hca": f"mlx5_{n}", "netdev": f"eth{n}", "pci": f"0000:0{n}:00.0"} for n in (0, 1)],
}
LISTED = [
    {"resourceName": "a", "selectors": {"ifNames": ["eth0"]}},
    {"resourceName": "b", "api": "dra", "selectors": {"ifNames": ["eth1"]}},
]
OVERLAP = [{"resourceName": "a", "selectors": {"vendors": ["15b3"]}}, LISTED[1]]


def of_device_plugin(bundle=None, in_claims=False, **given):
    known = {
        **TYPED,
        **{f"device_plugin_{name}": value for name, value in given.items()},
        "networks_in_claims": in_claims,
    }
    if bundle:
        known["k3s_bundle_dir"] = "/srv/bundle"
    return roles.findings("device_plugin", known, FACTS, {"all": ["node1"], "k3s_servers": ["node1"]}, bundle)


@pytest.mark.parametrize(("given", "words"), [
    ({}, None),
    ({"api": "both", "dra_rails": [1]}, None),
    ({"api": "both", "resources": LISTED}, None),
    ({"api": "both"}, "no entry for dra"),
    ({"api": "both", "dra_rails": [7]}, "7; the node has 0, 1"),
    ({"api": "dra", "dra_rails": [1]}, "device_plugin_dra_rails: 1"),
    ({"resources": LISTED}, "rdma/b with api: dra"),
    ({"api": "both", "resources": OVERLAP}, "mlx5_1 in rdma/a and, with api: dra, in rdma/b"),
    ({"api": "dra", "server": "elsewhere"}, "device_plugin_server: elsewhere"),
    ({"api": "dra", "in_claims": True}, None),
    ({"in_claims": True}, "networks_in_claims: device_plugin_api: device-plugin"),
    ({"api": "dra", "mode": "daemonset", "in_claims": True}, "device_plugin_mode: daemonset"),
])  # fmt: skip
def test_entries_for_two_apis(given, words):
    made = [f"{one.object}: {one.seen}" for one in of_device_plugin(**given)]
    assert bool(made) == bool(words)
    assert all(words in text for text in made), made


IMAGE = "localhost/rdma-device-plugin:0.1.0"


@pytest.mark.parametrize(("images", "given", "refused"), [
    (["ghcr.io/a/b:1"], {}, True),
    ([IMAGE], {}, False),
    ([], {"mode": "systemd"}, False),
    ([], {"image": "registry.example.org/plugin:1"}, False),
    (None, {}, False),
])  # fmt: skip
def test_a_bundle_without_the_daemonsets_image_is_refused_with_the_command_that_adds_it(images, given, refused):
    bundle = None if images is None else {"images": [{"reference": name} for name in images]}
    made = of_device_plugin(bundle, **{"mode": "daemonset", **given})
    assert [(one.object, IMAGE in one.wanted) for one in made] == ([("bundle /srv/bundle", True)] if refused else [])
    assert all("-e bundle_dir=/srv/bundle -e bundle_plugin_image=true" in one.next_step for one in made)


# --- the host's plan and the messages ---------------------------------------------------------------------------------

CHANGE = Change("/etc/modules-load.d/gpufabric-rdma.conf", "write", "", "ib_umad")
PENDING = {
    "a change": Plan(changes=[CHANGE]),
    "a problem": Plan(findings=[Finding("a", "b", "c", "d")]),
    "a reboot": Plan(reboot_reasons=["the mode is set at boot"]),
    "an old image": Plan(stale_images=["/boot/initrd.img"]),
}


@pytest.mark.parametrize(("os", "there", "given", "wanted"), [
    ("debian", {"libibverbs1": "44-2"}, {},
     ["rdmacm-utils=44-2", "ibverbs-utils=44-2", "infiniband-diags=44-2", "perftest"]),
    ("rocky", {"libibverbs": "48.0-1.el9", "librdmacm-utils": "48.0-1.el9", "perftest": "1"}, {},
     ["libibverbs-utils-48.0-1.el9", "infiniband-diags-48.0-1.el9"]),
    ("debian", {"rdmacm-utils": "1", "ibverbs-utils": "1", "infiniband-diags": "1"}, {}, ["perftest"]),
    ("debian", {"rdmacm-utils": "1", "ibverbs-utils": "1", "infiniband-diags": "1", "perftest": "1"}, {}, []),
    ("debian", {}, {"verification_tools": False}, []),
    ("debian", {}, {"discovery_root": "/captured"}, []),
    ("arch", {}, {}, []),
])  # fmt: skip
def test_what_traffic_is_verified_with_comes_in_the_version_of_the_nodes_rdma_core(os, there, given, wanted):
    system = {"id": os, "like": ["rhel"] if os == "rocky" else []}
    facts = {"hcas": [{}], "node": {"os": system}, "driver": {"installed": {"packages": there}}}
    made = preflight_host.tools(facts, {"verification_tools": True, "discovery_root": "/", **given})
    assert made == ({"dnf" if os == "rocky" else "apt": wanted} if wanted else {})


def test_variables_that_only_k3s_and_its_pod_network_read_have_no_effect_without_them():
    known = variables_of.of_cluster()
    assert {"k3s_node_ip", "flannel_backend", "multus_namespace_isolation"} <= known
    assert not {"k3s_node_name", "k3s_bundle_dir", "k3s_cluster_cidr"} & known
    given = {"flannel_backend": "vxlan", "networks_rails": True, "cluster": False}
    assert objects(preflight_host.without_cluster(given, known)) == ["variable flannel_backend"]


def test_a_rail_is_selected_by_one_name_and_a_variable_is_no_group():
    rails = [{"hca": "mlx5_0"}, {"pci": "0000:18:00.0", "netdev": "eth0"}, {"port": 1}]
    typed = {"discovery_rails": rails}
    assert objects(preflight_host.values(typed, {})) == ["variable discovery_rails"]
    assert typed["discovery_rails"] == rails[:1]
    assert objects(preflight_host.unknown(["k3s_servers"], {}, ["k3s"])) == ["variable k3s_servers"]


@pytest.mark.parametrize("name", PENDING)
def test_a_node_is_settled_only_where_no_planner_has_anything_to_do(facts_of, variables, monkeypatch, name):
    """Then no role of the host layer asks it again, and its reading still holds."""
    facts = facts_of(GH200)
    made = {"limits": Plan(), "rail_links": Plan(notes=["a note"], not_verified=["a tree of files"])}
    monkeypatch.setattr(preflight_host, "plans", lambda *_given: made)
    assert preflight_host.plan(facts, variables)["settled"] is True
    assert preflight_host.plan(facts, {**variables, "driver_flavor": "inbox"})["settled"] is False
    assert preflight_host.plan({**facts, "unfinished": ["reboot"]}, variables)["settled"] is False
    made["kernel_modules"] = PENDING[name]
    assert preflight_host.plan(facts, variables)["settled"] is False


def test_one_message_lists_all_problems_of_all_hosts_and_equal_ones_once():
    gone = preflight_host.unreachable("ssh: connect to host 192.0.2.1 port 22: No route to host")
    same = Finding("variable limits_memlock", "infinity", "'lots'", "correct it")
    findings = [*at("node1", [gone]), *at("node2", [same]), *at("node3", [same])]
    head, text = preflight_host.failure_text(findings, ["node1", "node2", "node3", "node4"])
    assert head == "2 problems on 3 of 4 nodes; nothing has been changed."
    lines = text.splitlines()
    assert (lines[0], [line.split()[0] for line in lines[1:4]]) == ("node1  connection", ["wanted", "seen", "next"])
    assert "node2, node3  variable limits_memlock" in lines
    change = {"object": "module ib_umad", "action": "load", "before": "", "after": "loaded", "why": "verbs need it"}
    results = [{"host": f"node{n}", "plan": [], "reboot_reasons": [], "notes": []} for n in (1, 2, 3)]
    results[0].update(plan=[change], reboot_reasons=["b"])
    lines = preflight_host.plan_text(results).splitlines()
    assert lines[1::4] == ["  node1: 1 change", "  2 nodes (node2, node3): nothing to change"]
    assert "    reboot needed: b" in lines


# --- the one plan -----------------------------------------------------------------------------------------------------

ADDRESSES = {"a": "198.18.0.1", "b": "198.18.0.2"}
WRONG = {"object": "variable x", "wanted": "1", "seen": "2", "next_step": "correct it", "id": ""}


@pytest.fixture
def read(facts_of):
    """read(host, given, **changes): a node's reading; given: variables that are set."""

    def of(host, given=None, **changes):
        return {
            "host": host,
            "address": ADDRESSES[host],
            "hostname": host,
            "variables": {**TYPED, "k3s_node_ip": ADDRESSES[host], **(given or {})},
            "problems": [],
            "ansible_facts": {"rdma": facts_of(H100)},
            "k3s": machines.node()["state"],
            "networks": {"netdevs": {}, "routes": [], "files": {}, "vfs_unit": False},
            "runtime": {"source": None, "cdi": None},
            **changes,
        }

    return of


def planned(nodes, *names, **changes):
    groups = {"all": ["a", "b"], "gpu_nodes": ["a", "b"]}
    given = {"hosts": ["a", "b"], "groups": groups, "nodes": ["a", "b"], "servers": {"a": (None, ADDRESSES["a"])}}
    lock = {"images": [], "wheels": []}
    return plan.plan(
        nodes, plan.Run(**{"roles": names, "lock": lock, "daemonset": {}, "now": 0, "bundle": None, **given, **changes})
    )


def where(made):
    return {(item["role"], item["host"], item["object"]) for item in made["findings"]}


def test_problems_of_variables_nodes_and_roles_come_together_each_at_its_hosts(read):
    bad = {"cni_plugins_names": ["loopback"], "multus_global_namespaces": ["x"], "k3s_bundle_dir": "/nowhere"}
    nodes = [read("a", bad, problems=[WRONG]), read("b", hostname="a")]
    made = planned(nodes, "discovery", "cni_plugins", "multus", "node_ready", "device_plugin")
    assert where(made) >= {
        ("", "a", "variable x"),
        ("cni_plugins", "a", "variable cni_plugins_names"),
        ("multus", "a", "variable multus_global_namespaces"),
        ("node_ready", "b", "node name a"),
    }
    failing = {name: [item["object"] for item in decided["findings"]] for name, decided in made["hosts"].items()}
    assert ("variable x" in failing["a"], "variable x" in failing["b"]) == (True, False)


@pytest.mark.parametrize("name", ["a", "../b", "{{ b }}"])
@pytest.mark.parametrize("role", ["k3s", "node_ready"])
def test_the_name_that_objects_get_is_the_one_that_was_judged(read, role, name):
    made = planned([read("a"), read("b", hostname=name)], role)
    assert ("b", "k3s:node-name") in {(item["host"], item["id"]) for item in made["findings"]}
    of_bmcs = {"all": ["a", "b", "b.bmc"], "gpu_nodes": ["a", "b"], "bmcs": ["b.bmc"]}
    made = planned([read("a"), read("b")], role, groups=of_bmcs)
    assert "k3s:node-name" not in {item["id"] for item in made["findings"]}


@pytest.mark.parametrize(("groups", "found"), [
    ({"gpu_nodes": ["a", "b"], "k3s_servers": ["a"]}, set()),
    ({"racks": ["a", "b"]}, set()),
    ({"gpu_nodes": ["a", "b"], "k3s_server": ["b"]}, {"k3s:servers-group"}),
    ({"gpu_nodes": ["a", "b", "c"], "first": ["a", "b"], "k3s_servers": ["a"]}, {"k3s:nodes-group"}),
    ({"rack1": ["a"], "rack2": ["b"], "others": ["c"]}, {"k3s:nodes-group"}),
])  # fmt: skip
def test_groups_that_may_not_be_those_of_the_cluster(read, groups, found):
    every = {"all": sorted(set().union(*groups.values())), **groups}
    made = planned([read("a"), read("b")], "k3s", groups=every)
    assert {item["id"] for item in made["findings"]} & {"k3s:servers-group", "k3s:nodes-group"} == found


def test_a_machine_that_the_inventory_has_twice_is_refused(read):
    for hostname, hosts in (("a", ["a", "b"]), ("b", [])):
        made = planned([read("a"), read("b", hostname=hostname)], "discovery")
        assert [item["host"] for item in made["findings"] if item["id"] == "node:twice"] == hosts


@pytest.mark.parametrize(("hostname", "given", "drained"), [
    ("gpu2", {}, ("gpu2", "a")),
    ("node1", {}, ("b", "a")),
    ("a.x", {}, ("b", "a")),
    ("--all", {}, ("b", "a")),
    ("a", {"k3s_node_name": "a"}, ("a", "a")),
])  # fmt: skip
def test_no_node_has_another_one_drained(read, hostname, given, drained):
    groups = {"all": ["a", "node1.example.org", "b", "b.bmc"], "gpu_nodes": ["a", "b"]}
    made = planned([read("a", {"k3s_node_name": "gpu1"}), read("b", given, hostname=hostname)], "driver", groups=groups)
    assert made["hosts"]["b"]["drain"] == dict(zip(("node", "host"), drained))
    # The only server drains itself.
    assert made["hosts"]["a"]["drain"] == {"node": "gpu1", "host": "a"}


@pytest.mark.parametrize("change", [{"lost": "no route"}, {"failure": "no Python"}])
def test_a_node_that_was_not_read_stops_the_cluster_or_is_left_out(read, change):
    nodes = [read("a", {"multus_global_namespaces": ["x"]}), read("b", ansible_facts={}, **change)]
    assert [role for role, _host, _object in where(planned(nodes, "discovery", "multus"))] == [""]
    partial = planned(nodes, "discovery", "multus", partial=True)
    assert {(role, host) for role, host, _object in where(partial)} == {("", "b"), ("multus", "a")}
    assert partial["hosts"]["b"].get("settled", False) is partial["settled"] is False


@pytest.mark.parametrize("told", [{"services": 5}, {"registered": 5}, {"registered": {"b": 5}}, {"etcd": [1]}])
def test_the_odd_answer_of_a_server_outside_of_the_run_is_not_laid_to_a_node_in_it(read, told):
    outside = read("a", k3s={**machines.node()["state"], **told, "cluster": True})
    made = planned([read("b")], "k3s", "reset", hosts=["b"], outside=[outside])
    assert [item for item in made["findings"] if item["object"] == "node"] == []


@pytest.mark.parametrize(
    ("host", "fails"), [("a", ["a"]), ("a, b", ["a", "b"]), ("the controller", ["a", "b"]), ("c", ["a", "b"])]
)
def test_who_fails_by_a_finding(host, fails):
    made = plan.with_findings({"hosts": {"a": {}, "b": {}}}, [{**WRONG, "host": host, "role": "x"}] * 2)
    assert len(made["findings"]) == 1
    assert [name for name, decided in made["hosts"].items() if decided["findings"]] == fails


@pytest.mark.parametrize(("same", "kept"), [(False, ["node_firewall"]), (True, ["k3s", "node_firewall"])])
def test_a_later_plan_keeps_what_other_roles_decided_and_their_findings_only_from_one_reading(same, kept):
    def made(role, **decided):
        item = {**WRONG, "object": role, "host": "a", "role": role}
        return plan.with_findings({"roles": [role], "hosts": {"a": decided}}, [item])

    both = plan.merged(made("k3s", k3s=1, firewall=1), made("node_firewall", firewall=2), same)
    assert both["roles"] == ["k3s", "node_firewall"]
    assert (both["hosts"]["a"]["k3s"], both["hosts"]["a"]["firewall"]) == (1, 2)
    assert [item["object"] for item in both["findings"]] == kept


def test_networks_wait_for_rails_only_while_the_host_layer_is_to_come(read):
    bare = read("b")
    bare["ansible_facts"]["rdma"]["rails"] = []
    for names, waits in ((("discovery", "networks"), True), (("networks",), False)):
        assert (planned([read("a"), bare], *names)["networks"] is None) is waits
    assert where(planned([read("a"), bare], "discovery")) == {("", "b", "rails")}
    assert planned([read("a"), read("b")], "discovery", "networks")["networks"]["complete"] is True


def test_a_git_folder_is_made_from_all_nodes_or_not_at_all(read):
    made = planned([read("a", {"cluster_objects_folder": ""})], "cluster_objects", partial=True)
    assert where(made) == {
        ("cluster_objects", "the controller", "variable cluster_objects_folder"),
        ("cluster_objects", "the controller", "nodes of this run"),
    }


def test_the_plan_has_config_and_objects_of_the_device_plugin(read):
    manifest = yaml.safe_load(DAEMONSET.read_text())

    def made(**given):
        options = {f"device_plugin_{name}": value for name, value in given.items()}
        nodes = [read(name, {**options, "k3s_node_name": f"gpu-{name}"}) for name in ("a", "b")]
        decided = planned(nodes, "device_plugin", daemonset=manifest)
        return decided["hosts"]["a"]["device_plugin"], [item["kind"] for item in decided["device_plugin"]["objects"]]

    mine, objects = made()
    assert (len(json.loads(mine["config"])["configList"]), mine["links_up"], objects) == (8, False, [])
    mine, objects = made(resources=[{"resourceName": "x"}], mode="daemonset")
    assert (mine["links_up"], objects) == (True, ["ConfigMap", "DaemonSet"])
    assert {"DeviceClass", "ServiceAccount", "ValidatingAdmissionPolicy"} <= set(made(api="dra")[1])
    nodes = [read(name, {"device_plugin_mode": "daemonset"}) for name in ("a", "b")]
    nodes[1]["ansible_facts"]["rdma"]["rails"].pop()
    assert ["those of b " in note for note in planned(nodes, "device_plugin", daemonset=manifest)["notes"]] == [True]
    mixed = planned([read("a"), nodes[1]], "device_plugin", daemonset=manifest)
    assert ("device_plugin", "b", "variable device_plugin_mode") in where(mixed)
    bare = read("b")
    bare["ansible_facts"]["rdma"]["rails"] = []
    decided = planned([bare], "device_plugin", hosts=["b"])
    assert ("device_plugin", "b", "variable device_plugin_resources") in where(decided)


def test_a_server_without_hcas_has_no_plugin_and_the_cluster_takes_its_config_from_another_node(read):
    given = {"device_plugin_api": "dra", "device_plugin_server": "a", "networks_rails": True}
    head, worker = read("a", {"discovery_hca_required": False, **given}), read("b", given)
    head["ansible_facts"]["rdma"].update(rails=[], hcas=[])
    offered = {"version": "v1.35.1", "served": True, "gates": {}, "nodes": {}}
    decided = planned([head, worker], "device_plugin", "networks", offered=offered)
    assert where(decided) == set()
    assert decided["hosts"]["a"]["device_plugin"]["config"] == ""
    assert ("dra" in decided["hosts"]["a"], "dra" in decided["hosts"]["b"]) == (False, True)
    assert decided["device_plugin"]["config"] == decided["hosts"]["b"]["device_plugin"]["config"] != ""
    assert where(planned([head], "device_plugin", hosts=["a"])) == set()
    none = where(planned([head, {**head, "host": "b"}], "device_plugin"))
    assert {("device_plugin", name, "variable device_plugin_resources") for name in ("a", "b")} <= none


def nad(name, resource):
    annotations = {preflight_networks.RESOURCE_ANNOTATION: resource} if resource else {}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"kind": "NetworkAttachmentDefinition", "metadata": metadata}


@pytest.mark.parametrize(("objects", "attached"), [
    ([nad("other", None), nad("rail1", "rdma/b"), nad("rail0", "rdma/a")], "rail0"),
    ([nad("other", None)], None),
])  # fmt: skip
def test_the_first_pod_asks_for_a_resource_and_the_network_of_its_rail(objects, attached):
    resources = [{"resourceName": "x", "api": "dra"}, {"resourceName": "a"}, {"resourceName": "b"}]
    pod = plan.first_pod(json.dumps({"configList": resources}), objects, "flannel:1")
    assert (pod["metadata"].get("annotations") or {}).get("k8s.v1.cni.cncf.io/networks") == attached
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"rdma/a": 1}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert plan.first_pod(json.dumps({"configList": resources[:1]}), objects, "flannel:1") is None


def test_libraries_come_from_the_folder_that_is_set_else_from_the_bundle_else_by_pip(read, tmp_path):
    def made(ensurepip=True, **given):
        node = read("a", given)
        node["k3s"] = {"ensurepip": ensurepip, "python": "3.11"}
        decided = planned([node], "device_plugin", daemonset=yaml.safe_load(DAEMONSET.read_text()))
        return decided["hosts"]["a"]["device_plugin"]["wheel_dir"], where(decided)

    lacks = {("device_plugin", "a", "Python 3.11 of the node")}
    bundle = str(tmp_path)
    assert made(k3s_bundle_dir=bundle) == ("", set())
    assert made(ensurepip=False, k3s_bundle_dir=bundle) == ("", lacks)
    assert made(ensurepip=False, device_plugin_mode="daemonset")[1] & lacks == set()
    (tmp_path / "wheels").mkdir()
    assert made(ensurepip=False, k3s_bundle_dir=bundle) == (f"{bundle}/wheels", set())
    assert made(k3s_bundle_dir=bundle, device_plugin_wheel_dir="/srv/wheels") == ("/srv/wheels", set())
