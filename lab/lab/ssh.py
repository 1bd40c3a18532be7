"""The lab's own SSH: one key, one host key per node, and a known_hosts file, so host key checking stays on."""

import hashlib
import os
import pathlib
import socket
import subprocess
import tempfile

from .settings import NODES, LabError, Settings
from .settings import run as run_here


def prepare(settings: Settings) -> None:
    """Keys once per lab; the files that refer to them whenever a setting changed."""
    settings.ssh.mkdir(parents=True, exist_ok=True)
    settings.ssh.chmod(0o700)
    for key in ["id_ed25519", *(f"host_{name}" for name in NODES)]:
        if not (settings.ssh / key).exists():
            make_key(settings.ssh / key, f"gpufabric-lab {key}", f"remove {settings.ssh}")
    known = []
    for name, number in NODES.items():
        public = " ".join((settings.ssh / f"host_{name}.pub").read_text().split()[:2])
        known.append(f"[127.0.0.1]:{settings.ssh_port(number)} {public}\n")
    write(settings.ssh / "known_hosts", "".join(known))
    write(settings.ssh / "config", "\n".join(host_block(settings, name, number) for name, number in NODES.items()))


def make_key(path: pathlib.Path, comment: str, next_step: str) -> str:
    """Makes a pair of keys without a passphrase; returns the public one's line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    run_here(generate, f"SSH key {path}", next_step)
    return path.with_suffix(".pub").read_text()


def write(path: pathlib.Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def host_block(settings: Settings, name: str, number: int) -> str:
    return f"""Host {name}
    HostName 127.0.0.1
    Port {settings.ssh_port(number)}
    User root
    IdentityFile "{settings.ssh}/id_ed25519"
    IdentitiesOnly yes
    UserKnownHostsFile "{settings.ssh}/known_hosts"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ControlPath "{control_folder()}/%C"
    ServerAliveInterval 15
    LogLevel ERROR
"""


def control_folder() -> pathlib.Path:
    """Control sockets need a short path that belongs to this user."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"gpufabric-lab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if seen.st_uid != os.getuid() or seen.st_mode & 0o077 or folder.is_symlink():
        wanted = f"a folder of uid {os.getuid()} with mode 0700"
        raise LabError(str(folder), wanted, f"uid {seen.st_uid}, mode {seen.st_mode & 0o777:04o}", f"remove {folder}")
    return folder


def node_files(settings: Settings, name: str, number: int) -> dict[str, tuple[bytes, int]]:
    """A node's identity, which the initrd puts on the disk at each boot."""
    key = settings.ssh / f"host_{name}"
    hosts = "".join(f"10.77.0.{n} {other}\n" for other, n in NODES.items())
    machine_id = hashlib.md5(f"gpufabric lab {number}".encode(), usedforsecurity=False).hexdigest()
    return {
        "etc/hostname": (f"{name}\n".encode(), 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n::1 localhost\n{hosts}".encode(), 0o644),
        "etc/machine-id": (f"{machine_id}\n".encode(), 0o444),
        "etc/ssh/ssh_host_ed25519_key": (key.read_bytes(), 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (key.with_suffix(".pub").read_bytes(), 0o644),
        "root/.ssh/authorized_keys": ((settings.ssh / "id_ed25519.pub").read_bytes(), 0o600),
    }


def command(settings: Settings, name: str, *words: str) -> list[str]:
    return ["ssh", "-F", str(settings.ssh / "config"), name, *words]


def run(settings: Settings, name: str, script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    arguments = command(settings, name, script)
    try:
        return subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, 255, "", f"no answer within {timeout:.0f} s")


def banner(port: int, timeout: float = 2, host: str = "127.0.0.1") -> bool:
    """Whether sshd itself answers: QEMU's user network, or a socket, accepts connections long before it runs."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
