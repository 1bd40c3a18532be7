"""docs/examples: claims of DRA, and Flux and Argo CD: they fit together and what playbooks/render.yml writes."""

from __future__ import annotations

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
CLAIMS = ROOT / "docs/examples/dra"
CLASSES = re.compile(rf"(gpu\.nvidia\.com|rail(-\d)?\.{re.escape(dra.DRIVER)})")


def read(name):
    """The template of an example, then the pod that goes with it, if there is one."""
    return list(yaml.safe_load_all((CLAIMS / f"{name}.yaml").read_text()))


def devices(name):
    return read(name)[0]["spec"]["spec"]["devices"]


def test_each_pod_and_template_is_one_whose_requests_and_constraints_fit_together():
    for path in CLAIMS.glob("*.yaml"):
        template, *pods = read(path.stem)
        assert (template["apiVersion"], template["kind"]) == ("resource.k8s.io/v1", "ResourceClaimTemplate")
        assert template["metadata"]["name"] == path.stem
        made = devices(path.stem)
        names = [request["name"] for request in made["requests"]]
        assert len(names) == len(set(names)) <= 32, "an API server takes 32 requests"
        assert all(CLASSES.fullmatch(request["exactly"]["deviceClassName"]) for request in made["requests"])
        for constraint in made.get("constraints", []):
            assert set(constraint["requests"]) <= set(names)
        for pod in pods:
            (claim,) = pod["spec"]["resourceClaims"]
            assert claim["resourceClaimTemplateName"] == path.stem
            assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]


def test_a_gpu_and_its_rail_share_a_pcie_root():
    for name in ("gpu-and-its-rail", "eight-gpus-and-eight-rails"):
        made = devices(name)
        pairs = [set(one["requests"]) for one in made["constraints"]]
        assert {one["matchAttribute"] for one in made["constraints"]} == {dra.PCIE_ROOT}
        assert sorted(one for pair in pairs for one in pair) == sorted(one["name"] for one in made["requests"])
        assert all(len(pair) == 2 and any(one.startswith("gpu") for one in pair) for pair in pairs)


def test_several_rails_have_a_class_each_or_are_told_apart():
    """Two units of one HCA are never two rails."""
    for path in CLAIMS.glob("*.yaml"):
        made = devices(path.stem)
        rails = [one["exactly"]["deviceClassName"] for one in made["requests"] if one["name"] not in ("gpu",)]
        rails = [name for name in rails if name.startswith("rail")]
        apart = [set(one["requests"]) for one in made.get("constraints", []) if "distinctAttribute" in one]
        general = [one["name"] for one in made["requests"] if one["exactly"]["deviceClassName"] == dra.CLASS]
        assert len(rails) == len(set(rails)) or set(general) in apart, path.name


def test_pods_attach_the_networks_of_the_rails_they_claim():
    """Class rail-3.rdma.gpufabric.io goes with network rail3, as the roles name them."""
    for path in CLAIMS.glob("*.yaml"):
        for pod in read(path.stem)[1:]:
            networks = pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
            claimed = [one["exactly"]["deviceClassName"] for one in devices(path.stem)["requests"]]
            numbered = [name for name in claimed if name.startswith("rail-")]
            assert [dra.class_of(int(one[4:])) for one in networks.split(",") if one] == numbered


# --- Flux and Argo CD ------------------------------------------------------------------------------------------------

FLUX, ARGO = ROOT / "docs/examples/flux", ROOT / "docs/examples/argocd"
REPOSITORY = "rack1/gpufabric"


def load(path):
    (document,) = yaml.safe_load_all(path.read_text())
    return document


def flux():
    found = (load(path) for path in FLUX.glob("*.yaml"))
    return {item["metadata"]["name"]: item for item in found if item["apiVersion"] == "kustomize.toolkit.fluxcd.io/v1"}


def rendered_roles():
    """The directories that the playbook writes, from the role that hands the objects over."""
    tasks = yaml.safe_load((ROOT / "roles/cluster_objects/tasks/main.yml").read_text())
    (write,) = [task for task in tasks if "gpufabric.rdma.git_folder" in task]
    roles = list(write["vars"]["__cluster_objects_always"])
    return [*roles, "device_plugin"] if "'device_plugin':" in write["gpufabric.rdma.git_folder"]["objects"] else roles


def test_the_list_names_each_file():
    assert sorted(load(FLUX / "kustomization.yaml")["resources"]) == sorted(
        path.name for path in FLUX.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_flux_has_one_kustomization_a_directory_from_the_repository():
    repository = load(FLUX / "repository.yaml")
    assert {item["spec"]["path"] for item in flux().values()} == {f"./{REPOSITORY}/{role}" for role in rendered_roles()}
    for item in flux().values():
        assert item["spec"]["sourceRef"] == {"kind": "GitRepository", "name": repository["metadata"]["name"]}
        assert (item["spec"]["prune"], item["spec"]["wait"]) == (True, True)


def test_flux_brings_the_definition_before_what_needs_it():
    needs = {name: [other["name"] for other in item["spec"].get("dependsOn", [])] for name, item in flux().items()}
    assert needs["gpufabric-networks"] == ["gpufabric-multus"]
    assert needs["gpufabric-multus"] == needs["gpufabric-device-plugin"] == ["gpufabric-flannel"]
    done: set = set()
    while ready := {name for name in needs if name not in done and set(needs[name]) <= done}:
        done |= ready
    assert done == set(needs), "a dependency that is missing or goes round in a circle"


def patches():
    for item in flux().values():
        yield from item["spec"].get("patches", [])
    yield from load(ARGO / "application.yaml")["spec"]["source"]["kustomize"]["patches"]


def test_namespaces_and_definitions_are_never_pruned():
    assert len(list(patches())) >= 6
    for patch in patches():
        text = yaml.safe_load(patch["patch"])
        assert text["kind"] == patch["target"]["kind"]
        assert list(text["metadata"]["annotations"].values()) in (["disabled"], ["Prune=false"])
    templates = {
        role: (ROOT / f"roles/{role}/templates").glob("*.j2")
        for role in ("flannel", "node_ready", "multus", "networks")
    }
    for role, found in templates.items():
        text = "".join(path.read_text() for path in found)
        kinds = {kind for kind in ("Namespace", "CustomResourceDefinition") if f"\nkind: {kind}\n" in text}
        item = flux()[f"gpufabric-{role.replace('_', '-')}"]
        assert {patch["target"]["kind"] for patch in item["spec"].get("patches", [])} == kinds, role


def test_argo_applies_on_the_server_side_and_ignores_no_field():
    item = load(ARGO / "application.yaml")
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
    (step,) = [
        step for step in load(DRIFT / "github-actions.yml")["jobs"]["drift"]["steps"] if step.get("name") == "Compare"
    ]
    return step["run"]


def gitlab():
    return "\n".join(load(DRIFT / "gitlab-ci.yml")["drift"]["script"])


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
