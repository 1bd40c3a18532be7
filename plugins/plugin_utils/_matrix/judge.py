"""The bandwidth matrix after it ran: what each test should have reached, which did not, the likely reason. Pure."""

import bisect
import statistics
from typing import Optional

from ...module_utils._core import text as core_text
from ...module_utils.hca.counters import CONGESTION, KINDS, LINK, TRANSPORT
from .._findings.checks import counted
from .._preflight import fabric_plan
from .._verify import pairs, traffic_class
from . import expect
from . import plan as matrix_plan

SCHEMA = "gpufabric.rdma/matrix/1"
OK, OUTLIER, NOT_VERIFIED = "ok", "outlier", "not_verified"
# Tests of software HCAs are compared with each other; with fewer peers than this there is no verdict.
PEERS = 2
# A table of more nodes is wider than a terminal; the rail then gets one line.
WIDEST = 32
_FAR = ("NODE", "SYS")
_ROUND_OFF = "the median of its peers"


def document(plans: list[dict], results: dict, nodes: dict, options: dict, at: str) -> dict:
    """The matrix document.

    plans: as _matrix.plan.plan returns them. results: {test id: {client: result, server: result}}. nodes: {host:
    {governors}}. options: minimum_percent, peer_percent, check_mode, plans (fabric_plan by host).
    at: UTC time, RFC 3339.
    """
    tests = []
    for plan in plans:
        usual = expect.usual_rates(plan["carries"])
        measured = _measured(plan["tests"], results)
        for name, test in plan["tests"].items():
            expected = expect.pair(test, plan["carries"], usual)
            if expected["gbit_per_s"] is None:
                expected = {**expected, **_from_peers(_figure(results.get(name)), measured[test["memory"]])}
            tests.append(_row(test, expected, results.get(name) or {}, plan["carries"], nodes, options))
        tests += [_alone(end, plan["path"]) for end in plan["alone"]]
    order = {name: number for number, name in enumerate(options["hosts"])}
    tests.sort(
        key=lambda row: (row["path"], row["rail"], order.get(row["from"], 0), order.get(row["to"], 0), row["id"])
    )
    return {"schema": SCHEMA, "at": at, "tests": tests}


def of_run(hosts: list[str], known: list[dict], shared: dict, check_mode: bool, at: str) -> dict:
    """The matrix document of a run.

    known: for each host node (host, variables, read), started and collected (what fabric_tests returned). shared:
    planned and pod_rounds, what plan returned for hosts and for pods, and sent, what test_pods did. Any may be
    missing.
    """
    nodes = [of_host["node"] for of_host in known]
    answers = [of_host.get("collected") or {} for of_host in known]
    failures = [pairs.dropped(of_host.get("started"), answer) for of_host, answer in zip(known, answers)]
    options = {
        **matrix_plan.settings(nodes),
        "hosts": hosts,
        "plans": {node["host"]: fabric_plan.of(node["variables"]["fabric_plan"]) for node in nodes},
        "failures": dict(zip(hosts, failures)),
        "check_mode": check_mode,
    }
    plans = [shared[key]["plan"] for key in ("planned", "pod_rounds") if "plan" in shared.get(key, {})]
    told = [*zip((node["host"] for node in nodes), answers), (None, shared.get("sent") or {})]
    results = pairs.joined(told, [test for plan in plans for test in plan["tests"].values()])
    return document(plans, results, {node["host"]: node["read"] for node in nodes}, options, at)


def _figure(result):
    client = (result or {}).get("client") or {}
    return client.get("gbps") if client.get("ok") else None


def _measured(tests: dict, results: dict) -> dict[str, list]:
    """{memory: the figures of all tests that have one, ascending}."""
    by_memory: dict[str, list] = {test["memory"]: [] for test in tests.values()}
    for name, test in tests.items():
        figure = _figure(results.get(name))
        if figure is not None:
            by_memory[test["memory"]].append(figure)
    return {memory: sorted(figures) for memory, figures in by_memory.items()}


def _from_peers(figure: Optional[float], measured: list) -> dict:
    """The median of the other tests between software HCAs of the same path and memory. measured: ascending."""
    own = len(measured) if figure is None else bisect.bisect_left(measured, figure)
    others = len(measured) - (figure is not None)
    if others < PEERS:
        came = core_text.count(others, "other test")
        why = f"a software HCA is compared with its peers, and only {came} ran"
        return {"gbit_per_s": None, "why": why}
    # A copy without the test's own figure would make the report grow with the square of the tests.
    middle = [measured[at + (at >= own)] for at in ((others - 1) // 2, others // 2)]
    return {"gbit_per_s": round(sum(middle) / 2, 3), "why": _ROUND_OFF}


def _unjudged(test: dict, expected: dict, result: dict) -> dict:
    client, server = test["client"], test["server"]
    rose, unread, stopped = _counters(result)
    return {
        "id": test["id"],
        "rail": test["rail"],
        "path": test["path"],
        "memory": test["memory"],
        "from": client["host"],
        "to": server["host"],
        "from_hca": client["hca"],
        "to_hca": server["hca"],
        "gbit_per_s": _figure(result),
        "expected_gbit_per_s": expected["gbit_per_s"],
        "expected_from": expected["why"],
        "verdict": OK,
        "reason": "",
        "counters": rose,
        "counters_not_read": unread,
        "counters_stopped": stopped,
        "class_not_verified": "",
    }


def _row(test: dict, expected: dict, result: dict, carries: dict, nodes: dict, options: dict) -> dict:
    client, row = test["client"], _unjudged(test, expected, result)
    figure, rose = row["gbit_per_s"], row["counters"]
    if figure is None:
        verdict, reason = _unmeasured(test, result, options)
        return {**row, "verdict": verdict, "reason": reason}
    broken = [f"{name} +{count}" for name, count in rose.items() if _kind(name) == LINK]
    if expected["gbit_per_s"] is None:
        verdict, reasons = (OUTLIER, []) if broken else (NOT_VERIFIED, [expected["why"]])
    else:
        percent = options["peer_percent" if expected["why"] == _ROUND_OFF else "minimum_percent"]
        floor = expected["gbit_per_s"] * percent / 100
        slow = figure < floor
        reasons = []
        if slow:
            reasons.append(
                f"{figure:g} of {expected['gbit_per_s']:g} Gb/s, {percent} % wanted ({expected['why']}); "
                + (_likely(test, expected, rose, carries, nodes) or "no fact about the two nodes explains it")
            )
        verdict = OUTLIER if slow or broken else OK
    class_plan = options["plans"].get(client["host"]) if client["traffic_class"] is not None else None
    problems, row["class_not_verified"] = traffic_class.judge(class_plan, test, result) if class_plan else ([], "")
    if problems:
        verdict, reasons = OUTLIER, [*reasons, *(f"{problem.seen}: {problem.next_step}" for problem in problems)]
    if broken and not any("error counters rose" in reason for reason in reasons):
        reasons.append(f"error counters rose: {', '.join(broken)}")
    return {**row, "verdict": verdict, "reason": "; ".join(reasons)}


def _counters(result: dict) -> tuple:
    """({"from:NAME" or "to:NAME": rise}, ends whose counters could not be read, counters that had stopped counting)."""
    rose, unread, stopped = {}, [], []
    for end, role in (("from", "client"), ("to", "server")):
        end_result = result.get(role) or {}
        if not end_result.get("counters_read"):
            unread.append(end)
        rose.update((f"{end}:{name}", count) for name, count in sorted((end_result.get("counters") or {}).items()))
        stopped += [f"{end}:{name}" for name in end_result.get("counters_stopped") or ()]
    return rose, unread, stopped


def _kind(name: str):
    return KINDS.get(name.partition(":")[2])


def _unmeasured(test: dict, result: dict, options: dict) -> tuple:
    if options["check_mode"]:
        return NOT_VERIFIED, "check mode sends no traffic"
    client, server = result.get("client"), result.get("server")
    if client is None and server is None:
        return NOT_VERIFIED, options["failures"].get(test["client"]["host"]) or "the run stopped before this test"
    if client is not None and client.get("ok", False) is None:
        return NOT_VERIFIED, client["error"]
    errors = []
    for role, answer in (("client", client), ("server", server)):
        if answer is None:
            errors.append(f"{test[role]['host']}: {options['failures'].get(test[role]['host']) or 'no answer'}")
        elif answer.get("error"):
            errors.append(f"{test[role]['host']}: {answer['error']}")
    return OUTLIER, "no bandwidth: " + ("; ".join(errors) or "no output")


def _likely(test: dict, expected: dict, rose: dict, carries: dict, nodes: dict) -> str:
    """Why a test is slow, the most certain reason first."""
    reasons = list(expected["limits"])
    for kind, title in ((LINK, "error counters rose"), (TRANSPORT, "packets were lost or retransmitted")):
        risen = [f"{name} +{count}" for name, count in rose.items() if _kind(name) == kind]
        reasons += [f"{title}: {', '.join(risen)}"] if risen else []
    risen = [f"{name} +{count}" for name, count in rose.items() if _kind(name) == CONGESTION]
    reasons += [f"the fabric is congested: {', '.join(risen)}"] if risen else []
    for role in ("client", "server"):
        side = test[role]
        carried = carries[f"{side['host']} {side['hca']}/{side['port']}"]
        reasons += _host_reasons(side, carried, test["memory"], nodes.get(side["host"]) or {})
    return "; ".join(dict.fromkeys(reasons))


def _host_reasons(side: dict, carried: dict, memory: str, node: dict) -> list[str]:
    reasons = []
    slow = {name: count for name, count in (node.get("governors") or {}).items() if name != "performance"}
    if slow and carried["kind"] == "pci":
        names = ", ".join(f"{name} on {core_text.count(count, 'CPU')}" for name, count in sorted(slow.items()))
        reasons.append(f"{side['host']}: CPU governor {names}, not performance")
    if memory == "cuda" and carried["gpu_distance"] in _FAR:
        reasons.append(f"{side['host']} {side['hca']}: its GPU is at distance {carried['gpu_distance']}")
    if memory == "host" and carried["kind"] == "pci" and carried["numa_node"] == -1:
        reasons.append(f"{side['host']} {side['hca']}: the firmware reports no NUMA node, so the test ran on any CPU")
    return reasons


def _alone(end: dict, path: str) -> dict:
    name = f"{path}-rail{end['rail']}-{end['host']}-{end['hca']}" + ("-cuda" if end["memory"] == "cuda" else "")
    test = {**end, "id": name, "path": path, "client": end, "server": {"host": "", "hca": ""}}
    row = _unjudged(test, {"gbit_per_s": None, "why": ""}, {})
    return {**row, "verdict": NOT_VERIFIED, "reason": end["reason"]}


# --- text for people --------------------------------------------------------------------------------------------------


def told(document: dict, planned: list[dict]) -> str:
    """The table, preceded by addresses that two nodes have. planned: what plan returned."""
    clashes = [clash for plan in planned for clash in plan.get("plan", {}).get("clashes", [])]
    parts = []
    for clash in reversed(clashes):
        holders = " and ".join(f"{end['host']} ({end['netdev']})" for end in clash["ends"])
        parts.append(f"Address {clash['address']} is held by {holders}; give each node its own.")
    return "\n\n".join([*parts, table(document)])


def table(document: dict) -> str:
    """A matrix or a line per path, memory and rail, then outliers with reasons, then what was not verified."""
    parts = []
    groups = core_text.grouped(
        ((row["path"], row["memory"], row["rail"]), row) for row in document["tests"] if row["to"]
    )
    for (path, memory, rail), rows in groups.items():
        parts.append(_matrix(f"{_TITLES[path]}{_MEMORY[memory]}, rail {rail}, Gb/s", rows))
    for verdict, title in ((OUTLIER, "Outliers"), (NOT_VERIFIED, "Not verified")):
        chosen = [row for row in document["tests"] if row["verdict"] == verdict]
        if chosen:
            parts.append(f"{title}\n" + "\n".join(_lines(chosen)))
    unclear = [{**row, "reason": row["class_not_verified"]} for row in document["tests"] if row["class_not_verified"]]
    if unclear:
        parts.append("Traffic class not verified\n" + "\n".join(_lines(unclear)))
    shown = [row for row in document["tests"] if row["verdict"] == OK and row["counters"]]
    if shown:
        rises = [", ".join(f"{name} +{count}" for name, count in row["counters"].items()) for row in shown]
        lines = [core_text.wrapped(f"  {_name(row)}  ", text, "    ") for row, text in zip(shown, rises)]
        parts.append("Counters that rose in tests that are ok\n" + "\n".join(lines))
    parts.append(summary(document))
    return "\n\n".join(parts)


_TITLES = {"host": "Host to host", "pod": "Pod to pod"}
_MEMORY = {"host": "", "cuda": " from GPU memory (evidence level E5: hardware)"}


def _matrix(title: str, rows: list[dict]) -> str:
    """Senders down, receivers across; an outlier carries a mark, and a pair without a result a dash."""
    senders = list(dict.fromkeys(row["from"] for row in rows))
    if len(senders) > WIDEST:
        return _spread(title, rows, len(senders))
    cells = {(row["from"], row["to"]): row for row in rows}
    receivers = list(dict.fromkeys(row["to"] for row in sorted(rows, key=lambda row: _at(senders, row["to"]))))
    lines = [[sender, *(_cell(cells.get((sender, to))) for to in receivers)] for sender in senders]
    text = core_text.table(["from \\ to", *receivers], lines)
    return "\n".join([_head(title, rows), *(f"  {line}" for line in text.splitlines())])


def _head(title: str, rows: list[dict]) -> str:
    expected = sorted({row["expected_gbit_per_s"] for row in rows if row["expected_gbit_per_s"] is not None})
    if not expected:
        return title
    figures = f"{expected[0]:g}" + (f" to {expected[-1]:g}" if len(expected) > 1 else "")
    return f"{title}; expected {figures}: {rows[0]['expected_from']}"


def _spread(title: str, rows: list[dict], senders: int) -> str:
    """A rail of many nodes in one line: number of tests, and the slowest, the median and the fastest."""
    figures = sorted(row["gbit_per_s"] for row in rows if row["gbit_per_s"] is not None)
    told = f"{core_text.count(len(rows), 'test')} from {senders} nodes"
    if len(figures) < len(rows):
        told += f", {len(rows) - len(figures)} without a result"
    if figures:
        told += f"; slowest {figures[0]:g}, median {statistics.median(figures):g}, fastest {figures[-1]:g}"
    return f"{_head(title, rows)}\n  {told}"


def _at(names: list, name: str) -> int:
    return names.index(name) if name in names else len(names)


def _cell(row) -> str:
    if row is None:
        return ""
    figure = "-" if row["gbit_per_s"] is None else f"{row['gbit_per_s']:g}"
    return f"{figure} !" if row["verdict"] == OUTLIER else figure


def _lines(rows: list[dict]) -> list[str]:
    """One line per reason; tests that share it are listed together."""
    groups = core_text.alike((_name(row), row["reason"]) for row in rows)
    return [core_text.wrapped(f"  {core_text.listing(names, 6)}: ", reason, "    ") for names, reason in groups]


def _name(row: dict) -> str:
    memory = " (GPU memory)" if row["memory"] == "cuda" else ""
    to = f" -> {row['to']} {row['to_hca']}" if row["to"] else ""
    return f"{row['path']} rail {row['rail']}{memory} {row['from']} {row['from_hca']}{to}"


def tally(document: dict) -> dict:
    return counted((OK, OUTLIER, NOT_VERIFIED), (row["verdict"] for row in document["tests"]))


def summary(document: dict) -> str:
    total = tally(document)
    return (
        f"Bandwidth matrix: {core_text.count(len(document['tests']), 'test')}, {total[OK]} ok, "
        f"{core_text.count(total[OUTLIER], 'outlier')}, {total[NOT_VERIFIED]} not verified"
    )
