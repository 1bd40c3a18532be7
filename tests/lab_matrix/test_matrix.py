"""The bandwidth matrix on the lab's two nodes: untouched it names nothing, with one rail throttled exactly that one."""

import json

# Enough for soft-RoCE in an emulated node to be far above what is left after tc.
SECONDS = ("-e", "matrix_seconds=8", "-e", "matrix_round_seconds=90", "-e", "matrix_pods=false")
# The rail that is throttled, and its NIC on both nodes.
RAIL, NETDEV = 1, "eth3"


def measured(lab, tmp_path):
    path = tmp_path / "matrix.json"
    path.unlink(missing_ok=True)
    run = lab.play("matrix.yml", *SECONDS, "-e", f"matrix_json={path}")
    assert path.exists(), run.text
    return run, json.loads(path.read_text())["tests"]


def outliers(tests):
    return {(test["rail"], test["from"], test["to"]): test for test in tests if test["verdict"] == "outlier"}


def test_an_untouched_matrix_names_none_and_changes_nothing(lab, tmp_path):
    run, tests = measured(lab, tmp_path)

    pairs = {(test["rail"], test["from"], test["to"]) for test in tests if test["gbit_per_s"] is not None}
    assert pairs == {(rail, *way) for rail in (0, 1) for way in (("node1", "node2"), ("node2", "node1"))}
    assert outliers(tests) == {}, run.text
    assert run.code == 0, run.text
    assert all("counters_not_read" in test and test["counters_not_read"] == [] for test in tests if test["to"])
    assert run.changes("node1") == set()
    assert lab.node("node1", "ls /run/gpufabric-rdma-matrix 2>/dev/null; pgrep -c ib_write_bw; true") == "0"


def test_a_throttled_rail_is_named_and_no_other(lab, tmp_path):
    _run, before = measured(lab, tmp_path)
    usual = min(test["gbit_per_s"] for test in before if test["gbit_per_s"] is not None)
    # A tenth of the slowest healthy test, in both directions; enough for the handshake and for acknowledgements.
    rate = max(64, int(usual * 1e6 / 10))
    for node in ("node1", "node2"):
        lab.node(node, f"tc qdisc replace dev {NETDEV} root tbf rate {rate}kbit burst 16kb latency 400ms")

    run, tests = measured(lab, tmp_path)

    named = outliers(tests)
    assert set(named) == {(RAIL, "node1", "node2"), (RAIL, "node2", "node1")}, run.text
    assert run.code != 0
    for test in named.values():
        assert test["reason"], test
    assert all(test["verdict"] == "ok" for test in tests if test["rail"] == 0)
