# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: initramfs
short_description: Rebuild initramfs images that contain an older copy of a modprobe.d file
version_added: 0.1.0
description:
  - C(ib_core) and C(mlx5_core) are often loaded from the initramfs, with the options it holds. An image that is not
    newer than a source is built again, with C(update-initramfs) or C(dracut); a node without either has nothing
    to rebuild.
  - An image is built next to the old one and renamed when complete, so a full C(/boot) does no harm.
  - File ages decide, so the next run completes one that failed midway.
  - The C(dracut) path is tested against captured trees only.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  sources:
    description: Files that the images contain. For a missing file the modification time of its directory counts,
      which is the time of its removal or later.
    type: list
    elements: path
    default: [/etc/modprobe.d/zz-gpufabric-rdma.conf]
  stale:
    description: Images known to be stale, as RV(gpufabric.rdma.rdma_netns#module:stale_images) returns them. In check
      mode no file age shows what a write would have made stale.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Update the initramfs with our module options
  gpufabric.rdma.initramfs:

- name: The same after your own play removed a file
  gpufabric.rdma.initramfs:
    sources: [/etc/modprobe.d/old-ofed.conf]
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import built_beside, sync
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.initramfs import command, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

SUBSET = ["initramfs"]


def read(root: str) -> dict:
    """The initramfs facts, with the file system's time resolution and without removed kernels."""
    tree = Tree(root)
    facts = gather(tree, subset=SUBSET)
    facts["initramfs"]["images"] = [
        {**image, "mtime": tree.stat(image["path"]).st_mtime}
        for image in facts["initramfs"]["images"]
        if tree.isdir(f"/lib/modules/{image['kernel']}") or tree.isdir(f"/usr/lib/modules/{image['kernel']}")
    ]
    return facts


def apply(changes, facts: dict, run):
    generator = facts["initramfs"]["generator"]
    kernels = {image["path"]: image["kernel"] for image in facts["initramfs"]["images"]}
    for change in changes:
        image, kernel = change.object, kernels[change.object]
        if generator == "dracut":
            # It copies to its output, and removes the output when that fails.
            with built_beside(image) as beside:
                _build(change, command(generator, beside, kernel), beside, run)
        else:
            _build(change, command(generator, image, kernel), image, run)
            sync(image)
        yield change


def _build(change, argv, output: str, run) -> None:
    code, out, error = run(argv)
    size = _size(output)
    if code or not size:
        said = f": {(error or out).strip()[-500:]}" if code else " and left an empty file or none"
        left = (
            "the old image is still in place"
            if _size(change.object)
            else "there is no image now: do not reboot the node before there is one"
        )
        raise Refused.because(
            change.object,
            change.after,
            f"{' '.join(argv)} ended with {code}{said}",
            f"fix what it reports (a full /boot is the usual cause) and run again; {left}",
        )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sources": {"type": "list", "elements": "path", "default": ["/etc/modprobe.d/zz-gpufabric-rdma.conf"]},
            "stale": {"type": "list", "elements": "path", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    facts: dict = {}
    # The announced images count for the first decision only; afterwards file ages must show that all is done.
    announced = [module.params["stale"]]

    def read_again() -> dict:
        facts.update(read(root))
        return facts

    def decide(facts: dict):
        tree = Tree(root)
        status = {path: tree.stat(path) or tree.stat(os.path.dirname(path)) for path in module.params["sources"]}
        sources = {path: entry.st_mtime for path, entry in status.items() if entry}
        return plan(facts, {"sources": sources, "stale": announced.pop() if announced else []}, root)

    def run(argv):
        return module.run_command([module.get_bin_path(argv[0], required=True), *argv[1:]])

    converge(
        module,
        read=read_again,
        plan=decide,
        apply=lambda changes: apply(changes, facts, run),
    )


if __name__ == "__main__":
    main()
