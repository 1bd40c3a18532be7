"""Three programs of a node: the one for the startup taint, over a real TLS socket to a double of the API server; the
guard of Multus' configuration, with real files and Unix sockets and the test's clock; and the CNI plugin of claims'
networks."""

import base64
import http.server
import json
import pathlib
import socket
import ssl
import subprocess
import sys
import threading

import pytest
from ansible_collections.gpufabric.rdma.roles.flannel.files import rdma_claim
from ansible_collections.gpufabric.rdma.roles.multus.files import multus_guard
from ansible_collections.gpufabric.rdma.roles.node_ready.files import node_ready

KEY = "rdma.gpufabric.io/not-ready"
OTHER = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OWN = {"key": KEY, "value": "true", "effect": "NoSchedule"}
BOOT, LAST_BOOT = "boot-2", "boot-1"
LIMITS = "Limit   Soft Limit   Hard Limit   Units\nMax locked memory         {}            {}            bytes\n"


# --- a double of an API server: one node behind TLS, with the checks that a real one applies to a client --------------


class Cluster:
    """The double's state. tokens: {token: user}; calls: [(method, path, body)] in order."""

    def __init__(self, node: dict | None, tokens: dict):
        self.node, self.tokens, self.calls = node, tokens, []
        self.conflicts = 0

    def answer(self, method: str, path: str, token: str, kind: str, body: dict | None) -> tuple[int, dict]:
        self.calls.append((method, path, body))
        user = self.tokens.get(token)
        if user is None:
            return 401, {"message": "Unauthorized"}
        if self.node is None or path != f"/api/v1/nodes/{self.node['metadata']['name']}":
            return 404, {"message": f"{path} not found"}
        if method == "GET":
            return 200, self.node
        if method != "PATCH":
            return 405, {"message": f"{method} is not known here"}
        if kind != "application/merge-patch+json":
            return 415, {"message": f"the body of the request was in an unknown format: {kind}"}
        if user == f"system:node:{self.node['metadata']['name']}" and "taints" in body.get("spec", {}):
            return 403, {"message": f"node {self.node['metadata']['name']!r} is not allowed to modify taints"}
        if self.conflicts or body["metadata"].get("resourceVersion") != self.node["metadata"]["resourceVersion"]:
            self.conflicts = max(0, self.conflicts - 1)
            return 409, {"message": "the object has been modified"}
        taints = body["spec"].pop("taints")
        self.node["spec"].pop("taints", None)
        if taints:
            self.node["spec"]["taints"] = taints
        self.node["metadata"]["resourceVersion"] = str(int(self.node["metadata"]["resourceVersion"]) + 1)
        return 200, self.node


class ApiDouble:
    """Serves a Cluster on 127.0.0.1 while it is open. url, authority: PEM of the CA that has signed its certificate."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path):
        self.authority = certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server = http.server.HTTPServer(("127.0.0.1", 0), handler(cluster))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda request, address: None  # a client that does not trust it hangs up
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def handler(cluster: Cluster):
    class Handler(http.server.BaseHTTPRequestHandler):
        def _serve(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = (self.headers.get("Authorization") or "").partition("Bearer ")[2]
            kind = self.headers.get("Content-Type") or ""
            status, document = cluster.answer(self.command, self.path, token, kind, body)
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_PUT = do_DELETE = do_POST = _serve

        def log_message(self, *_arguments):
            """The calls are recorded in the cluster."""

    return Handler


def certificates(folder: pathlib.Path) -> str:
    """Writes server.pem (key and certificate for 127.0.0.1, its own authority) below folder; returns it as PEM."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=kube-apiserver"
    words += " -addext subjectAltName=IP:127.0.0.1 -addext keyUsage=critical,digitalSignature,keyCertSign"
    command = ["openssl", *words.split(), "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    certificate = (folder / "cert.pem").read_text()
    (folder / "server.pem").write_text((folder / "key.pem").read_text() + certificate)
    return certificate


# --- the startup taint ------------------------------------------------------------------------------------------------


class Bed:
    """A node's files below a folder, and the double in its kubelet's kubeconfig."""

    def __init__(self, folder: pathlib.Path, cluster: Cluster, double: ApiDouble):
        self.folder, self.cluster, self.double = folder, cluster, double
        self.said: list[str] = []
        paths = {"conf": "00-multus.conf", "token": "token", "run_directory": "run"}
        self.settings = {"node": "node1", "taint": KEY, "effect": "NoSchedule", "resources": None, "memlock": None}
        self.settings |= {name: str(folder / path) for name, path in paths.items()}
        self.settings |= {"services": ["k3s", "k3s-agent"], "api_server": ""}
        self.settings["kubeconfigs"] = [str(folder / "absent"), str(folder / "kubelet.kubeconfig")]
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
        self.cluster.node["status"] = {
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"bootID": boot},
            "allocatable": {"cpu": "8", **{f"rdma/{name}": count for name, count in allocatable.items()}},
        }


@pytest.fixture
def bed(tmp_path):
    node = {"metadata": {"name": "node1", "resourceVersion": "7"}, "spec": {"taints": [OTHER]}, "status": {}}
    tokens = {"of-the-unit": "system:serviceaccount:gpufabric-rdma:node-ready-node1"}
    cluster = Cluster(node, {**tokens, "of-the-kubelet": "system:node:node1"})
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
    bed.cluster.node["spec"]["taints"] = [OTHER, OWN]  # as registered by the kubelet
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
    assert [keeper.step(), keeper.step()] == [node_ready.WAITING, node_ready.READY]
    assert not [call for call in bed.cluster.calls if call[0] == "PATCH"]


def test_a_restart_in_the_same_boot_does_not_set_it_again(bed):
    bed.kubelet("False")
    bed.keeper().step()
    assert OWN in bed.taints()
    bed.cluster.node["spec"]["taints"] = []
    assert (bed.keeper().step(), bed.taints()) == (node_ready.WAITING, [])


def test_someone_else_changing_the_node_at_the_same_time_is_not_an_error(bed):
    bed.kubelet("False")
    bed.cluster.conflicts = 1
    keeper = bed.keeper()
    assert keeper.step() == "unset"
    assert not bed.marked()
    keeper.step()
    assert OWN in bed.taints()


@pytest.mark.parametrize(("token", "said", "calls"), [
    (b"of-a-cluster-that-is-gone", "401 Unauthorized", 1),
    (b"of-the-kubelet", "403 node 'node1' is not allowed", 2),
    (None, "token", 0),
    (b"\xe9\xff\n", "token", 0),
])  # fmt: skip
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


@pytest.mark.parametrize(("state", "outcome", "reason"), [
    ("another authority", "unset", "certificate verify failed"),
    ("no server", "unset", ""),
    ("not registered", node_ready.WAITING, "node node1 has not registered"),
    ("not joined", "unset", "the node has not joined a cluster"),
])  # fmt: skip
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


@pytest.mark.parametrize(("wanted", "missing"), [([], []), ([0], []), ([0, 1], [1]), ([2], [2]), (None, [])])
def test_resources_that_are_named_are_waited_for_by_name(wanted, missing):
    named = wanted and [f"rdma/rail{number}" for number in wanted]
    reasons = node_ready.resource_reasons({"rdma/rail0": "20", "rdma/rail2": "0"}, named, ["x.io", "rdma"])
    assert len(node_ready.resource_reasons({"rdma/rail0": "20", "x.io/a": "0"}, None, ["x.io"])) == 1
    assert reasons == [f"rdma/rail{number} is not allocatable" for number in missing]


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
    file = "clusters:\n- cluster:\n    server: 'https://127.0.0.1:6444'\n    certificate-authority: /var/lib/ca.crt\n"
    assert node_ready.kubeconfig(file) == ("https://127.0.0.1:6444", "/var/lib/ca.crt")
    with pytest.raises(ValueError, match="has no server"):
        node_ready.kubeconfig("clusters: []\n")


def test_the_program_awaits_what_its_other_half_has_written(tmp_path):
    """Started like by systemd and the role; its own half-second is the only clock here."""
    (tmp_path / "run").mkdir()
    (tmp_path / "settings.json").write_text(json.dumps({"node": "node1", "run_directory": str(tmp_path / "run")}))
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for told, code, said in (
        (None, 1, "gpufabric-rdma-node-ready.service has reported nothing in this boot"),
        ({"state": "waiting", "reasons": ["no network"], "boot_id": boot}, 1, "no network"),
        ({"state": "ready", "reasons": [], "boot_id": "another"}, 1, ""),
        ({"state": "ready", "reasons": [], "boot_id": boot}, 0, ""),
    ):
        if told:
            (tmp_path / "run/node-ready.json").write_text(json.dumps(told))
        argv = [sys.executable, "-I", node_ready.__file__, "--settings", tmp_path / "settings.json", "await"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout) == (code, True)


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


# --- Multus' guard ----------------------------------------------------------------------------------------------------

VALID = json.dumps({"name": "multus-cni-network", "type": "multus-shim", "clusterNetwork": "/host/etc/cni/x"})


class Daemon:
    """A folder with the three files, and a daemon that can be started and killed."""

    def __init__(self, folder: pathlib.Path):
        self.conf, self.primary, self.path = folder / "00-multus.conf", folder / "10-flannel.conflist", folder / "sock"
        self.primary.write_text('{"name": "cbr0"}')
        self.said: list[str] = []
        self.guard = multus_guard.Guard(str(self.conf), str(self.path), str(self.primary), self.said.append)
        self._daemon = None
        self.now = 100.0

    def start(self):
        self.path.unlink(missing_ok=True)
        self._daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._daemon.bind(str(self.path))
        self._daemon.listen(64)

    def kill(self):
        """The socket's file stays, like after SIGKILL."""
        if self._daemon:
            self._daemon.close()
            self._daemon = None

    def after(self, seconds: float):
        self.now += seconds
        return self.guard.step(self.now)


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    made.kill()


def test_a_running_daemon_with_its_configuration_is_left_alone(daemon):
    daemon.start()
    daemon.conf.write_text(VALID)
    before = daemon.primary.stat().st_ino
    assert [daemon.after(2) for turn in range(10)] == [None] * 10
    assert (daemon.conf.read_text(), daemon.primary.stat().st_ino, daemon.said) == (VALID, before, [])


@pytest.mark.parametrize("content", [VALID, ""], ids=["M11 daemon killed", "empty too"])
@pytest.mark.parametrize("started", [True, False])
def test_the_configuration_of_a_dead_daemon_goes_after_a_moment(daemon, content, started):
    if started:
        daemon.start()
    daemon.conf.write_text(content)
    daemon.after(0)
    daemon.kill()
    assert [daemon.after(2), daemon.after(2)] == [None, None]
    assert daemon.conf.exists(), "a daemon that restarts is left in peace"
    assert [daemon.after(2), daemon.after(60)] == ([None, "removed"] if started else ["removed", None])
    assert not daemon.conf.exists()
    assert len(daemon.said) == 1


def test_a_daemon_that_restarts_in_time_keeps_its_file(daemon):
    daemon.conf.write_text(VALID)
    daemon.after(4)
    daemon.start()
    daemon.after(4)
    daemon.kill()
    assert (daemon.after(4), daemon.conf.exists()) == (None, True)


@pytest.mark.parametrize("content", ["", '{"name": "multus-cni-net', "{}", None])
def test_a_daemon_is_made_to_write_its_file_again(daemon, content):
    """Multus watches the pod network's file for IN_CREATE; a rename onto it is one."""
    daemon.start()
    if content is not None:
        daemon.conf.write_text(content)
    before, text = daemon.primary.stat().st_ino, daemon.primary.read_text()
    assert daemon.after(0) is None
    assert daemon.after(4) == "renewed"
    assert daemon.primary.stat().st_ino != before
    assert daemon.primary.read_text() == text
    assert [path.name for path in daemon.primary.parent.iterdir() if path.name.startswith(".")] == []
    assert daemon.after(2) is None, "it is not told again at once"
    assert daemon.after(9) == "renewed"
    daemon.conf.write_text(VALID)
    assert daemon.after(20) is None
    assert len(daemon.said) == 2


def test_a_pod_network_without_a_file_of_its_own_is_reported(daemon):
    daemon.start()
    daemon.primary.write_text("{")
    daemon.after(0)
    assert daemon.after(4) == "stuck"
    assert "run ansible-playbook -i INVENTORY gpufabric.rdma.site" in daemon.said[0]


# --- the CNI plugin of claims' networks: the real program, in front of doubles of the plugins that it runs ------------

PREVIOUS = {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.42.0.7/24"}]}
# Its calls are lines of `calls`; it fails where `fail` has its name and command.
PLUGIN = """#!/bin/sh
words=$(cat)
printf '%s %s %s\\n' "$CNI_COMMAND" "$CNI_IFNAME" "$words" >> {folder}/calls
echo "$CNI_CONTAINERID $CNI_NETNS" >> {folder}/places
grep -q "^${{0##*/}} $CNI_COMMAND$" {folder}/fail && {{ echo '{{"code": 11, "msg": "no address left"}}'; exit 1; }}
[ $CNI_COMMAND = DEL ] || echo '{{"cniVersion": "0.3.1", "by": "'${{0##*/}}'"}}'
"""


class Claims:
    """A node's folder: specs of claims, configurations of networks, plugins."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("cdi", "net.d", "bin"):
            (folder / name).mkdir()
        (folder / "fail").touch()
        for name in ("macvlan", "sbr"):
            (folder / "bin" / name).write_text(PLUGIN.format(folder=folder))
            (folder / "bin" / name).chmod(0o755)
        for number in range(3):
            self.network(f"rail{number}", {"type": "macvlan", "master": f"eth{number}"})

    def network(self, name, *plugins):
        shared = {"cniVersion": "0.3.1", "name": name}
        words, end = (
            ({**shared, **plugins[0]}, "conf") if len(plugins) == 1 else ({**shared, "plugins": plugins}, "conflist")
        )
        (self.folder / f"net.d/ours-{name}.{end}").write_text(json.dumps(words))

    def claim(self, uid, pod, networks):
        said = {rdma_claim.POD: pod, rdma_claim.NETWORKS: networks}
        path = self.folder / f"cdi/gpufabric.io_rdma-claim_{uid}.json"
        path.write_text(networks if pod is None else json.dumps({"annotations": said}))

    def run(self, command, container="c1", pod="uid-1"):
        """(exit code, answer, calls) of the program."""
        folder = self.folder
        options = {"cniVersion": "0.3.1", "type": "rdma-claim", "claims": f"{folder}/cdi", "state": f"{folder}/state"}
        options |= {"networks": f"{folder}/net.d/ours-", "prevResult": PREVIOUS}
        words = f"IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_UID={pod}" if pod else "IgnoreUnknown=1"
        env = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_ARGS": words,
            "CNI_PATH": f"/none:{folder}/bin",
            "CNI_NETNS": f"/run/netns/of-{container}",
        }
        for name in ("calls", "places"):
            (folder / name).write_text("")
        if command == "DEL":  # as Multus asks
            del options["networks"], options["prevResult"]
        done = subprocess.run(
            [sys.executable, "-IS", rdma_claim.__file__],
            input=json.dumps(options),
            capture_output=True,
            text=True,
            env={**env, "PATH": "/usr/bin:/bin"},
            check=False,
        )
        assert "Traceback" not in done.stderr
        calls = [line.split(" ", 2) for line in (folder / "calls").read_text().splitlines()]
        return (
            done.returncode,
            json.loads(done.stdout or "null"),
            [(one[0], one[1], json.loads(one[2])) for one in calls],
        )

    @property
    def records(self):
        return sorted(path.name for path in (self.folder / "state").glob("*"))


@pytest.fixture
def claims(tmp_path):
    return Claims(tmp_path)


def test_a_pod_gets_the_networks_of_its_claims_and_leaves_nothing(claims):
    claims.network("rail1", {"type": "macvlan", "master": "eth1"}, {"type": "sbr"})
    (claims.folder / "net.d/ours-rail1.conf").unlink()
    claims.claim("a", "uid-1", "rail1,rail0")
    claims.claim("b", "uid-1", "rail0")
    claims.claim("c", "uid-2", "rail2")
    claims.claim("d", None, "{")
    claims.claim("e", None, '{"annotations": []}')
    shared = {"cniVersion": "0.3.1"}
    first = {"type": "macvlan", "master": "eth1", "name": "rail1", **shared}
    after = {"type": "sbr", "name": "rail1", **shared}
    plain = {"type": "macvlan", "master": "eth0", "name": "rail0", **shared}
    code, answer, calls = claims.run("ADD")
    assert (code, answer, claims.records) == (0, PREVIOUS, ["c1.json"])
    assert calls == [
        ("ADD", "rail1", first),
        ("ADD", "rail1", {**after, "prevResult": {"by": "macvlan", **shared}}),
        ("ADD", "rail0", plain),
    ]
    # Claim and configuration may be gone by now.
    for path in [*claims.folder.glob("cdi/*"), *claims.folder.glob("net.d/*")]:
        path.unlink()
    assert claims.run("DEL") == (0, None, [("DEL", "rail0", plain), ("DEL", "rail1", after), ("DEL", "rail1", first)])
    assert claims.records == []
    assert claims.run("DEL") == (0, None, [])


def test_what_cannot_be_released_is_tried_with_the_next_pod(claims):
    claims.claim("a", "uid-1", "rail0,rail1")
    (claims.folder / "fail").write_text("macvlan ADD\nmacvlan DEL\n")
    code, answer, calls = claims.run("ADD")
    assert (code, answer["code"], len(calls)) == (1, rdma_claim.FAILED, 1)
    assert "no address left" in answer["msg"]
    code, answer, calls = claims.run("DEL")
    assert (code, [one[1] for one in calls], claims.records) == (0, ["rail1", "rail0"], ["c1.json.ended"])
    (claims.folder / "fail").write_text("")
    # With the next pod that ends, and never in that pod's namespace.
    code, answer, calls = claims.run("DEL", "c2", "another")
    assert (code, [one[:2] for one in calls], claims.records) == (0, [("DEL", "rail1"), ("DEL", "rail0")], [])
    assert set((claims.folder / "places").read_text().splitlines()) == {"c1 "}


@pytest.mark.parametrize(("networks", "container", "pod", "code"), [
    ("rail0", "c1", "", 0),
    ("rail0", "c1", "another", 0),
    ("rail7", "c1", "uid-1", rdma_claim.INVALID),
    ("../../etc/x", "c1", "uid-1", rdma_claim.INVALID),
    ("", "c1", "uid-1", rdma_claim.INVALID),
    ("rail0", "../c1", "uid-1", rdma_claim.INVALID),
    ("rail2", "c1", "uid-1", rdma_claim.FAILED),
    ("rail1", "c1", "uid-1", rdma_claim.UNREADABLE),
])  # fmt: skip
def test_no_network_and_no_file_for_what_is_none(claims, networks, container, pod, code):
    claims.network("rail2", {"type": "../bin/macvlan"})
    (claims.folder / "bin/macvlan").write_text("\0 of another architecture")
    claims.claim("a", "uid-1", networks)
    exited, answer, calls = claims.run("ADD", container, pod)
    assert (exited, answer.get("code", 0), calls) == (int(code > 0), code, [])
    assert not list(claims.folder.glob("*.json"))


def test_it_says_which_versions_it_speaks(claims):
    code, answer, _calls = claims.run("VERSION")
    assert (code, answer["supportedVersions"]) == (0, rdma_claim.VERSIONS)
    assert claims.run("GC")[1]["code"] == rdma_claim.UNSUPPORTED
