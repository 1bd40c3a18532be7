"""Twelve things that somebody changed by hand: each is named by check mode, and one run puts all of them right."""

from __future__ import annotations

import dataclasses

# An object of the cluster lives on no node: its change stands at whichever host the task ran for.
ANYWHERE = ""


@dataclasses.dataclass(frozen=True)
class Drift:
    """plant and probe are shell; the probe prints the same before the drift and after the healing, and not between."""

    name: str
    host: str
    plant: str
    probe: str
    object: str  # part of the name under which the change is announced


UNIT = "/etc/systemd/system/rdma-device-plugin.service"
DROP_IN = "/etc/systemd/system/k3s-agent.service.d/10-gpufabric-rdma.conf"
CONFLIST = "/etc/cni/gpufabric-rdma.d/10-flannel.conflist"
SYSCTLS = "/etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf"
TOKEN = "/etc/gpufabric-rdma/node-ready.token"
CONFIG = "/etc/rdma-device-plugin/config.json"
GUARD = "gpufabric-rdma-multus.service"
LABEL = "feature.node.kubernetes.io/rdma.capable"
DAEMON = "configmap multus-daemon-config --namespace kube-multus"
SUM = "sha256sum {} 2>/dev/null || echo absent"

DRIFTS = (
    Drift(
        "text of the plugin's unit",
        "node2",
        f"sed -i s/^Description=.*/Description=mine/ {UNIT}",
        SUM.format(UNIT),
        UNIT,
    ),
    Drift(
        "plugin's configuration",
        "node2",
        f'sed -i \'s/"rdmaHcaMax": *[0-9]*/"rdmaHcaMax": 7/\' {CONFIG}',
        SUM.format(CONFIG),
        CONFIG,
    ),
    Drift("conflist deleted", "node2", f"rm {CONFLIST}", SUM.format(CONFLIST), CONFLIST),
    Drift(
        "plugin swapped", "node2", "cp /bin/true /opt/cni/bin/portmap", SUM.format("/opt/cni/bin/portmap"), "portmap"
    ),
    Drift("mode of a token", "node2", f"chmod 0644 {TOKEN}", f"stat -c %a {TOKEN}", TOKEN),
    Drift("memlock drop-in deleted", "node2", f"rm {DROP_IN}", SUM.format(DROP_IN), DROP_IN),
    Drift(
        "sysctl",
        "node1",
        "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        "sysctl -n net.bridge.bridge-nf-call-iptables",
        "net.bridge.bridge-nf-call-iptables",
    ),
    Drift("sysctl file", "node1", f"echo '# mine' >>{SYSCTLS}", SUM.format(SYSCTLS), SYSCTLS),
    Drift("unit disabled", "node1", f"systemctl -q disable {GUARD}", f"systemctl is-enabled {GUARD}", GUARD),
    Drift(
        "label removed",
        ANYWHERE,
        f"k3s kubectl label node node2 {LABEL}-",
        f"k3s kubectl get node node2 -o yaml | grep -F '{LABEL}:'",
        "node2",
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


def probe(cluster, drift):
    return cluster.node(drift.host or "node1", f"{drift.probe}; true")


def announced(run, drift):
    """Whether the run names the drift's object among its changes, at its host."""
    hosts = [drift.host] if drift.host else list(run.record["hosts"])
    return any(drift.object in change["object"] for host in hosts for change in run.record["hosts"][host]["changes"])


def test_each_drift_is_named_by_check_mode_and_healed_by_one_run(breakable):
    before = {drift.name: probe(breakable, drift) for drift in DRIFTS}
    assert len(DRIFTS) == 12
    for drift in DRIFTS:
        breakable.node(drift.host or "node1", drift.plant)
    planted = {drift.name: probe(breakable, drift) for drift in DRIFTS}
    assert [name for name, seen in planted.items() if seen == before[name]] == [], "each drift is there"

    with breakable.timed("site.yml --check --diff with twelve drifts"):
        checked = breakable.run("site.yml", "--check", "--diff")
    assert [drift.name for drift in DRIFTS if not announced(checked, drift)] == [], checked.text[-4000:]
    assert {drift.name: probe(breakable, drift) for drift in DRIFTS} == planted, "check mode changes nothing"

    with breakable.timed("site.yml healing twelve drifts"):
        healed = breakable.run("site.yml")
    assert healed.code == 0, healed.text[-6000:]
    assert {drift.name: probe(breakable, drift) for drift in DRIFTS} == before

    again = breakable.run("site.yml")
    assert again.code == 0, again.text[-6000:]
    assert [again.record["hosts"][name]["changed"] for name in breakable.nodes] == [[], []]
