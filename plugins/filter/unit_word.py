"""A value as one word of a systemd unit or a tmpfiles.d line."""

DOCUMENTATION = r"""
name: unit_word
short_description: A value as one word of a systemd file
version_added: 0.1.0
description:
  - Returns the value if systemd reads it as one word without a special meaning, and fails otherwise.
  - Blanks, quotes, C($), C(%) and line breaks are refused. systemd quotes differently in each setting.
author: The gpufabric founders (@gpufabric)
options:
  _input: {description: 'A path, an address or an option of a command.', type: str, required: true}
"""

EXAMPLES = r"""
- name: Render a line of a unit
  ansible.builtin.debug:
    msg: "ReadWritePaths={{ multus_conf_directory | gpufabric.rdma.unit_word }}"
"""

RETURN = r"""
_value: {description: The value itself., type: str}
"""

import re

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence

_PLAIN = re.compile(r"[A-Za-z0-9._+@:/\[\],=-]+")


def unit_word(value):
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    step = "correct the variable that holds it"
    raise AnsibleFilterError(
        sentence(Finding("word of a systemd file", "letters, digits and . _ + @ : / [ ] , = -", repr(value), step))
    )


class FilterModule:
    """unit_word"""

    def filters(self):
        return {"unit_word": unit_word}
