"""The address that servers share: real keepalived on three nodes, each a root and a network namespace on this machine.

The role's tasks and keepalived are real; API server (over real TLS) and systemctl are doubles.
"""

import json
import struct
import sys
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address
from ansible_collections.gpufabric.rdma.tests.three_servers import machines, namespaces

pytestmark = pytest.mark.skipif(bool(namespaces.unusable()), reason=namespaces.unusable() or "usable")

SHARED = "198.18.3.5"
# An advertisement of VRRP version 2 with the highest priority: a server that believes it gives up the address.
ADVERTISE = """
import socket, sys, time
packet, addresses = bytes.fromhex(sys.argv[1]), sys.argv[2:]
sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, 112)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
for _ in range(24):
    for address in addresses:
        sender.sendto(packet, (address, 0))
    time.sleep(0.5)
"""


class Servers:
    def __init__(self, folder, count=3):
        self.folder, self.machines, self.network = folder, {}, namespaces.Network()
        (folder / "tls").mkdir()
        namespaces.certificates(folder / "tls")
        for number in range(1, count + 1):
            name = f"server{number}"
            self.machines[name] = namespaces.Machine(folder, name, f"198.18.3.1{number}", self.network)
        # A client next to the nodes, which also plays the intruder.
        self.network.ip("address", "add", "198.18.3.1/24", "dev", "br0")

    def share(self, *words, shared=True):
        """The role's tasks on all servers; the results by host."""
        hosts = {
            name: {
                "ansible_connection": "member",
                "member_folder": str(machine.root),
                "member_enter": machine.enter,
                "ansible_python_interpreter": sys.executable,
                "__discovery_read": {"k3s": {}},
                "__discovery_planned": {
                    "hosts": {name: {"k3s": {"name": name, "shared": self._peers(machine, shared)}}}
                },
            }
            for name, machine in self.machines.items()
        }
        role = {"name": "gpufabric.rdma.k3s", "tasks_from": "address", "rolespec_validate": False}
        tasks = [
            {"ansible.builtin.include_role": role},
            {
                "ansible.builtin.copy": {"content": "{{ __k3s_address | to_json }}", "dest": "/got", "mode": "0600"},
                "check_mode": False,
            },
        ]
        play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
        variables = {"k3s_start_timeout_seconds": 20}
        code, output = machines.playbook(self.folder, [play], {"all": {"hosts": hosts, "vars": variables}}, *words)
        assert code == 0, output
        return {name: json.loads((machine.root / "got").read_text()) for name, machine in self.machines.items()}

    def _peers(self, machine, shared):
        others = [other.address for other in self.machines.values() if other is not machine]
        given = {"address": SHARED, "interface": "eth0", "node_ip": machine.address, "peers": others}
        return given if shared else None

    def holders(self):
        asked = {name: each.run("ip", "-oneline", "-4", "address", "show") for name, each in self.machines.items()}
        return [name for name, said in asked.items() if f"inet {SHARED}/" in said]

    def client(self, *words):
        return namespaces.run("ip", "netns", "exec", self.network.name, *words, check=False)

    def answers(self):
        """Whether a client in the servers' network reaches a server at the address now."""
        return self.client("timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{SHARED}/6443").returncode == 0

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
        machines.wait(lambda: self.holders() == wanted)

    def end(self):
        for machine in self.machines.values():
            machine.end()
        self.network.end()


@pytest.fixture
def servers(tmp_path):
    found = Servers(tmp_path)
    yield found
    found.end()


def test_the_address_is_where_an_api_server_is_ready_and_moves_when_it_fails(servers):
    planned = servers.share("--check")
    assert all(result["changed"] for result in planned.values())
    assert not (servers.machines["server1"].root / address.CONFIG[1:]).exists(), "check mode writes nothing"
    servers.machines["server2"].serve()
    made = servers.share()
    assert {name: [c["object"] for c in result["changes"]] for name, result in made.items()} == {
        name: [c["object"] for c in result["changes"]] for name, result in planned.items()
    }
    servers.settle(["server2"])
    assert not any(result["changed"] for result in servers.share().values())
    for name in ("server1", "server3"):
        servers.machines[name].serve()
    time.sleep(12)
    assert servers.holders() == ["server2"], "it stays where it is while that server is well"

    killed = servers.away_for(servers.machines["server2"].silence)
    (holder,) = servers.holders()
    # Like a machine that loses power: it does not say goodbye.
    lost = servers.away_for(lambda: servers.network.ip("link", "set", holder, "down"))
    left = [name for name in servers.holders() if name != holder]
    assert len(left) == 1
    assert killed < 15
    assert lost < 10

    servers.network.ip("link", "set", holder, "up")
    servers.settle(left)
    servers.machines[left[0]].silence()
    servers.settle([])
    gone = servers.share(shared=False)
    assert all(result["changed"] for result in gone.values())
    for machine in servers.machines.values():
        assert not any((machine.root / path[1:]).exists() for path in address.FILES)
    assert not any(result["changed"] for result in servers.share(shared=False).values())


@pytest.mark.parametrize("count", [1, 3])
def test_a_machine_that_is_no_peer_takes_the_address_off_no_server(tmp_path, count):
    servers = Servers(tmp_path, count)
    try:
        servers.machines["server1"].serve()
        servers.share()
        servers.settle(["server1"])
        packet = struct.pack("!BBBBBBH4s8x", 0x21, 51, 255, 1, 0, 1, 0, bytes(map(int, SHARED.split("."))))
        total = sum(struct.unpack("!10H", packet))
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        packet = packet[:6] + checksum.to_bytes(2, "big") + packet[8:]
        addresses = [machine.address for machine in servers.machines.values()]
        servers.client(sys.executable, "-c", ADVERTISE, packet.hex(), *addresses, "224.0.0.18")
        assert servers.holders() == ["server1"]
        assert servers.answers()
    finally:
        servers.end()
