"""What preflight refuses, as tables: variables alone, and variables against the facts of fixture nodes."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Finding, Plan, at
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import removed

ROLES = ("discovery", "kernel_modules", "limits", "rail_links", "rdma_netns", "reboot", "verification")
FACTS = {"object", "wanted", "seen", "next_step"}


def objects(findings):
    for finding in findings:
        assert set(finding._fields) == {*FACTS, "id"}
        assert all(getattr(finding, fact) for fact in FACTS), finding
    return [finding.object for finding in findings]


# --- single variables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "wanted", "seen"), [
    ("kernel_modules_gpudirect", "pearmem", "one of: auto, peermem, dmabuf, off", "'pearmem'"),
    ("discovery_expected_hcas", "eight", "a whole number, or null", "'eight'"),
    ("discovery_rails", "mlx5_0", "a list of mappings with hca, mac, netdev, pci, port", "'mlx5_0'"),
    ("discovery_rails", [{"device": "mlx5_0"}], "a list of mappings with hca, mac, netdev, pci, port", "device"),
    ("limits_services", {"k3s": True}, "a list of text", "'k3s': True"),
    ("limits_services", None, "a list of text", "null"),
    ("reboot_allowed", "later", "true or false, or null", "'later'"),
    ("reboot_allowed", "y", "true or false, or null", "'y'"),
])  # fmt: skip
def test_a_wrong_type_or_choice_names_the_variable_and_what_it_takes(options, name, value, wanted, seen):
    effective, findings = preflight_host.validate(options, {name: value})
    (finding,) = findings
    assert finding.object == f"variable {name}"
    assert finding.wanted == wanted
    assert seen in finding.seen
    assert effective[name] == options[name].get("default"), "the other checks go on with the default"


def test_a_secret_of_the_wrong_type_is_refused_without_being_shown(options):
    names = [name for name, option in options.items() if option.get("no_log")]
    assert {"k3s_token", "k3s_registries"} <= set(names)
    _effective, findings = preflight_host.validate(options, {key: ["s3cret", "text"] for key in names})
    assert findings
    assert "s3cret" not in str(findings)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [("kernel_modules_gpudirect", False, "off"), ("reboot_allowed", None, None), ("reboot_allowed", "yes", True)],
)
def test_words_of_yaml_become_what_the_variable_takes(options, name, given, value):
    effective, findings = preflight_host.validate(options, {name: given})
    assert (effective[name], findings) == (value, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel_modules_required", ["mlx5_core", "../evil"]),
        ("limits_services", ["k3s.service/../x"]),
        ("limits_memlock", "lots"),
        ("rdma_netns_retry_seconds", -1),
        ("reboot_serial", 0),
        ("verification_port", 80),
        ("verification_namespace", "kube-system"),
        ("nccl_tests_namespace", "kube-public"),
        ("verification_bandwidth_seconds", 0),
        ("matrix_peers", 0),
        ("matrix_round_seconds", -1),
        ("rail_links_settings", [{"pci": "0000:01:00.0", "mac": "02:00:00:00:00:01", "mtu": 9000}]),
        ("rail_links_settings", [{"mtu": 9000}]),
        ("rail_links_settings", [{"pci": "0000:01:00.0"}]),
        ("rail_links_settings", [{"pci": "0000:01:00.0", "mtu": 99999}]),
    ],
)
def test_a_value_of_the_right_type_can_still_be_wrong(options, name, value):
    effective, invalid = preflight_host.validate(options, {name: value})
    assert invalid == []
    assert objects(preflight_host.values(effective, options)) == [f"variable {name}"]


@pytest.mark.parametrize(("name", "hint"), [
    ("kernel_modules_gpudirct", "did you mean kernel_modules_gpudirect?"),
    ("discovery_rail", "did you mean discovery_rails?"),
    ("limits_zebra_quux_frobnicate", "no variable has a similar name"),
])  # fmt: skip
def test_a_mistyped_variable_is_found_with_the_nearest_known_name(options, name, hint):
    (finding,) = preflight_host.unknown([*options, name], options, ROLES)
    assert finding.object == f"variable {name}"
    assert hint in finding.next_step
    assert preflight_host.unknown([name], options, ROLES, accepted=[name]) == []


@pytest.mark.parametrize("name", removed.VARIABLES)
def test_a_variable_that_is_gone_is_refused_with_what_takes_its_place(options, name):
    assert name not in options
    (finding,) = preflight_host.unknown([name], options, ROLES)
    assert (finding.object, finding.next_step) == (f"variable {name}", removed.VARIABLES[name])


@pytest.mark.parametrize("name", ["ansible_host", "limit", "k3s_version", "discovery_hosts"])
def test_a_variable_of_someone_else_is_left_alone(options, name):
    assert preflight_host.unknown([name], options, ROLES) == []


# --- variables against the node ---------------------------------------------------------------------------------------


def combined(facts, variables, **changed):
    variables.update(changed)
    return objects(preflight_host.combinations(facts, variables)[0])


@pytest.mark.parametrize(("changed", "expected"), [
    ({"discovery_expected_hcas": 4}, 1),
    ({"discovery_expected_hcas": 2}, 0),
    ({"discovery_expected_ports": ["mlx5_1/1", "mlx5_9/1", "mlx5_0/2"]}, 2),
    ({"discovery_rails": [{"hca": "mlx5_9"}]}, 1),
    ({"discovery_rails": [{"hca": "mlx5_0", "pci": "0000:01:00.0"}]}, 1),
    ({"discovery_rails": [{}]}, 1),
    ({"discovery_rails": [{"hca": "mlx5_0"}, {"pci": "0000:01:00.0"}]}, 1),
    ({"discovery_rails": [{"hca": "mlx5_0", "port": 2}]}, 1),
    ({"discovery_rails": [{"mac": "02:00:00:00:00:99"}, {"netdev": "eth99"}]}, 2),
    ({"discovery_rails": [{"hca": "mlx5_0"}, {"hca": "mlx5_1"}]}, 0),
])  # fmt: skip
def test_what_the_variables_name_has_to_be_on_the_node(facts_of, variables, changed, expected):
    found = combined(facts_of("gh200-cx7-roce"), variables, **changed)
    assert len(found) == expected


def test_a_node_without_any_hca_is_refused_unless_that_is_wanted(facts_of, variables):
    facts = facts_of("gh200-cx7-roce")
    facts.update(hcas=[], cards_without_rdma=[], rails=[])
    assert combined(facts, variables) == ["HCA"]
    assert combined(facts, variables, discovery_hca_required=False) == []


def test_software_hcas_make_a_node_only_where_they_are_admitted(facts_of, variables):
    facts = facts_of("lab-rxe-debian12")
    ((finding,), _notes) = preflight_host.combinations(facts, variables)
    assert finding.object == "HCA"
    assert combined(facts, variables, discovery_software_hcas=True, discovery_expected_hcas=8) == []


def test_a_card_that_only_lacks_its_module_is_not_a_problem_because_the_run_loads_it(facts_of, variables):
    facts = facts_of("card-without-mlx5-ib")
    assert [card["driver"] for card in facts["cards_without_rdma"]] == ["mlx5_core"] * len(facts["cards_without_rdma"])
    assert combined(facts, variables, discovery_rails=[{"hca": "mlx5_0"}]) == []


def test_a_card_that_no_module_helps_is_reported_with_its_reason(facts_of, variables):
    facts = facts_of("card-on-vfio")
    facts["hcas"] = []
    findings, notes = preflight_host.combinations(facts, variables)
    assert objects(findings) == ["HCA"]
    assert any("vfio" in note for note in notes)


def test_a_strange_system_and_a_lack_of_rights_are_refused(facts_of, variables):
    facts = facts_of("gh200-cx7-roce")
    facts["node"]["os"] = {"id": "alpine", "like": [], "pretty_name": "Alpine Linux v3.20"}
    facts["node"]["euid"] = 1000
    assert combined(facts, variables) == ["operating system", "privilege"]


# --- the plan and the messages ----------------------------------------------------------------------------------------


CHANGE = Change("/etc/modules-load.d/gpufabric-rdma.conf", "write", "", "ib_umad")
PENDING = {
    "a change": Plan(changes=[CHANGE]),
    "a problem": Plan(findings=[Finding("a", "b", "c", "d")]),
    "a reboot": Plan(reboot_reasons=["the mode is set at boot"]),
    "an old image": Plan(stale_images=["/boot/initrd.img"]),
}


@pytest.mark.parametrize("name", PENDING)
def test_a_node_is_settled_only_where_no_planner_has_anything_to_do(facts_of, variables, monkeypatch, name):
    """Then no role of the host layer asks it again, and what was read of it still holds."""
    facts = facts_of("gh200-cx7-roce")
    made = {"limits": Plan(), "rail_links": Plan(notes=["a note"], not_verified=["a tree of files"])}
    monkeypatch.setattr(preflight_host, "plans", lambda *_given: made)
    assert preflight_host.plan(facts, variables)["settled"] is True
    assert preflight_host.plan(facts, {**variables, "driver_flavor": "inbox"})["settled"] is False
    assert preflight_host.plan({**facts, "unfinished": ["reboot"]}, variables)["settled"] is False
    made["kernel_modules"] = PENDING[name]
    assert preflight_host.plan({**facts}, variables)["settled"] is False


def test_a_foreign_netns_file_is_a_problem_of_the_plan(facts_of, variables):
    outcome = preflight_host.plan(facts_of("exclusive-netns-foreign-file"), variables)
    assert "RDMA netns mode" in objects(outcome["findings"])


def result(host, plan=(), reboot=(), notes=()):
    return {
        "host": host,
        "plan": list(plan),
        "reboot_reasons": list(reboot),
        "notes": list(notes),
    }


def test_one_message_lists_all_problems_of_all_hosts_with_four_facts():
    gone = preflight_host.unreachable("ssh: connect to host 192.0.2.1 port 22: No route to host")
    same = Finding("variable limits_memlock", "infinity", "'lots'", "correct it")
    found = [*at("node1", [gone]), *at("node2", [same]), *at("node3", [same])]
    head, text = preflight_host.failure_text(found, ["node1", "node2", "node3", "node4"])
    assert head == "3 problems on 3 of 4 nodes; nothing has been changed."
    assert text.splitlines()[:4] == [
        "node1  connection",
        "  wanted     a reachable node",
        "  seen       unreachable: ssh: connect to host 192.0.2.1 port 22: No route to host",
        "  next step  check address, user and key with: ansible HOST -m ansible.builtin.ping",
    ]
    assert "node2, node3  variable limits_memlock" in text
    change = {"object": "module ib_umad", "action": "load", "before": "", "after": "loaded", "why": "verbs need it"}
    text = preflight_host.plan_text([result("node1", plan=[change], reboot=["b"]), result("node2"), result("node3")])
    assert text.splitlines()[1::4] == ["  node1: 1 change", "  node2, node3: nothing to change"]
    assert "    reboot needed: b" in text.splitlines()


@pytest.mark.parametrize("flavor", ["doca", "inbox"])
def test_rhel_8_is_refused_before_its_driver_is_touched_and_verify_is_not(variables, facts_of, flavor):
    facts = facts_of("h100-8x-cx7-ib")
    facts["node"]["os"] = {"id": "rocky", "version_id": "8.10", "like": ["rhel", "fedora"], "pretty_name": "Rocky 8.10"}
    assert preflight_host.combinations(facts, variables)[0] == []
    ((finding,), _notes) = preflight_host.combinations(facts, {**variables, "driver_flavor": flavor})
    assert (finding.object, finding.seen) == ("distribution", "Rocky 8.10")
    facts["node"]["os"]["version_id"] = "9.6"
    assert preflight_host.combinations(facts, {**variables, "driver_flavor": flavor})[0] == []
