# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cni_plugins
short_description: Install CNI plugins from a bundle folder on a node
version_added: 0.1.0
description:
  - Extracts the listed plugins from the archives of a bundle folder on the controller, checks their sha256, ELF machine
    and size there, and copies missing or different ones to the node.
  - Each program is written to a temporary file, checked again and renamed, so that a running plugin is never
    incomplete.
  - Plugins that are not listed and were not installed by an earlier run are left alone.
  - A converged node costs one call and no transfer, and with O(sources) no request.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  bundle:
    description: The bundle folder on the controller; C(bundle.yml) in it lists its files.
    type: path
    required: true
  names:
    description: The plugins. V(flannel) comes from C(flannel-cni-plugin) of the bundle, a file or an image, all others
      from the file C(cni-plugins).
    type: list
    elements: str
    required: true
  machine: {description: Hardware name of the node as C(uname -m) prints it., type: str, required: true}
  directory: {description: Where the container runtime looks for plugins., type: path, default: /opt/cni/bin}
  binaries:
    description: Set by the action plugin. The plugins to install.
    type: list
    elements: dict
    suboptions:
      name: {description: Name of the plugin., type: str, required: true}
      sha256: {description: Digest of its program., type: str, required: true}
  sources:
    description:
      - Where the node fetches the archives itself, instead of getting its programs from the controller. Each is
        compared with its C(sha256), or a C(program) of an image with the C(digest), and each program with O(binaries).
      - Rows of the lock, with C(name), C(path), C(architecture) and C(url), or C(reference).
    type: list
    elements: dict
    default: []
  staged:
    description:
      - Set by the action plugin. Folder on the node with what RV(needs) lists. Without it nothing is installed.
    type: path
"""

EXAMPLES = r"""
- name: Install the CNI plugins
  gpufabric.rdma.cni_plugins:
    bundle: "{{ k3s_bundle_dir }}"
    names: [loopback, bridge, host-local, portmap, macvlan, flannel]
    machine: "{{ ansible_facts['rdma']['node']['architecture'] }}"
"""

RETURN = r"""
changes:
  description: In each C(action) is C(place), C(mode), C(remove) or C(record); C(before) and C(after) are digests.
  returned: always
  type: list
  elements: dict
needs: {description: Plugins to copy to the node., returned: success, type: list, elements: str}
"""

import hashlib
import json
import os
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle.download import extract, fetch
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import plugins as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file, under, write


def apply(changes, root: str, binaries: list, staged: str, sources: list):
    digests = {item["name"]: item["sha256"] for item in binaries}
    with tempfile.TemporaryDirectory(prefix="gpufabric-cni-", dir="/var/tmp") as folder:
        for archive in archives(planner.placed(changes), staged, sources, folder):
            unpack(archive, folder, set(digests.values()))
        for change in changes:
            path = under(root, change.object)
            if change.action == "place":
                place(path, folder, digests[os.path.basename(path)])
            elif change.action in ("mode", "remove"):
                apply_file(root, change)
            else:
                write(path, json.dumps(digests, indent=2, sort_keys=True) + "\n")
            yield change


def archives(names: list, staged: str, sources: list, folder: str) -> list:
    """The files with these plugins; those that were not sent are fetched into the folder."""
    if not names or not sources:
        return [os.path.join(staged, planner.ARCHIVE)] if names else []
    wanted = planner.holding(names, sources)
    for source in wanted:
        (extract if "program" in source else fetch)(folder, source, {})
    return [os.path.join(folder, source["path"]) for source in wanted]


def unpack(archive: str, folder: str, digests: set) -> None:
    """Write each program with one of these digests to the folder, under its digest."""

    def keep(content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        if digest in digests:
            write(os.path.join(folder, digest), content)

    if not tarfile.is_tarfile(archive):
        with open(archive, "rb") as stream:
            keep(stream.read())
        return
    with tarfile.open(archive) as source:
        for member in source:
            if member.isfile():
                keep(source.extractfile(member).read())


def place(path: str, folder: str, digest: str) -> None:
    try:
        with open(os.path.join(folder, digest), "rb") as stream:
            content = stream.read()
    except FileNotFoundError as error:
        seen = "no such program in the archive"
        raise Refused.because(path, f"a program with sha256 {digest}", seen, "run again") from error
    write(path, content, int(planner.MODE, 8))


def main() -> None:
    module = AnsibleModule(argument_spec=planner.ARGUMENTS, supports_check_mode=True)
    root, directory = module.params["root"], module.params["directory"]
    binaries, staged, sources = (module.params[name] for name in ("binaries", "staged", "sources"))
    if binaries is None:
        module.fail_json(msg="binaries is set by the action plugin of this module, which did not run")

    def look() -> dict:
        return planner.read(root, binaries, directory)

    first = planner.plan(look(), binaries, directory)
    fetched = planner.holding(planner.placed(first.changes), sources)
    first.notes += [f"fetched by the node: {row.get('url') or row['reference']}" for row in fetched]
    missing = [] if sources else planner.placed(first.changes)

    def more(decided, _changes) -> dict:
        decided.notes = first.notes
        return {"needs": missing}

    converge(
        module,
        read=look,
        plan=lambda state: planner.plan(state, binaries, directory),
        apply=lambda changes: apply(changes, root, binaries, staged, sources),
        more=more,
        # Nothing is changed before everything is available.
        check_mode=module.check_mode or bool(missing and not staged),
    )


if __name__ == "__main__":
    main()
