"""Playbooks that work on the controller: a query, a policy, a report, the nccl-tests job."""

import json
import pathlib
import re
import sys

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import report_documents, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/schemas/results-1.json").read_text()))
GUIDE = f"policy_files={tree.texts('guides')}/001-nicclusterpolicy.txt"


@pytest.fixture
def play(tmp_path):
    """play(playbook, *values of -e, hosts, program): exit code and output."""

    def run(name, *given, hosts=None, words=(), program=None, **environment):
        command = (f"gpufabric.rdma.{name}", *[word for text in given for word in ("-e", text)], *words)
        environment |= {"inventory": {"gpu_nodes": {"hosts": hosts or {}}}, "PWD": str(tmp_path)}
        return running.play(tmp_path, *command, program=program, **environment)

    return run


@pytest.mark.parametrize(("name", "prefix"), [("bundle", "bundle"), ("import_policy", "policy")])
def test_a_misspelt_variable_is_refused_by_a_playbook_that_knows_its_own(play, tmp_path, name, prefix):
    text = (ROOT / f"playbooks/{name}.yml").read_text()
    reads = set(re.findall(rf"(?<![\w.]){prefix}_\w+", text)) - {"policy_import"}
    assert set(yaml.safe_load(text)[0]["vars"]["__controller_known"]) == reads
    code, output = play(name, f"{prefix}_filez=x", f"{prefix}_dir={tmp_path}/x")
    assert (code, f"variable {prefix}_filez: " in output) == (2, True), output
    assert not (tmp_path / "x").exists()


@pytest.fixture
def node(tmp_path):
    """node(name, fixture): variables of a host whose tree it is."""

    def of(name, fixture, **variables):
        root = tree.lay_out(tree.load(fixture), tmp_path / name)
        return running.local(discovery_root=str(root), limits_services=["containerd"], **variables)

    return of


# --- discover_query ---------------------------------------------------------------------------------------------------


def test_nodes_answer_a_query_and_one_that_cannot_be_reached_is_named(play, node, tmp_path):
    hosts = {"here": node("here", "gh200-cx7-roce"), "gone": {"ansible_host": "127.0.0.1", "ansible_port": 1}}
    query = "discover_query=hcas[].ports[?state=='DOWN'][].[number,state]"
    _code, output = play("discover", query, "discover_json=a", hosts=hosts)
    assert 'here: [1, "DOWN"]' in output
    assert "gone: not read: " in output
    document = json.loads((tmp_path / "a").read_text())
    assert (document["answers"], list(document["unread"])) == ({"here": [[1, "DOWN"]]}, ["gone"])


@pytest.mark.parametrize(("given", "said"), [
    ("discover_query=hcas[?", "query hcas[?"),
    ("discover_query=fewest(hcas)", "query fewest(hcas)"),
    ("discover_query=hcas", "-m pip install jmespath"),
    ("discover_captures=x", "variable discover_captures"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_a_node_is_called(play, tmp_path, given, said):
    if "install" in said:
        (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['jmespath'] = None\n")
    program = [sys.executable, "-m", "ansible", "playbook"]
    hosts = {"gone": {"ansible_host": "192.0.2.1"}}
    code, output = play("discover", given, hosts=hosts, program=program, PYTHONPATH=str(tmp_path))
    assert (code != 0, said in output, "UNREACHABLE" in output) == (True, True, False), output


# --- import_policy ----------------------------------------------------------------------------------------------------


def operators(tmp_path, file, kind, name="n", **spec):
    """Writes an object of the operator."""
    content = {"apiVersion": "mellanox.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    (tmp_path / file).write_text(yaml.safe_dump(content))


def test_a_policy_becomes_a_file_of_variables_and_is_explained(play, tmp_path):
    wanted = tmp_path / "group_vars/gpu_nodes/policy.yml"
    code, output = play("import_policy", GUIDE, words=("--check", "--diff"))
    assert (code, wanted.exists(), "+driver_flavor: verify" in output) == (0, False, True), output
    code, output = play("import_policy", GUIDE)
    assert code == 0, output
    assert "wrong     spec.secondaryNetwork.nvIpam.image" in output
    assert "not verified: no node was read" in output
    assert yaml.safe_load(wanted.read_text())["networks_components"] == ["ipoib-cni", "nv-ipam"]
    assert "changed=0" in play("import_policy", GUIDE)[1]


def test_an_import_leaves_the_groups_own_file_in_effect_and_stands_beside_the_inventory(play, tmp_path):
    """A folder group_vars/gpu_nodes hides the file group_vars/gpu_nodes.yml with all its content."""
    own, inventory = tmp_path / "site/group_vars/gpu_nodes.yml", "site/hosts.yml"
    own.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / inventory).write_text("gpu_nodes:\n  hosts: {a: }\n")
    own.write_text("---\n# mine\ndiscovery_expected_hcas: 8\n")
    words = ["-i", inventory, "gpufabric.rdma.import_policy", "-e", GUIDE]
    for changed in (1, 0):
        code, output = running.play(tmp_path, *words)
        assert (code, str(own) in output, f"changed={changed}" in output) == (0, True, True), output
    assert own.parent.stat().st_mode & 0o777 == 0o700
    assert {"discovery_expected_hcas", "networks_components"} <= set(yaml.safe_load(own.read_text()))
    assert not (own.parent / "gpu_nodes").exists()
    kept = "networks_components: []\n"
    for content, more, said in (
        (own.read_text(), ["-e", "policy_dest=site/group_vars/gpu_nodes/policy.yml"], "policy_dest"),
        (kept, [], "variable networks_components"),
        (f"{{{kept}}}", [], "mkdir gpu_nodes && mv gpu_nodes.yml gpu_nodes/"),
    ):
        own.write_text(content)
        code, output = running.play(tmp_path, *words, *more)
        assert (code != 0, said in output, own.read_text()) == (True, True, content), output


def test_all_problems_of_all_files_and_what_the_role_would_refuse_come_and_nothing_is_written(play, tmp_path):
    (tmp_path / "a.yaml").write_text("kind: IPPool\nkind: IPPool\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\n")
    operators(tmp_path, "c.yaml", "MacvlanNetwork", mode="bridge")
    operators(tmp_path, "e.yaml", "MacvlanNetwork", master="eth2", mode="sideways")
    for files, said in (
        ("a.yaml,b.yaml,c.yaml,d.yaml", ("duplicate key", "a Kubernetes object", "n spec.master", "No such file")),
        ("e.yaml", ("sideways",)),
    ):
        code, output = play("import_policy", f"policy_files={files}")
        assert code != 0
        assert [words for words in said if words not in output] == [], output
    assert not (tmp_path / "group_vars").exists()


def test_a_policy_of_some_nodes_becomes_a_file_of_a_group_and_no_template(play, tmp_path):
    config = '{"configList": [{"resourceName": "a", "selectors": {"ifNames": ["{{ 7 * 6 }}"]}}]}'
    plugin = {"image": "p", "config": config}
    spec = {"nodeSelector": {"pool": "trainers"}, "rdmaSharedDevicePlugin": plugin}
    operators(tmp_path, "in.yml", "NicNodePolicy", "trainers", **spec)
    code, output = play("import_policy", f"policy_files={tmp_path}/in.yml")
    assert code == 0, output
    assert "!unsafe '{{ 7 * 6 }}'" in (tmp_path / "group_vars/trainers/policy.yml").read_text()
    assert yaml.safe_load((tmp_path / "group_vars/gpu_nodes/policy.yml").read_text()) == {}


# --- report -----------------------------------------------------------------------------------------------------------


def test_results_of_a_failed_verification_become_a_page(play, node, tmp_path):
    code, output = play("verify", "verification_results=results.json", hosts={"node1": node("node1", "gh200-cx7-roce")})
    assert code != 0, output
    results = json.loads((tmp_path / "results.json").read_text())
    VALIDATOR.validate(results)
    (read,) = results["nodes"]
    assert (read["host"], read["facts"]["hcas"][0]["name"]) == ("node1", "mlx5_0")
    assert "failed" in {item["status"] for item in read["checks"]}
    given = ("report_results=results.json", "report_directory=out")
    code, output = play("report", *given, words=("--check",))
    assert (code, (tmp_path / "out").exists()) == (0, False), output
    code, output = play("report", *given)
    assert (code, f"{tmp_path}/out/report.html" in output) == (0, True), output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "report.xml"}
    assert "changed=0" in play("report", *given)[1]


def test_files_that_are_no_such_documents_are_refused_together_and_nothing_is_written(play, tmp_path):
    incomplete = report_documents.rails()
    incomplete["nodes"][0]["checks"][0]["status"] = "fine"
    newer = {**report_documents.rails(), "schema": "gpufabric.rdma/results/2"}
    (tmp_path / "drift.json").write_text("{")
    for results, kinds, objects in (
        (newer, ("results", "drift", "matrix"), ("results: schema", "drift: the file", "matrix: the file")),
        (incomplete, ("results",), ("results: content",)),
    ):
        (tmp_path / "results.json").write_text(json.dumps(results))
        code, output = play("report", *(f"report_{kind}={kind}.json" for kind in kinds))
        assert code != 0
        wanted = [name.replace(":", ".json:") + ": wanted" for name in objects]
        assert [text for text in wanted if text not in output] == [], output
    assert not (tmp_path / "report").exists()


# --- YAML of values that the controller has tagged, like all that it templates ----------------------------------------


def test_the_nccl_tests_job_of_two_nodes_is_written(play, node, tmp_path):
    variables = {
        "nccl_tests_image": f"registry.example.com/nccl-tests@sha256:{'a' * 64}",
        "nccl_tests_file": str(tmp_path / "job.yml"),
        "nccl_tests_gpus_per_node": "{{ 4 + 4 }}",
        "nccl_tests_networks": ["rail0", "of-mine/rail1"],
        "nccl_tests_namespace": "{{ 'of-' ~ 'mine' }}",
    }
    hosts = {name: node(name, "h100-8x-cx7-ib", **variables) for name in ("node1", "node2")}
    code, output = play("nccl_tests", '{"nccl_tests_image": null}', hosts=hosts)
    assert (code != 0, "variable nccl_tests_image" in output) == (True, True), "asked for nothing, it does not succeed"
    code, output = play("nccl_tests", hosts=hosts)
    assert code == 0, output
    namespace, scripts, _service, job = yaml.safe_load_all((tmp_path / "job.yml").read_text())
    assert (namespace["metadata"]["name"], job["metadata"]["namespace"]) == ("of-mine", "of-mine")
    assert scripts["data"]["all_reduce.py"] == (ROOT / "roles/nccl_tests/files/all_reduce.py").read_text()
    worker = job["spec"]["template"]
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert '"namespace": "of-mine"' in worker["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
