"""Nodes on this machine: a root (an overlay of this one's), a network namespace and a host name each, with doubles of
systemctl and of a k3s server whose API is ready."""

import os
import pathlib
import shutil
import signal
import subprocess

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TLS = "var/lib/rancher/k3s/server/tls"
SYSTEMCTL = """#!/bin/sh
for unit; do :; done
pid=$(cat "/run/$unit.pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || pid=
end() { [ -z "$pid" ] || { kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; }; }
case $1 in
show) echo "Id=$unit"; [ -z "$pid" ] || echo "ActiveState=active"
    [ -z "$pid" ] || echo "ExecMainStartTimestampMonotonic=$(cat "/run/$unit.up")0000" ;;
stop) end ;;
start|restart) end; rm -f "/run/$unit.pid"; cut -d' ' -f1 /proc/uptime | tr -d . >"/run/$unit.up"
    setsid sh -c 'echo $$ >"/run/$1.pid"; exec $(sed -n s/^ExecStart=//p "/etc/systemd/system/$1")' sh "$unit" \
        >>/var/log/address.log 2>&1 </dev/null &
    until [ -s "/run/$unit.pid" ]; do sleep 0.05; done ;;
esac
"""


def run(*words: str, check: bool = True, **more) -> subprocess.CompletedProcess:
    return subprocess.run(words, check=check, capture_output=True, text=True, **more)


def unusable() -> str:
    """Why there cannot be nodes here, or nothing."""
    if os.geteuid():
        return "roots and network namespaces need root"
    if not shutil.which("keepalived"):
        return "keepalived is not installed"
    return "" if run("unshare", "--mount", "--net", "true", check=False).returncode == 0 else "no namespaces here"


def certificates(folder: pathlib.Path) -> None:
    """A CA, and with it a certificate for servers and one for clients."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj")
    run("openssl", "req", "-x509", *key, "/CN=ca", "-keyout", "ca.key", "-out", "server-ca.crt", cwd=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "server-ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    for name in ("serving", "client-admin"):
        run("openssl", "req", *key, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", cwd=folder)
        run("openssl", "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt", cwd=folder)


class Network:
    """A bridge for the nodes in a separate network namespace, apart from this machine's network."""

    def __init__(self):
        self.name = f"rdmak3s{os.getpid()}"
        run("ip", "netns", "add", self.name)
        self.ip("link", "add", "br0", "type", "bridge")
        self.ip("link", "set", "br0", "up")
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> None:
        run("ip", "-n", self.name, *words)

    def join(self, namespace: str, port: str, address: str) -> None:
        self.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self.ip("link", "set", port, "master", "br0", "up")
        for link in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", link, "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")

    def end(self) -> None:
        run("ip", "netns", "delete", self.name, check=False)


class Machine:
    def __init__(self, folder: pathlib.Path, name: str, address: str, network: Network):
        self.name, self.address, self.folder = name, address, folder / name
        self.namespace, self.root, self.api = f"{network.name}{name}", self.folder / "root", None
        self.folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(self.folder))
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir()
        layers = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        run("mount", "-t", "overlay", "-o", layers, "overlay", str(self.root))
        run("mount", "-t", "proc", "proc", str(self.root / "proc"))
        run("mount", "--bind", "/dev", str(self.root / "dev"))
        run("mount", "-o", "remount,ro,bind", str(self.root / "dev"))  # so deleting this folder deletes no device
        run("ip", "netns", "add", self.namespace)
        network.join(self.namespace, name, address)
        (self.root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        double = self.root / "usr/local/sbin/systemctl"
        double.write_text(SYSTEMCTL)
        double.chmod(0o755)
        shutil.copytree(folder / "tls", self.root / TLS)

    @property
    def enter(self) -> list[str]:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", self.name]
        return ["ip", "netns", "exec", self.namespace, *named, "env", f"PATH={PATH}", "chroot", str(self.root)]

    def run(self, *words: str, check: bool = True) -> str:
        return run(*self.enter, *words, check=check).stdout.strip()

    def serve(self) -> None:
        """An API server that only answers clients of the cluster's CA."""
        own = [f"-{option}=/{TLS}/{file}" for option, file in (("cert", "serving.crt"), ("key", "serving.key"))]
        asked = ["-CAfile", f"/{TLS}/server-ca.crt", "-Verify", "1", "-verify_return_error", "-www", "-quiet"]
        words = [*self.enter, "openssl", "s_server", "-accept", "6443", *own, *asked]
        self.api = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)

    def silence(self) -> None:
        os.killpg(self.api.pid, signal.SIGKILL)
        self.api.wait()
        self.api = None

    def end(self) -> None:
        if self.api:
            self.silence()
        run("sh", "-c", 'ip netns pids "$1" | xargs -r kill -9', "sh", self.namespace, check=False)
        run("ip", "netns", "delete", self.namespace, check=False)
        for place in (self.root / "dev", self.root / "proc", self.root, self.folder):
            run("umount", "--lazy", str(place), check=False)
