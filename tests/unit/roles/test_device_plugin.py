"""Role device_plugin: its DaemonSet against the Go plugin's, and run for real: both modes, and taking over.

In the plays kubectl is a double and the Go plugin an entry in the tree's /proc. The environment counts as installed;
the fast nodes install it for real (molecule/rails/tests/test_device_plugin.py).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra, objects, wheels
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import migration
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.ownership import OWNER_LABEL
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCKED = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]
RECIPE = list(yaml.safe_load_all((tree.texts("guides") / "000-shared-device-plugin.txt").read_text()))
DEPLOY = ROOT / "device_plugin/deploy"

# --- the DaemonSet ----------------------------------------------------------------------------------------------------


def kustomize(folder):
    if not shutil.which("kubectl"):
        pytest.skip("not verified: no kubectl here to run kustomize with")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}


def manifest():
    return yaml.safe_load((DEPLOY / "daemonset.yaml").read_text())


PLAIN = {
    "image": "localhost/rdma-device-plugin:0.1.0", "use_cdi": False, "metrics_address": "", "api": "device-plugin",
    "node_selector": {"feature.node.kubernetes.io/rdma.capable": "true"}, "kubelet_root": "/var/lib/kubelet",
}  # fmt: skip


def render(config="{}", links_up=False, **settings):
    given = manifest()
    made = objects.objects(given, config, links_up, {**PLAIN, **settings})
    assert given == manifest(), "the manifest is not changed by rendering it"
    return {item["kind"]: item for item in made}


def test_its_privileges_are_least_and_it_meets_the_kubelets_deadline():
    """No access to any device; no CPU limit, which would slow it down; never two of them on a node."""
    spec, theirs = manifest()["spec"], RECIPE[1]["spec"]["template"]["spec"]
    (container,), volumes = spec["template"]["spec"]["containers"], spec["template"]["spec"]["volumes"]
    security = container["securityContext"]
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert (security["readOnlyRootFilesystem"], security["capabilities"]) == (True, {"drop": ["ALL"]})
    assert (container["name"], theirs["volumes"][0]["name"]) == (theirs["containers"][0]["name"], volumes[0]["name"])
    assert "cpu" not in container["resources"]["limits"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    config = json.loads((DEPLOY / "config.json").read_text())
    assert {(entry["linkUp"], entry["rdmaHcaMax"]) for entry in config["configList"]} == {(False, 63)}
    assert config["periodicUpdateInterval"] == 300


@pytest.mark.parametrize(
    ("component", "settings"), [("link-up", {"links_up": True}), ("cdi", {"use_cdi": True}), ("dra", {"api": "dra"})]
)
def test_the_role_and_its_settings_apply_what_kustomize_and_its_components_make(tmp_path, component, settings):
    rendered = kustomize(DEPLOY)
    config_map, daemon_set = RECIPE
    for theirs in (config_map, daemon_set):
        metadata = rendered[theirs["kind"]]["metadata"]
        assert (metadata["name"], metadata["namespace"]) == (theirs["metadata"]["name"], "kube-system")
        assert metadata["labels"] == objects.LABELS
    assert list(rendered["ConfigMap"]["data"]) == ["config.json"]
    assert rendered["DaemonSet"]["spec"]["selector"] == daemon_set["spec"]["selector"]
    made = render((DEPLOY / "config.json").read_text())
    assert {kind: made[kind] for kind in ("DaemonSet", "ConfigMap")} == rendered
    # kustomize refuses absolute paths.
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(
        f"resources: [../deploy]\ncomponents: [../deploy/components/{component}]\n"
    )
    assert kustomize(tmp_path / "mine")["DaemonSet"]["spec"] == render(**settings)["DaemonSet"]["spec"]


def test_the_objects_of_component_dra_are_those_of_the_role():
    given = list(yaml.safe_load_all((DEPLOY / "components/dra/objects.yaml").read_text()))
    for one in given:
        one["metadata"]["labels"] = objects.LABELS
    settings = {"in_pods": True, "namespace": "kube-system", "extended_resources": True}
    assert given == dra.objects([{"name": "any", "rails": {}}], settings)


def test_settings_of_the_role():
    changed = {"image": "registry.example/p:1", "node_selector": {}, "use_cdi": True, "kubelet_root": "/data/kubelet"}
    made = render(metrics_address=":9808", **changed)["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = made["containers"]
    assert (container["image"], made["nodeSelector"]) == ("registry.example/p:1", {})
    assert container["args"] == ["-use-cdi", "-metrics-address", ":9808", "-kubelet-root", "/data/kubelet"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    wanted = ("/data/kubelet/plugins_registry", "/var/lib/kubelet/device-plugins", "/var/run/cdi")
    assert tuple(mounts[name] for name in ("plugins-registry", "device-plugin", "cdi")) == wanted
    assert set(mounts) == {volume["name"] for volume in made["volumes"]}


PROGRAM = {"image": "x", "command": ["/bin/k8s-rdma-shared-dp"]}
IMAGE = {"image": "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:latest"}
OURS, MINE = {OWNER_LABEL: objects.OWNER}, [{"manager": "gpufabric.rdma", "operation": "Apply"}]
NIC = {"ownerReferences": [{"kind": "NicClusterPolicy", "name": "nic"}]}


@pytest.mark.parametrize(("container", "meta", "wanted"), [
    (IMAGE, {}, [(False, "")]),
    (PROGRAM, {}, [(False, "")]),
    (PROGRAM, {"labels": objects.LABELS}, [(False, "")]),
    (PROGRAM, {"labels": OURS}, [(False, "")]),
    (PROGRAM, {"labels": OURS, "managedFields": MINE}, [(True, "")]),
    (IMAGE, NIC, [(False, "NicClusterPolicy nic")]),
    ({"image": "kube-flannel"}, {}, []),
])  # fmt: skip
def test_daemonsets_that_run_the_plugin_are_known_by_image_or_command(container, meta, wanted):
    """Ours is the one that the role applied; a copy with its labels needs consent."""
    spec = {"template": {"spec": {"containers": [container]}}}
    item = {"metadata": {"namespace": "kube-system", "name": "one", "labels": {}, **meta}, "spec": spec}
    assert [(one["ours"], one["owner"]) for one in migration.plugins([item])] == wanted


# --- the role ---------------------------------------------------------------------------------------------------------

PLAY = [{"hosts": "all", "gather_facts": False, "roles": [{"role": "gpufabric.rdma.device_plugin"}]}]


class Place:
    """A node and a cluster of one, both in files."""

    def __init__(self, folder):
        self.folder = folder
        self.root = tree.lay_out(tree.load("h100-8x-cx7-ib"), folder / "node")
        self.cluster = kubectl_cluster.Cluster(folder / "cluster.json")
        stamp = self.root / planner.STAMP.lstrip("/")
        stamp.parent.mkdir(parents=True)
        stamp.write_text(wheels.stamp(LOCKED, f"{sys.version_info[0]}.{sys.version_info[1]}"))
        self.process = self.root / "proc/4242"

    def go_plugin(self, name="rdma-shared-dp-ds", **meta):
        """The Go plugin, in the cluster and on the node."""
        config_map, daemon_set = json.loads(json.dumps(RECIPE))
        daemon_set["metadata"] = {**daemon_set["metadata"], "name": name, **meta}
        self.cluster.state(objects={}, calls=[], processes={f"DaemonSet/kube-system/{name}": str(self.process)})
        self.cluster.add(config_map, daemon_set)
        config = {"configList": [{"resourceName": "hca_shared_devices_0"}]}
        (self.process / "root/k8s-rdma-shared-dev-plugin").mkdir(parents=True)
        (self.process / "root/k8s-rdma-shared-dev-plugin/config.json").write_text(json.dumps(config))
        (self.process / "exe").symlink_to("/bin/k8s-rdma-shared-dp")
        (self.process / "cmdline").write_text("/bin/k8s-rdma-shared-dp\0")
        (self.process / "cgroup").write_text("0::/kubepods/besteffort/pod1/1\n")

    def text(self, path):
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else None

    def run(self, *arguments, fails=False, **variables):
        common = running.local(discovery_root=str(self.root), device_plugin_kubectl=self.cluster.argv)
        inventory = {"k3s_servers": {"hosts": {"node1": {**common, **variables}}}}
        code, output = running.play(self.folder, *arguments, inventory=inventory, plays=PLAY)
        assert (code != 0) == fails, output
        # Long messages are wrapped.
        return " ".join(output.split()), int(re.search(r"^node1 +: .*changed=(\d+)", output, re.MULTILINE)[1])


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_as_a_service_beside_and_then_in_place_of_the_go_plugin(place):
    place.go_plugin()
    for allowed, fails in ((None, True), (False, False)):
        output, changed = place.run(fails=fails, device_plugin_migrate_allowed=allowed)
        assert (changed, place.text(planner.UNIT)) == (0, None)
        assert ("process 4242 (the Go plugin, in a pod)" in output) == fails
    _output, changed = place.run("--check", device_plugin_migrate_allowed=True)
    assert (changed, place.process.is_dir()) == (1, True)
    output, changed = place.run(device_plugin_migrate_allowed=True)
    assert changed == 2, output
    assert "DaemonSet/kube-system/rdma-shared-dp-ds" not in place.cluster.objects
    assert "Before=k3s.service k3s-agent.service kubelet.service" in place.text(planner.UNIT)
    config = json.loads(place.text(planner.CONFIG))["configList"]
    assert [entry["resourceName"] for entry in config] == [f"hca_shared_devices_{number}" for number in range(8)]
    assert {entry["rdmaHcaMax"] for entry in config} == {63}
    output, changed = place.run()
    assert changed == 0, output


def test_in_pods_after_it_was_a_service(place):
    place.run()
    assert place.text(planner.UNIT)
    output, changed = place.run(device_plugin_mode="daemonset")
    assert changed == 2, output
    assert place.text(planner.UNIT) is None
    assert not (place.root / planner.HOME.lstrip("/")).exists()
    config_map = place.cluster.objects["ConfigMap/kube-system/rdma-devices"]
    assert len(json.loads(config_map["data"]["config.json"])["configList"]) == 8
    daemon_set = place.cluster.objects["DaemonSet/kube-system/rdma-shared-dp-ds"]
    assert daemon_set["metadata"]["labels"]["app.kubernetes.io/name"] == "rdma-device-plugin"
    output, changed = place.run(device_plugin_mode="daemonset")
    assert changed == 0, output


def test_an_operators_daemonset_is_left_alone_whatever_was_agreed_to(place):
    place.go_plugin(name="rdma-shared-dp", ownerReferences=[{"kind": "NicClusterPolicy", "name": "nic"}])
    before = place.cluster.objects
    output, _changed = place.run(fails=True, device_plugin_mode="daemonset", device_plugin_migrate_allowed=True)
    assert "remove the plugin from NicClusterPolicy nic" in output
    assert place.cluster.objects == before


WRONG = {"device_plugin_resources": [], "device_plugin_server": "nowhere", "device_plugin_interval_seconds": -1}
MISSPELT = {"resourceName": "a", "rdmaHcaMax": 1, "selecters": {"vendors": ["15b3"]}}


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({**WRONG, "device_plugin_mode": "daemonset"}, [*WRONG, "nowhere"]),
        ({"device_plugin_resources": [MISSPELT]}, ["selecters"]),  # by the plugin's own check
        ({"device_plugin_resources": [MISSPELT], "device_plugin_mode": "daemonset"}, ["selecters"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(place, variables, named):
    output, changed = place.run(fails=True, **variables)
    assert [text for text in named if text not in output] == []
    assert (changed, place.text(planner.CONFIG)) == (0, None)


# --- over DRA ---------------------------------------------------------------------------------------------------------

KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
ACCOUNT = "ServiceAccount/gpufabric-rdma/rdma-device-plugin-node1"


def joined(place):
    """A node whose kubelet has its kubeconfig, in a cluster that makes tokens."""
    kubelet = place.root / KUBELET.lstrip("/")
    kubelet.parent.mkdir(parents=True, exist_ok=True)
    kubelet.write_text(
        "clusters:\n- cluster:\n    server: https://127.0.0.1:6444\n    certificate-authority: /ca.crt\n"
        "users:\n- user:\n    client-key-data: c2VjcmV0\n"
    )
    (place.root / "proc/sys/kernel/hostname").write_text("node1\n")
    node = kubectl_cluster.node("node1")
    node["status"] = {"nodeInfo": {"kubeletVersion": "v1.35.8", "containerRuntimeVersion": "containerd://2.1.4"}}
    place.cluster.add(node)
    place.cluster.state(tokens={"*": "the-token"})


def test_over_dra_with_an_account_of_its_node_and_back(place):
    joined(place)
    output, changed = place.run(device_plugin_api="dra")
    assert changed > 0, output
    assert "the-token" not in output
    secret = place.root / "etc/rdma-device-plugin/token"
    assert (secret.read_text(), f"{secret.stat().st_mode & 0o777:o}") == ("the-token", "600")
    kubeconfig = place.text(planner.KUBECONFIG)
    assert '"server": "https://127.0.0.1:6444"' in kubeconfig
    assert "c2VjcmV0" not in kubeconfig, "the kubelet's credential is not taken"
    assert "-mode dra -node-name node1 -kubeconfig /etc/rdma-device-plugin/kubeconfig" in place.text(planner.UNIT)
    assert [entry["rail"] for entry in json.loads(place.text(planner.CONFIG))["configList"]] == list(range(8))
    assert len([name for name in place.cluster.objects if name.startswith("DeviceClass/")]) == 9
    assert {ACCOUNT, "ValidatingAdmissionPolicyBinding//slices.rdma.gpufabric.io"} <= set(place.cluster.objects)

    output, changed = place.run(device_plugin_api="dra")
    assert changed == 0, output

    output, changed = place.run()
    assert changed > 0, output
    assert not secret.exists()
    assert place.text(planner.KUBECONFIG) is None
    assert not [
        name for name in place.cluster.objects if name.startswith(("DeviceClass/", "ClusterRole", "ValidatingAdm"))
    ]
    output, changed = place.run()
    assert changed == 0, output
