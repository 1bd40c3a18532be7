"""Results documents for tests of the report, made from the captured and composed nodes in tests/fixtures.

report_documents.py FOLDER    writes the pages for tests/report/browser.py: rails and fleet
"""

import pathlib
import sys

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import verdicts
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.tests.tools import tree

AT = "2026-11-22T07:10:00Z"


def facts(name: str) -> dict:
    """Facts of a fixture, with software HCAs as rails."""
    return tree.facts(name, software_hcas=True)


def results(nodes: list[dict], drift: dict | None = None, matrix: dict | None = None) -> dict:
    return {"schema": document.SCHEMAS["results"], "at": AT, "nodes": nodes, "drift": drift, "matrix": matrix}


def node(host: str, fixture: str | None, more: list[dict] | None = None, reboot: list[str] | None = None) -> dict:
    read = facts(fixture) if fixture else None
    if read is None:
        checks = host_checks.absent("unreachable: Failed to connect to the host via ssh: Connection timed out")
    else:
        checks = _passed() + ports(read)
    return {"host": host, "facts": read, "checks": checks + (more or []), "reboot_reasons": reboot or []}


def _passed() -> list[dict]:
    rows = [(f"module:{name}", f"module {name}", "loaded") for name in ("mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm")]
    rows.append(("netns", "RDMA netns mode", "shared, and shared at the next boot"))
    rows += [(f"memlock:{name}", f"LimitMEMLOCK of {name}", "infinity") for name in ("k3s", "containerd")]
    return [host_checks.check(identity, name, "passed", seen.split(",")[0], seen) for identity, name, seen in rows]


def ports(read: dict) -> list[dict]:
    return host_checks._ports(read, {"discovery_expected_ports": []})


def with_port_down(made: dict, name: str) -> dict:
    """The node with the cable of an HCA's first port pulled."""
    hca = next(hca for hca in made["facts"]["hcas"] if hca["name"] == name)
    hca["ports"][0].update(state="DOWN", phys_state="Polling", rate_gbps=10.0, rate_text="10 Gb/sec (4X SDR)")
    made["checks"] = [item for item in made["checks"] if not item["id"].startswith("port:")] + ports(made["facts"])
    return made


_FILE = "/etc/modprobe.d/blacklist-ofed.conf"
_SEEN = f"not loaded: {_FILE}:2 says blacklist mlx5_ib"
_NEXT = f"remove line 2 of {_FILE}, then: modprobe mlx5_ib"
_ROOT = {
    **host_checks.check("module:mlx5_ib", "module mlx5_ib", "failed", "loaded", _SEEN, _NEXT),
    "failure": "module-absent",
    "root": True,
}


def _follows(identity: str, obj: str, wanted: str, seen: str) -> dict:
    made = host_checks.check(identity, obj, "failed", wanted, seen, "fix what it follows from")
    return {**made, "failure": identity, "root": False, "consequence_of": "module-absent"}


def blocked_card(host: str) -> dict:
    """A node whose driver is blocked: one root and its consequences."""
    more = [
        dict(_ROOT),
        _follows("nothing-allocatable", "resource rdma/hca", "1 or more allocatable", "0 allocatable"),
        _follows("pod-pending", "pod gpufabric-verification/probe", "Running", "Pending: Insufficient rdma/hca"),
    ]
    made = node(host, "card-without-mlx5-ib", more)
    made["checks"] = [item for item in made["checks"] if item["id"] != "module:mlx5_ib" or item["status"] == "failed"]
    return made


# --- matrix and drift ------------------------------------------------------------------------------------------------


def measurement(rail: int, path: str, pair: tuple, figure: float | None, expected: float | None, **more) -> dict:
    verdict = "not_verified" if figure is None else "outlier" if expected and figure < 0.8 * expected else "ok"
    made = {"id": f"{path}-{rail}-{pair[0]}-{pair[1]}", "rail": rail, "path": path, "from": pair[0], "to": pair[1]}
    made |= {"from_hca": f"mlx5_{rail}", "to_hca": f"mlx5_{rail}"}
    made |= {"gbit_per_s": figure, "expected_gbit_per_s": expected, "verdict": verdict, "reason": "", "counters": {}}
    return {**made, "expected_from": "link 400 Gb/s, PCIe 32 GT/s x16; the smaller, less 4 % of headers", **more}


def matrix(hosts: list[str], rails: int, expected: float, slow: dict) -> dict:
    """Each node to the next over each rail, on the host and in pods. slow: {(rail, from): (factor or None, more)}."""
    tests = []
    for place, host in enumerate(hosts):
        for rail in range(rails):
            for path in ("host", "pod"):
                factor, more = slow.get((rail, host), (0.962 + (place * 7 + rail * 3) % 9 / 400, {}))
                figure = None if factor is None else round(expected * factor, 1)
                pair = (host, hosts[(place + 1) % len(hosts)])
                tests.append(measurement(rail, path, pair, figure, expected, **more))
    return {"schema": document.SCHEMAS["matrix"], "at": AT, "tests": tests}


def drift(hosts: dict[str, tuple[str, list[dict], list[str]]]) -> dict:
    """hosts: {name: (verdict, differences, reasons)}."""
    worst = max((entry[0] for entry in hosts.values()), key=verdicts.VERDICTS.index)
    listed = [dict(zip(("host", "verdict", "differences", "reasons"), (name, *entry))) for name, entry in hosts.items()]
    head = {"schema": document.SCHEMAS["drift"], "at": AT, "verdict": worst}
    return {**head, "exit_code": verdicts.EXIT_CODES[worst], "hosts": listed}


_MEMLOCK = {
    "role": "limits",
    "object": "/etc/systemd/system/k3s.service.d/50-gpufabric-rdma.conf",
    "wanted": "LimitMEMLOCK=infinity",
    "seen": "LimitMEMLOCK=65536",
}
_REBOOT = (
    "The RDMA subsystem runs in netns mode exclusive, "
    "/etc/modprobe.d/gpufabric-rdma.conf sets shared for the next boot."
)


# --- the documents for viewing the page -------------------------------------------------------------------------------


def rails() -> dict:
    """Machines with eight rails and others of the fixtures; one cable is out, one driver blocked, one node away."""
    nodes = [
        with_port_down(node("h100-01", "h100-8x-cx7-ib"), "mlx5_5"),
        node("a100-01", "a100-8x-cx6"),
        node("gh200-01", "gh200-cx7-roce", reboot=[_REBOOT]),
        blocked_card("edge-01"),
        node("cx6dx-01", "two-cards-cx6dx"),
        node("mlx4-01", "mlx4-two-ports"),
        node("vfs-01", "vfs"),
        node("gone-01", None),
    ]
    return results(nodes)


def fleet(number: int = 64) -> dict:
    """64 nodes with eight rails: nine with something wrong or open."""
    hosts = [f"gpu-{place:03d}" for place in range(1, number + 1)]
    nodes = [node(host, "h100-8x-cx7-ib") for host in hosts]
    for place in (6, 18, 40):
        with_port_down(nodes[place], "mlx5_3")
    nodes[22] = blocked_card(hosts[22])
    nodes[50] = node(hosts[50], None)
    seen, step = "no other node has a rail in this subnet", "give this rail addresses in one subnet on two nodes"
    what = ("fabric:rail0:mlx5_0", "fabric rail 0 (mlx5_0/1)", "not_verified", "verbs traffic with a peer")
    nodes[33]["checks"].append(host_checks.check(*what, seen, step))
    nodes[12]["reboot_reasons"] = [_REBOOT]
    slow = {
        (2, hosts[29]): (0.49, {"reason": "PCIe link of mlx5_2 runs at x8 of x16", "counters": {"symbol_error": 0}}),
        (5, hosts[8]): (0.71, {"reason": "errors on the cable", "counters": {"symbol_error": 1834, "link_downed": 1}}),
        (3, hosts[6]): (None, {"reason": "port mlx5_3/1 of gpu-007 is DOWN"}),
        (0, hosts[50]): (None, {"reason": "gpu-051 is unreachable"}),
    }
    states = {host: ("converged", [], []) for host in hosts}
    for place in (3, 44):
        states[hosts[place]] = ("drift", [_MEMLOCK], [])
    states[hosts[12]] = ("reboot_pending", [], [_REBOOT])
    states[hosts[50]] = ("unreachable", [], ["Connection timed out"])
    return results(nodes, drift(states), matrix(hosts, 8, 384.0, slow))


KINDS = {"rails": rails, "fleet": fleet}

if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for kind, make in KINDS.items():
        (target / f"{kind}.html").write_text(page.page(make(), f"RDMA report, {kind}"))
