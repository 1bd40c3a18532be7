"""Verbs traffic from node1 to node2 over real soft-RoCE, without the collection's own modules."""

import pytest
import testinfra

PORT = 18550


@pytest.fixture(scope="module")
def nodes(request):
    config = request.config.getoption("ssh_config")
    return [testinfra.get_host(f"ssh://node{number}", ssh_config=config) for number in (1, 2)]


def talk(nodes, unit, server, client):
    """Runs the server as a transient unit of node2, the client on node1; returns what the client did."""
    one, two = nodes
    two.check_output(f"systemd-run --quiet --collect --unit={unit} --property=RuntimeMaxSec=60 {server}")
    try:
        return one.run(f"for attempt in 1 2 3 4 5; do {client} && exit 0; sleep 1; done; exit 1")
    finally:
        two.run(f"systemctl stop {unit}.service")


@pytest.mark.parametrize("rail", [0, 1])
def test_rping_from_node_to_node(nodes, rail):
    address = f"10.77.{rail + 1}.2"
    done = talk(
        nodes,
        f"lab-rping{rail}",
        f"rping -s -P -a {address} -p {PORT + rail}",
        f"rping -c -v -C 3 -a {address} -p {PORT + rail}",
    )
    assert done.rc == 0, done.stderr
    assert done.stdout.count("ping data:") == 3


@pytest.mark.parametrize("rail", [0, 1])
def test_ib_write_bw_from_node_to_node(nodes, rail):
    tool = f"ib_write_bw -d rxe{rail} -x 1 -s 65536 -n 100 -p {PORT + 10 + rail}"
    done = talk(nodes, f"lab-write{rail}", tool, f"{tool} 10.77.{rail + 1}.2")
    assert done.rc == 0, done.stdout + done.stderr
    result = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["65536"]]
    assert len(result) == 1
    assert float(result[0][3]) > 0
