"""QEMU's control socket, as little of it as the lab needs."""

from __future__ import annotations

import json
import os
import pathlib
import socket

from .settings import LabError


class Qmp:
    """One conversation with one node's QEMU."""

    def __init__(self, folder: pathlib.Path, name: str, timeout: float = 120):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        # A socket path holds 107 bytes and checkouts lie deep: reach the folder through an open descriptor.
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.connect(f"/proc/self/fd/{descriptor}/qmp.sock")
        finally:
            os.close(descriptor)
        self.stream = self.socket.makefile("r")
        self.stream.readline()
        self.execute("qmp_capabilities")

    def __enter__(self) -> Qmp:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def execute(self, command: str, **arguments: object) -> object:
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self.stream:
            answer = json.loads(line)
            if "error" in answer:
                raise LabError(
                    f"{self.name}: QEMU",
                    command,
                    answer["error"]["desc"],
                    f"read qemu.log and console.log of {self.name}",
                )
            if "return" in answer:
                return answer["return"]
        raise LabError(f"{self.name}: QEMU", f"an answer to {command}", "QEMU ended", f"read qemu.log of {self.name}")

    def monitor(self, line: str) -> str:
        """A command of the human monitor: it has savevm and answers an error as text."""
        return str(self.execute("human-monitor-command", **{"command-line": line})).strip()
