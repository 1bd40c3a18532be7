# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_netns
short_description: Set the RDMA subsystem's network namespace mode, now and at boot
version_added: 0.1.0
description:
  - In V(shared) mode a container with its own network namespace sees the node's HCAs; in V(exclusive) mode it does not.
  - Sets the running mode over netlink and persists it as an option of C(ib_core) below C(/etc/modprobe.d).
  - The kernel changes the mode only while no other network namespace exists. If only short-lived units are
    in the way, the module waits for them; otherwise it persists the mode and returns a reboot reason that lists the
    owners. It never stops a workload.
  - Reports other files and the kernel command line if they set the mode too.
  - In a container only files are written.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  mode: {description: The wanted mode., type: str, default: shared, choices: [shared, exclusive]}
  override_allowed:
    description:
      - What to do when a file that is not ours persists the other mode.
      - If not set, the module fails with an explanation; V(true) writes our file, which is read later and wins;
        V(false) leaves the node unchanged and reports it.
      - No file can override the kernel command line, so the module always fails on it.
    type: bool
  retry_seconds:
    description: How long to wait for short-lived units (systemd-hostnamed and the like) that hold a network namespace.
    type: int
    default: 35
seealso:
  - module: gpufabric.rdma.kernel_modules
  - module: gpufabric.rdma.initramfs
"""

EXAMPLES = r"""
- name: Let containers see the HCAs, whatever the file of the SR-IOV network operator says
  gpufabric.rdma.rdma_netns:
    mode: shared
    override_allowed: true
"""

RETURN = r"""
stale_images:
  description: initramfs images with an older copy of our modprobe.d file; M(gpufabric.rdma.initramfs) rebuilds
    them.
  returned: success
  type: list
  elements: str
mode:
  description: Running mode after the call, V(shared) or V(exclusive), or C(unknown) with the reason.
  returned: success
  type: str
"""

import errno
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file, with_times
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.netns import OBJECT, plan, set_netns_mode
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

SUBSET = ["subsystem", "initramfs", "owned_files"]


class Setter:
    """Set the running mode, with retries until the time is up; `busy` means that the kernel refused every time."""

    def __init__(self, retry_seconds: int, set_mode=set_netns_mode, clock=time.monotonic, sleep=time.sleep):
        self.retry_seconds = retry_seconds
        self.busy = False
        self._set_mode, self._clock, self._sleep = set_mode, clock, sleep

    def __call__(self, mode: str) -> bool:
        deadline = self._clock() + self.retry_seconds
        while True:
            try:
                self._set_mode(mode)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                if self._clock() >= deadline:
                    self.busy = True
                    return False
                self._sleep(1)
            else:
                return True


def read(root: str) -> dict:
    tree = Tree(root)
    return with_times(gather(tree, subset=SUBSET), tree)


def apply(changes, root: str, set_running: Setter):
    """The file first: if the kernel stays busy, the wanted mode is already persisted."""
    for change in sorted(changes, key=lambda change: change.object == OBJECT):
        if change.object != OBJECT:
            apply_file(root, change)
            yield change
        elif set_running(change.after):
            yield change


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["shared", "exclusive"], "default": "shared"},
            "override_allowed": {"type": "bool"},
            "retry_seconds": {"type": "int", "default": 35},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    set_running = Setter(module.params["retry_seconds"])
    facts: dict = {}

    def read_again() -> dict:
        facts.update(read(root))
        return facts

    converge(
        module,
        read=read_again,
        plan=lambda facts: plan(facts, module.params, root, busy=set_running.busy),
        apply=lambda changes: apply(changes, root, set_running),
        more=lambda decided, _changes: {"mode": facts["subsystem"]["netns_mode"], "stale_images": decided.stale_images},
    )


if __name__ == "__main__":
    main()
