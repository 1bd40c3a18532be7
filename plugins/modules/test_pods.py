# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: test_pods
short_description: Run test pods, send traffic between them, and remove them
version_added: 0.1.0
description:
  - Runs the pods that M(gpufabric.rdma.plan) planned, probes each, and sends traffic between them.
  - All objects are in a separate namespace, which is deleted with them, so no change is reported.
  - Runs where O(kubectl) runs, the first server.
author: The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode no pod is run or removed, and nothing is sent.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  state:
    description:
      - V(present) applies O(objects), waits for the pods, probes each and, with O(traffic), sends between them.
      - V(measured) runs O(rounds) between the pods that an earlier call has started.
      - V(absent) deletes O(namespace) with everything in it.
    type: str
    default: present
    choices: [present, measured, absent]
  kubectl: {description: The command as a list of words., type: list, elements: str, default: [k3s, kubectl]}
  namespace: {description: Namespace of the tests., type: str, default: gpufabric-verification}
  objects: {description: 'For V(present), what to apply.', type: list, elements: dict, default: []}
  pods: {description: 'For V(present), the purpose of each pod.', type: list, elements: dict, default: []}
  traffic:
    description: Whether to send traffic from each node's pods to those of the next one.
    type: bool
    default: true
  rounds:
    description: For V(measured), lists of tests, run one list after the other, the tests of a list in parallel.
    type: list
    elements: list
    default: []
  resolve: {description: Name of a Service that pods must resolve. Empty skips this., type: str, default: ""}
  port: {description: First TCP port of the tests between pods., type: int, default: 18700}
  seconds: {description: How long a bandwidth test runs., type: int, default: 2}
  limit: {description: Seconds after which a test is aborted., type: int, default: 30}
  removed_afterwards:
    description: Whether to delete the pods and their namespace afterwards, with any result of the tests.
    type: bool
    default: false
  wait_seconds: {description: 'How long the pods may take to start, and to be removed.', type: int, default: 180}
  api_seconds:
    description: For how long an API server that does not answer is asked again before it is reported.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Run the test pods and traffic between them
  gpufabric.rdma.test_pods:
    objects: "{{ planned['plan']['objects'] }}"
    pods: "{{ planned['plan']['pods'] }}"
  register: ran

- name: Delete the test pods
  gpufabric.rdma.test_pods:
    state: absent
"""

RETURN = r"""
pods:
  description: State of each pod, with C(phase), C(reasons), C(status) (set by Multus) and C(ip).
  returned: O(state=present)
  type: dict
claims:
  description: The claims of the pods, with C(of), the pods that they were made for, and C(devices).
  returned: O(state=present)
  type: list
  elements: dict
answers: {description: Probe output of each running pod., returned: O(state=present), type: dict}
traffic: {description: 'C(tests) with their results, and what was C(left_out).', returned: O(state=present), type: dict}
seconds: {description: How long the parts took., returned: O(state=present), type: dict}
removed:
  description: C(left) and C(unanswered), as with O(state=absent).
  returned: O(removed_afterwards=true)
  type: dict
left: {description: "kubectl's message about what could not be removed, or null.", returned: O(state=absent), type: str}
results:
  description: For each end of each test of O(rounds) C(id), C(role), C(ok), C(error); for clients C(gbps) too. C(ok) is
    null if no answer came; C(error) says why.
  returned: O(state=measured)
  type: list
  elements: dict
unanswered:
  description: Why the rest is unknown if the API server stopped answering; otherwise null.
  returned: O(state=present) or O(state=absent), without check mode
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_traffic, running_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import API_SECONDS, Kubectl, patient


def run(kubectl: Kubectl, params: dict) -> dict:
    if params["state"] == "present":
        return running_pods.run(kubectl, params)
    if params["state"] == "measured":
        return {"results": pod_traffic.run_rounds(kubectl, params)}
    return running_pods.remove(kubectl, params["namespace"], params["wait_seconds"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "default": "present", "choices": ["present", "measured", "absent"]},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "namespace": {"type": "str", "default": "gpufabric-verification"},
            "objects": {"type": "list", "elements": "dict", "default": []},
            "pods": {"type": "list", "elements": "dict", "default": []},
            "traffic": {"type": "bool", "default": True},
            "rounds": {"type": "list", "elements": "list", "default": []},
            "resolve": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 18700},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
            "removed_afterwards": {"type": "bool", "default": False},
            "wait_seconds": {"type": "int", "default": 180},
            "api_seconds": {"type": "int", "default": API_SECONDS},
        },
        supports_check_mode=True,
    )
    with reported(module):
        params, result = module.params, {}
        if not module.check_mode:
            result = run(patient(params["kubectl"], params["api_seconds"]), params)
        module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
