# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Gather in one call a node's facts and the state of what roles configure on it
version_added: 0.1.0
description:
  - Gathers the facts of M(gpufabric.rdma.hca_facts), and what O(k3s), O(networks), O(firewall), O(runtime) and
    O(probe) ask for.
  - No content of k3s' configuration and no secret leaves the node.
  - Changes nothing and loads no kernel module. What O(probe) opens may load one, which it then reports.
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
  - gpufabric.rdma.reading.rails
options:
  software_hcas:
    description: Whether soft-RoCE and siw devices count as HCAs.
    type: bool
    default: false
  k3s:
    description: Read program, image archives, services, addresses, routes, SELinux and other Kubernetes distributions.
    type: dict
    suboptions:
      tests_namespace:
        description: Name of the namespace that test pods will use. On a server it is looked at, if it exists.
        type: str
      shared_address:
        description: Address that servers are to share. The result says whether a machine answers at it, and whether
          keepalived is installed or can be.
        type: str
  networks:
    description: Read interfaces, routes and network configuration files, and what test pods need of the node.
    type: dict
    suboptions:
      directory:
        description: Where Multus looks for configurations of networks with an empty spec.
        type: path
        default: /etc/cni/multus/net.d
  firewall:
    description: Read which of ufw and firewalld runs, its rules for a source, addresses, and ports in use.
    type: bool
    default: false
  runtime:
    description: Read how containerd, that of k3s or of the distribution, is configured.
    type: bool
    default: false
  probe:
    description:
      - Look for the character devices and test tools that a container would use, and ask the sockets of device plugins.
      - Locks memory as C(user) under the limit of each of C(services), in a short-lived child process. Below another
        O(root) than V(/) nothing is probed.
    type: dict
    suboptions:
      services: {description: Services under whose limit to lock memory., type: list, elements: str, default: []}
      user:
        description: User that locks memory, and whose rights on the character devices are told.
        type: str
        default: nobody
      kubelet_root:
        description: The kubelet's C(--root-dir), below which device plugins are found.
        type: path
        default: /var/lib/kubelet
"""

EXAMPLES = r"""
- name: Gather what host and cluster layer are planned by
  gpufabric.rdma.node_facts:
    k3s: {}
    networks: {}
    firewall: true
  register: node

- name: Show the interfaces with the default route
  ansible.builtin.debug:
    msg: "{{ node['networks']['netdevs'] | dict2items | selectattr('value.default_route') | map(attribute='key') }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts as M(gpufabric.rdma.hca_facts) returns them.
  returned: success
  type: dict
hostname:
  description: The node's host name in lower case, or empty.
  returned: success
  type: str
system_uuid:
  description: What a kubelet on this machine reports as its system UUID, or empty.
  returned: success
  type: str
plugin_config:
  description: Text of the config of the device plugin that runs as a service, or null.
  returned: success
  type: str
k3s:
  description: >-
    C(architecture) (amd64 or arm64), C(python), C(clock) (seconds since the epoch), C(version), C(sums) (SHA-256 of
    the program and of each image archive, by path), C(addresses), C(routes), C(services), C(foreign_files) (of a k3s
    that this collection did not set up), C(others) (other distributions), C(namespaces) (findings about
    O(k3s.tests_namespace)), C(shared), C(shared_address), C(address_files), C(etcd) (what the etcd of a server says of
    its members) and C(registered) (the system UUID of each Node, by its name, as a server that runs has them).
  returned: with O(k3s)
  type: dict
networks:
  description: >-
    C(netdevs) by name (C(index), C(mtu), C(type), C(addresses), C(default_route), C(pci)), C(routes) (C(destination),
    C(netdev)), C(vfs_unit) (whether the unit of M(gpufabric.rdma.sriov_vfs) exists), C(files) (text by name) and
    C(tools) (C(image), C(mounts)) for test pods.
  returned: with O(networks)
  type: dict
firewall:
  description: >-
    C(tool) (ufw or firewalld, if it runs; nftables, if only its program is there; else null), C(rules), C(zones),
    C(default_zone), C(names_vrrp), C(address) and C(netdev) of the default route, C(addresses) by interface, C(bound)
    (ports by protocol), C(installed) and C(recorded) (rules of the role node_firewall).
  returned: with O(firewall)
  type: dict
runtime:
  description: C(source), the file that configures containerd, or null; C(cdi), true or false where files say so.
  returned: with O(runtime)
  type: dict
probe:
  description: C(char_devices) by name with their rights, C(memlock) by service, C(plugins) by resource with what its
    sockets answered (null or empty below another root than V(/)), C(tools), and C(loaded), modules that the reading has
    loaded.
  returned: with O(probe)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import unreadable
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node as device_plugin
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.plan import CONFIG
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS, rdma_facts
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import probe, rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s.state import hostname, system_uuid
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s, node_tools
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "software_hcas": {"type": "bool", "default": False},
            "rails": RAILS,
            "k3s": {"type": "dict", "options": {"tests_namespace": {"type": "str"}, "shared_address": {"type": "str"}}},
            "networks": {
                "type": "dict",
                "options": {"directory": {"type": "path", "default": "/etc/cni/multus/net.d"}},
            },
            "firewall": {"type": "bool", "default": False},
            "runtime": {"type": "bool", "default": False},
            "probe": {
                "type": "dict",
                "options": {
                    "services": {"type": "list", "elements": "str", "default": []},
                    "user": {"type": "str", "default": "nobody"},
                    "kubelet_root": {"type": "path", "default": device_plugin.KUBELET},
                },
            },
        },
        supports_check_mode=True,
    )
    with reported(module):
        loaded = rdma_modules()
        facts, _forks = rdma_facts(module)
        try:
            further = asked(module, Tree(module.params["root"]), facts, loaded)
        except OSError as error:
            module.fail_json(msg=unreadable(error))
        module.exit_json(changed=False, ansible_facts={"rdma": facts}, **further)


def asked(module: AnsibleModule, tree: Tree, facts: dict, loaded: set) -> dict:
    """What is asked besides the facts. loaded: the RDMA modules that were loaded before these were gathered."""
    params, state = module.params, {"hostname": hostname(tree), "plugin_config": tree.read(CONFIG)}
    state["system_uuid"] = system_uuid(tree)
    if params["k3s"] is not None:
        state["k3s"] = k3s.state(module.run_command, params["root"], **params["k3s"])
    if params["networks"] is not None:
        state["networks"] = node_tools.networks(tree, params["networks"]["directory"])
    if params["firewall"]:
        state["firewall"] = firewall.info(tree, module.run_command)
    if params["runtime"]:
        source, texts = containerd.read(tree)
        state["runtime"] = {"source": source, "cdi": containerd.cdi(texts)}
    if params["probe"] is not None:
        asks, root = params["probe"], params["root"]
        state["probe"] = {
            **probe(facts, asks["services"], asks["user"], root),
            "plugins": device_plugin.answers(root, asks["kubelet_root"]),
            "loaded": sorted(rdma_modules() - loaded),
        }
    return state


if __name__ == "__main__":
    main()
