"""What is planned for the device plugin of a node, without and beside another one."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.tests.tools.device_plugin_wanted import WANTED

STOPPED = {"state": "inactive (dead)", "active": False, "main_pid": 0, "stale": False, "status": ""}
NOTHING = {
    **dict.fromkeys(("code", "config", "unit", "kubeconfig", "token")),
    **dict.fromkeys(("enabled", "home"), False),
    "stamp": "",
    "clusters": {},
    "service": STOPPED,
    "rivals": [],
    "python": "3.11",
    "machine": "x86_64",
    "ensurepip": True,
}
SERVED = {
    **NOTHING,
    **dict.fromkeys(("enabled", "home"), True),
    "code": "c1",
    "stamp": WANTED["stamp"],
    "config": {"content": "{}\n", "mode": "0644"},
    "unit": {"content": "[Unit]\n", "mode": "0644"},
    "service": {**STOPPED, "state": "active (running)", "active": True, "main_pid": 7},
}
GO = {"pid": 9, "kind": planner.GO, "program": "/bin/k8s-rdma-shared-dp", "where": "in a pod", "pod": True, "unit": ""}
GO |= {"config": "config /k8s-rdma-shared-dev-plugin/config.json in a pod", "names": ["a", "b"]}


def actions(state, **wanted):
    made = planner.plan(state, {**WANTED, **wanted})
    assert not made.findings
    return [(change.object, change.action) for change in made.changes]


def changed(state, **wanted):
    """What is changed, found and not done or not seen."""
    made = planner.plan(state, {**WANTED, **wanted})
    objects = [finding.object for finding in made.findings]
    return [change.object for change in made.changes], objects, made.not_applied, made.not_verified


INSTALLED = [(planner.CODE, "install"), (planner.VENV, "install"), (planner.CONFIG, "write"), (planner.UNIT, "write")]
RESTART = (planner.OBJECT, "restart")
GONE = [(planner.OBJECT, "stop"), (planner.ENABLED, "unlink"), (planner.UNIT, "remove"), (planner.CONFIG, "remove")]
STALE = {**SERVED, "service": {**SERVED["service"], "stale": True}}
UNIT = {**GO, "pod": False, "unit": "k8s-rdma-shared-dp.service", "where": "unit k8s-rdma-shared-dp.service"}


@pytest.mark.parametrize(
    ("state", "wanted", "done"),
    [
        pytest.param(
            NOTHING, {}, [*INSTALLED, (planner.ENABLED, "link"), (planner.OBJECT, "start")], id="nothing there"
        ),
        pytest.param(SERVED, {}, [], id="all as wanted"),
        pytest.param(SERVED, {"config": '{"a": 1}\n'}, [(planner.CONFIG, "write")], id="config"),
        pytest.param(SERVED, {"unit": "[Unit]\n\n"}, [(planner.UNIT, "write"), RESTART], id="unit"),
        pytest.param(SERVED, {"code": "c2"}, [(planner.CODE, "install"), RESTART], id="code"),
        pytest.param(SERVED, {"stamp": "python 3.13\n"}, [(planner.VENV, "install"), RESTART], id="libraries"),
        pytest.param(STALE, {}, [RESTART], id="interrupted before the restart"),
        pytest.param(
            {**SERVED, "config": {"content": "{}\n", "mode": "0600"}}, {}, [(planner.CONFIG, "mode")], id="mode"
        ),
        pytest.param(SERVED, {"present": False}, [*GONE, (planner.HOME, "remove")], id="absent"),
        pytest.param(NOTHING, {"present": False}, [], id="absent and nothing there"),
        pytest.param({**SERVED, "rivals": [GO]}, {"names": ["c"]}, [], id="another plugin with other resources"),
        pytest.param(
            {**NOTHING, "rivals": [GO, UNIT]}, {"migrate_allowed": True}, [], id="nothing before the pods are gone"
        ),
    ],
)
def test_what_is_done(state, wanted, done):
    assert actions(state, **wanted) == done


def test_without_systemd_the_files_are_written_and_the_rest_is_reported():
    done, findings, _not_applied, not_verified = changed({**NOTHING, "service": None})
    assert (planner.UNIT in done, planner.OBJECT in done, findings, bool(not_verified)) == (True, False, [], True)


def test_a_unit_is_stopped_before_ours_is_installed():
    made = actions({**NOTHING, "rivals": [UNIT]}, migrate_allowed=True)
    assert made[0] == ("unit k8s-rdma-shared-dp.service", "stop and disable")
    assert made[-1] == (planner.OBJECT, "start")


BY_HAND = {**GO, "pod": False, "where": "started by hand"}


@pytest.mark.parametrize(
    ("rival", "allowed", "findings", "left"),
    [
        pytest.param(GO, None, ["process 9 (the Go plugin, in a pod)"], 0, id="no consent"),
        pytest.param({**GO, "names": None}, None, ["process 9 (the Go plugin, in a pod)"], 0, id="it may serve ours"),
        pytest.param(GO, False, [], 1, id="the answer is no"),
        pytest.param(BY_HAND, True, ["process 9 (the Go plugin)"], 0, id="it cannot be stopped"),
    ],
)
def test_beside_another_plugin_nothing_is_installed_without_consent(rival, allowed, findings, left):
    done, found, not_applied, _not_verified = changed({**NOTHING, "rivals": [rival]}, migrate_allowed=allowed)
    assert (done, found, len(not_applied)) == ([], findings, left)


@pytest.mark.parametrize(
    ("state", "wanted", "text"),
    [
        ({}, {"wheels_missing": ["grpcio"]}, "a locked wheel of grpcio"),
        ({"ensurepip": False}, {"from_index": True}, "ensurepip"),
    ],
)
def test_what_the_libraries_lack_is_reported_before_anything_changes(state, wanted, text):
    made = planner.plan({**NOTHING, **state}, {**WANTED, **wanted})
    assert text in made.findings[0].wanted
    assert not made.changes
    assert planner.plan({**SERVED, **state}, {**WANTED, **wanted}).findings == []


# --- over DRA ---------------------------------------------------------------------------------------------------------

KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
CLUSTER = {"server": "https://127.0.0.1:6444", "certificate-authority": "/ca.crt"}
OVER_DRA = {"kubeconfig": {"source": KUBELET, "server": ""}}
WRITTEN = {"content": planner.kubeconfig(CLUSTER), "mode": "0644"}


def test_over_dra_a_kubeconfig_names_the_kubelets_server_and_a_token_of_its_own():
    assert (planner.KUBECONFIG, "write") in actions({**NOTHING, "clusters": {KUBELET: CLUSTER}}, **OVER_DRA)
    document = json.loads(WRITTEN["content"])
    assert document["clusters"][0]["cluster"] == CLUSTER
    assert document["users"][0]["user"] == {"tokenFile": planner.TOKEN}
    known = {**SERVED, "clusters": {KUBELET: CLUSTER}, "kubeconfig": WRITTEN}
    assert actions(known, **OVER_DRA) == []
    moved = {"kubeconfig": {"source": KUBELET, "server": "https://10.0.0.1:6443"}}
    assert actions(known, **moved) == [(planner.KUBECONFIG, "write"), (planner.OBJECT, "restart")]


def test_a_node_that_has_joined_no_cluster_gets_the_plugin_and_is_told():
    done, _findings, _not_applied, not_verified = changed({**NOTHING, "clusters": {KUBELET: None}}, **OVER_DRA)
    assert (planner.KUBECONFIG in done, len(not_verified)) == (False, 1)


def test_without_dra_kubeconfig_and_token_of_an_earlier_run_go_and_no_token_is_shown():
    left = {**SERVED, "kubeconfig": WRITTEN, "token": {"content": "a token", "mode": ""}}
    assert actions(left) == [(planner.KUBECONFIG, "remove"), (planner.TOKEN, "remove"), RESTART]
    removed = [name for name, _action in actions(left, present=False)]
    assert removed[2:5] == [planner.UNIT, planner.KUBECONFIG, planner.TOKEN]
