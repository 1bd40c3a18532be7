"""The catalogue of failures, catalogue.yml next to this file: the sign, its cause, where to look, and the fix.

`diagnosis` matches checks against CATALOGUE; docs/failures.md is generated from DOCUMENT.
"""

import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ansible.module_utils.common.yaml import yaml_load


class Sign(NamedTuple):
    """A sign of a failure: a check's id (with * and ?) and a regular expression for its object and what it saw."""

    check: str
    text: str = ""
    hint: bool = False


class Failure(NamedTuple):
    id: str
    title: str
    sign: str
    cause: str
    evidence: str
    fix: str
    shown_by: Sequence[Sign]
    leads_to: Sequence[str] = ()
    refused: Sequence[str] = ()
    level: str = "E1"


def _expanded(ids: Iterable[str], groups: dict) -> tuple[str, ...]:
    """The ids of checks, with those of a group instead of @NAME."""
    return tuple(
        one for name in ids for one in (_expanded(groups[name[1:]], groups) if name.startswith("@") else (name,))
    )


def _failure(entry: dict, groups: dict) -> Failure:
    signs = [Sign(**sign) for sign in entry["shown_by"]]
    return Failure(**{**entry, "shown_by": signs, "leads_to": _expanded(entry.get("leads_to", ()), groups)})


DOCUMENT = yaml_load(pathlib.Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
CATALOGUE = tuple(_failure(entry, DOCUMENT["groups"]) for entry in DOCUMENT["failures"])


def prevented(finding: dict) -> str | None:
    """The failure that refusing a run has prevented; None if the problem is not in the catalogue."""
    text = f"{finding['object']}: wanted {finding['wanted']}, seen {finding['seen']}"
    return next((one.id for one in CATALOGUE if any(re.search(word, text) for word in one.refused)), None)
