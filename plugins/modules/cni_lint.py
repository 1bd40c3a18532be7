# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cni_lint
short_description: Find problems in the CNI configuration and plugins of a node
version_added: 0.1.0
description:
  - Reads what containerd really uses (its directories and C(max_conf_num)), the configurations in order of precedence,
    the plugins and IPAM plugins that they and O(networks) name, leftovers of interrupted writes, Multus' socket, and
    the kernel settings of the pod network. Changes nothing and does not fail on findings.
  - Also lints the objects that run Flannel and Multus, if given.
extends_documentation_fragment: [gpufabric.rdma.reading]
options:
  conf_directory: {description: Where Multus writes its configuration., type: path, default: /etc/cni/net.d}
  plugin_directory: {description: Where the roles put the plugins., type: path, default: /opt/cni/bin}
  plugins: {description: Names of the plugins that the roles install there., type: list, elements: str, default: []}
  primary:
    description: The pod network's own configuration, which only Multus reads.
    type: path
    default: /etc/cni/gpufabric-rdma.d/10-flannel.conflist
  multus: {description: Whether Multus must be the only configuration that the runtime sees., type: bool, default: true}
  networks:
    description: Networks that Multus attaches to pods of the node.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the network in findings., type: str, required: true}
      config: {description: 'Its configuration, JSON.', type: str, required: true}
  health_port: {description: "TCP port of Flannel's health endpoint, V(0) for none.", type: int, default: 0}
  objects:
    description: DaemonSets and ConfigMaps of Flannel and Multus to lint.
    type: list
    elements: dict
    default: []
  root: {description: Root directory of the node., type: path, default: /}
"""

EXAMPLES = r"""
- name: Lint CNI on this node
  gpufabric.rdma.cni_lint:
  register: result

- name: Fail with all findings
  ansible.builtin.assert:
    that: result.findings | length == 0
    fail_msg: "{{ result.findings }}"
"""

RETURN = r"""
findings:
  description: The problems, most important first, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: success
  type: list
  elements: dict
runtime: {description: 'What containerd uses, and the file it comes from.', returned: success, type: dict}
configurations:
  description: The configurations that containerd sees, in order.
  returned: success
  type: list
  elements: str
not_verified:
  description: What could not be checked from here, with the reason.
  returned: success
  type: list
  elements: str
"""

import os
import socket
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd, node_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import programs
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import under
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, elf, node
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SOCKET = "/run/multus/multus.sock"


def read(root: str, wanted: dict) -> dict:
    tree = Tree(root)
    source, texts = containerd.read(tree)
    runtime = {"source": source, **containerd.cni(texts)}
    directory = runtime["conf_dir"]
    names = tree.listdir(directory)
    confs = [_conf(tree, f"{directory}/{name}") for name in names if name.endswith(node_lint.CONF_SUFFIXES)]
    folder = os.path.dirname(wanted["primary"])
    primary = [
        _conf(tree, f"{folder}/{name}") for name in tree.listdir(folder) if name.endswith(node_lint.CONF_SUFFIXES)
    ]
    parsed = [
        configuration for conf in confs + primary for configuration in [node_lint.parse(conf)[0]] if configuration
    ]
    clusters = {node_lint.cluster_network(configuration) for configuration in parsed} - {None}
    used = {name for configuration in parsed for name in node_lint.types(configuration)} | {"loopback"}
    used |= {name for network in wanted["networks"] for name in node_lint.network_programs(network["config"])}
    machine = node.node(tree, Seams.of(tree))["architecture"]
    return {
        "machine": None if machine.startswith("unknown") else machine,
        "runtime": runtime,
        "confs": confs,
        "others": [name for name in names if not name.endswith(node_lint.CONF_SUFFIXES)],
        "primary": primary if tree.isdir(folder) else None,
        "networks": wanted["networks"],
        "programs": _programs(tree, runtime["bin_dirs"], used),
        "leftovers": [
            f"{place}/{name}"
            for place in runtime["bin_dirs"]
            for name in tree.listdir(place)
            if node_lint.LEFTOVER.search(name)
        ],
        "socket": _socket(tree),
        "existing": {path: tree.exists(path) for path in clusters},
        "sysctls": {key: tree.read(f"/proc/sys/{key.replace('.', '/')}") for key in node_lint.SYSCTLS},
        "ports": programs.bound(tree, "tcp"),
        "flannel": any(
            tree.read(f"/proc/{pid}/comm") == "flanneld" for pid in tree.listdir("/proc") if pid.isdecimal()
        ),
    }


def _conf(tree: Tree, path: str) -> dict:
    data = tree.read_bytes(path)
    return {"path": path, "content": None if data is None else data.decode("utf-8", "replace")}


def _programs(tree: Tree, directories: list, names: set) -> dict:
    found = {}
    for name in names:
        path = next((f"{place}/{name}" for place in directories if tree.exists(f"{place}/{name}")), None)
        status = tree.stat(path) if path else None
        if status is None:
            continue
        start = b""
        if stat.S_ISREG(status.st_mode):  # a pipe would never end
            with open(under(tree.root, tree.realpath(path)), "rb") as stream:
                start = stream.read(4096)
        found[name] = {
            "path": path,
            "mode": f"{status.st_mode & 0o7777:04o}",
            "size": status.st_size,
            "script": start.startswith(b"#!"),
            "elf": elf.program(start),
        }
    return found


def _socket(tree: Tree) -> str:
    if not tree.live:
        return "unknown"
    if not tree.exists(SOCKET):
        return "absent"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(2)
        try:
            end.connect(SOCKET)
        except OSError:
            return "refuses"
    return "answers"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "conf_directory": {"type": "path", "default": "/etc/cni/net.d"},
            "plugin_directory": {"type": "path", "default": "/opt/cni/bin"},
            "plugins": {"type": "list", "elements": "str", "default": []},
            "primary": {"type": "path", "default": f"{node_lint.PRIMARY_DIRECTORY}/{node_lint.PRIMARY_NAME}"},
            "multus": {"type": "bool", "default": True},
            "networks": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "config": {"type": "str", "required": True},
                },
            },
            "health_port": {"type": "int", "default": 0},
            "objects": {"type": "list", "elements": "dict", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    with reported(module):
        state = read(given["root"], given)
        findings = node_lint.lint(state, given)
        findings += node_lint.lint_objects(given["objects"], given["plugin_directory"])
        module.exit_json(
            changed=False,
            findings=[finding._asdict() for finding in findings],
            runtime=state["runtime"],
            configurations=[conf["path"] for conf in state["confs"]],
            not_verified=["Multus' socket: the node is a tree of files"] if state["socket"] == "unknown" else [],
        )


if __name__ == "__main__":
    main()
