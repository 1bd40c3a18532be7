"""The role networks: its manifests; and as a play over laid-out nodes, with a double of `k3s kubectl`."""

import json
import pathlib

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/networks"
VARIABLES = yaml.safe_load((ROLE / "vars/main.yml").read_text())
IMAGES = VARIABLES["__networks_pinned_images"]
SPECS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
COMPONENTS = SPECS["networks_components"]["choices"]


def rendered(component, **changes):
    variables = {
        "__networks_used_images": IMAGES,
        "__networks_plan": {"sriov_config": {"resourceList": [{"resourceName": "vfs"}]}},
        "__discovery_read": {"variables": {"networks_components": [component]}},
        "networks_cni_bin_dir": "/var/lib/cni/bin",
        **changes,
    }
    loader = DataLoader()
    loader.set_basedir(str(ROLE / "templates"))
    text = (ROLE / "templates/components.yml.j2").read_text()
    made = Templar(loader, variables=variables).template(trust_as_template(text))
    return [item for item in yaml.safe_load_all(made) if item]


def test_the_pinned_images_are_those_of_the_lock():
    lock = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
    locked = {image["name"]: image["reference"] for image in lock["images"] if image["used_by"] == "networks"}
    assert locked == IMAGES
    assert sorted(COMPONENTS) == sorted(IMAGES) == sorted(VARIABLES["__networks_workloads"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_runs_its_pinned_image_and_is_waited_for(component):
    objects = rendered(component)
    made = [item for item in objects if "template" in item.get("spec", {})]
    workloads = {f"{item['kind'].lower()}/{item['metadata']['name']}": item for item in made}
    assert set(workloads) == set(VARIABLES["__networks_workloads"][component])
    for item in workloads.values():
        pod = item["spec"]["template"]["spec"]
        assert item["metadata"]["namespace"] == "kube-system"
        assert [container["image"] for container in pod["containers"]] == [IMAGES[component]]
        assert item["spec"]["selector"]["matchLabels"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
        mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
        assert pod.get("serviceAccountName") in {None, *accounts}
        if item["kind"] == "DaemonSet" and component != "sriov-device-plugin":
            paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
            assert "/var/lib/cni/bin" in paths, "plugins land in the directory that containerd reads"
            text = json.dumps(item)
            assert ('"/opt/cni/bin' in text, "=/opt/cni/bin" in text) == (False, False)


def test_the_configuration_of_the_sriov_plugin_is_one_json_text():
    data = next(item for item in rendered("sriov-device-plugin") if item["kind"] == "ConfigMap")["data"]
    assert json.loads(data["config.json"]) == {"resourceList": [{"resourceName": "vfs"}]}


# --- as a play --------------------------------------------------------------------------------------------------------

PLAY = {
    "hosts": "gpu_nodes",
    "gather_facts": False,
    "tasks": [
        {"ansible.builtin.fail": {"msg": "planted"}, "when": "inventory_hostname in lost | default([])"},
        {"name": "Networks", "ansible.builtin.import_role": {"name": "gpufabric.rdma.networks"}},
    ],
}
BLOCKS = "etc/cni/multus/net.d/gpufabric-rdma-rail0.conf"
NAD = ("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions")


class Site:
    """Two nodes, and the file that simulates the API server."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = kubectl_cluster.Cluster(folder / "cluster.json")
        self.cluster.install(folder / "bin/k3s")
        self.cluster.add(kubectl_cluster.definition(*NAD))
        roots = {name: tree.lay_out(tree.load("lab-rxe-debian12"), folder / name) for name in ("node1", "node2")}
        self.hosts = {name: {"discovery_root": str(root)} for name, root in roots.items()}
        self.common = running.local(discovery_software_hcas=True, discovery_rails=[{"hca": "rxe0"}, {"hca": "rxe1"}])
        self.write(self.hosts)

    def write(self, nodes, played="gpu_nodes", **others):
        groups = {"gpu_nodes": nodes, "k3s_servers": {"node1": None}, **others}
        children = {name: {"hosts": hosts, "vars": self.common} for name, hosts in groups.items()}
        self.site = {"inventory": {"all": {"children": children}}, "plays": [{**PLAY, "hosts": played}]}

    def networks(self):
        return [item for item in self.cluster.objects.values() if item["kind"] == "NetworkAttachmentDefinition"]

    def run(self, *arguments, **variables):
        code, output = running.play(self.folder, "--diff", "-e", json.dumps(variables), *arguments, **self.site)
        assert "Traceback" not in output
        return code, " ".join(output.split())

    def block(self, name):
        """First address of the node's rail 0, None without its file."""
        file = self.folder / name / BLOCKS
        return json.loads(file.read_text())["ipam"]["ranges"][0][0]["rangeStart"] if file.exists() else None


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_blocks_lie_on_the_nodes_objects_in_the_cluster_and_a_second_run_changes_nothing(site):
    site.cluster.state(down=True)
    code, output = site.run("--check", networks_rails=True)
    assert (code, site.block("node1")) == (0, None), output
    assert "NetworkAttachmentDefinition default/rail0" in output
    site.cluster.state(down=False)
    code, output = site.run(networks_rails=True)
    assert code == 0, output
    assert [(item["metadata"]["name"], item["spec"]) for item in site.networks()] == [
        ("rail0", {"config": ""}),
        ("rail1", {"config": ""}),
    ]
    assert [site.block(name) for name in ("node1", "node2")] == ["10.56.0.2", "10.56.0.18"]
    code, again = site.run(networks_rails=True)
    assert (code, again.count("changed=0")) == (0, 2), again


def test_a_limited_run_writes_its_nodes_and_leaves_the_cluster_alone(site):
    code, output = site.run("--limit", "node2", networks_rails=True)
    assert code == 0, output
    assert "this run sees 1 of 2 nodes, without node1" in output
    assert (site.networks(), site.block("node1"), site.block("node2")) == ([], None, "10.56.0.18")


def test_a_node_that_failed_earlier_in_the_play_is_named_and_the_cluster_left_alone(site):
    """Objects planned from the others would break its pods. It is not in the group of nodes, only played."""
    others = {"node2": {**site.hosts["node2"], "networks_node_number": 1}}
    site.write({"node1": site.hosts["node1"]}, "gpu_nodes:others", others=others)
    code, output = site.run(networks_rails=True, lost=["node2"])
    assert code != 0, output
    assert "this run sees 1 of 2 nodes, without node2" in output
    assert (site.networks(), site.block("node1")) == ([], "10.56.0.2")
