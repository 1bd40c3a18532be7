# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The typed value of a documented role variable for a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: variable
short_description: A variable of any role of this collection, typed and with its default
version_added: 0.1.0
description:
  - Returns the host's value, or the role's documented default, converted to the documented type.
    Strings such as C(false) from C(-e) or an INI inventory are converted too.
  - Playbooks and roles use it to read variables of roles that they do not depend on, so no default is repeated.
author:
  - The gpufabric founders (@gpufabric)
options:
  _terms:
    description:
      - Names of variables.
    type: list
    elements: str
    required: true
  hosts:
    description:
      - Inventory hosts to read the values of, in this order.
      - If not set, the host that the task runs for.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Show the wanted k3s version
  ansible.builtin.debug:
    msg: "{{ lookup('gpufabric.rdma.variable', 'k3s_version') }}"

- name: Show the one of the first server
  ansible.builtin.debug:
    msg: "{{ lookup('gpufabric.rdma.variable', 'k3s_version', hosts=[groups['k3s_servers'] | first]) }}"
"""

RETURN = r"""
_raw:
  description: The values, host by host, in the order of the names.
  type: list
  elements: raw
"""

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables


class LookupModule(LookupBase):
    def run(self, terms, variables=None, hosts=None):
        documented = preflight_variables.options()
        unknown = [term for term in terms if term not in documented]
        if unknown:
            raise AnsibleError(f"no role of gpufabric.rdma documents {', '.join(unknown)}")
        wanted = {term: documented[term] for term in terms}
        places = [variables] if hosts is None else [variables["hostvars"][host] for host in hosts]
        return [value for known in places for value in self._typed(wanted, known)]

    def _typed(self, wanted, known):
        typed, findings = preflight_variables.effective(wanted, known, self._templar.template)
        if findings:
            raise AnsibleError("\n".join(map(sentence, findings)))
        return [typed[name] for name in wanted]
