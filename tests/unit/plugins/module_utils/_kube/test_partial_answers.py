"""Every kubectl call of a full verification, cut off at a random byte or timed out: asked again, then not verified.

One verdict is allowed: an API server that never tells the state of its cluster is itself a failed check. A case breaks
one call, once or each time it is made; its own effect on the cluster may have come about by then or not.
"""

import contextlib
import copy
import io
import json
import random
import threading
import types

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import cluster as kube_cluster
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl as client
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_traffic, running_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pod_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pods as test_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, tree

pytestmark = pytest.mark.usefixtures("short_names")

OUTPUT = tree.texts("output")
ROCE = (OUTPUT / "pod-roce.txt").read_text()
REFUSED = {tool: (OUTPUT / f"{tool}-{version}-refused.txt").read_text() for tool, version in
           (("rping", "44.0"), ("ib_write_bw", "4.5"))}  # fmt: skip
PODS = [{"kind": kind, "node": f"node{number}"} for kind in ("workload", "seed") for number in (1, 2)]
PARAMS = {
    "traffic": True, "resolve": "kubernetes.default.svc", "port": 18700, "seconds": 1, "limit": 5, "wait_seconds": 9,
    "removed_afterwards": True,
}  # fmt: skip
# Failed if the one call for nodes, services and so on never succeeds.
API = ("node1", "cluster:api", "cluster")
OFTEN = 9**9
CUTS = 6


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 0.01
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Broken(client.Kubectl):
    """kubectl whose double is this process. fault: (call, how, cut, times, effect); call: its words."""

    def __init__(self, state, clock, fault=None):
        usual = client.API_SECONDS
        super().__init__(["kubectl"], limit=usual / 2, patience=usual, clock=clock.monotonic, sleep=clock.sleep)
        self.state, self.clock, self.fault, self.lock = state, clock, fault, threading.Lock()
        self.said, self.left, self.dead = {}, fault[3] if fault else 0, set()

    def run(self, *words, text=None, limit=None):
        with self.lock:
            tool = next((tool for tool in REFUSED if tool in words), None)
            if tool and words[3] in self.dead:
                return 1, REFUSED[tool], "command terminated with exit code 1"
            hit = self.hit(words)
            before = copy.deepcopy(self.state) if hit and not self.fault[4] else None
            answer = self.double(words, text)
            self.said[words] = answer
            if not hit:
                return answer
            if before is not None:
                self.state = before
            code, out, error = answer
            return self.broken(code, out[: int(self.fault[2] * len(out))], error, limit)

    def hit(self, words):
        if not self.fault or words != self.fault[0] or not self.left:
            return False
        self.left -= 1
        return True

    def broken(self, code, out, error, limit):
        how = self.fault[1]
        if how == "cut":
            return code, out, error
        if how == "reset":
            return 1, out, "error: unexpected EOF"
        self.clock.sleep(limit or self._limit)
        return client.NO_END, out, f"no end after {limit} s"

    def double(self, words, text):
        out = io.StringIO()
        self.state["calls"].append(list(words))
        with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", io.StringIO(text or ""))
            try:
                kubectl_cluster.answer(self.state, list(words))
            except kubectl_cluster.Failed as failed:
                return failed.status, out.getvalue(), str(failed)
        return 0, out.getvalue(), ""

    def serve(self, pod, argv, namespace):
        words = ("serve", namespace, pod, *argv)
        self.said[words] = (0, "x" * 40, "")
        # A test's only client runs in the pod of the other node.
        other = pod[:-1] + ("1" if pod.endswith("2") else "2")
        self.dead.discard(other)
        if not self.hit(words):
            return server(None, pod_traffic.STARTED.encode())
        self.dead.add(other)
        how = self.fault[1]
        return server({"cut": 0, "reset": 1}.get(how, -9), b"error: unexpected EOF" * (how == "reset"))


def server(status, said):
    """A server's exec, as far as its callers use it."""
    return types.SimpleNamespace(
        poll=lambda: status, terminate=lambda: None, communicate=lambda timeout=None: (said, None)
    )


def planted(tmp_path, bad=False):
    """The state of a cluster with healthy pods, or with three faults of different kinds."""
    made = kubectl_cluster.make(tmp_path / "cluster.json")
    for pod in PODS:
        made.answer(f"{pod['kind']}-{pod['node']}", kubectl_cluster.answer_of(ROCE, pod))
    made.add_pod("default", "mine", "node1", annotation="rail0", limits={"rdma/rail0": "1"})
    made.answer("mine", ROCE)
    if bad:
        answers = made.state()["answers"]
        answers["workload-node1"] = answers["workload-node1"].replace("@@ user\n1000", "@@ user\n4")
        answers["mine"] = answers["mine"].replace("unlimited", "64")
        made.state(answers=answers, pending={"seed-node2": ["Insufficient rdma/rail0", "ErrImageNeverPull"]})
        made.state(objects={name: item for name, item in made.objects.items() if "ippools" not in name})
    return made.state()


def verified(state, clock, monkeypatch, fault=None, user_pod=None):
    """(checks, the client) of a full verification of pods, or of a user's pod."""
    monkeypatch.setattr(pod_traffic, "time", clock)
    monkeypatch.setattr(running_pods, "time", clock)
    monkeypatch.setattr(running_pods.wait_for_pods, "__defaults__", (clock,))
    kubectl, hosts = Broken(copy.deepcopy(state), clock, fault), kubectl_cluster.hosts()
    offered, error = kube_cluster.read(kubectl)
    seen = Cluster(
        hosts, {"cluster": offered, "api_error": error}, namespace="tests", image="example.test/rdma",
        pod_name=user_pod, service_cidrs=["10.43.0.0/16"], pods_per_node=16,
    )  # fmt: skip
    plan = test_pods.plan(seen)
    seen = seen._replace(plan=plan)
    try:
        if user_pod and offered:
            seen = seen._replace(pod=running_pods.inspect_pod(kubectl, user_pod, offered))
        elif plan["pods"]:
            seen = seen._replace(run=running_pods.run(kubectl, {**PARAMS, "namespace": "tests", **plan}))
    except client.Refused as refused:
        seen = seen._replace(failure=str(refused))
    if plan["pods"]:
        seen = seen._replace(stopped=seen.run.get("removed") or running_pods.remove(kubectl, "tests", 9))
    return json.loads(json.dumps(pod_checks.cluster_checks(seen, {}, False))), kubectl


def statuses(checks):
    return {(host, item["id"], item["object"]): item["status"] for host, item in checks}


def cases(said):
    """Each call of a run with each way to break off, once and permanently."""
    dice = random.Random(20261124)
    for call, (_code, out, _error) in said.items():
        for how in ("cut", "reset", "time-out"):
            for times in (1, OFTEN):
                for _number in range(CUTS if out and how == "cut" else 1):
                    yield call, how, dice.random(), times, dice.random() < 0.5 or how == "cut"


@pytest.mark.parametrize("user_pod", [None, "default/mine"])
@pytest.mark.parametrize("bad", [False, True])
def test_a_call_that_breaks_off_makes_no_verdict(tmp_path, monkeypatch, bad, user_pod):
    state = planted(tmp_path, bad)
    checks, healthy = verified(state, Clock(), monkeypatch, user_pod=user_pod)
    usual, number, lost = statuses(checks), 0, 0
    assert {"failed"} <= set(usual.values()) if bad else "failed" not in usual.values()
    for number, fault in enumerate(cases(healthy.said), 1):  # noqa: B007
        told = (" ".join(fault[0])[:120], *fault[1:])
        clock = Clock()
        found, kubectl = verified(state, clock, monkeypatch, fault, user_pod)
        now = statuses(found)
        silent = now.get(API) == "failed"
        assert not silent or (fault[0][1].startswith("nodes,") and fault[3] == OFTEN), (told, "not for good")
        for key, status in now.items():
            assert key == API or status in ("not_verified", usual.get(key)), (told, key, status)
        if fault[3] == 1:
            assert now == usual, told
        unsaid = [item for _host, item in found if item["status"] == "not_verified" and not item["seen"].strip()]
        assert unsaid == [], told
        if now != usual:
            lost += 1
            assert silent or "not_verified" in now.values(), told
            assert kubectl.left <= OFTEN - 2, (told, "was not asked again")
    assert number >= 60
    assert lost >= 30
