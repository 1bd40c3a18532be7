"""Pods of the lab's tests run the node's own programs, as verification's test pods do."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods

# What node_tools.read finds on a lab node: Debian, with everything below /usr.
_TOOLS = {
    "image": "docker.io/rancher/mirrored-pause:3.6",
    "mounts": {
        "/usr": "/usr",
        "/bin": "/usr/bin",
        "/sbin": "/usr/sbin",
        "/lib": "/usr/lib",
        "/lib64": "/usr/lib64",
        "/etc/ld.so.cache": "/etc/ld.so.cache",
        "/etc/alternatives": "/etc/alternatives",
        "/etc/libibverbs.d": "/etc/libibverbs.d",
    },
}


def with_tools(spec: dict) -> dict:
    """The pod's spec, whose only container gets the image of the sandboxes and the node's folders over it."""
    pods.mount_tools(spec, _TOOLS)
    return spec
