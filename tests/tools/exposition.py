"""What Prometheus' parser and the rules of its promlint say of metrics in the text format."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

_BASE = ["amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters", "metres", "seconds", "volts"]
_OTHER = ["minutes", "hours", "days", "weeks", "kelvins", "fahrenheit", "rankine", "inches", "yards", "miles", "bits"]
_OTHER += ["calories", "pounds", "ounces"]
_PREFIX = ["pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega", "mibi"]
_PREFIX += ["giga", "gibi", "tera", "tebi", "peta", "pebi"]
_SHORT = ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"]
_NOT_BASE = {*_OTHER, *(prefix + unit for prefix in _PREFIX for unit in [*_BASE, *_OTHER])}


def problems(text: str) -> list[str]:
    """One sentence for each fault; none of a text that Prometheus reads and promlint passes."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        return [f"not the text format: {error}"]
    found = [] if text.endswith("\n") else ["the last line does not end"]
    helped, typed, seen = set(), {}, []
    for line in text.splitlines():
        words = line.split(" ", 3)
        if words[:2] == ["#", "HELP"]:
            helped.add(words[2])
        elif words[:2] == ["#", "TYPE"]:
            found += [f"{words[2]}: a second TYPE"] if words[2] in typed else []
            typed[words[2]] = words[3]
        elif not line.startswith("#"):
            name = re.match(r"[^{ ]*", line)[0]
            found += [f"{name}: not in one place"] if name in seen[:-1] else []
            seen += [name] if seen[-1:] != [name] else []
    for name in seen:
        found += [f"{name}: {fault}" for fault in _faults(name, name in helped, typed.get(name))]
    keys = [(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples]
    found += [f"{key[0]}: the same labels twice" for key in sorted({key for key in keys if keys.count(key) > 1})]
    found += [f"{key[0]}: label {label} in camelCase" for key in keys for label, _value in key[1:] if _is_camel(label)]
    return found


def _faults(name: str, helped: bool, kind: str | None):
    if not helped:
        yield "no HELP"
    if kind is None:
        yield "no TYPE"
    if (kind == "counter") != name.endswith("_total"):
        yield f"{kind} whose name does {'' if name.endswith('_total') else 'not '}end in _total"
    parts = name.lower().split("_")
    if kind in parts[1:]:
        yield f"the name holds its type, {kind}"
    if set(parts) & _NOT_BASE:
        yield f"no base unit: {', '.join(sorted(set(parts) & _NOT_BASE))}"
    if set(parts[1:]) & set(_SHORT):
        yield "a shortened unit"
    if _is_camel(name) or ":" in name:
        yield "no snake_case"
    if name.endswith(("_bucket", "_count", "_sum")):
        yield "the ending is one of histograms"


def _is_camel(name: str) -> bool:
    return re.search("[a-z][A-Z]", name) is not None
