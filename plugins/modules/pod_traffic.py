# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pod_traffic
short_description: Send traffic between running test pods
version_added: 0.1.0
description:
  - Runs rounds of tests between the pods that M(gpufabric.rdma.test_pods) runs. Changes nothing.
  - Runs where O(kubectl) runs, the first server.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode nothing is sent.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  kubectl:
    description: The command as a list of words.
    type: list
    elements: str
    default: [k3s, kubectl]
  namespace:
    description: Namespace of the tests.
    type: str
    default: gpufabric-verification
  rounds:
    description: Lists of tests, run one list after the other, the tests of a list in parallel.
    type: list
    elements: list
    required: true
  seconds:
    description: How long a bandwidth test runs.
    type: int
    default: 2
  limit:
    description: Seconds after which a test is aborted.
    type: int
    default: 30
  api_seconds:
    description: For how long an API server that gives no answer is asked again before it is named.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Run the rounds between pods
  gpufabric.rdma.pod_traffic:
    rounds: "{{ rounds }}"
  register: collected
"""

RETURN = r"""
results:
  description: For each end of each test of O(rounds) C(id), C(role), C(ok), C(error); for clients C(gbps) too. C(ok) is
    null where the answer did not come, and C(error) says why.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import API_SECONDS, patient
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.pod_traffic import run_rounds


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "namespace": {"type": "str", "default": "gpufabric-verification"},
            "rounds": {"type": "list", "elements": "list", "required": True},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
            "api_seconds": {"type": "int", "default": API_SECONDS},
        },
        supports_check_mode=True,
    )
    params = module.params
    kubectl = patient(params["kubectl"], params["api_seconds"])
    results = [] if module.check_mode else run_rounds(kubectl, params)
    module.exit_json(changed=False, results=results)


if __name__ == "__main__":
    main()
