"""The cluster layer over two laid-out nodes, a bundle, and a double of kubectl and its API server.

The roles of the pod network from bare nodes on; drift of all roles; and the number of calls to a node of a converged
cluster (tests/cluster/test_second_run.py counts those of a whole run).
"""

import collections
import gzip
import hashlib
import json
import pathlib
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan, wheels
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, kubectl_cluster, running, tree
from ansible_collections.gpufabric.rdma.tests.tools.base_images import layer
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils._cni.test_cni_lint import program
from ansible_collections.gpufabric.rdma.tests.unit.plugins.modules.test_bundle import push, serving

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLES = ["cni_plugins", "flannel", "node_ready", "multus"]
SECRET = "dGhlIHRva2VuIHRoYXQgbm9ib2R5IG1heSBzZWU="  # base64 of the next
CLEAR = "the token that nobody may see"
TOKEN = "4f7c-planted-cluster-token"
PASSWORD = "c0ffee-planted-registry-password"
LOCAL = {"gpufabric.rdma.report", "ansible.builtin.set_fact", "set_fact"}
CONFLIST = "etc/cni/gpufabric-rdma.d/10-flannel.conflist"
SYSCTLS = "etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf"
TMPFILES = "etc/tmpfiles.d/gpufabric-rdma-multus.conf"
SETTINGS = "etc/gpufabric-rdma/node-ready.json"
ON_NODE = (
    *(CONFLIST, SYSCTLS, TMPFILES, SETTINGS, "etc/modules-load.d/gpufabric-rdma-pod-network.conf"),
    *("etc/systemd/system/gpufabric-rdma-multus.service", "usr/local/libexec/gpufabric-rdma-multus"),
    *("etc/systemd/system/gpufabric-rdma-node-ready.service", "usr/local/libexec/gpufabric-rdma-node-ready"),
    *("opt/cni/bin/flannel", "opt/cni/bin/loopback"),
)


def bundle(folder: pathlib.Path) -> pathlib.Path:
    """A bundle folder with k3s, its images and the plugins in the role's defaults."""
    names = yaml.safe_load((ROOT / "roles/common/defaults/main.yml").read_text())["cni_plugins_names"]
    folder.mkdir()
    (folder / "cni.tgz").write_bytes(gzip.compress(layer(dict.fromkeys(names, program()))))
    for name, content in (("flannel", program()), ("k3s", b"program"), ("images.tar", b"images")):
        (folder / name).write_bytes(content)
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    rows = [
        {"name": name, "version": version, "architecture": "amd64", "path": path, "sha256": sums[path]}
        for name, version, path in (
            ("cni-plugins", "v1", "cni.tgz"),
            ("flannel-cni-plugin", "v1", "flannel"),
            ("k3s", "v1.35.8+k3s1", "k3s"),
        )
    ]
    images = [{"reference": "a:1", "path": "images.tar", "sha256": sums["images.tar"]}]
    described = {"schema": 1, "origin": "release", "files": rows, "images": images}
    (folder / "bundle.yml").write_text(json.dumps(described))
    return folder


class Site:
    """Nodes, two by default, and the file that simulates the API server."""

    def __init__(self, folder: pathlib.Path, count: int = 2, **variables):
        self.folder, self.cluster = folder, kubectl_cluster.Cluster(folder / "cluster.json")
        self.nodes = {name: folder / name for name in (f"node{number + 1}" for number in range(count))}
        self.hosts = {}
        for name, root in self.nodes.items():
            tree.lay_out(tree.load("lab-rxe-debian12"), root)
            (root / "proc/sys/kernel/hostname").write_text(f"{name}\n")
            self.hosts[name] = {"discovery_root": str(root)}
        self.cluster.install(folder / "bin/k3s")
        self.cluster.state(tokens={"*": CLEAR})
        own = {"discovery_software_hcas": True, "k3s_bundle_dir": bundle(folder / "bundle").name}
        self.variables = running.local(**own, **variables)
        self.write()

    def write(self, **hosts):
        changed = {name: {**variables, **hosts.get(name, {})} for name, variables in self.hosts.items()}
        groups = {"gpu_nodes": {"hosts": changed, "vars": self.variables}, "k3s_servers": {"hosts": {"node1": {}}}}
        groups["all"] = {"vars": {"ansible_become": True, "ansible_become_user": "nobody"}}  # not on the controller
        (self.folder / "hosts.json").write_text(json.dumps(groups))

    def objects(self) -> set:
        return set(self.cluster.objects)

    def files(self, *directories) -> dict:
        """{path: (mode, time, content)}"""
        return {
            f"{name}/{path.relative_to(root)}": (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
            for name, root in self.nodes.items()
            for directory in directories or ("etc", "opt", "usr", "var", "run", "boot")
            for path in (root / directory).rglob("*")
            if path.is_file() and not path.is_symlink()
        }


# --- the pod network --------------------------------------------------------------------------------------------------


class PodNetwork(Site):
    def __init__(self, folder):
        super().__init__(folder)
        facts = {"gpufabric.rdma.hca_facts": {"root": "{{ discovery_root }}", "software_hcas": True}}
        tasks = [facts, *({"ansible.builtin.import_role": {"name": f"gpufabric.rdma.{role}"}} for role in ROLES)]
        play = {"name": "Pod network", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}
        (folder / "play.yml").write_text(json.dumps([play]))

    def play(self, *arguments: str) -> dict:
        code, report, output = running.told(self.folder, "-i", "hosts.json", "play.yml", "--diff", *arguments)
        assert code == 0, output[-6000:]
        assert [secret for secret in (CLEAR, SECRET) if secret in output] == []
        return report

    def contents(self) -> dict:
        seen = self.files("etc", "opt", "usr/local", "var/lib/gpufabric-rdma")
        return {path: content for path, (_mode, _time, content) in seen.items()}


def calls(result: dict) -> dict:
    """{(host, role): remote calls}; a delegated task counts where it runs."""
    counted = collections.Counter()
    for task in result["plays"][0]["tasks"]:
        role, colon, _name = task["task"]["name"].partition(" : ")
        for host, outcome in task["hosts"].items():
            action = outcome.get("action", "")
            if colon and not outcome.get("skipped") and action not in LOCAL and "arg spec" not in task["task"]["name"]:
                counted["node1" if action.endswith("cluster_objects") else host, role.rpartition(".")[2]] += 1
    return counted


def test_a_bare_node_is_predicted_set_up_left_alone_and_healed(tmp_path):
    site = PodNetwork(tmp_path)
    before = site.contents()
    checked = site.play("--check")
    assert checked["stats"]["node1"]["changed"] > 3
    assert (site.contents(), site.objects()) == (before, set()), "check mode has changed something"

    site.play()
    for name, root in site.nodes.items():
        assert [path for path in ON_NODE if not (root / path).is_file()] == []
        token = root / "etc/gpufabric-rdma/node-ready.token"
        assert (token.read_text().strip(), token.stat().st_mode & 0o777) == (CLEAR, 0o600)
        settings = json.loads((root / SETTINGS).read_text())
        assert (settings["node"], settings["resources"], settings["memlock"]) == ("", None, None)
        (rule,) = site.cluster.objects[f"ClusterRole//gpufabric-node-ready-{name}"]["rules"]
        of_nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
        assert rule == {**of_nodes, "resourceNames": [name]}
    assert "r! /etc/cni/net.d/00-multus.conf\n" in (site.nodes["node1"] / TMPFILES).read_text()
    wanted = {"DaemonSet/kube-flannel/kube-flannel-ds", "DaemonSet/kube-multus/kube-multus-ds"}
    wanted.add("CustomResourceDefinition//network-attachment-definitions.k8s.cni.cncf.io")
    assert wanted <= site.objects()

    settled, known = site.contents(), site.objects()
    again = site.play()
    assert {host: stats["changed"] for host, stats in again["stats"].items()} == {"node1": 0, "node2": 0}
    assert (site.contents(), site.objects()) == (settled, known)
    counted = {place: count for place, count in calls(again).items() if place[1] != "discovery"}
    assert {role for _host, role in counted} == set(ROLES)
    assert max(counted.values()) <= 2, counted

    # Only one node, with four drifts: the objects of the other node are not leftovers.
    root = site.nodes["node2"]
    (root / CONFLIST).unlink()
    (root / "opt/cni/bin/loopback").write_bytes(b"swapped")
    (root / SYSCTLS).write_text("net.ipv4.ip_forward = 0\n")
    (root / "etc/gpufabric-rdma/node-ready.token").chmod(0o644)
    site.play("--limit", "node2")
    assert (site.contents(), site.objects()) == (settled, known)
    assert (root / "etc/gpufabric-rdma/node-ready.token").stat().st_mode & 0o777 == 0o600


class Fetching:
    """Two nodes, a mirror with artifacts that they cannot pull, and a play that reads, plans and installs some."""

    def __init__(self, folder, address, mirror):
        self.site, self.folder, self.cache = PodNetwork(folder), folder, folder / "cache/gpufabric.rdma"
        cluster_roles = {"name": "gpufabric.rdma.discovery", "rolespec_validate": False}
        software = {"name": "gpufabric.rdma.k3s", "tasks_from": "software", "rolespec_validate": False}
        real = "not ansible_check_mode"
        tasks = [
            {"ansible.builtin.include_role": cluster_roles, "vars": {"__discovery_roles": ["k3s", "cni_plugins"]}},
            {"ansible.builtin.include_role": {"name": "gpufabric.rdma.cni_plugins"}, "when": real},
            {"ansible.builtin.include_role": software, "when": [real, "k3s_downloads_on_nodes | default(false)"]},
        ]
        play = {"name": "Nodes", "hosts": "gpu_nodes", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}
        (folder / "play.yml").write_text(json.dumps([play]))
        addresses = {"node1": "198.18.1.2", "node2": "198.18.0.15"}
        for name, ip in addresses.items():
            self.site.hosts[name]["k3s_node_ip"] = ip
        digest = push(mirror, "f/flannel-cni-plugin", "flannel", program())
        rows = []
        for name, file in (("k3s", "k3s"), ("cni-plugins", "cni.tgz")):
            data = (folder / "bundle" / file).read_bytes()
            (mirror / file).write_bytes(data)
            of_file = {"url": f"https://example.org/{file}", "sha256": hashlib.sha256(data).hexdigest()}
            row = {"name": name, "version": "v1", "kind": "binary", "used_by": "k3s"}
            rows.append({**row, "files": [{"architecture": "amd64", **of_file}]})
        image = {"name": "flannel-cni-plugin", "version": "v1", "used_by": "flannel", "digests": {"index": digest}}
        images = [{**image, "reference": "ghcr.io/f/flannel-cni-plugin:v1"}]
        (folder / "lock.yml").write_text(json.dumps({"origin": "own", "artifacts": rows, "images": images}))
        mirrors = {"https://example.org": address, "ghcr.io": address}
        given = {"bundle_lock": str(folder / "lock.yml"), "bundle_mirrors": mirrors, "k3s_bundle_dir": None}
        self.site.variables |= given

    def run(self, *words, **variables):
        """Exit code and output, on one line."""
        self.site.variables |= variables
        self.site.write()
        environment = {"XDG_CACHE_HOME": str(self.cache.parent)}
        code, output = running.play(self.folder, "-i", "hosts.json", "play.yml", *words, **environment)
        return code, " ".join(output.split())


def test_without_a_bundle_folder_the_controllers_cache_is_filled_once(tmp_path):
    """Check mode fetches nothing; a damaged file is fetched again; the nodes get the fetched files."""
    with serving(tmp_path / "mirror") as address:
        fetching = Fetching(tmp_path, address, tmp_path / "mirror")
        site, cache, run = fetching.site, fetching.cache, fetching.run
        code, output = run(k3s_cluster_cidr="10.43.0.0/16")
        assert (code != 0, "k3s_service_cidr" in output, cache.exists()) == (True, True, False), output

        del site.variables["k3s_cluster_cidr"]
        code, output = run("--check")
        assert (code, f"{cache} is filled first" in output, cache.exists()) == (0, True, False), output
        code, output = run()
        assert code == 0, output
        described = json.loads((cache / "bundle.yml").read_text().partition("\n")[2])
        assert [row["name"] for row in described["files"]] == ["k3s", "cni-plugins", "flannel-cni-plugin"]
        assert all((root / "opt/cni/bin/flannel").is_file() for root in site.nodes.values())
        (cache / "files/amd64/k3s").write_text("swapped")
        assert run("--limit", "node1")[0] == 0
    assert (cache / "files/amd64/k3s").read_bytes() == b"program"
    code, output = run()
    assert (code, output.count("changed=0")) == (0, 2), output


def test_nodes_fetch_what_they_need_themselves_on_request(tmp_path):
    """Not with a bundle folder; nothing with another checksum; a settled node without a request."""
    with serving(tmp_path / "mirror") as address:
        fetching, k3s = Fetching(tmp_path, address, tmp_path / "mirror"), "usr/local/bin/k3s"
        nodes, run = fetching.site.nodes.values(), fetching.run
        code, output = run(k3s_downloads_on_nodes=True, k3s_bundle_dir=str(tmp_path / "bundle"))
        assert (code != 0, "variable k3s_downloads_on_nodes" in output) == (True, True), output
        code, output = run("--check", k3s_bundle_dir="")
        assert (code, f"k3s v1 from {address}/k3s" in output, fetching.cache.exists()) == (0, True, False), output

        (tmp_path / "mirror/k3s").write_bytes(b"another")
        code, output = run()
        assert (code != 0, f"{address}/k3s with sha256" in output) == (True, True), output
        assert not any((root / k3s).exists() for root in nodes)
        (tmp_path / "mirror/k3s").write_bytes(b"program")
        code, output = run()
        assert code == 0, output
        assert {(root / k3s).read_bytes() for root in nodes} == {b"program"}
        assert all((root / "opt/cni/bin" / name).is_file() for root in nodes for name in ("flannel", "bridge"))
        assert [path.name for path in (fetching.cache / "files/amd64").iterdir() if path.name == "k3s"] == []
    code, output = run()
    assert (code, output.count("changed=0")) == (0, 2), output
    (fetching.site.nodes["node2"] / "opt/cni/bin/bridge").unlink()
    code, output = run()
    assert (code != 0, f"{address}/cni.tgz" in output, "failed=1" in output) == (True, True, True), output


# --- all roles of host and cluster ------------------------------------------------------------------------------------

AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


class Cluster(Site):
    def __init__(self, folder, count=2):
        registries = {"configs": {"registry.example.com": {"auth": {"username": "u", "password": PASSWORD}}}}
        rails = [{"hca": "rxe0"}, {"hca": "rxe1"}]
        super().__init__(folder, count, discovery_rails=rails, k3s_token=TOKEN, k3s_registries=registries)
        # The machine has the first two; each further node has its own in place of the second.
        addresses = ["198.18.1.2", "198.18.0.15", *(f"198.18.0.{100 + number}" for number in range(count))]
        for (name, root), address in zip(self.nodes.items(), addresses):
            self.hosts[name]["k3s_node_ip"] = address
            if address not in addresses[:2]:
                seams = root / ".seams.json"
                seams.write_text(seams.read_text().replace(addresses[1], address))
        # The device plugin's environment counts as installed; the fast nodes install it for real, and offline.
        locked = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]
        for root in self.nodes.values():
            stamp = root / plan.STAMP.lstrip("/")
            stamp.parent.mkdir(parents=True)
            stamp.write_text(wheels.stamp(locked, f"{sys.version_info[0]}.{sys.version_info[1]}"))

    def play(self, *words, program=None, hosts=None, **environment):
        self.write(**(hosts or {}))
        ours = {
            "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "ANSIBLE_SSH_TIMEOUT": "3",
            "PATH": f"{self.folder / 'bin'}:{ansible_playbook.search_path()}",
            "PWD": str(self.folder),
        }
        return running.play(self.folder, *words, program=program, **{**ours, **environment})

    def drift(self, **hosts):
        """Exit code, {host: entry}, output; nodes and objects are the same before and after."""
        before = self.files(), self.cluster.objects
        words = (ROOT / "bin/drift.py", "-i", "hosts.json", "--diff", "-v")
        code, output = self.play(*words, program=[sys.executable], hosts=hosts)
        assert (self.files(), self.cluster.objects) == before
        written = {path.name: path.read_text() for path in (self.folder / "drift").iterdir()}
        for secret in (TOKEN, PASSWORD, CLEAR, SECRET):
            assert [text for text in (output, *written.values()) if secret in text] == []
        return code, {entry["host"]: entry for entry in json.loads(written["drift.json"])["hosts"]}, output


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    code, output = made.play("-i", "hosts.json", "gpufabric.rdma.host", "gpufabric.rdma.cluster")
    assert code == 0, output
    return made


@pytest.fixture
def api(cluster):
    """The API server's double, as it was afterwards."""
    kept = cluster.cluster.path.read_bytes()
    yield cluster.cluster
    cluster.cluster.path.write_bytes(kept)


def verdicts(hosts):
    return {name: entry["verdict"] for name, entry in hosts.items()}


def differences(entry):
    return {(item["role"], item["object"]) for item in entry["differences"]}


def test_a_converged_cluster_gives_0(cluster):
    code, hosts, output = cluster.drift()
    assert (code, verdicts(hosts)) == (0, dict.fromkeys(cluster.nodes, "converged")), output
    assert "Multus' objects: apply" in output, "the API server was asked"


def test_drift_on_a_node_in_an_object_and_in_a_secret_is_found_where_it_is(cluster, api):
    conflist, token = cluster.nodes["node2"] / CONFLIST, cluster.nodes["node2"] / "etc/rancher/k3s/token"
    kept = conflist.read_bytes()
    conflist.write_text("{}\n")
    token.chmod(0o644)
    objects = api.objects
    del objects["ConfigMap/kube-flannel/kube-flannel-cfg"]
    api.state(objects=objects)
    try:
        code, hosts, output = cluster.drift()
    finally:
        conflist.write_bytes(kept)
        token.chmod(0o600)
    assert code == 2, output
    assert differences(hosts["node1"]) == {("flannel", "ConfigMap kube-flannel/kube-flannel-cfg")}
    assert differences(hosts["node2"]) == {("flannel", f"/{CONFLIST}"), ("k3s", "/etc/rancher/k3s/token")}


def test_a_server_that_does_not_answer_leaves_the_other_node_its_verdict(cluster):
    code, hosts, output = cluster.drift(node1=AWAY)
    assert (code, verdicts(hosts)) == (4, {"node1": "unreachable", "node2": "converged"}), output
    assert any("not verified: the cluster's objects, because node1" in text for text in hosts["node2"]["reasons"])


def test_an_api_server_that_is_silent_is_asked_by_one_role_and_the_others_are_not_verified(cluster, api):
    before = len(api.calls())
    api.state(down=True)
    code, hosts, output = cluster.drift()
    assert (code, len(api.calls()[before:])) == (4, 1), output
    reasons = hosts["node1"]["reasons"]
    silent = [text.partition(", no API")[0] for text in reasons if "no API server answers" in text]
    assert silent == ["not read: role flannel: the cluster's objects"]
    assert any("objects of the roles after the first" in text for text in reasons)


def test_a_role_that_refuses_one_node_is_that_nodes_reason_and_the_later_roles_are_compared(cluster):
    code, hosts, output = cluster.drift(node2={"k3s_node_ip": "198.18.1.2"})
    assert (code, set(verdicts(hosts).values())) == (4, {"unsafe"}), "both claim the address"
    wanted = "role k3s: node-ip 198.18.1.2: wanted a different address"
    assert all(any(text.startswith(wanted) for text in entry["reasons"]) for entry in hosts.values())
    assert "Multus' objects: apply" in output


# --- number of calls to a converged node ------------------------------------------------------------------------------

# As in one run of site.yml; verify.yml asks separately.
NAMES = ("nodes", "cluster_nodes", "host", "cluster")
# Readings of preflights, which later roles can use as long as nothing has been changed.
READ = "Gather facts of the node"
COMPARED = "Compare the nodes with what the roles want"
ASKED = (READ, COMPARED)
UP = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}


class Layers(Cluster):
    def __init__(self, folder):
        super().__init__(folder)
        layers = [{"import_playbook": f"gpufabric.rdma.layers.{name}"} for name in NAMES]
        (folder / "layers.yml").write_text(json.dumps(layers))
        self.run()
        objects = self.cluster.objects
        for item in objects.values():
            if item["kind"] == "DaemonSet":
                item["status"] = UP
        self.cluster.state(objects=objects)

    def run(self, **environment):
        # As for an installed collection: the playbooks set pipelining.
        code, output = self.play("-i", "hosts.json", "layers.yml", ANSIBLE_PIPELINING="0", **environment)
        assert code == 0, output

    def reasons(self):
        """{host: why it takes part in the play that prepares nodes}, of a run of both layers."""
        code, output = self.play("-i", "hosts.json", "layers.yml", ANSIBLE_STDOUT_CALLBACK="ansible.posix.json")
        assert code == 0, output
        report = json.JSONDecoder().raw_decode(output[output.index("{") :])[0]
        tasks = [task for play in report["plays"] for task in play["tasks"] if task["task"]["name"] == COMPARED]
        return {host: result["reasons"] for host, result in tasks[0]["hosts"].items()}

    def calls(self, record):
        """{host: {task: remote calls}} of a run of host and cluster layer."""
        self.run(**running.environment(record))
        return {
            name: collections.Counter(call.partition(" [")[0].rpartition(" : ")[2] for call in host["calls"])
            for name, host in running.written(record).items()
            if name in self.nodes
        }


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    return Layers(tmp_path_factory.mktemp("layers"))


def test_a_converged_node_is_read_once_and_asked_only_by_what_could_differ_in_it(layers, tmp_path):
    counted = layers.calls(tmp_path)
    assert counted["node1"] == dict.fromkeys((*ASKED, "Apply the objects of all roles"), 1)
    assert counted["node2"] == dict.fromkeys(ASKED, 1)


def test_after_a_change_of_the_host_layer_nothing_that_was_read_before_it_is_used(layers, tmp_path):
    (layers.nodes["node2"] / "etc/modules-load.d/gpufabric-rdma.conf").unlink()
    counted = layers.calls(tmp_path)
    assert [counted[name][READ] for name in layers.nodes] == [2, 2]
    for task in ("Load and persist kernel modules", "Set the RDMA network namespace mode"):
        assert (counted["node1"][task], counted["node2"][task]) == (0, 1), "the other node had nothing to change"
    assert counted["node1"]["Apply the objects of all roles"] == 1


# Not compared as text: a token, which is refused if it differs or is only requested, and files with checksums.
RECORDS = (
    "etc/rancher/k3s/token",
    "etc/gpufabric-rdma/node-ready.token",
    "usr/local/lib/rdma-device-plugin/venv",
    "usr/local/lib/rdma-device-plugin/plugin.pyz.sha256",
)


def test_each_file_of_the_cluster_layer_that_differs_is_found_and_healed(layers, tmp_path):
    """On node2; node1, the server, has nothing to do."""
    bare = tmp_path / "bare"
    tree.lay_out(tree.load("lab-rxe-debian12"), bare)
    root = layers.nodes["node2"]
    of_host = ("gpufabric-rdma.conf", "gpufabric-rdma-limits.conf", "90-gpufabric-rdma")
    managed = [
        path
        for folder in ("etc", "opt", "usr")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and not path.is_symlink() and not (bare / path.relative_to(root)).exists()
        if not str(path.relative_to(root)).startswith(RECORDS) and not path.name.startswith(of_host)
    ]
    before = {path: path.read_bytes() for path in managed}
    for path in managed:
        path.write_bytes(path.read_bytes() + b"# planted\n")
    reasons = layers.reasons()
    assert reasons["node1"] == {}
    listed = {item for objects in reasons["node2"].values() for item in objects}
    assert {f"/{path.relative_to(root)}" for path in managed} - listed == set()
    assert len(managed) > 20
    assert {path: path.read_bytes() for path in managed} == before
