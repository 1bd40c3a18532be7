"""API server, controllers and scheduler of the test bed's k3s on this machine, and a small client of their API."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import yaml

SERVER_CONFIG = """\
data-dir: {state}
https-listen-port: {port}
bind-address: 127.0.0.1
write-kubeconfig: {kubeconfig}
node-name: control-plane
node-ip: 10.77.0.254
disable-agent: true
flannel-backend: none
"""


class ControlPlane:
    """One folder holds their state.

    options: further options of k3s, such as {"kube-apiserver-arg": ["feature-gates=…"]}.
    """

    def __init__(self, k3s: pathlib.Path, folder: pathlib.Path, port: int, options: dict | None = None):
        self.k3s = k3s
        self.folder = folder
        self.port = port
        self.options = options or {}
        self.kubeconfig = folder / "kubeconfig"
        self.log = folder.parent / "control-plane.log"
        self.process: subprocess.Popen | None = None

    def start(self, state: pathlib.Path | None = None) -> None:
        """With a saved state, or from nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if state:
            shutil.copytree(state, self.folder, symlinks=True)
        self.resume()

    def resume(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yaml"
        config.write_text(
            SERVER_CONFIG.format(state=self.folder, port=self.port, kubeconfig=self.kubeconfig)
            + "".join(f"{name}: {json.dumps(value)}\n" for name, value in self.options.items())
        )
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(self.k3s), "server"],
                env={**os.environ, "K3S_CONFIG_FILE": str(config)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def token(self) -> str:
        return (self.folder / "server/node-token").read_text().strip()

    def save(self, state: pathlib.Path) -> None:
        self.stop()
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(self.folder, state, symlinks=True)
        self.resume()

    def require(self) -> None:
        """Nobody waits for a control plane that has ended."""
        code = self.process.poll() if self.process else None
        assert code is None, f"the control plane ended with {code}, see {self.log}"

    def signal(self, component: str, number: int) -> None:
        """To one component, such as kube-apiserver: SIGSTOP makes an API server that takes calls and never answers."""
        found = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for child in (word for path in found for word in path.read_text().split()):
            if component in pathlib.Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                os.kill(int(child), number)
                return
        raise AssertionError(f"{component} does not run; see {self.log}")

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None


class Refused(Exception):
    """The API server's answer to what it does not do: its code and its Status."""

    def __init__(self, code: int, status: dict):
        self.code = code
        self.message = status.get("message", "")
        super().__init__(f"{code}: {self.message}")


class Api:
    """JSON over HTTPS with the credential of a kubeconfig, or with a token in its place."""

    def __init__(self, kubeconfig: pathlib.Path, token: str | None = None):
        found = yaml.safe_load(kubeconfig.read_text())
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        self.server = cluster["server"]
        self.authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.context = ssl.create_default_context(cadata=self.authority)
        self.headers = {"Accept": "application/json"}
        token = token or user.get("token")
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        else:
            with tempfile.NamedTemporaryFile("w") as pair:
                for part in ("client-certificate-data", "client-key-data"):
                    pair.write(base64.b64decode(user[part]).decode())
                pair.flush()
                self.context.load_cert_chain(pair.name)

    def ask(self, method: str, path: str, body: dict | list | None = None, kind: str = "application/json") -> dict:
        """The answer's object. Raises Refused, or OSError while nobody answers."""
        request = urllib.request.Request(
            f"{self.server}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={**self.headers, "Content-Type": kind},
        )
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            raise Refused(error.code, json.loads(text) if text.startswith("{") else {"message": text}) from None

    def items(self, path: str) -> list[dict]:
        return self.ask("GET", path)["items"]

    def apply(self, path: str, document: dict) -> dict:
        """Server-side apply of one object; path is that of the object."""
        return self.ask("PATCH", f"{path}?fieldManager=tests&force=true", document, "application/apply-patch+yaml")

    def kubeconfig(self, path: pathlib.Path, token: str) -> pathlib.Path:
        """Writes a kubeconfig with this token."""
        authority = base64.b64encode(self.authority.encode()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "lab", "cluster": {"server": self.server, "certificate-authority-data": authority}},
            ],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        }
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path


def free_port() -> int:
    """A port of 127.0.0.1 whose two successors are free too: those of the datastore."""
    for port in range(23000, 23900, 10):
        try:
            for number in range(3):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
    raise AssertionError("no three free ports from 23000 to 23900")


def answering(plane: ControlPlane, limit: float = 300) -> Api:
    """A client, once the controllers have made the default service account: they start last but for the scheduler."""
    deadline = time.monotonic() + limit
    while True:
        plane.require()
        try:
            api = Api(plane.kubeconfig)
            api.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            return api
        except (OSError, Refused) as error:
            seen = str(error)
        if time.monotonic() > deadline:
            raise AssertionError(f"{seen}; see {plane.log}")
        time.sleep(0.3)
