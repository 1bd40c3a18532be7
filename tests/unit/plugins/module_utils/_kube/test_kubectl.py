"""The patience with a silent API server, and whether the cluster can spare a node or has it back."""

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s, kubectl, running_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

LOGGED = "E1126 00:12:13.456789    4242 memcache.go:287] couldn't get "
METRICS = (
    f"{LOGGED}resource list for custom.metrics.k8s.io/v1beta1: the server is currently unable to handle the request"
)
ROLES = f"{LOGGED}resource list for rbac.authorization.k8s.io/v1: context deadline exceeded"
NADS = f"{LOGGED}resource list for k8s.cni.cncf.io/v1: Internal error"
ALL = f"{LOGGED}current server API group list: context deadline exceeded"
ABSENT = 'error: the server doesn\'t have a resource type "roles"'


@pytest.mark.parametrize(("logged", "asked", "silent"), [
    ([], "roles.rbac.authorization.k8s.io", False),
    ([METRICS], "roles.rbac.authorization.k8s.io", False),
    ([METRICS, ROLES], "roles.rbac.authorization.k8s.io", True),
    ([ROLES, METRICS], "roles", True),
    ([NADS], "pods", False),
    ([ALL], "roles", True),
])  # fmt: skip
def test_a_type_is_absent_only_where_its_list_was_there(script, logged, asked, silent):
    said = "\n".join([*logged, ABSENT])
    client = kubectl.Kubectl([script("kubectl", f"cat >&2 <<'END'\n{said}\nEND\nexit 1")])
    if not silent:
        assert client.run_retrying("get", asked)[2].strip().splitlines() == [ABSENT]
        return
    with pytest.raises(kubectl.Unreachable) as error:
        client.run_retrying("get", asked)
    (finding,) = error.value.findings
    assert finding.wanted == "an answer"
    assert finding.seen in [line.partition("] ")[2] for line in logged]


def test_the_types_of_a_cluster_that_is_gone_are_not_remembered(script):
    argv = [script("kubectl", 'ls "$KUBECACHEDIR"; touch "$KUBECACHEDIR/types"')]
    assert [kubectl.Kubectl(argv).run("get")[1] for _client in range(2)] == ["", ""]


@pytest.mark.parametrize(("program", "asked"), [("k3s", "off"), ("kubectl", "offother")])
def test_k3s_is_asked_about_its_own_cluster_without_the_users_preferences(script, monkeypatch, program, asked):
    monkeypatch.setenv("KUBECONFIG", "other")
    assert kubectl.Kubectl([script(program, 'printf %s "$KUBERC" "$KUBECONFIG"')]).run("get")[1] == asked


class Cluster:
    """Replaces Kubectl and time: returns one list of objects per call, the last one forever."""

    def __init__(self, *answers):
        self.answers, self.asked, self.now = list(answers), 0, 0.0

    def items(self, *_words):
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def slices(*ready):
    return [{"kind": "EndpointSlice", "endpoints": [{"conditions": {"ready": one}} for one in ready] or None}]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [([slices(False, True)], 1), ([slices(), slices(False), slices(True)], 3), ([[]], 1), ([slices(False)], None)],
)
def test_the_dns_service_is_waited_for_until_it_has_an_endpoint_and_not_for_ever(answers, asked):
    cluster = Cluster(*answers)
    running_pods.wait_for_dns(cluster, 60, clock=cluster)
    assert cluster.asked == asked if asked else 60 < cluster.now <= 64


SERVER = {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
ETCD_METRICS = """\
# TYPE etcd_network_active_peers gauge
etcd_network_active_peers{Local="a1",Remote="b2"} 1
etcd_network_active_peers{Local="a1",Remote="c3"} 0
etcd_network_known_peers{Local="a1",Remote="a1"} 1
etcd_network_known_peers{Local="a1",Remote="b2"} 1
etcd_network_known_peers{Local="a1",Remote="c3"} 1
etcd_server_has_leader 1
"""
WHOLE = {"known": {"a", "b", "c"}, "active": {"a", "b", "c"}, "leader": True}


def node(name, ready="True", boot="boot-1", labels=None, **more):
    found = kubectl_cluster.node(name, labels=SERVER if labels is None else labels)
    conditions = [{"type": kind, "status": status} for kind, status in {"Ready": ready, **more}.items()]
    found["status"] = {"conditions": conditions, "nodeInfo": {"bootID": boot}}
    return found


NODES = [node("s1"), node("s2"), node("s3"), node("worker", labels={})]


def seen(*args, **options):
    return [(found.object, found.seen) for found in k3s.against(*args, **options)]


@pytest.mark.parametrize(("nodes", "etcd", "said"), [
    ([*NODES[:2], node("s3", "Unknown")], WHOLE, [("server s3", "no report for a while")]),
    ([*NODES[:2], node("s3", EtcdIsVoter="False")], WHOLE, [("server s3", "not one now")]),
    (NODES, {**WHOLE, "active": {"a", "b"}}, [("etcd of the cluster", "2 of 3 members, without c")]),
    (NODES, {**WHOLE, "leader": False}, [("etcd of the cluster", "no leader")]),
    # An etcd that does not list its members: the nodes count.
    (NODES, {"known": {"a"}, "active": {"a", "b"}, "leader": True}, [("etcd of the cluster", "2 of 3 members")]),
    (NODES[:1], {"known": [], "active": [], "leader": True}, []),
    (NODES, {"error": "refused"}, [("etcd of the cluster", "refused")]),
])  # fmt: skip
def test_what_is_away_is_named(nodes, etcd, said):
    assert seen(nodes, etcd, "s1") == said
    assert seen(NODES, WHOLE, "s1") == seen(NODES, None, "worker") == []
    # An absent worker, and nodes before the pod network, block nothing.
    assert seen([node("s1", "False"), node("worker", "Unknown", labels={})], None, "s1") == []
    assert seen(NODES, None, "other") == [("node other", "no node of that name")]


@pytest.mark.parametrize(
    ("ready", "boot", "said"),
    [("True", "boot-1", "that of the previous boot"), ("False", "boot-2", "not Ready"), ("True", "boot-2", None)],
)
def test_a_node_is_back_when_it_has_reported_its_new_boot(ready, boot, said):
    nodes = [node("worker", ready, boot, labels={})]
    found = k3s.against(nodes, None, "worker", left="boot-1", ready=True)
    assert [finding.seen for finding in found] == ([said] if said else [])


@pytest.fixture
def etcd(tmp_path, put):
    def read(config, fetch=lambda url: ETCD_METRICS):
        put(k3s.ETCD_CONFIG, config)
        return k3s.etcd(Tree(tmp_path), fetch)

    return read


def test_etcd_is_asked_at_the_address_that_its_configuration_has(etcd):
    asked = []

    def fetch(url):
        asked.append(url)
        return ETCD_METRICS

    found = etcd("name: s1\nlisten-metrics-urls: http://127.0.0.1:2381,http://192.0.2.1:2381\n", fetch)
    assert asked == ["http://127.0.0.1:2381/metrics"]
    assert found == {"itself": "a1", "known": ["a1", "b2", "c3"], "active": ["a1", "b2"], "leader": True}


def test_an_etcd_that_cannot_be_asked_is_not_taken_for_one_that_is_whole(etcd, tmp_path):
    def refused(_url):
        raise ConnectionRefusedError("refused")

    assert k3s.etcd(Tree(tmp_path)) is None, "a server without etcd has none"
    assert "error" in etcd("listen-metrics-urls: http://127.0.0.1:2381\n", refused)
    assert "error" in etcd("name: s1\n")


def test_it_waits_until_nothing_stands_against_it_and_no_longer_than_told():
    cluster, answers = Cluster(NODES), [["away"], ["away"], []]

    def wait(seconds, judge):
        return k3s.wait(cluster, Tree("/nowhere"), seconds, judge, cluster.monotonic, cluster.sleep)[1]

    assert (wait(60, lambda _nodes, _etcd: answers.pop(0)), cluster.now) == ([], 6.0)
    assert (wait(5, lambda _nodes, _etcd: ["away"]), cluster.now) == (["away"], 12.0)
