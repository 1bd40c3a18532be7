"""The reboots of the host layer, on three servers: real members of etcd on this machine's loopback, a reboot kills one.

Modules, plays and etcd are real; nodes are folders, the API server is the double of kubectl.
"""

import json
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.three_servers import machines
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

PLAYBOOK = machines.ROOT / "playbooks/layers/host.yml"
NAMES = ("server1", "server2", "server3")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return machines.build(tmp_path_factory.mktemp("member"))


class Cluster:
    def __init__(self, folder, program):
        self.folder = folder
        self.api = kubectl_cluster.Cluster(folder / "cluster.json")
        ports = machines.free_ports(9)
        shares = [ports[start : start + 3] for start in (0, 3, 6)]
        members = ",".join(f"{name}=http://127.0.0.1:{share[1]}" for name, share in zip(NAMES, shares))
        self.machines = {
            name: machines.Machine(folder / name, name, program, share, members, self.api)
            for name, share in zip(NAMES, shares)
        }
        for name, machine in self.machines.items():
            machine.write_plan(self.machines.values())
            labels = {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
            node = kubectl_cluster.node(name, labels=labels, annotations={})
            info = {"bootID": f"{name}-boot-1"}
            node["status"] = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
            self.api.add(node, kubectl_cluster.pod("jobs", f"train-{name}", name, owner="ReplicaSet"))
            machine.start()
        machines.wait(lambda: all(machines.healthy(each.metrics) for each in self.machines.values()))

    def end(self) -> None:
        for machine in self.machines.values():
            machine.kill()

    @property
    def events(self) -> list[dict]:
        path = self.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def node(self, name) -> dict:
        return self.api.objects[f"Node//{name}"]

    def play(self, *names, plays=("Reboot servers that need it, one at a time",), **variables):
        """The reboot play of host.yml on these servers; (exit code, output)."""
        wanted = [play for play in yaml.safe_load(PLAYBOOK.read_text()) if play["name"] in plays]
        assert len(wanted) == len(plays)
        for play in wanted:
            play.update(hosts="all", become=False)
        hosts = {
            name: {"member_folder": str(machine.folder), "discovery_root": str(machine.folder)}
            for name, machine in self.machines.items()
        }
        others = [NAMES[1], NAMES[0], NAMES[0]]
        drains = [{"drain": {"node": name, "host": other}} for name, other in zip(NAMES, others)]
        common = {
            "ansible_connection": "member",
            "ansible_python_interpreter": sys.executable,
            "driver_drain_command": self.api.argv,
            "reboot_allowed": True,
            "reboot_drain_allowed": True,
            "reboot_timeout_seconds": 60,
            "rdma_reboot_reasons": ["RDMA netns mode is exclusive."],
            "__discovery_planned": {"roles": ["discovery"], "hosts": dict(zip(NAMES, drains))},
            **variables,
        }
        inventory = {"all": {"hosts": hosts, "vars": common}, "k3s_servers": {"hosts": {name: {} for name in NAMES}}}
        return machines.playbook(self.folder, wanted, inventory, "--limit", ",".join(names))


@pytest.fixture
def cluster(tmp_path, program):
    found = Cluster(tmp_path, program)
    yield found
    found.end()


def test_servers_go_one_after_the_other_each_drained_and_back_with_all_members(cluster):
    code, output = cluster.play(*NAMES)
    assert code == 0, output
    events = cluster.events
    assert [(event["event"], event["name"]) for event in events] == [
        (event, name) for name in NAMES for event in ("down", "up")
    ]
    for event in events:
        assert event["cordoned"] is True
        assert event["pods"] == []
        if event["event"] == "down":
            assert event["healthy"] == list(NAMES), "no server goes while a member is away"
    for name in NAMES:
        assert "unschedulable" not in cluster.node(name)["spec"]
        assert not (cluster.machines[name].folder / "var/lib/gpufabric-rdma/reboot.json").exists()


def test_no_server_goes_while_a_member_is_away(cluster):
    cluster.machines["server3"].kill()
    # The missing one may have been the leader: the others elect a new one first.
    healthy = [name != "server3" for name in NAMES]
    machines.wait(lambda: [machines.healthy(cluster.machines[name].metrics) for name in NAMES] == healthy)
    code, output = cluster.play("server1", "server2", __reboot_settle_seconds=8)
    assert code != 0
    assert "etcd of the cluster" in output
    assert "2 of 3" in output, output
    assert cluster.events == []
    assert "unschedulable" not in cluster.node("server1")["spec"]


def test_a_server_that_stays_away_is_the_last_to_go(cluster):
    cluster.machines["server1"].write_plan(cluster.machines.values(), stays_away=True)
    code, _output = cluster.play(*NAMES, reboot_timeout_seconds=8)
    assert code != 0
    assert [event["name"] for event in cluster.events] == ["server1"]
    assert cluster.node("server1")["spec"]["unschedulable"] is True


def test_several_at_a_time_stop_at_the_first_that_stays_away(cluster):
    cluster.machines["server1"].write_plan(cluster.machines.values(), stays_away=True)
    plays = ("Reboot nodes that need it, a few at a time",)
    code, _output = cluster.play(*NAMES, plays=plays, reboot_serial=2, reboot_timeout_seconds=8)
    assert code != 0
    assert "server3" not in {event["name"] for event in cluster.events}
