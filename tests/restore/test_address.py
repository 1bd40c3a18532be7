"""The address that servers share: real keepalived on three nodes, each a root and a network namespace on this machine.

The module k3s_address and keepalived are real; the API server is a double over real TLS, systemctl one as well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address
from ansible_collections.gpufabric.rdma.tests.restore import machines

WHY_NOT = machines.unusable() or ("" if shutil.which("keepalived") else "keepalived is not installed")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "usable")

SHARED = "198.18.3.5"
TLS = "var/lib/rancher/k3s/server/tls"
DOUBLE = machines.HERE / "api_server.py"


def certificates(folder):
    """A CA, and with it a certificate for servers and one for clients."""

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    subject = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj")
    openssl("req", "-x509", *subject, "/CN=k3s-server-ca", "-keyout", "server-ca.key", "-out", "server-ca.crt")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("serving", "client-admin"):
        openssl("req", *subject, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        words = (
            "-CA",
            "server-ca.crt",
            "-CAkey",
            "server-ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
        )
        openssl("x509", "-req", "-in", f"{name}.csr", *words, "-out", f"{name}.crt")


class Servers:
    def __init__(self, folder):
        self.folder, self.machines, self.apis = folder, {}, {}
        (folder / "tls").mkdir()
        certificates(folder / "tls")
        self.network = machines.Network()
        for number in (1, 2, 3):
            name = f"server{number}"
            machine = machines.Machine(folder, name, f"198.18.3.1{number}", self.network)
            self.machines[name] = machine
            shutil.copytree(folder / "tls", machine.root / TLS)
        self.network.enter_as("198.18.3.1")

    def serve(self, name):
        argv = [*self.machines[name].enter, sys.executable, "-IS", str(DOUBLE), "6443"]
        self.apis[name] = subprocess.Popen(argv, start_new_session=True)

    def silence(self, name):
        gone = self.apis.pop(name)
        os.killpg(gone.pid, signal.SIGKILL)
        gone.wait()

    def share(self, *words, **options):
        """The module on all servers; the results by host."""
        arguments = {
            "address": SHARED,
            "interface": "eth0",
            "node_ip": "{{ own }}",
            "peers": "{{ peers }}",
            "name": "{{ inventory_hostname }}",
            **options,
        }
        tasks = [
            {"gpufabric.rdma.k3s_address": {k: v for k, v in arguments.items() if v is not None}, "register": "got"}
        ]
        tasks.append(
            {
                "ansible.builtin.copy": {"content": "{{ got | to_json }}", "dest": "/got", "mode": "0600"},
                "check_mode": False,
            }
        )
        hosts = {
            name: {
                "ansible_connection": "inside",
                "inside_folder": str(machine.root),
                "inside_enter": machine.enter,
                "ansible_python_interpreter": sys.executable,
                "own": machine.address,
                "peers": [other.address for other in self.machines.values() if other is not machine],
            }
            for name, machine in self.machines.items()
        }
        (self.folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        code, output = machines.playbook(self.folder, "play.yml", *words)
        assert code == 0, output
        return {name: json.loads(machine.text("/got")) for name, machine in self.machines.items()}

    def holders(self):
        asked = {
            name: machine.run("ip", "-oneline", "-4", "address", "show") for name, machine in self.machines.items()
        }
        return [name for name, said in asked.items() if f"inet {SHARED}/" in said]

    def answers(self):
        """Whether a client in the servers' network reaches a server at the address now."""
        return (
            self.network.run("timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{SHARED}/6443", check=False).returncode
            == 0
        )

    def away_for(self, fail):
        """Seconds from the failure until a client is answered again, asked ten times a second."""
        assert self.answers()
        fail()
        began = time.monotonic()
        missed, last = 0, began
        while time.monotonic() - began < 60:
            if self.answers():
                if missed and time.monotonic() - last > 1:
                    return round(last - began, 1)
            else:
                missed, last = missed + 1, time.monotonic()
            time.sleep(0.1)
        raise AssertionError(f"{missed} calls in vain; holders: {self.holders()}")

    def settle(self, wanted):
        machines.Cluster.wait(lambda: self.holders() == wanted, lambda: f"{self.holders()}")

    def end(self):
        for name in list(self.apis):
            self.silence(name)
        for machine in self.machines.values():
            machine.run("systemctl", "stop", address.SERVICE, check=False)
            machine.end()
        self.network.end()


@pytest.fixture
def servers(tmp_path):
    found = Servers(tmp_path)
    yield found
    found.end()


def test_the_address_is_where_an_api_server_is_ready_and_moves_when_it_fails(servers, record_property):
    planned = servers.share("--check")
    assert all(result["changed"] for result in planned.values())
    assert not servers.machines["server1"].has(address.CONFIG), "check mode writes nothing"
    made = servers.share()
    assert {name: [c["object"] for c in result["changes"]] for name, result in made.items()} == {
        name: [c["object"] for c in result["changes"]] for name, result in planned.items()
    }
    time.sleep(6)
    assert servers.holders() == [], "no API server is ready, so no server has it"
    servers.serve("server2")
    servers.settle(["server2"])
    again = servers.share(wait_seconds=20)
    assert not any(result["changed"] for result in again.values())
    assert {name: result["held"] for name, result in again.items()} == {
        "server1": False, "server2": True, "server3": False,
    }  # fmt: skip
    for name in ("server1", "server3"):
        servers.serve(name)
    time.sleep(12)
    assert servers.holders() == ["server2"], "it stays where it is while that server is well"

    killed = servers.away_for(lambda: servers.silence("server2"))
    assert len(servers.holders()) == 1
    (holder,) = servers.holders()
    # As a machine that loses its power: nothing of it says goodbye.
    lost = servers.away_for(lambda: servers.network.unplug(holder))
    left = [name for name in servers.holders() if name != holder]
    assert len(left) == 1
    record_property("API server killed, seconds", killed)
    record_property("machine lost, seconds", lost)
    sys.stderr.write(f"\naway for {killed} s (API server killed), {lost} s (machine lost)\n")
    assert killed < 15
    assert lost < 10

    servers.network.plug(holder)
    servers.settle(left)
    gone = servers.share(address=None)
    assert all(result["changed"] for result in gone.values())
    assert servers.holders() == []
    for machine in servers.machines.values():
        assert not any(machine.has(path) for path in (address.CONFIG, address.CHECK, address.UNIT))
    assert not any(result["changed"] for result in servers.share(address=None).values())
