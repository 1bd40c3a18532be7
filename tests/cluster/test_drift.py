"""Twelve changes made by hand: check mode and drift name each one, and one run reverts them all."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls

# An object of the cluster lives on no node: its change stands at whichever host the task ran for.
ANYWHERE = ""


@dataclasses.dataclass(frozen=True)
class Drift:
    """plant and probe are shell; the probe prints the same before the drift and after the repair, and not between."""

    name: str
    host: str
    plant: str
    probe: str
    object: str  # part of the name under which the change is announced
    follows: str = ""  # what has to start again for it, announced too


UNIT = "/etc/systemd/system/rdma-device-plugin.service"
CONFLIST = "/etc/cni/gpufabric-rdma.d/10-flannel.conflist"
SYSCTLS = "/etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf"
TOKEN = "/etc/gpufabric-rdma/node-ready.token"
CONFIG = "/etc/rdma-device-plugin/config.json"
GUARD = "gpufabric-rdma-multus.service"
LABEL = "feature.node.kubernetes.io/rdma.capable"
DAEMON = "configmap multus-daemon-config --namespace kube-multus"
SUM = "sha256sum {} 2>/dev/null || echo absent"


def drifts(cluster) -> tuple[Drift, ...]:
    server, worker = cluster.server, cluster.worker
    drop_in = f"/etc/systemd/system/{cluster.kubelet_service(worker)}.service.d/10-gpufabric-rdma.conf"
    return (
        Drift(
            "text of the plugin's unit",
            worker,
            f"sed -i s/^Description=.*/Description=mine/ {UNIT}",
            SUM.format(UNIT),
            UNIT,
            "service rdma-device-plugin",
        ),
        Drift(
            "plugin's configuration",
            worker,
            f'sed -i \'s/"rdmaHcaMax": *[0-9]*/"rdmaHcaMax": 7/\' {CONFIG}',
            SUM.format(CONFIG),
            CONFIG,
            "service rdma-device-plugin",
        ),
        Drift("conflist deleted", worker, f"rm {CONFLIST}", SUM.format(CONFLIST), CONFLIST),
        Drift(
            "plugin swapped",
            worker,
            "cp /bin/true /opt/cni/bin/portmap",
            SUM.format("/opt/cni/bin/portmap"),
            "portmap",
        ),
        Drift("mode of a token", worker, f"chmod 0644 {TOKEN}", f"stat -c %a {TOKEN}", TOKEN),
        Drift(
            "memlock drop-in deleted",
            worker,
            f"rm {drop_in}",
            SUM.format(drop_in),
            drop_in,
            f"service {cluster.kubelet_service(worker)}",
        ),
        Drift(
            "sysctl",
            server,
            "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
            "sysctl -n net.bridge.bridge-nf-call-iptables",
            "net.bridge.bridge-nf-call-iptables",
        ),
        Drift("sysctl file", server, f"echo '# mine' >>{SYSCTLS}", SUM.format(SYSCTLS), SYSCTLS),
        Drift("unit disabled", server, f"systemctl -q disable {GUARD}", f"systemctl is-enabled {GUARD}", GUARD),
        Drift(
            "label removed",
            ANYWHERE,
            f"k3s kubectl label node {worker} {LABEL}-",
            f"k3s kubectl get node {worker} -o yaml | grep -F '{LABEL}:'",
            worker,
        ),
        Drift(
            "ConfigMap edited",
            ANYWHERE,
            f"""k3s kubectl patch {DAEMON} --type merge -p '{{"data":{{"daemon-config.json":"{{}}"}}}}'""",
            f"k3s kubectl get {DAEMON} -o jsonpath={{.data}}",
            "multus-daemon-config",
        ),
        Drift(
            "attachment deleted",
            ANYWHERE,
            "k3s kubectl delete network-attachment-definition rail0",
            "k3s kubectl get network-attachment-definition rail0 -o jsonpath={.spec}",
            "rail0",
        ),
    )


# The mode changes only while no network namespace is there: the node's pods end, and come back with k3s.
EXCLUSIVE = """
systemctl stop {service}
pkill -9 -f '[c]ontainerd-shim'
for process in $(grep -l kubepods /proc/[0-9]*/cgroup | cut -d/ -f3); do kill -9 $process; done
for name in $(ip netns list | cut -d' ' -f1); do ip netns delete $name; done
for second in $(seq 60); do rdma system set netns exclusive && break; sleep 1; done
rdma system show | grep -q 'netns exclusive'
ip netns add tenant
systemctl start {service}
"""


def probes(cluster, planted):
    return {drift.name: cluster.node(drift.host or cluster.server, f"{drift.probe}; true") for drift in planted}


def unexplained(planted, hosts):
    """Differences that were not planted, and planted ones that were not found."""
    seen = [(host, item["object"]) for host, entry in hosts.items() for item in entry["differences"]]

    def named(drift, host, name):
        return drift.host in (ANYWHERE, host) and drift.object in name

    return (
        [row for row in seen if not any(named(drift, *row) or row == (drift.host, drift.follows) for drift in planted)],
        [drift.name for drift in planted if not any(named(drift, *row) for row in seen)],
    )


def announced(run, drift):
    """Whether the run names the drift's object among its changes, at its host."""
    hosts = [drift.host] if drift.host else list(run.record["hosts"])
    return any(drift.object in change["object"] for host in hosts for change in run.record["hosts"][host]["changes"])


def test_a_converged_cluster_gives_0_and_stays_as_it_was(cluster):
    before = cluster.everything()
    with cluster.timed("drift.yml on the converged cluster"):
        code, hosts, text = cluster.drift()
    assert code == 0, text[-6000:]
    assert {name: entry["verdict"] for name, entry in hosts.items()} == dict.fromkeys(cluster.nodes, "converged")
    assert cluster.changed_since(before) == {}


def test_each_drift_is_named_and_healed_by_one_run(breakable):
    planted = drifts(breakable)
    before = probes(breakable, planted)
    assert len(planted) == 12
    for drift in planted:
        breakable.node(drift.host or breakable.server, drift.plant)
    drifted, untouched = probes(breakable, planted), breakable.everything()
    assert [name for name, seen in drifted.items() if seen == before[name]] == [], "each drift is there"

    with breakable.timed("site.yml --check --diff with twelve drifts"):
        checked = breakable.run("site.yml", "--check", "--diff")
    assert [drift.name for drift in planted if not announced(checked, drift)] == [], checked.text[-4000:]

    code, hosts, text = breakable.drift()
    assert code == 2, text[-6000:]
    assert unexplained(planted, hosts) == ([], []), text[-6000:]
    assert breakable.changed_since(untouched) == {}, "neither check mode nor drift changes anything"

    with breakable.timed("site.yml healing twelve drifts"):
        healed = breakable.run("site.yml")
    assert healed.code == 0, healed.text[-6000:]
    assert probes(breakable, planted) == before

    code, hosts, text = breakable.drift()
    assert code == 0, text[-6000:]


def test_a_mode_that_only_a_reboot_can_set_gives_3_and_a_node_that_is_down_gives_4(breakable):
    worker, service = breakable.worker, breakable.kubelet_service(breakable.worker)
    # R1: a pod with a network namespace of its own holds the mode. Those of Flannel and Multus have none.
    lab_pitfalls.apply(breakable, lab_pitfalls.pod("holder", worker))
    breakable.wait(lambda: lab_pitfalls.running(breakable, "holder"), "the pod runs", lab_pitfalls.PATIENCE)
    with pytest.raises(AssertionError, match="busy"):
        breakable.node(worker, "rdma system set netns exclusive")
    breakable.node(worker, EXCLUSIVE.format(service=service))
    breakable.wait(breakable.settled, "all nodes Ready and all pods running")
    code, hosts, text = breakable.drift()
    assert code == 3, text[-6000:]
    assert hosts[breakable.worker]["verdict"] == "reboot_pending"
    assert "tenant" in breakable.node(breakable.worker, "ip netns list"), "no reboot, and the namespace is untouched"

    breakable.labctl("power", breakable.worker, "off")
    code, hosts, text = breakable.drift()
    assert code == 4, text[-6000:]
    assert hosts[breakable.worker]["verdict"] == "unreachable"
