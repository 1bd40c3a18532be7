"""cluster_info and test_pods, run by Ansible, with a double of kubectl."""

import select
import subprocess
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s, pod_probe
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_traffic as kube_traffic
from ansible_collections.gpufabric.rdma.plugins.modules import cluster_info, test_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pod_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pods as planned_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

pytestmark = pytest.mark.usefixtures("short_names")

ROCE = (tree.texts("output") / "pod-roce.txt").read_text()
OPTIONS = {"namespace": "gpufabric-verification", "image": "example.test/rdma:1"}


@pytest.fixture
def cluster(tmp_path):
    return kubectl_cluster.make(tmp_path / "cluster.json")


def call(cluster, module, check=False, **options):
    return running.module(module, check, path="/usr/bin:/bin", **{"kubectl": cluster.argv, **options})


def planned(cluster, hosts=None):
    plan = planned_pods.plan(Cluster(hosts or kubectl_cluster.hosts(), call(cluster, cluster_info), **OPTIONS))
    for pod in plan["pods"]:
        cluster.answer(pod["name"], kubectl_cluster.answer_of(ROCE, pod))
    return plan


def run(cluster, plan, **options):
    options = {"wait_seconds": 5, "limit": 5, "seconds": 1, "resolve": "kubernetes.default.svc", **options}
    return call(cluster, test_pods, objects=plan["objects"], pods=plan["pods"], **options)


def judged(cluster, hosts, plan, ran):
    given = {"plan": plan, "run": ran, "service_cidrs": ["10.43.0.0/16"], "pods_per_node": 16}
    return pod_checks.cluster_checks(Cluster(hosts, call(cluster, cluster_info), **given), {}, False)


def test_pods_run_answer_and_send_are_judged_and_gone_afterwards(cluster):
    plan = planned(cluster)
    assert [pod["name"] for pod in plan["pods"]] == ["workload-node1", "seed-node1", "workload-node2", "seed-node2"]
    cluster.state(late_accounts=5)
    ran = run(cluster, plan)
    assert {state["phase"] for state in ran["pods"].values()} == {"Running"}
    assert sorted(ran["answers"]) == sorted(ran["pods"])
    assert pod_probe.parse(ran["answers"]["workload-node1"])["user"] == 1000
    tests = ran["traffic"]["tests"]
    assert {test["tool"]: test["result"]["ok"] for test in tests} == dict.fromkeys(
        ("ping", "rping", "ib_write_bw"), True
    )
    assert (tests[2]["result"]["mb_per_s"], ran["changed"]) == (9301.1, False)
    found = judged(cluster, kubectl_cluster.hosts(), plan, ran)
    assert [(name, item["id"], item["seen"]) for name, item in found if item["status"] != "passed"] == []
    assert {name for name, _item in found} == {"node1", "node2"}
    assert OPTIONS["namespace"] in cluster.namespaces()
    assert call(cluster, test_pods, state="absent")["left"] is None
    assert OPTIONS["namespace"] not in cluster.namespaces()


OWNED, MANAGED = "rdma.gpufabric.io/owner", "app.kubernetes.io/managed-by"


def foreign(name, manager, operation="Update", **labels):
    """A namespace that someone else created."""
    managed = [{"manager": manager, "operation": operation, "fieldsV1": []}]
    return kubectl_cluster.api_object("v1", "Namespace", name, metadata={"labels": labels, "managedFields": managed})


@pytest.mark.parametrize(
    ("labels", "manager", "operation"),
    [
        ({}, "kubectl-create", "Update"),
        ({OWNED: "verification"}, "kubectl-client-side-apply", "Update"),
        ({OWNED: "verification"}, "gpufabric.rdma", "Update"),
        ({MANAGED: "gpufabric.rdma"}, "gpufabric.rdma", "Apply"),
    ],
)
def test_a_namespace_that_is_not_ours_is_neither_used_nor_emptied_nor_removed(cluster, labels, manager, operation):
    plan, name = planned(cluster), OPTIONS["namespace"]
    cluster.add(foreign(name, manager, operation, **labels))
    cluster.add_pod(name, "training", "node1")
    before = cluster.objects
    refused = run(cluster, plan)
    removed = call(cluster, test_pods, state="absent")
    assert cluster.objects == before
    assert (refused["failed"], refused["findings"][0]["object"]) == (True, f"namespace {name}")
    assert manager in refused["findings"][0]["seen"]
    assert removed["left"] is None
    assert {line[0] for line in cluster.calls()} == {"get"}


LACK = {"id": "plugin-missing", "object": "plugin loopback", "wanted": "a program", "seen": "none", "next_step": "x"}
TAINT = {"key": "example.com/not-ready", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda node, host: host.update(cni={**host["cni"], "findings": [LACK]}), "plugin loopback: none"),
        (lambda node, host: node["status"]["conditions"][0].update(status="False", message="off"), "is not Ready: off"),
        (lambda node, host: node["spec"].update(taints=[TAINT]), "has the taint example.com/not-ready:NoSchedule"),
    ],
)
def test_pods_that_cannot_start_are_left_out_with_the_reason_and_not_waited_for(cluster, change, reason):
    hosts, objects = kubectl_cluster.hosts(), cluster.objects
    change(objects["Node//node2"], hosts[1])
    cluster.state(objects=objects)
    plan = planned(cluster, hosts)
    # Every pod on node2 stays in ContainerCreating.
    cluster.state(pending={f"{kind}-node2": ["ContainerCreating"] for kind in ("workload", "seed")})
    ran = run(cluster, plan, wait_seconds=600)
    assert ran["seconds"]["pods"] < 30
    assert sorted(ran["answers"]) == ["seed-node1", "workload-node1"]
    checks = judged(cluster, hosts, plan, ran)
    seen = {(host, item["id"]): (item["status"], item["seen"]) for host, item in checks}
    status, why = seen["node2", "pod:workload"]
    assert (seen["node2", "pod:seed"], status, reason in why) == ((status, why), "not_verified", True)
    assert not [item for _host, item in checks if item["status"] == "failed" and item["id"].startswith("pod:")]


def test_a_node_that_is_ready_again_gets_its_pods_before_kubernetes_takes_its_taint_off(cluster):
    objects = cluster.objects
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
    objects["Node//node2"]["spec"]["taints"] = [taint, {**taint, "effect": "NoExecute"}]
    cluster.state(objects=objects)
    plan = planned(cluster)
    assert (plan["left_out"], {pod["host"] for pod in plan["pods"]}) == ({}, {"node1", "node2"})


@pytest.mark.parametrize(
    ("module", "options"), [(cluster_info, {}), (test_pods, {"state": "absent", "wait_seconds": 600})]
)
def test_a_silent_api_server_is_asked_twice_and_named_when_its_time_is_over(cluster, tmp_path, script, module, options):
    program = script("silent", f"echo asked >>{tmp_path}/asked\nexec sleep 600")
    start = time.monotonic()
    result = call(cluster, module, **{"kubectl": [program], "api_seconds": 2, **options})
    assert time.monotonic() - start < 30
    assert "no end after 1.0 s" in (result.get("api_error") or result.get("unanswered"))
    assert (tmp_path / "asked").read_text().split() == ["asked"] * 2


def test_check_mode_only_reads(cluster):
    plan = planned(cluster)
    before = len(cluster.calls())
    for options in ({"objects": plan["objects"]}, {"state": "absent"}, {"state": "measured", "rounds": [[SENT]]}):
        assert call(cluster, test_pods, check=True, **options)["changed"] is False
    assert len(cluster.calls()) == before
    assert "pod" not in call(cluster, cluster_info, check=True, pod="default/mine")
    assert {line[0] for line in cluster.calls()} == {"get"}


class SlowKubectl:
    """A double of kubectl on a starved API server: each exec takes 11 s and returns a captured output."""

    def __init__(self, monkeypatch, *names):
        self.names, self.now = list(names), 0.0
        monkeypatch.setattr(kube_traffic.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(kube_traffic.time, "sleep", self.pass_by)

    def pass_by(self, seconds):
        self.now += seconds

    def run(self, *_words, limit):
        self.pass_by(11)
        name = self.names.pop(0)
        said = (tree.texts("output") / f"{name}.txt").read_text()
        return (0 if name.endswith(("ok", "iterations")) else 1), said, ""


SENT = {"tool": "rping", "address": "10.56.0.18", "tcp_port": 18700}
SENT["client"] = {"pod": "workload-node1", "hca": "mlx5_0", "port": 1, "gid": 7}


@pytest.mark.parametrize(
    ("tool", "names", "ok", "left"),
    [
        ("rping", ["rping-44.0-refused", "rping-44.0-ok"], True, 0),
        ("ib_write_bw", ["ib_write_bw-4.5-refused", "ib_write_bw-4.5-refused", "ib_write_bw-4.5-iterations"], True, 0),
        ("rping", ["rping-44.0-refused"] * 4, False, 1),
        ("rping", ["rping-44.0-unreachable", "rping-44.0-ok"], False, 1),
    ],
)
def test_a_server_whose_exec_is_late_is_tried_again_and_a_path_that_fails_is_not(monkeypatch, tool, names, ok, left):
    kubectl = SlowKubectl(monkeypatch, *names)
    result = kube_traffic.connect(kubectl, "tests", {**SENT, "tool": tool}, {"limit": 30, "seconds": 2})
    assert (result["ok"], len(kubectl.names)) == (ok, left)


class Serving(SlowKubectl):
    """The server's exec hangs, or starts an unreachable program."""

    def __init__(self, monkeypatch, hangs, *names):
        super().__init__(monkeypatch, *names)
        self.hangs = hangs

    def serve(self, _pod, argv, _namespace):
        argv = [] if self.hangs else argv[: argv.index("timeout")]
        server = subprocess.Popen([*argv, "sleep", "60"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not self.hangs:
            assert select.select([server.stdout], [], [], 30)[0], "the server was not started"
        return server


@pytest.mark.parametrize(
    ("hangs", "ok", "error"),
    [
        (True, None, "the server's end: timed out, kubectl exec was silent for 35 s"),
        (False, False, "RDMA_CM_EVENT_REJECTED"),
    ],
)
def test_a_server_whose_exec_hangs_is_told_from_one_that_refuses(monkeypatch, hangs, ok, error):
    kubectl = Serving(monkeypatch, hangs, *["rping-44.0-refused"] * 3)
    test = {**SENT, "server": {"pod": "workload-node2", "ip": "10.56.0.18"}}
    result = kube_traffic._send(kubectl, "tests", test, {"limit": 30, "seconds": 2})
    assert (result["ok"], error in result["error"]) == (ok, True)


def test_the_preflight_of_a_server_names_a_namespace_that_is_not_ours(cluster):
    assert k3s.refused_namespaces(cluster.client(), "ml-team") == []
    cluster.add(foreign("ml-team", "argocd-controller"))
    (finding,) = k3s.refused_namespaces(cluster.client(), "ml-team")
    assert "argocd-controller" in finding["seen"]
    cluster.state(down=True)
    assert k3s.refused_namespaces(cluster.client(), "ml-team") == []


def test_the_machine_of_each_node_is_what_its_kubelet_reported(cluster):
    cluster.add(
        kubectl_cluster.node("bare"), {**kubectl_cluster.node("gpu"), "status": {"nodeInfo": {"systemUUID": "4c"}}}
    )
    found = k3s.registered(cluster.client())
    assert (found["bare"], found["gpu"]) == ("", "4c")
    cluster.state(down=True)
    assert k3s.registered(cluster.client()) == {}
