# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python generate.py [TARGET]: generates code from rdma_device_plugin/kubelet/*.proto, in place or below TARGET.

Generator and formatter are those of requirements-dev.txt. The result is committed; a test compares it.
"""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

from grpc_tools import protoc

HERE = pathlib.Path(__file__).resolve().parent
# Linters skip generated code. It is formatted like all files, so no formatter needs an exception.
HEADER = "# ruff: noqa\n# pylint: skip-file\n"
FORMAT = ["ruff", "format", "--quiet", "--isolated", "--line-length", "120", "--target-version", "py39"]
DESCRIPTOR = re.compile(r"AddSerializedFile\((b'.*')\)")
CHUNK = 48


def generate(target: pathlib.Path) -> list[pathlib.Path]:
    """Write the generated modules at their package path below target and return their paths."""
    protos = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("rdma_device_plugin/kubelet/*.proto"))
    arguments = ["protoc", f"-I{HERE}", f"--python_out={target}", *protos]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see its message above")
    written = sorted(target.glob("rdma_device_plugin/kubelet/*_pb2.py"))
    for path in written:
        path.write_text(HEADER + DESCRIPTOR.sub(wrapped, path.read_text()))
    subprocess.run([sys.executable, "-m", *FORMAT, *map(str, written)], check=True)
    return written


def wrapped(found: re.Match[str]) -> str:
    """The descriptor, which protoc writes as one line, wrapped."""
    data = ast.literal_eval(found.group(1))
    lines = [repr(data[start : start + CHUNK]) for start in range(0, len(data), CHUNK)]
    return "AddSerializedFile(\n    " + "\n    ".join(lines) + "\n)"


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
