"""docs/examples: claims of DRA, and Flux and Argo CD: they fit together and what playbooks/render.yml writes."""

from __future__ import annotations

import graphlib
import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLAIMS: dict = {}  # {template: [it, pods with such a claim]}
for _path in (ROOT / "docs/examples/dra").glob("*.yaml"):
    for _item in yaml.safe_load_all(_path.read_text()):
        CLAIMS.setdefault(_item["metadata"]["name"], []).append(_item)
CLASSES = re.compile(rf"(gpu\.nvidia\.com|rail(-\d)?\.{re.escape(dra.DRIVER)})")


@pytest.mark.parametrize("name", CLAIMS)
def test_requests_constraints_and_pod_of_a_claim_fit_together(name):
    template, *pods = CLAIMS[name]
    assert (template["apiVersion"], template["kind"]) == ("resource.k8s.io/v1", "ResourceClaimTemplate")
    assert template["metadata"]["name"] == name
    devices = template["spec"]["spec"]["devices"]
    classes = {request["name"]: request["exactly"]["deviceClassName"] for request in devices["requests"]}
    assert len(classes) == len(devices["requests"]) <= 32, "an API server takes 32 requests"
    assert all(CLASSES.fullmatch(one) for one in classes.values())
    constraints = devices.get("constraints", [])
    assert all(set(constraint["requests"]) <= set(classes) for constraint in constraints)
    # Two units of one HCA are never two rails: a class each, or told apart.
    rails = [one for one in classes.values() if one.startswith("rail")]
    apart = [set(constraint["requests"]) for constraint in constraints if "distinctAttribute" in constraint]
    assert len(rails) == len(set(rails)) or {key for key, one in classes.items() if one == dra.CLASS} in apart
    if any(one.startswith("gpu") for one in classes.values()):  # each GPU with its rail, at one PCIe root
        assert {constraint["matchAttribute"] for constraint in constraints} == {dra.PCIE_ROOT}
        pairs = [constraint["requests"] for constraint in constraints]
        assert sorted(one for pair in pairs for one in pair) == sorted(classes)
        assert all(len(pair) == 2 and any(one.startswith("gpu") for one in pair) for pair in pairs)
    for pod in pods:
        (claim,) = pod["spec"]["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == name
        assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
        # Class rail-3.rdma.gpufabric.io goes with network rail3, as the roles name them.
        networks = pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
        numbered = [one for one in classes.values() if one.startswith("rail-")]
        assert [dra.class_of(int(one[4:])) for one in networks.split(",") if one] == numbered


# --- Flux and Argo CD ------------------------------------------------------------------------------------------------

ARGO, FLUX = (
    list(yaml.safe_load_all((ROOT / f"docs/examples/{name}.yaml").read_text()))
    for name in ("argocd/application", "flux/gpufabric")
)
REPOSITORY = "rack1/gpufabric"


def flux():
    return {item["metadata"]["name"]: item for item in FLUX if item["apiVersion"] == "kustomize.toolkit.fluxcd.io/v1"}


def rendered_roles():
    """The directories that the playbook writes, from the role that hands the objects over."""
    tasks = yaml.safe_load((ROOT / "roles/cluster_objects/tasks/main.yml").read_text())
    (write,) = [task for task in tasks if "gpufabric.rdma.git_folder" in task]
    roles = list(write["vars"]["__cluster_objects_always"])
    return [*roles, "device_plugin"] if "'device_plugin':" in write["gpufabric.rdma.git_folder"]["objects"] else roles


def test_flux_has_one_kustomization_a_directory_each_after_what_it_needs():
    repository, found = FLUX[0], flux()
    assert {item["spec"]["path"] for item in found.values()} == {f"./{REPOSITORY}/{role}" for role in rendered_roles()}
    for item in found.values():
        assert item["spec"]["sourceRef"] == {"kind": "GitRepository", "name": repository["metadata"]["name"]}
        assert (item["spec"]["prune"], item["spec"]["wait"]) == (True, True)
    needs = {name: [other["name"] for other in item["spec"].get("dependsOn", [])] for name, item in found.items()}
    assert needs["gpufabric-networks"] == ["gpufabric-multus"]
    assert needs["gpufabric-multus"] == needs["gpufabric-device-plugin"] == ["gpufabric-flannel"]
    list(graphlib.TopologicalSorter(needs).static_order())
    assert {need for several in needs.values() for need in several} <= set(needs)


def test_namespaces_and_definitions_are_never_pruned():
    patches = [patch for item in flux().values() for patch in item["spec"].get("patches", [])]
    patches += ARGO[0]["spec"]["source"]["kustomize"]["patches"]
    assert len(patches) >= 6
    for patch in patches:
        text = yaml.safe_load(patch["patch"])
        assert text["kind"] == patch["target"]["kind"]
        assert list(text["metadata"]["annotations"].values()) in (["disabled"], ["Prune=false"])
    for role in ("flannel", "node_ready", "multus", "networks"):
        text = "".join(path.read_text() for path in (ROOT / f"roles/{role}/templates").glob("*.j2"))
        kinds = {kind for kind in ("Namespace", "CustomResourceDefinition") if f"\nkind: {kind}\n" in text}
        item = flux()[f"gpufabric-{role.replace('_', '-')}"]
        assert {patch["target"]["kind"] for patch in item["spec"].get("patches", [])} == kinds, role


def test_argo_applies_on_the_server_side_and_ignores_no_field():
    (item,) = ARGO
    assert item["apiVersion"] == "argoproj.io/v1alpha1"
    assert item["spec"]["source"]["path"] == REPOSITORY
    assert "ServerSideApply=true" in item["spec"]["syncPolicy"]["syncOptions"]
    assert item["metadata"]["annotations"]["argocd.argoproj.io/compare-options"] == "ServerSideDiff=true"
    assert "ignoreDifferences" not in item["spec"]


# --- pipelines with drift --------------------------------------------------------------------------------------


DRIFT = ROOT / "docs/examples/drift"


def test_the_page_lists_every_example():
    page = (ROOT / "docs/drift.md").read_text()
    assert [path.name for path in DRIFT.iterdir() if f"examples/drift/{path.name})" not in page] == []


def github():
    steps = yaml.safe_load((DRIFT / "github-actions.yml").read_text())["jobs"]["drift"]["steps"]
    (step,) = [step for step in steps if step.get("name") == "Compare"]
    return step["run"]


def gitlab():
    return "\n".join(yaml.safe_load((DRIFT / "gitlab-ci.yml").read_text())["drift"]["script"])


@pytest.fixture
def checkout(tmp_path):
    """A repository with an inventory, and the collection where the examples expect it."""
    place = tmp_path / "collections/ansible_collections/gpufabric"
    place.mkdir(parents=True)
    (place / "rdma").symlink_to(ROOT)

    def describe(host):
        variables = {"ansible_python_interpreter": node_python.path(), "ansible_become": False}
        inventory = {"gpu_nodes": {"hosts": {"localhost": {**variables, **host}}}}
        (tmp_path / "inventory").write_text(yaml.safe_dump(inventory))
        return tmp_path

    return describe


def run(folder, command):
    """The command as the platform's shell would run it."""
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_SSH_TIMEOUT": "3",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": ansible_playbook.search_path(),
            "PWD": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("command", "code"), [(github, 2), (gitlab, 4)], ids=["github-actions", "gitlab-ci"])
def test_the_command_of_an_example_gives_the_exit_code_of_the_worst_host(checkout, command, code, tmp_path):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    host = away
    if code == 2:
        tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
        host = {"ansible_connection": "local", "discovery_root": str(tmp_path / "node"), "limits_services": ["k3s"]}
    done = run(checkout({"cluster": False, **host}), command())
    assert done.returncode == code, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "drift/verdict.json").read_text())
    assert verdict["exit_code"] == code
