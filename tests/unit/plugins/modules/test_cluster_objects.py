"""cluster_objects, as Ansible runs it, against a double of kubectl; and its planner."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.action.cluster_objects import render
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import objects as planner
from ansible_collections.gpufabric.rdma.plugins.modules import cluster_objects
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

OWNER = {planner.OWNER_LABEL: "flannel"}


def config_map(name="conf", namespace="kube-flannel", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def namespace(name="kube-flannel"):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def daemon_set(image="flannel:1", **spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "ds", "namespace": "kube-flannel"},
        "spec": {"template": {"image": image}, **spec},
    }


def definition():
    names = {"kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {"group": "k8s.cni.cncf.io", "names": names},
    }


def attachment(name="rail0"):
    meta = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": meta,
        "spec": {"config": "{}"},
    }


READY = "condition=Ready"


def node(name):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rdma.gpufabric.io/rails": "2"}}}


class Server(kubectl_cluster.Cluster):
    def edit(self, name, manager, **fields):
        """Someone else applies fields of an object, by force."""
        state = self.state()
        live = state["objects"][name]
        for entry in live["metadata"]["managedFields"]:
            entry["fieldsV1"] = [
                path for path in entry["fieldsV1"] if path not in {f".data.{field}" for field in fields}
            ]
        live["data"].update(fields)
        paths = [f".data.{field}" for field in fields]
        live["metadata"]["managedFields"].append({"manager": manager, "fieldsV1": paths})
        self.path.write_text(json.dumps(state))

    def run(self, objects, check=False, **options):
        arguments = {
            "objects": objects,
            "owner": "flannel",
            "kubectl": self.argv,
            "api_timeout_seconds": 0,
            **options,
            "_ansible_check_mode": check,
            "_ansible_diff": True,
        }
        if "parts" in options:
            del arguments["objects"], arguments["owner"]
        done = subprocess.run(
            [sys.executable, cluster_objects.__file__],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"},
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path / "server.json")


def actions(result):
    return [(change["object"], change["action"]) for change in result["changes"]]


def test_check_mode_announces_what_a_run_does_and_a_second_run_asks_three_times_and_changes_nothing(server):
    wanted = [daemon_set(), config_map(a="1"), namespace()]
    checked = server.run(wanted, check=True)
    assert server.objects == {}
    done = server.run(wanted)
    assert sorted(actions(done)) == sorted(actions(checked))
    assert set(actions(done)) == {
        ("Namespace kube-flannel", "create"),
        ("ConfigMap kube-flannel/conf", "create"),
        ("DaemonSet kube-flannel/ds", "create"),
    }
    assert set(server.objects) == {
        "Namespace//kube-flannel",
        "ConfigMap/kube-flannel/conf",
        "DaemonSet/kube-flannel/ds",
    }
    again = server.run(wanted)
    assert (again["changed"], again["changes"], again["kubectl_calls"]) == (False, [], 3)


def test_fields_that_the_server_fills_in_are_no_difference_and_a_real_one_is_shown_alone(server):
    server.run([namespace(), daemon_set()])
    assert server.objects["DaemonSet/kube-flannel/ds"]["spec"]["revisionHistoryLimit"] == 10
    changed = server.run([namespace(), daemon_set(image="flannel:2")], check=True)
    assert actions(changed) == [("DaemonSet kube-flannel/ds", "apply")]
    before, after = (set(changed["diff"][0][side].splitlines()) for side in ("before", "after"))
    assert {line.strip() for line in before ^ after} == {'"image": "flannel:1"', '"image": "flannel:2"'}
    assert "managedFields" not in changed["diff"][0]["after"]


def test_a_field_that_is_no_longer_wanted_goes(server):
    server.run([namespace(), config_map(a="1", b="2")])
    done = server.run([namespace(), config_map(a="1")])
    assert actions(done) == [("ConfigMap kube-flannel/conf", "apply")]
    assert server.objects["ConfigMap/kube-flannel/conf"]["data"] == {"a": "1"}


def test_objects_of_a_kind_whose_definition_comes_with_them_are_applied_after_it(server):
    wanted = [attachment(), definition()]
    checked = server.run(wanted, check=True)
    done = server.run(wanted)
    assert set(actions(done)) == set(actions(checked))
    sent = [call for call in server.calls("apply") if "--dry-run=server" not in call]
    assert len(sent) == 2
    assert server.calls("wait")[0][1] == "--for=condition=Established"
    assert server.run(wanted)["changed"] is False


def test_only_leftovers_of_the_same_owner_are_pruned_and_never_a_namespace(server):
    server.run([namespace(), config_map("old"), config_map("new")])
    server.run([config_map("other", "kube-system")], owner="multus")
    done = server.run([config_map("new")])
    assert actions(done) == [("ConfigMap kube-flannel/old", "prune")]
    assert {"ConfigMap/kube-flannel/new", "ConfigMap/kube-system/other", "Namespace//kube-flannel"} <= set(
        server.objects
    )
    assert "ConfigMap/kube-flannel/old" not in server.objects


COPIED = [{"manager": "kubectl-client-side-apply", "operation": "Apply", "fieldsV1": [".data.a"]}]


def copy_of(item, managers=(*COPIED,)):
    """What a user makes of one of our objects in a namespace of their own: the label comes along."""
    item["metadata"].update(namespace="team", labels={planner.OWNER_LABEL: "networks"})
    if managers:
        item["metadata"]["managedFields"] = [*managers]
    return item


def pool():
    return {"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": "rail0"}, "spec": {}}


@pytest.mark.parametrize(
    "managers", [COPIED, [], [{"manager": planner.MANAGER, "operation": "Update", "fieldsV1": []}]]
)
def test_a_users_copy_of_one_of_our_objects_is_not_pruned(server, managers):
    kinds = [definition(), kubectl_cluster.definition("nv-ipam.nvidia.com", "IPPool", "ippools")]
    types = ["network-attachment-definitions.k8s.cni.cncf.io", "ippools.nv-ipam.nvidia.com"]
    server.run([*kinds, namespace("team"), attachment(), pool()], owner="networks", prune_types=types)
    server.add(*(copy_of(item, managers) for item in (config_map(a="1"), attachment(), pool())))
    done = server.run([*kinds, namespace("team")], owner="networks", prune_types=types)
    assert sorted(actions(done)) == [
        ("IPPool default/rail0", "prune"),
        ("NetworkAttachmentDefinition default/rail0", "prune"),
    ]
    assert {"ConfigMap/team/conf", "NetworkAttachmentDefinition/team/rail0", "IPPool/team/rail0"} <= set(server.objects)


def test_a_label_alone_makes_no_object_ours(server):
    server.run([namespace("team")])
    server.add(copy_of(config_map(a="1")))
    wanted = config_map(namespace="team", b="2")
    assert "kubectl-client-side-apply" in server.run([wanted], owner="networks")["findings"][0]["seen"]
    assert server.objects["ConfigMap/team/conf"]["data"] == {"a": "1"}


def test_a_pruned_type_that_the_server_does_not_have_is_passed_over(server):
    types = ["network-attachment-definitions.k8s.cni.cncf.io"]
    assert server.run([config_map(namespace="default")], prune_types=types)["changed"] is True
    server.run([definition(), attachment(), attachment("rail1")], owner="networks", prune_types=types)
    done = server.run([definition(), attachment()], owner="networks", prune_types=types)
    assert actions(done) == [("NetworkAttachmentDefinition default/rail1", "prune")]


CONSENT = [(None, "1", False), (False, "1", False), (True, "2", True)]


@pytest.mark.parametrize(("allowed", "value", "changed"), CONSENT)
def test_a_conflict_with_another_manager_is_reported_and_taken_only_with_consent(server, allowed, value, changed):
    server.run([namespace(), config_map(a="0", b="0")])
    server.edit("ConfigMap/kube-flannel/conf", "argocd-controller", a="1")
    found = server.run([namespace(), config_map(a="2", b="0")], takeover_allowed=allowed)
    assert server.objects["ConfigMap/kube-flannel/conf"]["data"]["a"] == value
    assert found["changed"] is changed
    if allowed is None:
        (finding,) = found["findings"]
        assert finding["object"] == "ConfigMap kube-flannel/conf"
        assert finding["seen"] == "argocd-controller: .data.a"
        assert "--force" not in json.dumps(server.calls())
    elif allowed is False:
        assert found["not_applied"] == ["ConfigMap kube-flannel/conf is left as it is: argocd-controller: .data.a"]


@pytest.mark.parametrize(("allowed", "value"), [(None, "0"), (False, "1"), (True, "0")])
def test_what_someone_changed_by_hand_is_reverted(server, allowed, value):
    wanted = [namespace(), config_map(a="0"), config_map("other", a="0")]
    server.run(wanted)
    server.edit("ConfigMap/kube-flannel/conf", "kubectl-edit", a="1")
    announced = server.run(wanted, takeover_allowed=allowed, check=True)
    done = server.run(wanted, takeover_allowed=allowed)
    assert server.objects["ConfigMap/kube-flannel/conf"]["data"]["a"] == value
    assert actions(announced) == actions(done) == ([("ConfigMap kube-flannel/conf", "apply")] if value == "0" else [])
    if allowed is None:
        told = ["ConfigMap kube-flannel/conf was changed by hand, which is reverted (kubectl-edit: .data.a)"]
        assert announced["notes"] == told
        forced = [
            call for call in server.calls("apply") if "--force-conflicts" in call and "--dry-run=server" not in call
        ]
        assert len(forced) == 1
    assert server.run(wanted, takeover_allowed=allowed)["changed"] is False


@pytest.mark.parametrize("manager", ["kubectl", "kubectl-client-side-apply", "argocd-controller"])
def test_who_applies_is_a_manager_and_no_hand(server, manager):
    server.run([namespace(), config_map(a="0")])
    server.edit("ConfigMap/kube-flannel/conf", "kubectl-edit", a="1")
    server.edit("ConfigMap/kube-flannel/conf", manager, a="2")
    assert manager in server.run([namespace(), config_map(a="0")])["findings"][0]["seen"]
    assert server.objects["ConfigMap/kube-flannel/conf"]["data"]["a"] == "2"


def test_an_object_that_someone_else_made_is_not_taken_over_without_consent(server):
    server.run([namespace()])
    state = server.state()
    live = config_map(a="1")
    live["metadata"]["managedFields"] = [{"manager": "helm", "fieldsV1": [".data.a"]}]
    server.state(objects={**state["objects"], "ConfigMap/kube-flannel/conf": live})
    refused = server.run([namespace(), config_map(a="1")])
    assert refused["findings"][0]["seen"] == "managed by helm"
    assert server.run([namespace(), config_map(a="1")], takeover_allowed=True)["changed"] is True
    assert server.run([namespace(), config_map(a="1")])["changed"] is False


@pytest.mark.parametrize("times", [1, 99])
def test_an_answer_cut_off_before_its_first_byte_is_no_absence(server, times):
    """Taken for one, a foreign object with the wanted values would be taken over without a word."""
    server.run([namespace()])
    live = config_map(a="1")
    live["metadata"]["managedFields"] = [{"manager": "helm", "fieldsV1": [".data.a"]}]
    server.state(objects={**server.objects, "ConfigMap/kube-flannel/conf": live}, cut={"get": times})
    (finding,) = server.run([namespace(), config_map(a="1")])["findings"]
    seen = "managed by helm" if times == 1 else "the answer broke off"
    assert finding["seen"] == seen
    assert server.objects["ConfigMap/kube-flannel/conf"] == live


def test_all_problems_come_at_once_and_nothing_is_applied(server):
    server.run([namespace()])
    found = server.run([namespace(), daemon_set(refused=True), config_map(namespace="nowhere"), config_map("fine")])
    assert {finding["object"] for finding in found["findings"]} == {
        "DaemonSet kube-flannel/ds",
        "ConfigMap nowhere/conf",
    }
    assert "Forbidden" in found["msg"]
    assert set(server.objects) == {"Namespace//kube-flannel"}


def test_values_of_secrets_are_in_no_output_and_no_argument(server):
    def secret(value):
        return [{"name": "key", "namespace": "kube-system", "string_data": {"token": value}}]

    first = server.run([], secrets=secret("hunter-2"))
    second = server.run([], secrets=secret("correct-horse"))
    assert actions(second) == [("Secret kube-system/key", "apply")]
    assert '"token": "hidden, different value"' in second["diff"][0]["after"]
    assert server.run([], secrets=secret("correct-horse"))["changed"] is False
    told = json.dumps([first, second, server.calls()])
    for value in ("hunter-2", "correct-horse"):
        assert value not in told
        assert base64.b64encode(value.encode()).decode() not in told
    assert server.objects["Secret/kube-system/key"]["data"]["token"] == base64.b64encode(b"correct-horse").decode()


def test_without_an_api_server_check_mode_lists_all_and_a_run_stops(server):
    server.state(down=True)
    checked = server.run([namespace(), config_map()], check=True)
    assert actions(checked) == [("Namespace kube-flannel", "create"), ("ConfigMap kube-flannel/conf", "create")]
    assert "no API server responds" in checked["not_verified"][0]
    stopped = server.run([namespace()])
    assert stopped["failed"]
    assert "API server: wanted an answer" in stopped["msg"]
    absent = server.run([namespace()], check=True, kubectl=["k3s-that-nobody-has", "kubectl"])
    assert actions(absent) == [("Namespace kube-flannel", "create")]


def test_a_condition_met_by_what_was_read_costs_no_call_and_one_that_never_comes_says_where_to_look(server):
    wait = [{"resource": "daemonset/ds", "namespace": "kube-flannel", "timeout_seconds": 5}]
    server.run([namespace(), daemon_set()], wait=wait)
    assert len(server.calls("rollout")) == 1
    state = server.state()
    live = state["objects"]["DaemonSet/kube-flannel/ds"]
    counts = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}
    live["status"] = {"observedGeneration": 1, **counts}
    server.state(objects=state["objects"])
    settled = server.run([namespace(), daemon_set()], wait=wait)
    assert (settled["changed"], settled["waited"][0]["seconds"] < 1, len(server.calls("rollout"))) == (False, True, 1)
    live["status"]["numberAvailable"] = 1
    server.state(objects=state["objects"], never=["daemonset/ds"])
    stuck = server.run([namespace(), daemon_set()], wait=wait)
    assert "daemonset/ds -n kube-flannel: wanted rollout within 5 s" in stuck["msg"]
    assert "k3s kubectl -n kube-flannel describe daemonset ds" in stuck["msg"]
    assert stuck["changed"] is False


def test_a_failed_wait_still_tells_what_was_applied_before_it(server):
    server.state(never=["daemonset/ds"])
    wait = [{"resource": "daemonset/ds", "namespace": "kube-flannel", "timeout_seconds": 5}]
    stuck = server.run([namespace(), daemon_set()], wait=wait)
    assert (stuck["failed"], stuck["changed"]) == (True, True)
    assert actions(stuck) == [("Namespace kube-flannel", "create"), ("DaemonSet kube-flannel/ds", "create")]


def test_nodes_are_labelled_never_made_never_owned_and_waited_for_first(server):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"rdma.gpufabric.io/rails": "2"}}}
    checked = server.run([node], check=True)
    assert actions(checked) == [("Node n1", "apply")], checked
    assert server.objects == {}
    live = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "managedFields": [{"manager": "k3s", "fieldsV1": []}]},
    }
    server.state(objects={"Node//n1": live})
    first = {"resource": "node/n1", "until": "create", "first": True}
    assert server.run([node], wait=[first])["changed"] is True
    verbs = [call[0] for call in server.calls()][2:]
    assert verbs[0] == "wait"
    assert server.objects["Node//n1"]["metadata"]["labels"] == {"rdma.gpufabric.io/rails": "2"}
    assert server.run([node])["changed"] is False


BAD = {
    "no name": ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, "no metadata.name"),
    "no version": ({"kind": "ConfigMap", "metadata": {"name": "a"}}, "no apiVersion"),
    "a secret": ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, "option secrets"),
}


@pytest.mark.parametrize("name", BAD)
def test_objects_that_are_invalid_are_refused_before_anything_is_asked(server, name):
    item, words = BAD[name]
    found = server.run([config_map(), item])
    assert words in found["msg"]
    assert server.calls() == []
    _parts, findings = planner.prepare([{"objects": [item, item], "owner": "flannel"}])
    assert findings


@pytest.mark.parametrize("parts", [[[config_map()], [config_map()]], [[{"kind": "List", "items": [config_map()] * 2}]]])
def test_the_same_object_twice_is_refused(parts):
    _parts, findings = planner.prepare([{"objects": objects, "owner": "x"} for objects in parts])
    assert "several of that name" in findings[0].seen


def part(owner, *objects, **options):
    return {"owner": owner, "objects": list(objects), **options}


PARTS = (
    part("crds", definition()),
    part("flannel", namespace(), config_map(a="1"), daemon_set()),
    part("networks", attachment(), prune_types=["network-attachment-definitions.k8s.cni.cncf.io"]),
    part("multus", namespace("kube-multus"), config_map("multus", "kube-multus", b="1"), takeover_allowed=False),
    part("plugin", config_map("plugin", "kube-system", c="1"), takeover_allowed=True),
)


def several(server, parts, **options):
    return server.run([], parts=list(parts), **options)


def one_by_one(server, parts, **options):
    done = [server.run(**{**one, **options}) for one in parts]
    return {key: [row for result in done for row in result[key]] for key in ("changes", "not_applied", "notes")}


@pytest.fixture
def servers(tmp_path):
    return Server(tmp_path / "one.json"), Server(tmp_path / "other.json")


def test_several_parts_are_applied_as_a_call_each_applies_them_and_cost_as_many_calls_as_one(servers):
    """From nothing, again, and after what others have done to the objects: edited, taken over, copied, deleted."""
    one, other = servers

    def same():
        together, apart = several(one, PARTS), one_by_one(other, PARTS)
        assert sorted(actions(together)) == sorted(actions(apart))
        assert (together["not_applied"], together["notes"]) == (apart["not_applied"], apart["notes"])
        assert one.objects.keys() == other.objects.keys()
        for name, item in one.objects.items():
            assert planner.normalised(item) == planner.normalised(other.objects[name]), name
        return together

    assert len(same()["changes"]) == 8
    again = same()
    assert (again["changed"], again["kubectl_calls"]) == (False, 5), "three, and one for each further consent"
    for server in servers:
        server.edit("ConfigMap/kube-flannel/conf", "kubectl-edit", a="by hand")
        server.edit("ConfigMap/kube-multus/multus", "argocd", b="theirs")
        server.edit("ConfigMap/kube-system/plugin", "argocd", c="theirs")
    healed = same()
    assert {name for name, _action in actions(healed)} == {
        "ConfigMap kube-flannel/conf",
        "ConfigMap kube-system/plugin",
    }
    assert healed["not_applied"] == ["ConfigMap kube-multus/multus is left as it is: argocd: .data.b"]
    lost = [part("flannel", namespace(), config_map(a="1")), part("networks", prune_types=PARTS[2]["prune_types"])]
    pruned, apart = several(one, lost), one_by_one(other, lost)
    assert sorted(actions(pruned)) == sorted(actions(apart))
    assert {action for _name, action in actions(pruned)} == {"prune"}
    assert one.objects.keys() == other.objects.keys()


def test_a_problem_in_one_part_stops_all_before_the_first_change(server):
    several(server, PARTS)
    server.edit("ConfigMap/kube-flannel/conf", "argocd", a="theirs")
    before = server.objects
    found = several(server, [*PARTS[1:], part("more", config_map("more", "kube-system"))])
    assert [row["object"] for row in found["findings"]] == ["ConfigMap kube-flannel/conf"]
    assert server.objects == before


def test_of_a_wait_that_is_left_for_later_the_next_task_learns_what_is_not_met_yet(server):
    waits = [{"resource": "daemonset/ds", "namespace": "kube-flannel"}, {"resource": "node/a node/b", "until": READY}]
    parts = [
        part("flannel", namespace(), daemon_set(), wait=waits[:1]),
        part("k3s", node("a"), node("b"), wait=waits[1:]),
    ]
    server.state(objects={f"Node//{name}": {**node(name), "status": {"conditions": []}} for name in "ab"})
    first = several(server, parts, wait_later=True)
    assert [item["resource"] for item in first["pending"]] == ["daemonset/ds", "node/a node/b"]
    assert server.calls("rollout") + server.calls("wait") == []
    objects = server.objects
    for name in "ab":
        objects[f"Node//{name}"]["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    server.state(objects=objects)
    again = several(server, parts, wait_later=True)
    assert [item["resource"] for item in again["pending"]] == ["daemonset/ds"], "both nodes are Ready"
    last = server.run([], wait=again["pending"])
    assert [item["resource"] for item in last["waited"]] == ["daemonset/ds"]


def test_what_render_returns_does_for_another_task_what_the_first_would_have_done(servers):
    one, other = servers
    given = {"objects": [daemon_set(), namespace()], "owner": "flannel", "takeover_allowed": None}
    found = render(given)
    assert [item["kind"] for item in found["rendered"]] == ["Namespace", "DaemonSet"]
    assert found["part"] == given
    assert actions(several(one, [found["part"]])) == actions(other.run(given["objects"]))
    assert "no kind" in render({"objects": [{}], "owner": "x"})["msg"]


ADVICE = "\nPlease review the fields above--they currently have other managers."
ONE = f'error: Apply failed with 1 conflict: conflict with "flux" using apps/v1: .spec.replicas{ADVICE}'
TWO = 'Apply failed with 2 conflicts: conflicts with "a" using v1:\n- .data.x\nconflicts with "b" using v1:\n- .data.y'
CONFLICTS = {
    ONE: "flux: .spec.replicas",
    TWO + ADVICE: "a, b: .data.x, .data.y",
    "The DaemonSet is invalid": None,
}


@pytest.mark.parametrize("text", CONFLICTS)
def test_the_servers_words_about_a_conflict_are_read(text):
    assert planner.conflict(text) == CONFLICTS[text]


UNREACHABLE = {
    "The connection to the server localhost:8080 was refused - did you specify the right host or port?": True,
    "Unable to connect to the server: net/http: TLS handshake timeout": True,
    "Error from server (ServiceUnavailable): the server is currently unable to handle the request": True,
    'Error from server (Forbidden): configmaps is forbidden: User "x" cannot list': False,
    "error: unable to parse": False,
}


def test_log_lines_of_kubectl_are_left_out():
    text = 'E1121 20:40:59 1 memcache.go:265] "Unhandled Error" err="refused"\nThe connection was refused\n'
    assert kubectl.last_words(text) == "The connection was refused"
    assert kubectl.last_words("") == "no reason given"


@pytest.mark.parametrize("text", UNREACHABLE)
def test_silence_of_a_server_is_distinguished_from_a_refusal(text):
    assert kubectl.unreachable(text) is UNREACHABLE[text]


def test_patience_begins_anew_each_time_the_server_stops_answering():
    now = [0.0]
    slow, lost = (0, "{}", ""), (1, "", "Unable to connect to the server: net/http: TLS handshake timeout")
    answers = [slow, lost, slow, *[lost] * 9]

    class Slow(kubectl.Kubectl):
        def run(self, *_words, text=None, limit=None):
            del text, limit
            now[0] += 100
            return answers.pop(0)

    client = Slow(["kubectl"], patience=120, clock=lambda: now[0], sleep=lambda _seconds: None)
    assert client.run_retrying("get")[0] == 0
    assert client.run_retrying("get")[0] == 0, "300 s after the start, 100 s after it stopped to answer"
    with pytest.raises(kubectl.Unreachable, match="TLS handshake timeout"):
        client.run_retrying("get")


def test_in_git_mode_what_the_same_tool_has_applied_is_left_over_and_a_users_copy_is_not(server):
    def by(manager, item):
        item["metadata"]["labels"] = OWNER
        item["metadata"]["managedFields"] = [{"manager": manager, "operation": "Apply", "fieldsV1": [".data.a"]}]
        return item

    server.add(namespace(), by("kustomize-controller", config_map(a="1")))
    server.add(by("kustomize-controller", config_map("old", a="1")), by("kubectl", config_map("copied", a="1")))
    found = server.run([namespace(), config_map(a="1")], applied_by="gitops")["findings"]
    assert [finding["object"] for finding in found] == ["ConfigMap kube-flannel/old"]
