"""What the GPU layer of a node lacks. The collection installs none of it, so nothing here fails.

Pure. A check passes, or is not verified: RDMA works without a GPU driver, but no pod of this node can use GPUs and HCAs
together.
"""

from ...module_utils._kube import pods as kube_pods
from ...module_utils.hca import pci
from .._findings import gpu_initiated
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check

RESOURCE, CLASS = "nvidia.com/gpu", "nvidia"
_OURS = "not ours: this collection installs no GPU layer"


def gpu_checks(host: str, facts: dict, cluster: dict | None, node: dict | None) -> list[dict]:
    """Checks of a node with NVIDIA GPUs, none for others. cluster: what cluster_info read, None if it got no answer.

    node: its interfaces, in the form of kube_pods.find_node; None if they were not read.
    """
    gpus = [gpu for gpu in facts.get("gpus") or [] if gpu["vendor"] == pci.NVIDIA]
    if not gpus:
        return []
    checks = [_driver(host, gpus, facts)]
    known = kube_pods.find_node(node, cluster["nodes"]) if cluster and node else None
    if known is None:
        return checks
    allocatable = known["allocatable"].get(RESOURCE, 0)
    checks.append(
        _item(
            "gpu:resource",
            f"{RESOURCE} on {known['name']}",
            allocatable >= len(gpus),
            f"{len(gpus)} allocatable, as many as GPUs on PCI",
            f"{allocatable} allocatable" if allocatable else "not allocatable: no GPU device plugin has registered",
            "install NVIDIA's device plugin or GPU Operator (driver.enabled=false where the host has the driver); then "
            f"kubectl describe node {known['name']}",
        )
    )
    classes = cluster.get("runtime_classes")
    if classes is not None:
        checks.append(
            _item(
                "gpu:runtime-class",
                f"RuntimeClass {CLASS}",
                CLASS in classes,
                "one that runs pods through NVIDIA's container runtime, or a toolkit that makes it the default",
                "there" if CLASS in classes else "none",
                "install nvidia-container-toolkit on the nodes and restart k3s, which then creates it, or let GPU "
                "Operator do both",
            )
        )
    return checks


def initiated(host: str, facts: dict, ways: list[str]):
    """A check of each way of GPU-initiated RDMA that the user asks for, on a node with NVIDIA GPUs."""
    state = facts.get("gpu_initiated")
    for way in ways if state else ():
        works = state["ways"][way]["works"]
        status = {True: PASSED, False: FAILED, None: NOT_VERIFIED}[works]
        obj, wanted = f"GPU-initiated RDMA by {way} on {host}", "all that it needs on the node"
        seen, step = (
            ("all of it", "") if works else (gpu_initiated.seen(state, way), gpu_initiated.next_step(state, way))
        )
        yield check(f"gpu_initiated:{way}", obj, status, wanted, seen, step)


def _driver(host: str, gpus: list[dict], facts: dict) -> dict:
    evidence = ((facts.get("gpudirect") or {}).get("evidence") or {}).get("nvidia") or {}
    return _item(
        "gpu:driver",
        f"GPU driver of {host}",
        bool(evidence.get("loaded")),
        f"the nvidia module loaded for {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}",
        f"loaded, version {evidence.get('version') or 'unknown'}"
        if evidence.get("loaded")
        else "on disk, not loaded"
        if evidence.get("on_disk")
        else "no nvidia module on this node",
        "install NVIDIA's driver by its own packages or by GPU Operator, after the RDMA stack (nvidia_peermem is built "
        "against it); then run playbooks/host.yml",
    )


def _item(identity: str, obj: str, good: bool, wanted: str, seen: str, step: str) -> dict:
    return check(identity, obj, PASSED if good else NOT_VERIFIED, wanted, seen if good else f"{seen}; {_OURS}", step)
