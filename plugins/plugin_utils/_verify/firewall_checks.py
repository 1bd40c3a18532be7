# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's firewall does with the connections that the node needs, each as a named check.

PRIVATE to the collection. Pure; runs on the controller. Checks have the form of _findings.checks.
"""

from __future__ import annotations

from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check
from .._preflight import firewall as rules

_STATUS = {"open": PASSED, "blocked": FAILED, "unknown": NOT_VERIFIED}


def checks(firewall: dict | None, failure: str | None, variables: dict, check_mode: bool = False) -> list[dict]:
    """firewall: what firewall_info returned with the node's needs, None where it was not read, for `failure`."""
    wanted = "what the node needs from its peers let through"
    if firewall is None:
        why = failure or "an earlier step of this run failed"
        return [check("firewall", "firewall", NOT_VERIFIED, wanted, why, "fix that and run playbooks/verify.yml again")]
    if not firewall["filters"]:
        return [check("firewall", "firewall", PASSED, wanted, "no packet filter has a rule")]
    opens = check_mode and variables["node_firewall"] == "open"
    return [_check(firewall, one, opens) for one in firewall["answers"]]


def _check(firewall: dict, one: dict, opens: bool) -> dict:
    if one["state"] == "open":
        wanted = f"{one['what']}: open"
        return check(f"firewall:{one['id']}", f"firewall: {one['ports']}/{one['protocol']}", PASSED, wanted, "open")
    finding = rules.unread(one) if one["state"] == "unknown" else rules.fault(firewall, one)
    made = check(finding.id, finding.object, _STATUS[one["state"]], *finding[1:4])
    if opens and one["tool"] and made["status"] == FAILED:
        made.update(status=NOT_VERIFIED, next_step="check mode: this run would change it; verified in a real run")
    return made
