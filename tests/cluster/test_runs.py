"""Runs of site.yml as a whole: announced, second, with secrets, killed, and after changes by hand.

INTERRUPTIONS is the number of killed runs (20), INTERRUPTIONS_LONGEST the longest time to the kill in seconds (300).
The times come from a printed seed, so a failure can be repeated.
"""

import base64
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.objects import OWNER_LABEL
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import CHECKOUT, OBJECTS, SNAPSHOT

# --- The run does what --check announces on bare nodes ----------------------------------------------------------------

# Everything a role may write to, without the files of kernel and services.
CHANGED = "find /boot /etc /opt /root /usr /var/lib/rancher -xdev -newer /run/before-the-run -type f"
CHANGED = f"{CHANGED} ! -path '/root/.ansible/*' 2>/dev/null; true"


def test_check_mode_on_bare_nodes_announces_what_the_first_run_made(breakable):
    breakable.labctl("restore", "ready")
    for name in breakable.nodes:
        breakable.node(name, "touch /run/before-the-run; sleep 1")
    with breakable.timed("site.yml --check on bare nodes"):
        announced = breakable.run("site.yml", "--check", "--diff")
    changed = {name: breakable.node(name, CHANGED) for name in breakable.nodes}
    breakable.labctl("restore", SNAPSHOT)
    breakable.wait(breakable.settled, "all nodes Ready and all pods running")

    assert announced.code == 0, announced.text[-6000:]
    assert changed == dict.fromkeys(breakable.nodes, "")
    foretold = {name: {change["object"] for change in announced.record[name]["changes"]} for name in breakable.nodes}
    for name, things in foretold.items():
        files = sorted(thing for thing in things if thing.startswith("/"))
        breakable.note(f"{len(files):7}    files announced for {name}, {len(things)} changes in all")
        absent = breakable.node(name, f"for file in {' '.join(files)}; do [ -e $file ] || echo $file; done")
        assert (len(files) > 10, absent) == (True, ""), name
    made = {
        f"{row['kind']} " + "/".join(filter(None, (row["metadata"].get("namespace"), row["metadata"]["name"])))
        for row in breakable.get(OBJECTS, "--all-namespaces", "-l", OWNER_LABEL)["items"]
    }
    breakable.note(f"{len(made):7}    objects of the cluster announced")
    kinds = {thing.split()[0] for thing in made}
    assert made == {thing for things in foretold.values() for thing in things if thing.split()[0] in kinds}


# --- A second run changes nothing -------------------------------------------------------------------------------------

# On the first server, and on every other node; those of docs/cluster.md.
ON_THE_SERVER, ON_AN_AGENT = 12, 8


def test_a_second_run_changes_nothing_and_restarts_nothing(cluster):
    pids, pods = cluster.main_pids(), set(cluster.pods())

    with cluster.timed("site.yml on the finished cluster"):
        second = cluster.succeed("site.yml")

    for name in cluster.nodes:
        assert second.record[name]["changed"] == []
        calls = second.record[name]["calls"]
        cluster.note(f"{len(calls):7}    remote calls of the second run to {name}")
        assert len(calls) <= (ON_THE_SERVER if name == cluster.server else ON_AN_AGENT), calls
        assert second.checks(name, "failed") == []
    assert cluster.main_pids() == pids
    assert set(cluster.pods()) == pods


# --- Secrets: modes on the node, and nowhere else during a run --------------------------------------------------------

FILES = (
    "/etc/rancher/k3s/token",
    "/etc/rancher/k3s/k3s.yaml",
    "/etc/gpufabric-rdma/node-ready.token",
    "/var/lib/rancher/k3s/server/cred/encryption-config.json",  # of k3s
    "/var/lib/rancher/k3s/server/cred/encryption-config.yaml",  # of the double
)
# A single process, because the node is emulated and the playbook needs its CPU.
WATCH = r"""
import os, time
seen = set()
while not os.path.exists("/run/argv-enough"):
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                seen.update(stream.read().split(b"\0"))
        except OSError:
            pass
    time.sleep(0.1)
with open("/run/argv.new", "wb") as stream:
    stream.write(b"\n".join(sorted(seen)))
os.rename("/run/argv.new", "/run/argv")
"""


def secrets_of(cluster, name):
    """{what: texts that must not be seen} of the files that the node has."""
    found = {}
    for path in FILES:
        text = cluster.node(name, f"cat {path} 2>/dev/null; true")
        if path.endswith("token"):
            words = [text]
        else:
            words = re.findall(r'(?:client-key-data: |"secret": *"|secret: )([A-Za-z0-9+/=]+)', text, re.MULTILINE)
        clear = [base64.b64decode(word).decode(errors="ignore") for word in words if not path.endswith("token")]
        found[path] = [part for part in (*words, *clear) if len(part) > 8]
    return {path: words for path, words in found.items() if words}


def argv_here(seen, enough):
    while not enough.wait(0.2):
        seen.append(subprocess.run(["ps", "-eo", "args", "ww"], capture_output=True, text=True, check=True).stdout)


def test_no_secret_leaves_its_file(cluster):
    secrets = {name: secrets_of(cluster, name) for name in cluster.nodes}
    assert {"/etc/rancher/k3s/token", "/etc/rancher/k3s/k3s.yaml"} <= secrets[cluster.server].keys()
    for name, found in secrets.items():
        modes = {path: cluster.node(name, f"stat -c '%a %U' {path}") for path in found}
        assert modes == dict.fromkeys(found, "600 root"), name
        cluster.node(name, f"rm -f /run/argv*; cat >/run/argv-watch <<'EOF'\n{WATCH}\nEOF")
        cluster.node(name, "systemd-run --quiet python3 /run/argv-watch")

    here, enough = [], threading.Event()
    watcher = threading.Thread(target=argv_here, args=(here, enough))
    watcher.start()
    try:
        done = cluster.run("site.yml", "-vvv", "--diff")
    finally:
        enough.set()
        watcher.join()
        for name in cluster.nodes:
            cluster.node(name, "touch /run/argv-enough")
    assert done.code == 0, done.text[-6000:]

    places = {"output": done.text, "argv of the controller": "".join(here)}
    for name in cluster.nodes:
        places[f"argv on {name}"] = cluster.node(name, "until [ -e /run/argv ]; do sleep 0.2; done; cat /run/argv")
        places[f"logs of {name}"] = cluster.node(name, "journalctl --no-pager; cat /var/log/*.log 2>/dev/null; true")
    assert all(places.values()), "every place had content to search"
    leaked = [
        (path, place)
        for found in secrets.values()
        for path, words in found.items()
        for place, text in places.items()
        if any(word in text for word in words)
    ]
    assert leaked == []


# --- Killed runs are continued ----------------------------------------------------------------------------------------

TIMES = int(os.environ.get("INTERRUPTIONS", "8"))
# Finished work is skipped, so each run gets further than the previous one, on a finished node to its test pods.
LONGEST = float(os.environ.get("INTERRUPTIONS_LONGEST", "300"))


def kill_after(cluster, seconds):
    """Exit code and output of a run that finished; None for one that was killed."""
    command = ["ansible-playbook", *cluster.hosts, *cluster.variables, str(CHECKOUT / "playbooks/site.yml")]
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(command, cwd=CHECKOUT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return None
        said.seek(0)
        return run.returncode, said.read()


def test_a_run_that_was_killed_at_random_moments_is_taken_up(breakable):
    seed = os.environ.get("INTERRUPTIONS_SEED") or str(time.time_ns())
    moments = [random.Random(f"{seed} {turn}").uniform(5, LONGEST) for turn in range(TIMES)]
    breakable.labctl("restore", "ready")
    ended = [run for moment in moments if (run := kill_after(breakable, moment))]
    killed = TIMES - len(ended)
    breakable.note(f"{killed:7}    runs killed of {TIMES}, INTERRUPTIONS_SEED={seed}, within {LONGEST:.0f} s")
    assert killed > 0
    # A run that may finish is never refused because of a killed run's leftovers.
    assert [text[-6000:] for code, text in ended if code] == []

    last = breakable.succeed("site.yml")

    assert [last.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)


@pytest.mark.parametrize("moment", [60, 180, 300])
def test_k3s_that_is_killed_during_a_run_does_not_end_it(breakable, moment):
    service = breakable.kubelet_service(breakable.worker)
    kill = f"sleep {moment}; systemctl kill --signal=SIGKILL {service}"
    breakable.node(breakable.worker, f"systemd-run --quiet sh -c '{kill}'")

    first = breakable.run("site.yml")
    second = first if first.code == 0 else breakable.run("site.yml")

    assert second.code == 0, second.text[-6000:]
    breakable.note(f"        k3s killed after {moment} s: {'that' if first is second else 'the next'} run converged")


# --- Twelve changes made by hand: check mode and drift report each, and one run reverts them all ----------------------

# An object of the cluster belongs to no node: its change is listed for the host that the task ran for.
ANYWHERE = ""


class Drift(NamedTuple):
    """plant and probe are shell; the probe prints the same before the drift and after the repair, and not between."""

    name: str
    host: str
    plant: str
    probe: str
    object: str  # part of the name under which the change is announced
    follows: str = ""  # what has to restart because of it, also announced


UNIT = "/etc/systemd/system/rdma-device-plugin.service"
CONFLIST = "/etc/cni/gpufabric-rdma.d/10-flannel.conflist"
SYSCTLS = "/etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf"
TOKEN = "/etc/gpufabric-rdma/node-ready.token"
CONFIG = "/etc/rdma-device-plugin/config.json"
GUARD = "gpufabric-rdma-multus.service"
LABEL = "feature.node.kubernetes.io/rdma.capable"
DAEMON = "configmap multus-daemon-config --namespace kube-multus"
SUM = "sha256sum {} 2>/dev/null || echo absent"
PORTMAP, BRIDGE, PLUGIN = "/opt/cni/bin/portmap", "net.bridge.bridge-nf-call-iptables", "service rdma-device-plugin"
FEWER = f'sed -i \'s/"rdmaHcaMax": *[0-9]*/"rdmaHcaMax": 7/\' {CONFIG}'
EDIT = f"""k3s kubectl patch {DAEMON} --type merge -p '{{"data":{{"daemon-config.json":"{{}}"}}}}'"""
ATTACHMENT = "network-attachment-definition rail0"


def drifts(cluster) -> tuple[Drift, ...]:
    server, worker = cluster.server, cluster.worker
    service = cluster.kubelet_service(worker)
    drop_in = f"/etc/systemd/system/{service}.service.d/10-gpufabric-rdma.conf"
    label = f"k3s kubectl get node {worker} -o yaml | grep -F '{LABEL}:'"
    shown = f"k3s kubectl get {ATTACHMENT} -o jsonpath={{.spec}}"
    rows = (
        ("plugin's unit", worker, f"sed -i s/^Description=.*/Description=mine/ {UNIT}", SUM.format(UNIT), UNIT, PLUGIN),
        ("plugin's configuration", worker, FEWER, SUM.format(CONFIG), CONFIG, PLUGIN),
        ("conflist deleted", worker, f"rm {CONFLIST}", SUM.format(CONFLIST), CONFLIST),
        ("plugin swapped", worker, f"cp /bin/true {PORTMAP}", SUM.format(PORTMAP), "portmap"),
        ("mode of a token", worker, f"chmod 0644 {TOKEN}", f"stat -c %a {TOKEN}", TOKEN),
        ("memlock drop-in deleted", worker, f"rm {drop_in}", SUM.format(drop_in), drop_in, f"service {service}"),
        ("sysctl", server, f"sysctl -qw {BRIDGE}=0", f"sysctl -n {BRIDGE}", BRIDGE),
        ("sysctl file", server, f"echo '# mine' >>{SYSCTLS}", SUM.format(SYSCTLS), SYSCTLS),
        ("unit disabled", server, f"systemctl -q disable {GUARD}", f"systemctl is-enabled {GUARD}", GUARD),
        ("label removed", ANYWHERE, f"k3s kubectl label node {worker} {LABEL}-", label, worker),
        ("ConfigMap edited", ANYWHERE, EDIT, f"k3s kubectl get {DAEMON} -o jsonpath={{.data}}", "multus-daemon-config"),
        ("attachment deleted", ANYWHERE, f"k3s kubectl delete {ATTACHMENT}", shown, "rail0"),
    )
    return tuple(Drift(*row) for row in rows)


# The mode changes only while no network namespace exists: the node's pods end, and come back with k3s.
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
    """Whether the run lists the drift's object among its changes, for its host."""
    hosts = [drift.host] if drift.host else list(run.record)
    return any(drift.object in change["object"] for host in hosts for change in run.record[host]["changes"])


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
        breakable.succeed("site.yml")
    assert probes(breakable, planted) == before

    code, hosts, text = breakable.drift()
    assert code == 0, text[-6000:]


def test_a_mode_that_only_a_reboot_can_set_gives_3_and_a_node_that_is_down_gives_4(breakable):
    worker, service = breakable.worker, breakable.kubelet_service(breakable.worker)
    # R1: a pod with its own network namespace blocks the mode. Those of Flannel and Multus have none.
    lab_pitfalls.start(breakable, lab_pitfalls.pod("holder", worker))
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


# --- An operator's policy, imported ----------------------------------------------------------------------------------

POLICY = """
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata: {name: nic-cluster-policy}
spec:
  rdmaSharedDevicePlugin:
    config: >-
      {"configList": [{"resourceName": "rdma_shared_device_a", "rdmaHcaMax": 63, "selectors": {"ifNames": ["eth2"]}}]}
---
apiVersion: mellanox.com/v1alpha1
kind: MacvlanNetwork
metadata: {name: rdmashared-net}
spec: {networkNamespace: default, master: eth2, mode: bridge, mtu: 1500, ipam: '{"type": "static"}'}
"""


def test_an_imported_policy_is_applied_and_kubectl_sees_no_difference_to_what_is_rendered(breakable, tmp_path):
    (tmp_path / "policy.yml").write_text(POLICY)
    variables, rendered = tmp_path / "imported.yml", tmp_path / "objects"
    breakable.succeed(
        "import_policy.yml", "-e", f"policy_files={tmp_path}/policy.yml", "-e", f"policy_dest={variables}"
    )
    breakable.succeed("cluster.yml", "-e", f"@{variables}")
    breakable.succeed("render.yml", "-e", f"@{variables}", "-e", f"cluster_objects_folder={rendered}")

    objects = [path.read_text() for path in sorted(rendered.rglob("*.yaml")) if path.name != "kustomization.yaml"]
    assert "rdmashared-net" in "".join(objects)
    compared = breakable.try_kubectl(
        "diff", "--server-side", "--force-conflicts", "-f", "-", stdin="---\n".join(objects)
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr
