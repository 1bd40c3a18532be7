"""A node that is a folder: modules run here, and a reboot is a program of the folder. This machine stays up."""

from __future__ import annotations

import os
import subprocess

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: member
short_description: A node that is a folder
description: [A node that is a folder.]
extends_documentation_fragment: [connection_pipelining]
options:
  folder:
    description: The node.
    vars: [{name: member_folder}]
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
        folder = self.get_option("folder")
        down = os.path.join(folder, "down")
        if os.path.exists(down):
            raise AnsibleConnectionFailure(f"{folder} is down")
        if "shutdown" in cmd or "reboot -" in cmd:
            with open(down, "w"):
                subprocess.Popen([os.path.join(folder, "reboot")], start_new_session=True)
            return 0, b"", b""
        if "/proc/sys/kernel/random/boot_id" in cmd:
            with open(os.path.join(folder, "proc/sys/kernel/random/boot_id"), "rb") as stream:
                return 0, stream.read(), b""
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)

    def reset(self):
        pass
