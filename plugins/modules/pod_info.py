# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pod_info
short_description: Inspect a pod for what keeps it from RDMA
version_added: 0.1.0
description:
  - Reads the pod, its events and its networks, and probes it with C(kubectl exec).
  - Runs where O(kubectl) runs, the first server.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode the pod is not probed, because that runs a script in it.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  pod:
    description: A pod of the user, as NAMESPACE/NAME.
    type: str
    required: true
  kubectl:
    description: The command as a list of words.
    type: list
    elements: str
    default: [k3s, kubectl]
  resolve:
    description: Name of a Service that the pod must resolve. Empty skips this.
    type: str
    default: ""
  api_seconds:
    description: For how long an API server that gives no answer is asked again before it is named.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Inspect a pod
  gpufabric.rdma.pod_info:
    pod: default/trainer
  register: seen
"""

RETURN = r"""
api_error:
  description: Why the cluster could not be read, or null.
  returned: without check mode
  type: str
cluster:
  description: As M(gpufabric.rdma.cluster_info) returns it.
  returned: without check mode, where the cluster answers
  type: dict
missing:
  description: kubectl's message if the pod does not exist.
  returned: where there is none
  type: str
item:
  description: C(namespace), C(name), C(annotations), C(host_paths), C(host_network), C(claims), C(security) and
    C(containers) of the pod.
  returned: where there is one
  type: dict
pods:
  description: State of the pod by its name, with C(phase), C(reasons), C(status) (set by Multus) and C(ip).
  returned: without check mode, where the cluster answers
  type: dict
answers:
  description: Probe output by pod name; empty if the pod does not run.
  returned: without check mode, where the cluster answers
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, failure
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import API_SECONDS, patient
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.running_pods import inspect_pod


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "pod": {"type": "str", "required": True},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "resolve": {"type": "str", "default": ""},
            "api_seconds": {"type": "int", "default": API_SECONDS},
        },
        supports_check_mode=True,
    )
    params = module.params
    result = {}
    try:
        if not module.check_mode:
            kubectl = patient(params["kubectl"], params["api_seconds"])
            result = inspect_pod(kubectl, params["pod"], params["resolve"])
    except Refused as refused:
        module.fail_json(**failure(refused))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
