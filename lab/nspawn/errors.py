"""The one way this tool fails: an object, what was wanted, what was seen, what to do next."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NoReturn


class LabError(Exception):
    """A failure that a person can act on; nspawnctl prints it and exits with 1."""


def fail(what: str, wanted: str, seen: str, next_step: str) -> NoReturn:
    raise LabError(f"{what}\n  wanted: {wanted}\n  seen:   {seen}\n  next:   {next_step}")


def run(argv: Sequence[str], what: str, next_step: str, stdin: str | None = None) -> str:
    """Runs one program that must succeed and returns its output."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        fail(what, f"the program {argv[0]}", "it is not on PATH", "run: lab/packages lab")
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-12:]
        fail(
            what,
            f"exit code 0 of: {' '.join(argv)}",
            f"exit code {done.returncode}: " + "\n          ".join(said),
            next_step,
        )
    return done.stdout
