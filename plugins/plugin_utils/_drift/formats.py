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

from ...module_utils._core.text import clean
from .._core import exposition
from .._core import junit as xml
from .verdicts import CONVERGED, DRIFT, REBOOT, UNREACHABLE, UNSAFE, VERDICTS

_TITLES = {
    CONVERGED: "converged",
    DRIFT: "drift",
    REBOOT: "reboot pending",
    UNSAFE: "unsafe",
    UNREACHABLE: "unreachable",
}
_OUTCOMES = {REBOOT: xml.FAILURE, UNSAFE: xml.ERROR, UNREACHABLE: xml.ERROR}


def title(verdict: str) -> str:
    return _TITLES[verdict]


def junit(document: dict) -> str:
    """One suite a host: a case for its state, one for each difference. What could not be read is an error."""
    suites = [xml.Suite(host["host"], _cases(host)) for host in document["hosts"]]
    return xml.document("gpufabric.rdma drift", document["at"], suites)


def _cases(host: dict) -> list[xml.Case]:
    classname, verdict, reasons = f"gpufabric.rdma.drift.{host['host']}", host["verdict"], host["reasons"]
    state = xml.Case(classname, "state", text="\n".join(reasons))
    if verdict in _OUTCOMES:
        state = state._replace(outcome=_OUTCOMES[verdict], kind=verdict, message=(reasons or [title(verdict)])[0])
    return [state, *(_difference(classname, item) for item in host["differences"])]


def _difference(classname: str, item: dict) -> xml.Case:
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
    hosts = document["hosts"]
    states = [
        ({"host": host["host"], "verdict": verdict}, int(host["verdict"] == verdict))
        for host in hosts
        for verdict in VERDICTS
    ]
    return exposition.text(
        [
            _gauge("verdict", "1 for the verdict of a host, 0 for the others.", states),
            _gauge(
                "differences",
                "Differences between inventory and host.",
                [({"host": host["host"]}, len(host["differences"])) for host in hosts],
            ),
            _gauge(
                "exit_code",
                "Exit code of the run: 0 converged, 2 drift, 3 reboot pending, 4 unsafe or unreachable.",
                [({}, document["exit_code"])],
            ),
            _gauge(
                "timestamp_seconds",
                "When the hosts were compared; alert when it is too old.",
                [({}, int(at.timestamp()))],
            ),
        ]
    )


def _gauge(name: str, text: str, samples: list) -> exposition.Gauge:
    return exposition.Gauge(f"gpufabric_rdma_drift_{name}", text, samples)
