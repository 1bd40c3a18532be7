# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver
short_description: Install, change or remove the HCA driver stack on disk
version_added: 0.1.0
description:
  - Manages the packages, the signed repository, its pins and the DKMS builds of a driver stack. The loaded driver is
    left alone; M(gpufabric.rdma.driver_reload) decides how the new one gets loaded.
  - Before anything on the node changes, a trial run checks that the key has the pinned fingerprint and signs the
    repository, the version exists, no other package would be removed, and the base DKMS module builds with the real
    C(dkms) for the running and for the next kernel. Only C(dkms), headers and their dependencies are installed before
    that build.
  - The C(apt) path runs against real packages in the lab. The C(dnf) path has the same steps, compared as command
    lines; its packages are checked and unpacked by the real C(rpm) tools in the tests.
extends_documentation_fragment: [gpufabric.rdma.changing]
options:
  flavor:
    description:
      - V(inbox) removes every driver stack and restores the distribution's user space.
      - V(ubuntu_archive) is DOCA-OFED with signed modules from the archive of Ubuntu 26.04 and newer.
    type: str
    choices: [inbox, doca, ubuntu_archive, mlnx_ofed]
    required: true
  version:
    description:
      - Version of V(doca) or V(mlnx_ofed), such as V(3.2.1). A package version matches when it starts with this.
    type: str
  packages:
    description: Packages that make up the stack, instead of the flavor's own.
    type: list
    elements: str
    default: []
  repository:
    description: Where the packages come from.
    type: dict
    suboptions:
      url: {description: Address of the flat repository., type: str}
      key: {description: 'The public key that signs it, armored.', type: str}
      fingerprints:
        description: The fingerprints that are accepted. A key file in which C(gpg) finds anything except one such key
          is refused. The node gets the key as C(gpg) exports it.
        type: list
        elements: str
        default: []
      key_sha256: {description: 'SHA-256 of the key file, for a node without C(gpg).', type: str}
      known_keys:
        description: Keys that the lock lists for the stack, each with C(id), C(fingerprint), C(release) and
          C(stated_by), for the message about a key that is not accepted.
        type: list
        elements: dict
        default: []
      trusted:
        description:
          - Whether the repository came out of a package whose SHA-256 was verified, which replaces a signature.
        type: bool
        default: false
      label:
        description: The label in the repository's Release file, for the pin that blocks its C(dkms).
        type: str
        default: DOCA-HOST*
      known: {description: 'What the lock offers, for the message about a missing address.', type: str}
  sha256:
    description: SHA-256 of package files by package name; the repository's signed index must match.
    type: dict
    default: {}
  remove_allowed: {description: Whether another driver stack may be removed., type: bool}
  downgrade_allowed: {description: Whether an older version may replace a newer one., type: bool}
  nvidia_rebuild_allowed:
    description: Whether DKMS may rebuild a closed NVIDIA driver whose C(nvidia_peermem) was built against another RDMA
      stack. V(false) reports the command. If not set, the module stops with an explanation.
    type: bool
  hold_kernel:
    description: Whether to hold the kernel packages, so that no upgrade installs a kernel without the driver. If not
      set, holds stay unchanged.
    type: bool
  trial_build:
    description: Whether to build the base DKMS module on trial first. This doubles the build time.
    type: bool
    default: true
  root: {description: Root directory of the node. With anything but V(/) nothing is changed., type: path, default: /}
seealso:
  - module: gpufabric.rdma.driver_reload
"""

EXAMPLES = r"""
- name: DOCA-OFED of the 2025 LTS
  gpufabric.rdma.driver:
    flavor: doca
    version: 3.2.3
    repository:
      url: https://mirror.example.net/doca/3.2.3/ubuntu24.04/x86_64/
      key: "{{ lookup('ansible.builtin.file', 'nvidia-doca-host.asc') }}"
      fingerprints: [70454E6BF5D9C2D3B78709E8DC726C5E41B9CC50]

- name: Back to the kernel's own driver
  gpufabric.rdma.driver:
    flavor: inbox
    remove_allowed: true
"""

RETURN = r"""
change:
  description: The change to the modules on disk as a clause, null when there is none.
  returned: success
  type: str
stale_images:
  description: initramfs images with older modules than the disk, for M(gpufabric.rdma.initramfs).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import keys
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import state as driver_state
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.install import ADDS, Installer
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.plan import INBOX, plan, sentence
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import gpudirect
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["driver", "initramfs", "gpus", "gpudirect", "modules"]
# Verdicts of the GPUDirect doctor that a rebuild of the NVIDIA driver ends.
_STALE = ("stub", "crc-mismatch")
ARGUMENTS = {
    "flavor": {"type": "str", "choices": ["inbox", "doca", "ubuntu_archive", "mlnx_ofed"], "required": True},
    "version": {"type": "str"},
    "packages": {"type": "list", "elements": "str", "default": []},
    "repository": {
        "type": "dict",
        "options": {
            "url": {"type": "str"},
            "key": {"type": "str", "no_log": False},
            "fingerprints": {"type": "list", "elements": "str", "default": []},
            "key_sha256": {"type": "str", "no_log": False},
            "known_keys": {"type": "list", "elements": "dict", "no_log": False, "default": []},
            "trusted": {"type": "bool", "default": False},
            "label": {"type": "str", "default": "DOCA-HOST*"},
            "known": {"type": "str"},
        },
    },
    "sha256": {"type": "dict", "default": {}},
    "remove_allowed": {"type": "bool"},
    "downgrade_allowed": {"type": "bool"},
    "nvidia_rebuild_allowed": {"type": "bool"},
    "hold_kernel": {"type": "bool"},
    "trial_build": {"type": "bool", "default": True},
    "root": {"type": "path", "default": "/"},
}


def read(root: str, run, ask_origins: bool = False, unpack=None) -> dict:
    """unpack: runs a program of the node on a compressed module and returns its output."""
    tree = Tree(root)
    seams = Seams.of(tree)
    facts = gpudirect.complete(gather(tree, seams, SUBSET), tree, seams, unpack)
    state = driver_state.read(tree, facts, seams, run, ask_origins)
    evidence = facts["gpudirect"]["evidence"]
    if evidence:
        diagnosis = gpudirect.diagnose(evidence)
        state["nvidia"] = {
            "closed": evidence["nvidia"]["open"] is False,
            "stale": diagnosis.sentence if diagnosis.verdict in _STALE else None,
        }
    return state


def stale_images(facts: dict, changes) -> list[str]:
    """Images of kernels whose modules on disk change: they may contain the driver."""
    if not any(change.action in (*ADDS, "take out", "build", "finish") for change in changes):
        return []
    return [image["path"] for image in facts["initramfs"]["images"] if image["kernel"]]


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("flavor", "doca", ("version", "repository")), ("flavor", "mlnx_ofed", ("version", "repository"))],
        supports_check_mode=True,
    )
    wanted = module.params
    root = wanted["root"]

    def run(argv, environment=None, cwd=None):
        program = module.get_bin_path(argv[0], required=True)
        more = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", **(environment or {})}
        return module.run_command([program, *argv[1:]], environ_update=more, cwd=cwd)

    if wanted["repository"]:
        with reported(module):
            wanted["repository"] = keys.checked(wanted["repository"], run, module.get_bin_path("gpg"))
    states: list[dict] = []

    def read_again() -> dict:
        states.append(read(root, run, wanted["flavor"] == INBOX, gpudirect.Runner(module)))
        return states[-1]

    def more(decided, changes) -> dict:
        if module.check_mode and any(change.action in ADDS for change in changes):
            decided.not_verified.append(
                "check mode contacts no repository and builds nothing: signature, version and build are unchecked"
            )
        change = sentence(plan(states[0], wanted, root), wanted)
        return {"change": change, "stale_images": stale_images(states[0]["facts"], changes)}

    converge(
        module,
        read=read_again,
        plan=lambda state: plan(state, wanted, root),
        apply=lambda changes: Installer(states[-1], wanted, run, wanted["trial_build"]).apply(changes),
        more=more,
    )


if __name__ == "__main__":
    main()
