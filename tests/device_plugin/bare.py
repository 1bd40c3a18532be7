"""What grpcio alone costs on this machine, now: the floor below which no Python plugin can be.

A server of the same RPC that does nothing but answer, in a process of its own, and the same client. start: from fork to
the first answer. The plugin's figures minus these are the plugin's own.
"""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import tempfile
import time

import grpc
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api
from rdma_device_plugin.kubelet import deviceplugin_pb2_grpc

CALLS = 2000


async def serve(path):
    specs = [
        api.DeviceSpec(host_path=f"/dev/infiniband/{name}", container_path=f"/dev/infiniband/{name}", permissions="rw")
        for name in ("uverbs0", "umad0", "rdma_cm")
    ]

    class Bare(deviceplugin_pb2_grpc.DevicePluginServicer):
        async def Allocate(self, request, context):
            return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse(devices=specs)])

    server = grpc.aio.server()
    deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(Bare(), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.wait_for_termination()


def floor(environment):
    """{what: figure} of one round."""
    # Not at the top: the server, whose start is measured, has no need of it.
    import measure

    with tempfile.TemporaryDirectory(prefix="bare") as folder:
        path = pathlib.Path(folder, "socket")
        begun = time.monotonic()
        process = subprocess.Popen([sys.executable, __file__, str(path)], env=environment)
        try:
            while not path.exists() and process.poll() is None:
                time.sleep(0.001)
            with grpc.insecure_channel(f"unix:{path}") as channel:
                stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
                request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=["7"])])
                stub.Allocate(request, timeout=60, wait_for_ready=True)
                start = time.monotonic() - begun
                half, most = measure.latency(lambda _number: stub.Allocate(request, timeout=5), CALLS)
        finally:
            process.kill()
            process.wait()
    return {
        "bare grpcio server: start (s)": start,
        "bare grpcio server: Allocate p50 (ms)": half,
        "bare grpcio server: Allocate p99 (ms)": most,
    }


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
