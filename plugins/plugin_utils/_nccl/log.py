"""What a log of nccl-tests with NCCL_DEBUG=INFO says: transport, GPUDirect RDMA, HCAs, bandwidth, errors.

Pure. The lines are those of NCCL 2.12 to 2.28 (src/transport/net_ib.cc, later net_ib/init.cc; src/transport/net.cc;
src/init.cc) and of nccl-tests (src/common.cu), plain or after the prefixes of mpirun --tag-output (Open MPI 4 and 5),
srun --label and kubectl logs.
"""

import re

from ...module_utils._core import text as core_text
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check

_TAG = re.compile(
    r"^(?:\[[^]\s]*,\d+\]<std(?:out|err)>:\s?|\s*\d+: |\[pod/\S+\] |\d{4}-\d\d-\d\dT\S+(?:Z|[+-]\d\d:\d\d) )+"
)
# From 2.26 on a warning begins with its time (NCCL_DEBUG_TIMESTAMP_LEVELS).
_LINE = re.compile(
    r"^(?:\[[^]]*\] )?(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[\d+\] (?:\S+ )?NCCL (?P<level>INFO|WARN) (?P<text>.*)$"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_USING = re.compile(r"^NET/(IB\w*) : Using (.*)$")
_DEVICE = re.compile(r"\[(\d+)\]([^\s/:]+):(\d+)/(IB|RoCE)")
# From 2.21 on connections use virtual devices, which may join several HCAs (`mlx5_0+mlx5_1`).
_VIRTUAL = re.compile(r"^NET/IB : Made virtual device \[(\d+)\] name=(\S+)")
_CHANNEL = re.compile(
    r"^Channel \d+(?:/\d+)? ?: \d+\[\w+\] -> \d+\[\w+\] \[(?:send|receive)\] "
    r"via NET/(.+?)/(\d+)(?:\(\d+\))?((?:/\w+(?:\(\w+\))?)*)$"
)
# HPC-X's plugin leaves the last quote out.
_GDR = re.compile(r"GPU Direct RDMA (?:\([^)]*\) )?(enabled|disabled) for HCA \d+ '([^']+)", re.IGNORECASE)
_GID_INDEX = re.compile(r"NCCL_IB_GID_INDEX set by environment to (\S+?)\.?$")
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*(\d+\.?\d*)")
_WRONG = re.compile(r"^# Out of bounds values\s*:\s*(\d+)")
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([0-9.]+)\s+([0-9.]+)\s+(\d+\.?\d*)\s+\S+")
_SLOW = "Socket"


def parse(text: str) -> dict:
    """version, networks, devices, channels, gdr, warnings, gid_index, rows, average_gbyte_per_s, wrong.

    devices: {host: {index: (HCA, port, IB or RoCE)}}. virtual: {host: {index: [HCA]}}. channels: [{host, network,
    index, gdr}], one for each connection between nodes. gdr: {(host, HCA): bool} as NCCL announced it. rows:
    [(bytes, bus bandwidth in GByte/s)].
    """
    parsed: dict = {
        "version": None,
        "networks": [],
        "devices": {},
        "virtual": {},
        "no_device": [],
        "channels": [],
        "gdr": {},
        "warnings": [],
        "gid_index": None,
        "rows": [],
        "average_gbyte_per_s": None,
        "wrong": None,
    }
    for raw in text.splitlines():
        line = _TAG.sub("", raw.rstrip())
        _result_line(line, parsed)
        match = _LINE.match(line)
        if match and match["level"] == "WARN":
            parsed["warnings"].append(f"{match['host']}: {match['text']}")
        elif match:
            _info(match["host"], match["text"].strip(), parsed)
    parsed["networks"] = sorted(set(parsed["networks"]))
    return parsed


def _result_line(line: str, parsed: dict) -> None:
    for key, pattern, kind in (
        ("version", _VERSION, str),
        ("average_gbyte_per_s", _AVERAGE, float),
        ("wrong", _WRONG, int),
    ):
        match = pattern.search(line)
        if match:
            parsed[key] = kind(match[1])
    row = _ROW.match(line)
    if row:
        parsed["rows"].append((int(row[1]), float(row[4])))


def _info(host: str, text: str, parsed: dict) -> None:
    if text.startswith("Using network "):
        parsed["networks"].append(text[len("Using network ") :])
    if text.startswith("NET/IB : No device found"):
        parsed["no_device"].append(host)
    using = _USING.match(text)
    if using:
        parsed["devices"].setdefault(host, {}).update(
            (int(index), (name, int(port), kind)) for index, name, port, kind in _DEVICE.findall(using[2])
        )
    virtual = _VIRTUAL.match(text)
    if virtual:
        parsed["virtual"].setdefault(host, {})[int(virtual[1])] = virtual[2].split("+")
    channel = _CHANNEL.match(text)
    if channel:
        network, index = channel[1], int(channel[2])
        parsed["channels"].append({"host": host, "network": network, "index": index, "gdr": "/GDRDMA" in channel[3]})
    gdr = _GDR.search(text)
    if gdr and "Socket" not in text:
        parsed["gdr"][(host, gdr[2])] = gdr[1].lower() == "enabled"
    gid = _GID_INDEX.search(text)
    if gid:
        parsed["gid_index"] = gid[1]


def checks(parsed: dict, hcas: list[str], minimum) -> list[dict]:
    """Named checks of one log. hcas: those of the rails, empty if any will do. minimum: GByte/s, or None."""
    all_of = f"traffic over {core_text.listing(hcas)} of each node" if hcas else "traffic over an HCA of each node"
    floor = f"{minimum:g} GByte/s or more at the largest size" if minimum else "a figure"
    unset = "not set: the index differs from pod to pod, and NCCL 2.21 and later find it"
    return [
        check(f"nccl:{name}", obj, status, wanted, *told)
        for name, obj, wanted, (status, *told) in (
            ("transport", "NCCL transport", "every connection between nodes over NET/IB", _transport(parsed)),
            ("gpudirect", "GPUDirect RDMA", "GDRDMA on every connection between nodes", _gpudirect(parsed)),
            ("rails", "HCAs in use", all_of, _rails(parsed, hcas)),
            ("gid-index", "NCCL_IB_GID_INDEX", unset, _gid(parsed)),
            ("result", "results of the collective", "no wrong value and no warning of NCCL", _correct(parsed)),
            ("bandwidth", "bus bandwidth", floor, _bandwidth(parsed, minimum)),
        )
    ]


# Each says the status, what was seen and, unless it has passed, the next step.


def _transport(parsed: dict) -> tuple:
    used = [channel["network"] for channel in parsed["channels"]]
    slow = sum(network == _SLOW for network in used)
    if slow or _SLOW in parsed["networks"]:
        seen = "Using network Socket (NET/Socket)"
        if used:
            seen = f"NET/Socket on {slow} of {core_text.count(len(used), 'connection')}"
        if parsed["no_device"]:
            seen += f"; NET/IB : No device found on {core_text.names(sorted(set(parsed['no_device'])))}"
        step = (
            "check the device plugin, the resources and IPC_LOCK of the pod: without a verbs device, or if memory "
            "cannot be locked, NCCL sends over TCP"
        )
        return FAILED, seen, step
    if not used:
        step = "run with NCCL_DEBUG=INFO on two nodes or more, and keep the whole log"
        return NOT_VERIFIED, "no connection between nodes in the log", step
    networks = core_text.listing(sorted({f"NET/{network}" for network in used}))
    return PASSED, f"{networks} on {core_text.count(len(used), 'connection')}"


def _gpudirect(parsed: dict) -> tuple:
    fast = [channel for channel in parsed["channels"] if channel["network"] != _SLOW]
    hosts = sorted({channel["host"] for channel in fast if not channel["gdr"]})
    off = sorted({hca for (_host, hca), enabled in parsed["gdr"].items() if not enabled})
    seen = f"on {core_text.count(len(fast), 'connection')}" if fast else "no connection over NET/IB in the log"
    if fast and not hosts:
        return PASSED, seen
    step = (
        "run playbooks/discover.yml: gpudirect says whether nvidia_peermem or dma-buf is missing; then check that GPU "
        "and HCA are near each other (NCCL_NET_GDR_LEVEL is PXB by default)"
    )
    if not fast:
        return NOT_VERIFIED, seen, step
    without = sum(not channel["gdr"] for channel in fast)
    seen = f"absent on {without} of {core_text.count(len(fast), 'connection')} ({core_text.names(hosts)})"
    return FAILED, seen + (f"; disabled for {core_text.listing(off)}" if off else ""), step


def used_hcas(parsed: dict) -> dict:
    """{host: [HCA]} that connections really use; an HCA that was found but stayed idle is not among them."""
    used: dict = {}
    for channel in parsed["channels"]:
        host, index = channel["host"], channel["index"]
        device = parsed["devices"].get(host, {}).get(index)
        names = parsed["virtual"].get(host, {}).get(index) or ([device[0]] if device else [])
        if names and channel["network"] != _SLOW:
            used.setdefault(host, set()).update(names)
    return {host: sorted(names) for host, names in sorted(used.items())}


def _rails(parsed: dict, hcas: list[str]) -> tuple:
    used = used_hcas(parsed)
    if not used:
        step = "keep the lines `NET/IB : Using` and `Channel` of the log (NCCL_DEBUG=INFO)"
        return NOT_VERIFIED, "the log lists none", step
    idle = {host: sorted(set(hcas) - set(names)) for host, names in used.items() if set(hcas) - set(names)}
    seen, lacking = (
        "; ".join(f"{host}: {core_text.listing(names)}" for host, names in of.items()) for of in (used, idle)
    )
    step = "check that the ports are ACTIVE and listed in NCCL_IB_HCA, and that the pod requested each rail's resource"
    return (FAILED, f"{seen}; idle: {lacking}", step) if idle else (PASSED, seen)


def _gid(parsed: dict) -> tuple:
    if parsed["gid_index"] is None:
        return PASSED, "not set"
    step = "remove it from the job and the image; set NCCL_IB_ADDR_RANGE to the rails' network instead"
    return FAILED, f"set to {parsed['gid_index']}", step


def _correct(parsed: dict) -> tuple:
    if parsed["wrong"] is None:
        seen = "; ".join(parsed["warnings"][:2]) or "the log ends before the result"
        status = FAILED if parsed["warnings"] else NOT_VERIFIED
        return status, seen, "let it finish, and look at the first NCCL WARN line"
    if parsed["wrong"]:
        step = "treat the GPU memory, the cables and their counters as suspect: run playbooks/matrix.yml"
        return FAILED, core_text.count(parsed["wrong"], "wrong value"), step
    told = f"; {core_text.count(len(parsed['warnings']), 'warning')}" if parsed["warnings"] else ""
    return PASSED, f"no wrong value{told}"


def _bandwidth(parsed: dict, minimum) -> tuple:
    if not parsed["rows"]:
        return NOT_VERIFIED, "the log has no result line", "let it finish"
    size, bus = max(parsed["rows"])
    seen = f"{bus:g} GByte/s at {size} bytes"
    if parsed["average_gbyte_per_s"] is not None:
        seen += f", {parsed['average_gbyte_per_s']:g} on average over all sizes"
    if minimum and bus < minimum:
        return FAILED, seen, "run playbooks/matrix.yml to see which rail is slow"
    return PASSED, seen


def report(path: str, parsed: dict, checks: list[dict]) -> str:
    """Failures with their four facts, then every check on one line."""
    failed = [{"host": path, **item} for item in checks if item["status"] == FAILED]
    rows = [(item["status"].replace("_", " "), item["object"], item["seen"]) for item in checks]
    head = f"{path}: NCCL {parsed['version'] or 'of unknown version'}"
    parts = [f"Failed\n{core_text.four_facts(failed)}"] if failed else []
    return "\n\n".join([*parts, f"{head}\n{core_text.table(('result', 'what', 'seen'), rows)}"])
