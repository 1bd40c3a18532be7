"""What a node lacks for GPU-initiated RDMA, and the published failure that follows, in words. Pure."""

from ...module_utils.hca import gpu_initiated as facts_of

_WRITE = "run playbooks/host.yml -e kernel_modules_gpu_initiated=write, which asks for the reboot too"
# What is missing, and the message of a job without it.
_NEEDS = {
    facts_of.PEER_MAPPING: (
        "PeerMappingOverride=1 of the NVIDIA driver",
        "only root may map the NIC's doorbells (CVE-2015-5053)",
    ),
    facts_of.STREAM_MEMORY: (
        "EnableStreamMemOPs=1 of the NVIDIA driver",
        "IBGDA has no stream memory operations (DeepEP's README)",
    ),
    facts_of.GDRDRV: ("gdrdrv with /dev/gdrdrv", "NCCL GIN is unavailable (awsome-distributed-ai#1241)"),
    facts_of.PEERMEM: ("nvidia_peermem", "GDAKI registers no GPU memory (ucx#10995)"),
}
_WHYS = {
    facts_of.ABSENT: ("is missing", ""),
    facts_of.REBOOT: ("is configured and takes effect at the next load of the driver", "reboot the node"),
    facts_of.IGNORED: (
        "was configured before this boot, but the driver loaded without it",
        "look at dmesg | grep NVRM on the node",
    ),
    facts_of.STRAY: ("is in a line of modprobe.d that does not begin with options nvidia (ml-cookbook#43)", ""),
    facts_of.OVERRIDDEN: ("is overridden by a line that is read later", "remove that line"),
    facts_of.UNKNOWN: (f"is not known: {facts_of.PARAMS} cannot be read", "read it as root on the node itself"),
    facts_of.NO_NODE: (
        "is missing: the module is loaded, the device is not there",
        "run insmod.sh of NVIDIA's GDRCopy on the node",
    ),
    facts_of.MODE: ("is not readable and writable for everybody", f"chmod 0666 {facts_of.NODE}"),
}
_STEPS = {
    facts_of.PEER_MAPPING: _WRITE,
    facts_of.STREAM_MEMORY: _WRITE,
    facts_of.GDRDRV: "install gdrdrv-dkms of NVIDIA's GDRCopy, and give pods the device (CDI), never privileged",
    facts_of.PEERMEM: "run playbooks/host.yml -e kernel_modules_gpudirect=peermem",
}


def seen(state: dict, way: str) -> str:
    """What the way lacks, with the line at fault; empty if it lacks nothing."""
    parts = []
    for each in state["ways"][way]["missing"]:
        what, failure = _NEEDS[each["need"]]
        lines = {facts_of.STRAY: state["stray"], facts_of.OVERRIDDEN: state["overridden"]}.get(each["why"], [])
        where = "".join(f", {line['path']}:{line['line']}" for line in lines)
        parts.append(f"{what} {_WHYS[each['why']][0]}{where}: {failure}")
    return "; ".join(parts)


def next_step(state: dict, way: str) -> str:
    """For the first thing that is missing."""
    first = state["ways"][way]["missing"][0]
    return _WHYS[first["why"]][1] or _STEPS[first["need"]]


def line(state: dict) -> str:
    words = {True: "works", None: "is not known", False: "lacks"}
    parts = []
    for way, of in state["ways"].items():
        missing = "" if of["works"] else " " + " and ".join(each["need"] for each in of["missing"])
        parts.append(f"{way} {words[of['works']]}{missing}")
    return "; ".join(parts)
