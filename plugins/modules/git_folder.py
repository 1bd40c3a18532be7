# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: git_folder
short_description: Write rendered cluster objects into a folder for Git
version_added: 0.1.0
description:
  - Writes one directory per role, one YAML file per object and a C(kustomization.yaml) in each directory and in the
    folder, so that C(kubectl apply -k), Flux or Argo CD can apply them.
  - The same objects always give the same files. Each starts with a header line. Files with the header that are no
    longer wanted are removed; files without it stay and are listed in RV(notes). One at a path to be written stops the
    run before anything is written.
  - Runs on the controller, makes no remote call, and neither reads nor writes Git's own data.
extends_documentation_fragment:
  - gpufabric.rdma.changing
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
author:
  - The gpufabric founders (@gpufabric)
options:
  folder:
    description: The folder on the controller, such as a directory in a clone of a repository. It is created if missing.
    type: path
    required: true
  objects:
    description:
      - The objects of each role, as in RV(gpufabric.rdma.cluster_objects#module:rendered). The roles are listed
        in this order.
    type: dict
    required: true
seealso:
  - module: gpufabric.rdma.cluster_objects
"""

EXAMPLES = r"""
- name: Render the objects
  gpufabric.rdma.cluster_objects:
    objects: "{{ lookup('ansible.builtin.template', 'objects.yml.j2') | from_yaml_all }}"
    owner: flannel
    render: true
  register: made

- name: Write them
  gpufabric.rdma.git_folder:
    folder: clusters/rack1/gpufabric
    objects:
      flannel: "{{ made.rendered }}"
"""

RETURN = r"""
folder:
  description: The folder's absolute path.
  returned: always
  type: str
changes:
  description:
    - What was changed, or would be in check mode, each with C(object), C(action), C(before) and C(after). C(action) is
      C(write) or C(remove).
  returned: always
  type: list
  elements: dict
findings:
  description:
    - Files that block the write, each with C(object), C(wanted), C(seen), C(next_step) and C(id). Nothing is written
      then.
  returned: always
  type: list
  elements: dict
notes:
  description: Foreign files, which stay.
  returned: success
  type: list
  elements: str
"""
