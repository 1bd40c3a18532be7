# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: device_plugin
short_description: Run the RDMA shared device plugin as a service of the node
version_added: 0.1.0
description:
  - Installs the plugin's code as one file, its libraries in a virtual environment, its config and its systemd
    unit, and starts it. A second run with the same options changes and restarts nothing.
  - Restarts the service when code, libraries or unit have changed. A changed config is read by the running plugin.
  - Looks for other plugins that serve one of the same resources, above all the Go plugin C(k8s-rdma-shared-dp), and
    installs nothing next to them. O(migrate_allowed) decides what to do about them.
  - The action plugin of the same name runs on the controller. It builds the code file, checks the config with the
    plugin's own C(check-config), sends what the node lacks, and sets O(code_sha256), O(wheels) and O(staged).
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  state:
    description:
      - V(absent) stops the service and removes all its files.
      - V(sole), where O(kubectl) runs, finds the DaemonSets of the cluster that run C(k8s-rdma-shared-dp), under any
        name, and deletes them with their pods on consent. A plugin that stops after the new one has started would
        delete the new one's socket. One managed by an operator is a finding and is left alone, because the operator
        would recreate it.
    type: str
    choices: [present, absent, sole]
    default: present
  config: {description: Text of C(config.json)., type: str}
  unit: {description: Text of the systemd unit., type: str}
  wheel_dir:
    description:
      - Folder on the controller that C(device_plugin/fetch_wheels.py) filled. The node installs the libraries from it.
      - Without one, pip on the node uses its configured index. The sha256 of each file is checked either way.
    type: str
    default: ""
  kubelet_root: {description: The kubelet's C(--root-dir)., type: str, default: /var/lib/kubelet}
  api:
    description: The API that the plugin serves by; the config is checked for it.
    type: str
    choices: [device-plugin, dra, both]
    default: device-plugin
  api_server:
    description: For a plugin that serves over DRA, how it reaches the API server. Without it the plugin has no
      kubeconfig, and one of an earlier run is removed, with its token.
    type: dict
    suboptions:
      kubeconfig:
        description: The kubelet's own kubeconfig; its server and that server's CA are used, but no credential.
        type: path
        required: true
      server: {description: "URL of the API server, if not the kubelet's.", type: str, default: ""}
  migrate_allowed:
    description:
      - What to do about another plugin that serves one of the same resources.
      - If not set, the module fails with an explanation; V(true) stops a systemd service before ours starts, and
        lists those in pods in RV(rivals); V(false) leaves the node unchanged and reports it.
      - For V(sole), whether DaemonSets that this collection did not apply may be deleted.
    type: bool
  replaced:
    description: For V(sole), namespace and name, as V(kube-system/rdma-shared-dp-ds), of the DaemonSet that will be
      applied. It is left for the new one to replace. Empty when none is wanted.
    type: str
    default: ""
  kubectl: {description: 'For V(sole), the kubectl command.', type: list, elements: str, default: [k3s, kubectl]}
  timeout_seconds: {description: 'For V(sole), how long to wait for their pods to terminate.', type: int, default: 120}
  code_sha256: {description: Checksum of the code file. Filled by the action plugin., type: str}
  wheels:
    description: Rows of C(lock/artifacts.yml). Filled by the action plugin.
    type: list
    elements: dict
    default: []
  staged: {description: Folder on the node with what the controller sent. Filled by the action plugin., type: str}
seealso:
  - module: gpufabric.rdma.service_limits
"""

EXAMPLES = r"""
- name: Advertise rdma/hca_shared_devices_a
  gpufabric.rdma.device_plugin:
    config: "{{ lookup('ansible.builtin.file', 'config.json') }}"
    unit: "{{ lookup('ansible.builtin.template', 'rdma-device-plugin.service.j2') }}"
    wheel_dir: /srv/wheels

- name: Remove the service
  gpufabric.rdma.device_plugin:
    state: absent

- name: Make way for the plugin as a service of the nodes
  gpufabric.rdma.device_plugin:
    state: sole
    migrate_allowed: true
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true
"""

RETURN = r"""
needs:
  description: Files that the node lacks. The action plugin sends them and calls again, so a task returns none.
  returned: success
  type: list
  elements: str
rivals:
  description: Other plugins on the node that serve one of the same resources.
  returned: except for O(state=sole)
  type: list
  elements: dict
  contains:
    pid: {description: Process id., type: int}
    kind: {description: 'Which plugin it is, as text.', type: str}
    where: {description: 'What started it, as text.', type: str}
    pod: {description: Whether a kubelet runs it., type: bool}
    unit: {description: 'The systemd unit whose main process it is, or empty.', type: str}
    names: {description: 'Its resources, or null when its config cannot be read.', type: list, elements: str}
main_pid:
  description: Process id of the service after the call, 0 when it does not run.
  returned: success
  type: int
status: {description: "The plugin's own status line, as in C(systemctl status).", returned: success, type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge, result
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.node import (
    ARGUMENTS,
    Installer,
    read_for,
    wants,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.plan import CODE, VENV, plan, rivals
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.wheels import fitting, requirements
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import migration


def needs(changes, wheels: dict, from_index: bool) -> list[str]:
    """What the controller must send for these changes."""
    objects = {change.object for change in changes}
    files = [CODE.rpartition("/")[2]] if CODE in objects else []
    return files + (sorted(wheels) if VENV in objects and not from_index else [])


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("state", "present", ["config", "unit", "code_sha256", "wheels"])],
        supports_check_mode=True,
    )
    if module.params["state"] == "sole":
        rest = migration.DaemonSets(module.params["kubectl"], module.params["timeout_seconds"])
        converge(module, rest.read, lambda seen: migration.plan(seen, module.params), rest.apply, quiet=True)
        return
    root, from_index = module.params["root"], not module.params["wheel_dir"]
    state = read_for(root, module.params)
    wanted = wants(module.params, state)
    wheels = fitting(module.params["wheels"], state["python"], state["machine"])
    others, first = rivals(state, wanted["names"]), plan(state, wanted)
    if not first.findings and not module.check_mode and not module.params["staged"]:
        lacking = needs(first.changes, wheels, from_index)
        if lacking:
            module.exit_json(needs=lacking, rivals=others, main_pid=0, status="", **result(first, []))

    installer = Installer(
        root,
        module.run_command,
        wanted,
        module.params["staged"],
        {} if from_index else wheels,
        requirements(module.params["wheels"]),
    )

    def read_again() -> dict:
        state.update(read_for(root, module.params))
        return state

    def more(_decided, _changes) -> dict:
        service = state["service"] or {"main_pid": 0, "status": ""}
        return {"needs": [], "main_pid": service["main_pid"], "status": service["status"]}

    converge(module, read_again, lambda state: plan(state, wanted), installer.apply, more, rivals=others)


if __name__ == "__main__":
    main()
