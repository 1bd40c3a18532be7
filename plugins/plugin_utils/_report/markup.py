# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Elements of HTML and SVG as strings that cannot be written unescaped.

PRIVATE to the collection. A child is escaped unless `tag` made it, so a text from a node never becomes markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

from ...module_utils._core.text import clean

_VOID = {"meta", "br", "hr"}


class Markup(str):
    """Text that is markup already."""


Child = Union[str, int, float, None, Iterable["Child"]]


def escape(text: object) -> Markup:
    return Markup(html.escape(clean(text), quote=True))


def join(*children: Child) -> Markup:
    """Children in order: markup as it is, None left out, lists flattened, everything else escaped."""
    return Markup("".join(_flat(children)))


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, (str, int, float)):
            yield escape(child)
        else:
            yield from _flat(child)


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element. Attribute names lose a trailing underscore and show the others as hyphens.

    None and False leave an attribute out, True writes it without a value.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        written.append(f" {shown}" if value is True else f' {shown}="{escape(value)}"')
    opened = f"<{name}{''.join(written)}>"
    return Markup(opened) if name in _VOID else Markup(f"{opened}{join(*children)}</{name}>")


def icon(name: str) -> Markup:
    """A status symbol of the page; a shape of its own for each status, and always beside a word."""
    return tag("svg", tag("use", href=f"#i-{name}"), class_="i", aria_hidden="true")


def table(caption: Child, header: Iterable[Child], rows: Iterable[Iterable[Child]], class_: str = "") -> Markup:
    """A data table; the first cell of each row is its header. A cell that is a td or th already stays one."""
    head = tag("tr", [tag("th", title, scope="col") for title in header])
    body = [tag("tr", [_cell(cell, not place) for place, cell in enumerate(row)]) for row in rows]
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_=class_ or None)
    return tag("div", inner, class_="scroll")


def _cell(content: Child, first: bool) -> Markup:
    if isinstance(content, Markup) and content.startswith(("<td", "<th")):
        return content
    return tag("th", content, scope="row") if first else tag("td", content)


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
