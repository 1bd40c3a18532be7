# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_probe
short_description: Gather a node's facts and probe it as a container would
version_added: 0.1.0
description:
  - Gathers the facts of M(gpufabric.rdma.hca_facts) and looks for the character devices and test tools that a container
    would use.
  - Reads its interfaces, routes and network configuration files as M(gpufabric.rdma.node_facts) does.
  - Locks memory as O(user) under the limit of each of O(services), in a short-lived child process.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.rails
author:
  - The gpufabric founders (@gpufabric)
options:
  root: {description: Root directory of the node. With anything but V(/) only facts are read., type: path, default: /}
  software_hcas: {description: Whether soft-RoCE and siw devices count as HCAs., type: bool, default: false}
  services: {description: Services under whose limit to lock memory., type: list, elements: str, default: []}
  user:
    description: User that locks memory, and whose rights on the character devices are told.
    type: str
    default: nobody
  directory: {description: As for M(gpufabric.rdma.node_facts)., type: path, default: /etc/cni/multus/net.d}
  firewall: {description: Whether to read the firewall., type: bool, default: false}
  kubelet_root:
    description: The kubelet's C(--root-dir), below which device plugins are found.
    type: path
    default: /var/lib/kubelet
"""

EXAMPLES = r"""
- name: Gather facts and probe the HCAs as a container would
  gpufabric.rdma.host_probe:
    services: [k3s]
"""

RETURN = r"""
ansible_facts: {description: The facts as M(gpufabric.rdma.hca_facts) returns them., returned: success, type: dict}
networks: {description: What M(gpufabric.rdma.node_facts) returns., returned: success, type: dict}
firewall:
  description: What M(gpufabric.rdma.firewall_info) returns as C(firewall).
  returned: with O(firewall)
  type: dict
probe:
  description: C(char_devices) by name with their rights, C(memlock) by service, C(plugins) by resource with what its
    sockets answered (null or empty below another root than V(/)), C(tools), and C(loaded), modules that the reading has
    loaded.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node as device_plugin
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import probe, rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import node_tools
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "software_hcas": {"type": "bool", "default": False},
            "rails": RAILS,
            "services": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": "nobody"},
            "directory": {"type": "path", "default": "/etc/cni/multus/net.d"},
            "firewall": {"type": "bool", "default": False},
            "kubelet_root": {"type": "path", "default": device_plugin.KUBELET},
        },
        supports_check_mode=True,
    )
    with reported(module):
        params = module.params
        tree = Tree(params["root"])
        before = rdma_modules()
        try:
            facts = gather(tree, Seams.of(tree), software_hcas=params["software_hcas"], rails=params["rails"])
            probed = {
                **probe(facts, params["services"], params["user"], params["root"]),
                "plugins": device_plugin.answers(params["root"], params["kubelet_root"]),
                "loaded": sorted(rdma_modules() - before),
            }
            networks = node_tools.networks(tree, params["directory"])
            read = {"firewall": firewall.info(tree, module.run_command)} if params["firewall"] else {}
        except (OSError, ValueError) as error:
            module.fail_json(
                msg=f"root {params['root']}: wanted a node whose facts and limits can be read, seen {error}. "
                "Next step: fix what it reports and run again"
            )
        module.exit_json(changed=False, ansible_facts={"rdma": facts}, probe=probed, networks=networks, **read)


if __name__ == "__main__":
    main()
