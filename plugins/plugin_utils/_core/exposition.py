# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus' text format (0.0.4), as node_exporter reads it from a textfile; the controller writes it here alone.

PRIVATE to the collection. Pure. The device plugin has prometheus_client for its own metrics; a controller needs no
library for a handful of gauges.
"""

from __future__ import annotations

from typing import NamedTuple

from ...module_utils._core.text import clean


class Gauge(NamedTuple):
    """A family of samples (labels, value). The name holds its base unit, if it has one."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]


def text(gauges: list[Gauge]) -> str:
    return "".join(f"{line}\n" for gauge in gauges for line in _lines(gauge))


def _lines(gauge: Gauge):
    yield f"# HELP {gauge.name} {_escaped(gauge.help)}"
    yield f"# TYPE {gauge.name} gauge"
    for labels, value in gauge.samples:
        pairs = ",".join(f'{key}="{_quoted(label)}"' for key, label in labels.items())
        yield f"{gauge.name}{{{pairs}}} {value}" if pairs else f"{gauge.name} {value}"


def _escaped(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')
