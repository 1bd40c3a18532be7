"""What runs pods in a cluster, over all objects that the collection applies: rendered, not listed by hand."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import rendering

SETTINGS = rendering.role_vars("node_ready")["__node_ready_configuration"]
STARTUP = {"key": SETTINGS["taint"], "value": "true", "effect": SETTINGS["effect"]}
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "value": "", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def workloads():
    return rendering.workloads()


def test_every_template_with_pods_is_looked_at(workloads):
    """What a text of the repository calls a workload, and what a role waits for, is among what was rendered."""
    waited = {"daemonset/kube-flannel-ds", "daemonset/kube-multus-ds", "daemonset/rdma-shared-dp-ds"}
    for items in rendering.role_vars("networks")["__networks_workloads"].values():
        waited |= {item["resource"] for item in items}
    assert {name.split()[0].lower() + "/" + name.split("/")[1] for name in workloads} == waited
    texts = [path.read_text() for path in rendering.ROLES.glob("*/templates/*.yml.j2")]
    written = sum(text.count(f"\nkind: {kind}\n") for text in texts for kind in rendering.WORKLOADS)
    assert written == len(workloads) - 1, "all but the device plugin's"


@pytest.mark.parametrize("taint", [STARTUP, CONTROL_PLANE, GPU], ids=lambda taint: taint["key"])
def test_what_is_deployed_and_waited_for_can_start_on_a_tainted_node(workloads, taint):
    """A node keeps the startup taint until Multus and the plugin serve; a role that waits for a pod that the taint
    keeps off every node waits for ever, and so does the taint."""
    kept_off = [name for name, item in workloads.items() if not rendering.tolerates(rendering.pod_of(item), taint)]
    assert kept_off == []


def test_only_pods_that_belong_to_their_node_tolerate_everything(workloads):
    """A pod that may run elsewhere has to leave a node that is cordoned or lost."""
    gone = [
        {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "value": "", "effect": "NoExecute"},
    ]
    stuck = {
        name
        for name, item in workloads.items()
        for taint in gone
        if item["kind"] != "DaemonSet" and rendering.tolerates(rendering.pod_of(item), taint)
    }
    assert stuck == set()


def test_the_device_plugin_s_patches_keep_its_tolerations():
    """A kustomize component that set the list would replace it."""
    for path in sorted((rendering.PLUGIN / "components").rglob("*.yaml")):
        assert "tolerations" not in yaml.safe_dump(list(yaml.safe_load_all(path.read_text())))
