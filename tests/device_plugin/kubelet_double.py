"""A kubelet for a device plugin: both ways of registering, its deadlines, and its restarts.

Written from kubernetes/pkg/kubelet/cm/devicemanager and pluginmanager. It uses grpc's threads, not asyncio, so it
shares nothing with the plugin that it talks to.
"""

import contextlib
import os
import re
import socket
import stat
import threading
import time
from concurrent import futures

import grpc
from rdma_device_plugin.kubelet import Stub, serve
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api
from rdma_device_plugin.kubelet import dra_health_v1alpha1_pb2 as health_api
from rdma_device_plugin.kubelet import dra_v1_pb2 as dra_api
from rdma_device_plugin.kubelet import pluginregistration_pb2 as registration

# Seconds that tests wait if there is no other deadline; machines may be busy.
PATIENCE = float(os.environ.get("KUBELET_DOUBLE_PATIENCE", "30"))
DIAL, GET_INFO, NOTIFY, RECONCILE = 10.0, 1.0, 5.0, 1.0
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")


def extended_resource_name(name):
    """v1helper.IsExtendedResourceName"""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    prefix, _slash, rest = name.partition("/")
    return bool(_RESOURCE.match(name)) and len(rest) <= 63 and len(f"requests.{prefix}") <= 253


def dial(path, stopping=None):
    """Wait until a socket or an address is served. grpc's own future for that leaves a noisy thread behind."""
    deadline = time.monotonic() + DIAL
    while True:
        with socket.socket(socket.AF_UNIX if isinstance(path, str) else socket.AF_INET) as probe:
            try:
                probe.connect(path)
                return
            except OSError as error:
                if time.monotonic() > deadline or (stopping and stopping.is_set()):
                    raise ConnectionError(f"failed to dial {path}: {error}") from None
        time.sleep(0.01)


def waited(changed, condition, seconds):
    """Wait until condition() is true; its last value. changed: a Condition, notified of most changes."""
    deadline = time.monotonic() + seconds
    with changed:
        while True:
            value = condition()
            left = deadline - time.monotonic()
            if value or left <= 0:
                return value
            changed.wait(min(left, 0.05))


class Client:
    """The kubelet's side of one plugin: options asked once, one ListAndWatch stream."""

    def __init__(self, kubelet, resource, path):
        self.resource, self.path = resource, path
        self._kubelet = kubelet
        self.channel = grpc.insecure_channel(
            f"unix:{path}", options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        )
        dial(path)
        self.stub = Stub(self.channel, api, "DevicePlugin")
        self.options = self.stub.GetDevicePluginOptions(api.Empty())
        self.devices = {}
        self.lists = []
        self.stopped = False
        self._call = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def _run(self):
        try:
            self._call = self.stub.ListAndWatch(api.Empty())
            for answer in self._call:
                with self._kubelet.changed:
                    self.lists.append(answer)
                    self.devices = {device.ID: device for device in answer.devices}
                    self._kubelet.changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass
        self._kubelet.disconnected(self)

    def close(self):
        self.stopped = True
        if self._call is not None:
            self._call.cancel()
        self.channel.close()


class Driver:
    """The kubelet's side of a DRA driver: cm/dra/plugin. health: {device: status} of the last message."""

    def __init__(self, kubelet, info, path, endpoint):
        self.name, self.path, self.endpoint = info.name, path, endpoint
        self.service = next(one for one in info.supported_versions if one in kubelet.dra_versions)
        self.channel = grpc.insecure_channel(f"unix:{endpoint}", options=(("grpc.use_local_subchannel_pool", 1),))
        self.stub = Stub(self.channel, dra_api, "DRAPlugin", f"k8s.io.kubelet.pkg.apis.dra.{self.service}")
        self.health, self._call = {}, None
        self._kubelet = kubelet
        if kubelet.health:
            self._call = Stub(self.channel, health_api, "DRAResourceHealth").NodeWatchResources(
                health_api.NodeWatchResourcesRequest(), wait_for_ready=True
            )
            threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        with contextlib.suppress(grpc.RpcError, ValueError):
            for answer in self._call:
                with self._kubelet.changed:
                    self.health = {one.device.device_name: one.health for one in answer.devices}
                    self._kubelet.changed.notify_all()

    def prepare(self, *claims, timeout=45):
        return self._ask(self.stub.NodePrepareResources, dra_api.NodePrepareResourcesRequest, claims, timeout)

    def unprepare(self, *claims, timeout=45):
        return self._ask(self.stub.NodeUnprepareResources, dra_api.NodeUnprepareResourcesRequest, claims, timeout)

    def _ask(self, call, request, claims, timeout):
        """{uid: answer}; each claim is (namespace, name, uid). Checks like the kubelet that no answer is missing."""
        asked = [dra_api.Claim(namespace=space, name=name, uid=uid) for space, name, uid in claims]
        answer = call(request(claims=asked), timeout=timeout, wait_for_ready=True).claims
        assert set(answer) == {uid for _space, _name, uid in claims}
        return answer

    def close(self):
        if self._call is not None:
            self._call.cancel()
        self.channel.close()


class Kubelet:
    """device-plugins and plugins_registry below `base`.

    watches: whether it watches plugins_registry (not with another --root-dir, or before 1.12).
    refuse: error text for every registration. started: called when it starts: it wipes its node's slices.
    dra_versions: services that it knows, the preferred one first. health: gate ResourceHealthStatus.
    """

    def __init__(
        self,
        base,
        watches=True,
        refuse="",
        started=lambda: None,
        dra_versions=("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        health=False,
    ):
        self.drivers, self.started, self.dra_versions, self.health = {}, started, dra_versions, health
        self.plugins = f"{base}/device-plugins"
        self.registry = f"{base}/plugins_registry"
        self.watches, self.refuse = watches, refuse
        self.changed = threading.Condition(threading.RLock())
        self.clients = {}
        self.log = []
        self._server = None
        self._watcher = None
        self._stopping = threading.Event()
        os.makedirs(self.plugins, exist_ok=True)
        if watches:
            os.makedirs(self.registry, exist_ok=True)

    # Its life.

    def start(self):
        for name in os.listdir(self.plugins):
            path = f"{self.plugins}/{name}"
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        self._stopping = threading.Event()
        server = grpc.server(futures.ThreadPoolExecutor(16), options=(("grpc.so_reuseport", 0),))
        serve(server, api, "Registration", _Registration(self))
        server.add_insecure_port(f"unix:{self.plugins}/kubelet.sock")
        server.start()
        self._server = server
        self.started()
        if self.watches:
            self._watcher = threading.Thread(target=self._watch, args=(self._stopping,), daemon=True)
            self._watcher.start()
        return self

    def stop(self, unlink=True):
        """unlink: False like after SIGKILL, when kubelet.sock stays behind and nothing listens."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()
            self._watcher = None
        server, self._server = self._server, None
        with self.changed:
            clients, self.clients = [*self.clients.values(), *self.drivers.values()], {}
            self.drivers = {}
        for client in clients:
            client.close()
        if server:
            path, kept = f"{self.plugins}/kubelet.sock", f"{self.plugins}/.kept"
            if not unlink:
                os.link(path, kept)
            server.stop(None).wait()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if not unlink:
                os.rename(kept, path)

    def restart(self):
        self.stop()
        return self.start()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_error):
        self.stop()

    # Its state.

    def devices(self, resource):
        """{ID: health} as in the node's capacity; a plugin that hung up leaves unhealthy devices."""
        with self.changed:
            client = self.clients.get(resource)
            if client is None:
                return None
            return {unit: "Unhealthy" if client.stopped else device.health for unit, device in client.devices.items()}

    def allocatable(self, resource):
        return sum(health == "Healthy" for health in (self.devices(resource) or {}).values())

    def capacity(self, resource):
        return len(self.devices(resource) or {})

    def wait(self, condition, seconds=PATIENCE):
        return waited(self.changed, condition, seconds)

    def wait_allocatable(self, resource, count, seconds=PATIENCE):
        self.wait(lambda: resource in self.clients and self.allocatable(resource) == count, seconds)
        assert self.allocatable(resource) == count, (self.log, self.devices(resource))

    def count(self, event):
        return sum(entry[0] == event for entry in self.log)

    def note(self, *entry):
        with self.changed:
            self.log.append(entry)
            self.changed.notify_all()

    # Calls to the plugin.

    def allocate(self, resource, *containers):
        """One container request for each list of IDs."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        return self.clients[resource].stub.Allocate(request, timeout=10)

    def prefer(self, resource, available, size, required=()):
        wanted = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[wanted])
        answer = self.clients[resource].stub.GetPreferredAllocation(request, timeout=10)
        return list(answer.container_responses[0].deviceIDs)

    # Device manager.

    def connect(self, resource, path):
        client = Client(self, resource, path)
        with self.changed:
            old, self.clients[resource] = self.clients.get(resource), client
            self.changed.notify_all()
        if old:
            old.close()
        client.start()
        return client

    def disconnected(self, client):
        with self.changed:
            client.stopped = True
            self.changed.notify_all()
        self.note("disconnected", client.resource)
        client.close()

    # Plugin watcher.

    def _watch(self, stopping):
        seen, due = {}, {}
        while not stopping.wait(0.02):
            present = {}
            for name in os.listdir(self.registry):
                path = f"{self.registry}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if not name.startswith(".") and stat.S_ISSOCK(status.st_mode):
                        present[path] = (status.st_ino, status.st_mtime_ns)
            for path in set(seen) - set(present):
                del seen[path]
                self._deregister(path)
            for path, identity in present.items():
                if seen.get(path) != identity and due.get(path, 0) <= time.monotonic():
                    if self._register(path):
                        seen[path] = identity
                    due[path] = time.monotonic() + RECONCILE

    def _register(self, path):
        """operation_generator.GenerateRegisterPluginFunc; False: retried by the reconciler.

        The kubelet notes the socket as registered before it calls a handler. A later error is not retried, and
        the socket's end deregisters.
        """
        added = False
        channel = grpc.insecure_channel(
            f"unix:{path}", options=(("grpc.default_authority", path), ("grpc.use_local_subchannel_pool", 1))
        )
        try:
            dial(path, self._stopping)
            stub = Stub(channel, registration, "Registration")
            info = stub.GetInfo(registration.InfoRequest(), timeout=GET_INFO)
            self.note("info", path, info)
            endpoint = info.endpoint or path
            problem = self.refuse or self._invalid(info)
            added = not problem
            if not problem and info.type == "DRAPlugin":
                problem = self._drive(info, path, endpoint)
            elif not problem:
                self.connect(info.name, endpoint)
            stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=not problem, error=problem), timeout=NOTIFY
            )
            self.note("notified", path, problem)
        except (grpc.RpcError, ConnectionError) as error:
            self.note("watch failed", path, error)
            return added
        finally:
            channel.close()
        return True

    def _drive(self, info, path, endpoint):
        """DRAPluginManager.RegisterPlugin: an endpoint belongs to one plugin until its socket is gone."""
        with self.changed:
            before = self.drivers.get(info.name)
            if before and before.endpoint == endpoint and before.path != path:
                return f"endpoint {endpoint} already registered for DRA driver plugin {info.name}"
            if before:
                before.close()
            self.drivers[info.name] = Driver(self, info, path, endpoint)
            self.changed.notify_all()
        return ""

    def driver(self, name="rdma.gpufabric.io"):
        assert self.wait(lambda: name in self.drivers), self.log
        return self.drivers[name]

    def _invalid(self, info):
        if info.type == "DRAPlugin":
            known = set(info.supported_versions) & set(self.dra_versions)
            return "" if known else f"none of {info.supported_versions} are supported by the kubelet"
        if info.type != "DevicePlugin":
            return f"no handler for type {info.type}"
        if "v1beta1" not in info.supported_versions:
            return f"manager version, v1beta1, is not among plugin supported versions {info.supported_versions}"
        return "" if extended_resource_name(info.name) else f"invalid name of device plugin socket: {info.name}"

    def _deregister(self, path):
        self.note("deregistered", path)
        for client in list(self.clients.values()):
            if client.path == path:
                client.close()
        for name, driver in list(self.drivers.items()):
            if driver.path == path:
                driver.close()
                del self.drivers[name]


class _Registration:
    """server.go: Register dials back before it answers."""

    def __init__(self, kubelet):
        self._kubelet = kubelet

    def Register(self, request, context):
        kubelet = self._kubelet
        kubelet.note("register", request.resource_name, request)
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.UNKNOWN, f"unsupported API version {request.version}")
        if kubelet.refuse or not extended_resource_name(request.resource_name):
            context.abort(grpc.StatusCode.UNKNOWN, kubelet.refuse or "the ResourceName is invalid")
        try:
            kubelet.connect(request.resource_name, f"{kubelet.plugins}/{request.endpoint}")
        except (grpc.RpcError, ConnectionError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        return api.Empty()
