"""What is planned for the device plugin of a node, without and beside another one."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.tests.tools.device_plugin_wanted import WANTED

NOTHING = {
    "code": None,
    "stamp": "",
    "config": None,
    "unit": None,
    "kubeconfig": None,
    "token": None,
    "clusters": {},
    "enabled": False,
    "home": False,
    "service": {"state": "inactive (dead)", "active": False, "main_pid": 0, "stale": False, "status": ""},
    "rivals": [],
    "python": "3.11",
    "machine": "x86_64",
    "ensurepip": True,
}
SERVED = {
    **NOTHING,
    "code": "c1",
    "stamp": WANTED["stamp"],
    "config": {"content": "{}\n", "mode": "0644"},
    "unit": {"content": "[Unit]\n", "mode": "0644"},
    "enabled": True,
    "home": True,
    "service": {"state": "active (running)", "active": True, "main_pid": 7, "stale": False, "status": ""},
}
GO = {
    "pid": 9,
    "kind": planner.GO,
    "program": "/bin/k8s-rdma-shared-dp",
    "where": "in a pod",
    "pod": True,
    "unit": "",
    "config": "config /k8s-rdma-shared-dev-plugin/config.json in a pod",
    "names": ["a", "b"],
}


def actions(state, **wanted):
    made = planner.plan(state, {**WANTED, **wanted})
    assert not made.findings
    return [(change.object, change.action) for change in made.changes]


def test_everything_is_installed_and_started_where_nothing_is():
    assert actions(NOTHING) == [
        (planner.CODE, "install"),
        (planner.VENV, "install"),
        (planner.CONFIG, "write"),
        (planner.UNIT, "write"),
        (planner.ENABLED, "link"),
        (planner.OBJECT, "start"),
    ]


def test_nothing_changes_where_all_is_as_wanted():
    assert actions(SERVED) == []


@pytest.mark.parametrize(
    ("wanted", "written", "restarts"),
    [
        ({"config": '{"a": 1}\n'}, planner.CONFIG, False),
        ({"unit": "[Unit]\nBefore=k3s.service\n"}, planner.UNIT, True),
        ({"code": "c2"}, planner.CODE, True),
        ({"stamp": "python 3.13\n"}, planner.VENV, True),
    ],
)
def test_only_code_libraries_and_unit_restart_it(wanted, written, restarts):
    made = actions(SERVED, **wanted)
    assert written in [obj for obj, _action in made]
    assert ((planner.OBJECT, "restart") in made) == restarts


def test_a_run_that_was_interrupted_before_the_restart_is_completed():
    stale = {**SERVED, "service": {**SERVED["service"], "stale": True}}
    assert actions(stale) == [(planner.OBJECT, "restart")]


def test_a_mode_that_someone_changed_is_put_back():
    assert actions({**SERVED, "config": {"content": "{}\n", "mode": "0600"}}) == [(planner.CONFIG, "mode")]


def test_without_systemd_the_files_are_written_and_the_rest_is_reported():
    made = planner.plan({**NOTHING, "service": None}, WANTED)
    assert (planner.OBJECT, "start") not in [(change.object, change.action) for change in made.changes]
    assert made.not_verified


def test_absent_takes_all_of_it_away_and_then_there_is_nothing_to_do():
    assert actions(SERVED, present=False) == [
        (planner.OBJECT, "stop"),
        (planner.ENABLED, "unlink"),
        (planner.UNIT, "remove"),
        (planner.CONFIG, "remove"),
        (planner.HOME, "remove"),
    ]
    assert actions(NOTHING, present=False) == []


def test_beside_the_go_plugin_with_the_same_resource_nothing_is_installed_without_consent():
    made = planner.plan({**NOTHING, "rivals": [GO]}, WANTED)
    (finding,) = made.findings
    assert not made.changes
    assert finding.object == "process 9 (the Go plugin, in a pod)"
    assert finding.wanted == "no other plugin that serves a"
    assert "/k8s-rdma-shared-dev-plugin/config.json" in finding.seen
    assert "device_plugin_migrate_allowed: true" in finding.next_step


def test_with_other_resources_both_may_run():
    assert actions({**SERVED, "rivals": [GO]}, names=["c"]) == []


def test_one_that_does_not_tell_its_resources_may_serve_ours():
    assert planner.plan({**NOTHING, "rivals": [{**GO, "names": None}]}, WANTED).findings


def test_the_answer_no_leaves_the_node_as_it_is_and_says_so():
    made = planner.plan({**NOTHING, "rivals": [GO]}, {**WANTED, "migrate_allowed": False})
    assert (made.changes, made.findings) == ([], [])
    assert "keeps serving a" in made.not_applied[0]


def test_a_unit_is_stopped_before_ours_is_installed():
    rival = {**GO, "pod": False, "unit": "k8s-rdma-shared-dp.service", "where": "unit k8s-rdma-shared-dp.service"}
    made = actions({**NOTHING, "rivals": [rival]}, migrate_allowed=True)
    assert made[0] == ("unit k8s-rdma-shared-dp.service", "stop and disable")
    assert made[-1] == (planner.OBJECT, "start")


def test_nothing_is_installed_before_the_pods_are_gone():
    unit = {**GO, "pod": False, "unit": "x.service"}
    assert actions({**NOTHING, "rivals": [GO, unit]}, migrate_allowed=True) == []


def test_a_process_that_cannot_be_stopped_is_a_problem_even_with_consent():
    rival = {**GO, "pod": False, "where": "started by hand"}
    (finding,) = planner.plan({**NOTHING, "rivals": [rival]}, {**WANTED, "migrate_allowed": True}).findings
    assert "/bin/k8s-rdma-shared-dp" in finding.next_step


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
    made = planner.plan({**NOTHING, "clusters": {KUBELET: None}}, {**WANTED, **OVER_DRA})
    assert planner.KUBECONFIG not in [change.object for change in made.changes]
    assert "has not joined a cluster" in made.not_verified[0]


def test_without_dra_kubeconfig_and_token_of_an_earlier_run_go_and_no_token_is_shown():
    left = {**SERVED, "kubeconfig": WRITTEN, "token": {"content": "a token", "mode": ""}}
    assert actions(left) == [
        (planner.KUBECONFIG, "remove"),
        (planner.TOKEN, "remove"),
        (planner.OBJECT, "restart"),
    ]
    assert [name for name, _action in actions(left, present=False)][2:5] == [
        planner.UNIT,
        planner.KUBECONFIG,
        planner.TOKEN,
    ]
