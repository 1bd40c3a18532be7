"""What the counters of both ends say about the traffic class of a bandwidth test, and the setting at fault.

Pure. An idle fabric carries a wrong class as fast as the right one, so bytes by priority are judged, not Gb/s. The
port's counters include other traffic.
"""

import shlex
from typing import NamedTuple

from ...module_utils._host import nic_settings
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check
from .._preflight import fabric_plan
from .._preflight.fabric_plan import FabricPlan

# The share of a test port's bytes that must be in the test's priority.
_SHARE = 0.9
# Below this share of the payload, the driver counts only the kernel's packets by priority, not RDMA writes.
_COUNTED = 0.3
# Lost on the way and sent again. A receiver without buffers (rnr_nak_retry_err, out_of_buffer) is not the fabric.
_LOST = (
    "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "roce_adp_retrans",
    "roce_adp_retrans_to", "roce_slow_restart", "rx_discards_phy",
)  # fmt: skip
_DROPS = ("discards", "discard", "buf_discard", "cong_discard")
_UNREAD = "fix that and run playbooks/verify.yml again"
_ASK_SWITCH = "read the bytes by priority at the switch ports while a test runs"


def nic_checks(facts: dict, variables: dict) -> list[dict]:
    """The settings of each rail's NIC against the plan; one check for a NIC whose driver cannot set them."""
    traffic = fabric_plan.of_nics(fabric_plan.of(variables["fabric_plan"]))
    checks = []
    for nic in facts["qos"]["nics"] if traffic else ():
        rows = {row.id: row for row in nic_settings.settings(nic, traffic)}
        if all(nic[key] is None for key in ("trust", "pfc", "dcbx")):
            obj, wanted = f"NIC {nic['netdev']}", "its RoCE settings as in fabric_plan"
            seen, step = nic_settings.NOT_SETTABLE, "set them on the owner of the NIC, such as the host of this machine"
            checks.append(check(f"nic:{nic['netdev']}", obj, NOT_VERIFIED, wanted, seen, step))
            continue
        for row in rows.values():
            status = NOT_VERIFIED if row.good is None else row.good
            step = _UNREAD if row.good is None else _nic_step(row, rows["dcbx"].good)
            obj = f"NIC {nic['netdev']} {row.id}"
            checks.append(check(f"nic:{row.id}:{nic['netdev']}", obj, status, row.wanted, row.seen, step))
    return checks


def _nic_step(row: nic_settings.Setting, of_host: bool | None) -> str:
    """of_host: whether DCBX is the host's; otherwise values from the switch by the firmware's LLDP overwrite it."""
    step = f"set fabric_nic_settings: true and run playbooks/host.yml; until the next boot: {row.command}"
    if row.id == "pfc":
        return f"{step} (it takes the link down for seconds)"
    if row.id == "dcbx":
        return f"{step}; without it, values that the switch sends over LLDP replace those of the host"
    return f"first give DCBX to the host, or LLDP of the firmware overwrites it; {step}" if of_host is False else step


class Problem(NamedTuple):
    id: str
    seen: str
    next_step: str


class End(NamedTuple):
    """One end: its host and netdev, its NIC's counters by priority or why there are none, and the rise of all counters.

    netdev, hca: quoted for a shell.
    """

    name: str
    netdev: str
    hca: str
    counted: dict
    unknown: str
    rises: dict

    def by_priority(self, counter: str) -> list[int]:
        """A counter such as tx_prio{}_bytes for each of the eight priorities."""
        return [self.counted.get(counter.format(number), 0) for number in range(8)]


def checks(plan: FabricPlan | None, test: dict, results: dict):
    """The checks of a bandwidth test; none without a plan, or if it has no figure or no class.

    results: of its ends, client and server, as fabric_tests returned them.
    """
    client = results.get("client") or {}
    if plan is None or test["client"]["traffic_class"] is None or "gbps" not in client:
        return
    problems, unknown = judge(plan, test, results)
    ends = f"{test['client']['host']} {test['client']['hca']} -> {test['server']['host']} {test['server']['hca']}"
    obj = f"traffic class {plan.traffic_class} rail {test['rail']}: {ends}"
    wanted = f"DSCP {plan.dscp} in priority {plan.priority}, {'lossless' if plan.lossless else 'lossy'}"
    for problem in problems:
        yield check(f"class:{problem.id}:{test['id']}", obj, FAILED, wanted, problem.seen, problem.next_step)
    if not problems:
        seen = unknown or f"its bytes are in priority {plan.priority} at both ends"
        yield check(f"class:{test['id']}", obj, NOT_VERIFIED if unknown else PASSED, wanted, seen, _ASK_SWITCH)


def judge(plan: FabricPlan, test: dict, results: dict) -> tuple[list[Problem], str]:
    """(problems, why the sent bytes are not known by priority)."""
    client, server = (_end(test[role], results.get(role) or {}) for role in ("client", "server"))
    payload = results["client"]["gbps"] * 1e9 / 8 * results["client"]["seconds"]
    problems, unknown = [], []
    for end, counter, way in ((client, "tx_prio{}_bytes", "sent"), (server, "rx_prio{}_bytes", "received")):
        sent = end.by_priority(counter)
        if not end.counted:
            unknown.append(end.unknown)
        elif sum(sent) < _COUNTED * payload:
            unknown.append(f"the counters by priority of {end.name} do not include the bytes of the test")
        elif sent[plan.priority] < _SHARE * sum(sent):
            problems.append(_elsewhere(plan, end, way, sent.index(max(sent))))
    problems += _lost(plan, client, server)
    problems += _paused(plan, (client, server), bool(problems))
    if client.counted:
        problems += _notified(plan, client, server)
    return problems, "; ".join(unknown)


def _end(side: dict, result: dict) -> End:
    netdev, counted = side["netdev"] or side["hca"], result.get("by_priority") or {}
    unknown = f"{side['host']} {netdev} has no counters by priority (soft-RoCE and virtual NICs have none)"
    if "by_priority" not in result:
        unknown = f"the counters of {side['host']} {netdev} were not read (those of pods never are)"
    rises = {**(result.get("counters") or {}), **counted}
    name, quoted = f"{side['host']} {netdev}", [shlex.quote(word) for word in (netdev, side["hca"])]
    return End(name, *quoted, counted, unknown, rises)


def _elsewhere(plan: FabricPlan, end: End, way: str, number: int) -> Problem:
    seen = f"{end.name} {way} most of it in priority {number}"
    entry = f"dcb app show dev {end.netdev} has to list dscp-prio {plan.dscp}:{plan.priority}"
    if way == "sent":
        return Problem("sent", seen, f"{entry}; without any such entry a NIC trusts PCP, and untagged is priority 0")
    return Problem("received", seen, f"{entry}; if it does and the sender is right, a switch rewrites the DSCP")


def _lost(plan: FabricPlan, client: End, server: End) -> list[Problem]:
    if not plan.lossless:
        return []
    names = [*_LOST, *(f"rx_prio{plan.priority}_{drop}" for drop in _DROPS)]
    rose = [f"{end.name} {name} +{end.rises[name]}" for end in (client, server) for name in names if name in end.rises]
    step = (
        f"PFC has to be on for priority {plan.priority} at each hop: dcb pfc show dev {client.netdev}, and the switches"
    )
    return [Problem("lost", f"lost in a lossless class: {', '.join(rose)}", step)] if rose else []


def _paused(plan: FabricPlan, ends: tuple[End, End], wrong: bool) -> list[Problem]:
    """wrong: whether the class is wrong or lossy; only then can a pause of another priority be due to the test."""
    found = []
    for end in ends:
        paused = {
            number for way in "rt" for number, count in enumerate(end.by_priority(way + "x_prio{}_pause")) if count
        }
        others = sorted(paused - {plan.priority})
        if others and wrong and plan.lossless:
            seen = f"{end.name} was paused in priority {', '.join(map(str, others))}"
            step = f"NIC and switch have to agree on priority {plan.priority}: dcb pfc show dev {end.netdev}"
            found.append(Problem("pause", seen, step))
        if plan.priority in paused and not plan.lossless:
            step = f"turn PFC off for priority {plan.priority}: dcb pfc show dev {end.netdev}; or state lossless: true"
            found.append(Problem("pause-lossy", f"{end.name} was paused in the class, which is lossy", step))
        if any(end.rises.get(f"{way}x_global_pause") for way in "rt"):
            step = f"turn it off where PFC is on: ethtool -A {end.netdev} rx off tx off; and at the switch port"
            found.append(Problem("pause-global", f"{end.name} was paused as a whole, not by priority", step))
        storms = [name for name in end.rises if name.startswith("tx_pause_storm_")]
        if storms:
            step = "find what keeps this receiver from taking packets: PCIe, IOMMU, a hung GPU"
            found.append(
                Problem("pause-storm", f"{end.name} paused its sender for too long: {', '.join(storms)}", step)
            )
    return found


def _notified(plan: FabricPlan, client: End, server: End) -> list[Problem]:
    """Congestion notifications (CNP): the receiver answers marked packets with them, the sender slows down."""
    marked, sent = server.rises.get("np_ecn_marked_roce_packets", 0), server.rises.get("np_cnp_sent", 0)
    handled, ignored = client.rises.get("rp_cnp_handled", 0), client.rises.get("rp_cnp_ignored", 0)
    mask = "mstconfig -d {} query ROCE_CC_PRIO_MASK_P1: 255 is every priority"
    if ignored:
        seen = f"{client.name} ignored {ignored} CNPs: ECN is off there for priority {plan.priority}"
        return [Problem("cnp-ignored", seen, mask.format(client.hca))]
    if marked and not sent:
        seen = f"{server.name} got {marked} marked packets and sent no CNP: ECN is off there"
        return [Problem("cnp-unsent", seen, mask.format(server.hca))]
    if sent and not handled:
        seen = f"{server.name} sent {sent} CNPs, {client.name} got none"
        step = f"give DSCP {plan.cnp_dscp} priority {plan.cnp_priority}, without PFC, at NICs and switches"
        return [Problem("cnp-lost", seen, step)]
    return []
