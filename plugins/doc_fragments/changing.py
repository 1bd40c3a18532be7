"""Documentation shared by modules that change a node: attributes and the root option."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would change without changing it.
  diff_mode:
    support: full
    description: Returns one diff entry for each change when in diff mode.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
"""

    ROOT = r"""
options:
  root:
    description:
      - Root directory of the node. With anything but V(/) only files are written; the kernel, the service manager and
        everything else that runs on this machine stay untouched, and C(not_verified) lists what was skipped.
    type: path
    default: /
"""
