"""k3s_node and k3s_reset at their seams; and a reset on a copy of this machine with real mounts, links, namespaces."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import types

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state as k3s_state
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.modules import k3s_node, k3s_reset
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

WANTED = {"role": "server", "options": {}, "registries": {}, "token_given": False, "takeover_allowed": None}


@pytest.fixture
def root(tmp_path, put):
    for path, text in ((k3s.BINARY, "program"), (f"{k3s.IMAGES}/a.tar", "a"), (f"{k3s.IMAGES}/.cache.json", "{}")):
        put(path, text)
    return tmp_path


def silent(argv):
    return 1, "", ""


def read(root):
    return k3s_state.converging(str(root), silent)


def test_what_k3s_was_started_with_is_remembered_summed_once_and_its_own_cache_is_not_an_input(root, monkeypatch, put):
    assert set(read(root)["inputs"]) == {k3s.BINARY, f"{k3s.IMAGES}/a.tar"}
    assert read(root)["started"] == {}
    k3s_state.remember(str(root), silent)
    with monkeypatch.context() as patched:
        patched.delattr(k3s_state, "sha256_of")
        seen = read(root)
    assert seen["started"] == seen["inputs"]
    (root / k3s.BINARY.lstrip("/")).write_text("swapped")
    seen = read(root)
    assert seen["started"] != seen["inputs"]
    put("/etc/default/k3s", "CONTAINERD_HTTPS_PROXY=http://192.0.2.8:3128")
    assert "/etc/default/k3s" in read(root)["inputs"]
    (root / k3s.RECORD.lstrip("/")).write_text('["cut sho')
    assert read(root)["started"] == {}


@pytest.mark.parametrize(
    ("path", "present", "given", "differs"),
    [
        (k3s.TOKEN, "K10abc::server:s3cret", "s3cret", False),
        (k3s.TOKEN, "s3cret", "other", True),
        (k3s.TOKEN, "s3cret", None, False),
        (f"{k3s.DATA}/server/token", "K10abc::server:s3cret", "other", True),
    ],
)
def test_a_token_is_compared_by_its_secret(root, put, path, present, given, differs):
    put(path, f"{present}\n")
    assert k3s_state.converging(str(root), silent, given, first=True)["token"]["differs"] is differs


def test_services_are_read_from_systemd():
    answer = (
        "Id=k3s.service\nActiveState=active\nMainPID=77\nInvocationID=abc\nExecMainStartTimestampMonotonic=5000000\n\n"
        "Id=k3s-agent.service\nActiveState=inactive\nMainPID=0\nInvocationID=\nExecMainStartTimestampMonotonic=0\n"
    )
    begun = answer.replace("=active", "=activating")

    def services(text, code=0):
        return k3s_state._running(lambda argv: (code, text, ""))

    found = services(answer)["k3s"]
    assert (found["pid"], found["invocation"], found["starting"]) == (77, "abc", False)
    assert found["started_at"] == pytest.approx(time.time() - time.monotonic() + 5, abs=1)
    assert services(begun)["k3s"]["starting"] is True
    assert services(begun.replace("=77", "=0")) == services("", 1) == {}


@pytest.mark.parametrize(
    ("invocation", "known", "late"),
    [("abc", "abc", []), ("def", "abc", ["late"]), ("def", None, ["late"]), (None, "abc", [])],
)
def test_of_a_start_that_is_not_ours_what_was_written_later_counts(invocation, known, late):
    """R5: the drop-in is removed, k3s restarted by hand, the drop-in restored with the text of the record."""
    running = {"k3s": {"pid": 77, "invocation": invocation, "started_at": 100.0}} if invocation else {}
    assert k3s_state.younger({"early": 99, "late": 101, "away": None}, running, known) == late


def test_a_program_that_cannot_run_has_no_version(monkeypatch, script):
    monkeypatch.setattr(k3s, "BINARY", script("k3s", "#!/no/such/shell"))
    assert k3s_state.version(Tree("/"), lambda argv: subprocess.run(argv, check=False)) is None


def test_facts_of_a_tree_carry_no_content(root, put):
    put(k3s.CONFIG, "token: planted-secret\n")
    put("etc/kubernetes/kubelet.conf")
    unit = put("etc/systemd/system/k3s-node.service", "[Service]\nExecStart=/usr/bin/k3s \\\n  agent --server s\n")
    site = put("etc/rancher/k3s/config.yaml.d/50-site.yaml", "agent-token: planted-secret\nkubelet-arg+: [a=b]\n")
    found = k3s_state.node(str(root), silent)
    assert "planted-secret" not in repr(found)
    others = [f"k3s (/{unit.relative_to(root)})", "kubeadm"]
    assert (found["foreign_files"], found["others"]) == ([k3s.CONFIG], others)
    assert found["drop_ins"] == {f"/{site.relative_to(root)}": ["agent-token"]}


class Systemd:
    """systemctl and journalctl as a double: a script of states, one per call."""

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
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=sleep)
        return k3s_node.Node("/", wanted, None, self, 60, self.cluster.client(), clock)


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
    ("role", "states", "at_once"),
    [
        ("agent", [("failed", 0)], True),
        ("agent", [("activating", 0)], False),
        ("agent", [("activating", 1), ("activating", 6)], True),
        pytest.param("server", [("active", 0)], False, id="no answer of the server"),
    ],
)
def test_a_k3s_that_does_not_come_up_is_reported_with_the_end_of_its_journal(
    remembered, cluster, role, states, at_once
):
    cluster.state(down=True)
    systemd = Systemd(cluster, *states)
    with pytest.raises(Refused, match="level=fatal msg=no-route"):
        systemd.node(role)._start("start")
    assert remembered == [], "what was not started with success is started again by the next run"
    assert (systemd.now < 60) == at_once


def test_a_token_of_a_cluster_that_is_there_is_kept(tmp_path, put):
    node = k3s_node.Node(str(tmp_path), WANTED, None, None, 1)
    held, place = put(f"{k3s.DATA}/server/token", "K10abc::server:known\n"), tmp_path / k3s.TOKEN.lstrip("/")
    node._apply_file(Change(k3s.TOKEN, "generate", "", "hidden"))
    assert (place.read_text(), place.stat().st_mode & 0o777) == ("K10abc::server:known\n", 0o600)
    held.unlink()
    node._apply_file(Change(k3s.TOKEN, "generate", "", "hidden"))
    assert len(place.read_text().strip()) == 64


def test_a_reset_finds_shims_with_all_that_runs_below_them_and_nothing_else(tmp_path, put):
    def process(pid, parent, *command):
        put(f"proc/{pid}/stat", f"{pid} (a name) S {parent} 0 0")
        put(f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in command))

    shim = "/var/lib/rancher/k3s/data/1/bin/containerd-shim-runc-v2"
    process(10, 1, shim, "-namespace", "k8s.io", "-address", "/run/k3s/containerd/containerd.sock")
    process(11, 10, "pause")
    process(12, 11, "train.py")
    process(20, 1, "/usr/bin/containerd-shim-runc-v2", "-address", "/run/containerd/containerd.sock")
    process(21, 20, "redis")
    assert k3s_reset.processes(Tree(str(tmp_path))) == [10, 11, 12]


def test_a_reset_finds_the_mounts_of_the_cluster_and_not_those_of_others(tmp_path, put):
    ours = ["/run/k3s/containerd/a/rootfs", f"{POD}/volumes/x y", "/var/lib/rancher/k3s/agent/containerd/b"]
    others = ["/", "/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/pods/mine/x", "/run/netns/mine"]
    others += ["/run/netns/cni-0a1b", "/var/lib/rancher/k3s", "/var/lib/rancher/k3s/agent/containerd", "/run/k3snot"]
    text = "".join("dev {} type opts 0 0\n".format(point.replace(" ", "\\040")) for point in [*ours, *others])
    put("proc/self/mounts", text)
    points = k3s_reset.mounts(Tree(str(tmp_path)))
    assert points == [*ours, *others]
    assert [point for point in points if k3s_reset.planner.MOUNTS.match(point)] == ours


def test_a_reset_leaves_a_plugin_that_is_not_the_one_that_was_placed(tmp_path, put):
    plugins = {name: put(f"opt/cni/bin/{name}", name) for name in ("bridge", "loopback", "own", "multus-shim")}
    sums = {name: k3s_reset.core_files.sha256_of(str(plugins[name])) for name in ("bridge", "loopback")}
    put("var/lib/gpufabric-rdma/cni-plugins.json", json.dumps(sums))
    plugins["loopback"].write_text("replaced by someone")
    placed, kept = k3s_reset.Node(str(tmp_path), None)._plugins(Tree(str(tmp_path)))
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
def test_a_reset_takes_empty_folders_along_but_not_what_is_someone_elses(tmp_path, put, beside, stays):
    for folder in (EXEC, "opt/containerd/bin", "opt/containerd/lib"):
        (tmp_path / folder).mkdir(parents=True)
    put(beside)
    list(k3s_reset.Node(str(tmp_path), None).apply([]))
    left = [top for top in ("usr/libexec/kubernetes", "opt/containerd") if (tmp_path / top).exists()]
    assert left == stays


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_foreign_file_is_bytes_and_its_copy_its_owners_alone(tmp_path, mode):
    """It may hold a token, and may not be UTF-8."""
    foreign = "token: geheim # für alle\n".encode("latin-1")
    wanted = {**WANTED, "options": {k3s.CONFIG: {"node-ip": "192.0.2.1"}}, "takeover_allowed": True}
    place, held, token = (tmp_path / path.lstrip("/") for path in (k3s.CONFIG, f"{k3s.DATA}/server/token", k3s.TOKEN))
    for path in (place, held):
        path.parent.mkdir(parents=True)
        path.write_bytes(foreign)
        path.chmod(mode)
    node = k3s_node.Node(str(tmp_path), wanted, None, None, 1)
    before = os.umask(0)
    try:
        made = k3s_node.planner.plan(node.read(), wanted, str(tmp_path))
        for path, action in ((k3s.CONFIG, "write"), (k3s.CONFIG, "write"), (k3s.TOKEN, "generate")):
            node._apply_file(Change(path, action, "", ""))
    finally:
        os.umask(before)
    assert made.findings == []
    for path in (place.with_name("config.yaml.before-gpufabric-rdma"), token):
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (foreign, 0o600)


# --- a reset on a copy of this machine --------------------------------------------------------------------------------

# Its lower layer is this machine's root, below an overlay: writes are discarded with the namespaces.
_ENTER = """
mount --make-rprivate /
mount -t tmpfs world world
mkdir world/upper world/work world/root
mount -t overlay overlay -o lowerdir=/,upperdir=world/upper,workdir=world/work world/root
mount -t proc proc world/root/proc
mount -t sysfs sysfs world/root/sys
mount --bind /dev world/root/dev
mount -t tmpfs run world/root/run
for place; do mkdir -p "world/root$place"; mount --bind "$place" "world/root$place"; done
cp script world/root/tmp/script
exec chroot world/root sh /tmp/script
"""
# Paths of the collection and its Python, which may be on separate file systems that the overlay does not include.
_NEEDED = sorted({str(pathlib.Path(__file__).resolve().parents[4]), sys.prefix, sys.base_prefix})
_APART = ("unshare", "--mount", "--net", "--pid", "--fork")
# Run by the script: one of our modules with these arguments; its answer as text.
MODULE = """
module() { printf '%s' "$2" | {python} -c '
import json, sys
from importlib import import_module
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.load(sys.stdin)}).encode()
basic._ANSIBLE_PROFILE = "legacy"
import_module("ansible_collections.gpufabric.rdma.plugins.modules." + sys.argv[1]).main()
' "$1" >/tmp/answer || true; }
"""


def may_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    mount = [*_APART, "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def in_copy(folder: pathlib.Path, script: str) -> tuple[dict, str]:
    """(the last answer of the script's module, the script's output) of a shell script in such a copy.

    folder: an empty one. The script has `module NAME JSON`, which runs a module of the collection.
    """
    (folder / "world").mkdir(exist_ok=True)
    text = f"set -e\n{MODULE.replace('{python}', sys.executable)}\n{script}\necho; cat /tmp/answer\n"
    (folder / "script").write_text(text)
    done = subprocess.run(
        [*_APART, "sh", "-ec", _ENTER, "sh", *_NEEDED],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said, _newline, answer = done.stdout.rstrip("\n").rpartition("\n")
    return json.loads(answer), said.strip()


YES = json.dumps({"allowed": True, "volumes": True})
POD = "/var/lib/kubelet/pods/0a1b2c3d-0000-4000-8000-00000000000a"
SANDBOX, OTHER = "a" * 64, "b" * 64
NETNS = "cni-0a1b2c3d-0000-4000-8000-00000000000a"
PODMANS = "cni-0a1b2c3d-0000-4000-8000-00000000000b"
# One of our nodes, interrupted half-way: its containers are gone, their leftovers are there.
NODE = """
mkdir -p /srv/share /var/lib/rancher/k3s/server /var/lib/kubelet/pods /opt/double
echo mine >/srv/share/file
echo token >/var/lib/rancher/k3s/server/token
rm -f /usr/sbin/ip*tables*-save /usr/sbin/ip*tables*-restore /usr/sbin/nft
for name in iptables-save ip6tables-save; do printf '#!/bin/sh\n' >/usr/sbin/$name; chmod 755 /usr/sbin/$name; done
"""


@pytest.fixture
def node(tmp_path):
    """node(script): the module's answer and the script's output after it; see in_copy."""
    if not may_mount():
        pytest.skip("not verified: wants root, it mounts file systems")
    return lambda script: in_copy(tmp_path, NODE + script)


def stays(answer, *kept):
    return {f"{thing} stays: nothing shows that this cluster made it" for thing in kept} <= set(answer["notes"])


def seen(answer):
    return {finding["object"]: finding["seen"] for finding in answer["findings"]}


LINKED_PODS = f"""
    rmdir /var/lib/kubelet/pods /var/lib/kubelet; mkdir -p /data/kubelet; ln -s /data/kubelet /var/lib/kubelet
    mkdir -p {POD}/share; mount --bind /srv/share {POD}/share
"""
LINKED_DATA = "mkdir /data; mv /var/lib/rancher/k3s /data/k3s; ln -s /data/k3s /var/lib/rancher/k3s"


@pytest.mark.parametrize(
    ("planted", "thing"), [(LINKED_PODS, "/var/lib/kubelet/pods"), (LINKED_DATA, "/var/lib/rancher/k3s")]
)
def test_a_folder_that_is_a_link_is_refused_and_what_is_below_it_survives(node, planted, thing):
    answer, said = node(f"""
    {planted}
    module k3s_reset '{YES}'
    cat /srv/share/file /var/lib/rancher/k3s/server/token
    """)
    assert (said.split(), list(seen(answer))) == (["mine", "token"], [thing])


def test_mounts_that_no_container_has_made_are_refused_together_and_survive(node):
    places = ["/var/lib/kubelet/plugins/share", "/var/lib/rancher/k3s/agent/merged", "/run/k3s/file"]
    answer, said = node(f"""
    mkdir -p {" ".join(places[:2])} /run/k3s /srv/lower /srv/upper /srv/work
    echo lower >/srv/lower/lower; touch /run/k3s/file
    mount --bind /srv/share {places[0]}
    mount -t tmpfs scratch /srv/work; mkdir /srv/work/upper /srv/work/work; echo upper >/srv/work/upper/upper
    mount -t overlay overlay -o lowerdir=/srv/lower,upperdir=/srv/work/upper,workdir=/srv/work/work {places[1]}
    mount --bind /srv/share/file {places[2]}
    module k3s_reset '{YES}'
    cat {places[0]}/file {places[1]}/lower {places[1]}/upper {places[2]} /var/lib/rancher/k3s/server/token
    """)
    assert said.split() == ["mine", "lower", "upper", "mine", "token"]
    text = " ".join(seen(answer).values())
    assert all(place in text for place in places), answer


WALK = "from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files; files.remove_tree('/', '/a')"


def test_a_mount_that_comes_up_meanwhile_stops_the_walk(node):
    """The plan refuses visible mounts; this tests only the walk, with a bind mount of the folder's own file system."""
    _answer, said = node(f"""
    echo '{{}}' >/tmp/answer
    mkdir -p /a/deep/bound /a/deep/other /a/goes; echo mine >/a/goes/file; touch /a/deep/file
    mount --bind /srv/share /a/deep/bound; mount -t tmpfs other /a/deep/other; touch /a/deep/other/file
    mount --bind /srv/share/file /a/deep/file
    {sys.executable} -c "{WALK}" 2>&1 | tail -1
    cat /srv/share/file; find /a -type f | sort
    """)
    error, *left = said.splitlines()
    assert all(place in error for place in ("mounted: ", "/a/deep/bound", "/a/deep/other", "/a/deep/file"))
    assert left == ["mine", "/a/deep/bound/file", "/a/deep/file", "/a/deep/other/file"]


def test_what_pods_had_mounted_is_unmounted_and_links_are_not_followed(node):
    answer, said = node(f"""
    mkdir -p {POD}/volumes/share /var/lib/rancher/k3s/agent /run/k3s/containerd/rootfs /srv/lower
    mount --bind /srv/share {POD}/volumes/share
    echo lower >/srv/lower/lower
    mount -t overlay overlay -o lowerdir=/srv/lower:/srv/share /run/k3s/containerd/rootfs
    ln -s /srv/share {POD}/volumes/linked
    ln -s /srv/share /var/lib/rancher/k3s/agent/linked
    module k3s_reset '{YES}'
    cat /srv/share/file /srv/lower/lower
    ls -d /var/lib/kubelet /var/lib/rancher /run/k3s 2>&1 | grep -v 'No such' || true
    """)
    assert (said.split(), answer["findings"]) == (["mine", "lower"], [])


def test_a_data_folder_with_a_file_system_of_its_own_is_emptied_and_stays_mounted(node):
    answer, said = node(f"""
    mount -t tmpfs data /var/lib/rancher/k3s; mkdir -p /var/lib/rancher/k3s/server /var/lib/rancher/k3s/lost+found
    echo token >/var/lib/rancher/k3s/server/token
    mount -t tmpfs pods /var/lib/kubelet/pods; mkdir -p {POD}/volumes
    module k3s_reset '{YES}'
    grep -cE ' /var/lib/(rancher/k3s|kubelet/pods) ' /proc/mounts
    find /var/lib/rancher/k3s /var/lib/kubelet -mindepth 1
    module k3s_reset '{YES}'
    """)
    assert said.split() == ["2", "/var/lib/rancher/k3s/lost+found", "/var/lib/kubelet/pods"]
    assert (answer["changes"], answer["findings"]) == ([], [])


@pytest.mark.parametrize(
    ("allowed", "volumes", "asked", "stays"),
    [
        (None, None, "k3s_reset_allowed", True),
        (True, None, "k3s_reset_volumes", True),
        (True, False, None, True),
        (True, True, None, False),
    ],
)
def test_volumes_are_named_and_deleted_only_on_request(node, allowed, volumes, asked, stays):
    volume = "/var/lib/rancher/k3s/storage/pvc-1_team_data"
    answer, said = node(f"""
    mkdir -p {volume}; echo precious >{volume}/file
    module k3s_reset '{json.dumps({"allowed": allowed, "volumes": volumes})}'
    cat {volume}/file /var/lib/rancher/k3s/server/token 2>/dev/null || true
    """)
    assert said.split() == [*(["precious"] if stays else []), *(["token"] if asked else [])]
    told = answer["msg"] if asked else " ".join(answer["notes"])
    assert ("pvc-1_team_data" in told) == stays
    assert asked is None or asked in told


@pytest.mark.parametrize(
    ("path", "name"), [("/etc/rancher/rke2/config.yaml", "RKE2"), ("/etc/kubernetes/kubelet.conf", "kubeadm")]
)
def test_a_node_with_another_kubernetes_is_refused(node, path, name):
    answer, said = node(f"""
    mkdir -p {path.rpartition("/")[0]}; touch {path}
    mkdir -p {POD}/volumes/share; mount --bind /srv/share {POD}/volumes/share
    module k3s_reset '{YES}'
    cat {POD}/volumes/share/file /var/lib/rancher/k3s/server/token
    """)
    assert said.split() == ["mine", "token"]
    assert [finding["seen"] for finding in answer["findings"]] == [f"{name}, by {path}"]


def test_what_podman_has_of_a_network_stays(node):
    bundle = f"/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{SANDBOX}"
    spec = json.dumps({"linux": {"namespaces": [{"type": "network", "path": f"/var/run/netns/{NETNS}"}]}})
    answer, said = node(f"""
    mkdir -p {bundle} /run/flannel /var/lib/cni/networks/podman /var/lib/cni/networks/cbr0 /var/lib/cni/results
    echo '{spec}' >{bundle}/config.json
    ip netns add {NETNS}; ip netns add {PODMANS}
    printf '{OTHER}\r\neth0' >/var/lib/cni/networks/podman/10.88.0.2; touch /var/lib/cni/networks/podman/lock
    printf '{SANDBOX}\r\neth0' >/var/lib/cni/networks/cbr0/10.42.0.2
    touch /var/lib/cni/results/podman-{OTHER}-eth0 /var/lib/cni/results/rail0-{SANDBOX}-net1
    ip link add cni0 type bridge; ip address add 10.4.0.1/24 dev cni0
    echo FLANNEL_SUBNET=10.42.0.1/24 >/run/flannel/subnet.env
    module k3s_reset '{YES}'
    ip netns list; ls /var/lib/cni/networks /var/lib/cni/results; ip -o link show cni0 | cut -d: -f2
    """)
    assert said.split() == [
        PODMANS, "/var/lib/cni/networks:", "podman", "/var/lib/cni/results:", f"podman-{OTHER}-eth0", "cni0",
    ]  # fmt: skip
    assert stays(answer, f"network namespace {PODMANS}", "/var/lib/cni/networks/podman", "link cni0")


def test_what_host_local_keeps_of_our_networks_without_a_pod_goes_and_that_of_others_stays(node):
    """Seen on a lab node: the addresses went with the last pod, lock and last address of each rail stayed."""
    answer, said = node(f"""
    mkdir -p /etc/cni/multus/net.d /var/lib/cni/networks/rail0 /var/lib/cni/networks/rail1 /var/lib/cni/networks/theirs
    echo '{{"name": "rail0"}}' >/etc/cni/multus/net.d/gpufabric-rdma-rail0.conf
    echo '{{"name": "rail1"}}' >/etc/cni/multus/net.d/gpufabric-rdma-rail1.conf
    echo '{{"name": "theirs"}}' >/etc/cni/multus/net.d/theirs.conf
    echo '["rail0"]' >/etc/cni/multus/net.d/gpufabric-rdma-odd.conf
    for name in rail0 rail1 theirs; do
        touch /var/lib/cni/networks/$name/lock; echo 10.56.0.2 >/var/lib/cni/networks/$name/last_reserved_ip.0
    done
    printf '{OTHER}\r\neth0' >/var/lib/cni/networks/rail1/10.56.0.9
    module k3s_reset '{YES}'
    ls /var/lib/cni/networks
    """)
    assert said.split() == ["rail1", "theirs"]
    assert stays(answer, "/var/lib/cni/networks/rail1", "/var/lib/cni/networks/theirs")


def test_the_bridge_of_flannel_files_of_networks_and_of_virtual_functions_go_too(node):
    header = "# Managed by Ansible collection gpufabric.rdma; changes here are overwritten."
    answer, said = node(f"""
    mkdir -p /run/flannel /etc/cni/multus/net.d /usr/local/libexec
    echo FLANNEL_SUBNET=10.42.0.1/24 >/run/flannel/subnet.env
    ip link add cni0 type bridge; ip address add 10.42.0.1/24 dev cni0
    echo '{{}}' >/etc/cni/multus/net.d/gpufabric-rdma-rail0.conf; echo '{{}}' >/etc/cni/multus/net.d/mine.conf
    echo '{header}' >/usr/local/libexec/gpufabric-rdma-vfs
    module k3s_reset '{YES}'
    ip -o link show | cut -d: -f2; ls /etc/cni/multus/net.d /usr/local/libexec
    """)
    assert said.split()[0] == "lo"
    assert not {"cni0", "gpufabric-rdma-rail0.conf", "gpufabric-rdma-vfs"} & set(said.split())
    assert "/etc/cni/multus/net.d/mine.conf stays: it is not ours" in answer["notes"]


def of_filter(kind, **more):
    return {kind: {"family": "ip", "table": "filter", **more}}


JUMP = [{"jump": {"target": "KUBE-FIREWALL"}}]
LISTED = [
    *({"table": {"family": "ip", "name": name}} for name in ("filter", "mine", "kube-proxy")),
    *(of_filter("chain", name=name) for name in ("INPUT", "KUBE-FIREWALL")),
    of_filter("rule", chain="INPUT", handle=7, expr=JUMP),
    of_filter("rule", chain="INPUT", handle=8, expr=[{"accept": None}]),
    of_filter("rule", chain="KUBE-FIREWALL", handle=9, expr=[]),
]


def test_a_node_without_iptables_is_read_with_nft(node):
    answer, said = node(f"""
    rm /usr/sbin/iptables-save /usr/sbin/ip6tables-save
    cat >/usr/sbin/nft <<'EOF'
#!/bin/sh
case "$*" in
  *ruleset) [ -e /tmp/carried-out ] && echo '{{"nftables": []}}' || echo '{json.dumps({"nftables": LISTED})}' ;;
  *) cat >/tmp/carried-out ;;
esac
EOF
    chmod 755 /usr/sbin/nft
    module k3s_reset '{YES}'
    cat /tmp/carried-out
    """)
    assert answer["findings"] == []
    assert said.splitlines() == [
        "delete table ip kube-proxy",
        "delete rule ip filter INPUT handle 7",
        *(f"{verb} chain ip filter KUBE-FIREWALL" for verb in ("flush", "delete")),
    ]


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_a_node_whose_iptables_has_only_its_backends_name_is_read_with_it(node, backend):
    program = f"/usr/sbin/iptables-{backend}"
    rules = ["*filter", ":KUBE-FIREWALL - [0:0]", "-A INPUT -j KUBE-FIREWALL", "-A INPUT -j ACCEPT", "COMMIT"]
    answer, said = node(f"""
    rm -f /usr/sbin/ip*tables-save /usr/sbin/ip*tables-restore
    printf '%s\\n' '#!/bin/sh' '[ -e /tmp/carried-out ] || cat /tmp/rules' >{program}-save
    printf '%s\\n' '#!/bin/sh' 'cat >/tmp/carried-out' >{program}-restore
    printf '%s\\n' {" ".join(f"'{rule}'" for rule in rules)} >/tmp/rules
    chmod 755 {program}-save {program}-restore
    module k3s_reset '{YES}'
    cat /tmp/carried-out
    """)
    assert answer["findings"] == []
    assert f"rules of iptables-{backend}" in [change["object"] for change in answer["changes"]]
    assert said.splitlines() == ["*filter", "-A INPUT -j ACCEPT", "COMMIT"]


def test_a_node_without_any_firewall_tool_says_so_and_the_rest_goes(node):
    answer, said = node(f"""
    rm /usr/sbin/iptables-save /usr/sbin/ip6tables-save
    module k3s_reset '{YES}'
    ls -d /var/lib/rancher || true
    """)
    assert said == ""
    assert ["no iptables-save and no nft" in text for text in answer["not_verified"]] == [True]


@pytest.mark.parametrize(("files", "uuid"), [
    ({"sys/class/dmi/id/product_uuid": "4c4c\n", "etc/machine-id": "b0"}, "4c4c"),
    ({"proc/device-tree/vm,uuid": "77\0", "etc/machine-id": "b0"}, "77"),
    ({"etc/machine-id": "b0\n"}, "b0"),
    ({}, ""),
])  # fmt: skip
def test_a_machine_is_known_by_what_its_kubelet_reports(tmp_path, files, uuid):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert k3s_state.system_uuid(Tree(tmp_path)) == uuid
