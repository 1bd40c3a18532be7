# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_limits
short_description: Let container services pin memory
version_added: 0.1.0
description:
  - Writes a drop-in for each service, installed or not, with C(LimitMEMLOCK) and a start after the RDMA driver, and
    reloads systemd.
  - RDMA pins memory. Containers inherit the limit of the service that runs them, and C(/etc/security/limits.conf)
    does not apply to services.
  - Removes the drop-ins of services that are no longer listed.
  - Does not restart a service. C(not_applied) lists those that still run with the old limit.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  services:
    description: Names of the services, without C(.service).
    type: list
    elements: str
    default: [k3s, k3s-agent, containerd]
  memlock:
    description:
      - The limit, V(infinity) or a number of bytes; V(K), V(M), V(G), V(T), V(P) and V(E) may follow the number.
    type: str
    default: infinity
"""

EXAMPLES = r"""
- name: Let containers of k3s register memory
  gpufabric.rdma.service_limits:
    services: [k3s, k3s-agent]
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.memlock import parse, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, limits
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather


def read(root: str, services: list[str]) -> dict:
    tree = Tree(root)
    return {**gather(tree, subset=["owned_files"]), "limits": limits.state(tree, services)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "services": {"type": "list", "elements": "str", "default": ["k3s", "k3s-agent", "containerd"]},
            "memlock": {"type": "str", "default": "infinity"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    try:
        parse(module.params["memlock"])
    except ValueError as error:
        module.fail_json(msg=f"memlock: {error}")

    converge(
        module,
        read=lambda: read(root, module.params["services"]),
        plan=lambda facts: plan(facts, module.params, root),
        apply=lambda changes: apply_units(root, changes, module.run_command),
    )


if __name__ == "__main__":
    main()
