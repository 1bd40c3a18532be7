"""A drift document as JUnit XML. Pure: a document in, text out."""

import difflib

from .._core import junit as xml
from .verdicts import REBOOT, UNREACHABLE, UNSAFE

_OUTCOMES = {REBOOT: xml.FAILURE, UNSAFE: xml.ERROR, UNREACHABLE: xml.ERROR}


def title(verdict: str) -> str:
    return verdict.replace("_", " ")


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
