"""Whether a node's ports answer its peers, each as a named check.

PRIVATE to the collection. Pure; runs on the controller. Checks have the form of _findings.checks.
"""

from __future__ import annotations

from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check

_STATUS = {"open": PASSED, "blocked": FAILED, "unknown": NOT_VERIFIED}


def checks(results: list[dict] | None, failure: str | None, variables: dict, check_mode: bool = False) -> list[dict]:
    """results: as _preflight.firewall.plan has them; None where the node's peers were not asked, for `failure`."""
    if results is None:
        why, step = failure or "an earlier step of this run failed", "fix that and run playbooks/verify.yml again"
        return [check("firewall", "firewall", NOT_VERIFIED, "ports that answer the node's peers", why, step)]
    rows = [
        check(
            f"firewall:{port['id']}",
            port["object"],
            _STATUS[port["state"]],
            port["wanted"],
            port["seen"],
            port["next_step"],
        )
        for port in results
    ]
    for row in rows:
        if check_mode and variables["node_firewall"] == "open" and row["status"] == FAILED:
            row.update(status=NOT_VERIFIED, next_step="check mode: this run would open it; verified in a real run")
    return rows
