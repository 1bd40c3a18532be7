"""docs/examples for Flux and Argo CD: YAML, paths and dependencies that fit what playbooks/render.yml writes."""

from __future__ import annotations

import pathlib

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
FLUX, ARGO = ROOT / "docs/examples/flux", ROOT / "docs/examples/argocd"
FILES = sorted([*FLUX.glob("*"), *ARGO.glob("*")])
FOLDER = "rack1/gpufabric"


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_says_what_is_not_verified(path):
    assert load(path)["kind"] in {"GitRepository", "Kustomization", "Application"}
    if path.name != "kustomization.yaml":
        assert path.read_text().startswith("# Not verified on a live "), path


def test_the_list_names_each_file():
    assert sorted(load(FLUX / "kustomization.yaml")["resources"]) == sorted(
        path.name for path in FLUX.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_flux_has_one_kustomization_a_directory_from_the_repository():
    repository = load(FLUX / "repository.yaml")
    assert {item["spec"]["path"] for item in flux().values()} == {f"./{FOLDER}/{role}" for role in rendered_roles()}
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
    assert item["spec"]["source"]["path"] == FOLDER
    assert "ServerSideApply=true" in item["spec"]["syncPolicy"]["syncOptions"]
    assert item["metadata"]["annotations"]["argocd.argoproj.io/compare-options"] == "ServerSideDiff=true"
    assert "ignoreDifferences" not in item["spec"]
