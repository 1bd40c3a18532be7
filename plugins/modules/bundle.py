# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Fill a folder with all software of a cluster, checked against the lock
version_added: 0.1.0
description:
  - Runs on a machine with internet access. Downloads missing files and image archives, checks each against the lock's
    SHA-256 or digest, and lists the folder's content in its C(bundle.yml).
  - Nothing is fetched that cannot be checked. A file that does not match the lock is deleted.
  - Images are copied with C(skopeo), which checks their digest. The device plugin's own image is built from a base
    image and the locked wheels, without running anything. What O(programs) lists is read from the registry over HTTPS.
extends_documentation_fragment: [gpufabric.rdma.changing]
options:
  folder: {description: The folder to fill., type: path, required: true}
  lock:
    description: Content of C(lock/artifacts.yml), or of a file like it with the checksums of your own builds.
    type: dict
    required: true
  names:
    description: Names of artifacts and images in the lock. Empty means everything the roles of the cluster layer use
      and the lock can check; C(not_applied) lists the rest.
    type: list
    elements: str
    default: []
  programs:
    description: Images of O(names) from which the folder gets one program as a file, by the program's name there.
    type: dict
    default: {}
  only: {description: 'Path in the folder of the only missing file to fetch now.', type: str}
  architectures:
    description: Architectures of the nodes.
    type: list
    elements: str
    choices: [amd64, arm64]
    default: [amd64]
  distributions:
    description: Distributions of nodes that need extra packages, such as V(rhel9).
    type: list
    elements: str
    default: []
  driver_version:
    description: Version of C(doca-host) to add for each of O(distributions) and O(architectures), so that the folder
      holds the driver too. Empty for no driver.
    type: str
    default: ""
  sums: {description: 'SHA-256 by file name, for files without one in the lock.', type: dict, default: {}}
  mirrors:
    description: Mirrors to fetch from, by prefix of the URL or of the image reference.
    type: dict
    default: {}
  image_digests:
    description: Digests by image reference, for images without a digest in the lock.
    type: dict
    default: {}
  plugin_image:
    description: Builds the device plugin's image, too, which O(names) does not list.
    type: dict
    suboptions:
      locked:
        description: C(plugin_image) of C(lock/artifacts.yml), which names the image and the base it is built on.
        type: dict
        required: true
      wheels:
        description: C(wheels) of C(lock/artifacts.yml). The files are in C(wheels) of O(folder).
        type: list
        elements: dict
        required: true
      collection: {description: "The folder of the collection, with the plugin's source.", type: path, required: true}
      base: {description: 'Another base, as C(REFERENCE@DIGEST). It needs Python, glibc and libstdc++.', type: str}
"""

EXAMPLES = r"""
- name: Fill a folder for arm64 nodes from a mirror
  gpufabric.rdma.bundle:
    folder: /srv/bundle
    lock: "{{ lookup('ansible.builtin.file', 'lock/artifacts.yml') | from_yaml }}"
    architectures: [arm64]
    mirrors:
      https://github.com: https://mirror.example.org/github
  delegate_to: localhost
"""

RETURN = r"""
changes:
  description: In each C(object) is a path in the folder; C(before) and C(after) are SHA-256, digest or text.
  returned: always
  type: list
  elements: dict
"""

import json
import os
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import lock as bundle_lock
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import plugin_image
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle.download import extract, fetch, mirrored
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import (
    Change,
    Finding,
    Plan,
    Refused,
    failure,
    keeping,
    reported,
    result,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import rename, sha256_of, write
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels as locked_wheels

CLUSTER_ROLES = ("cni_plugins", "k3s", "flannel", "multus", "networks", "device_plugin", "node_ready", "verification")
HEADER = "# Written by playbooks/bundle.yml. JSON is YAML.\n"


def every_name(lock: dict) -> list[str]:
    rows = [*(lock.get("artifacts") or []), *(lock.get("images") or [])]
    return sorted({row["name"] for row in rows if row["used_by"] in CLUSTER_ROLES})


def plan(folder: str, wanted: dict) -> Plan:
    """Which rows the folder lacks. Files are identified by their SHA-256, image archives by digest and SHA-256."""
    made, known = Plan(), described(folder)
    for row in every_row(wanted):
        before, seen = known.get(row["path"], {}), sum_or_nothing(os.path.join(folder, row["path"]))
        kept = (before.get("digest"), before.get("sha256"), before.get("made_of"))
        if "url" in row:
            if seen != row["sha256"]:
                made.change(row["path"], "fetch", seen, row["sha256"])
        elif not seen or kept != (row["digest"], seen, row.get("made_of")):
            action = "extract" if "program" in row else "build" if "base" in row else "copy"
            made.change(row["path"], action, seen, row["digest"])
    return made


def every_row(wanted: dict) -> list[dict]:
    return [*wanted["files"], *wanted["programs"], *wanted["images"]]


def described(folder: str) -> dict:
    try:
        with open(os.path.join(folder, bundle_lock.DESCRIPTION), encoding="utf-8") as stream:
            text = stream.read()
        document = json.loads(text.partition("\n")[2])
        return {row["path"]: row for row in [*document["files"], *document["images"]]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def sum_or_nothing(path: str) -> str:
    return sha256_of(path) if os.path.isfile(path) else ""


def copy(folder: str, row: dict, mirrors: dict, run) -> None:
    """Copy the image by digest, under its own name, as an archive that k3s imports at start."""
    place = os.path.join(folder, row["path"])
    temporary = f"{place}.fetching"
    _copy(temporary, row, row["reference"], mirrors, run)
    rename(temporary, place)


def build(folder: str, row: dict, mirrors: dict, run, given: dict) -> None:
    """Copy the base by digest and put the device plugin on top of it. given: the option plugin_image."""
    place = os.path.join(folder, row["path"])
    base = f"{place}.base"
    _copy(base, row, row["base"], mirrors, run)
    parts = {
        "code": plugin_image.code(given["collection"]),
        "wheel_dir": os.path.join(folder, "wheels"),
        "fitting": lambda python, machine: locked_wheels.fitting(given["wheels"], python, machine),
    }
    try:
        plugin_image.build(base, place, row["base"], row["reference"], row["architecture"], parts)
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        step = "set another base in bundle_plugin_base, or run it again"
        raise Refused.because(f"base image {row['base']}", "an image that can be read", str(error), step) from error
    finally:
        os.unlink(base)


def _copy(temporary: str, row: dict, reference: str, mirrors: dict, run) -> None:
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    repository = reference.rpartition(":")[0]
    source = f"docker://{mirrored(repository, mirrors)}@{row['digest']}"
    if os.path.exists(temporary):
        os.unlink(temporary)
    architecture = ["--override-os", "linux", "--override-arch", row["architecture"]]
    code, out, error = run(
        ["skopeo", "copy", "--quiet", *architecture, source, f"docker-archive:{temporary}:{reference}"]
    )
    if code:
        raise Refused.because(
            row["path"],
            f"image {reference} with digest {row['digest']}",
            (error or out).strip()[-400:],
            "install skopeo; run this on a machine that reaches the registry, or set a mirror in bundle_mirrors",
        )


_ACTIONS = {"fetch": fetch, "extract": extract, "build": build, "copy": copy}


def describe(folder: str, wanted: dict, origin: str) -> str:
    images, programs = (
        [{**row, "sha256": sum_or_nothing(os.path.join(folder, row["path"]))} for row in wanted[kind]]
        for kind in ("images", "programs")
    )
    text = bundle_lock.describe(origin, [*wanted["files"], *programs], images)
    rows = {row["path"]: row for row in wanted["images"]}
    for row in text["images"]:
        known = rows.get(row["path"], {})
        row.update({name: known[name] for name in ("digest", "base", "made_of") if name in known})
    return HEADER + json.dumps(text, indent=2) + "\n"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "lock": {"type": "dict", "required": True},
            "names": {"type": "list", "elements": "str", "default": []},
            "programs": {"type": "dict", "default": {}},
            "only": {"type": "str"},
            "architectures": {"type": "list", "elements": "str", "choices": ["amd64", "arm64"], "default": ["amd64"]},
            "distributions": {"type": "list", "elements": "str", "default": []},
            "driver_version": {"type": "str", "default": ""},
            "sums": {"type": "dict", "default": {}},
            "mirrors": {"type": "dict", "default": {}},
            "image_digests": {"type": "dict", "default": {}},
            "plugin_image": {
                "type": "dict",
                "options": {
                    "locked": {"type": "dict", "required": True},
                    "wheels": {"type": "list", "elements": "dict", "required": True},
                    "collection": {"type": "path", "required": True},
                    "base": {"type": "str"},
                },
            },
        },
        supports_check_mode=True,
    )
    given = module.params
    folder, lock, digests = given["folder"], given["lock"], given["image_digests"]
    if malformed := bundle_lock.malformed(lock):
        module.fail_json(**failure(Refused(malformed)))
    names = given["names"] or [name for name in every_name(lock) if not bundle_lock.unpinned(lock, [name], digests)]
    unknown = sorted(set(names) - set(every_name(lock)))
    findings = [
        Finding(f"bundle_names: {name}", "a name in the lock", "no such name", f"one of {', '.join(every_name(lock))}")
        for name in unknown
    ]
    findings += bundle_lock.unpinned(lock, names, digests)
    platforms = (given["architectures"], given["distributions"])
    findings += bundle_lock.undrivable(lock, given["driver_version"], *platforms, given["sums"])
    wanted = bundle_lock.wanted(lock, names, *platforms, digests, given["driver_version"], given["sums"])
    wanted = bundle_lock.programs(wanted, given["programs"])
    with reported(module):
        if findings:
            raise Refused(findings)
        wanted["images"] += _plugin_images(given)
        made = plan(folder, wanted)
        for name in sorted(set(every_name(lock)) - set(names)) if not given["names"] else ():
            made.not_applied.append(
                f"{name} is left out: the lock has no digest for it; set one in bundle_image_digests"
            )
        done = made.changes if module.check_mode else _fill(given, wanted, made, module)
    module.exit_json(**result(made, done))


def _fill(given: dict, wanted: dict, made: Plan, module: AnsibleModule) -> list:
    folder, mirrors, run, done = given["folder"], given["mirrors"], module.run_command, []
    rows = {row["path"]: row for row in every_row(wanted)}
    if {"copy", "build"} & {change.action for change in made.changes} and not module.get_bin_path("skopeo"):
        step = "install skopeo (apt-get install skopeo, dnf install skopeo) and run again; nothing has been downloaded"
        raise Refused.because("program skopeo", "on the path, to copy images by digest", "not found", step)
    with keeping(done):
        for change in [change for change in made.changes if given["only"] in (None, change.object)]:
            further = {"build": (run, given["plugin_image"]), "copy": (run,)}.get(change.action, ())
            _ACTIONS[change.action](folder, rows[change.object], mirrors, *further)
            done.append(change)
        if {change.object for change in made.changes} == {change.object for change in done}:
            done += _write_description(folder, wanted, given["lock"].get("origin", "release"))
    return done


def _plugin_images(given: dict) -> list[dict]:
    """Rows of the device plugin's image, each with the digest of its parts."""
    wanted = given["plugin_image"]
    if not wanted:
        return []
    made_of = plugin_image.made_of(plugin_image.code(wanted["collection"]), wanted["wheels"])
    rows = bundle_lock.plugin_image(wanted["locked"], wanted["base"], given["architectures"])
    return [{**row, "made_of": made_of} for row in rows]


def _write_description(folder: str, wanted: dict, origin: str) -> list[Change]:
    path, text = os.path.join(folder, bundle_lock.DESCRIPTION), describe(folder, wanted, origin)
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            before = stream.read()
    except FileNotFoundError:
        before = ""
    if before == text:
        return []
    write(path, text)
    return [Change(bundle_lock.DESCRIPTION, "write", before, text)]


if __name__ == "__main__":
    main()
