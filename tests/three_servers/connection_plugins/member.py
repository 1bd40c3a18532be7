"""A server on this machine: a folder, or a root and a namespace to enter. Its reboot is a program of the folder."""

import os
import shlex
import subprocess

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: member
short_description: A server on this machine
description: [A server on this machine.]
extends_documentation_fragment: [connection_pipelining]
options:
  folder:
    description: The node.
    vars: [{name: member_folder}]
  enter:
    description: Prefix of commands on it, if it has its own root.
    type: list
    elements: str
    default: []
    vars: [{name: member_enter}]
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
    transport = "member"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        folder, enter = self.get_option("folder"), self.get_option("enter")
        down = os.path.join(folder, "down")
        if os.path.exists(down):
            raise AnsibleConnectionFailure(f"{folder} is down")
        if "shutdown" in cmd or "reboot -" in cmd:
            with open(down, "w"):
                subprocess.Popen([os.path.join(folder, "reboot")], start_new_session=True)
            return 0, b"", b""
        if not enter and "/proc/sys/kernel/random/boot_id" in cmd:
            with open(os.path.join(folder, "proc/sys/kernel/random/boot_id"), "rb") as stream:
                return 0, stream.read(), b""
        cmd = shlex.join([*enter, "/bin/sh", "-c", cmd]) if enter else cmd
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)

    def put_file(self, in_path, out_path):
        super().put_file(in_path, (self.get_option("folder") if self.get_option("enter") else "") + out_path)

    def reset(self):
        pass
