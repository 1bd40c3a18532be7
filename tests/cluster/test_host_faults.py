"""What goes wrong on a node of a running cluster below Kubernetes: a cable, a foreign file, a rail that is slow."""

from __future__ import annotations

import json

import pytest

FOREIGN_FILE = "/etc/modprobe.d/sriov-operator.conf"
OURS = "/etc/modprobe.d/zz-gpufabric-rdma.conf"


def test_verify_names_the_port_of_a_cable_that_is_pulled(breakable):
    breakable.node(breakable.worker, "ip link set eth3 down")
    verified = breakable.run("verify.yml", "--check")
    failed = {check["id"].partition(":")[0] for check in verified.checks(breakable.worker, "failed")}
    assert verified.code != 0
    assert "port" in failed, failed


def test_a_foreign_file_with_another_mode_stops_the_run_until_it_may_be_overridden(breakable):
    worker = breakable.worker
    breakable.node(worker, f"rm {OURS}; echo options ib_core netns_mode=0 > {FOREIGN_FILE}")

    stopped = breakable.run("host.yml", "--limit", worker)
    assert stopped.code != 0
    assert FOREIGN_FILE in stopped.text
    assert breakable.node(worker, f"test -e {OURS} || echo absent") == "absent"

    overridden = breakable.run("host.yml", "--limit", worker, "-e", '{"rdma_netns_override_allowed": true}')
    assert overridden.code == 0, overridden.text[-6000:]
    loaded = breakable.node(worker, "modprobe --showconfig | grep '^options ib_core' | tail -n 1")
    assert loaded == "options ib_core netns_mode=1"
    assert breakable.node(worker, f"cat {FOREIGN_FILE}") == "options ib_core netns_mode=0"


def test_the_matrix_names_a_throttled_rail_and_no_other(breakable, tmp_path):
    if len(breakable.nodes) < 2:
        pytest.skip("not verified: the matrix needs two nodes")
    path = tmp_path / "matrix.json"

    def outliers():
        words = {"matrix_seconds": 8, "matrix_round_seconds": 90, "matrix_pods": False, "matrix_json": str(path)}
        run = breakable.run("matrix.yml", "-e", json.dumps(words))
        tests = json.loads(path.read_text())["tests"]
        return run, tests, {test["rail"] for test in tests if test["verdict"] == "outlier"}

    run, before, named = outliers()
    assert (run.code, named) == (0, set()), run.text[-6000:]
    usual = min(test["gbit_per_s"] for test in before if test["gbit_per_s"] is not None)
    # A tenth of the slowest healthy test; enough for the handshake and for acknowledgements.
    rate = max(64, int(usual * 1e6 / 10))
    for node in breakable.nodes:
        breakable.node(node, f"tc qdisc replace dev eth3 root tbf rate {rate}kbit burst 16kb latency 400ms")
    run, _tests, named = outliers()
    assert run.code != 0
    assert named == {1}, run.text[-6000:]
