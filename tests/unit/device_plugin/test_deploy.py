"""The DaemonSet compared with the one that users of the Go plugin have: each difference is listed with its reason."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra, objects
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.ownership import OWNER_LABEL
from ansible_collections.gpufabric.rdma.plugins.modules import device_plugin_migration
from ansible_collections.gpufabric.rdma.tests.tools import tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "device_plugin/deploy"
RECIPE = {
    item["kind"]: item
    for item in yaml.safe_load_all((tree.texts("guides") / "000-shared-device-plugin.txt").read_text())
}
POD = "spec/template/spec"
CONTAINER = f"{POD}/containers/k8s-rdma-shared-dp-ds"

# Least privilege; no access to any device; the directory where the kubelet looks first; no limit on processors, which
# would make it miss the kubelet's deadline of 1 s; never two with the same resources on a node.
DIFFERENCES = {
    f"{CONTAINER}/securityContext/{key}"
    for key in ("privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem", "runAsUser", "runAsGroup")
}
DIFFERENCES |= {f"{CONTAINER}/securityContext/{key}" for key in ("capabilities/drop/ALL", "seccompProfile/type")}
DIFFERENCES |= {f"{CONTAINER}/volumeMounts/{key}" for key in ("devs/mountPath", "plugins-registry/mountPath")}
DIFFERENCES |= {f"{CONTAINER}/volumeMounts/{key}/readOnly" for key in ("device-plugin", "config")}
DIFFERENCES |= {f"{CONTAINER}/{key}" for key in ("image", "command/0", "resources/limits/cpu")}
DIFFERENCES |= {f"{POD}/volumes/{key}/hostPath/path" for key in ("devs", "plugins-registry")}
DIFFERENCES |= {f"{POD}/volumes/{key}/hostPath/type" for key in ("device-plugin", "plugins-registry")}
DIFFERENCES |= {f"{POD}/{key}" for key in ("automountServiceAccountToken", "terminationGracePeriodSeconds")}
DIFFERENCES |= {
    f"spec/updateStrategy/{key}" for key in ("type", "rollingUpdate/maxSurge", "rollingUpdate/maxUnavailable")
}


def leaves(value, path=""):
    """{path: value}; items of lists go by their name where they have one, and texts by themselves."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = (
            (item["name"] if isinstance(item, dict) and "name" in item else index, item)
            for index, item in enumerate(value)
        )
        if all(isinstance(item, str) and item.isupper() for item in value):
            items = ((item, True) for item in value)
    else:
        return {path: value}
    found = {}
    for name, item in items:
        named = isinstance(value, list) and isinstance(item, dict)
        item = {key: leaf for key, leaf in item.items() if key != "name"} if named else item
        found.update(leaves(item, f"{path}/{name}".lstrip("/")))
    return found


@pytest.fixture(scope="module")
def rendered():
    """What kubectl makes of the folder, by kind."""
    if not shutil.which("kubectl"):
        pytest.skip("not verified: no kubectl here to run kustomize with")
    return kustomize(DEPLOY)


def kustomize(folder):
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}


def manifest():
    return yaml.safe_load((DEPLOY / "daemonset.yaml").read_text())


def test_each_field_is_that_of_the_recipe_or_one_of_those():
    ours, theirs = leaves(manifest()), leaves(RECIPE["DaemonSet"])
    different = {path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)}
    assert different == DIFFERENCES


def test_kustomize_keeps_the_names_that_pods_and_people_know(rendered):
    assert set(rendered) == {"ConfigMap", "DaemonSet"}
    for kind, item in rendered.items():
        assert item["metadata"]["name"] == RECIPE[kind]["metadata"]["name"]
        assert item["metadata"]["namespace"] == "kube-system"
        assert item["metadata"]["labels"] == objects.LABELS
    assert list(rendered["ConfigMap"]["data"]) == ["config.json"]
    assert rendered["DaemonSet"]["spec"]["selector"] == RECIPE["DaemonSet"]["spec"]["selector"]


@pytest.mark.parametrize(
    ("component", "settings"),
    [("link-up", {"links_up": True}), ("cdi", {"use_cdi": True}), ("dra", {"api": "dra"})],
)
def test_the_role_and_its_settings_apply_what_kustomize_and_its_components_make(
    rendered, tmp_path, component, settings
):
    config = (DEPLOY / "config.json").read_text()
    assert {kind: render(config)[kind] for kind in ("DaemonSet", "ConfigMap")} == rendered
    # kustomize takes no absolute paths.
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(
        f"resources: [../deploy]\ncomponents: [../deploy/components/{component}]\n"
    )
    made = kustomize(tmp_path / "mine")["DaemonSet"]
    assert made["spec"] == render(**settings)["DaemonSet"]["spec"]


def test_the_objects_of_component_dra_are_those_of_the_role():
    given = list(yaml.safe_load_all((DEPLOY / "components/dra/objects.yaml").read_text()))
    settings = {"in_pods": True, "namespace": "kube-system", "extended_resources": True}
    assert given == dra.objects([{"name": "any", "rails": {}}], settings)


PLAIN = {
    "image": "localhost/rdma-device-plugin:0.1.0",
    "node_selector": {"feature.node.kubernetes.io/rdma.capable": "true"},
    "use_cdi": False,
    "metrics_address": "",
    "kubelet_root": "/var/lib/kubelet",
    "api": "device-plugin",
}


def render(config="{}", links_up=False, **settings):
    given = manifest()
    made = objects.objects(given, config, links_up, {**PLAIN, **settings})
    assert given == manifest(), "the manifest is not changed by rendering it"
    return {item["kind"]: item for item in made}


def test_settings_of_the_role():
    changed = {"image": "registry.example/p:1", "node_selector": {}, "use_cdi": True, "kubelet_root": "/data/kubelet"}
    made = render(metrics_address=":9808", **changed)["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = made["containers"]
    assert container["image"] == "registry.example/p:1"
    assert container["args"] == ["-use-cdi", "-metrics-address", ":9808", "-kubelet-root", "/data/kubelet"]
    assert made["nodeSelector"] == {}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    wanted = ("/data/kubelet/plugins_registry", "/var/lib/kubelet/device-plugins", "/var/run/cdi")
    assert tuple(mounts[name] for name in ("plugins-registry", "device-plugin", "cdi")) == wanted
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in made["volumes"]}


def test_the_config_of_the_manifest_is_one_that_keeps_to_its_privileges():
    config = json.loads((DEPLOY / "config.json").read_text())
    assert all(entry["linkUp"] is False for entry in config["configList"])
    assert config["periodicUpdateInterval"] == 300
    assert {entry["rdmaHcaMax"] for entry in config["configList"]} == {63}


# Which DaemonSets of a cluster are a plugin of this kind.


def listed(name, container, labels=None, owner=None):
    meta = {"namespace": "kube-system", "name": name, "labels": labels or {}}
    if owner:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1]}]
    return {"metadata": meta, "spec": {"template": {"spec": {"containers": [container]}}}}


PROGRAM = {"image": "x", "command": ["/bin/k8s-rdma-shared-dp"]}
OURS = {OWNER_LABEL: objects.OWNER}
MINE = [{"manager": "gpufabric.rdma", "operation": "Apply"}]
NIC = ("NicClusterPolicy", "nic")


@pytest.mark.parametrize(
    ("container", "labels", "owner", "managed", "wanted"),
    [
        ({"image": "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:latest"}, {}, None, [], [(False, "")]),
        ({**PROGRAM, "image": "nvcr.io/x/plugin:1"}, {}, None, [], [(False, "")]),
        (PROGRAM, objects.LABELS, None, [], [(False, "")]),
        (PROGRAM, OURS, None, [], [(False, "")]),
        (PROGRAM, OURS, None, MINE, [(True, "")]),
        ({"image": "k8s-rdma-shared-dev-plugin"}, {}, NIC, [], [(False, "NicClusterPolicy nic")]),
        ({"image": "kube-flannel"}, {}, None, [], []),
    ],
    ids=["image", "command", "rendered", "copied", "applied", "operator", "other"],
)
def test_daemonsets_that_run_the_plugin_are_known_by_image_or_command(container, labels, owner, managed, wanted):
    """Ours is the one that the role has applied, and not a copy with its labels, which is asked about."""
    item = listed("one", container, labels, owner)
    item["metadata"]["managedFields"] = managed
    assert [(one["ours"], one["owner"]) for one in device_plugin_migration.found([item])] == wanted
