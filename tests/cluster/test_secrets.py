"""Token, keys and kubeconfig: modes on the node, and nowhere else during a run: output, diffs, argv, logs."""

from __future__ import annotations

import base64
import re
import subprocess
import threading

FILES = (
    "/etc/rancher/k3s/token",
    "/etc/rancher/k3s/k3s.yaml",
    "/etc/gpufabric-rdma/node-ready.token",
    "/var/lib/rancher/k3s/server/cred/encryption-config.json",  # of k3s
    "/var/lib/rancher/k3s/server/cred/encryption-config.yaml",  # of the double
)
# One process that starts no other: the node is emulated, and the playbook has to have it.
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
