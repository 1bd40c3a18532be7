# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare nodes with their inventory and answer by exit code; changes nothing on any node.

python3 bin/drift.py [--verdict-file FILE] [--runner PROGRAM] [--playbook NAME] OPTIONS-OF-ANSIBLE-PLAYBOOK...

The verdict file is below drift_directory, which inventory and -e may set; --verdict-file puts it elsewhere.

0 converged, 2 drift, 3 reboot pending, 4 unsafe or unreachable: that of the worst host. 1 where no verdict was reached:
ansible-playbook could not be started, was ended, or failed before every host had its verdict. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

SCHEMA = "gpufabric.rdma/drift-verdict/1"
NO_VERDICT = 1
# Names the file in which the recorder repeats the verdict for us: only Ansible knows the options that place it.
ANSWER = "GPUFABRIC_RDMA_DRIFT_ANSWER"
# Where the verdict is unless an option says otherwise.
DEFAULT = os.path.join("drift", "verdict.json")
ANSWERS = {"converged": 0, "drift": 2, "reboot_pending": 3, "unsafe": 4, "unreachable": 4}
# Exit codes of ansible-playbook: success, a host failed, a host was unreachable. Any other says nothing about hosts.
RAN, HOST_FAILED, HOST_UNREACHABLE = 0, 2, 4


def main(arguments: list[str]) -> int:
    options, passed = _parse(arguments)
    run = uuid.uuid4().hex
    program = shutil.which(options.runner)
    if program is None:
        return _no_verdict(
            f"{options.runner}: wanted a program on PATH, seen none. Next step: activate its environment"
        )
    verdict_file = pathlib.Path(options.verdict_file or DEFAULT).absolute()
    try:
        verdict_file.unlink(missing_ok=True)
    except OSError as error:
        return _no_verdict(f"{verdict_file}: wanted the verdict of an earlier run gone, seen {error.strerror}")
    variables = {"drift_run": run}
    if options.verdict_file:
        variables["drift_verdict_file"] = str(verdict_file)
    command = [program, *passed, "--check", "--extra-vars", json.dumps(variables), options.playbook]
    with tempfile.TemporaryDirectory(prefix="gpufabric-drift-") as folder:
        answer = pathlib.Path(folder, "verdict.json")
        status = _run(command, {**os.environ, ANSWER: str(answer)})
        try:
            verdict = read(verdict_file if options.verdict_file else answer, run)
        except ValueError as error:
            place = verdict_file if options.verdict_file else "the drift recorder"
            return _no_verdict(f"{place}: wanted {error} ({options.runner} ended with {status})")
    if status not in ([RAN] if verdict["exit_code"] < HOST_UNREACHABLE else [RAN, HOST_FAILED, HOST_UNREACHABLE]):
        return _no_verdict(f"{options.runner}: wanted an end that fits '{verdict['verdict']}', seen exit code {status}")
    _say(f"{verdict['verdict'].replace('_', ' ')}, exit code {verdict['exit_code']}")
    return verdict["exit_code"]


def read(path: pathlib.Path, run: str) -> dict:
    """The verdict of this run; ValueError says what was wanted and seen where there is none."""
    try:
        verdict = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError("the verdict of this run, seen no file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"the verdict of this run, seen {error}") from None
    if not isinstance(verdict, dict) or verdict.get("schema") != SCHEMA:
        raise ValueError(f"{SCHEMA}, seen another kind of file")
    if verdict.get("run") != run:
        raise ValueError("the verdict of this run, seen that of an earlier one")
    worst = max((ANSWERS.get(answer, NO_VERDICT) for answer in verdict["hosts"].values()), default=None)
    if not verdict["hosts"] or ANSWERS.get(verdict["verdict"]) != verdict["exit_code"] or worst != verdict["exit_code"]:
        raise ValueError(f"hosts and the exit code of the worst, seen {verdict}")
    return verdict


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Exit code of the command; negative where a signal ended it. A signal to us ends it too."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return -1
    signal.signal(signal.SIGTERM, lambda _number, _frame: process.terminate())
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        return -signal.SIGINT


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="drift.py",
        description="Compare nodes with their inventory and answer by exit code: 0 converged, 2 drift, 3 reboot "
        "pending, 4 unsafe or unreachable, 1 no verdict. Nothing is changed on any node.",
        epilog="All other options go to ansible-playbook: -i INVENTORY, --limit, -e, …",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("--verdict-file", help="default: as drift_directory and drift_verdict_file have it")
    parser.add_argument("--runner", default="ansible-playbook", help="or ansible-pull; default: %(default)s")
    parser.add_argument("--playbook", default="gpufabric.rdma.drift", help="default: %(default)s")
    return parser.parse_known_args(arguments)


def _no_verdict(reason: str) -> int:
    _say(f"no verdict was reached: {reason}")
    return NO_VERDICT


def _say(text: str) -> None:
    sys.stderr.write(f"drift: {text}\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except argparse.ArgumentError as error:
        sys.exit(_no_verdict(str(error)))
