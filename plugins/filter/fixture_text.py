# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a captured node's file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fixture_text
short_description: A captured node as the YAML text of its file
version_added: 0.1.0
description:
  - Texts of several lines become blocks and everything else stays on one line, so that two captures can be compared.
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description: What M(gpufabric.rdma.hca_capture) returns as RV(gpufabric.rdma.hca_capture#module:fixture).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Write the capture beside the playbook
  ansible.builtin.copy:
    content: "{{ captured.fixture | gpufabric.rdma.fixture_text }}"
    dest: "{{ playbook_dir }}/captured.yml"
    mode: "0644"
"""

RETURN = r"""
_value:
  description: YAML, beginning with C(---).
  type: str
"""

import yaml


class _Dumper(yaml.SafeDumper):
    """Representers are registered for base classes, because the controller tags the values it templates."""

    def ignore_aliases(self, _data):
        return True

    def text(self, value):
        return self.represent_scalar("tag:yaml.org,2002:str", str(value), style="|" if "\n" in value else None)

    def mapping(self, value):
        return self.represent_mapping("tag:yaml.org,2002:map", list(value.items()))

    def sequence(self, value):
        return self.represent_sequence("tag:yaml.org,2002:seq", value)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_multi_representer(str, _Dumper.text)
_Dumper.add_multi_representer(dict, _Dumper.mapping)
_Dumper.add_multi_representer(list, _Dumper.sequence)
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))


def fixture_text(fixture):
    """A fixture as its file has it."""
    return yaml.dump(fixture, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, explicit_start=True)


class FilterModule:
    """fixture_text"""

    def filters(self):
        return {"fixture_text": fixture_text}
