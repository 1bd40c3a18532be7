"""k3s_node and k3s_reset at their seams: what is read from a tree, how a start is awaited, what a reset finds."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state as k3s_state
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.modules import k3s_node, k3s_reset
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

WANTED = {"role": "server", "options": {}, "registries": {}, "token_given": False, "takeover_allowed": None}


@pytest.fixture
def root(tmp_path):
    for path, content in {k3s.BINARY: "program", f"{k3s.IMAGES}/a.tar": "a", f"{k3s.IMAGES}/.cache.json": "{}"}.items():
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return tmp_path


def silent(argv):
    return 1, "", ""


def read(root):
    return k3s_state.converging(str(root), silent)


def test_what_k3s_was_started_with_is_remembered_summed_once_and_its_own_cache_is_not_an_input(root, monkeypatch):
    assert set(read(root)["inputs"]) == {k3s.BINARY, f"{k3s.IMAGES}/a.tar"}
    assert read(root)["started"] == {}
    k3s_state.remember(str(root), silent)
    with monkeypatch.context() as patched:
        patched.delattr(k3s_state.hashlib, "sha256")
        seen = read(root)
    assert seen["started"] == seen["inputs"]
    (root / k3s.BINARY.lstrip("/")).write_text("swapped")
    seen = read(root)
    assert seen["started"] != seen["inputs"]
    (root / k3s.RECORD.lstrip("/")).write_text('["cut sho')
    assert read(root)["started"] == {}


@pytest.mark.parametrize(
    ("present", "given", "differs"),
    [("K10abc::server:s3cret", "s3cret", False), ("s3cret", "other", True), ("s3cret", None, False)],
)
def test_a_token_is_compared_by_its_secret(root, present, given, differs):
    place = root / k3s.TOKEN.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(present + "\n")
    assert k3s_state.converging(str(root), silent, given)["token"]["differs"] is differs


def test_services_are_read_from_systemd_and_no_file_content_leaves_the_node():
    answer = (
        "Id=k3s.service\nActiveState=active\nMainPID=77\nInvocationID=abc\nExecMainStartTimestampMonotonic=5000000\n\n"
        "Id=k3s-agent.service\nActiveState=inactive\nMainPID=0\nInvocationID=\nExecMainStartTimestampMonotonic=0\n"
    )
    found = k3s_state._running(lambda argv: (0, answer, ""))
    assert found.keys() == {"k3s"}
    assert (found["k3s"]["pid"], found["k3s"]["invocation"], found["k3s"]["starting"]) == (77, "abc", False)
    assert found["k3s"]["started_at"] == pytest.approx(time.time() - time.monotonic() + 5, abs=1)
    begun = answer.replace("=active", "=activating")
    assert k3s_state._running(lambda argv: (0, begun, ""))["k3s"]["starting"] is True
    assert k3s_state._running(lambda argv: (0, begun.replace("=77", "=0"), "")) == {}
    assert k3s_state._running(lambda argv: (1, "", "no bus")) == {}


@pytest.mark.parametrize(
    ("invocation", "known", "late"),
    [("abc", "abc", []), ("def", "abc", ["late"]), ("def", None, ["late"]), (None, "abc", [])],
    ids=["by us", "by someone else, or by a boot", "nothing is known", "not running"],
)
def test_of_a_start_that_is_not_ours_what_was_written_later_counts(invocation, known, late):
    """R5: the drop-in is removed, k3s restarted by hand, the drop-in put back with the very text of the record."""
    running = {"k3s": {"pid": 77, "invocation": invocation, "started_at": 100.0}} if invocation else {}
    assert k3s_state.younger({"early": 99, "late": 101, "away": None}, running, known) == late


def test_facts_of_a_tree_carry_no_content(root):
    place = root / k3s.CONFIG.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("token: planted-secret\n")
    (root / "etc/kubernetes").mkdir()
    (root / "etc/kubernetes/kubelet.conf").touch()
    found = k3s_state.node(str(root), lambda argv: (1, "", ""))
    assert "planted-secret" not in repr(found)
    assert found["foreign_files"] == [k3s.CONFIG]
    assert found["others"] == ["kubeadm"]


class Systemd:
    """systemctl and journalctl as a double: a script of states, one for each time it is asked."""

    def __init__(self, cluster, *states):
        self.cluster, self.states, self.calls, self.now = cluster, list(states), [], 0.0

    def __call__(self, argv):
        self.calls.append(argv)
        if argv[0] == "journalctl":
            return 0, "starting\nlevel=fatal msg=no-route\n", ""
        if argv[1] == "show":
            state, restarts = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return 0, f"ActiveState={state}\nNRestarts={restarts}\n", ""
        return 0, "", ""

    def node(self, role="server"):
        def sleep(seconds):
            self.now += seconds

        wanted = {**WANTED, "role": role}
        return k3s_node.Node("/", wanted, None, self, 60, self.cluster.client(), clock=lambda: self.now, sleep=sleep)


@pytest.fixture
def cluster(tmp_path):
    return kubectl_cluster.Cluster(tmp_path / "cluster.json")


@pytest.fixture
def remembered(monkeypatch):
    roots = []
    monkeypatch.setattr(k3s_node.state, "remember", lambda root, run: roots.append(root))
    return roots


def test_a_start_is_not_waited_for_by_systemctl_and_ends_when_the_api_server_is_ready(remembered, cluster):
    systemd = Systemd(cluster, ("activating", 0), ("activating", 0), ("active", 0))
    node = systemd.node()
    node._start("restart")
    assert ["systemctl", "restart", "--no-block", "k3s"] in systemd.calls
    assert (node.seconds, remembered) == (4.0, ["/"])
    assert cluster.calls() == [["get", "--raw=/readyz"]]


@pytest.mark.parametrize(
    ("role", "states"),
    [
        ("agent", [("failed", 0)]),
        ("agent", [("activating", 0)]),
        ("agent", [("activating", 1), ("activating", 6)]),
        ("server", [("active", 0)]),
    ],
    ids=["failed", "never", "again and again", "no answer of the server"],
)
def test_a_k3s_that_does_not_come_up_is_reported_with_the_end_of_its_journal(remembered, cluster, role, states):
    cluster.state(down=True)
    systemd = Systemd(cluster, *states)
    with pytest.raises(Refused) as refused:
        systemd.node(role)._start("start")
    (finding,) = refused.value.findings
    assert finding.object.startswith("service k3s")
    assert "level=fatal msg=no-route" in finding.seen
    assert remembered == [], "what was not started with success is started again by the next run"
    assert (systemd.now < 60) == (len(states) > 1 or states[0][0] == "failed")


def test_a_token_of_a_cluster_that_is_there_is_kept(tmp_path):
    node = k3s_node.Node(str(tmp_path), WANTED, None, None, 1)
    server = tmp_path / k3s.DATA.lstrip("/") / "server"
    server.mkdir(parents=True)
    (server / "token").write_text("K10abc::server:known\n")
    node._apply_file(Change(k3s.TOKEN, "generate", "", "hidden"))
    place = tmp_path / k3s.TOKEN.lstrip("/")
    assert place.read_text() == "K10abc::server:known\n"
    assert place.stat().st_mode & 0o777 == 0o600
    (server / "token").unlink()
    node._apply_file(Change(k3s.TOKEN, "generate", "", "hidden"))
    assert len(place.read_text().strip()) == 64


def test_a_reset_finds_shims_with_all_that_runs_below_them_and_nothing_else(tmp_path):
    def process(pid, parent, *command):
        place = tmp_path / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} (a name) S {parent} 0 0")
        (place / "cmdline").write_bytes(b"\0".join(word.encode() for word in command) + b"\0")

    shim = "/var/lib/rancher/k3s/data/1/bin/containerd-shim-runc-v2"
    process(10, 1, shim, "-namespace", "k8s.io", "-address", "/run/k3s/containerd/containerd.sock")
    process(11, 10, "pause")
    process(12, 11, "train.py")
    process(20, 1, "/usr/bin/containerd-shim-runc-v2", "-address", "/run/containerd/containerd.sock")
    process(21, 20, "redis")
    assert k3s_reset.processes(Tree(str(tmp_path))) == [10, 11, 12]


def test_a_reset_finds_the_mounts_of_the_cluster_and_not_those_of_others(tmp_path):
    ours = [
        "/run/k3s/containerd/a/rootfs", "/var/lib/kubelet/pods/0a1b2c3d-0000-4000-8000-00000000000a/volumes/x y",
        "/var/lib/rancher/k3s/agent/containerd/b",
    ]  # fmt: skip
    others = [
        "/", "/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/pods/mine/x", "/run/netns/mine",
        "/run/netns/cni-0a1b", "/var/lib/rancher/k3s", "/var/lib/rancher/k3s/agent/containerd", "/run/k3snot",
    ]  # fmt: skip
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "".join("dev {} type opts 0 0\n".format(point.replace(" ", "\\040")) for point in [*ours, *others])
    (tmp_path / "proc/self/mounts").write_text(text)
    points = k3s_reset.mounts(Tree(str(tmp_path)))
    assert points == [*ours, *others]
    assert [point for point in points if k3s_reset.planner.MOUNTS.match(point)] == ours


def test_a_reset_leaves_a_plugin_that_is_not_the_one_that_was_placed(tmp_path):
    node = k3s_reset.Node(str(tmp_path), None)
    folder = tmp_path / "opt/cni/bin"
    folder.mkdir(parents=True)
    for name in ("bridge", "loopback", "own", "multus-shim"):
        (folder / name).write_text(name)
    sums = {name: k3s_reset.sha256_of(str(folder / name)) for name in ("bridge", "loopback")}
    record = tmp_path / "var/lib/gpufabric-rdma/cni-plugins.json"
    record.parent.mkdir(parents=True)
    record.write_text(k3s_reset.json.dumps(sums))
    (folder / "loopback").write_text("replaced by someone")
    placed, kept = node._plugins(Tree(str(tmp_path)))
    assert sorted(os.path.basename(path) for path in placed) == ["bridge", "cni-plugins.json", "multus-shim"]
    assert sorted(os.path.basename(path) for path in kept) == ["loopback", "own"]


EXEC = "usr/libexec/kubernetes/kubelet-plugins/volume/exec"


@pytest.mark.parametrize(
    ("beside", "stays"),
    [
        ("usr/bin/other", []),
        ("usr/bin/containerd", ["opt/containerd"]),
        (f"{EXEC}/mine/file", ["usr/libexec/kubernetes"]),
    ],
)
def test_a_reset_takes_empty_folders_along_but_not_what_is_someone_elses(tmp_path, beside, stays):
    for folder in (EXEC, "opt/containerd/bin", "opt/containerd/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / beside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / beside).touch()
    list(k3s_reset.Node(str(tmp_path), None).apply([]))
    left = [top for top in ("usr/libexec/kubernetes", "opt/containerd") if (tmp_path / top).exists()]
    assert left == stays


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_foreign_file_is_bytes_and_its_copy_its_owners_alone(tmp_path, mode):
    """It may hold a token, and its writer need not have known UTF-8."""
    foreign = "token: geheim # für alle\n".encode("latin-1")
    wanted = {**WANTED, "options": {k3s.CONFIG: {"node-ip": "192.0.2.1"}}, "takeover_allowed": True}
    place, held = tmp_path / k3s.CONFIG.lstrip("/"), tmp_path / f"{k3s.DATA}/server/token".lstrip("/")
    for path in (place, held):
        path.parent.mkdir(parents=True)
        path.write_bytes(foreign)
        path.chmod(mode)
    node = k3s_node.Node(str(tmp_path), wanted, None, None, 1)
    before = os.umask(0)
    try:
        made = k3s_node.planner.plan(node.read(), wanted, str(tmp_path))
        for _again in range(2):
            node._apply_file(Change(k3s.CONFIG, "write", "", ""))
        node._apply_file(Change(k3s.TOKEN, "generate", "", ""))
    finally:
        os.umask(before)
    assert made.findings == []
    copy = place.with_name("config.yaml.before-gpufabric-rdma")
    assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (foreign, 0o600)
    token = tmp_path / k3s.TOKEN.lstrip("/")
    assert (token.read_bytes(), token.stat().st_mode & 0o777) == (foreign, 0o600)
