"""Documentation shared by modules that change a node: attributes, what all of them return, and the root option."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
author: The gpufabric founders (@gpufabric)
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
notes:
  - Each result has C(changes) (made, or planned in check mode), each with C(object), C(action), C(before) and C(after),
    and C(findings) (why it is not as wanted), each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  - A successful one also lists, as sentences, C(reboot_reasons) (why the node needs a reboot), C(not_applied) (left
    alone on purpose), C(not_verified) (could not be done or checked from here) and C(notes) (worth knowing; needs no
    action).
"""

    ROOT = r"""
options:
  root:
    description: Root directory of the node. With anything but V(/) only files are written; the kernel, the service
      manager and everything else that runs on this machine stay untouched, and C(not_verified) lists what was skipped.
    type: path
    default: /
"""
