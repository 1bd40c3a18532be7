"""What a run in check mode says about drift: from the results of its tasks to one verdict per host. Pure."""

import difflib
from typing import NamedTuple

from ...module_utils._core.change import Finding
from ...module_utils._core.text import reason as reason_of
from ...module_utils._core.text import sentence
from ...module_utils.hca.facts import reboot_reasons
from .._core import junit as xml

SCHEMA = "gpufabric.rdma/drift/1"
# Set by the recorder. Workers are forked from its process, so all tasks see that it is loaded.
LISTENING = "GPUFABRIC_RDMA_DRIFT_RECORDER"
VERDICT_SCHEMA = "gpufabric.rdma/drift-verdict/1"
CONVERGED, DRIFT, REBOOT, UNSAFE, UNREACHABLE = "converged", "drift", "reboot_pending", "unsafe", "unreachable"
# Best first: a host's verdict is the worst that applies, and the worst host sets the run's exit code.
EXIT_CODES = {CONVERGED: 0, DRIFT: 2, REBOOT: 3, UNSAFE: 4, UNREACHABLE: 4}
VERDICTS = tuple(EXIT_CODES)
# The only task that reports on hosts other than its own.
PLAN = "gpufabric.rdma.plan"
HIDDEN = "hidden, because the task is marked no_log"
ABSENT = "absent"


class Task(NamedTuple):
    """The relevant part of a task. role: without namespace, "" outside of roles; once: for all hosts at once."""

    name: str
    action: str = ""
    role: str = ""
    delegate: str = ""
    once: bool = False


class Host:
    """What was seen on one host; lists keep their order, without duplicates."""

    def __init__(self) -> None:
        self.differences: list[dict] = []
        self.unreachable: list[str] = []
        self.refused: list[str] = []
        self.reboot: list[str] = []
        self.remarks: list[str] = []
        self.silent_api: list[str] = []
        self.paths: list[dict] = []
        self.ended = False

    def verdict(self) -> str:
        if self.unreachable:
            return UNREACHABLE
        if self.refused or self._api_lost():
            return UNSAFE
        if self.reboot:
            return REBOOT
        return DRIFT if self.differences else CONVERGED

    def reasons(self) -> list[str]:
        # A failed connection is reported once.
        refused = [text for text in self.refused if not self.unreachable or "seen unreachable: " not in text]
        api = [f"{'not read' if self._api_lost() else 'not verified'}: {text}" for text in self.silent_api]
        reboot = [f"reboot pending: {text}" for text in self.reboot]
        return [*self.unreachable, *refused, *api, *reboot, *self.remarks]

    def _api_lost(self) -> bool:
        """An API server that does not answer although nothing about its k3s differs."""
        return bool(self.silent_api) and not any(item["role"] == "k3s" for item in self.differences)


class Record:
    """Collects results in their order; `document` is None while a host has not finished."""

    def __init__(self, hosts: list[str]):
        self.hosts = {name: Host() for name in hosts}
        self.broken: list[str] = []

    def ok(self, host: str, task: Task, result: dict) -> None:
        for item in _items(result):
            self._read(host, task, item)

    def failed(self, host: str, task: Task, result: dict) -> None:
        """A role that refuses, or a read that failed. After a failure outside of roles the host has not finished."""
        if broken(result):
            self.broken.append(f"{host}: {task.name}: {_line(result.get('msg'))}")
            return
        if not task.role or task.role == "discovery":
            return  # the plan reports it again, as a finding
        if task.once:
            for found in self.hosts.values():
                if not found.ended:
                    _add(
                        found.remarks, f"not verified: role {task.role}, because '{task.name}' failed for the whole run"
                    )
        for item in _items(result):
            findings = item.get("findings") or []
            for finding in findings:
                self._refuse(host, task, finding)
            if not findings and (item.get("failed", True) or item is result):
                seen = HIDDEN if "censored" in item else item.get("msg") or "no reason given"
                _add(self._at(host, task).refused, f"role {task.role}: {task.name}: {_line(seen)}")

    def unreachable(self, host: str, task: Task, result: dict) -> None:
        reason = f"unreachable: {_line(reason_of(result.get('msg')))}"
        lost = task.delegate if task.delegate in self.hosts else host
        if host not in self.hosts:
            return
        _add(self.hosts[lost].unreachable, reason)
        if lost != host:
            _add(self.hosts[host].refused, f"role {task.role}: {lost} did not answer for this host ({task.name})")
            self.hosts[host].ended = True

    def note(self, host: str, text: str) -> None:
        _add(self.hosts[host].remarks, text)

    def end(self, host: str) -> None:
        self.hosts[host].ended = True

    def unfinished(self) -> list[str]:
        return [name for name, host in self.hosts.items() if not host.ended and not host.unreachable]

    def document(self, at: str) -> dict | None:
        """at: time of the run, UTC, as 2026-11-22T07:10:00Z."""
        if not self.hosts or self.broken or self.unfinished():
            return None
        hosts = [
            {
                "host": name,
                "verdict": host.verdict(),
                "differences": host.differences,
                "reasons": host.reasons(),
                "paths": host.paths,
            }
            for name, host in self.hosts.items()
        ]
        worst = max((host["verdict"] for host in hosts), key=VERDICTS.index)
        return {"schema": SCHEMA, "at": at, "verdict": worst, "exit_code": EXIT_CODES[worst], "hosts": hosts}

    def _at(self, host: str, task: Task) -> Host:
        """Where a finding belongs: one that was read on another host of the run is that host's."""
        return self.hosts[task.delegate if task.delegate in self.hosts else host]

    def _read(self, host: str, task: Task, result: dict) -> None:
        if host not in self.hosts:
            return
        place = self._at(host, task)
        if task.action == PLAN and result.get("lost"):
            _add(place.unreachable, f"unreachable: {_line(reason_of(result['lost']))}")
            return
        if task.action == PLAN:
            self._planned(task, result)
        if task.action.endswith("driver_reload"):
            self._gate(place, task, result)
        # The gate also lists the reasons against options that it does not choose.
        findings = (result.get("findings") or []) if result.get("verdict") in (None, "refuse") else []
        for finding in findings:
            self._refuse(host, task, finding)
        if findings:
            differences = []
        elif result.get("down"):
            _add(place.silent_api, f"role {task.role}: the cluster's objects, no API server answers ({result['down']})")
            return
        else:
            differences = _differences(task, result)
        for difference in differences:
            _add(place.differences, difference)
        facts = (result.get("ansible_facts") or {}).get("rdma") or {}
        for path in (facts.get("pcie") or {}).get("paths") or []:
            _add(place.paths, {key: path[key] for key in ("rail", "hca", "gpu", "verdict")})
        # The planner of rdma_netns reports the netns mode: it may be set without a reboot.
        for reason in [*(result.get("reboot_reasons") or []), *reboot_reasons({"driver": facts.get("driver")})]:
            _add(place.reboot, reason)
        self._remark(place, result)

    def _remark(self, place: Host, told: dict) -> None:
        for reason in told.get("not_verified") or []:
            _add(place.remarks, f"not verified: {reason}")
        for reason in told.get("not_applied") or []:
            _add(place.remarks, f"left as it is: {reason}")

    def _planned(self, task: Task, result: dict) -> None:
        """What the plan says about each host: all that differs in the host layer."""
        for name, decided in (result.get("hosts") or {}).items():
            for change in decided.get("plan") or []:
                for difference in _changes(task._replace(role=change["role"]), [change]):
                    _add(self.hosts[name].differences, difference)
            for reason in decided.get("reboot_reasons") or []:
                _add(self.hosts[name].reboot, reason)
            self._remark(self.hosts[name], decided)

    def _gate(self, place: Host, task: Task, result: dict) -> None:
        """What it takes to load the driver that is on disk."""
        verdict = result.get("verdict")
        if verdict == "refuse":
            _add(place.refused, f"role {task.role}: {result['summary']}")
        elif verdict == "reboot":
            _add(place.reboot, result["summary"])
        elif verdict == "reload":
            _add(place.differences, _difference(task, "driver in memory", result["summary"], "the one on disk"))

    def _refuse(self, host: str, task: Task, finding: dict) -> None:
        """A problem belongs to the hosts it lists; one of the controller belongs to every host still compared. The plan
        says which role has found it.
        """
        planned = finding if task.action == PLAN else {}  # such keys in any other result come from a node
        named, role = planned.get("host", host).split(", "), planned.get("role", task.role)
        text = f"role {role}: {_sentence(finding)}" if role else _sentence(finding)
        open_hosts = [name for name, found in self.hosts.items() if not found.ended]
        places = named if self.hosts.keys() >= set(named) else open_hosts
        for name in places:
            _add(self.hosts[name].refused, text)


def broken(result: dict) -> bool:
    """Whether a task failed before it could check anything: a template that does not render is our bug."""
    text = str(result.get("msg") or "")
    return "is undefined" in text or "Finalization of task" in text or "undefined variable" in text


def verdict_of(document: dict, run: str) -> dict:
    """The short answer for a pipeline. run: the caller's name for this run, to tell it from an earlier one."""
    hosts = {host["host"]: host["verdict"] for host in document["hosts"]}
    kept = {key: document[key] for key in ("at", "verdict", "exit_code")}
    return {"schema": VERDICT_SCHEMA, "run": run, **kept, "hosts": hosts}


def _items(result: dict) -> list[dict]:
    items = result.get("results")
    looped = isinstance(items, list) and items and all(isinstance(item, dict) for item in items)
    return items if looped and "changes" not in result else [result]


def _differences(task: Task, result: dict) -> list[dict]:
    if isinstance(result.get("changes"), list):
        return _changes(task, result["changes"])
    if not result.get("changed"):
        return []
    if "censored" in result:
        return [_difference(task, task.name, HIDDEN, HIDDEN)]
    # A module of Ansible itself or of another collection: its file, else its task, and the item of its loop.
    label = result.get("_ansible_item_label")
    name = (
        result.get("dest") or result.get("path") or (f"{task.name}: {label}" if isinstance(label, str) else task.name)
    )
    return [_difference(task, str(name), "otherwise", f"as after '{task.name}'")]


def _changes(task: Task, changes: list) -> list[dict]:
    named = [change for change in changes if isinstance(change, dict) and "object" in change]
    return [_difference(task, change["object"], change.get("before"), change.get("after")) for change in named]


def _difference(task: Task, name: str, seen, wanted) -> dict:
    return {
        "role": task.role or "discovery",
        "object": name,
        "wanted": str(wanted or ABSENT),
        "seen": str(seen or ABSENT),
    }


def _sentence(finding: dict) -> str:
    return _line(sentence(Finding(*(finding[key] for key in Finding._fields))))


def _line(text) -> str:
    return " ".join(str(text).split())


def _add(kept: list, item) -> None:
    if item not in kept:
        kept.append(item)


_OUTCOMES = {REBOOT: xml.FAILURE, UNSAFE: xml.ERROR, UNREACHABLE: xml.ERROR}


def title(verdict: str) -> str:
    return verdict.replace("_", " ")


def junit(document: dict) -> str:
    """One suite per host: a case for its state, one for each difference. Anything unread is an error."""
    suites = [xml.Suite(host["host"], _host_cases(host)) for host in document["hosts"]]
    return xml.document("gpufabric.rdma drift", document["at"], suites)


def _host_cases(host: dict) -> list[xml.Case]:
    classname, verdict, reasons = f"gpufabric.rdma.drift.{host['host']}", host["verdict"], host["reasons"]
    state = xml.Case(classname, "state", text="\n".join(reasons))
    if verdict in _OUTCOMES:
        state = state._replace(outcome=_OUTCOMES[verdict], kind=verdict, message=(reasons or [title(verdict)])[0])
    return [state, *(_difference_case(classname, item) for item in host["differences"])]


def _difference_case(classname: str, item: dict) -> xml.Case:
    return xml.Case(
        classname,
        f"{item['role']}: {item['object']}",
        xml.FAILURE,
        f"{item['object']}: wanted {_brief(item['wanted'])}, seen {_brief(item['seen'])}",
        "difference",
        "\n".join(comparison(item)),
    )


def comparison(item: dict) -> list[str]:
    """Lines that show a difference: seen and wanted, or what differs between two texts."""
    seen, wanted = item["seen"].splitlines(), item["wanted"].splitlines()
    if len(seen) < 2 and len(wanted) < 2:
        return [f"wanted: {item['wanted']}", f"seen:   {item['seen']}"]
    return [line.rstrip("\n") for line in difflib.unified_diff(seen, wanted, "seen", "wanted", lineterm="", n=2)]


def _brief(text: str) -> str:
    lines = text.splitlines()
    return text.strip() if len(lines) < 2 else f"{len(lines)} lines"
