"""The kernel modules that a node needs, now and at boot. Pure: facts and options in, Plan out."""

from __future__ import annotations

import re

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, with_directive
from ..hca import gpu_initiated, paths, pci
from ..hca.modprobe import said
from .gpudirect import REFUSED, Diagnosis, diagnose
from .initramfs import mark_stale

PEERMEM = "nvidia_peermem"
PEERMEM_SOFTDEP = f"softdep {PEERMEM} pre: nvidia ib_uverbs"
_NVIDIA_OPTIONS = "options nvidia"
_DWORDS = re.compile(r"(\w+=\w*;)*\Z", re.ASCII)
NO, AT_BOOT, NOW = "no", "at boot", "now"

# Package that usually contains a module missing from the kernel, by distribution family.
_PROVIDERS = {
    "ubuntu": "linux-modules-extra-{kernel}",
    "debian": "linux-image-amd64 or linux-image-arm64 instead of the cloud flavour",
    "rhel": "kernel-modules-{kernel}, else kernel-modules-extra-{kernel}",
    "fedora": "kernel-modules-{kernel}, else kernel-modules-extra-{kernel}",
    "suse": "kernel-default instead of kernel-default-base",
}


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: required (names), ipoib (auto|always|never), gpudirect (auto|peermem|dmabuf|off), gpu_initiated
    (report|write).

    driver_changes: the driver is changed first in this run, so the doctor's verdict is not final.
    """
    made = Plan()
    offline = kernel_out_of_reach(facts, root)
    names = list(wanted["required"])
    if _wants_ipoib(facts, wanted["ipoib"], made) and "ib_ipoib" not in names:
        names.append("ib_ipoib")
    names += [name for name in _older_cards(facts) if name not in names]
    peermem = _peermem(facts, wanted, made)
    if peermem != NO and PEERMEM not in names:
        names.append(PEERMEM)

    missing = []
    for name in names:
        state = facts["modules"].get(name) or {"loaded": False, "available": True, "blocked_by": []}
        if _blockers(name, state, made) or state["loaded"] or (name == PEERMEM and peermem == AT_BOOT):
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
    _plan_modprobe(facts, peermem != NO, _nvidia_options(facts, wanted, offline, made), root, made)
    return made


def _nvidia_options(facts: dict, wanted: dict, offline: str | None, made: Plan) -> str | None:
    """Our line for GPU-initiated RDMA, which keeps foreign settings; it takes effect at the next load of the driver."""
    state = facts.get("gpu_initiated")
    if not state or wanted.get("gpu_initiated") != "write":
        return None
    for line in state["overridden"]:
        step = "remove the option there, or set kernel_modules_gpu_initiated: report"
        made.finding("options of nvidia", "those for GPU-initiated RDMA in effect", f"{said(line)}, read later", step)
    dwords = {**gpu_initiated.dwords(state["foreign_dwords"]), gpu_initiated.PEER_KEY: "1"}
    whys = {each["need"]: each["why"] for way in state["ways"].values() for each in way["missing"]}
    left = {whys.get(need) for need in gpu_initiated.WAYS["ibgda"]} - {None, gpu_initiated.UNKNOWN}
    if gpu_initiated.IGNORED in left:
        made.notes.append("the NVIDIA driver has loaded without the options written before this boot: see dmesg")
    elif left and offline:
        made.not_verified.append(f"the NVIDIA driver's options take effect at its next load: {offline}")
    elif left and state["loaded"]:
        made.reboot_reasons.append(
            "The loaded NVIDIA driver lacks the options for GPU-initiated RDMA, which are written for the next boot."
        )
    joined = "".join(f"{key}={value};" for key, value in dwords.items())
    if not _DWORDS.match(joined):
        step = "correct it in /etc/modprobe.d or the boot loader, or set kernel_modules_gpu_initiated: report"
        made.finding(f"option {gpu_initiated.OPTIONS[1]} of nvidia", "pairs such as A=1;B=2;", repr(joined), step)
    return f'{_NVIDIA_OPTIONS} {gpu_initiated.OPTIONS[0]}=1 {gpu_initiated.OPTIONS[1]}="{joined}"'


def _older_cards(facts: dict) -> list[str]:
    """The RDMA module of cards before ConnectX-4, which is in no list of modules."""
    drivers = {card.get("driver") for card in facts["cards_without_rdma"]}
    drivers |= {hca["pci"]["driver"] for hca in facts["hcas"] if hca.get("pci")}
    return ["mlx4_ib"] if "mlx4_core" in drivers else []


def _wants_ipoib(facts: dict, choice: str, made: Plan) -> bool:
    if choice != "auto":
        return choice == "always"
    if not facts["hcas"] and facts["cards_without_rdma"]:
        made.not_verified.append("whether a port is InfiniBand, and so needs ib_ipoib, is known once its driver runs")
    return any(port["link_layer"] == "InfiniBand" for hca in facts["hcas"] for port in hca["ports"])


def _peermem(facts: dict, wanted: dict, made: Plan) -> str:
    """Whether nvidia_peermem is loaded: NOW, only AT_BOOT, or NO. No trial load: the doctor has checked the files.

    A setting for all nodes must not break a node without GPUs.
    """
    choice, state = wanted["gpudirect"], facts["modules"].get(PEERMEM) or {}
    if not any(gpu["vendor"] == pci.NVIDIA for gpu in facts["gpus"]):
        if choice == "peermem":
            made.notes.append("kernel_modules_gpudirect is peermem, but this node has no NVIDIA GPU: nothing to load")
        return NO
    if choice in ("dmabuf", "off"):
        if state.get("loaded"):
            made.notes.append(f"{PEERMEM} is loaded although kernel_modules_gpudirect is {choice}: nothing is unloaded")
        if choice == "dmabuf" and facts["gpudirect"]["mode"] != "dmabuf":
            _advise(made, facts["gpudirect"]["verdict"], facts["gpudirect"]["action"])
        return NO
    evidence = facts["gpudirect"]["evidence"]
    diagnosis = diagnose(evidence, choice)
    if diagnosis.verdict in REFUSED:
        if wanted.get("driver_changes"):
            made.not_verified.append(
                f"{PEERMEM} cannot load as it is, but the driver changes first: {diagnosis.sentence}"
            )
        else:
            _refuse_peermem(diagnosis, made)
        return NO
    if diagnosis.verdict == "stale-memory":
        made.not_applied.append(f"{PEERMEM} is loaded at the next boot, not now: {diagnosis.sentence}")
        return AT_BOOT
    if choice == "peermem":
        if diagnosis.verdict in ("wrong-kernel", "version-mismatch"):
            _refuse_peermem(diagnosis, made)
            return NO
        return NOW
    return _automatic(facts["gpudirect"], diagnosis, state, made)


def _automatic(gpudirect: dict, diagnosis: Diagnosis, state: dict, made: Plan) -> str:
    """`auto`: loaded if it is needed and can load; anything else is reported, and the node works without it."""
    evidence = gpudirect["evidence"]
    loadable = diagnosis.verdict in ("loaded", "ready", "blocked")
    if diagnosis.verdict == "unknown":
        # What modinfo tells of a file that cannot be unpacked.
        loadable = bool(evidence["peermem"]["wants_symbol"]) and evidence["loaded"]["ib_core"]
    if not loadable:
        _advise(made, diagnosis.sentence, diagnosis.action)
        return NO
    if not evidence["nvidia"]["loaded"]:
        _advise(made, gpudirect["verdict"], gpudirect["action"])
        return NO
    if state.get("blocked_by"):
        made.notes.append(f"{PEERMEM} stays unloaded: {said(state['blocked_by'][0])}")
        return NO
    return NOW


def _advise(made: Plan, sentence: str, action: str | None) -> None:
    if action:
        made.notes.append(f"GPUDirect: {sentence} Next step: {action}")


def _refuse_peermem(diagnosis: Diagnosis, made: Plan) -> None:
    made.finding(
        f"module {PEERMEM}",
        "a module that can load",
        f"{diagnosis.verdict}: {' '.join([diagnosis.sentence, *diagnosis.evidence])}",
        f"{diagnosis.action} To continue without it, set kernel_modules_gpudirect: off",
    )


def _blockers(name: str, state: dict, made: Plan) -> bool:
    """Something on the node blocks the module: report it, never override it."""
    if not state["blocked_by"]:
        return False
    setting = {"ib_ipoib": "set kernel_modules_ipoib: never", PEERMEM: "set kernel_modules_gpudirect: off"}.get(
        name, "remove it from kernel_modules_required"
    )
    made.finding(
        f"module {name}",
        "loaded now and at boot",
        "; ".join(said(entry) for entry in state["blocked_by"]),
        f"remove that line if nothing needs it any longer (driver containers leave such files behind), or {setting}",
    )
    return True


def _unavailable(name: str, node: dict, made: Plan) -> None:
    kernel = node["kernel"]
    step = (
        "install the NVIDIA driver (it includes nvidia-peermem), make sure DKMS built it for this kernel, or set "
        "kernel_modules_gpudirect: dmabuf or off"
    )
    if not name.startswith("nvidia"):
        family = [node["os"].get("id"), *(node["os"].get("like") or [])]
        package = next((_PROVIDERS[name] for name in family if name in _PROVIDERS), "the full kernel package")
        step = (
            f"install the package that usually contains it ({package.format(kernel=kernel)}) or an RDMA driver stack, "
            "or remove the module from kernel_modules_required"
        )
    made.finding(f"module {name}", "loaded now and at boot", f"no such module for kernel {kernel}", step)


def _plan_modprobe(facts: dict, peermem: bool, options: str | None, root: str, made: Plan) -> None:
    """Our modprobe.d file: at boot nvidia_peermem fails for good if it loads before the modules it registers with.

    options: the line for the NVIDIA driver, or None.
    """
    owned = facts["owned_files"].get(paths.OWN_MODPROBE)
    if not owned and not peermem and not options:
        return
    text = with_directive(owned["content"] if owned else "", f"softdep {PEERMEM}", PEERMEM_SOFTDEP if peermem else None)
    text = with_directive(text, _NVIDIA_OPTIONS, options)
    mark_stale(made, facts, plan_file(made, facts, paths.OWN_MODPROBE, text), root)
