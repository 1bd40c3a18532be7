# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A drift document as JUnit XML, as Markdown and as a textfile of node_exporter.

PRIVATE to the collection. Pure: a document in, text out.
"""

from __future__ import annotations

import datetime
import difflib
import re
from xml.etree import ElementTree as ET  # only written, never parsed

from ...module_utils._core.text import clean
from .verdicts import CONVERGED, DRIFT, REBOOT, UNREACHABLE, UNSAFE, VERDICTS

_TITLES = {
    CONVERGED: "converged",
    DRIFT: "drift",
    REBOOT: "reboot pending",
    UNSAFE: "unsafe",
    UNREACHABLE: "unreachable",
}


def title(verdict: str) -> str:
    return _TITLES[verdict]


def junit(document: dict) -> str:
    """One suite a host: a case for its state, one for each difference. What could not be read is an error."""
    root = ET.Element("testsuites", name="gpufabric.rdma drift")
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for host in document["hosts"]:
        cases = _cases(host)
        counts = {
            "tests": len(cases),
            "failures": sum(case.find("failure") is not None for case in cases),
            "errors": sum(case.find("error") is not None for case in cases),
        }
        suite = ET.SubElement(
            root, "testsuite", name=clean(host["host"]), timestamp=document["at"], skipped="0", time="0"
        )
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
        suite.extend(cases)
    for name, count in totals.items():
        root.set(name, str(count))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _cases(host: dict) -> list:
    state = _case(host, "state")
    verdict = host["verdict"]
    if verdict in (UNSAFE, UNREACHABLE, REBOOT):
        kind = "failure" if verdict == REBOOT else "error"
        problem = ET.SubElement(state, kind, type=verdict, message=clean((host["reasons"] or [title(verdict)])[0]))
        problem.text = clean("\n".join(host["reasons"]))
    elif host["reasons"]:
        ET.SubElement(state, "system-out").text = clean("\n".join(host["reasons"]))
    cases = [state]
    for item in host["differences"]:
        case = _case(host, f"{item['role']}: {item['object']}")
        message = f"{item['object']}: wanted {_brief(item['wanted'])}, seen {_brief(item['seen'])}"
        failure = ET.SubElement(case, "failure", type="difference", message=clean(message))
        failure.text = clean("\n".join(comparison(item)))
        cases.append(case)
    return cases


def _case(host: dict, name: str):
    return ET.Element("testcase", classname=clean(f"gpufabric.rdma.drift.{host['host']}"), name=clean(name), time="0")


def comparison(item: dict) -> list[str]:
    """Lines that show a difference: seen and wanted, or what differs between two texts."""
    seen, wanted = item["seen"].splitlines(), item["wanted"].splitlines()
    if len(seen) < 2 and len(wanted) < 2:
        return [f"wanted: {item['wanted']}", f"seen:   {item['seen']}"]
    return [line.rstrip("\n") for line in difflib.unified_diff(seen, wanted, "seen", "wanted", lineterm="", n=2)]


def _brief(text: str) -> str:
    lines = text.splitlines()
    return text.strip() if len(lines) < 2 else f"{len(lines)} lines"


def markdown(document: dict) -> str:
    """A summary table, then each host that is not converged."""
    lines = [
        f"# Drift: {title(document['verdict'])}",
        "",
        f"{document['at']}, exit code {document['exit_code']}.",
        "",
        "| host | verdict | differences |",
        "|---|---|---:|",
    ]
    for host in document["hosts"]:
        lines.append(f"| {_cell(host['host'])} | {title(host['verdict'])} | {len(host['differences'])} |")
    for host in document["hosts"]:
        if host["differences"] or host["reasons"]:
            lines += ["", f"## {_cell(host['host'])}: {title(host['verdict'])}", ""]
            lines += [f"- {_cell(reason)}" for reason in host["reasons"]]
            lines += [line for item in host["differences"] for line in _section(item)]
    return "\n".join(lines) + "\n"


def _section(item: dict) -> list[str]:
    body = comparison(item)
    # A fence longer than any in the text.
    longest = max([2, *(len(run) for line in body for run in re.findall("`+", line))])
    fence = "`" * (longest + 1)
    return ["", f"### {_cell(item['role'])}: {_cell(item['object'])}", "", f"{fence}diff", *map(clean, body), fence]


def _cell(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(clean(text).split()))


def prometheus(document: dict) -> str:
    """The textfile of node_exporter: a state set a host, counts, and the time."""
    at = datetime.datetime.strptime(document["at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    states, counts = [], []
    for host in document["hosts"]:
        name = f'host="{_label(host["host"])}"'
        counts.append(f"gpufabric_rdma_drift_differences{{{name}}} {len(host['differences'])}")
        for verdict in VERDICTS:
            state = int(host["verdict"] == verdict)
            states.append(f'gpufabric_rdma_drift_verdict{{{name},verdict="{verdict}"}} {state}')
    lines = [
        *_metric("verdict", "1 for the verdict of a host, 0 for the others.", states),
        *_metric("differences", "Differences between inventory and host.", counts),
        *_metric(
            "exit_code",
            "Exit code of the run: 0 converged, 2 drift, 3 reboot pending, 4 unsafe or unreachable.",
            [f"gpufabric_rdma_drift_exit_code {document['exit_code']}"],
        ),
        *_metric(
            "timestamp_seconds",
            "When the hosts were compared; alert when it is too old.",
            [f"gpufabric_rdma_drift_timestamp_seconds {int(at.timestamp())}"],
        ),
    ]
    return "\n".join(lines) + "\n"


def _metric(name: str, text: str, samples: list[str]) -> list[str]:
    full = f"gpufabric_rdma_drift_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} gauge", *samples]


def _label(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
