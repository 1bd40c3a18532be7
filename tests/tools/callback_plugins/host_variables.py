# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what the hosts of a run know at its end: facts and registered results, as Ansible keeps them.

Enabled by HOST_VARIABLES=FILE with this folder in ANSIBLE_CALLBACK_PLUGINS and `host_variables` in
ANSIBLE_CALLBACKS_ENABLED. The file: {host: {"facts": {...}, "registered": {...}}}. A later playbook replaces it.
"""

from __future__ import annotations

import json
import os
import pathlib

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: host_variables
type: aggregate
short_description: Writes facts and registered results of all hosts as JSON
description:
  - For the benchmarks of this repository; not part of the collection.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "host_variables"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._manager = None
        self.disabled = "HOST_VARIABLES" not in os.environ

    def v2_playbook_on_play_start(self, play):
        self._manager = play.get_variable_manager()

    def v2_playbook_on_stats(self, stats):
        registered, facts = self._manager._nonpersistent_fact_cache, self._manager._fact_cache
        known = {
            host: {"facts": dict(facts.get(host)) if facts.contains(host) else {}, "registered": dict(values)}
            for host, values in registered.items()
        }
        pathlib.Path(os.environ["HOST_VARIABLES"]).write_text(json.dumps(known, default=str), encoding="utf-8")
