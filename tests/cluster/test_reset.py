"""reset.yml removes what the cluster layer created and only that: the node is as after the host layer."""

import json

from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import SNAPSHOT
from ansible_collections.gpufabric.rdma.tests.tools.lab_pitfalls import CONF

FOREIGN = (
    "/etc/cni/net.d/90-mine.conflist",
    "/opt/cni/bin/mine",
    "/etc/rancher/k3s/mine.txt",
    "/var/lib/kubelet/mine",
    "/var/lib/cni/mine",
)
SHARE = "/srv/share"
VOLUME = "/var/lib/rancher/k3s/storage/pvc-1_team_data"
# Made by k3s' containerd, and kept because Debian's containerd on the lab's nodes could have made them.
SHARED = ("/opt/containerd", "/opt/containerd/bin", "/opt/containerd/lib")
# Like after a killed daemon: its socket no longer answers.
DEAD = json.dumps(
    {
        "cniVersion": "0.3.1",
        "name": "multus-cni-network",
        "type": "multus-shim",
        "clusterNetwork": "/host/etc/cni/net.d/10-gone.conflist",
        "logToStderr": True,
    }
)
# Kept by the system itself, by Ansible and by kubectl.
NOISE = "/var/lib/systemd|/var/lib/dhcp|/root/.ansible|/root/.kube"
FILES = rf"""
find /etc /opt /usr /boot /root /home /var/lib /run/systemd/system -xdev -regextype posix-extended \
  -regex '({NOISE})' -prune -o -printf '%p %y %m %u\n'
"""
# Only rules, chains and policies of the firewall, because the kernel keeps an empty table once it was used.
RUNNING = r"""
ip -o link show | cut -d: -f2 | cut -d@ -f1
ip -o address show scope global
iptables-save | sed 's/\[[0-9:]*\]//; /^#/d; /^\*/d; /^COMMIT/d; /^:[A-Z]* ACCEPT/d'
grep -E '/run/k3s|/var/lib/(kubelet|rancher)|/run/netns' /proc/mounts
ls /run/netns 2>/dev/null
rdma system show
systemctl list-units --type=service --state=active,failed --no-legend --plain | grep -E 'k3s|rdma|gpufabric|multus'
"""
# sysctl first: reading all of /proc/sys loads binfmt_misc.
KERNEL = r"""
sysctl -a 2>/dev/null | grep -E '^(net.ipv4.ip_forward|net.ipv6.conf.all.forwarding|net.bridge|fs.inotify)'
cut -d' ' -f1 /proc/modules
"""


def seen(cluster, script):
    return {name: set(cluster.node(name, f"{script}\ntrue").splitlines()) for name in cluster.nodes}


def test_reset_leaves_the_host_layer_and_what_is_not_ours(breakable):
    breakable.labctl("restore", "ready")
    breakable.succeed("host.yml")
    # In this order, because reading the firewall loads its modules.
    files, kernel, running = (seen(breakable, script) for script in (FILES, KERNEL, RUNNING))

    breakable.labctl("restore", SNAPSHOT)
    breakable.wait(breakable.settled, "all nodes Ready and all pods running")
    for name in breakable.nodes:
        for path in FOREIGN:
            breakable.node(name, f"mkdir -p {path.rpartition('/')[0]}; echo mine >{path}")

    with breakable.timed("reset.yml"):
        gone = breakable.succeed("reset.yml", "-e", "k3s_reset_allowed=true")
    assert "is not ours" in gone.text
    after = seen(breakable, FILES)
    for name in breakable.nodes:
        kept = {path for path in FOREIGN if breakable.node(name, f"cat {path}; true") == "mine"}
        assert kept == set(FOREIGN), name
        folders = {path.rpartition("/")[0] for path in FOREIGN} | {"/etc/cni", "/opt/cni", "/etc/rancher"}
        expected = {*FOREIGN, *folders, *(SHARED if breakable.node(name, "ls /usr/bin/containerd; true") else ())}
        left = {line for line in after[name] - files[name] if line.split()[0] not in expected}
        assert (left, files[name] - after[name]) == (set(), set()), name
    for name, lines in seen(breakable, RUNNING).items():
        assert (lines - running[name], running[name] - lines) == (set(), set()), name

    again = breakable.run("reset.yml", "-e", "k3s_reset_allowed=true")
    assert [again.record[name]["changed"] for name in breakable.nodes] == [[]] * len(breakable.nodes)

    for name in breakable.nodes:
        breakable.reboot(name)
    for name, lines in seen(breakable, KERNEL).items():
        changed = (lines - kernel[name], kernel[name] - lines)
        assert changed == (set(), set()), f"{name}: modules and sysctls, as announced, with the next boot"

    # K15: leftovers of other ways to remove a cluster do not keep the next one from coming up.
    for name in breakable.nodes:
        breakable.node(name, f"rm -rf {' '.join(FOREIGN)}; mkdir -p /etc/cni/net.d; cat >{CONF} <<'EOF'\n{DEAD}\nEOF")
        breakable.node(name, "ip link add flannel.1 type vxlan id 1 dev lo dstport 8472; ip link set flannel.1 up")
    with breakable.timed("site.yml after reset.yml, with a dead configuration of Multus and a flannel.1 left"):
        back = breakable.succeed("site.yml")
    assert [back.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)


def test_reset_leaves_shares_behind_mounts_and_links_and_asks_for_local_volumes(breakable):
    name = breakable.worker
    training = pitfalls.pod("training", name)
    training["spec"]["volumes"] += [{"name": "data", "hostPath": {"path": VOLUME, "type": "DirectoryOrCreate"}}]
    (container,) = training["spec"]["containers"]
    container["volumeMounts"] += [{"name": "data", "mountPath": "/data"}]
    container["command"] = ["sh", "-c", "echo precious >/data/file; exec sleep 100000"]
    pitfalls.start(breakable, training)
    uid = breakable.get("pod", "training", "-n", pitfalls.NAMESPACE)["metadata"]["uid"]
    pod, foreign = f"/var/lib/kubelet/pods/{uid}", "/var/lib/kubelet/plugins/share"
    breakable.node(
        name,
        f"""set -e
        mkdir -p {SHARE} {pod}/share {foreign}; echo mine >{SHARE}/file
        mount --bind {SHARE} {pod}/share; mount --bind {SHARE} {foreign}
        ln -s {SHARE} {pod}/linked""",
    )

    asked = breakable.run("reset.yml")
    assert asked.code != 0
    assert [w for w in (foreign, VOLUME, "k3s_reset_allowed", "k3s_reset_volumes") if w not in asked.text] == []
    assert [asked.changes(node) for node in breakable.nodes if node != name] == [set()] * (len(breakable.nodes) - 1)
    assert pitfalls.running(breakable, "training")
    assert breakable.node(name, f"cat {foreign}/file {pod}/share/file {VOLUME}/file").split() == [
        "mine",
        "mine",
        "precious",
    ]

    breakable.node(name, f"umount {foreign}")
    consent = ("-e", "k3s_reset_allowed=true", "-e", "k3s_reset_volumes=false")
    with breakable.timed("reset.yml with a share below a pod, a link to it and a local volume that stays"):
        breakable.succeed("reset.yml", *consent)
    assert breakable.node(name, f"cat {SHARE}/file {VOLUME}/file").split() == ["mine", "precious"]
    left = "ls /var/lib/kubelet 2>/dev/null; ls /var/lib/rancher/k3s"
    mounted = "grep -cE '/run/k3s|/var/lib/(kubelet|rancher)' /proc/mounts"
    assert breakable.node(name, f"{left}; {mounted}; true").split() == ["storage", "0"]
    again = breakable.run("reset.yml", *consent)
    assert [again.record[node]["changed"] for node in breakable.nodes] == [[]] * len(breakable.nodes)
