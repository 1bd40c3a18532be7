"""What the role networks installs in a cluster: pinned images, consistent manifests."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/networks"
VARIABLES = yaml.safe_load((ROLE / "vars/main.yml").read_text())
IMAGES = VARIABLES["__networks_pinned_images"]
SPECS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
COMPONENTS = SPECS["networks_components"]["choices"]


def rendered(component, **changes):
    """The objects of one component, as the role's template makes them."""
    variables = {
        "__networks_used_images": IMAGES,
        "__networks_plan": {"sriov_config": {"resourceList": [{"resourceName": "vfs"}]}},
        "networks_cni_bin_dir": "/opt/cni/bin",
        **changes,
    }
    loader = DataLoader()
    loader.set_basedir(str(ROLE))
    templar = Templar(loader, variables=variables)
    text = (ROLE / f"templates/{component}.yml.j2").read_text()
    return [item for item in yaml.safe_load_all(templar.template(_trusted(text))) if item]


def _trusted(text):
    from ansible.template import trust_as_template

    return trust_as_template(text)


def test_the_pinned_images_are_those_of_the_lock():
    lock = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
    locked = {image["name"]: image["reference"] for image in lock["images"] if image["used_by"] == "networks"}
    assert locked == IMAGES
    assert sorted(COMPONENTS) == sorted(IMAGES) == sorted(VARIABLES["__networks_workloads"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_runs_its_pinned_image_and_is_waited_for(component):
    objects = rendered(component)
    workloads = {
        f"{item['kind'].lower()}/{item['metadata']['name']}": item
        for item in objects
        if "template" in item.get("spec", {})
    }
    assert set(workloads) == {item["resource"] for item in VARIABLES["__networks_workloads"][component]}
    for item in workloads.values():
        pod = item["spec"]["template"]["spec"]
        assert item["metadata"]["namespace"] == "kube-system"
        assert [container["image"] for container in pod["containers"]] == [IMAGES[component]]
        assert item["spec"]["selector"]["matchLabels"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
        mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        account = pod.get("serviceAccountName")
        accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
        assert account is None or account in accounts


def test_the_configuration_of_the_sriov_plugin_is_one_json_text():
    objects = rendered("sriov-device-plugin")
    data = next(item for item in objects if item["kind"] == "ConfigMap")["data"]
    assert json.loads(data["config.json"]) == {"resourceList": [{"resourceName": "vfs"}]}


@pytest.mark.parametrize("component", [name for name in COMPONENTS if name != "sriov-device-plugin"])
def test_plugins_land_in_the_directory_that_containerd_reads(component):
    objects = rendered(component, networks_cni_bin_dir="/var/lib/cni/bin")
    daemons = [item for item in objects if item["kind"] == "DaemonSet"]
    for item in daemons:
        pod = item["spec"]["template"]["spec"]
        paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        assert "/var/lib/cni/bin" in paths
        assert "/opt/cni/bin" not in paths
        for argument in pod["containers"][0].get("args", []):
            assert "=/opt/cni/bin" not in argument
    assert daemons
