"""The unit that keeps Multus' configuration in step with its daemon: real files and Unix sockets, the test's clock."""

from __future__ import annotations

import json
import pathlib
import socket

import pytest
from ansible_collections.gpufabric.rdma.roles.multus.files import multus_guard

VALID = json.dumps({"name": "multus-cni-network", "type": "multus-shim", "clusterNetwork": "/host/etc/cni/x"})


class Node:
    """A folder with the three files, and a daemon that can be started and killed."""

    def __init__(self, folder: pathlib.Path):
        self.conf, self.primary, self.path = folder / "00-multus.conf", folder / "10-flannel.conflist", folder / "sock"
        self.primary.write_text('{"name": "cbr0"}')
        self.said: list[str] = []
        self.guard = multus_guard.Guard(str(self.conf), str(self.path), str(self.primary), self.said.append)
        self._daemon = None
        self.now = 100.0

    def start(self):
        self.path.unlink(missing_ok=True)
        self._daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._daemon.bind(str(self.path))
        self._daemon.listen(64)

    def kill(self):
        """The socket's file stays, as after SIGKILL."""
        if self._daemon:
            self._daemon.close()
            self._daemon = None

    def after(self, seconds: float):
        self.now += seconds
        return self.guard.step(self.now)


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.kill()


def test_a_running_daemon_with_its_configuration_is_left_alone(node):
    node.start()
    node.conf.write_text(VALID)
    before = node.primary.stat().st_ino
    assert [node.after(2) for turn in range(10)] == [None] * 10
    assert (node.conf.read_text(), node.primary.stat().st_ino, node.said) == (VALID, before, [])


@pytest.mark.parametrize("content", [VALID, ""], ids=["M11 daemon killed", "empty too"])
@pytest.mark.parametrize("started", [True, False])
def test_the_configuration_of_a_dead_daemon_goes_after_a_moment(node, content, started):
    if started:
        node.start()
    node.conf.write_text(content)
    node.after(0)
    node.kill()
    assert [node.after(2), node.after(2)] == [None, None]
    assert node.conf.exists(), "a daemon that restarts is left in peace"
    assert [node.after(2), node.after(60)] == ([None, "removed"] if started else ["removed", None])
    assert not node.conf.exists()
    assert len(node.said) == 1


def test_a_daemon_that_restarts_in_time_keeps_its_file(node):
    node.conf.write_text(VALID)
    node.after(4)
    node.start()
    node.after(4)
    node.kill()
    assert node.after(4) is None
    assert node.conf.exists()


@pytest.mark.parametrize(
    "content", ["", '{"name": "multus-cni-net', "{}", None], ids=["M5 empty", "half", "no type", "gone"]
)
def test_a_daemon_is_made_to_write_its_file_again(node, content):
    """Multus watches the pod network's file for IN_CREATE; a rename onto it is one."""
    node.start()
    if content is not None:
        node.conf.write_text(content)
    before, text = node.primary.stat().st_ino, node.primary.read_text()
    assert node.after(0) is None
    assert node.after(4) == "renewed"
    assert node.primary.stat().st_ino != before
    assert node.primary.read_text() == text
    assert [path.name for path in node.primary.parent.iterdir() if path.name.startswith(".")] == []
    assert node.after(2) is None, "it is not told again at once"
    assert node.after(9) == "renewed"
    node.conf.write_text(VALID)
    assert node.after(20) is None
    assert len(node.said) == 2


def test_a_pod_network_without_a_file_of_its_own_is_reported(node):
    node.start()
    node.primary.write_text("{")
    node.after(0)
    assert node.after(4) == "stuck"
    assert "run ansible-playbook -i INVENTORY gpufabric.rdma.site" in node.said[0]
