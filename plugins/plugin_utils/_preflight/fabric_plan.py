"""The switch plan that a user states (fabric_plan): the traffic class of jobs, and its consequences.

Pure. The byte on the wire, ToS of IPv4 and traffic class of IPv6, is DSCP << 2 | ECN; the switch and the NIC choose the
priority by its DSCP.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding, Plan
from ...module_utils._core.files import HEADER, plan_file, plan_removal
from ...module_utils._host import nic_settings
from ...module_utils.hca import paths
from .._core.rails import network_rails

_VARIABLE = "variable fabric_plan"
_CORRECT = "correct it where it is set (inventory, group_vars or -e); it has to match the switches"
CONFIG_MAP = "rdma-traffic-class"
INFINIBAND, _ETHERNET = "InfiniBand", "Ethernet"
ECT1 = "ect1"
# The two bits of ECN. A switch marks only packets that arrive as ECT(0) or ECT(1).
_ECN = {False: 0, ECT1: 1, True: 2}
_HIGHEST = {"dscp": 63, "priority": 7, "cnp_dscp": 63, "cnp_priority": 7}
# The DSCP and priority of the congestion notifications from the NIC's firmware.
_CNP = {"cnp_dscp": 48, "cnp_priority": 6}

# Published plans. They contradict each other, so none is a default. nic-configuration-operator is missing on purpose:
# its template makes priority 3 lossless and leaves the ToS at 0.
PROFILES = {
    # NVIDIA's doRoCE: ToS 106, PFC of the priority ToS >> 5; the CNP is left to the firmware.
    "doroce": {"dscp": 26, "priority": 3, **_CNP, "lossless": True, "ecn": True},
    # Oracle's oci-cn-auth: DSCP 26 in priority 5, ToS 105, which is ECT(1); CNP with DSCP 46 in priority 6.
    "oracle": {"dscp": 26, "priority": 5, "cnp_dscp": 46, "cnp_priority": 6, "lossless": True, "ecn": ECT1},
    # Spiderpool's set-rdma-qos.sh: DSCP is 8 times the priority; its class byte leaves ECN at 00.
    "spiderpool": {"dscp": 40, "priority": 5, "cnp_dscp": 48, "cnp_priority": 6, "lossless": True, "ecn": False},
    # Spectrum-X: PFC of priority 3 in RA2.2 of nic-configuration-operator; NCCL_IB_TC=96 in published jobs.
    "spectrum-x": {"dscp": 24, "priority": 3, **_CNP, "lossless": True, "ecn": False},
}


class FabricPlan(NamedTuple):
    """name: of the profile, or empty."""

    dscp: int
    priority: int
    cnp_dscp: int
    cnp_priority: int
    lossless: bool
    ecn: bool | str
    name: str = ""

    @property
    def traffic_class(self) -> int:
        return self.dscp << 2 | _ECN[self.ecn]


KEYS = FabricPlan._fields[:-1]
_WANTED = f"one of {core_text.listing(PROFILES)}, or a mapping with {core_text.listing(KEYS)}"


def of(given) -> FabricPlan | None:
    """The plan; None without one, or if the preflight refuses it."""
    return read(given)[0]


def findings(variables: dict) -> list[Finding]:
    plan, found = read(variables.get("fabric_plan"))
    for name, what in (("fabric_publish", "publish"), ("fabric_nic_settings", "set")):
        if plan is None and not found and variables.get(name):
            step = f"state fabric_plan, or take {name} out"
            return [Finding(f"variable {name}", f"a fabric_plan to {what}", "none", step, f"fabric_plan:{what}")]
    return found


def read(given) -> tuple[FabricPlan | None, list[Finding]]:
    """The plan in the variable and all its problems."""
    name = given if isinstance(given, str) else ""
    if given is None or given == "":
        return None, []
    stated = PROFILES.get(name, given)
    if not isinstance(stated, Mapping):
        return None, [_finding("profile", _WANTED, repr(given))]
    unknown = sorted(str(key) for key in set(stated) - set(KEYS))
    findings = [_finding("keys", _WANTED, core_text.listing(unknown))] if unknown else []
    values: dict = {}
    for key in KEYS:
        value = stated.get(key, _CNP.get(key))
        values[key], wanted = _value(key, value)
        if wanted:
            findings.append(_finding(key, f"{key}: {wanted}", "nothing" if value is None else repr(value)))
    if not findings:
        findings = _combinations(values)
    return (None if findings else FabricPlan(**values, name=name)), findings


def _value(key: str, value) -> tuple:
    """(the value as its type, what was wanted if it has none)."""
    if key in _HIGHEST:
        text = str(value)
        known = text.isdecimal() and int(text) <= _HIGHEST[key]
        return (int(text), "") if known else (None, f"a number from 0 to {_HIGHEST[key]}")
    if key == "ecn" and value == ECT1:
        return ECT1, ""
    try:
        return boolean(value), ""
    except TypeError:
        return None, f"true, false or {ECT1}" if key == "ecn" else "true or false"


def _combinations(values: dict) -> list[Finding]:
    found = []
    if values["dscp"] == values["cnp_dscp"] and values["priority"] != values["cnp_priority"]:
        seen = f"{values['priority']} and {values['cnp_priority']}"
        found.append(_finding("cnp_dscp", f"one priority for DSCP {values['dscp']}", seen))
    if values["lossless"] and values["priority"] == values["cnp_priority"]:
        seen = f"{values['cnp_priority']}, the lossless one: paused with the traffic that they should slow down"
        found.append(_finding("cnp_priority", "another priority for congestion notifications (CNP)", seen))
    return found


def _finding(key: str, wanted: str, seen: str) -> Finding:
    return Finding(_VARIABLE, wanted, seen, _CORRECT, f"fabric_plan:{key}")


def environment(plan: FabricPlan | None, layers: Collection[str]) -> dict[str, str]:
    """Variables of a job's libraries. layers: link layers of its rails.

    The plan is about RoCE: InfiniBand has no DSCP, its service levels are the subnet manager's, and NVSHMEM with a
    traffic class crashes on it (nvshmem#45).
    """
    if plan is None or set(layers) <= {INFINIBAND}:
        return {}
    named = dict.fromkeys(("NCCL_IB_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS"), str(plan.traffic_class))
    if INFINIBAND in layers:
        return named
    # The service level of verbs becomes the priority in a VLAN tag.
    levels = dict.fromkeys(("NCCL_IB_SL", "UCX_IB_SL"), str(plan.priority))
    return {**named, **levels, "NVSHMEM_IB_TRAFFIC_CLASS": str(plan.traffic_class)}


def side(plan: FabricPlan | None, link_layer: str) -> int | None:
    """The traffic class of one end of a test; None for the tool's default, which is class 0."""
    return None if plan is None or link_layer == INFINIBAND else plan.traffic_class


def _layers(facts: dict) -> set[str]:
    return {rail["link_layer"] for rail in network_rails(facts) if rail["link_layer"]}


def on_node(facts: dict, variables: dict) -> tuple[Plan, dict]:
    """What the role fabric would do, and the input of its modules: files and absent for node_files, nics."""
    made, nics = on_nics(facts, variables)
    return made, {**_nccl_conf(facts, variables, made), "nics": nics}


def on_nics(facts: dict, variables: dict) -> tuple[Plan, dict]:
    """{traffic: for nic_settings, needed: whether it has to run, flaps: whether a link may go down}.

    facts: with `firmware` if fabric_firmware is set, as node_facts returns it.
    """
    stated = of(variables["fabric_plan"]) if variables["fabric_nic_settings"] else None
    traffic, allowed = of_nics(stated), variables["fabric_link_flap_allowed"]
    wanted = {"traffic": traffic, "link_flap_allowed": allowed}
    wanted |= {name: variables[f"fabric_{name}"] for name in ("firmware", "firmware_allowed")}
    made = nic_settings.plan(facts, wanted, variables["discovery_root"])
    # Before the driver is loaded nothing is known about the NICs.
    flaps = not facts["qos"]["nics"] or any(change.object.endswith(" pfc") for change in made.changes)
    needed = traffic is not None or bool(made.changes or made.reboot_reasons)
    return made, {"traffic": traffic, "needed": needed, "flaps": needed and traffic is not None and flaps}


def of_nics(plan: FabricPlan | None) -> dict | None:
    return plan and {key: getattr(plan, key) for key in ("dscp", "priority", "cnp_dscp", "cnp_priority", "lossless")}


def _nccl_conf(facts: dict, variables: dict, made: Plan) -> dict:
    """What /etc/nccl.conf lacks, and the input of node_files. No GID index: it differs from pod to pod."""
    take: dict = {"files": [], "absent": []}
    there = facts["owned_files"].get(paths.NCCL_CONF)
    text = there["content"] if there else ""
    ours = there is not None and text.startswith(HEADER)
    # Before the driver is loaded there are no rails; a published plan implies RoCE.
    layers = _layers(facts) or {_ETHERNET}
    named = environment(of(variables["fabric_plan"]), layers) if variables["fabric_publish"] else {}
    if "NCCL_IB_GID_INDEX" in text:
        made.notes.append(
            f"{paths.NCCL_CONF} sets NCCL_IB_GID_INDEX, which differs from pod to pod: NCCL finds it itself"
        )
    lines = [f"{name}={value}" for name, value in named.items() if name.startswith("NCCL_")]
    if there and not ours:
        lacking = [line for line in lines if line not in text.splitlines()]
        if lacking:
            step = "add these lines, or move the file away and run again; fabric_publish: false leaves it"
            seen = f"a file that something else wrote, without {core_text.listing(lacking)}"
            made.finding(paths.NCCL_CONF, "the traffic class of fabric_plan", seen, step)
    elif lines:
        content = HEADER + "".join(f"{line}\n" for line in lines)
        take["files"] = [{"path": paths.NCCL_CONF, "content": content}]
        plan_file(made, facts, paths.NCCL_CONF, content)
    elif ours:
        take["absent"] = [paths.NCCL_CONF]
        plan_removal(made, facts, paths.NCCL_CONF)
    return take


def objects(variables: dict, facts: list[dict]) -> list[dict]:
    """The ConfigMap for jobs, in each namespace that has the networks."""
    layers = set().union(*map(_layers, facts))
    data = environment(of(variables["fabric_plan"]), layers) if variables["fabric_publish"] else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": namespace},
            "data": data,
        }
        for namespace in (variables["networks_namespaces"] if data else ())
    ]


CLASS_0 = "Traffic class 0 was measured, because fabric_plan is not set: jobs in another class are not verified by it"


def told(plan: FabricPlan | None, facts: list[dict]) -> str:
    """What was measured, and for the network team what the switches need; nothing if no rail is RoCE."""
    if not set().union(*map(_layers, facts)) - {INFINIBAND}:
        return ""
    if plan is None:
        return CLASS_0
    pfc = "on" if plan.lossless else "off"
    marks = {False: "cannot be marked (ECN 00)", ECT1: "marked, sent as ECT(1)", True: "marked, sent as ECT(0)"}
    rows = [
        ("RDMA", plan.dscp, plan.priority, pfc, marks[plan.ecn]),
        ("CNP", plan.cnp_dscp, plan.cnp_priority, "off", "not marked"),
    ]
    table = core_text.table(("traffic", "DSCP", "priority", "PFC", "ECN"), rows)
    named = f", profile {plan.name}" if plan.name else ""
    return "\n".join(
        [
            f"Traffic class {plan.traffic_class} was measured (fabric_plan{named}). What the switches need for it:",
            *(f"  {line}" for line in table.splitlines()),
            "  NICs and switches trust the DSCP. ECN marks before PFC pauses; the thresholds are the switch vendor's.",
            "  hw_counters leave out DevX queue pairs (NCCL GIN, NVSHMEM): bytes by priority are their only proof.",
        ]
    )
