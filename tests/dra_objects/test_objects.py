"""Our objects for DRA before Kubernetes' own code: strict decoding, CEL compiled and run, the policy asked.

main.go is linked with the release of Kubernetes that lock/artifacts.yml ships. Without Go: not verified.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = sorted((ROOT / "docs/examples/dra").rglob("*.yaml"))
SETTINGS = {"in_pods": False, "namespace": "gpufabric-rdma", "extended_resources": True}
NODES = [{"name": f"node{number}", "rails": {0: "rdma/hca_shared_devices_0", 1: None}} for number in (1, 2)]
SERVICE, DAEMON = (
    "system:serviceaccount:gpufabric-rdma:rdma-device-plugin-",
    "system:serviceaccount:kube-system:rdma-device-plugin",
)
CLAIM = "authentication.kubernetes.io/node-name"


@pytest.fixture(scope="module")
def kubernetes():
    """kubernetes(question): what Kubernetes' code says."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        pytest.skip("not verified: no Go on this machine")
    program = ROOT / ".cache/dra-objects"
    program.parent.mkdir(exist_ok=True)
    words = [go, "build", "-trimpath", "-buildvcs=false", "-o", program, "."]
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode and "dial tcp" in done.stderr:
        pytest.skip(f"not verified: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr

    def ask(**question):
        run = subprocess.run([program], input=json.dumps(question), capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return ask


def documents(path):
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def expressions(value):
    """Every CEL expression of a selector below a value."""
    if isinstance(value, dict):
        own = [value["cel"]["expression"]] if "cel" in value else []
        return own + [one for item in value.values() for one in expressions(item)]
    return [one for item in value for one in expressions(item)] if isinstance(value, list) else []


def device(label, **attributes):
    typed = {key: {"int": value} if isinstance(value, int) else {"string": value} for key, value in attributes.items()}
    return {"name": label, "attributes": typed}


DEVICES = [
    device("plain", name="mlx5_9"),
    device("zero", name="mlx5_0", rail=0, psid="MT_0000000838", rateGbps=400),
    device("one", name="mlx5_1", rail=1, psid="MT_0000000838", rateGbps=200),
    device("other", name="mlx5_2", rail=2, psid="MT_0000000224"),
]


def test_every_object_and_example_is_one_that_kubernetes_decodes_field_by_field(kubernetes):
    made = dra.objects(NODES, SETTINGS) + dra.objects(NODES, {**SETTINGS, "in_pods": True, "namespace": "kube-system"})
    given = made + [item for path in EXAMPLES for item in documents(path)]
    assert kubernetes(objects=given)["problems"] == []
    wrong = {**documents(EXAMPLES[0])[0], "spec": {"spec": {"device": {}}}}
    assert "unknown field" in kubernetes(objects=[wrong])["problems"][0]


@pytest.mark.parametrize(
    ("name", "devices"),
    [("rail", ["zero", "one", "other"]), ("rail-0", ["zero"]), ("rail-1", ["one"])],
)
def test_a_class_takes_its_devices_whatever_attribute_is_absent(kubernetes, name, devices):
    (made,) = [item for item in dra.classes(NODES, True) if item["metadata"]["name"] == f"{name}.{dra.DRIVER}"]
    said = kubernetes(selectors=expressions(made), driver=dra.DRIVER, devices=DEVICES)
    assert (said["problems"], said["matching"]) == ([], [devices])
    assert kubernetes(selectors=expressions(made), driver="gpu.nvidia.com", devices=[device("gpu")])["matching"] == [[]]


def test_the_psid_of_the_example(kubernetes):
    (chosen,) = expressions(documents(ROOT / "docs/examples/dra/fixed-psid.yaml"))
    said = kubernetes(selectors=[chosen], driver=dra.DRIVER, devices=DEVICES)
    assert (said["problems"], said["matching"]) == ([], [["zero"]])


def test_what_does_not_compile_is_seen(kubernetes):
    assert kubernetes(selectors=["device.attribute == 1"], driver=dra.DRIVER, devices=[])["problems"]


def piece(node="node1", driver=dra.DRIVER, pool=None):
    spec = {"driver": driver, "pool": {"name": pool or node or "all", "generation": 1, "resourceSliceCount": 1}}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": "slice"}, "spec": spec}


CASES = [
    ({"object": piece()}, None),
    ({"object": piece(pool="node1/rail0")}, None),
    ({"object": piece("node2")}, "may not write slices of node"),
    ({"object": piece(None)}, "may not write slices of node"),
    ({"object": piece(driver="gpu.nvidia.com")}, "driver gpu.nvidia.com"),
    # It would replace what node2 has published.
    ({"object": piece(pool="node2")}, "may not write pool node2"),
    ({"object": piece(pool="node10")}, "may not write pool node10"),
    ({"operation": "UPDATE", "object": piece(), "old": piece()}, None),
    ({"operation": "DELETE", "old": piece()}, None),
    ({"operation": "DELETE", "old": piece("node2")}, "may not write slices of node"),
    ({"operation": "DELETE", "old": piece(driver="gpu.nvidia.com")}, "driver gpu.nvidia.com"),
]


@pytest.mark.parametrize("in_pods", [False, True])
def test_the_plugin_of_a_node_writes_its_own_slices_and_no_others(kubernetes, in_pods):
    settings = {**SETTINGS, "in_pods": in_pods, "namespace": "kube-system" if in_pods else "gpufabric-rdma"}
    (policy,) = [item for item in dra.objects(NODES, settings) if item["kind"] == "ValidatingAdmissionPolicy"]
    who = {"username": DAEMON, "extra": {CLAIM: ["node1"]}} if in_pods else {"username": f"{SERVICE}node1"}
    asked = [{"operation": "CREATE", **who, **request} for request, _words in CASES]
    # Nobody else is concerned; a token of our account that names no node is.
    asked += [
        {"operation": "DELETE", "username": name, "old": piece("node2")} for name in ("system:node:node1", "admin")
    ]
    nameless = {"username": DAEMON if in_pods else SERVICE, "operation": "CREATE", "object": piece()}
    denied = kubernetes(policy=policy, requests=[*asked, nameless])["denied"]
    for (request, words), said in zip(CASES, denied):
        assert bool(said) == bool(words), (request, said)
        assert (words or "") in said
        assert not said or said.startswith("Forbidden: ")
    assert denied[-3:-1] == ["", ""]
    assert "names no node" in denied[-1]
