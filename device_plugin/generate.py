# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python generate.py [TARGET]: makes the code of rdma_device_plugin/kubelet/*.proto, with grpcio-tools of
requirements-dev.txt, in place or below TARGET. The result is committed; a test compares.
"""

from __future__ import annotations

import pathlib
import sys

from grpc_tools import protoc

HERE = pathlib.Path(__file__).resolve().parent
# The linters of the collection judge what people write; the descriptor is one long line.
HEADER = "# ruff: noqa\n# fmt: off\n# pylint: skip-file\n"
LONG = 160


def generate(target: pathlib.Path) -> list[pathlib.Path]:
    """Writes the generated modules at their package path below target and returns their paths."""
    protos = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("rdma_device_plugin/kubelet/*.proto"))
    arguments = ["protoc", f"-I{HERE}", f"--python_out={target}", f"--grpc_python_out={target}", *protos]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its message stands above")
    written = sorted(target.glob("rdma_device_plugin/kubelet/*_pb2*.py"))
    for path in written:
        lines = [f"{line}  # noqa: E501" if len(line) > LONG else line for line in path.read_text().splitlines()]
        path.write_text(HEADER + "\n".join(lines) + "\n")
    return written


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
