"""playbooks/matrix.yml on laid-out nodes whose ib_write_bw is a double: rounds, outliers, consent, check mode."""

import copy
import json

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import bandwidth_double, running, tree

LAB = tree.load("lab-rxe-debian12")


def lay_out(folder, number):
    """A lab node with this number, and the double as its perftest."""
    fixture = copy.deepcopy(LAB)
    addresses = fixture["seams"]["addresses"]
    for netdev in ("eth2", "eth3"):
        addresses[netdev] = [f"198.18.{netdev[-1]}.{number}/24"]
    for index in range(2, 8):
        addresses[f"dm{index}"] = [f"198.19.{number * 10 + index}.1/24"]
    tree.lay_out(fixture, folder)
    bandwidth_double.install(folder)
    return folder


@pytest.fixture
def matrix(tmp_path):
    """matrix(planted, *arguments, **variables): (exit code, output, the JSON document or None), of two nodes."""

    def run(planted, *arguments, prepare=lambda folder, number: None, **variables):
        hosts = {}
        for number in (1, 2):
            root = lay_out(tmp_path / f"node{number}", number)
            prepare(root, number)
            # One machine plays all nodes, so each needs separate ports.
            hosts[f"node{number}"] = {"discovery_root": str(root), "matrix_port": 18800 + 50 * number}
        own = {"discovery_software_hcas": True, "limits_services": ["containerd"]}
        own |= {"matrix_seconds": 1, "matrix_round_seconds": 8}
        own |= {f"matrix_{kind}": str(tmp_path / f"matrix.{kind}") for kind in ("json", "text")}
        groups = {"gpu_nodes": {"hosts": hosts, "vars": running.local(**own, **variables)}}
        double = tmp_path / "planted.json"
        double.write_text(json.dumps({"log": str(tmp_path / "log"), **planted}))
        words = ("gpufabric.rdma.matrix", *arguments)
        code, output = running.play(tmp_path, *words, inventory=groups, BANDWIDTH_DOUBLE=str(double))
        path = tmp_path / "matrix.json"
        return code, output, json.loads(path.read_text()) if path.exists() else None

    return run


def outliers(document):
    return {(row["rail"], row["from"], row["to"]) for row in document["tests"] if row["verdict"] == "outlier"}


def sent(document):
    return [row for row in document["tests"] if row["gbit_per_s"] is not None]


def test_an_untouched_matrix_names_none_and_says_beforehand_what_it_does(matrix, tmp_path):
    code, output, document = matrix({"gbit": 10})
    assert code == 0, output
    _before, _mark, rest = output.partition("Bandwidth matrix of 2 nodes: 4 tests in 4 rounds, up to 1 at once")
    assert rest, output
    assert "Load: in its rounds an HCA sends or receives at full rate for 1 s" in rest
    assert {(row["rail"], row["from"], row["to"]) for row in sent(document)} == {
        (rail, *pair) for rail in (0, 1) for pair in (("node1", "node2"), ("node2", "node1"))
    }
    assert all(9.9 < row["gbit_per_s"] < 10.1 and row["verdict"] == "ok" for row in sent(document))
    assert outliers(document) == set()
    alone = [row for row in document["tests"] if row["to"] == ""]
    assert len(alone) == 12
    assert all("no peer in 198.19." in row["reason"] for row in alone)
    assert (tmp_path / "matrix.text").read_text().strip() in output
    assert not (tmp_path / "node1/run/gpufabric-rdma-tests").exists()


def test_exactly_the_throttled_rail_is_named_in_whatever_class(matrix):
    planted = {"gbit": 10, "rails": {"node1/rxe1": 0.2}, "class": "--tclass=106"}
    code, output, document = matrix(planted, fabric_plan="doroce")
    assert code != 0
    assert outliers(document) == {(1, "node1", "node2")}
    assert "1 of the tests are outliers" in output
    slow = next(row for row in document["tests"] if row["verdict"] == "outlier")
    assert slow["expected_from"] == "the median of its peers"
    assert slow["reason"].startswith("0.2 of 10 Gb/s, 50 % wanted")
    assert all(row["class_not_verified"] for row in sent(document)), "soft-RoCE has no priorities"
    assert "Traffic class 106" in output


def in_use(root, number):
    """A pod's process on node2 that has the verbs device of rxe1 open."""
    if number == 2:
        folder = root / "proc/4711/fd"
        folder.mkdir(parents=True)
        (folder / "7").symlink_to("/dev/infiniband/uverbs1")
        (root / "proc/4711/comm").write_text("python3\n")


@pytest.mark.parametrize("allowed", [None, False])
def test_load_on_an_hca_in_use_needs_an_answer(matrix, tmp_path, allowed):
    code, output, document = matrix({"gbit": 10}, prepare=in_use, matrix_load_allowed=allowed)
    if allowed is None:
        words = ("node2  HCA rxe1", "in use by python3 (process 4711)", "matrix_load_allowed: true")
        assert [text for text in words if text not in output] == []
        assert (code != 0, document) == (True, None)
        assert not (tmp_path / "log").exists(), "nothing was sent"
        return
    assert code == 0, output
    assert {row["rail"] for row in sent(document)} == {0}


def test_check_mode_plans_and_sends_nothing(matrix, tmp_path):
    code, output, document = matrix({"gbit": 10}, "--check", prepare=in_use)
    assert code == 0, output
    assert "4 tests in 4 rounds" in output
    assert "check mode sends no traffic" in " ".join(output.split())
    assert not (tmp_path / "log").exists()
    assert document is None
