"""A node that is a root of its own, in a network namespace and a host name of its own."""

from __future__ import annotations

import shlex

from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: inside
short_description: A node that is a root and a network namespace
description: [A node that is a root and a network namespace.]
extends_documentation_fragment: [connection_pipelining]
options:
  folder:
    description: Its root.
    vars: [{name: inside_folder}]
  enter:
    description: What a command on it begins with.
    type: list
    elements: str
    vars: [{name: inside_enter}]
  become_success_timeout:
    description: See local.
    type: int
    default: 10
  become_strip_preamble:
    description: See local.
    type: bool
    default: true
"""


class Connection(Local):
    transport = "inside"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        words = [*self.get_option("enter"), "/bin/sh", "-c", cmd]
        return super().exec_command(shlex.join(words), in_data=in_data, sudoable=sudoable)

    def put_file(self, in_path, out_path):
        super().put_file(in_path, self.get_option("folder") + out_path)

    def fetch_file(self, in_path, out_path):
        Local.put_file(self, self.get_option("folder") + in_path, out_path)
