"""Ports of this machine, asked over real sockets: who listens, who does not, and a listener that ends."""

from __future__ import annotations

import os
import socket
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import reach


def free(kind):
    with socket.socket(socket.AF_INET, kind) as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def port(protocol):
    return {"protocol": protocol, "address": "127.0.0.1", "port": free(reach._STREAM[protocol])}


def states(*questions):
    return [one["state"] for one in reach.ask(list(questions), 1.5)]


@pytest.fixture
def listening():
    """A function: listens for so long; what is left at the end is stopped."""
    made = []

    def listen(ports, seconds=30):
        made.append(reach.listen(ports, seconds))
        return made[-1]

    yield listen
    for one in made:
        if one["listener"]:
            reach.stop(one["listener"])


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_port_answers_while_somebody_listens(listening, protocol):
    one = port(protocol)
    assert states(one) == ["refused"]
    found = listening([one])
    assert found["deaf"] == {}
    assert states(one, {**one, "id": "kept"}) == ["answered"] * 2
    assert reach.ask([{**one, "id": "kept"}], 1)[0]["id"] == "kept"
    reach.stop(found["listener"])
    assert wait_for(lambda: states(one) == ["refused"])


def wait_for(done):
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if done():
            return True
    return False


def test_a_listener_ends_at_its_deadline(listening):
    pid = listening([port("tcp")], 0.3)["listener"]["pid"]
    assert wait_for(lambda: not os.path.exists(f"/proc/{pid}") or reach._born(pid) is None)


def test_no_other_process_is_ended():
    reach.stop({"pid": os.getpid(), "born": "1"})


def test_a_port_in_use_answers_by_itself_and_an_address_of_another_node_is_named(listening):
    with socket.create_server(("127.0.0.1", 0)) as used:
        taken = {"protocol": "tcp", "address": "127.0.0.1", "port": used.getsockname()[1]}
        found = listening([taken, {**taken, "address": "192.0.2.1", "port": 1}])
        assert found["listener"] is None
        assert list(found["deaf"]) == ["1/tcp"]
        assert states(taken) == ["answered"]


def test_a_port_that_says_nothing_is_silent_and_what_it_says_must_be_what_was_sent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        one = {"protocol": "udp", "address": "127.0.0.1", "port": mute.getsockname()[1]}
        (answer,) = reach.ask([one], 0.3)
        assert (answer["state"], bool(answer["why"])) == ("silent", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="not verified: a raw socket takes root")
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"])
def test_an_address_echoes(address):
    one = {"protocol": "ping", "address": address, "port": 8472}
    assert states(one, one) == ["answered"] * 2


def test_an_address_without_a_route_is_an_answer_too(monkeypatch):
    assert states({"protocol": "tcp", "address": "255.255.255.255", "port": 1}) == ["silent"]
