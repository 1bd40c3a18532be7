# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the roles that apply objects with images: by digest, as far as the lock knows them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: images_by_digest
short_description: Objects with the locked digest of each image that a node has to pull
version_added: 0.1.0
description:
  - Adds the digest of lock/artifacts.yml to each image of the objects that the bundle folder does not bring.
  - An image that the lock does not have, or has no digest for, stays as it is.
positional: bundle
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description: Objects of a cluster.
    type: list
    elements: dict
    required: true
  bundle:
    description: The bundle folder (C(k3s_bundle_dir)), or none.
    type: path
"""

EXAMPLES = r"""
- name: Show what is applied
  ansible.builtin.debug:
    msg: "{{ objects | gpufabric.rdma.images_by_digest(k3s_bundle_dir) }}"
"""

RETURN = r"""
_value:
  description: The objects.
  type: list
  elements: dict
"""

import pathlib

from ansible.module_utils.common.validation import check_type_path
from ansible.module_utils.common.yaml import yaml_load
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder, images

LOCK = pathlib.Path(__file__).resolve().parents[2] / "lock/artifacts.yml"


def images_by_digest(objects: list[dict], bundle: str | None = None) -> list[dict]:
    described = folder.described(check_type_path(bundle or ""))
    return images.by_digest(objects, yaml_load(LOCK.read_text(encoding="utf-8")), described)


class FilterModule:
    def filters(self) -> dict:
        return {"images_by_digest": images_by_digest}
