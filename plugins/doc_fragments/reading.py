"""Documentation shared by modules that only read a node, or decide on the controller: attributes, root and rails."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
author: The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and returns the same, as it only reads.
  diff_mode:
    support: none
    description: There is no change to show.
  idempotent:
    support: full
    description: Changes nothing.
"""

    DECIDING = r"""
author: The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
"""

    ROOT = r"""
options:
  root: {description: 'Root directory of the node, for a captured or mounted tree.', type: path, default: /}
"""

    RAILS = r"""
options:
  rails:
    description:
      - The rails in order, each named by exactly one of O(rails[].hca), O(rails[].pci), O(rails[].netdev) and
        O(rails[].mac).
      - An empty list means automatic rails, the ports of all physical functions except the HCA with the
        default route, in GPU order where each GPU has its own nearest card, else in PCI order.
      - The number of an automatic rail does not depend on cables. A port that is down and has no address while another
        port of the same card is in use counts as unused, and its number stays empty.
    type: list
    elements: dict
    default: []
    suboptions:
      hca: {description: 'Name of the HCA, such as V(mlx5_0).', type: str}
      pci: {description: 'PCI address of the HCA, such as V(0000:3b:00.0).', type: str}
      netdev: {description: Name of one of its interfaces., type: str}
      mac: {description: MAC of one of its interfaces., type: str}
      port:
        description: Port of the HCA. Needed only for an HCA with several ports if its name does not determine the port.
        type: int
"""
