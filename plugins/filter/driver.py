"""Filters of the role driver: where a node's packages come from, and how one is unpacked."""

DOCUMENTATION = r"""
name: driver_repository
short_description: Row of the lock for the driver repository of a node
version_added: 0.1.0
description: Finds the repository of a driver stack for the distribution and architecture of a node.
positional: facts, flavor, version
options:
  _input: {description: The content of C(lock/artifacts.yml)., type: dict, required: true}
  facts:
    description:
      - C(ansible_facts.rdma) of the node, or its part RV(gpufabric.rdma.hca_facts#module:ansible_facts) C(node).
    type: dict
    required: true
  flavor: {description: 'Name of the stack, such as V(doca).', type: str, required: true}
  version: {description: Its version., type: str, required: true}
"""

EXAMPLES = r"""
- name: Show where DOCA comes from
  ansible.builtin.debug:
    msg: "{{ lock | gpufabric.rdma.driver_repository(ansible_facts['rdma'], 'doca', '3.2.3') }}"
  vars:
    lock: "{{ lookup('ansible.builtin.file', 'lock/artifacts.yml') | from_yaml }}"
"""

RETURN = r"""
_value:
  description:
    - C(url), C(label) and C(fingerprints) of the repository, and C(known), which lists what the lock has for this stack
      if it has nothing for this node; C(url) is then empty. C(fingerprints) are the keys that the lock has verified.
    - C(known_keys) are all keys that the lock lists for the stack, each with C(id), C(fingerprint), C(release) and
      C(stated_by); a key that is not verified has no fingerprint.
  type: dict
"""

import os

from ansible.module_utils.common.validation import check_type_path
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import driver, folder


def driver_repository(lock: dict, facts: dict, flavor: str, version: str) -> dict:
    node = facts.get("node", facts)
    wanted = (packages.manager(node), str(version), packages.distribution(node), packages.architecture(node))
    rows = [row for row in lock.get("repositories", []) if row["name"] == flavor]
    places = {
        (row["kind"], str(row["version"]), place["distribution"], place["architecture"]): (row, place["url"])
        for row in reversed(rows)
        for place in row["places"]
    }
    row, url = places.get(wanted, ({"keys": []}, ""))
    return {
        "url": url,
        "label": row.get("label", ""),
        "fingerprints": [key["fingerprint"] for key in row["keys"] if key["fingerprint"]],
        "known": "" if url else ", ".join(sorted("{1} for {2} {3}".format(*known) for known in places)),
        "known_keys": [
            {**key, "release": f"{row['version']} for {', '.join(sorted({p['distribution'] for p in row['places']}))}"}
            for row in rows
            for key in row["keys"]
        ],
    }


def driver_release(given: str | None, facts: dict, flavor: str, directory: str | None) -> str:
    """The version that driver_version means on a node. directory: the bundle folder, if it is the driver's source."""
    path = check_type_path(directory or "")
    bundle = folder.described(path) or {} if path and path != folder.cache() else None
    return driver.release(given, folder.lock(), facts.get("node", facts), flavor, bundle)


def driver_package(directory: str | None, facts: dict, version: str) -> dict:
    """path and sha256 of the doca-host package that a bundle folder has for a node; empty without one."""
    directory = os.path.abspath(check_type_path(directory)) if directory else ""
    rows = driver.packages(folder.described(directory) or {}, facts.get("node", facts), version)
    return {"path": os.path.join(directory, rows[0]["path"]), "sha256": rows[0]["sha256"]} if rows else {}


class FilterModule:
    def filters(self) -> dict:
        return {
            "driver_repository": driver_repository,
            "driver_package": driver_package,
            "driver_release": driver_release,
            "driver_unpack": packages.unpack_command,
        }
