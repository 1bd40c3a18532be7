"""A copy of this machine to break: mounts, processes, network and files of its own, gone when the command ends.

Its lower layer is this machine's root, read through an overlay: writes are discarded. It needs a user who may mount.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

_ENTER = """
mount --make-rprivate /
mount -t tmpfs world world
mkdir world/upper world/work world/root
mount -t overlay overlay -o lowerdir=/,upperdir=world/upper,workdir=world/work world/root
mount -t proc proc world/root/proc
mount -t sysfs sysfs world/root/sys
mount --bind /dev world/root/dev
mount -t tmpfs run world/root/run
for place; do mkdir -p "world/root$place"; mount --bind "$place" "world/root$place"; done
cp script world/root/tmp/script
exec chroot world/root sh /tmp/script
"""
# Where the collection and its Python lie, which may be on file systems of their own: the overlay has none of those.
_NEEDED = sorted({str(pathlib.Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix})
_APART = ("unshare", "--mount", "--net", "--pid", "--fork")
# Run by the script: a module of ours with these arguments; its answer as text.
MODULE = """
module() { printf '%s' "$2" | {python} -c '
import json, sys
from importlib import import_module
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.load(sys.stdin)}).encode()
basic._ANSIBLE_PROFILE = "legacy"
import_module("ansible_collections.gpufabric.rdma.plugins.modules." + sys.argv[1]).main()
' "$1" >/tmp/answer || true; }
"""


def possible() -> bool:
    """Whether this user may make one."""
    if not shutil.which("unshare"):
        return False
    return (
        subprocess.run([*_APART, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False).returncode
        == 0
    )


def run(folder: pathlib.Path, script: str) -> tuple[dict, str]:
    """(what the module of the script answered last, what the script printed) of a shell script in such a copy.

    folder: an empty one. The script has `module NAME JSON`, which runs a module of the collection.
    """
    (folder / "world").mkdir(exist_ok=True)
    text = f"set -e\n{MODULE.replace('{python}', sys.executable)}\n{script}\necho; cat /tmp/answer\n"
    (folder / "script").write_text(text)
    done = subprocess.run(
        [*_APART, "sh", "-ec", _ENTER, "sh", *_NEEDED],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said, _newline, answer = done.stdout.rstrip("\n").rpartition("\n")
    return json.loads(answer), said.strip()
