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
    left alone; M(gpufabric.rdma.driver_gate) decides how the new one gets loaded.
  - Before anything on the node changes, a trial run checks that the key has the pinned fingerprint and signs the
    repository, the version exists, no other package would be removed, and the base DKMS module builds with the real
    C(dkms) for the running and for the newest kernel. Only C(dkms), headers and their dependencies are installed before
    that build.
  - The C(apt) path runs against real packages in the lab. The C(dnf) path has the same steps, compared as command
    lines; its packages are checked and unpacked by the real C(rpm) tools in the tests.
extends_documentation_fragment:
  - gpufabric.rdma.changing
author:
  - The gpufabric founders (@gpufabric)
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
    description:
      - Packages that make up the stack, instead of the flavor's own.
    type: list
    elements: str
    default: []
  repository:
    description:
      - Where the packages come from.
    type: dict
    suboptions:
      url:
        description:
          - Address of the flat repository.
        type: str
      key:
        description:
          - The public key that signs it, armored.
        type: str
      fingerprints:
        description:
          - The fingerprints that are accepted. A key file that C(gpg) reads as anything but one such key is refused.
            The node gets the key as C(gpg) exports it.
        type: list
        elements: str
        default: []
      key_sha256:
        description:
          - SHA-256 of the key file, for a node without C(gpg).
        type: str
      known_keys:
        description:
          - Keys that the lock names for the stack, each with C(id), C(fingerprint), C(release) and C(stated_by), for
            the message about a key that is not accepted.
        type: list
        elements: dict
        default: []
      trusted:
        description:
          - Whether the repository came out of a package whose SHA-256 was verified, which stands for a signature.
        type: bool
        default: false
      label:
        description:
          - The label in the repository's Release file, for the pin that blocks its C(dkms).
        type: str
        default: DOCA-HOST*
      known:
        description:
          - What the lock offers, for the message about a missing address.
        type: str
  sha256:
    description:
      - SHA-256 of package files by package name; the repository's signed index must match.
    type: dict
    default: {}
  remove_allowed:
    description:
      - Whether another driver stack may be removed.
    type: bool
  downgrade_allowed:
    description:
      - Whether an older version may replace a newer one.
    type: bool
  nvidia_rebuild_allowed:
    description:
      - Whether DKMS may rebuild a closed NVIDIA driver whose C(nvidia_peermem) was built against another RDMA stack.
        V(false) names the command. If not set, the module stops with an explanation.
    type: bool
  hold_kernel:
    description:
      - Whether to hold the kernel packages, so that no upgrade installs a kernel without the driver. If not set, holds
        stay unchanged.
    type: bool
  trial_build:
    description:
      - Whether to build the base DKMS module on trial first. This doubles the build time.
    type: bool
    default: true
  root:
    description:
      - Root directory of the node. With anything but V(/) nothing is changed.
    type: path
    default: /
seealso:
  - module: gpufabric.rdma.driver_gate
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
changes:
  description: What was changed, or would be in check mode.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object, a path or a name such as C(package doca-ofed).
      type: str
    action:
      description: What was done.
      type: str
    before:
      description: Value or text before.
      type: str
    after:
      description: Value or text after.
      type: str
findings:
  description: Why the node did not reach the wanted state. Problems found beforehand stop it before any change.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object.
      type: str
    wanted:
      description: The wanted state.
      type: str
    seen:
      description: What was found.
      type: str
    next_step:
      description: What to do about it.
      type: str
    id:
      description: Id of a known finding, else empty.
      type: str
not_verified:
  description: What could not be done or checked from here, with the reason.
  returned: success
  type: list
  elements: str
notes:
  description: Worth knowing; needs no action.
  returned: success
  type: list
  elements: str
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

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import write
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import dkms, keys, packages, trial
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import state as driver_state
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.plan import DKMS_MODULES, INBOX, plan, sentence
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import gpudirect
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["driver", "initramfs", "gpus", "gpudirect", "modules"]
_ADDS = ("install", "upgrade", "downgrade")


# Verdicts of the GPUDirect doctor that a rebuild of the NVIDIA driver ends.
_STALE = ("stub", "crc-mismatch")


def read(root: str, run, ask_origins: bool = False, unpack=None) -> dict:
    """unpack: runs a program of the node on a compressed module and returns its output."""
    tree = Tree(root)
    seams = Seams.of(tree)
    facts = gpudirect.complete(gather(tree, seams, SUBSET), tree, seams, unpack)
    state = driver_state.read(tree, facts, seams, run, ask_origins)
    evidence = facts["gpudirect"].get("evidence")
    if evidence:
        found = gpudirect.diagnose(evidence)
        state["nvidia"] = {
            "closed": evidence["nvidia"]["open"] is False,
            "stale": found.sentence if found.verdict in _STALE else None,
        }
    return state


class Installer:
    """Applies the changes of one plan. Packages of one action go to the package manager in one call."""

    def __init__(self, state: dict, wanted: dict, run, trial_build: bool = True):
        self._state, self._wanted, self._run, self._trial_build = state, wanted, run, trial_build
        self._kind = state["manager"]

    def apply(self, changes):
        if self._wanted["flavor"] != INBOX:
            exact = yield from self._prove(changes)
        else:
            exact = yield from self._need(changes)
        yield from self._finish(changes)
        yield from self._take_out(changes)
        yield from self._files(changes)
        yield from self._return(changes)
        yield from self._add(changes, exact or {})
        yield from self._build(changes)
        yield from self._rebuild(changes)
        yield from self._hold(changes)

    def _prove(self, changes):
        """A trial beside the node. Returns {package: exact version}."""
        adding = [change for change in changes if change.action in _ADDS]
        if not adding:
            yield from self._need(changes)
            return {}
        names = [change.object.split()[1] for change in adding]
        downgrade = any(change.action == "downgrade" for change in adding)
        with trial.OF[self._kind](self._run) as beside:
            exact, archives = beside.resolve(self._wanted, names, _needed(changes), downgrade)
            yield from self._need(changes)
            if self._trial_build:
                beside.build(archives, self._state["kernels"], self._architecture())
        return exact

    def _need(self, changes):
        mine = [change for change in changes if change.action == "need"]
        if mine:
            self._do(packages.install_command(self._kind, _needed(changes)), "build tools and kernel headers")
            yield from mine

    def _finish(self, changes):
        """Finish what an interrupted run left half configured; dpkg refuses anything else until then."""
        mine = [change for change in changes if change.action == "finish"]
        if mine:
            self._do(["dpkg", "--configure", "--pending"], "packages that an earlier run left half configured")
            yield from mine

    def _take_out(self, changes):
        for change in changes:
            if change.action == "take out":
                names = [line.split()[0] for line in change.before.splitlines()]
                self._do(packages.remove_command(self._kind, names), "old driver stack")
                yield change

    def _files(self, changes):
        yield from apply_units("/", [change for change in changes if change.object.startswith("/")], self._run)

    def _return(self, changes):
        for change in changes:
            if change.action == "return":
                versions = dict(line.split() for line in change.before.splitlines())
                command = packages.restore_command(self._kind, list(versions))
                self._do_pinned(command, packages.restore_pins(versions), "the distribution's user space")
                yield change

    def _add(self, changes, exact):
        adding = [change for change in changes if change.action in _ADDS]
        if not adding:
            return
        if self._kind == packages.APT and (self._wanted["repository"] or {}).get("url"):
            self._do(packages.update_command(packages.REPOSITORIES[packages.APT]), "list of the driver repository")
        names = []
        for change in adding:
            name = change.object.split()[1]
            names.append(packages.pinned(self._kind, name, exact.get(name)))
        downgrade = any(change.action == "downgrade" for change in adding)
        command = packages.install_command(self._kind, names, downgrade)
        if downgrade:
            self._do_pinned(command, packages.downgrade_pins(self._wanted["repository"]["label"]), " ".join(names))
        else:
            self._do(command, " ".join(names))
        yield from adding

    def _build(self, changes):
        for change in changes:
            if change.action == "build":
                _dkms, _module, module, version, _for, kernel = change.object.split()
                code, out, error = self._run(packages.build_command(module, version, kernel))
                if code:
                    raise trial.build_failed(module, version, kernel, self._architecture(), out + error)
                yield change

    def _rebuild(self, changes):
        """The GPU driver against the RDMA stack that is on disk by now; built beside the old one before that goes."""
        for change in changes:
            if change.action == "rebuild":
                _dkms, _module, module, version, _for, kernel = change.object.split()
                with trial.OF[self._kind](self._run) as beside:
                    beside.build_source((module, version), "/usr/src", [kernel], self._architecture())
                for command in packages.rebuild_commands(module, version, kernel):
                    code, out, error = self._run(command)
                    if code:
                        raise trial.build_failed(module, version, kernel, self._architecture(), out + error)
                yield change

    def _hold(self, changes):
        for action in ("hold", "unhold"):
            mine = [change for change in changes if change.action == action]
            if mine:
                names = [change.object.split()[1] for change in mine]
                self._do(packages.hold_command(names, action == "hold"), "kernel packages")
                yield from mine

    def _architecture(self) -> str:
        return self._state["facts"]["node"]["architecture"]

    def _do_pinned(self, argv: list[str], pins: str, what: str) -> None:
        """Run apt with pins for this command only; dnf has no such feature and needs none."""
        if self._kind != packages.APT:
            self._do(argv, what)
            return
        with tempfile.TemporaryDirectory(prefix="gpufabric-driver-") as scratch:
            path = os.path.join(scratch, "pins")
            write(path, pins)
            self._do([*argv, *packages.with_preferences(path)], what)

    def _do(self, argv: list[str], what: str) -> None:
        code, out, error = self._run(argv)
        if code:
            self._look_for_failed_builds()
            lines = [line for line in (error or out).splitlines() if line.strip() and not line.startswith("W: ")]
            raise Refused.because(
                what,
                f"{argv[0]} {argv[1]} to succeed",
                "\n".join(lines[-12:]) or f"exit status {code}",
                "fix what it reports and run again; the next run picks up where this one left off",
            )

    def _look_for_failed_builds(self) -> None:
        """A package whose build failed only reports that its script failed; the reason is in DKMS's log."""
        if self._kind != packages.APT:
            return
        _code, out, _error = self._run(["dkms", "status"])
        for module, version, kernel, _state in dkms.not_installed(
            dkms.parse(out), list(DKMS_MODULES), self._state["kernels"]
        ):
            if any(map(os.path.exists, dkms.log_path(module, version, kernel, self._architecture()))):
                raise trial.build_failed(module, version, kernel, self._architecture(), "")


def _needed(changes) -> list[str]:
    """Missing packages that builds need."""
    return [change.object.split()[1] for change in changes if change.action == "need"]


def stale_images(facts: dict, changes) -> list[str]:
    """Images of kernels whose modules on disk change: they may contain the driver."""
    if not any(change.action in (*_ADDS, "take out", "build", "finish") for change in changes):
        return []
    return [image["path"] for image in facts["initramfs"]["images"] if image["kernel"]]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
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
        },
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
        if module.check_mode and any(change.action in _ADDS for change in changes):
            decided.not_verified.append(
                "check mode contacts no repository and builds nothing: signature, version and build are unchecked"
            )
        first = plan(states[0], wanted, root)
        return {"change": sentence(first, wanted), "stale_images": stale_images(states[0]["facts"], changes)}

    converge(
        module,
        read=read_again,
        plan=lambda state: plan(state, wanted, root),
        apply=lambda changes: Installer(states[-1], wanted, run, wanted["trial_build"]).apply(changes),
        more=more,
    )


if __name__ == "__main__":
    main()
