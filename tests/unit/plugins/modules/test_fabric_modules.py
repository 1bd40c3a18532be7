"""host_probe, fabric_server and fabric_client as Ansible runs them."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufabric.rdma.plugins.modules import fabric_client, fabric_server, host_probe

TEST = {
    "id": "rail0-a-b-rping",
    "tool": "rping",
    "address": "10.77.1.2",
    "tcp_port": 18600,
    "client": {"hca": "rxe0", "port": 1, "ip": "10.77.1.1", "gid": 1},
    "server": {"hca": "mlx5_0", "port": 2, "ip": "10.77.1.2", "gid": 3},
}


@pytest.fixture
def run(capsys):
    def call(module, **options):
        with patch_module_args(options), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_a_tree_of_files_has_facts_and_is_not_probed(run, tmp_path):
    (tmp_path / ".seams.json").write_text('{"addresses": {}}')
    found = run(host_probe, root=str(tmp_path), services=["k3s"], rails=[{"hca": "mlx5_7"}])
    assert found["ansible_facts"]["rdma"]["hcas"] == []
    assert found["probe"] == {"char_devices": None, "memlock": {}, "plugins": {}, "tools": [], "loaded": []}
    assert found["changed"] is False


@pytest.mark.parametrize(
    ("module", "options", "returned"),
    [
        (fabric_server, {"tests": [TEST]}, {"servers": {}}),
        (fabric_server, {"state": "absent"}, {"said": {}}),
        (fabric_client, {"tests": [TEST]}, {"results": []}),
    ],
)
def test_check_mode_starts_and_ends_nothing(run, monkeypatch, module, options, returned):
    for name in ("serve", "connect", "stop"):
        monkeypatch.setattr(module.fabric, name, lambda *_given: pytest.fail("an effect in check mode"))
    found = run(module, _ansible_check_mode=True, **options)
    assert {**returned, "changed": False}.items() <= found.items()


def test_a_server_outlives_all_clients_that_run_one_after_the_other(run, monkeypatch):
    monkeypatch.setattr(fabric_server.fabric, "serve", lambda tests, seconds, limit: {"limit": limit})
    assert run(fabric_server, tests=[TEST, TEST], limit=30)["servers"] == {"limit": 90}


def test_a_server_that_cannot_be_ended_says_what_to_do(run, monkeypatch):
    def refuse():
        raise ValueError("half a record")

    monkeypatch.setattr(fabric_server.fabric, "stop", refuse)
    found = run(fabric_server, state="absent")
    assert found["failed"]
    assert "wanted absent, seen half a record. Next step: " in found["msg"]


@pytest.mark.parametrize(
    ("module", "options"), [(fabric_client, {"tests": []}), (fabric_server, {"tests": []}), (host_probe, {})]
)
def test_modules_that_came_meanwhile_are_told(run, monkeypatch, tmp_path, module, options):
    told = iter([{"ib_core"}, {"ib_core", "rdma_ucm", "rdma_cm"}])
    monkeypatch.setattr(module, "rdma_modules", lambda: next(told))
    monkeypatch.setattr(fabric_server.fabric, "serve", lambda *_given: {})
    (tmp_path / ".seams.json").write_text('{"addresses": {}}')
    found = run(module, **options, **({"root": str(tmp_path)} if module is host_probe else {}))
    assert found.get("probe", found)["loaded"] == ["rdma_cm", "rdma_ucm"]
