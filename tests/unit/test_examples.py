"""docs/examples match each other and our output."""

import json
import pathlib
import re

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[2]

# --- claims of DRA ----------------------------------------------------------------------------------------------------

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
    if any(one.startswith("gpu") for one in classes.values()):  # each GPU with its rail, at one PCIe root
        assert {constraint["matchAttribute"] for constraint in constraints} == {dra.PCIE_ROOT}
        assert sorted(one for constraint in constraints for one in constraint["requests"]) == sorted(classes)
    for pod in pods:
        (claim,) = pod["spec"]["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == name
        assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
        # Class rail-3.rdma.gpufabric.io goes with network rail3, as in the roles.
        networks = pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
        numbered = [one for one in classes.values() if one.startswith("rail-")]
        assert [dra.class_of(int(one[4:])) for one in networks.split(",") if one] == numbered


# --- Flux and Argo CD ------------------------------------------------------------------------------------------------

ARGO, FLUX = (
    list(yaml.safe_load_all((ROOT / f"docs/examples/{name}.yaml").read_text()))
    for name in ("argocd/application", "flux/gpufabric")
)


def flux():
    return {item["metadata"]["name"]: item for item in FLUX if item["apiVersion"] == "kustomize.toolkit.fluxcd.io/v1"}


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
        assert item["spec"]["path"] == f"./rack1/gpufabric/{role}"
        assert {patch["target"]["kind"] for patch in item["spec"].get("patches", [])} == kinds, role


# --- pipelines with drift ---------------------------------------------------------------------------------------------

DRIFT = ROOT / "docs/examples/drift"


def github():
    steps = yaml.safe_load((DRIFT / "github-actions.yml").read_text())["jobs"]["drift"]["steps"]
    (step,) = [step for step in steps if step.get("name") == "Compare"]
    return step["run"]


def gitlab():
    return "\n".join(yaml.safe_load((DRIFT / "gitlab-ci.yml").read_text())["drift"]["script"])


@pytest.mark.parametrize(("command", "code"), [(github, 2), (gitlab, 4)], ids=["github-actions", "gitlab-ci"])
def test_the_command_of_an_example_gives_the_exit_code_of_the_worst_host(command, code, tmp_path):
    place = tmp_path / "collections/ansible_collections/gpufabric"  # where the examples expect it
    place.mkdir(parents=True)
    (place / "rdma").symlink_to(ROOT)
    host = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    if code == 2:
        tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
        host = {"ansible_connection": "local", "discovery_root": str(tmp_path / "node"), "limits_services": ["k3s"]}
    inventory = {"gpu_nodes": {"hosts": {"localhost": {**running.local(cluster=False), **host}}}}
    (tmp_path / "inventory").write_text(yaml.safe_dump(inventory))
    ours = {"ANSIBLE_SSH_TIMEOUT": "3", "PATH": ansible_playbook.search_path(), "PWD": str(tmp_path)}
    # Like in the platform's shell.
    seen, output = running.play(tmp_path, "-e", "-c", command(), program=["bash"], **ours)
    assert seen == code, output
    assert json.loads((tmp_path / "drift/verdict.json").read_text())["exit_code"] == code
