# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_info
short_description: Read what a cluster provides to pods, and what keeps a pod from RDMA
version_added: 0.1.0
description:
  - Reads nodes, networks, and their DaemonSets and ConfigMaps in one kubectl call.
  - With O(dra) it reads instead what the cluster can do with DRA. The API server silently drops the fields of a feature
    gate that is off, so two objects are applied as a dry run.
  - With O(pod) it reads the pod, its events and its networks too, and probes it with C(kubectl exec). In check mode it
    does not, because that runs a script in the pod.
  - Runs where O(kubectl) runs, the first server.
extends_documentation_fragment: [gpufabric.rdma.reading]
options:
  pod: {description: 'A pod of the user, as NAMESPACE/NAME.', type: str}
  dra: {description: Whether to read what the cluster can do with DRA., type: bool, default: false}
  kubectl: {description: The command as a list of words., type: list, elements: str, default: [k3s, kubectl]}
  api_seconds:
    description: For how long an API server that does not answer is asked again before it is reported.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Read cluster resources
  gpufabric.rdma.cluster_info:
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true
  register: offered

- name: Inspect a pod
  gpufabric.rdma.cluster_info:
    pod: default/trainer
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true
"""

RETURN = r"""
api_error: {description: 'Why the cluster could not be read, or null.', returned: success, type: str}
cluster:
  description: C(nodes), C(nads) (with pools of nv-ipam), C(dns) (whether there is a DNS service), C(namespaces), C(cni)
    (DaemonSets and ConfigMaps of Flannel and Multus), C(plugins) (the same of RDMA device plugins), C(policies)
    (NicClusterPolicy, NicNodePolicy), C(security) (the Pod Security level of each namespace).
  returned: success
  type: dict
dra:
  description: C(version) of Kubernetes; C(served), whether C(resource.k8s.io/v1) is served; C(gates), for each feature
    gate whether the API server keeps its fields; C(nodes), by name with C(kubelet), C(runtime) and C(system_uuid).
    Null if no API server responds.
  returned: with O(dra)
  type: dict
pod:
  description: C(item), with C(namespace), C(name), C(annotations), C(host_paths), C(host_network), C(runtime_class),
    C(claims), C(security) and C(containers), or C(missing), kubectl's message if the pod does not exist. C(pods), its
    state by its name, with C(phase), C(reasons), C(status) (set by Multus) and C(ip). C(answers), probe output by pod
    name, empty if the pod does not run. C(api_error), why the pod could not be read, or null.
  returned: with O(pod), without check mode, where the cluster answers
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.cluster import read
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import (
    API_SECONDS,
    Unreachable,
    last_words,
    patient,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.running_pods import inspect_pod


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "pod": {"type": "str"},
            "dra": {"type": "bool", "default": False},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "api_seconds": {"type": "int", "default": API_SECONDS},
        },
        supports_check_mode=True,
    )
    with reported(module):
        kubectl = patient(module.params["kubectl"], module.params["api_seconds"])
        if module.params["dra"]:
            try:
                module.exit_json(changed=False, dra=dra.capabilities(kubectl), api_error=None)
            except Unreachable as silent:
                module.exit_json(changed=False, dra=None, api_error=last_words(silent.reason))
        # Not named `unreachable`: Ansible would treat the node as unreachable.
        cluster, error = read(kubectl)
        result = {"cluster": cluster, "api_error": error}
        if module.params["pod"] and cluster and not module.check_mode:
            result["pod"] = inspect_pod(kubectl, module.params["pod"], cluster)
        module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
