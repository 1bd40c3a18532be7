"""What must be true of claims on HCAs (DRA): published, allocated, aligned with a GPU; why one is Pending. Pure."""

from ...module_utils._core import text as core_text
from ...module_utils._device_plugin.dra import DRIVER, PCIE_ROOT, class_of
from ...module_utils._kube import dra, pods
from .._findings import messages
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check

NOTHING: dict = {"classes": [], "devices": [], "claims": []}
_PLUGIN = "see the plugin's log on the node: journalctl -u rdma-device-plugin, or its pod in kube-system"
_LOOK = "compare the claim's requests with k3s kubectl get resourceslices -o yaml"


def offered(host: dict, node: dict) -> list[dict]:
    """Whether each rail that the node should serve over DRA is published, with its class, and takes claims."""
    checks = []
    by_rail = {hca["rail"]: hca for hca in node.get("hcas") or []}
    for rail in host["rails"]:
        if rail["index"] not in host.get("dra_rails", ()):
            continue
        published = by_rail.get(rail["index"])
        obj = f"{rail['hca']} on {node['name']}"
        wanted = f"published in a ResourceSlice, with class {class_of(rail['index'])}"
        seen, good, step = "not published", False, _PLUGIN
        if published:
            number = core_text.count(published["devices"], "device")
            good = published["class"] is not None and not published["taints"]
            seen = f"{number}, class {published['class'] or 'missing'}"
            seen += f", taint {core_text.listing(published['taints'])}" if published["taints"] else ""
            step = "run the role device_plugin with all nodes"
            step = "see the port's check on the node" if published["taints"] else step
        checks.append(check(f"slice:{rail['hca']}", obj, good, wanted, seen, step))
    return checks


def of_pod(pod: dict, claims: list[dict], cluster: dict) -> list[dict]:
    """Whether the claim of a running test pod has the requested HCAs. claims: those in its namespace."""
    if not pod.get("requests") or pod["kind"] == "aligned":
        return []
    identity, obj = f"pod:{pod['kind']}:claim", obj_of(pod)
    wanted = f"a claim with {core_text.listing(rail['hca'] for rail in pod['rails'])}, prepared for this pod"
    claim = _made_for(pod, claims)
    if claim is None:
        step = "see k3s kubectl get resourceclaims -A"
        return [check(identity, obj, FAILED, wanted, "no claim was made for the pod", step)]
    had = {
        result["request"]: dra.device_of(cluster, result) for result in claim["devices"] if result["driver"] == DRIVER
    }
    wrong = []
    for name in pod["requests"]:
        device = had.get(name)
        rail = None if device is None else dra.attribute(device, "rail")
        if device is None:
            wrong.append(f"request {name} without a device of {DRIVER} that is published")
        elif f"rail-{rail}" != name or device["node"] != pod["node"]:
            wrong.append(f"request {name} has {device['name']} of rail {rail} on {device['node']}")
    seen = "; ".join(wrong) or core_text.listing(result["device"] for result in claim["devices"])
    return [check(identity, obj, not wrong, wanted, seen, _LOOK)]


def aligned(pod: dict, state: dict | None, claims: list[dict], cluster: dict) -> dict:
    """Whether the scheduler put a GPU and an HCA of one PCIe root into one claim, by the devices' own attributes."""
    identity, obj, wanted = "pod:aligned", obj_of(pod), f"a GPU and an HCA with the same {PCIE_ROOT} in one claim"
    claim = _made_for(pod, claims)
    results = {result["request"]: dra.device_of(cluster, result) for result in (claim or {"devices": []})["devices"]}
    gpu, rail = results.get("gpu"), results.get("rail")
    if gpu is None or rail is None:
        return _unallocated(pod, state, cluster, check(identity, obj, FAILED, wanted, ""))
    roots = [device["attributes"].get(PCIE_ROOT) for device in (gpu, rail)]
    seen = f"{gpu['name']} at {roots[0]}, {rail['name']} at {roots[1]}"
    good = roots[0] is not None and roots[0] == roots[1]
    step = "the attributes of one of the two have changed since, or its driver is wrong: " + _LOOK
    return check(identity, obj, good, wanted, seen, step)


def _unallocated(pod: dict, state: dict | None, cluster: dict, unmet: dict) -> dict:
    reasons = (state or {}).get("reasons") or ["no claim was allocated"]
    unmet.update(seen="; ".join(reasons), next_step=messages.next_step(reasons))
    gpus = dra.neighbours(cluster, pod["node"])
    held = {
        (device["driver"], device["pool"], device["device"])
        for claim in cluster["claims"]
        for device in claim["devices"]
    }
    free = [gpu for gpu in gpus if (gpu["driver"], gpu["pool"], gpu["name"]) not in held]
    if not free:
        seen = f"all {len(gpus)} GPUs of {pod['node']} are claimed"
        return {**unmet, "status": NOT_VERIFIED, "seen": seen, "next_step": "run playbooks/verify.yml when one is free"}
    ours = {hca["attributes"].get(PCIE_ROOT) for hca in dra.ours(cluster, pod["node"])}
    if "cannot allocate all claims" in " ".join(reasons) and not {gpu["attributes"][PCIE_ROOT] for gpu in free} & ours:
        roots = core_text.listing(sorted(f"{gpu['name']} at {gpu['attributes'][PCIE_ROOT]}" for gpu in free))
        unmet["seen"] = (
            f"no HCA at the root of a free GPU: {roots}; HCAs at {core_text.listing(sorted(map(str, ours)))}"
        )
        unmet["next_step"] = "see the topology of the node (playbooks/discover.yml); if no HCA is at a GPU's root, "
        unmet["next_step"] += "leave the constraint out or use resource.kubernetes.io/numaNode"
    return unmet


def not_aligned(node: dict, gpu_class: str | None) -> dict:
    """Why nothing was tried although HCAs are served over DRA."""
    why = f"no DRA driver publishes GPUs of {node['name']} with {PCIE_ROOT}"
    step = "install the DRA driver of the GPUs, such as NVIDIA's, and run playbooks/verify.yml again"
    if not gpu_class:
        why, step = "verification_gpu_class is empty", "set it to the DeviceClass of the GPUs"
    wanted = f"a GPU and an HCA with the same {PCIE_ROOT} in one claim"
    return check("pod:aligned", f"pod aligned on {node['name']}", NOT_VERIFIED, wanted, why, step)


def of_user(obj: str, claims: dict, state: dict, cluster: dict) -> list[dict]:
    """The claims of a user's pod: what each has, or why it has nothing. claims: {name in the pod: claim or None}."""
    checks = []
    for name, claim in claims.items():
        identity, wanted = f"pod:claim:{name}", f"claim {name} allocated"
        if claim is None or not claim["devices"]:
            reasons = state["reasons"] or ["no reason given"]
            step = messages.next_step(reasons, "see: k3s kubectl describe pod, and describe resourceclaim")
            checks.append(check(identity, obj, FAILED, wanted, "; ".join(reasons), step))
            continue
        devices = [(allocated, dra.device_of(cluster, allocated)) for allocated in claim["devices"]]
        checks.append(check(identity, obj, PASSED, wanted, core_text.listing(map(_device, devices))))
        roots = {device["attributes"].get(PCIE_ROOT) for _one, device in devices if device}
        kinds = {allocated["driver"] for allocated in claim["devices"]}
        if DRIVER in kinds and len(kinds) > 1:
            good = len(roots) == 1 and None not in roots
            step = f"add a constraint to the claim: matchAttribute: {PCIE_ROOT} (docs/examples/dra)"
            seen = core_text.listing(map(_device, devices))
            wanted = f"GPU and HCA at one {PCIE_ROOT}"
            status = PASSED if good else NOT_VERIFIED if None in roots else FAILED
            # Each of several pairs in one claim has its own root.
            if len(devices) == 2 or good:
                checks.append(check(f"pod:aligned:{name}", obj, status, wanted, seen, step))
    return checks


def _device(item: tuple) -> str:
    allocated, device = item
    root = (device or {"attributes": {}})["attributes"].get(PCIE_ROOT)
    return f"{allocated['request']}: {allocated['device']} of {allocated['driver']}" + (f" at {root}" if root else "")


def _made_for(pod: dict, claims: list[dict]) -> dict | None:
    return next((claim for claim in claims if pod["name"] in claim["of"]), None)


def obj_of(pod: dict) -> str:
    return f"pod {pod['kind']} on {pod['node']}"


def served(host: dict) -> list[str]:
    """The resources of rails that the device plugin serves; rails over DRA have none."""
    return [
        pods.own_resource(rail["index"]) for rail in host["rails"] if rail["index"] not in host.get("dra_rails", ())
    ]
