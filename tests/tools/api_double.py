"""A double of an API server: one node behind TLS on the loopback, with the checks that a real one applies to a client.

It answers GET and merge PATCH of /api/v1/nodes/NAME: 401 for an unknown token, 403 for a node that changes its own
taints (as the admission plugin NodeRestriction does), 404 for another name, 409 for an outdated resourceVersion, 415
for a patch of another type. Anything else gets 405.
"""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import pathlib
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Cluster:
    """What the double serves. tokens: {token: user}; calls: [(method, path, body)] as they came."""

    def __init__(self, node: dict | None, tokens: dict):
        self.node, self.tokens, self.calls = node, tokens, []
        self.conflicts = 0

    def answer(self, method: str, path: str, token: str, kind: str, body: dict | None) -> tuple[int, dict]:
        self.calls.append((method, path, body))
        user = self.tokens.get(token)
        if user is None:
            return 401, {"message": "Unauthorized"}
        if self.node is None or path != f"/api/v1/nodes/{self.node['metadata']['name']}":
            return 404, {"message": f"{path} not found"}
        if method == "GET":
            return 200, self.node
        if method != "PATCH":
            return 405, {"message": f"{method} is not known here"}
        if kind != "application/merge-patch+json":
            return 415, {"message": f"the body of the request was in an unknown format: {kind}"}
        if user == f"system:node:{self.node['metadata']['name']}" and "taints" in body.get("spec", {}):
            return 403, {"message": f"node {self.node['metadata']['name']!r} is not allowed to modify taints"}
        if self.conflicts or body["metadata"].get("resourceVersion") != self.node["metadata"]["resourceVersion"]:
            self.conflicts = max(0, self.conflicts - 1)
            return 409, {"message": "the object has been modified"}
        taints = body["spec"].pop("taints")
        self.node["spec"].pop("taints", None)
        if taints:
            self.node["spec"]["taints"] = taints
        self.node["metadata"]["resourceVersion"] = str(int(self.node["metadata"]["resourceVersion"]) + 1)
        return 200, self.node


class ApiDouble:
    """Serves a Cluster on 127.0.0.1 while it is open. url, authority: PEM of the CA that has signed its certificate."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path):
        self.authority = certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server = http.server.HTTPServer(("127.0.0.1", 0), handler(cluster))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda request, address: None  # a client that does not trust it hangs up
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def handler(cluster: Cluster):
    class Handler(http.server.BaseHTTPRequestHandler):
        def _serve(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = (self.headers.get("Authorization") or "").partition("Bearer ")[2]
            kind = self.headers.get("Content-Type") or ""
            status, document = cluster.answer(self.command, self.path, token, kind, body)
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_PUT = do_DELETE = do_POST = _serve

        def log_message(self, *_arguments):
            """The calls are recorded in the cluster."""

    return Handler


def certificates(folder: pathlib.Path) -> str:
    """Writes server.pem (key and certificate for 127.0.0.1, its own authority) below folder; returns it as PEM."""
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    for extension, critical in (
        (x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.BasicConstraints(True, None), True),
        (x509.KeyUsage(True, False, False, False, False, True, True, False, False), True),
    ):
        made = made.add_extension(extension, critical)
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private) + certificate)
    return certificate.decode("ascii")
