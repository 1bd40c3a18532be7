# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print a text verbatim
version_added: 0.1.0
description:
  - Prints a text on the controller line by line, where the module debug would show it inside JSON or YAML.
  - Runs on the controller only and makes no connection.
attributes:
  action:
    support: full
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
  check_mode:
    support: full
    description: Prints in either mode and changes nothing.
  diff_mode:
    support: none
    description: There is no change to show.
author:
  - The gpufabric founders (@gpufabric)
options:
  text:
    description:
      - What to print.
    type: str
    required: true
  warning:
    description:
      - Whether to print it as a warning.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Print why this node is to be rebooted
  gpufabric.rdma.show:
    text: "{{ ansible_facts['rdma']['reboot_reasons'] | join(', ') }}"
"""

RETURN = r"""
warnings:
  description: The text.
  type: list
  elements: str
  returned: if O(warning=true)
"""
