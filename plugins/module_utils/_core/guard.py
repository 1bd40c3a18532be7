# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one end of what nobody foresaw: four facts, and a file with the traceback.

PRIVATE to the collection. Every module and every action plugin is run through it.
"""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
import traceback
from typing import Callable

from .change import Refused, failure, settle
from .files import write

_HIDDEN = "********"
# The documentation fragment of each module that changes something.
CHANGING = "gpufabric.rdma.changing"


def guarded(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate the main() of a module."""

    @functools.wraps(main)
    def typed() -> None:
        try:
            main()
        except Exception as error:
            module = _module_of(error)
            if module is None:  # only AnsibleModule() itself, which ansible-test replaces to read the arguments
                raise
            name = os.path.splitext(os.path.basename(main.__code__.co_filename))[0]
            changing = CHANGING in main.__globals__.get("DOCUMENTATION", "") and not module.check_mode
            module.fail_json(**unexpected(f"module {name}", error, changing, module.no_log_values))

    return typed


def unexpected(obj: str, error: Exception, changing: bool, hidden=()) -> dict:
    """The arguments of fail_json for an exception that nobody foresaw.

    changing: whether something may have been changed by then; if so the result is `changed`, with the changes that are
    known. hidden: texts that are never shown.
    """
    if isinstance(error, Refused):
        return failure(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300]
    seen = f"{type(error).__name__}{': ' if text else ''}{text} ({os.path.basename(place.filename)}:{place.lineno})"
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    for secret in hidden:
        seen, told = seen.replace(secret, _HIDDEN), told.replace(secret, _HIDDEN)
    if changing:
        seen += "; something may have been changed before it"
    step = f"report it with {_kept(obj, told)}: it is a bug in the collection"
    refused = Refused.because(obj, "a result, or a refusal with its reason", seen, step)
    refused.done = _done(error)
    return {**failure(refused), "changed": changing}


def _kept(obj: str, told: str) -> str:
    """Where the traceback is: in a file of its owner alone, under a name that nobody can foresee."""
    node = os.uname().nodename
    name = f"gpufabric-rdma-{obj.split()[-1]}-{secrets.token_hex(8)}.traceback"
    try:
        path = os.path.join(tempfile.gettempdir(), name)
        write(path, told.encode(errors="backslashreplace"), 0o600)
    except OSError as error:
        return f"the output of -vvv ({node} has no room for a file: {error.strerror})"
    return f"the traceback in {path} on {node}"


def _done(error: Exception) -> list:
    """The changes that settle() had made by then."""
    frames = (frame for frame, _line in traceback.walk_tb(error.__traceback__) if frame.f_code is settle.__code__)
    return next((frame.f_locals.get("done") or [] for frame in frames), [])


def _module_of(error: Exception):
    """The AnsibleModule that main() had made by then: it knows which values are secret."""
    frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
    known = (frame.f_locals.get("module") for frame in frames)
    return next((module for module in known if hasattr(module, "no_log_values")), None)
