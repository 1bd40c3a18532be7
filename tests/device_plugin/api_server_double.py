"""An API server for the DRA driver: nodes, resourceslices and resourceclaims over the real REST contract.

Written from k8s.io/apiserver and pkg/registry/resource: optimistic locking, generateName, field selectors, dry runs,
watches that end and that are too old (410), validation of sizes and of immutable fields, and silently dropped fields of
gates that are off.
"""

import copy
import http.server
import json
import pathlib
import re
import secrets
import threading
import time
import urllib.parse

from kubelet_double import PATIENCE, waited

GROUP = "/apis/resource.k8s.io/v1"
_SLICE = re.compile(rf"{GROUP}/resourceslices(?:/([^/]+))?\Z")
_CLAIM = re.compile(rf"{GROUP}/namespaces/([^/]+)/resourceclaims/([^/]+)\Z")
_NODE = re.compile(r"/api/v1/nodes/([^/]+)\Z")


class Refusal(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.reason = code, reason


def pool(specs):
    """(generation, devices by name) of a pool as a scheduler sees it; None while it is incomplete."""
    latest = max((spec["pool"]["generation"] for spec in specs), default=0)
    current = [spec for spec in specs if spec["pool"]["generation"] == latest]
    if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return None
    return latest, {device["name"]: device for spec in current for device in spec.get("devices") or ()}


class ApiServer:
    """consumable, taints: the gates. token: the only one accepted, of `node`'s plugin: it writes only that node's."""

    def __init__(self, base, node="node1", consumable=False, taints=False):
        self.node, self.consumable, self.taints = node, consumable, taints
        self.token = secrets.token_hex(8)
        self.slices, self.claims = {}, {}
        self.nodes = {node: {"metadata": {"name": node, "uid": f"uid-of-{node}"}}}
        self.changed = threading.Condition(threading.RLock())
        self.calls, self.conflicts = [], 0
        self.kubeconfig = pathlib.Path(base) / "kubeconfig"
        self._version, self._events, self._oldest = 100, [], 100
        self._server = self._port = None

    # Its life.

    def start(self):
        self._server = _Http(("127.0.0.1", self._port or 0), _Handler)
        self._server.api = self
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self._write_kubeconfig()
        return self

    def stop(self):
        with self.changed:
            server, self._server = self._server, None
            self.changed.notify_all()
        if server:
            server.shutdown()
            server.close_all()
            server.server_close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_error):
        self.stop()

    def rotate(self):
        """A new token; the old one is no longer accepted."""
        self.token = secrets.token_hex(8)
        self._write_kubeconfig()

    def _write_kubeconfig(self):
        name = "lab"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        self.kubeconfig.write_text(json.dumps(document))

    # Actions of others.

    def wipe(self):
        """The action of a starting kubelet."""
        with self.changed:
            for name in list(self.slices):
                self._delete(name)

    def expire(self):
        """Forget all events: watches that are behind get 410."""
        with self.changed:
            self._events.clear()
            self._oldest = self._version + 1
            self._version += 1
            self.changed.notify_all()

    def meddle(self, change):
        """Somebody else writes every slice."""
        with self.changed:
            for name, found in list(self.slices.items()):
                found = copy.deepcopy(found)
                change(found)
                self._store("MODIFIED", name, found)

    def copy(self, found, name):
        """A second slice with the same content, as after a create whose answer was lost."""
        with self.changed:
            found = copy.deepcopy(found)
            found["metadata"]["name"] = name
            self._store("ADDED", name, found)

    def allocate(self, name, devices, namespace="default", uid=None, **more):
        """A claim with these devices, as after scheduling. devices: {request: device} or a list of results."""
        uid = uid or f"uid-{name}"
        if isinstance(devices, dict):
            devices = [
                {"request": request, "driver": "rdma.gpufabric.io", "pool": self.node, "device": device}
                for request, device in devices.items()
            ]
        allocation = {"devices": {"results": devices, **more}}
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-of-{uid}"}]}
        claim = {"metadata": {"namespace": namespace, "name": name, "uid": uid}, "status": status}
        self.claims[namespace, name] = claim
        return namespace, name, uid

    # Its state.

    def pool(self):
        with self.changed:
            specs = [one["spec"] for one in self.slices.values()]
            return pool([spec for spec in specs if spec["pool"]["name"] == self.node])

    def devices(self):
        pool = self.pool()
        return None if pool is None else sorted(pool[1])

    def wait(self, condition, seconds=2 * PATIENCE):
        return waited(self.changed, condition, seconds)

    # The contract.

    def answer(self, method, path, query, token, body):
        with self.changed:
            self.calls.append((method, path))
            if token != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            found = _NODE.match(path)
            if found and method == "GET":
                if found.group(1) not in self.nodes:
                    raise Refusal(404, "NotFound", f'nodes "{found.group(1)}" not found')
                return self.nodes[found.group(1)]
            found = _CLAIM.match(path)
            if found and method == "GET":
                if found.groups() not in self.claims:
                    raise Refusal(404, "NotFound", f'resourceclaims.resource.k8s.io "{found.group(2)}" not found')
                return self.claims[found.groups()]
            found = _SLICE.match(path)
            if found:
                return self._slices(method, found.group(1), query, body)
            raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _slices(self, method, name, query, body):
        if method == "GET" and not name:
            items = [one for one in self.slices.values() if self._selected(one, query)]
            return {"kind": "ResourceSliceList", "metadata": {"resourceVersion": str(self._version)}, "items": items}
        if method == "POST":
            return self._create(copy.deepcopy(body), query.get("dryRun") == "All")
        if name not in self.slices:
            raise Refusal(404, "NotFound", f'resourceslices.resource.k8s.io "{name}" not found')
        if method == "DELETE":
            self._delete(name)
            return {"kind": "Status", "status": "Success"}
        if method == "PUT":
            return self._replace(name, copy.deepcopy(body))
        raise Refusal(405, "MethodNotAllowed", method)

    def _selected(self, one, query):
        pairs = [pair.split("=") for pair in query.get("fieldSelector", "").split(",") if pair]
        return all(one["spec"].get(key.rpartition(".")[2]) == value for key, value in pairs)

    def _create(self, body, dry_run):
        self._check(body)
        self._drop(body, None)
        metadata = body["metadata"]
        name = metadata.get("name") or metadata.pop("generateName")[:58] + secrets.token_hex(3)[:5]
        metadata["name"] = name
        metadata["uid"] = secrets.token_hex(8)
        if dry_run:
            return body
        if name in self.slices:
            raise Refusal(409, "AlreadyExists", f'resourceslices "{name}" already exists')
        return self._store("ADDED", name, body)

    def _replace(self, name, body):
        before = self.slices[name]
        version = body["metadata"].get("resourceVersion")
        if self.conflicts or (version and version != before["metadata"]["resourceVersion"]):
            self.conflicts = max(0, self.conflicts - 1)
            raise Refusal(409, "Conflict", "the object has been modified; please apply your changes to the latest one")
        self._check(body)
        for path in (("driver",), ("nodeName",), ("pool", "name")):
            old, new = before["spec"], body["spec"]
            for part in path:
                old, new = old.get(part), new.get(part)
            if old != new:
                raise Refusal(422, "Invalid", f"spec.{'.'.join(path)}: field is immutable")
        self._drop(body, before)
        body["metadata"]["uid"] = before["metadata"]["uid"]
        same = {**body, "metadata": {**body["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}}
        return before if same == before else self._store("MODIFIED", name, body)

    def _check(self, body):
        """pkg/apis/resource/validation, the rules that a driver can violate."""
        spec = body["spec"]
        if spec.get("nodeName") != self.node:
            raise Refusal(403, "Forbidden", f"cannot write resourceslices of node {spec.get('nodeName')}")
        devices = spec["devices"]
        tainted = any(device.get("taints") for device in devices)
        most = 64 if tainted and self.taints else 128
        if len(devices) > most:
            raise Refusal(422, "Invalid", f"spec.devices: Too many: {len(devices)}: must have at most {most} items")
        if spec["pool"]["resourceSliceCount"] < 1:
            raise Refusal(422, "Invalid", "spec.pool.resourceSliceCount: must be greater than zero")
        if len({device["name"] for device in devices}) != len(devices):
            raise Refusal(422, "Invalid", "spec.devices: Duplicate value")
        for device in devices:
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"]):
                raise Refusal(422, "Invalid", f"spec.devices: name {device['name']}: a DNS label")
            if len(device.get("attributes", {})) + len(device.get("capacity", {})) > 32:
                raise Refusal(422, "Invalid", "spec.devices: Too many attributes")
            for name, value in device.get("attributes", {}).items():
                ((kind, plain),) = value.items()
                wanted = {"int": int, "string": str}[kind]
                if not isinstance(plain, wanted) or (kind == "string" and len(plain) > 64):
                    raise Refusal(422, "Invalid", f"spec.devices.attributes[{name}]: {plain!r}")
                if not re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z_][A-Za-z0-9_]{0,31}", name):
                    raise Refusal(422, "Invalid", f"spec.devices.attributes: {name}")

    def _drop(self, body, before):
        """dropDisabledFields: kept while the stored object uses them."""
        old = before["spec"]["devices"] if before else []
        for device in body["spec"]["devices"]:
            if not self.taints and not any(one.get("taints") for one in old):
                device.pop("taints", None)
            if not self.consumable and not any("allowMultipleAllocations" in one for one in old):
                device.pop("allowMultipleAllocations", None)
                for capacity in device.get("capacity", {}).values():
                    capacity.pop("requestPolicy", None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def _store(self, kind, name, body):
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.slices[name] = body
        self._events.append((self._version, kind, body))
        self.changed.notify_all()
        return body

    def _delete(self, name):
        self._version += 1
        gone = copy.deepcopy(self.slices.pop(name))
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, "DELETED", gone))
        self.changed.notify_all()

    def watch(self, query, write):
        """Events after a resource version, until the time is over or the server stops."""
        seen = int(query.get("resourceVersion") or 0)
        server = self._server
        deadline = time.monotonic() + int(query.get("timeoutSeconds", 60))
        while time.monotonic() < deadline and self._server is server:
            with self.changed:
                if seen < self._oldest - 1:
                    status = {"code": 410, "reason": "Expired", "message": f"too old resource version: {seen}"}
                    write({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", **status}})
                    return
                new = [event for event in self._events if event[0] > seen and self._selected(event[2], query)]
                if not new:
                    self.changed.wait(0.05)
            for version, kind, found in new:
                write({"type": kind, "object": found})
                seen = version


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    api = None

    def __init__(self, *arguments):
        self._open = set()
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        self._open.add(request)
        super().process_request(request, client_address)

    def close_all(self):
        """Like a killed server: its connections end."""
        for request in list(self._open):
            try:
                request.shutdown(2)
            except OSError:
                pass

    def handle_error(self, request, client_address):
        pass  # a client that hung up


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def _serve(self):
        api = self.server.api
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        path = urllib.parse.unquote(split.path)
        try:
            answer = api.answer(self.command, path, query, self.headers.get("Authorization"), body)
            code = 201 if self.command == "POST" else 200
        except Refusal as refusal:
            code = refusal.code
            status = {"status": "Failure", "code": code, "reason": refusal.reason, "message": str(refusal)}
            # `KIND "NAME" not found`; of a type that it lacks a server says nothing there.
            named = str(refusal).split('"')[1:2] if code == 404 else []
            status["details"] = {"name": named[0]} if named else {}
            answer = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}
        if code == 200 and query.get("watch") == "true":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            api.watch(query, self._chunk)
            self.wfile.write(b"0\r\n\r\n")
            return
        with api.changed:
            data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self, event):
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    do_GET = do_POST = do_PUT = do_DELETE = _serve
