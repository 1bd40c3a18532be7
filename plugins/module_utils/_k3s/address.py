# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One address for the API servers of a cluster, held by a server whose own API server is ready: keepalived, by VRRP.

PRIVATE to the collection. keepalived rather than kube-vip: it is a signed package of the node's own distribution, and
the address needs neither a datastore nor a running pod, so it does not hang on what it is for, and moves while the API
is down. Advertisements go to the other servers by unicast. keepalived.service and keepalived.conf are the site's.
"""

from __future__ import annotations

from typing import Optional

from .._core.change import Plan
from .._core.units import SYSTEM
from ..hca import paths
from . import config as k3s

PROGRAM = "/usr/sbin/keepalived"
# Where the distributions' SELinux policy lets keepalived read its configuration and run scripts.
CONFIG = "/etc/keepalived/gpufabric-rdma-k3s.conf"
CHECK = "/usr/libexec/keepalived/gpufabric-rdma-k3s-ready"
SERVICE = "gpufabric-rdma-k3s-address"
UNIT = f"{SYSTEM}/{SERVICE}.service"
FILES = (CONFIG, CHECK, UNIT)
PORT = 6443
# A site's own VRRP is kept apart by the unicast peers; the number only has to be one.
ROUTER = 51
# In the foreground, VRRP alone, and apart from a keepalived of the site.
_ARGUMENTS = (
    *("--dont-fork", "--log-console", "--vrrp", f"--use-file={CONFIG}"),
    *(f"--pid=/run/{SERVICE}.pid", f"--vrrp_pid=/run/{SERVICE}-vrrp.pid"),
)


def conf(wanted: dict) -> str:
    """wanted: address, interface, node_ip, peers (addresses of the other servers), name (of the node)."""
    peers = "".join(f"        {peer}\n" for peer in wanted["peers"])
    unicast = f"    unicast_peer {{\n{peers}    }}\n" if peers else ""
    return f"""{paths.HEADER}
global_defs {{
    router_id {wanted["name"]}
    enable_script_security
    script_user root
}}

# Without weight: a server whose API server is not ready cannot hold the address.
vrrp_script k3s_ready {{
    script "{CHECK}"
    interval 2
    timeout 5
    fall 2
    rise 1
    init_fail
}}

# All alike and nopreempt: the address moves when its holder fails, and not back.
vrrp_instance k3s_api {{
    state BACKUP
    nopreempt
    interface {wanted["interface"]}
    virtual_router_id {ROUTER}
    priority 100
    advert_int 1
    garp_master_refresh 60
    unicast_src_ip {wanted["node_ip"]}
{unicast}    virtual_ipaddress {{
        {wanted["address"]}/32 dev {wanted["interface"]}
    }}
    track_script {{
        k3s_ready
    }}
}}
"""


def check(python: str) -> str:
    """A program that ends well if the API server of this node is ready, etcd included."""
    tls = f"{k3s.DATA}/server/tls"
    return f"""#!{python} -IS
{paths.HEADER}
# Asked by keepalived, as a client that the cluster knows: /readyz covers etcd, and k3s answers no one else.
import http.client
import ssl
import sys

try:
    context = ssl.create_default_context(cafile="{tls}/server-ca.crt")
    context.load_cert_chain("{tls}/client-admin.crt", "{tls}/client-admin.key")
    asked = http.client.HTTPSConnection("127.0.0.1", {PORT}, timeout=4, context=context)
    asked.request("GET", "/readyz")
    sys.exit(asked.getresponse().status != 200)
except (OSError, http.client.HTTPException):
    sys.exit(1)
"""


def unit() -> str:
    return f"""{paths.HEADER}
[Unit]
Description=Address of the Kubernetes API, on a server whose API server is ready
Documentation=man:keepalived(8)
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=exec
ExecStart={PROGRAM} {" ".join(_ARGUMENTS)}
Restart=always
RestartSec=2s
ProtectHome=yes
PrivateTmp=yes
ProtectKernelModules=yes
"""


def texts(wanted: Optional[dict], python: str) -> dict[str, tuple[str, str]]:
    """{path: (text, mode)} of the files of a server; none without an address."""
    if wanted is None:
        return {}
    return {CONFIG: (conf(wanted), "0600"), CHECK: (check(python), "0755"), UNIT: (unit(), "0644")}


def configured(text: Optional[str]) -> str:
    """The address in our own configuration, or nothing."""
    lines = (text or "").splitlines()
    if not lines or lines[0] != paths.HEADER:
        return ""
    for number, line in enumerate(lines):
        if line.strip() == "virtual_ipaddress {":
            return lines[number + 1].strip().partition("/")[0]
    return ""


def plan(state: dict, wanted: Optional[dict], python: str, root: str = "/") -> Plan:
    """state: program (whether keepalived is there), files {path: {content, mode}}, enabled, active, stale (whether the
    service was started before one of its files was written)."""
    made = Plan()
    aim = texts(wanted, python)
    if wanted and not state["program"] and not root.rstrip("/"):
        made.finding(
            PROGRAM, "keepalived", "no such program", "install the package keepalived of the node's distribution"
        )
        return made
    foreign = [path for path, seen in state["files"].items() if not seen["content"].startswith(_begin(path))]
    for path in foreign if wanted else ():
        made.finding(path, "a file of this collection, or none", "a file of others", "move it away and run again")
    if made.findings:
        return made
    live = not root.rstrip("/")
    if not wanted:
        if live and (state["active"] or state["enabled"]):
            made.change(f"service {SERVICE}", "disable", "running or enabled", "stopped and disabled")
        for path, seen in state["files"].items():
            if path not in foreign:
                made.change(path, "remove", seen["content"], "")
        return made
    touched = False
    for path, (text, mode) in aim.items():
        seen = state["files"].get(path)
        if seen is None or seen["content"].strip() != text.strip():
            made.change(path, "write", seen["content"] if seen else "", text)
            touched = True
        elif seen["mode"] != mode:
            made.change(path, "mode", seen["mode"], mode)
    if not live:
        made.not_verified.append(f"{root} is a tree of files: service {SERVICE} is neither enabled nor started")
        return made
    if not state["enabled"]:
        made.change(f"service {SERVICE}", "enable", "disabled", "enabled")
    if not state["active"]:
        made.change(f"service {SERVICE}", "start", "stopped", "running")
    elif touched or state["stale"]:
        made.change(f"service {SERVICE}", "restart", "running without what was written", "running with it")
    return made


def _begin(path: str) -> str:
    return "#!" if path == CHECK else paths.HEADER
