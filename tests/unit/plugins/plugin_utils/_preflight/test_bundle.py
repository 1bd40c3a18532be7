"""A bundle that lacks anything that a role takes is refused, with the command that adds it: every row, every node."""

from __future__ import annotations

import itertools
import json
import re
import shlex

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.action.plan import LOCK as LOCK_FILE
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels as wheels_of
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import bundle as needs
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import k3s
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils._preflight import test_k3s as machines

LOCK = yaml.safe_load(LOCK_FILE.read_text())
ROLES = LOCK_FILE.parents[1] / "roles"
PINNED = needs.with_digest(LOCK)
IMAGES = yaml.safe_load((ROLES / "networks/vars/main.yml").read_text())["__networks_pinned_images"]
BASE = [
    yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())[f"{role}_image"] for role in ("flannel", "multus")
]
DIGESTS = {image["reference"]: "sha256:" + "1" * 64 for image in LOCK["images"]}
CLUSTER = ("cni_plugins", "k3s", "flannel", "multus", "networks")
WHERE = "/srv/bundle"


def full(architectures):
    """A bundle of everything in the lock that the cluster's roles use."""
    rows = [*LOCK["artifacts"], *LOCK["images"]]
    names = {row["name"] for row in rows if row["used_by"] in CLUSTER}
    wanted = bundle_lock.wanted(LOCK, names, architectures, ["rhel9"], DIGESTS)
    return bundle_lock.describe("release", wanted["files"], [{**row, "sha256": "0" * 64} for row in wanted["images"]])


def node(architecture, components=(), pulled=False, selinux=False, python="3.11", wheels=""):
    seen = {"architecture": architecture, "python": python}
    if selinux:
        seen.update(family="rhel", distribution="rhel9", selinux="enforcing")
    found = machines.node(seen=seen)
    found["needs"] = {
        "plugins": ["loopback", "bridge", "host-local", "portmap", "flannel"],
        "images": [*BASE, *(IMAGES[name] for name in components)],
        "pulled": pulled,
        "wheels": wheels,
    }
    return found


def refused(found, bundle):
    """(next steps of what k3s' own preflight refuses in the bundle, findings of the rest)."""
    decided = k3s.decide([found], bundle, WHERE)["findings"]
    own = [item["next_step"] for item in decided if item["object"].startswith("bundle ")]
    return own, needs.lacking(found, bundle, WHERE, PINNED)


def steps(found, bundle):
    decided, lacking = refused(found, bundle)
    return [*decided, *(finding.next_step for finding in lacking)]


def without(bundle, kind, row):
    return {**bundle, kind: [other for other in bundle[kind] if other is not row]}


def taken(found, row):
    """Whether this node takes this row, said once more and in other words: by the lock's user of it."""
    if row.get("architecture", "any") not in (found["state"]["architecture"], "any"):
        return False
    name = row.get("name") or row["reference"]
    if name == "k3s-selinux":
        return found["state"]["selinux"] == "enforcing"
    if "reference" not in row or name.startswith("k3s-airgap-images:"):
        return True
    return name in found["needs"]["images"] or "/flannel-cni-plugin:" in name


NODES = [
    pytest.param(architecture, components, selinux, id=f"{architecture}-{'-'.join(components) or 'none'}-{selinux}")
    for architecture, components, selinux in itertools.product(
        ("amd64", "arm64"), ((), ("nv-ipam",), ("whereabouts", "ib-sriov-cni"), tuple(IMAGES)), (False, True)
    )
]


@pytest.mark.parametrize(("architecture", "components", "selinux"), NODES)
def test_each_row_that_a_node_takes_is_missed_and_no_other(architecture, components, selinux):
    found, bundle = node(architecture, components, selinux=selinux), full(["amd64", "arm64"])
    assert steps(found, bundle) == []
    missed = 0
    for kind in ("files", "images"):
        for row in bundle[kind]:
            said = steps(found, without(bundle, kind, row))
            assert bool(said) is taken(found, row), row
            missed += bool(said)
            for step in said:
                assert_command(step, architecture, "rhel9" if row.get("distribution") else None)
    assert missed >= 6 + len(components)


def assert_command(step, architecture, distribution):
    """The command is whole: words of a shell, options that the playbook knows, and it adds without taking away."""
    command = re.search(r"ansible-playbook .*?'\{.*?\}'(?=[, ])", step)[0]
    words = shlex.split(command)
    assert words[:4] == ["ansible-playbook", "gpufabric.rdma.bundle", "-e", f"bundle_dir={WHERE}"]
    given = json.loads(words[5])
    assert given["bundle_architectures"] == ["amd64", "arm64"], "what the bundle holds stays in it"
    playbook = (ROLES.parent / "playbooks/bundle.yml").read_text()
    assert all(name in playbook for name in given)
    assert distribution is None or distribution in given["bundle_distributions"]


def test_an_image_that_no_node_may_pull_is_asked_for_with_its_digest_if_the_lock_has_none():
    bundle = full(["amd64"])
    reference = IMAGES["whereabouts"]
    row = next(row for row in bundle["images"] if row["reference"] == reference)
    short = without(bundle, "images", row)
    (step,) = steps(node("amd64", ("whereabouts",)), short)
    assert f'"bundle_image_digests": {{"{reference}": "sha256:…"}}' in step
    assert steps(node("amd64", ("whereabouts",), pulled=True), short) == [], "the nodes pull it"


@pytest.mark.parametrize(("python", "architecture"), [("3.9", "amd64"), ("3.11", "arm64"), ("3.14", "amd64")])
def test_each_wheel_that_a_nodes_python_takes_is_missed_and_no_other(python, architecture):
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    every = {entry["file"] for wheel in LOCK["wheels"] for entry in wheel["files"]}
    taken_here = set(wheels_of.fitting(LOCK["wheels"], python, machine))
    assert len(taken_here) == len(LOCK["wheels"]), "one file of each package"
    found = node(architecture, python=python, wheels="/srv/wheels")
    assert needs.lacking_wheels(found, every, LOCK["wheels"]) == []
    for name in every:
        said = needs.lacking_wheels(found, every - {name}, LOCK["wheels"])
        assert bool(said) is (name in taken_here)
        assert all(f'"bundle_pythons": ["{python}"]' in finding.next_step for finding in said)
    assert needs.lacking_wheels(node(architecture, python=python), set(), LOCK["wheels"]) == [], "pip has an index"
