"""Which sockets of device plugins a node has to answer on, and that all of them are asked at once."""

from __future__ import annotations

import json
import socket
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import ask, node
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.plan import CONFIG, ENABLED, SERVICE, UNIT

NAMES = [f"rail{number}" for number in range(8)]


@pytest.fixture
def root(tmp_path):
    for path in (CONFIG, ENABLED):
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / CONFIG[1:]).write_text(json.dumps({"configList": [{"resourceName": name} for name in NAMES]}))
    return tmp_path


def test_our_service_serves_what_its_config_names_once_it_is_enabled(root):
    assert node.served(str(root)) == {}
    (root / ENABLED[1:]).symlink_to("../rdma-device-plugin.service")
    assert node.served(str(root)) == dict.fromkeys(NAMES, SERVICE)


def test_eight_silent_sockets_take_no_longer_than_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path holds 107 characters
    monkeypatch.setattr(ask.ask, "__defaults__", (1.0,))
    listeners = []
    for name in NAMES:
        listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listeners[-1].bind(f"{name}.sock")
        listeners[-1].listen()
    begun = time.monotonic()
    found = ask.ask_all({**dict.fromkeys(NAMES, SERVICE), "gone": SERVICE, "../up": SERVICE}, ["."])
    assert time.monotonic() - begun < 6
    for listener in listeners:
        listener.close()
    told = {f"./{name}.sock": "no answer within 1 s: the process is stopped or stuck" for name in NAMES}
    assert [found[name]["sockets"] for name in NAMES] == [{path: why} for path, why in told.items()]
    assert found["gone"] == {"sockets": {}, "by": SERVICE}
    assert "../up" not in found


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("", ["a", "b"]), (" -mode device-plugin", ["a", "b"]), (" -mode both", ["a"]), (" -mode dra", [])],
)
def test_what_is_served_over_dra_has_no_socket_to_ask(root, mode, wanted):
    (root / ENABLED[1:]).symlink_to("../rdma-device-plugin.service")
    (root / UNIT[1:]).write_text(f"[Service]\nExecStart=/venv/bin/python3 plugin.pyz -use-cdi{mode} -node-name n\n")
    entries = [{"resourceName": "a"}, {"resourcename": "b", "API": "dra"}]
    if mode in ("", " -mode device-plugin"):
        entries[1].pop("API")
    (root / CONFIG[1:]).write_text(json.dumps({"configList": entries}))
    assert list(node.served(str(root))) == wanted
