"""The memlock limit of container services and their start order. Pure: facts and options in, Plan out."""

from __future__ import annotations

from .._core.change import Plan
from .._core.files import HEADER, plan_file, plan_removal
from ..hca import limits, paths
from ..hca.text import is_unknown

# Containers inherit their limits from these, so a new limit reaches workloads only through a restart of the service.
RUNTIMES = ("k3s", "k3s-agent", "containerd", "docker", "crio")


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: services (names), memlock (infinity, bytes, or a number with K, M, G as systemd accepts it)."""
    made = Plan()
    text = drop_in(wanted["memlock"])
    for service in wanted["services"]:
        path = paths.own_drop_in(service)
        plan_file(made, facts, path, text)
        state = facts["limits"]["services"].get(service)
        if not state or not state["exists"]:
            continue
        settled = not any(change.object == path for change in made.changes)
        if settled and not same(state["memlock"], wanted["memlock"]):
            _overridden(service, path, state, wanted["memlock"], made)
        if state["active"] and not same(state["memlock_running"], wanted["memlock"]):
            _still_running(service, state["memlock_running"], wanted["memlock"], made)
    _plan_leftovers(facts, wanted["services"], made)
    return made


def drop_in(memlock: str) -> str:
    """Root in a container is not root on the node, so only the service's own limit counts (limits.conf does not)."""
    return HEADER + f"[Unit]\nAfter=openibd.service rdma-hw.target\n\n[Service]\nLimitMEMLOCK={memlock}\n"


def parse(memlock: str) -> str | int:
    """The limit as facts have it; ValueError with the text if systemd does not accept it."""
    limit = limits.amount(str(memlock))
    if limit is None:
        raise ValueError(f"'{memlock}' is neither infinity nor a number of bytes (optional suffix: K, M, G, T, P, E)")
    return limit


def same(seen: str | int | None, wanted: str) -> bool:
    """An unknown limit counts as correct, because the facts report it."""
    return seen is None or is_unknown(seen) or parse(str(seen)) == parse(wanted)


def _overridden(service: str, path: str, state: dict, memlock: str, made: Plan) -> None:
    others = [other for other in state["drop_ins"] if other != path]
    made.finding(
        f"service {service}",
        f"LimitMEMLOCK={memlock} at its next start",
        f"{state['memlock']} although {path} is in place"
        + (f"; other drop-ins: {', '.join(others)}" if others else ""),
        "remove LimitMEMLOCK from the drop-in that is read after ours, or set limits_memlock to its value",
    )


def _still_running(service: str, running: str | int, memlock: str, made: Plan) -> None:
    said = f"service {service} still runs with LimitMEMLOCK {running}, wanted {memlock}"
    if service in RUNTIMES:
        made.not_applied.append(
            f"{said}: restart it when its workloads permit (systemctl restart {service}); containers already running "
            "keep the old limit"
        )
    else:
        made.notes.append(f"{said}: restart it with systemctl restart {service}")


def _plan_leftovers(facts: dict, services: list[str], made: Plan) -> None:
    kept = {paths.own_drop_in(service) for service in services}
    for path in sorted(facts["owned_files"]):
        if path.endswith(f".service.d/{paths.OWN_DROP_IN}") and path not in kept:
            plan_removal(made, facts, path)
