# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kernel modules a node needs, now and at boot.

PRIVATE to the collection. Pure: facts and options in, Plan out.
"""

from __future__ import annotations

from ._change import Plan, kernel_out_of_reach
from ._files import HEADER, plan_file, with_directive
from ._initramfs_plan import mark_stale
from .hca import paths

PEERMEM = "nvidia_peermem"
PEERMEM_SOFTDEP = f"softdep {PEERMEM} pre: nvidia ib_uverbs"
_NVIDIA = "10de"

# Package that usually holds a module which a kernel comes without, by distribution family.
_PROVIDERS = {
    "ubuntu": "linux-modules-extra-{kernel}",
    "debian": "linux-image-amd64 or linux-image-arm64 in place of the cloud flavour",
    "rhel": "kernel-modules-extra-{kernel}",
    "fedora": "kernel-modules-extra-{kernel}",
    "suse": "kernel-default in place of kernel-default-base",
}


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: required (names), ipoib (auto|always|never), gpudirect (auto|peermem|dmabuf|off)."""
    made = Plan()
    offline = kernel_out_of_reach(facts, root)
    names = list(wanted["required"])
    if _wants_ipoib(facts, wanted["ipoib"], made) and "ib_ipoib" not in names:
        names.append("ib_ipoib")
    peermem = _wants_peermem(facts, wanted["gpudirect"], made)
    if peermem and PEERMEM not in names:
        names.append(PEERMEM)

    missing = []
    for name in names:
        state = facts["modules"].get(name) or {"loaded": False, "available": True, "blocked_by": []}
        if _blockers(name, state, made) or state["loaded"]:
            continue
        if offline:
            missing.append(name)
        elif state["available"] is False:
            _unavailable(name, facts["node"], made)
        else:
            made.change(f"module {name}", "load", "absent", "loaded")
    if missing:
        made.not_verified.append(f"modules {', '.join(missing)} are not loaded: {offline}")

    plan_file(made, facts, paths.OWN_MODULES_LOAD, HEADER + "".join(f"{name}\n" for name in names))
    _plan_softdep(facts, peermem, root, made)
    return made


def _wants_ipoib(facts: dict, choice: str, made: Plan) -> bool:
    if choice != "auto":
        return choice == "always"
    if not facts["hcas"] and facts["cards_without_rdma"]:
        made.not_verified.append("whether a port is InfiniBand, and so needs ib_ipoib, shows once its driver is loaded")
    return any(port["link_layer"] == "InfiniBand" for hca in facts["hcas"] for port in hca["ports"])


def _wants_peermem(facts: dict, choice: str, made: Plan) -> bool:
    """nvidia_peermem is loaded where it is of use; a node without GPUs is never broken by a setting for all nodes."""
    if not any(gpu["vendor"] == _NVIDIA for gpu in facts["gpus"]):
        if choice == "peermem":
            made.notes.append("kernel_modules_gpudirect is peermem, but this node has no NVIDIA GPU: nothing to load")
        return False
    state = facts["modules"].get(PEERMEM) or {}
    gpudirect = facts["gpudirect"]
    if choice == "peermem":
        return True
    # Not loaded yet, and the facts have found nothing against it: then loading it is the cure that they name.
    cured_by_loading = gpudirect["peermem_loadable"]
    if choice == "auto" and (gpudirect["mode"] == "peermem" or cured_by_loading):
        if state.get("blocked_by"):
            made.notes.append(f"{PEERMEM} stays unloaded: {_where(state['blocked_by'][0])}")
            return False
        return True
    if state.get("loaded") and choice != "auto":
        made.notes.append(f"{PEERMEM} is loaded although kernel_modules_gpudirect is {choice}: nothing is unloaded")
    if gpudirect.get("action") and choice != "off" and gpudirect["mode"] != "dmabuf":
        made.notes.append(f"GPUDirect: {gpudirect['verdict']} Next step: {gpudirect['action']}")
    return False


def _blockers(name: str, state: dict, made: Plan) -> bool:
    """Something on the node says that the module must not be loaded: named, never forced."""
    if not state["blocked_by"]:
        return False
    setting = {"ib_ipoib": "set kernel_modules_ipoib: never", PEERMEM: "set kernel_modules_gpudirect: off"}.get(
        name, "take it out of kernel_modules_required"
    )
    made.problem(
        f"module {name}",
        "loaded now and at boot",
        "; ".join(_where(entry) for entry in state["blocked_by"]),
        f"remove that line if nothing needs it any more (driver containers leave such files behind), or {setting}",
    )
    return True


def _where(entry: dict) -> str:
    return f"{entry['path']}:{entry['line']} says '{entry['text']}'"


def _unavailable(name: str, node: dict, made: Plan) -> None:
    kernel = node["kernel"]
    if name.startswith("nvidia"):
        made.problem(
            f"module {name}",
            "loaded now and at boot",
            f"no such module for kernel {kernel}",
            "install the NVIDIA driver (it brings nvidia-peermem) and see that DKMS built it for this kernel, or set "
            "kernel_modules_gpudirect: dmabuf or off",
        )
        return
    family = [node["os"].get("id"), *(node["os"].get("like") or [])]
    package = next((_PROVIDERS[name] for name in family if name in _PROVIDERS), "the full kernel package")
    made.problem(
        f"module {name}",
        "loaded now and at boot",
        f"no such module for kernel {kernel}",
        f"install the package that usually holds it ({package.format(kernel=kernel)}) or an RDMA driver stack, or take "
        "the module out of kernel_modules_required",
    )


def _plan_softdep(facts: dict, peermem: bool, root: str, made: Plan) -> None:
    """At boot nvidia_peermem fails for good when it comes before the modules it registers with."""
    owned = facts["owned_files"].get(paths.OWN_MODPROBE)
    if not owned and not peermem:
        return
    content = owned["content"] if owned else ""
    text = with_directive(content, f"softdep {PEERMEM}", PEERMEM_SOFTDEP if peermem else None)
    mark_stale(made, facts, plan_file(made, facts, paths.OWN_MODPROBE, text), root)
