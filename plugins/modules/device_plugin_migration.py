# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: device_plugin_migration
short_description: Remove DaemonSets of RDMA shared device plugins
version_added: 0.1.0
description:
  - Finds the DaemonSets of a cluster that run C(k8s-rdma-shared-dp), whatever their name, and deletes them with their
    pods on consent, so that another plugin can serve their resources. A plugin that stops after the new one has
    started would delete the new one's socket.
  - One managed by an operator is a finding and is left alone, because the operator would recreate it.
  - Runs where kubectl does.
extends_documentation_fragment:
  - gpufabric.rdma.changing
author:
  - The gpufabric founders (@gpufabric)
options:
  replaced:
    description:
      - Namespace and name, as V(kube-system/rdma-shared-dp-ds), of the DaemonSet that will be applied. One of this
        name is left to be replaced. Empty when none is wanted.
    type: str
    default: ""
  allowed:
    description:
      - Whether DaemonSets that this collection did not apply may be deleted.
      - If not set, the module fails with an explanation; V(false) leaves them and reports it.
    type: bool
  kubectl: {description: The kubectl command., type: list, elements: str, default: [k3s, kubectl]}
  timeout_seconds: {description: How long to wait for their pods to terminate., type: int, default: 120}
seealso:
  - module: gpufabric.rdma.device_plugin
"""

EXAMPLES = r"""
- name: Make way for the plugin as a service of the nodes
  gpufabric.rdma.device_plugin_migration:
    allowed: true
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode, each with C(object), C(action), C(before) and C(after).
  returned: always
  type: list
  elements: dict
findings:
  description: Why the node is not as wanted, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: always
  type: list
  elements: dict
not_applied:
  description: What was left alone on purpose, with the reason.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.objects import OWNER, migration, plugins
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import ownership
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl


def found(daemon_sets: list[dict]) -> list[dict]:
    """The device plugins among the DaemonSets, with whose they are."""
    return plugins(daemon_sets, lambda item: ownership.ours(item, OWNER))


class Cluster:
    """The DaemonSets of a cluster."""

    def __init__(self, kubectl: Kubectl, timeout: int):
        self._kubectl, self._timeout = kubectl, timeout

    def read(self) -> list[dict]:
        return found(self._kubectl.items("daemonsets", "--all-namespaces", ownership.SHOW))

    def apply(self, changes: list[Change]):
        for change in changes:
            namespace, _slash, name = change.object.split()[1].partition("/")
            # The call returns once the pods are gone: stop theirs before ours starts.
            words = ("delete", "daemonset", name, f"--namespace={namespace}", "--cascade=foreground", "--wait")
            limits = ("--ignore-not-found", f"--timeout={self._timeout}s")
            wanted = f"{change.object} deleted within {self._timeout} s"
            self._kubectl.output(wanted, *words, *limits, limit=self._timeout + 60)
            yield change


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "replaced": {"type": "str", "default": ""},
            "allowed": {"type": "bool"},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "timeout_seconds": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    step = "check that the API server responds there, or set another host in device_plugin_server, and run again"
    cluster = Cluster(Kubectl(module.params["kubectl"], next_step=step), module.params["timeout_seconds"])
    converge(
        module,
        read=cluster.read,
        plan=lambda seen: migration(seen, module.params["replaced"], module.params["allowed"]),
        apply=cluster.apply,
        quiet=True,
    )


if __name__ == "__main__":
    main()
