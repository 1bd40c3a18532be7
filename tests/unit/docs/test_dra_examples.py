"""The claims of docs/examples/dra: what each of them promises in its first lines, and that the page lists them all."""

from __future__ import annotations

import pathlib
import re

import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs/examples/dra"
CLASSES = re.compile(rf"(gpu\.nvidia\.com|rail(-\d)?\.{re.escape(dra.DRIVER)})")


def read(name):
    """The template of an example, then the pod that goes with it, if there is one."""
    paths = FOLDER / f"{name}.yaml", FOLDER / f"pods/{name}.yaml"
    return [yaml.safe_load(path.read_text()) for path in paths if path.exists()]


def devices(name):
    return read(name)[0]["spec"]["spec"]["devices"]


def test_the_page_names_every_example_and_no_other():
    page = (ROOT / "docs/dra.md").read_text()
    assert set(re.findall(r"\(examples/dra/(\S+)\)", page)) == {path.name for path in FOLDER.glob("*.yaml")}


def test_each_pod_has_its_template():
    pods = {path.name for path in (FOLDER / "pods").glob("*.yaml")}
    assert {"gpu-and-its-rail.yaml"} <= pods <= {path.name for path in FOLDER.glob("*.yaml")}


def test_each_is_a_template_whose_requests_and_constraints_fit_together():
    for path in FOLDER.glob("*.yaml"):
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
    for path in FOLDER.glob("*.yaml"):
        made = devices(path.stem)
        rails = [one["exactly"]["deviceClassName"] for one in made["requests"] if one["name"] not in ("gpu",)]
        rails = [name for name in rails if name.startswith("rail")]
        apart = [set(one["requests"]) for one in made.get("constraints", []) if "distinctAttribute" in one]
        general = [one["name"] for one in made["requests"] if one["exactly"]["deviceClassName"] == dra.CLASS]
        assert len(rails) == len(set(rails)) or set(general) in apart, path.name


def test_pods_attach_the_networks_of_the_rails_they_claim():
    """Class rail-3.rdma.gpufabric.io goes with network rail3, as the roles name them."""
    for path in FOLDER.glob("*.yaml"):
        for pod in read(path.stem)[1:]:
            networks = pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
            claimed = [one["exactly"]["deviceClassName"] for one in devices(path.stem)["requests"]]
            numbered = [name for name in claimed if name.startswith("rail-")]
            assert [dra.class_of(int(one[4:])) for one in networks.split(",") if one] == numbered
