"""JUnit XML by Jenkins' schema (junit-10.xsd of its xUnit plugin): the only writer of it. Pure."""

from typing import NamedTuple
from xml.etree import ElementTree  # only written, never parsed

from ...module_utils._core.text import clean

PASSED, FAILURE, ERROR, SKIPPED = OUTCOMES = ("", "failure", "error", "skipped")


class Case(NamedTuple):
    """One test case. text: the details; for a passed case they become its output."""

    classname: str
    name: str
    outcome: str = PASSED
    message: str = ""
    kind: str = ""
    text: str = ""


class Suite(NamedTuple):
    name: str
    cases: list[Case]


def document(name: str, at: str, suites: list[Suite]) -> str:
    """The XML of suites run at a time (ISO 8601). Counts are made here; nothing is timed, so each time is 0."""
    root = ElementTree.Element("testsuites", name=clean(name))
    # The schema has no `skipped` for all suites together.
    root.attrib.update(_counts([case for suite in suites for case in suite.cases]), time="0")
    for suite in suites:
        element = ElementTree.SubElement(root, "testsuite", name=clean(suite.name), timestamp=clean(at))
        skipped = sum(case.outcome == SKIPPED for case in suite.cases)
        element.attrib.update(_counts(suite.cases), skipped=str(skipped), time="0")
        for case in suite.cases:
            _case(element, case)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _counts(cases: list[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    numbers = {"tests": len(cases), "failures": outcomes.count(FAILURE), "errors": outcomes.count(ERROR)}
    return {key: str(number) for key, number in numbers.items()}


def _case(suite: ElementTree.Element, case: Case) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=clean(case.classname), name=clean(case.name))
    element.set("time", "0")
    if case.outcome == PASSED:
        told = ElementTree.SubElement(element, "system-out") if case.text else None
    else:
        told = ElementTree.SubElement(element, case.outcome, message=clean(case.message))
        if case.kind:
            told.set("type", clean(case.kind))
    if case.text:
        told.text = clean(case.text)
