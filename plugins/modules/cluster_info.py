# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_info
short_description: Read what a cluster provides to pods
version_added: 0.1.0
description:
  - Reads nodes, networks, and their DaemonSets and ConfigMaps in one kubectl call.
  - Runs where O(kubectl) runs, the first server.
extends_documentation_fragment:
  - gpufabric.rdma.reading
author:
  - The gpufabric founders (@gpufabric)
options:
  kubectl:
    description: The command as a list of words.
    type: list
    elements: str
    default: [k3s, kubectl]
  api_seconds:
    description: For how long an API server that gives no answer is asked again before it is named.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Read cluster resources
  gpufabric.rdma.cluster_info:
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true
  register: offered
"""

RETURN = r"""
api_error:
  description: Why the cluster could not be read, or null.
  returned: success
  type: str
cluster:
  description: C(nodes), C(nads) (with pools of nv-ipam), C(dns) (whether there is a DNS service), C(namespaces), C(cni)
    (DaemonSets and ConfigMaps of Flannel and Multus), C(plugins) (the same of RDMA device plugins), C(policies)
    (NicClusterPolicy), C(security) (the Pod Security level of each namespace).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.cluster import read
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import API_SECONDS, patient


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "api_seconds": {"type": "int", "default": API_SECONDS},
        },
        supports_check_mode=True,
    )
    # Not named `unreachable`: Ansible would treat the node as unreachable.
    cluster, error = read(patient(module.params["kubectl"], module.params["api_seconds"]))
    module.exit_json(changed=False, cluster=cluster, api_error=error)


if __name__ == "__main__":
    main()
