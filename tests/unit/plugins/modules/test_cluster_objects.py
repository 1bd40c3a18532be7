"""cluster_objects and cluster_node, run by Ansible, against a double of kubectl; and the planner of objects."""

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import objects as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.node import MARK
from ansible_collections.gpufabric.rdma.plugins.modules import cluster_node, cluster_objects
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running

NADS = "network-attachment-definitions.k8s.cni.cncf.io"
CONF, DS = "ConfigMap/kube-flannel/conf", "DaemonSet/kube-flannel/ds"


def thing(kind, name, namespace=None, version="v1", **fields):
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def config_map(name="conf", namespace="kube-flannel", **data):
    return thing("ConfigMap", name, namespace, data=data)


def namespace(name="kube-flannel"):
    return thing("Namespace", name)


def daemon_set(image="flannel:1", **spec):
    return thing("DaemonSet", "ds", "kube-flannel", "apps/v1", spec={"template": {"image": image}, **spec})


def definition():
    return kubectl_cluster.definition("k8s.cni.cncf.io", "NetworkAttachmentDefinition", NADS.partition(".")[0])


def attachment(name="rail0"):
    return thing("NetworkAttachmentDefinition", name, "default", "k8s.cni.cncf.io/v1", spec={"config": "{}"})


def held(item, manager, **more):
    item["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": [".data.a"], **more}]
    return item


class Server(kubectl_cluster.Cluster):
    def edit(self, name, manager, **fields):
        """Someone else applies fields of an object, by force."""
        objects, paths = self.objects, [f".data.{field}" for field in fields]
        entries = objects[name]["metadata"]["managedFields"]
        for entry in entries:
            entry["fieldsV1"] = [path for path in entry["fieldsV1"] if path not in paths]
        objects[name]["data"].update(fields)
        entries.append({"manager": manager, "fieldsV1": paths})
        self.state(objects=objects)

    def run(self, objects=(), check=False, **options):
        given = {"objects": list(objects), "owner": "flannel"} if "parts" not in options else {}
        given = {"kubectl": self.argv, "api_timeout_seconds": 0, **given, **options}
        return running.module(cluster_objects, check, **given)


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path / "server.json")


def actions(result):
    return [(change["object"], change["action"]) for change in result["changes"]]


def test_check_mode_announces_what_a_run_does_and_a_second_run_asks_four_times_and_changes_nothing(server):
    wanted = [daemon_set(), config_map(a="1"), namespace()]
    checked = server.run(wanted, check=True)
    assert server.objects == {}
    done = server.run(wanted)
    assert sorted(actions(done)) == sorted(actions(checked))
    assert set(server.objects) == {"Namespace//kube-flannel", CONF, DS}
    again = server.run(wanted)
    assert (again["changed"], again["changes"], again["kubectl_calls"]) == (False, [], 4)


def test_what_controllers_write_while_it_reads_is_no_change_of_ours(server):
    labels = {"rdma.gpufabric.io/rails": "8"}
    server.add(kubectl_cluster.node("gpu1"))
    wanted = kubectl_cluster.node("gpu1", labels=labels)
    del wanted["spec"]
    assert server.run([wanted])["changed"]
    server.state(meddled={"Node//gpu1": [{"flannel": "up"}, {"flannel": "down"}]})
    assert actions(server.run([wanted])) == []
    assert server.state()["meddled"] == {"Node//gpu1": []}
    assert server.objects["Node//gpu1"]["metadata"]["annotations"] == {"flannel": "down"}


def test_only_a_real_difference_is_shown_and_a_field_that_is_no_longer_wanted_goes(server):
    server.run([namespace(), daemon_set(), config_map(a="1", b="2")])
    assert server.objects[DS]["spec"]["revisionHistoryLimit"] == 10, "the server has filled in a field"
    changed = server.run([namespace(), daemon_set(image="flannel:2")], check=True)
    assert actions(changed) == [("DaemonSet kube-flannel/ds", "apply"), ("ConfigMap kube-flannel/conf", "prune")]
    before, after = (set(changed["diff"][0][side].splitlines()) for side in ("before", "after"))
    assert {line.strip() for line in before ^ after} == {'"image": "flannel:1"', '"image": "flannel:2"'}
    server.run([namespace(), daemon_set(), config_map(a="1")])
    assert server.objects[CONF]["data"] == {"a": "1"}


def test_objects_of_a_kind_whose_definition_comes_with_them_are_applied_after_it(server):
    wanted = [attachment(), definition()]
    checked, done = server.run(wanted, check=True), server.run(wanted)
    assert set(actions(done)) == set(actions(checked))
    assert len([call for call in server.calls("apply") if "--dry-run=server" not in call]) == 2
    assert server.calls("wait")[0][1] == "--for=condition=Established"
    assert server.run(wanted)["changed"] is False


def test_only_leftovers_of_the_same_owner_are_pruned_and_never_a_namespace(server):
    server.run([namespace(), config_map("old"), config_map("new")])
    server.run([config_map("other", "kube-system")], owner="multus")
    done = server.run([config_map("new")], prune_types=[NADS])  # a type that the server does not have
    assert actions(done) == [("ConfigMap kube-flannel/old", "prune")]
    kept = {"ConfigMap/kube-flannel/new", "ConfigMap/kube-system/other", "Namespace//kube-flannel"}
    assert set(server.objects) == kept


BY_HAND = {"manager": "kubectl-client-side-apply", "operation": "Apply", "fieldsV1": [".data.a"]}


@pytest.mark.parametrize("manager", [BY_HAND, None, {**BY_HAND, "manager": planner.MANAGER, "operation": "Update"}])
def test_a_users_copy_of_one_of_our_objects_is_not_pruned(server, manager):
    types = [NADS, "ippools.nv-ipam.nvidia.com"]
    kinds = [definition(), kubectl_cluster.definition("nv-ipam.nvidia.com", "IPPool", "ippools"), namespace("team")]
    pool = thing("IPPool", "rail0", version="nv-ipam.nvidia.com/v1alpha1", spec={})
    server.run([*kinds, attachment(), pool], owner="networks", prune_types=types)
    for item in (config_map(a="1"), attachment(), pool):
        meta = {"name": item["metadata"]["name"], "namespace": "team", "labels": {planner.OWNER_LABEL: "networks"}}
        server.add({**item, "metadata": {**meta, **({"managedFields": [manager]} if manager else {})}})
    done = server.run(kinds, owner="networks", prune_types=types)
    pruned = {("IPPool default/rail0", "prune"), ("NetworkAttachmentDefinition default/rail0", "prune")}
    assert set(actions(done)) == pruned
    assert {"ConfigMap/team/conf", "NetworkAttachmentDefinition/team/rail0", "IPPool/team/rail0"} <= set(server.objects)


@pytest.mark.parametrize(("allowed", "value"), [(None, "1"), (False, "1"), (True, "2")])
def test_a_conflict_with_another_manager_is_reported_and_taken_only_with_consent(server, allowed, value):
    server.run([namespace(), config_map(a="0", b="0")])
    server.edit(CONF, "argocd-controller", a="1")
    found = server.run([namespace(), config_map(a="2", b="0")], takeover_allowed=allowed)
    assert (server.objects[CONF]["data"]["a"], found["changed"]) == (value, bool(allowed))
    seen = [(finding["object"], finding["seen"]) for finding in found.get("findings") or []]
    assert seen == ([("ConfigMap kube-flannel/conf", "argocd-controller: .data.a")] if allowed is None else [])
    assert len(found.get("not_applied") or []) == (allowed is False)
    assert allowed or "--force" not in json.dumps(server.calls())


@pytest.mark.parametrize(("allowed", "value"), [(None, "0"), (False, "1"), (True, "0")])
def test_what_someone_changed_by_hand_is_reverted(server, allowed, value):
    wanted = [namespace(), config_map(a="0"), config_map("other", a="0")]
    server.run(wanted)
    server.edit(CONF, "kubectl-edit", a="1")
    announced, done = (server.run(wanted, check, takeover_allowed=allowed) for check in (True, False))
    assert server.objects[CONF]["data"]["a"] == value
    assert actions(announced) == actions(done) == ([("ConfigMap kube-flannel/conf", "apply")] if value == "0" else [])
    assert len(announced["notes"]) == (allowed is None)
    forced = [call for call in server.calls("apply") if "--force-conflicts" in call and "--dry-run=server" not in call]
    assert allowed is not None or len(forced) == 1
    assert server.run(wanted, takeover_allowed=allowed)["changed"] is False


@pytest.mark.parametrize("manager", ["kubectl", "kubectl-client-side-apply", "argocd-controller"])
def test_who_applies_is_a_manager_and_no_hand(server, manager):
    server.run([namespace(), config_map(a="0")])
    server.edit(CONF, "kubectl-edit", a="1")
    server.edit(CONF, manager, a="2")
    assert manager in server.run([namespace(), config_map(a="0")])["findings"][0]["seen"]
    assert server.objects[CONF]["data"]["a"] == "2"


@pytest.mark.parametrize(
    ("cut", "seen"), [(0, "managed by helm"), (1, "managed by helm"), (99, "the answer broke off")]
)
def test_an_object_that_someone_else_made_is_not_taken_over_without_consent(server, cut, seen):
    """An answer that was cut off before its first byte does not mean absence."""
    wanted, live = [namespace(), config_map(a="1")], held(config_map(a="1"), "helm")
    server.add(namespace(), live)
    server.state(cut={"get": cut})
    (finding,) = server.run(wanted)["findings"]
    assert (finding["seen"], server.objects[CONF]) == (seen, live)
    server.state(cut={})
    assert [server.run(wanted, takeover_allowed=allowed)["changed"] for allowed in (True, None)] == [True, False]


def test_all_problems_come_at_once_and_nothing_is_applied(server):
    server.run([namespace()])
    found = server.run([namespace(), daemon_set(refused=True), config_map(namespace="nowhere"), config_map("fine")])
    objects = {finding["object"] for finding in found["findings"]}
    assert objects == {"DaemonSet kube-flannel/ds", "ConfigMap nowhere/conf"}
    assert set(server.objects) == {"Namespace//kube-flannel"}


def test_without_an_api_server_check_mode_lists_all_and_a_run_stops(server):
    server.state(down=True)
    checked = server.run([namespace(), config_map()], check=True)
    assert actions(checked) == [("Namespace kube-flannel", "create"), ("ConfigMap kube-flannel/conf", "create")]
    assert len(checked["not_verified"]) == 1
    assert server.run([namespace()])["failed"]
    absent = server.run([namespace()], check=True, kubectl=["k3s-that-nobody-has", "kubectl"])
    assert actions(absent) == [("Namespace kube-flannel", "create")]


def test_a_condition_met_by_what_was_read_costs_no_call_and_one_that_never_comes_says_where_to_look(server):
    wanted = [namespace(), daemon_set()]
    wait = [{"resource": "daemonset/ds", "namespace": "kube-flannel", "timeout_seconds": 5}]
    server.state(never=["daemonset/ds"])
    stuck = server.run(wanted, wait=wait)
    assert (stuck["failed"], len(server.calls("rollout"))) == (True, 1)
    assert actions(stuck)[1] == ("DaemonSet kube-flannel/ds", "create"), "what was applied before is told"
    objects, counts = server.objects, ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")
    for available in (2, 1):
        objects[DS]["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, 2), "numberAvailable": available}
        server.state(objects=objects)
        found = server.run(wanted, wait=wait)
        assert (found["changed"], found.get("failed", False)) == (False, available == 1)
        assert len(server.calls("rollout")) == (1 if available == 2 else 2)
    assert "k3s kubectl -n kube-flannel describe daemonset ds" in found["msg"]


def test_nodes_are_labelled_never_made_never_owned_and_waited_for_first(server):
    node = thing("Node", "n1")
    node["metadata"]["labels"] = {"rdma.gpufabric.io/rails": "2"}
    assert actions(server.run([node], check=True)) == [("Node n1", "apply")]
    assert server.objects == {}
    server.add(held(thing("Node", "n1"), "k3s"))
    assert server.run([node], wait=[{"resource": "node/n1", "until": "create", "first": True}])["changed"] is True
    assert [call[0] for call in server.calls()][3] == "wait"
    assert server.objects["Node//n1"]["metadata"]["labels"] == {"rdma.gpufabric.io/rails": "2"}
    assert server.run([node])["changed"] is False


@pytest.mark.parametrize(
    ("objects", "seen"),
    [
        ([[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}]], "no metadata.name"),
        ([[thing("Secret", "a")]], "a Secret"),
        ([[config_map()], [config_map()]], "several of that name"),
        ([[{"kind": "List", "items": [config_map()] * 2}]], "several of that name"),
    ],
)
def test_objects_that_are_invalid_are_refused_before_anything_is_asked(server, objects, seen):
    _parts, findings = planner.prepare([{"objects": given, "owner": "x"} for given in objects])
    assert seen in findings[0].seen, findings
    assert server.run([config_map(), *objects[0], *objects[0]])["failed"]
    assert server.calls() == []


def part(owner, *objects, **options):
    return {"owner": owner, "objects": list(objects), **options}


HEALED = ("kube-flannel/conf", "kube-system/plugin")
PARTS = (
    part("crds", definition()),
    part("flannel", namespace(), config_map(a="1"), daemon_set()),
    part("networks", attachment(), prune_types=[NADS]),
    part("multus", namespace("kube-multus"), config_map("multus", "kube-multus", b="1"), takeover_allowed=False),
    part("plugin", config_map("plugin", "kube-system", c="1"), takeover_allowed=True),
)


def test_several_parts_are_applied_at_once_and_cost_as_many_calls_as_one(server):
    assert len(server.run(parts=list(PARTS))["changes"]) == 8
    again = server.run(parts=list(PARTS))
    assert (again["changed"], again["kubectl_calls"]) == (False, 6), "four, and one for each further consent"
    server.edit(CONF, "kubectl-edit", a="by hand")
    for name, field in (("kube-multus/multus", "b"), ("kube-system/plugin", "c")):
        server.edit(f"ConfigMap/{name}", "argocd", **{field: "theirs"})
    healed = server.run(parts=list(PARTS))
    assert {name for name, _action in actions(healed)} == {f"ConfigMap {name}" for name in HEALED}
    assert len(healed["not_applied"]) == 1
    fewer = [part("flannel", namespace(), config_map(a="1")), part("networks", prune_types=[NADS])]
    assert {action for _name, action in actions(server.run(parts=fewer))} == {"prune"}


def test_of_a_wait_that_is_left_for_later_the_next_task_learns_what_is_not_met_yet(server):
    rollout = {"resource": "daemonset/ds", "namespace": "kube-flannel"}
    ready = {"resource": "node/a node/b", "until": "condition=Ready"}
    nodes = [kubectl_cluster.node(name, labels={"rdma.gpufabric.io/rails": "2"}) for name in "ab"]
    parts = [part("flannel", namespace(), daemon_set(), wait=[rollout]), part("k3s", *nodes, wait=[ready])]
    for conditions, pending in (([], [rollout, ready]), ([{"type": "Ready", "status": "True"}], [rollout])):
        server.add(*({**node, "status": {"conditions": conditions}} for node in nodes))
        found = server.run(parts=parts, wait_later=True)
        assert [item["resource"] for item in found["pending"]] == [item["resource"] for item in pending]
        assert server.calls("rollout") + server.calls("wait") == []
    assert [item["resource"] for item in server.run(wait=found["pending"])["waited"]] == ["daemonset/ds"]


def test_in_git_mode_what_the_same_tool_has_applied_is_left_over_and_a_users_copy_is_not(server):
    for name, manager in (("conf", "kustomize-controller"), ("old", "kustomize-controller"), ("copied", "kubectl")):
        item = held(config_map(name, a="1"), manager, operation="Apply")
        item["metadata"]["labels"] = {planner.OWNER_LABEL: "flannel"}
        server.add(namespace(), item)
    found = server.run([namespace(), config_map(a="1")], applied_by="gitops")["findings"]
    assert [finding["object"] for finding in found] == ["ConfigMap kube-flannel/old"]


ADVICE = "\nPlease review the fields above--they currently have other managers."
ONE = f'error: Apply failed with 1 conflict: conflict with "flux" using apps/v1: .spec.replicas{ADVICE}'
TWO = 'Apply failed with 2 conflicts: conflicts with "a" using v1:\n- .data.x\nconflicts with "b" using v1:\n- .data.y'


@pytest.mark.parametrize(("read", "text", "wanted"), [
    (planner.conflict, ONE, "flux: .spec.replicas"),
    (planner.conflict, TWO + ADVICE, "a, b: .data.x, .data.y"),
    (planner.conflict, "The DaemonSet is invalid", None),
    (kubectl.unreachable, "The connection to the server localhost:8080 was refused - did you specify …", True),
    (kubectl.unreachable, 'Error from server (Forbidden): configmaps is forbidden: User "x" cannot list', False),
    (kubectl.last_words, 'E1121 20:40:59 1 memcache.go:265] "Unhandled Error"\nThe connection\n', "The connection"),
])  # fmt: skip
def test_what_kubectl_says_is_read(read, text, wanted):
    assert read(text) == wanted


KEPT = {"a.example/b": "kept"}
TRAIN, PROXY, MIRROR = "Pod/jobs/train-0", "Pod/kube-system/kube-proxy-x", "Pod/kube-system/static-node1"


class Cluster(kubectl_cluster.Cluster):
    """node1 with a pod of a ReplicaSet, one of a DaemonSet and one of the kubelet's own; node2 with one more."""

    def __init__(self, path):
        super().__init__(path)
        self.add(kubectl_cluster.node("node1", annotations=KEPT), kubectl_cluster.node("node2"))
        for number in (0, 1):
            self.add(kubectl_cluster.pod("jobs", f"train-{number}", f"node{number + 1}", owner="ReplicaSet"))
        mirror = {"kubernetes.io/config.mirror": "x"}
        self.add(kubectl_cluster.pod("kube-system", "kube-proxy-x", "node1", owner="DaemonSet"))
        self.add(kubectl_cluster.pod("kube-system", "static-node1", "node1", owner="Node", annotations=mirror))

    def run(self, state, check=False, **options):
        given = {"name": "node1", "state": state, "kubectl": self.argv, "api_timeout_seconds": 0, **options}
        return running.module(cluster_node, check, **given)

    def admin(self, verb):
        assert self.client().run(verb, "node1")[0] == 0

    @property
    def cordoned(self):
        return self.objects["Node//node1"]["spec"].get("unschedulable", False)

    @property
    def annotations(self):
        return self.objects["Node//node1"]["metadata"]["annotations"]


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path / "cluster.json")


def verbs(result):
    return [change["action"] for change in result["changes"]]


def test_a_node_is_cordoned_drained_and_uncordoned_and_each_second_run_changes_nothing(cluster):
    announced = cluster.run("drained", check=True)
    assert {call[0] for call in cluster.calls()} == {"get"}
    drained = cluster.run("drained")
    assert verbs(announced) == verbs(drained) == ["cordon", "drain"]
    assert drained["changes"][1]["before"] == "jobs/train-0"
    assert (cluster.cordoned, cluster.annotations) == (True, {**KEPT, MARK: "true"})
    assert {name for name in cluster.objects if name.startswith("Pod/")} == {"Pod/jobs/train-1", PROXY, MIRROR}
    assert cluster.run("drained")["changed"] is False
    assert len(cluster.calls("drain")) == 1

    assert verbs(cluster.run("uncordoned", check=True)) == ["uncordon"]
    assert cluster.cordoned
    assert verbs(cluster.run("uncordoned")) == ["uncordon"]
    assert (cluster.cordoned, cluster.annotations) == (False, KEPT)
    assert cluster.run("uncordoned")["changed"] is False


@pytest.mark.parametrize(("steps", "left", "cordoned"), [
    ("cordon -> drained:drain uncordoned:", KEPT, True),
    ("drained:cordon,drain -> uncordon uncordoned:remove uncordoned:", KEPT, False),
    ("drained:cordon,drain uncordon cordon -> uncordoned:remove uncordoned:", KEPT, True),
    ("drained:cordon,drain uncordon cordon -> drained:remove uncordoned:", KEPT, True),
    ("drained:cordon,drain uncordon -> drained:cordon uncordoned:uncordon", KEPT, False),
])  # fmt: skip
def test_a_cordon_of_an_administrator_is_not_ours(cluster, steps, left, cordoned):
    """steps: an administrator's actions, and runs of the module with their verbs."""
    for step in steps.replace("->", "").split():
        state, colon, wanted = step.partition(":")
        if not colon:
            cluster.admin(step)
            continue
        announced = cluster.run(state, check=True)
        done = cluster.run(state)
        assert verbs(announced) == verbs(done) == (wanted.split(",") if wanted else []), step
        assert bool(done["notes"]) == (cluster.cordoned and MARK not in cluster.annotations), step
    assert (cluster.cordoned, cluster.annotations) == (cordoned, left)


def test_a_run_that_ended_between_cordon_and_drain_is_picked_up(cluster):
    node = cluster_node.Node(cluster.client(), "node1", 60)
    next(iter(node.apply(cluster_node.plan_drain(node.read()).changes)))
    assert cluster.cordoned
    assert verbs(cluster.run("drained")) == ["drain"]
    assert verbs(cluster.run("uncordoned")) == ["uncordon"]


def test_a_pod_that_tolerates_the_cordon_and_comes_back_is_not_evicted_again(cluster):
    node = cluster_node.Node(cluster.client(), "node1", 60)
    assert len(list(node.apply(cluster_node.plan_drain(node.read()).changes))) == 2
    cluster.add(kubectl_cluster.pod("jobs", "train-2", "node1", owner="ReplicaSet"))
    assert cluster_node.plan_drain(node.read()).changes == []


def refused(cluster, **options):
    found = cluster.run("drained", **options)
    (finding,) = found["findings"]
    return found, finding


def test_pods_that_a_disruption_budget_protects_are_named_and_the_next_run_picks_up(cluster):
    cluster.state(budgets=["train-0"])
    found, finding = refused(cluster, timeout_seconds=7)
    assert (finding["object"], finding["wanted"]) == ("node node1", "drained within 7 s")
    assert all(word in finding["seen"] for word in ("jobs/train-0", "global timeout reached: 7s"))
    assert (verbs(found), cluster.annotations[MARK]) == (["cordon"], "true"), "what was done before is told"
    cluster.state(budgets=[])
    assert verbs(cluster.run("drained")) == ["drain"]


def test_what_cannot_be_drained_is_named(cluster):
    assert 'nodes "gpu-17" not found' in refused(cluster, name="gpu-17")[1]["seen"]
    assert not cluster.cordoned
    cluster.add(kubectl_cluster.pod("default", "mine", "node1"))
    assert "default/mine" in refused(cluster)[1]["seen"], "a pod without a controller"
    assert {TRAIN, "Pod/default/mine"} <= set(cluster.objects)
    cluster.state(down=True)
    for state in ("drained", "uncordoned"):
        assert [finding["object"] for finding in cluster.run(state)["findings"]] == ["API server"]


def resource_slice(driver, node):
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1}}
    return {"kind": "ResourceSlice", "apiVersion": "v1", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def test_slices_of_a_node_go_and_those_of_others_stay(cluster):
    ours, theirs = "rdma.gpufabric.io", "gpu.nvidia.com"
    for driver, node in ((ours, "node1"), (ours, "node2"), (theirs, "node1")):
        cluster.add(resource_slice(driver, node))
    for check in (True, False):
        found = cluster.run("withdrawn", check=check)
        assert actions(found) == [("ResourceSlice node1-rdma.gpufabric.io", "delete")]
    assert cluster.run("withdrawn")["changes"] == []
    assert len([item for item in cluster.objects.values() if item["kind"] == "ResourceSlice"]) == 2
    cluster.state(without=["ResourceSlice"])
    assert cluster.run("withdrawn")["changes"] == []
    cluster.state(down=True)
    silent = cluster.run("withdrawn")
    assert (silent.get("failed", False), silent["changes"], len(silent["not_verified"])) == (False, [], 1)
