# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_info
short_description: Whether a node's containerd is configured to use CDI
version_added: 0.1.0
description:
  - Reads the configuration files of the containerd of k3s or of the distribution.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
"""

EXAMPLES = r"""
- name: Read the node's container runtime
  gpufabric.rdma.runtime_info:
  register: runtime
"""

RETURN = r"""
source:
  description: The file that configures containerd, or null where it runs with its defaults.
  returned: success
  type: str
cdi:
  description: Whether the files switch CDI on or off; null where they leave it to containerd.
  returned: success
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    with reported(module):
        source, texts = containerd.read(Tree(module.params["root"]))
        module.exit_json(changed=False, source=source, cdi=containerd.cdi(texts))


if __name__ == "__main__":
    main()
