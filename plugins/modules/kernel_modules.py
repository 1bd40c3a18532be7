# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_modules
short_description: Load the kernel modules of an RDMA node, now and at boot
version_added: 0.1.0
description:
  - Loads the modules that are missing and lists all of them below C(/etc/modules-load.d), so that they come back at
    boot.
  - Adds C(ib_ipoib) where a port is InfiniBand, and C(nvidia_peermem) where GPUDirect RDMA needs it.
  - Fails with path and line if something blacklists or overrides a wanted module, and never forces it.
  - Never loads C(nvidia_peermem) just to see. The files are checked first, and the run fails with verdict and action
    where the module cannot load.
  - Never unloads a module.
  - In a container only files are written.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  required:
    description: Modules that the node must have.
    type: list
    elements: str
    default: [mlx5_core, mlx5_ib, ib_uverbs, ib_umad, rdma_cm, rdma_ucm]
  ipoib:
    description: Whether to include C(ib_ipoib); V(auto) does if a port is InfiniBand.
    type: str
    choices: [auto, always, never]
    default: auto
  gpudirect:
    description:
      - How GPUs and HCAs reach each other.
      - V(auto) loads C(nvidia_peermem) where the NVIDIA driver provides it and the node does not use dma-buf.
      - With V(auto) and V(peermem) an existing module that cannot load is a failure; V(dmabuf) and V(off) do not need
        it.
      - V(peermem) requires it on every node with an NVIDIA GPU.
      - V(dmabuf) and V(off) leave it out.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  gpu_initiated:
    description:
      - Whether the NVIDIA driver's options for GPU-initiated RDMA are written on a node with an NVIDIA GPU.
      - They take effect at the next boot, which C(reboot_reasons) asks for. V(report) removes what V(write) wrote.
    type: str
    choices: [report, write]
    default: report
"""

EXAMPLES = r"""
- name: Load what RDMA needs, now and at boot
  gpufabric.rdma.kernel_modules:

- name: A node with Intel E810 cards
  gpufabric.rdma.kernel_modules:
    required: [irdma, ib_uverbs, rdma_cm, rdma_ucm]
    gpudirect: "off"
"""

RETURN = r"""
stale_images:
  description: initramfs images with an older copy of our modprobe.d file; M(gpufabric.rdma.initramfs) rebuilds
    them.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file, with_times
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import Runner, complete
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, modules
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["hcas", "gpus", "gpudirect", "modules", "initramfs", "owned_files", "!gids"]


def read(root: str, required: list[str], run=None) -> dict:
    """The facts the plan needs, with the state of modules named only in this call.

    run: how the doctor starts a program (see _host.gpudirect.examine).
    """
    tree = Tree(root)
    seams = Seams.of(tree)
    facts = with_times(complete(gather(tree, seams, SUBSET), tree, seams, run), tree)
    facts["modules"].update(modules.state(tree, required))
    return facts


def apply(changes, root: str, run):
    """Files first: they take effect at boot even when a module refuses to load now."""
    loads = [change for change in changes if change.action == "load"]
    for change in changes:
        if change not in loads:
            apply_file(root, change)
            yield change
    if not loads:
        return
    names = [change.object.split()[1] for change in loads]
    code, _out, error = run(["modprobe", "-a", "--", *names])
    if code:
        raise Refused.because(
            f"module {', '.join(names)}",
            "loaded",
            f"modprobe: {error.strip() or f'exit status {code}'}",
            "check the kernel's reason (dmesg | tail): 'Key was rejected' means Secure Boot; 'Unknown symbol' "
            "and 'disagrees about version' mean modules of two driver stacks",
        )
    yield from loads


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "required": {
                "type": "list",
                "elements": "str",
                "default": ["mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm"],
            },
            "ipoib": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "gpudirect": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
            "gpu_initiated": {"type": "str", "choices": ["report", "write"], "default": "report"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]

    def run(argv):
        return module.run_command([module.get_bin_path(argv[0], required=True), *argv[1:]])

    converge(
        module,
        read=lambda: read(root, module.params["required"], Runner(module)),
        plan=lambda facts: plan(facts, module.params, root),
        apply=lambda changes: apply(changes, root, run),
        more=lambda decided, _changes: {"stale_images": decided.stale_images},
    )


if __name__ == "__main__":
    main()
