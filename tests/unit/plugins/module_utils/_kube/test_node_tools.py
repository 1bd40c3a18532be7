"""Which image and which folders of a node its test pods run with, and the pods that come of it."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import node_tools, pods
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

K3S = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
# As k3s renders it for containerd 2, and as the versions before had it.
VERSION_3 = """version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "rancher/mirrored-pause:3.6"
"""
VERSION_2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "registry.k8s.io/pause:3.9"\n'


@pytest.fixture
def node(tmp_path):
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc/libibverbs.d", "var"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1")
    return tmp_path


def put(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_folders_on_a_merged_usr_are_mounted_where_programs_look_for_them(node):
    for name in ("bin", "lib", "lib64"):
        (node / name).symlink_to(f"usr/{name}")
    mounts = node_tools.read(Tree(str(node)))["mounts"]
    assert mounts == {
        "/usr": "/usr", "/bin": "/usr/bin", "/lib": "/usr/lib", "/lib64": "/usr/lib64",
        "/etc/ld.so.cache": "/etc/ld.so.cache", "/etc/libibverbs.d": "/etc/libibverbs.d",
    }  # fmt: skip


def test_folders_of_their_own_and_doca_beside_them_are_mounted_as_they_are(node):
    paths = ("bin", "sbin", "lib64", "opt/mellanox", "etc/alternatives")
    for path in paths:
        (node / path).mkdir(parents=True)
    mounts = node_tools.read(Tree(str(node)))["mounts"]
    assert {source: path for path, source in mounts.items()}.items() >= {
        f"/{path}": f"/{path}" for path in paths
    }.items()
    assert "/lib" not in mounts


@pytest.mark.parametrize(("files", "image"), [
    ({}, None),
    ({K3S: "version = 3\n"}, None),
    ({K3S: VERSION_3}, "rancher/mirrored-pause:3.6"),
    ({"etc/containerd/config.toml": VERSION_2}, "registry.k8s.io/pause:3.9"),
    ({K3S: VERSION_3, "etc/containerd/config.toml": VERSION_2}, "rancher/mirrored-pause:3.6"),
    ({"etc/containerd/config.toml": f'imports = ["conf.d/*.toml"]\n{VERSION_2}',
        "etc/containerd/conf.d/pause.toml": VERSION_2.replace("pause:3.9", "pause:3.10")},
        "registry.k8s.io/pause:3.10"),
    ({K3S: VERSION_2.replace('"registry.k8s.io/pause:3.9"', "7")}, None),
], ids=["no containerd", "none", "version 3", "version 2", "k3s first", "an import wins", "no name"])  # fmt: skip
def test_the_image_is_that_of_the_sandboxes(node, files, image):
    for path, text in files.items():
        put(node, path, text)
    assert node_tools.read(Tree(str(node)))["image"] == image


def test_a_pod_with_the_nodes_tools_asks_no_registry_and_cannot_write_to_the_node():
    spec = {"containers": [{"name": "test", "image": None, "command": ["sleep", "1"]}]}
    pods.mount_tools(spec, {"image": "pause:1", "mounts": {"/usr": "/usr", "/lib64": "/usr/lib64"}})
    (container,) = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("pause:1", "Never")
    assert container["env"] == [{"name": "PATH", "value": node_tools.PATH}]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/usr", "/lib64"}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert {mount["mountPath"]: paths[mount["name"]] for mount in container["volumeMounts"]} == {
        "/usr": "/usr",
        "/lib64": "/usr/lib64",
    }


@pytest.mark.parametrize("code", [0, 1, 2])
def test_what_ping_says_is_what_the_pod_says(tmp_path, code):
    program = tmp_path / "ping"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    program.chmod(0o755)
    test = {"client": {"interface": "net1"}, "address": "10.56.0.3"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(pods.ping_command(test), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "-c 3 -W 2 -I net1 10.56.0.3\n")


def test_a_program_that_the_kernel_refuses_is_run_by_its_loader(tmp_path):
    """126 is what the shell says of a file capability outside the bounding set; the program stands in for ping."""
    refused = tmp_path / "refusing"
    refused.mkdir()
    # A shell function answers to the name first, as the kernel does; the loader then gets the real file.
    (refused / "ping").symlink_to("/bin/echo")
    words = pods.ping_command({"client": {"interface": "net1"}, "address": "10.56.0.3"})
    words[2] = f'command() {{ echo "{refused}/ping"; }}\nping() {{ return 126; }}\n{words[2]}'
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "-c 3 -W 2 -I net1 10.56.0.3\n")
