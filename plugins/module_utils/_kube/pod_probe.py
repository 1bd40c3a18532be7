"""The probe script that one exec runs in a pod, and the parser of its output.

Pure. The script is POSIX shell, because a pod need not have Python; a missing tool exits with 127 and is reported as
not verified. Its output is a list of sections: a line "@@ NAME", the command's output, and "@@= EXIT STATUS"; END is
its last line.
"""

from __future__ import annotations

import re

# More than the 8 MiB that containers may lock unless the limit of the service that starts them was raised.
REGISTERED = 16 * 2**20
_REGISTER_PORT = 18599
# The script's last line: without it an answer is incomplete.
END = "@@."

# $1: a name to resolve. $2: that of another pod, which CoreDNS may learn of some seconds late.
# Registration is real: a server of ibv_rc_pingpong registers its buffer before it listens, and
# the kernel counts registered memory as VmPin of the process. No packet is sent.
SCRIPT = f"""
probe() {{ echo "@@ $1"; shift; "$@" 2>&1; echo "@@= $?"; }}
memlock() {{ ulimit -l; }}
capabilities() {{ while read -r key value; do case $key in CapEff:) echo "$value";; esac; done </proc/self/status; }}
drivers() {{
    for path in /sys/class/net/*; do
        name=${{path##*/}}
        [ "$name" = lo ] && continue
        echo "netdev $name"
        ethtool -i "$name" || return
    done
}}
granted() {{
    for path in /dev/infiniband/uverbs*; do
        node=${{path##*/}}
        [ -r "/sys/class/infiniband_verbs/$node/ibdev" ] || continue
        read -r hca <"/sys/class/infiniband_verbs/$node/ibdev"
        echo "$node $hca"
    done
}}
gids() {{
    granted | while read -r node hca; do
        for port in /sys/class/infiniband/"$hca"/ports/*; do
            for path in "$port"/gids/*; do
                read -r gid 2>/dev/null <"$path" || continue
                case $gid in *[1-9a-f]*) ;; *) continue;; esac
                index=${{path##*/}}
                kind='' netdev=''
                read -r kind 2>/dev/null <"$port/gid_attrs/types/$index"
                read -r netdev 2>/dev/null <"$port/gid_attrs/ndevs/$index"
                echo "$hca|${{port##*/}}|$index|$gid|$kind|$netdev"
            done
        done
    done
}}
register() {{
    command -v ibv_rc_pingpong >/dev/null || return 127
    ibv_rc_pingpong -d "$1" -i "$2" -p {_REGISTER_PORT} -s {REGISTERED} -n 1 </dev/null &
    server=$! pinned=0 tries=0
    while [ "$tries" -lt 40 ] && [ -d "/proc/$server" ]; do
        while read -r key value unit; do
            case $key in VmPin:) pinned=$value;; esac
        done 2>/dev/null <"/proc/$server/status"
        [ "$pinned" -ge {REGISTERED // 1024} ] && break
        sleep 0.25
        tries=$((tries + 1))
    done
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    echo "pinned $pinned kB"
    [ "$pinned" -ge {REGISTERED // 1024} ]
}}
# BusyBox ip has no -d: the kind of an interface then comes from its driver alone.
links() {{ ip -o -d link show 2>/dev/null || ip -o link show; }}
# The only variable read from a user's environment; not a secret.
environment() {{ if [ -n "${{NCCL_IB_GID_INDEX+set}}" ]; then echo "NCCL_IB_GID_INDEX=$NCCL_IB_GID_INDEX"; fi; }}
resolve() {{
    if command -v getent >/dev/null; then getent "${{2:-hosts}}" "$1"; else nslookup "$1"; fi
}}
# A pod's name is known once its endpoint is, and that it was unknown is remembered for some seconds.
peer() {{
    tries=0
    until resolve "$1" ahosts; do
        code=$?
        tries=$((tries + 1))
        if [ "$code" = 127 ] || [ "$tries" = 10 ]; then return "$code"; fi
        sleep 3
    done
}}
probe user id -u
probe memlock memlock
probe capabilities capabilities
probe environment environment
probe addresses ip -o addr show
probe routes ip -4 route show
probe links links
probe drivers drivers
probe devices ls -l /dev/infiniband
probe granted granted
probe verbs ibv_devinfo
probe ibstat ibstat
probe gids gids
granted | while read -r node hca; do
    for port in /sys/class/infiniband/"$hca"/ports/*; do
        probe "register $hca" register "$hca" "${{port##*/}}"
        break
    done
done
[ -n "$1" ] && probe resolve resolve "$1"
# Without the cluster's DNS each try would wait for its time to be up.
[ -n "$2" ] && resolve "$1" >/dev/null 2>&1 && probe peer peer "$2"
echo "{END}"
"""

MISSING = 127


def whole(text: str) -> bool:
    return text.endswith(f"\n{END}\n")


def unanswered(reason: str) -> str:
    """Replaces an incomplete answer: nothing about the pod is known then."""
    return f"@@ unanswered\n{' '.join(reason.split())}\n@@= 1\n"


def sections(text: str) -> dict:
    """{name: (exit status, [lines])}; the status is None if the output was cut off."""
    parts: dict = {}
    name, lines = None, []
    for line in text.splitlines():
        if line.startswith("@@= ") and name is not None:
            parts[name] = (int(line[4:]) if line[4:].strip().isdigit() else None, lines)
            name = None
        elif line.startswith("@@ "):
            if name is not None:
                parts[name] = (None, lines)
            name, lines = line[3:].strip(), []
        elif name is not None:
            lines.append(line)
    if name is not None:
        parts[name] = (None, lines)
    return parts


def parse(text: str) -> dict:
    """The script's output as data; unreadable parts are None, with the reason under `missing`."""
    said = sections(text)
    missing = {}
    for name, (code, lines) in said.items():
        if code in (MISSING, None):
            missing[name] = "the tool is missing" if code == MISSING else "the output was cut off"
            if code is None:
                missing[name] += f" after: {' '.join(lines[-1:])}"

    for name in ("exec", "unanswered"):
        if name in said:
            missing[name] = " ".join(said[name][1]) or "no output"

    def lines_of(name):
        return [] if name in missing or name not in said else said[name][1]

    return {
        "missing": missing,
        "user": _number(lines_of("user")),
        "memlock": (lines_of("memlock") or [None])[0],
        "ipc_lock": _capability(lines_of("capabilities")),
        "environment": dict(line.split("=", 1) for line in lines_of("environment") if "=" in line),
        "addresses": _addresses(lines_of("addresses")),
        "routes": _routes(lines_of("routes")),
        "links": _links(lines_of("links")),
        "drivers": _drivers(lines_of("drivers")),
        "devices": _devices(lines_of("devices")),
        "granted": dict(line.split() for line in lines_of("granted") if len(line.split()) == 2),
        "verbs": _verbs(lines_of("verbs")),
        "ibstat": _ibstat(lines_of("ibstat")),
        "gids": _gids(lines_of("gids")),
        "registered": {
            name.partition(" ")[2]: _registered(*said[name]) for name in said if name.startswith("register ")
        },
        "resolved": None if "resolve" not in said or "resolve" in missing else said["resolve"][0] == 0,
        "peer": None if "peer" not in said or "peer" in missing else lines_of("peer"),
        "resolve_said": " ".join(lines_of("resolve")),
    }


def _number(lines):
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _capability(lines):
    """Whether CAP_IPC_LOCK, the 14th bit, is effective."""
    try:
        return bool(int(lines[0], 16) >> 14 & 1)
    except (IndexError, ValueError):
        return None


def _addresses(lines) -> dict:
    """{netdev: [address/prefix]}, link-local ones left out."""
    addresses: dict = {}
    for line in lines:
        match = re.match(r"\d+:\s+(\S+?)(?:@\S+)?\s+inet6?\s+(\S+)", line)
        if match and "scope link" not in line:
            addresses.setdefault(match[1], []).append(match[2])
    return addresses


def _routes(lines) -> list:
    matches = (re.match(r"(\S+)(?:.*?\bvia (\S+))?.*?\bdev (\S+)", line) for line in lines)
    return [{"destination": match[1], "gateway": match[2], "netdev": match[3]} for match in matches if match]


def _links(lines) -> dict:
    """{netdev: {parent (index of an interface outside the pod, or None), kind, mtu}}."""
    links = {}
    for line in lines:
        match = re.match(r"\d+:\s+([^\s:@]+)(?:@if(\d+)|@\S+)?:\s.*?\bmtu (\d+)", line)
        if match:
            kind = re.search(r"\b(macvlan|ipvlan|veth|ipoib|vlan|macvtap)\b", line.partition("link/")[2])
            links[match[1]] = {
                "parent": int(match[2]) if match[2] else None,
                "kind": kind[1] if kind else None,
                "mtu": int(match[3]),
            }
    return links


def _drivers(lines) -> dict:
    drivers, netdev = {}, None
    for line in lines:
        if line.startswith("netdev "):
            netdev = line.partition(" ")[2]
        elif line.startswith("driver:") and netdev:
            drivers[netdev] = line.partition(":")[2].strip()
    return drivers


def _devices(lines) -> list:
    """Names of character devices; anything else is listed with a note, since it cannot be opened."""
    devices = []
    for line in lines:
        part = line.split()
        if part and re.match(r"[bcdlps-][-rwxsStT]{9}", part[0]):
            devices.append(part[-1] if part[0].startswith("c") else f"{part[-1]} (not a character device)")
    return sorted(devices)


def _verbs(lines) -> dict:
    """{HCA: {port number: {state, link_layer, active_mtu}}} from ibv_devinfo."""
    verbs: dict = {}
    hca = port = None
    for line in lines:
        key, _colon, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            hca, port = verbs.setdefault(value, {}), None
        elif key == "port" and hca is not None and value.isdigit():
            port = hca.setdefault(int(value), {})
        elif port is not None and key in ("state", "link_layer", "active_mtu"):
            word = value.split(" ")[0]
            port[key] = int(word) if key == "active_mtu" and word.isdigit() else word
    return verbs


def _ibstat(lines) -> dict:
    """{HCA: {port number: (state, physical state)}}."""
    ports: dict = {}
    hca = port = None
    for line in lines:
        named, numbered = re.match(r"\s*CA '(.+)'", line), re.match(r"\s*Port (\d+):", line)
        key, _colon, value = (part.strip() for part in line.partition(":"))
        if named:
            hca = ports.setdefault(named[1], {})
        elif numbered and hca is not None:
            port = int(numbered[1])
            hca[port] = ("", "")
        elif port is not None and hca and key in ("State", "Physical state"):
            state, physical = hca[port]
            hca[port] = (value, physical) if key == "State" else (state, value)
    return ports


def _gids(lines) -> list:
    rows = (line.split("|") for line in lines)
    return [
        {"hca": row[0], "port": int(row[1]), "index": int(row[2]), "gid": row[3], "type": row[4], "netdev": row[5]}
        for row in rows
        if len(row) == 6
    ]


def _registered(code, lines) -> dict:
    pinned = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("pinned ")), 0)
    said = [line.strip() for line in lines if line.strip() and not line.startswith(("pinned ", "  local"))]
    return {"code": code, "bytes": pinned, "said": "; ".join(said[-2:])}
