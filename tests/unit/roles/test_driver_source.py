"""Where the role driver takes its packages from, and which keys it accepts, by the real templates of its variables."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook

ROOT = pathlib.Path(__file__).resolve().parents[3]
NEW_KEY = "70454E6BF5D9C2D3B78709E8DC726C5E41B9CC50"
DEFAULTS = {
    name: value
    for role in ("common", "driver")
    for name, value in yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text()).items()
}
NODE = {
    "os": {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]},
    "architecture": "x86_64",
}
SERVER = "https://linux.mellanox.com/public/repo/doca/3.2.3/ubuntu24.04/x86_64/"
UNPACKED = "/var/lib/gpufabric-rdma/doca-host-3.2.3/"


def test_bundle_repository_file_and_keys(tmp_path):
    row = {"name": "doca-host", "version": "3.2.3", "distribution": "ubuntu24.04", "architecture": "amd64"}
    row |= {"path": "files/amd64/doca-host.deb", "sha256": "1" * 64}
    (tmp_path / "bundle.yml").write_text(json.dumps({"schema": 1, "origin": "release", "files": [row], "images": []}))
    (tmp_path / "key.asc").write_text("armored\n")
    mirror, bundle = {"driver_repository_url": "https://mirror.example.net/doca/"}, {"k3s_bundle_dir": str(tmp_path)}
    old = {"driver_version": "3.2.1"}
    cases = {
        "server": {},
        "mirror": mirror,
        "bundle": bundle,
        "bundle, mirror": bundle | mirror,
        "bundle by name, mirror": bundle | mirror | {"driver_source": "bundle"},
        "bundle, server by name": bundle | {"driver_source": "repository"},
        "bundle, own key": bundle | {"driver_repository_key": str(tmp_path / "key.asc")},
        "bundle of another release": bundle | old,
        "file": {"driver_host_package": "/srv/doca-host.deb"},
        "accepted": {"driver_repository_fingerprint": "AB, CD"},
        "unverified": old,
    }
    show = "{{ {'url': __driver_repository['url'], 'trusted': __driver_repository['trusted'], "
    show += "'keys': __driver_repository['fingerprints'], 'package': __driver_package} | to_json }}"
    tasks = [{"ansible.builtin.set_fact": {"rdma": {"node": NODE}, "cacheable": True}}]
    plays = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars_files": [str(ROOT / "roles/driver/vars/main.yml")],
            "vars": {**DEFAULTS, "role_path": str(ROOT / "roles/driver"), "driver_flavor": "doca", **given},
            "tasks": [
                *tasks,
                {"ansible.builtin.debug": {"msg": f"CASE {name}={show}"}},
            ],
        }
        for name, given in cases.items()
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays))
    done = subprocess.run(
        [ansible_playbook.path(), "-i", "localhost,", "-c", "local", "play.yml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = {}
    for text in re.findall(r'"msg": ("CASE .*")', done.stdout):
        name, _equals, value = json.loads(text).removeprefix("CASE ").partition("=")
        seen[name] = json.loads(value)
    package = f"{tmp_path}/files/amd64/doca-host.deb"
    places = {name: (item["url"], item["trusted"], item["package"]) for name, item in seen.items()}
    assert places == {
        "server": (SERVER, False, ""),
        "mirror": (mirror["driver_repository_url"], False, ""),
        "bundle": (f"file://{UNPACKED}", True, package),
        "bundle, mirror": (mirror["driver_repository_url"], False, ""),
        "bundle by name, mirror": (f"file://{UNPACKED}", True, package),
        "bundle, server by name": (SERVER, False, ""),
        "bundle, own key": (f"file://{UNPACKED}", False, package),
        "bundle of another release": (SERVER.replace("3.2.3", "3.2.1"), False, ""),
        "file": (f"file://{UNPACKED}", True, "/srv/doca-host.deb"),
        "accepted": (SERVER, False, ""),
        "unverified": (SERVER.replace("3.2.3", "3.2.1"), False, ""),
    }
    assert seen["server"]["keys"] == [NEW_KEY]
    assert [key.strip() for key in seen["accepted"]["keys"]] == ["AB", "CD"]
    assert seen["unverified"]["keys"] == []
