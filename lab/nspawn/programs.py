"""Running the programs that this tool stands on: each must succeed, or the error says what it was for."""

import subprocess
from collections.abc import Sequence

from lab.settings import LabError


def run(argv: Sequence[str], what: str, next_step: str) -> str:
    """Runs one program and returns its output; `what` is the object the error is about."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError(what, f"the program {argv[0]}", "it is not on PATH", "run: lab/packages lab") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-12:]
        seen = "\n          ".join([f"exit code {done.returncode}:", *said])
        raise LabError(what, f"exit code 0 of: {' '.join(argv)}", seen, next_step)
    return done.stdout
