"""What we apply beside the manifests of the locked versions: each difference has a reason, each reason a difference."""

from __future__ import annotations

import copy

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import rendered_objects, upstream_facts

COMPONENTS = upstream_facts.components()
LOCK = yaml.safe_load((upstream_facts.ROOT / "lock/artifacts.yml").read_text())
TESTBED = yaml.safe_load((upstream_facts.ROOT / "lock/testbed.yml").read_text())


@pytest.fixture(scope="module")
def objects():
    return rendered_objects.by_source()


def compared(component, items):
    found = upstream_facts.differences(component["facts"], upstream_facts.facts(items, component["ours"].get("names")))
    return found, *upstream_facts.explained(component, found)


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_difference_has_a_reason_and_every_reason_a_difference(name, objects):
    component = COMPONENTS[name]
    found, _reasons, without, idle = compared(component, objects[component["ours"]["path"]])
    assert {fact: found[fact] for fact in without} == {}, "(upstream, ours): take theirs, or write down why not"
    assert idle == [], "these reasons explain nothing any more: remove them"


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_facts_are_those_of_the_locked_version(name):
    locked = {row["name"]: row["version"] for row in [*TESTBED["programs"], *LOCK["images"]]}
    component = COMPONENTS[name]
    assert component["version"] == locked[component["locked_as"]]
    source = component["source"]
    assert len(source["commit"]) == 40
    assert source["paths"] != []
    assert all(entry["reason"] and entry["facts"] for entry in component["reasons"])


def test_every_manifest_that_runs_pods_is_compared(objects):
    runs = {
        path
        for path, items in objects.items()
        for item in items
        if item.get("kind") in rendered_objects.WORKLOADS and "selector" in item["spec"]
    }
    assert runs == {component["ours"]["path"] for component in COMPONENTS.values()}


def _container(items, kind="DaemonSet"):
    return next(rendered_objects.pod_of(item)["containers"][0] for item in items if item["kind"] == kind)


@pytest.mark.parametrize(
    ("name", "plant", "fact"),
    [
        (
            "sriov-cni",
            lambda items: _container(items)["securityContext"].update(privileged=True),
            "DaemonSet container kube-sriov-cni: securityContext.privileged",
        ),
        (
            "nv-ipam",
            lambda items: _container(items)["resources"].pop("limits"),
            "DaemonSet container node: limits.memory",
        ),
        (
            "whereabouts",
            lambda items: next(item for item in items if item["kind"] == "ClusterRole")["rules"].pop(3),
            "ClusterRole cni: core/nodes",
        ),
        (
            "flannel",
            lambda items: _container(items)["args"].remove("--ip-masq"),
            "DaemonSet container kube-flannel: argument --ip-masq",
        ),
        (
            "multus",
            lambda items: _container(items)["volumeMounts"].pop(),
            "DaemonSet container kube-multus: mount /etc/cni/net.d/multus.d",
        ),
    ],
)
def test_a_planted_difference_is_found(name, plant, fact, objects):
    component = COMPONENTS[name]
    items = copy.deepcopy(objects[component["ours"]["path"]])
    plant(items)
    found, reasons, without, _idle = compared(component, items)
    assert fact in found
    # The mount that Multus lacks is one whose difference has a reason; its value in docs/upstream.md changes.
    assert fact in without or fact in reasons


def test_a_reason_that_explains_nothing_is_named():
    component = {"reasons": [{"facts": ["DaemonSet: hostNetwork", "DaemonSet: x*"], "reason": "because"}]}
    reasons, without, idle = upstream_facts.explained(component, {"DaemonSet: xyz": (1, 2), "Other": (1, None)})
    assert (reasons, without, idle) == ({"DaemonSet: xyz": "because"}, ["Other"], ["DaemonSet: hostNetwork"])
