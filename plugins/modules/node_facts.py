# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Gather in one call a node's facts and the state of what roles configure on it
version_added: 0.1.0
description:
  - Gathers the facts of M(gpufabric.rdma.hca_facts), and what O(k3s), O(networks), O(firewall), O(runtime), O(reboot),
    O(firmware), O(settled) and O(probe) ask for.
  - No content of k3s' configuration and no secret leaves the node.
  - Changes nothing and loads no kernel module. What O(probe) opens may load one, which it then reports.
extends_documentation_fragment: [gpufabric.rdma.reading, gpufabric.rdma.reading.root, gpufabric.rdma.reading.rails]
options:
  facts:
    description: Whether to gather the facts of M(gpufabric.rdma.hca_facts). O(probe) needs them in any case.
    type: bool
    default: true
  software_hcas: {description: Whether soft-RoCE and siw devices count as HCAs., type: bool, default: false}
  k3s:
    description: Read program, image archives, services, addresses, routes, SELinux and other Kubernetes distributions.
    type: dict
    suboptions:
      tests_namespace:
        description: Name of the namespace that test pods will use. On a server it is checked, if it exists.
        type: str
      shared_address:
        description: Address that servers will share. The result says whether a machine answers at it, and whether
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
  reboot:
    description:
      - Read whether the node would come back from a reboot, and what would be missing meanwhile.
      - Finds the kernel that boots next in GRUB's files, and looks for its file, its initramfs images and its modules;
        on a node without GRUB it takes the newest kernel of C(/boot).
    type: bool
    default: false
  firmware:
    description:
      - Option O(gpufabric.rdma.nic_settings#module:firmware) of M(gpufabric.rdma.nic_settings), to read these values.
      - Needs O(facts). In a container and below another O(root) than V(/) nothing is read.
    type: dict
    default: {}
  settled:
    description: Options of tasks of modules, to read in one call what they would change.
    type: dict
    suboptions:
      node_files:
        description: Options of M(gpufabric.rdma.node_files) by any name, such as that of the role.
        type: dict
        default: {}
      cni_plugins: {description: Options C(binaries) and C(directory) of M(gpufabric.rdma.cni_plugins)., type: dict}
      k3s_node:
        description: Options of M(gpufabric.rdma.k3s_node).
        type: dict
        suboptions:
          role: {description: As there., type: str, choices: [server, agent], required: true}
          options: {description: As there., type: dict, required: true}
          registries:
            description: As there, as JSON. Ansible hides each value of a secret dict, also where a path contains it.
            type: str
            default: "{}"
          token: {description: As there., type: str}
          token_allowed_to_be_made: {description: As there., type: bool, default: false}
          takeover_allowed: {description: As there., type: bool}
      device_plugin: {description: Options of M(gpufabric.rdma.device_plugin)., type: dict}
  probe:
    description:
      - Look for the character devices and test tools that a container would use, and ask the sockets of device plugins.
      - Locks memory as C(user) under the limit of each of C(services), in a short-lived child process. Below another
        O(root) than V(/) nothing is probed.
    type: dict
    suboptions:
      services: {description: Services under whose limit to lock memory., type: list, elements: str, default: []}
      user:
        description: User that locks memory, and whose rights on the character devices are reported.
        type: str
        default: nobody
      kubelet_root:
        description: The kubelet's C(--root-dir), below which device plugins are found.
        type: path
        default: /var/lib/kubelet
"""

EXAMPLES = r"""
- name: Gather what the plans of host and cluster layer need
  gpufabric.rdma.node_facts:
    k3s: {}
    networks: {}
    firewall: true
  register: node

- name: Read whether the node would come back from a reboot
  gpufabric.rdma.node_facts:
    facts: false
    reboot: true
  register: node

- name: Fail if it would not
  gpufabric.rdma.report:
    kind: findings
    findings: "{{ node['reboot']['findings'] }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts as M(gpufabric.rdma.hca_facts) returns them.
  returned: with O(facts)
  type: dict
hostname: {description: 'The node''s host name in lower case, or empty.', returned: success, type: str}
system_uuid:
  description: What a kubelet on this machine reports as its system UUID, or empty.
  returned: success
  type: str
plugin_config:
  description: Text of the config of the device plugin that runs as a service, or null.
  returned: success
  type: str
k3s:
  description: C(architecture) (amd64 or arm64), C(python), C(clock) (seconds since the epoch), C(version), C(sums)
    (SHA-256 of the program and of each image archive, by path), C(addresses), C(routes), C(services), C(foreign_files)
    (of a k3s that this collection did not set up), C(others) (other distributions), C(namespaces) (findings about
    O(k3s.tests_namespace)), C(shared), C(shared_address), C(address_files), C(etcd) (what the etcd of a server says
    about its members) and C(registered) (the system UUID of each Node, by its name, from a running server).
  returned: with O(k3s)
  type: dict
networks:
  description: C(netdevs) by name (C(index), C(mtu), C(type), C(addresses), C(default_route), C(pci)), C(routes)
    (C(destination), C(netdev)), C(vfs_unit) (whether the unit of M(gpufabric.rdma.sriov_vfs) exists), C(files) (text by
    name) and C(tools) (C(image), C(mounts)) for test pods.
  returned: with O(networks)
  type: dict
firewall:
  description: C(tool) (ufw or firewalld, if it runs; nftables, if only its program is there; else null), C(rules),
    C(zones), C(default_zone), C(names_vrrp), C(address) and C(netdev) of the default route, C(addresses) by interface,
    C(bound) (ports by protocol), C(installed) and C(recorded) (rules of the role node_firewall).
  returned: with O(firewall)
  type: dict
runtime:
  description: C(source), the file that configures containerd, or null; C(cdi), true or false if files say so.
  returned: with O(runtime)
  type: dict
reboot:
  description: C(findings), what the kernel that boots next lacks, each with C(object), C(wanted), C(seen), C(next_step)
    and C(id); C(not_verified), what could not be read; C(cluster), whether a kubelet of a cluster is set up on the
    node (C(member)), whether it is a server of k3s (C(server)), and other distributions with files on it (C(others));
    C(left), what the role reboot recorded before a reboot that no run has finished yet (C(left_boot), the boot then,
    and C(ready), whether the node was Ready), or null; C(boot_id), the present boot, as the kernel reports it.
  returned: with O(reboot)
  type: dict
firmware:
  description: >-
    C(program) that read them, or null; C(hcas) by PCI address, each with C(values) by key (C(default), C(current),
    C(next)) and C(errors) by key; C(before) and C(tried), what earlier runs recorded.
  returned: with O(firmware)
  type: dict
settled:
  description: C(unsettled), what would change or prevents it, as a list of objects by the name under
    O(settled.node_files), or C(cni_plugins), C(k3s_node) and C(device_plugin); C(contents), texts of the files that
    tasks of M(gpufabric.rdma.node_files) ask for, by path.
  returned: with O(settled)
  type: dict
probe:
  description: C(char_devices) by name with their rights, C(memlock) by service, C(plugins) by resource with what its
    sockets answered (null or empty below another root than V(/)), C(tools), and C(loaded), modules that reading
    loaded.
  returned: with O(probe)
  type: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import kernel_out_of_reach, reported, warn
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import unreadable
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node as device_plugin
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.plan import CONFIG
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import boot, firewall, firmware
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS, existing, rdma_facts
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.networks import network_info
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import probe, rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s.state import hostname, membership, system_uuid
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.settled import settled
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

SETTLED = {
    "node_files": {"type": "dict", "default": {}},
    "cni_plugins": {"type": "dict"},
    "k3s_node": {
        "type": "dict",
        "options": {
            "role": {"type": "str", "choices": ["server", "agent"], "required": True},
            "options": {"type": "dict", "required": True},
            "registries": {"type": "str", "default": "{}", "no_log": True},
            "token": {"type": "str", "no_log": True},
            "token_allowed_to_be_made": {"type": "bool", "default": False, "no_log": False},
            "takeover_allowed": {"type": "bool"},
        },
    },
    "device_plugin": {"type": "dict"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "facts": {"type": "bool", "default": True},
            "software_hcas": {"type": "bool", "default": False},
            "rails": RAILS,
            "k3s": {"type": "dict", "options": {"tests_namespace": {"type": "str"}, "shared_address": {"type": "str"}}},
            "networks": {
                "type": "dict",
                "options": {"directory": {"type": "path", "default": "/etc/cni/multus/net.d"}},
            },
            "firewall": {"type": "bool", "default": False},
            "runtime": {"type": "bool", "default": False},
            "reboot": {"type": "bool", "default": False},
            "firmware": {"type": "dict", "default": {}},
            "settled": {"type": "dict", "options": SETTLED},
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
        existing(module)
        facts = rdma_facts(module)[0] if module.params["facts"] or module.params["probe"] is not None else None
        try:
            further = asked(module, Tree(module.params["root"]), facts, loaded)
        except OSError as error:
            module.fail_json(msg=unreadable(error))
        module.exit_json(changed=False, **({} if facts is None else {"ansible_facts": {"rdma": facts}}), **further)


def asked(module: AnsibleModule, tree: Tree, facts: dict | None, loaded: set) -> dict:
    """What is read besides the facts. loaded: the RDMA modules that were loaded before these were gathered."""
    run = functools.partial(module.run_command, handle_exceptions=False)
    params, state = module.params, {"hostname": hostname(tree), "plugin_config": tree.read(CONFIG)}
    state["system_uuid"] = system_uuid(tree)
    if params["k3s"] is not None:
        state["k3s"] = k3s.state(run, params["root"], **params["k3s"])
    if params["networks"] is not None:
        networks = network_info(tree, params["networks"]["directory"])
        state["networks"] = {"tools": containerd.tools(tree), **networks}
    if params["firewall"]:
        state["firewall"] = firewall.info(tree, run)
    if params["runtime"]:
        source, texts = containerd.read(tree)
        state["runtime"] = {"source": source, "cdi": containerd.cdi(texts)}
    if params["reboot"]:
        state["reboot"] = boot.gate(tree, membership(tree))
        warn(module, state["reboot"]["not_verified"])
    if params["firmware"] and facts and not kernel_out_of_reach(facts, params["root"]):
        state["firmware"] = firmware.read(tree, run, facts, params["firmware"])
    if params["settled"] is not None:
        state["settled"] = settled(params["settled"], params["root"], run)
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
