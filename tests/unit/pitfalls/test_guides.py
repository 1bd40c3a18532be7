"""The catalogue of failures: each row planted alone on two sound nodes, and the one root that verify names."""

from __future__ import annotations

import pathlib
import re
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import catalogue as findings_catalogue
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import pod_network
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world, render_failures, tree
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_rows import BOTH, ON_THE_CLUSTER, ROWS, Row
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import RESOURCE, World

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Facts of captured nodes, and the variables of a host that sets none."""
    variables, findings = preflight_host.validate(
        {k: v for role in documented_roles().values() for k, v in role.items()}, {}
    )
    assert findings == []
    found = {}
    for name in ("gh200-cx7-roce", "card-without-mlx5-ib", "exclusive-netns-foreign-file"):
        root = tmp_path_factory.mktemp(name)
        tree.lay_out(tree.load(name), root)
        rails = [{"hca": "mlx5_0"}, {"hca": "mlx5_1"}] if name.startswith("gh200") else []
        found[name] = gather(Tree(str(root)), Seams.of(Tree(str(root))), rails=rails[:1])
        if rails:
            found["gh200-two-rails"] = gather(Tree(str(root)), Seams.of(Tree(str(root))), rails=rails)
    pitfall_world.converged(found["gh200-cx7-roce"], variables)
    return {**found, "variables": variables}


@pytest.fixture
def world(captured):
    made = World(captured["gh200-cx7-roce"], captured["variables"])
    made.other = captured
    return made


def failed(judged: dict, host: str) -> dict:
    return {item["id"]: item for item in judged["checks"][host] if item["status"] == "failed"}


def test_two_sound_nodes_have_no_failure(world):
    judged = world.judge()
    assert [failed(judged, host) for host in BOTH] == [{}, {}]
    assert [node["diagnosis"] for node in judged["judged"]] == [None, None]
    assert not any("failure" in item for items in judged["checks"].values() for item in items)


def test_a_sound_pod_of_a_user_has_no_failure(world):
    world.use()
    assert [node["diagnosis"] for node in world.judge()["judged"]] == [None, None]


def diagnosed(world, row: Row) -> dict:
    row.plant(world)
    judged = world.judge()
    return {node["host"]: node["diagnosis"] for node in judged["judged"] if node["diagnosis"]}


def right(found: dict, row: Row) -> bool:
    """One root on each host that it concerns, everything that failed explained by it, and nothing elsewhere."""
    return (
        set(found) == set(row.hosts)
        and all(verdict["root"] == row.root and not verdict["besides"] for verdict in found.values())
        and row.beneath <= {item["id"] for item in found[row.hosts[0]]["consequences"]}
    )


@pytest.mark.parametrize("name", ROWS)
def test_the_pitfall_is_the_one_root(name, world):
    row = ROWS[name]
    found = diagnosed(world, row)
    assert right(found, row), {
        host: (
            verdict["root"],
            *([item["id"] for item in verdict[key]] for key in ("shown", "consequences", "besides")),
        )
        for host, verdict in found.items()
    }


# --- the rules --------------------------------------------------------------------------------------------------------


def bare(checks: dict) -> dict:
    """Checks as they were before the diagnosis."""
    marks = ("failure", "root", "consequence_of")
    return {
        host: [{key: item[key] for key in item if key not in marks} for item in items] for host, items in checks.items()
    }


def without(failure, sign=None):
    """The catalogue without a failure, or without one of its signs."""
    left = [one for one in failure.signs if one is not sign] if sign else []
    changed = [failure._replace(signs=left)] if left else []
    return [item for one in findings_catalogue.CATALOGUE for item in (changed if one is failure else [one])]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_fails_without_its_rule(name, world):
    """And without it no other failure of the catalogue claims the same symptoms."""
    row = ROWS[name]
    row.plant(world)
    checks = bare(world.judge()["checks"])
    assert right(diagnosis.diagnose(checks)[1], row)
    assert not right(diagnosis.diagnose(checks, without(findings_catalogue.BY_ID[row.root]))[1], row)


def made(identity, obj="thing", seen="bad", status="failed"):
    return host_checks.check(identity, obj, status, "good", seen, "fix it")


def roots(by_host, catalogue=findings_catalogue.CATALOGUE):
    return {host: verdict["root"] for host, verdict in diagnosis.diagnose(by_host, catalogue)[1].items()}


# Sights that no row above plants, one a sign of the catalogue.
SIGHTS = {
    "module:nvidia_peermem": (made("module:nvidia_peermem", seen="not loaded"), "peermem-absent"),
    "open refused in the pod": (
        made("pod:seed:registration:mlx5_0", seen="0 MiB; ulimit -l 64, IPC_LOCK effective; Permission denied"),
        "infiniband-permission-denied",
    ),
    "registration alone": (
        made(
            "pod:seed:registration:mlx5_0", seen="0 MiB; ulimit -l 8192, IPC_LOCK not effective; Couldn't allocate MR"
        ),
        "memlock-too-low",
    ),
    "missing program in an event": (
        made("pod:workload:running", seen='Pending: failed to find plugin "macvlan" in path [/opt/cni/bin]'),
        "cni-binaries",
    ),
    "several configurations": (made("cni:several-configurations", seen="2 are loaded"), "multus-not-first"),
    "no note of Multus": (
        made("pod:workload:network-status", seen="no network-status annotation"),
        "multus-not-first",
    ),
    "node says cni": (made("cluster:node", seen="not Ready: cni plugin not initialized"), "no-cni"),
    "pod refused": (made("pod:running", seen='Failed: violates PodSecurity "baseline"'), "pod-security-refuses"),
    "test pods refused": (
        made("pod:tests", seen='the test pods could not be made: violates PodSecurity "restricted"'),
        "pod-security-refuses",
    ),
    "bad JSON in the policy": (made("policy:config", seen="not valid JSON: Expecting value"), "plugin-config-invalid"),
    "one rail not advertised": (
        made("resource:rdma/hca_shared_devices_1", seen="not advertised; there are rdma/hca_shared_devices_0"),
        "selector-too-narrow",
    ),
    "nothing advertised": (
        made("resource:rdma/hca_shared_devices_0", seen="not advertised; there are no extended resources"),
        "nothing-allocatable",
    ),
    "ipoib on Ethernet": (made("nad:ipoib-ethernet", seen="eth2 is Ethernet"), "roce-or-infiniband"),
    "macvlan refused": (
        made("pod:running", seen="Pending: failed to create macvlan: invalid argument"),
        "roce-or-infiniband",
    ),
    "MTU of a NIC": (made("state:NIC eth2 MTU", "NIC eth2 MTU", "1500"), "active-mtu-1024"),
    "MTU of an attachment": (made("nad:mtu", seen="mtu 9000; eth2 of node1 has 1500"), "active-mtu-1024"),
    "blocks that clash": (
        made("nad:block-clash", seen="node1 and node2 both hand out 10.0.0.2"),
        "duplicate-addresses",
    ),
    "no network in an event": (
        made("pod:running", seen="Pending: cannot find a network-attachment-definition (rail0)"),
        "network-name-differs",
    ),
    "no address of a test pod": (made("pod:workload:net1", seen="addresses none"), "net1-without-address"),
    "a block too small": (made("nad:block-size", seen="a block of 2 addresses per node"), "net1-without-address"),
    "addresses used up": (
        made("pod:workload:running", seen="Pending: no IP addresses available in range set"),
        "net1-without-address",
    ),
    "no uverbs in the pod": (made("pod:workload:devices", seen="without uverbs0"), "infiniband-missing"),
    "no device in the pod": (made("pod:devices", seen="nothing"), "infiniband-missing"),
    "no resource at all": (made("pod:resource", seen="none"), "infiniband-missing"),
    "NCCL's own log": (made("nccl:transport", "nccl-tests", "NET/Socket : Using [0]eth0"), "nccl-tcp"),
    "a GID of another interface": (made("pod:workload:gid:mlx5_0", seen="4 GIDs, none of net1"), "nccl-tcp"),
    "a fixed index": (made("pod:gid-index", seen="NCCL_IB_GID_INDEX=3"), "nccl-tcp"),
    "port says INIT": (made("port:mlx5_0/1", "port mlx5_0/1", "state INIT, phys_state LinkUp"), "port-down"),
}


@pytest.mark.parametrize("name", SIGHTS)
def test_a_symptom_is_named(name):
    item, root = SIGHTS[name]
    assert roots({"node1": [item]}) == {"node1": root}


@pytest.fixture(scope="module")
def planted(captured):
    """The checks of each row, and of each sight."""
    found = []
    for row in ROWS.values():
        one = World(captured["gh200-cx7-roce"], captured["variables"])
        one.other = captured
        row.plant(one)
        found.append(bare(one.judge()["checks"]))
    return found + [{"node1": [item]} for item, _root in SIGHTS.values()]


def test_every_sign_is_needed_by_a_row_or_a_symptom(planted):
    outcome = [(checks, diagnosis.diagnose(checks)[0]) for checks in planted]
    idle = []
    for failure in findings_catalogue.CATALOGUE:
        shown = [pair for pair in outcome if f"'{failure.id}'" in repr(pair[1])]
        for sign in failure.signs:
            catalogue = without(failure, sign)
            if all(diagnosis.diagnose(checks, catalogue)[0] == seen for checks, seen in shown):
                idle.append((failure.id, sign))
    assert idle == []


def test_each_consequence_of_the_chain_has_its_own_name_and_one_root(world):
    ROWS["GH200: mlx5_ib absent"].plant(world)
    checks = bare(world.judge()["checks"])
    checks["node1"].append(made("nccl:transport", "nccl-tests", "NET/Socket : Using [0]eth0"))
    named, verdicts = diagnosis.diagnose(checks)
    assert [item["id"] for item in named["node1"] if item.get("root")] == ["module:mlx5_ib"]
    chain = {item["id"]: item for item in named["node1"] if item.get("consequence_of")}
    assert {item["consequence_of"] for item in chain.values()} == {"mlx5-ib-absent"}
    assert [chain[one]["failure"] for one in (f"resource:{RESOURCE}", "pod:workload:running", "nccl:transport")] == [
        "nothing-allocatable",
        "pods-pending",
        "nccl-tcp",
    ]
    assert verdicts["node1"]["besides"] == []


def test_a_second_fault_that_has_nothing_to_do_with_the_first_stays_beside_it():
    by_host = {"node1": [made("memlock:k3s"), made("nad:default-route"), made("pod:workload:user")]}
    checks, verdicts = diagnosis.diagnose(by_host)
    assert verdicts["node1"]["root"] == "memlock-too-low"
    assert [item["id"] for item in verdicts["node1"]["besides"]] == ["nad:default-route", "pod:workload:user"]
    assert [item.get("failure") for item in checks["node1"]] == ["memlock-too-low", "macvlan-on-management", None]
    assert [item.get("root") for item in checks["node1"]] == [True, None, None]


def test_what_is_wrong_with_a_rail_explains_nothing_on_another():
    port = made("port:mlx5_1/1", "port mlx5_1/1 (rail 1, netdev eth3)", "state DOWN, phys_state Disabled")
    mine = made("resource:rdma/hca_shared_devices_1", "hca_shared_devices_1 on node1", "capacity 63, allocatable 0")
    other = made("resource:rdma/hca_shared_devices_0", "hca_shared_devices_0 on node1", "capacity 63, allocatable 0")
    checks, _verdicts = diagnosis.diagnose({"node1": [port, mine, other]})
    assert [item.get("consequence_of") for item in checks["node1"]] == [None, "port-down", None]


def test_a_connection_fails_because_of_its_far_end_and_a_pod_because_of_an_object_of_the_cluster():
    far = made("fabric:rail0-a-b-rping", "rping rail 0: a mlx5_0 -> b mlx5_0", "no result")
    third = made("fabric:rail0-a-c-rping", "rping rail 0: a mlx5_0 -> c mlx5_0", "no result")
    checks, verdicts = diagnosis.diagnose({"a": [far, third], "b": [made("module:mlx5_ib")], "c": []})
    assert [item.get("consequence_of") for item in checks["a"]] == ["mlx5-ib-absent", None]
    assert (verdicts["a"]["root"], verdicts["a"]["on"]) == ("mlx5-ib-absent", "b")
    waits = made("pod:workload:running", "pod workload on b", "Pending: FailedCreatePodSandBox")
    checks, verdicts = diagnosis.diagnose({"a": [made("nad:macvlan-infiniband")], "b": [waits]})
    assert checks["b"][0]["consequence_of"] == verdicts["b"]["root"] == "roce-or-infiniband"
    assert "seen on a" in diagnosis.text(verdicts)


def test_a_pod_over_infiniband_without_a_network_is_not_a_failure():
    item = made("pod:annotation", seen="rdma/ib without a networks annotation", status="not_verified")
    assert diagnosis.diagnose({"node1": [item]})[1] == {}


def test_what_passed_or_could_not_be_checked_is_never_named():
    items = [made("module:mlx5_ib", status=status) for status in ("passed", "not_verified", "unused")]
    checks, verdicts = diagnosis.diagnose({"node1": items})
    assert (checks, verdicts) == ({"node1": items}, {})


def test_many_nodes_are_named_fast():
    items = [made("module:mlx5_ib"), *(made(f"resource:rdma/hca_shared_devices_{n}") for n in range(8))]
    items += [made(f"fabric:rail{n}", f"rping rail {n}: node0 mlx5_{n} -> node1 mlx5_{n}") for n in range(40)]
    started = time.monotonic()
    verdicts = diagnosis.diagnose({f"node{number}": items for number in range(64)})[1]
    assert time.monotonic() - started < 10
    assert len(verdicts) == 64


# --- said to people ---------------------------------------------------------------------------------------------------


def test_the_report_has_the_root_with_its_fix_and_the_consequences_beneath_it(world):
    ROWS["GH200: mlx5_ib absent"].plant(world)
    nodes = world.judge()["judged"]
    text = diagnosis.text({node["host"]: node["diagnosis"] for node in nodes})
    failure = findings_catalogue.BY_ID["mlx5-ib-absent"]
    assert text.startswith("node1  mlx5-ib-absent: the RDMA driver mlx5_ib is not loaded\n  seen       module mlx5_ib")
    for words in (failure.cause, failure.evidence, failure.fix):
        assert " ".join(words.split()) in " ".join(text.split())
    beneath = text.partition("beneath it\n")[2]
    assert f"nothing-allocatable: {RESOURCE} on node1: capacity 0, allocatable 0" in beneath
    listed = host_checks.report_text(nodes)
    assert "module mlx5_ib" in listed.partition("Failed\n")[2].partition("Not verified")[0]
    assert "capacity 0" not in listed


# --- refused before anything is changed -------------------------------------------------------------------------------


def refused_module(name):
    def findings(captured):
        facts, variables = _copy(captured)
        blocked = [{"path": "/etc/modprobe.d/x.conf", "line": 1, "text": f"blacklist {name}"}]
        facts["modules"][name] = {**facts["modules"][name], "loaded": False, "blocked_by": blocked}
        variables["kernel_modules_gpudirect"] = "peermem"
        return preflight_host.plan(facts, variables)["findings"]

    return findings


def foreign_netns(captured):
    _facts, variables = _copy(captured)
    return preflight_host.plans(captured["exclusive-netns-foreign-file"], variables)["rdma_netns"].findings


def bad_resources(captured):
    _facts, variables = _copy(captured)
    options = {name: option for role in documented_roles().values() for name, option in role.items()}
    variables["device_plugin_resources"] = "rail"
    return preflight_host.values(variables, options)


def flannel_cidr(captured):
    facts, _variables = _copy(captured)
    wanted = {"cidr": "10.244.0.0/16", "backend": "vxlan", "mtu": 0, "interface": "", "fabric_allowed": None}
    wanted.update(api_server="", node_address="", cluster_cidr="10.42.0.0/16", service_cidr="10.43.0.0/16")
    return pod_network.findings(facts, wanted)


def attachment(**changes):
    def findings(_captured):
        netdevs = pitfall_world.netdevs
        nodes = [{"host": host, "netdevs": netdevs(number), "routes": []} for number, host in enumerate(BOTH, 1)]
        return nad_lint.lint(nad_lint.from_objects([pitfall_world.network(**changes)]), nodes, {})

    return findings


def _copy(captured):
    one = World(captured["gh200-cx7-roce"], captured["variables"])
    return one.facts["node1"], one.variables["node1"]


REFUSED = {
    "mlx5-ib-absent": (refused_module("mlx5_ib"),),
    "peermem-absent": (refused_module("nvidia_peermem"),),
    "plugin-config-invalid": (bad_resources,),
    "pod-cidr-mismatch": (flannel_cidr,),
    "macvlan-on-management": (attachment(master="eth0", ipam={}),),
    "duplicate-addresses": (attachment(ipam={"type": "host-local", "subnet": "10.56.0.0/24"}),),
    "roce-or-infiniband": (
        attachment(master="ib0", ipam={}),
        attachment(type="ipoib", ipam={}),
    ),
    "netns-exclusive": (foreign_netns,),
}


@pytest.mark.parametrize("identity", REFUSED)
def test_a_refused_run_says_which_failure_it_prevented(identity, captured):
    for findings in REFUSED[identity]:
        found = [item._asdict() for item in findings(captured)]
        assert [findings_catalogue.prevented(item) for item in found] == [identity] * len(found)
        assert found
        text = preflight_host.failure_text([{"host": "node1", "findings": found}])[1]
        assert re.search(rf"failure +{identity}\n?", text)


def test_every_rule_of_refusal_is_shown_and_others_get_no_name():
    assert set(REFUSED) == {failure.id for failure in findings_catalogue.CATALOGUE if failure.refused}
    assert (
        findings_catalogue.prevented({"object": "variable limits_memlock", "wanted": "a number", "seen": "x"}) is None
    )


# --- the catalogue itself ---------------------------------------------------------------------------------------------


def test_the_seven_lists_are_whole():
    """33 rows of the guides; the missing CNI program and the one of another processor are one of them."""
    assert sum(len(failure.rows) for failure in findings_catalogue.CATALOGUE) == 33
    assert len({name.replace("of another arch", "missing") for name in ROWS}) == 33
    for failure in findings_catalogue.CATALOGUE:
        mine = [name.partition(":")[0] for name, row in ROWS.items() if row.root == failure.id]
        assert {source for source, _words in failure.rows} == set(mine), failure.id


def test_no_fix_is_the_hosts_network_or_a_privileged_container():
    for failure in findings_catalogue.CATALOGUE:
        # Pod Security's level of that name is for the namespace of the plugin.
        fix = failure.fix.replace("pod-security.kubernetes.io/enforce=privileged", "")
        assert not re.search(r"(?i)host.?network: *true|privileged", fix), failure.id


def test_the_variables_that_it_names_exist():
    roles = documented_roles()
    options = {name for role in roles.values() for name in role}
    prefixes = "|".join(roles)
    for failure in findings_catalogue.CATALOGUE:
        for name in re.findall(rf"\b(?:{prefixes})_\w+", f"{failure.fix} {failure.cause} {failure.evidence}"):
            assert name in options or name == "per_node_block_size", f"{failure.id}: {name}"


def test_the_page_is_the_catalogue():
    assert render_failures.TARGET.read_text() == render_failures.render()


def test_what_has_level_e3_is_planted_in_the_cluster_by_a_test_that_names_it():
    assert {failure.id for failure in findings_catalogue.CATALOGUE if failure.level == "E3"} == set(ON_THE_CLUSTER)
    for failure, place in ON_THE_CLUSTER.items():
        file, _colons, test = place.partition("::")
        source = (render_failures.ROOT / file).read_text().partition(f"def {test}(")[2].partition("\ndef test_")[0]
        assert f'"{failure}"' in source, f"{file}::{test} does not name {failure}"
