"""What a call of each node module carries and costs before it does anything: payload, files of ours, import time.

    make bench-modules [ARGS='hca_facts k3s_info']

The payload is the archive that Ansible sends with a call (deflated, before base64). The time is that of a fresh Python
which imports the module, less that of one which imports AnsibleModule alone: the smallest of several rounds, so that a
busy machine adds little.
"""

from __future__ import annotations

import base64
import io
import pathlib
import re
import subprocess
import sys
import time
import zipfile

import yaml
from ansible.executor.module_common import modify_module
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_loader
from ansible.template import Templar

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
COLLECTION = "ansible_collections.gpufabric.rdma.plugins.modules"
OURS = "ansible_collections/gpufabric/rdma/plugins/module_utils/"
BASE = "from ansible.module_utils.basic import AnsibleModule"
ROUNDS = 9


def names() -> list[str]:
    """The modules that run on nodes: those of the action group."""
    runtime = yaml.safe_load((CHECKOUT / "meta/runtime.yml").read_text())
    return sorted(name.rpartition(".")[2] for name in runtime["action_groups"]["node"] if isinstance(name, str))


def payload(name: str) -> zipfile.ZipFile:
    """The archive of a call without arguments."""
    full = f"gpufabric.rdma.{name}"
    built = modify_module(
        module_name=full,
        module_path=module_loader.find_plugin_with_context(full).plugin_resolved_path,
        module_args={},
        templar=Templar(loader=DataLoader()),
        task_vars={"ansible_python_interpreter": sys.executable},
        module_compression="ZIP_DEFLATED",
    )
    (text,) = re.findall(r"[A-Za-z0-9+/=]{2000,}", built.b_module_data.decode())
    return zipfile.ZipFile(io.BytesIO(base64.b64decode(text)))


def seconds(statement: str) -> float:
    """The shortest time in which a fresh Python imports it."""
    taken = []
    for _round in range(ROUNDS):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", statement], check=True)
        taken.append(time.monotonic() - start)
    return min(taken)


def main(chosen: list[str]) -> None:
    init_plugin_loader()
    base = seconds(BASE)
    print(f"{'module':26} {'payload':>9} {'ours':>9} {'files':>6} {'import':>9}   (base: {base * 1000:.0f} ms)")
    for name in chosen or names():
        archive = payload(name)
        ours = [entry for entry in archive.infolist() if entry.filename.startswith(OURS)]
        size = sum(entry.compress_size for entry in archive.infolist())
        own = sum(entry.compress_size for entry in ours)
        taken = seconds(f"{BASE}; import {COLLECTION}.{name}") - base
        print(f"{name:26} {size / 1024:6.1f} kB {own / 1024:6.1f} kB {len(ours):6} {taken * 1000:6.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
