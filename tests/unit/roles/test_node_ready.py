"""The program that keeps the startup taint, against a double of the API server over a real TLS socket."""

from __future__ import annotations

import base64
import json
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.roles.node_ready.files import node_ready
from ansible_collections.gpufabric.rdma.tests.tools.api_double import ApiDouble, Cluster, certificates

KEY = "rdma.gpufabric.io/not-ready"
OTHER = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OWN = {"key": KEY, "value": "true", "effect": "NoSchedule"}
BOOT, LAST_BOOT = "boot-2", "boot-1"
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max locked memory         {}            {}            bytes\n"
)


class Bed:
    """A node's files below a folder, and the double that its kubelet's kubeconfig names."""

    def __init__(self, folder: pathlib.Path, cluster: Cluster, double: ApiDouble):
        self.folder, self.cluster, self.double = folder, cluster, double
        self.said: list[str] = []
        self.settings = {
            "node": "node1",
            "taint": KEY,
            "effect": "NoSchedule",
            "resources": None,
            "conf": str(folder / "00-multus.conf"),
            "services": ["k3s", "k3s-agent"],
            "memlock": None,
            "api_server": "",
            "token": str(folder / "token"),
            "run_directory": str(folder / "run"),
            "kubeconfigs": [str(folder / "absent"), str(folder / "kubelet.kubeconfig")],
        }
        (folder / "token").write_text("of-the-unit\n")
        self.join(double.url, double.authority)
        self.limit("unlimited")

    def join(self, url: str, authority: str) -> None:
        data = base64.b64encode(authority.encode()).decode()
        (self.folder / "kubelet.kubeconfig").write_text(
            "apiVersion: v1\nclusters:\n- cluster:\n"
            f"    certificate-authority-data: {data}\n    server: {url}\n  name: local\n"
        )

    def limit(self, memlock: str) -> None:
        (self.folder / "proc/70").mkdir(parents=True, exist_ok=True)
        (self.folder / "proc/70/limits").write_text(LIMITS.format(memlock, memlock))

    def conf(self, text: str | None = None) -> None:
        document = {"name": "multus-cni-network", "type": "multus-shim", "clusterNetwork": "/host/x"}
        (self.folder / "00-multus.conf").write_text(json.dumps(document) if text is None else text)

    def keeper(self) -> node_ready.Keeper:
        def run(argv):
            return "70\n" if argv[-1] == "k3s" else "0\n"

        return node_ready.Keeper(self.settings, BOOT, run, say=self.said.append, proc=str(self.folder / "proc"))

    def status(self) -> dict:
        return json.loads((self.folder / "run/node-ready.json").read_text())

    def marked(self) -> bool:
        return (self.folder / "run/startup-taint").exists()

    def taints(self) -> list:
        return self.cluster.node["spec"].get("taints", [])

    def kubelet(self, ready: str = "True", boot: str = BOOT, **allocatable) -> None:
        """What the kubelet has reported last."""
        self.cluster.node["status"] = {
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"bootID": boot},
            "allocatable": {"cpu": "8", **{f"rdma/{name}": count for name, count in allocatable.items()}},
        }


@pytest.fixture
def bed(tmp_path):
    node = {"metadata": {"name": "node1", "resourceVersion": "7"}, "spec": {"taints": [OTHER]}, "status": {}}
    tokens = {
        "of-the-unit": "system:serviceaccount:gpufabric-rdma:node-ready-node1",
        "of-the-kubelet": "system:node:node1",
    }
    cluster = Cluster(node, tokens)
    with ApiDouble(cluster, tmp_path) as double:
        yield Bed(tmp_path, cluster, double)


def test_after_a_boot_the_taint_is_set_before_multus_may_go_on(bed):
    bed.kubelet("True", LAST_BOOT, rail0="20")  # the status from before the boot is still there
    bed.conf()
    keeper = bed.keeper()
    assert keeper.step() == node_ready.WAITING
    assert bed.taints() == [OTHER, OWN]
    assert bed.marked()
    assert keeper.step() == node_ready.WAITING
    assert bed.status()["reasons"] == ["the kubelet has not reported Ready in this boot"]
    assert bed.taints() == [OTHER, OWN], "resources of before the boot say nothing"


def test_the_taint_is_removed_when_every_condition_holds_and_not_before(bed):
    bed.cluster.node["spec"]["taints"] = [OTHER, OWN]  # as the kubelet has registered it
    bed.kubelet("False")
    bed.limit("8388608")
    keeper = bed.keeper()
    keeper.step()
    seen = []
    for cure in (
        bed.conf,
        lambda: bed.limit("unlimited"),
        lambda: bed.kubelet("True"),
        lambda: bed.kubelet("True", rail0="0"),
        lambda: bed.kubelet("True", rail0="20"),
    ):
        assert keeper.step() == node_ready.WAITING
        seen.append(bed.status()["reasons"])
        assert OWN in bed.taints()
        cure()
    assert [len(reasons) for reasons in seen] == [2, 1, 1, 1, 1]
    assert keeper.step() == node_ready.READY
    assert bed.taints() == [OTHER], "the taint of someone else stays"
    assert bed.status() == {"state": "ready", "reasons": [], "boot_id": BOOT}


def test_a_node_that_serves_already_is_not_tainted(bed):
    bed.kubelet("True", rail0="20")
    bed.conf()
    keeper = bed.keeper()
    assert keeper.step() == node_ready.WAITING
    assert keeper.step() == node_ready.READY
    assert not [call for call in bed.cluster.calls if call[0] == "PATCH"]


def test_a_restart_in_the_same_boot_does_not_set_it_again(bed):
    bed.kubelet("False")
    bed.keeper().step()
    assert OWN in bed.taints()
    bed.cluster.node["spec"]["taints"] = []
    assert bed.keeper().step() == node_ready.WAITING
    assert bed.taints() == []


def test_someone_else_changing_the_node_at_the_same_time_is_not_an_error(bed):
    bed.kubelet("False")
    bed.cluster.conflicts = 1
    keeper = bed.keeper()
    assert keeper.step() == "unset"
    assert not bed.marked()
    keeper.step()
    assert OWN in bed.taints()


@pytest.mark.parametrize(
    ("token", "said", "calls"),
    [
        (b"of-a-cluster-that-is-gone", "401 Unauthorized", 1),
        (b"of-the-kubelet", "403 node 'node1' is not allowed", 2),
        (None, "token", 0),
        (b"\xe9\xff\n", "token", 0),
    ],
    ids=["unknown", "of the kubelet", "none", "no text"],
)
def test_a_refused_token_is_reported_and_asks_for_a_new_one(bed, token, said, calls):
    bed.kubelet("False")
    place = bed.folder / "token"
    place.write_bytes(token) if token else place.unlink()
    keeper = bed.keeper()
    assert keeper.step() == node_ready.REFUSED
    assert said in bed.status()["reasons"][0]
    assert len(bed.cluster.calls) == calls
    place.write_text("of-the-unit")
    assert keeper.step() == node_ready.WAITING
    assert OWN in bed.taints()


@pytest.mark.parametrize(
    ("state", "outcome", "reason"),
    [
        ("another authority", "unset", "certificate verify failed"),
        ("no server", "unset", ""),
        ("not registered", node_ready.WAITING, "node node1 has not registered"),
        ("not joined", "unset", "the node has not joined a cluster"),
    ],
)
def test_a_server_that_cannot_be_asked_yet_is_waited_for(bed, tmp_path, state, outcome, reason):
    if state == "another authority":
        (tmp_path / "other").mkdir()
        bed.join(bed.double.url, certificates(tmp_path / "other"))
    elif state == "no server":
        bed.join("https://127.0.0.1:9", bed.double.authority)
    elif state == "not joined":
        (bed.folder / "kubelet.kubeconfig").unlink()
    else:
        bed.cluster.node = None
    keeper = bed.keeper()
    assert keeper.step() == outcome
    assert bed.status()["state"] == node_ready.WAITING
    assert reason in bed.status()["reasons"][0]
    assert bool(bed.cluster.calls) == (state == "not registered"), "no one else gets the token"
    keeper.step()
    assert len(bed.said) == 1, "the same reason is told once"


@pytest.mark.parametrize(
    ("wanted", "reasons"),
    [
        ([], []),
        (["rdma/rail0"], []),
        (["rdma/rail0", "rdma/rail1"], ["rdma/rail1 is not allocatable"]),
        (["rdma/rail2"], ["rdma/rail2 is not allocatable"]),
        (None, []),
    ],
)
def test_resources_that_are_named_are_waited_for_by_name(wanted, reasons):
    assert node_ready.resource_reasons({"rdma/rail0": "20", "rdma/rail2": "0"}, wanted) == reasons


@pytest.mark.parametrize("text", ["", '{"type": "bridge"}', '{"type": "multus-shim"}'])
def test_a_configuration_that_is_not_whole_or_not_multus_holds_the_taint(tmp_path, text):
    (tmp_path / "conf").write_text(text)
    assert node_ready.cni_reason(str(tmp_path / "conf"))


@pytest.mark.parametrize(("limit", "fine"), [("unlimited", True), ("8589934592", True), ("65536", False)])
def test_a_limit_in_bytes_is_compared_as_a_number(tmp_path, limit, fine):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/limits").write_text(LIMITS.format(limit, limit))
    assert (node_ready.memlock_reason(["k3s"], 2**33, lambda argv: "7\n", str(tmp_path)) is None) is fine


def test_a_kubeconfig_names_the_authority_as_a_file_or_inside(tmp_path):
    file = "clusters:\n- cluster:\n    server: https://127.0.0.1:6444\n    certificate-authority: /var/lib/ca.crt\n"
    assert node_ready.kubeconfig(file) == ("https://127.0.0.1:6444", "/var/lib/ca.crt")
    with pytest.raises(ValueError, match="has no server"):
        node_ready.kubeconfig("clusters: []\n")


def test_the_program_awaits_what_its_other_half_has_written(tmp_path):
    """As systemd and the role start it; its own half-second is the only clock here."""
    (tmp_path / "run").mkdir()
    (tmp_path / "settings.json").write_text(json.dumps({"node": "node1", "run_directory": str(tmp_path / "run")}))
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    status = tmp_path / "run/node-ready.json"
    for told, outcome in (
        (None, (1, "gpufabric-rdma-node-ready.service has reported nothing in this boot")),
        ({"state": "waiting", "reasons": ["no network"], "boot_id": boot}, (1, "no network")),
        ({"state": "ready", "reasons": [], "boot_id": "another"}, (1, None)),
        ({"state": "ready", "reasons": [], "boot_id": boot}, (0, "")),
    ):
        if told:
            status.write_text(json.dumps(told))
        argv = [sys.executable, "-I", node_ready.__file__, "--settings", tmp_path / "settings.json", "await"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, outcome[1] and done.stdout.strip()) == (outcome[0], outcome[1] and outcome[1])


def test_keeping_ends_when_the_node_is_ready(bed):
    bed.cluster.node["spec"]["taints"] = [OWN]
    bed.kubelet("True", rail0="20")
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        bed.conf()

    node_ready.keep(bed.keeper(), sleep)
    assert slept == [2]
    assert bed.taints() == []
    assert bed.said[-1] == f"taint {KEY} removed: the node can run RDMA pods"
