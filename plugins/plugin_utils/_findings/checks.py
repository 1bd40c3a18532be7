"""A named check: what must be true of one object, whether it is, and what to do if it is not.

Pure. A check is a Finding as a mapping, with status (passed, failed, not_verified or unused); a fabric check that moved
data also has figures.
"""

from collections.abc import Iterable

from ...module_utils._core.change import Finding
from ...module_utils._core.text import runnable

PASSED, FAILED, NOT_VERIFIED, UNUSED = STATUSES = ("passed", "failed", "not_verified", "unused")


def check(identity: str, obj: str, status, wanted: str, seen: str, next_step: str = "") -> dict:
    """status: one of STATUSES, or whether the check has passed."""
    if not isinstance(status, str):
        status = PASSED if status else FAILED
    step = runnable(next_step) if status in (FAILED, NOT_VERIFIED) else ""
    return {**Finding(obj, wanted, seen, step, identity)._asdict(), "status": status}


def tally(checks: Iterable[dict]) -> dict[str, int]:
    return counted(STATUSES, (item["status"] for item in checks))


def counted(words: Iterable[str], seen: Iterable[str]) -> dict[str, int]:
    """How often each word was seen; an unknown word is an error."""
    counts = dict.fromkeys(words, 0)
    for word in seen:
        counts[word] += 1
    return counts
