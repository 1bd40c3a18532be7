"""A Debian root from the lab's image to install drivers in, at this machine's native speed.

Packages, apt, dpkg, dkms, compiler and kernel headers are real. Doubles replace what only a booted machine has: uname
and /proc show the release of the image's kernel, and systemctl agrees to everything. It needs the right to mount, and
leaves no mount behind.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import ansible

_ENTER = """
set -e
mount --make-rprivate /
mount -o loop,ro,noload {image}/disk.raw lower
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root
cp lower/usr/bin/uname root/usr/bin/uname.real
for name in uname systemctl; do cp doubles/$name root/usr/bin/$name; done
mkdir -p root/srv/{{packages,collection,driver}}
mount -t proc proc root/proc
mount --bind release root/proc/sys/kernel/osrelease
mount --bind /dev root/dev
mount --bind {packages} root/srv/packages
mount --bind {checkout} root/srv/collection/ansible_collections/gpufabric/rdma
mount --bind {given} root/srv/driver
exec chroot root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C sh -c {command}
"""
_MODULE = """
import json, sys
sys.path[:0] = ["/srv/collection", "/srv/packages"]
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.load(open("/srv/driver/arguments.json"))}).encode()
basic._ANSIBLE_PROFILE = "legacy"
from ansible_collections.gpufabric.rdma.plugins.modules import driver
driver.main()
"""
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


class Root:
    """The image below an overlay that takes the writes; `given` is its /srv/driver."""

    def __init__(self, image: pathlib.Path, folder: pathlib.Path):
        self.image, self.folder = image, folder
        self.given = folder / "given"
        self.kernel = (image / "kernel").read_text().strip()
        for name in ("lower", "upper", "work", "root", "doubles", "given"):
            (folder / name).mkdir(parents=True)
        (folder / "upper/srv/collection/ansible_collections/gpufabric/rdma").mkdir(parents=True)
        (folder / "release").write_text(f"{self.kernel}\n")
        real = 'exec /usr/bin/uname.real "$@"'
        (folder / "doubles/uname").write_text(f'#!/bin/sh\n[ "$*" = -r ] && echo {self.kernel} && exit\n{real}\n')
        (folder / "doubles/systemctl").write_text("#!/bin/sh\nexit 0\n")
        for double in (folder / "doubles").iterdir():
            double.chmod(0o755)
        (self.given / "module.py").write_text(_MODULE)

    def run(self, command: str) -> str:
        """A shell command in the root, its output; an exit status other than 0 fails."""
        done = self._enter(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def module(self, **arguments) -> dict:
        """The result of the module driver with these arguments."""
        (self.given / "arguments.json").write_text(json.dumps(arguments))
        done = self._enter("python3 -I /srv/driver/module.py")
        start = done.stdout.find("{")
        assert start >= 0, done.stdout + done.stderr
        return json.loads(done.stdout[start:])

    def _enter(self, command: str) -> subprocess.CompletedProcess:
        script = _ENTER.format(
            image=shlex.quote(str(self.image)),
            packages=shlex.quote(str(pathlib.Path(ansible.__file__).parents[1])),
            checkout=shlex.quote(str(CHECKOUT)),
            given=shlex.quote(str(self.given)),
            command=shlex.quote(command),
        )
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "bash", "-c", script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )


def reason_against() -> str | None:
    """Why there can be no root here, or None."""
    if os.geteuid():
        return "root is needed for an overlay and a chroot"
    if not pathlib.Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    if sys.version_info[:2] < (3, 11):
        return "the image's Python runs this machine's ansible-core, which needs 3.11"
    return None
