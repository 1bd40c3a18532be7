# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_info
short_description: What the cluster can do with DRA
version_added: 0.1.0
description:
  - Reads the version of Kubernetes, the kubelets and container runtimes of the nodes, and which fields of DRA the API
    server keeps. It drops those of a feature gate that is off without a word, so two objects are applied as a dry run.
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
    description: For how long an API server that gives no answer is asked again before RV(down) says so.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Read what the cluster can do with DRA
  gpufabric.rdma.dra_info:
  register: offered
"""

RETURN = r"""
down:
  description: Why no API server responds, or null.
  returned: success
  type: str
dra:
  description: >-
    C(version) of Kubernetes; C(served), whether C(resource.k8s.io/v1) is; C(gates), for each feature gate whether the
    API server keeps its fields; C(nodes), by name with C(kubelet) and C(runtime). Null where no API server responds.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Unreachable, last_words, patient


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "api_seconds": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    down, found = None, None
    with reported(module):
        try:
            found = dra.capabilities(patient(module.params["kubectl"], module.params["api_seconds"]))
        except Unreachable as silent:
            down = last_words(silent.reason)
    module.exit_json(changed=False, down=down, dra=found)


if __name__ == "__main__":
    main()
