"""A double of NVIDIA's GPU device plugin: two GPUs, one on each NUMA node, offered over the kubelet's real sockets.

It runs on a node of the lab, with the interpreter and the archive of the RDMA device plugin, whose gRPC code it uses:

    /usr/local/lib/rdma-device-plugin/venv/bin/python3 gpu_plugin_double.py /usr/local/lib/rdma-device-plugin/plugin.pyz

A container that gets GPUs finds their ids in GPU_DOUBLE.
"""

from __future__ import annotations

import pathlib
import sys
import threading
from concurrent import futures

RESOURCE = "nvidia.com/gpu"
GPUS = {"gpu-0": 0, "gpu-1": 1}  # id: NUMA node
FOLDER = pathlib.Path("/var/lib/kubelet/device-plugins")
ENDPOINT = "gpu-double.sock"


def service(api, base):
    class Gpus(base):
        def GetDevicePluginOptions(self, request, context):
            return api.DevicePluginOptions()

        def ListAndWatch(self, request, context):
            answer = api.ListAndWatchResponse()
            for identity, node in GPUS.items():
                answer.devices.add(ID=identity, health="Healthy").topology.nodes.add(ID=node)
            yield answer
            threading.Event().wait()

        def Allocate(self, request, context):
            answer = api.AllocateResponse()
            for container in request.container_requests:
                answer.container_responses.add().envs["GPU_DOUBLE"] = ",".join(sorted(container.devices_ids))
            return answer

    return Gpus()


def main(archive: str) -> None:
    # Only a node has these.
    import grpc

    sys.path.insert(0, archive)
    from rdma_device_plugin.kubelet import deviceplugin_pb2 as api
    from rdma_device_plugin.kubelet import deviceplugin_pb2_grpc as calls

    own = FOLDER / ENDPOINT
    own.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    calls.add_DevicePluginServicer_to_server(service(api, calls.DevicePluginServicer), server)
    server.add_insecure_port(f"unix://{own}")
    server.start()
    with grpc.insecure_channel(f"unix://{FOLDER}/kubelet.sock") as kubelet:
        asked = api.RegisterRequest(version="v1beta1", endpoint=ENDPOINT, resource_name=RESOURCE)
        calls.RegistrationStub(kubelet).Register(asked, timeout=60)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
