# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page's templates: Jinja2 that escapes each value and replaces characters that mislead.

PRIVATE to the collection. Values are data for the templates, never templates themselves.
"""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token

from ...module_utils._core.text import clean, count

FOLDER = pathlib.Path(__file__).parent / "templates"


class _Folded(Extension):
    """A line break of a template, with the blanks around it, is no part of the page."""

    def filter_stream(self, stream):
        for token in stream:
            if token.type == "data":
                token = Token(token.lineno, "data", re.sub(r"\s*\n\s*", "", token.value))
            yield token


def _shown(value: Any) -> Any:
    """What is written for a value: nothing for None; markup that a template has made is clean already."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") or isinstance(value, jinja2.Undefined) else clean(value)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        extensions=[_Folded],
        auto_reload=False,
    )
    environment.globals["count"] = count
    return environment


def render(name: str, **view: Any) -> str:
    """The text of a template; a value that it misses is an error."""
    return _environment().get_template(name).render(view)


@functools.cache
def asset(name: str) -> str:
    """A file that goes into the page as it is."""
    return (FOLDER / name).read_text(encoding="utf-8")
