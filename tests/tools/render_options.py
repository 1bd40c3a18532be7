"""docs/options.md from the argument_specs of all roles, so that it cannot drift."""

from __future__ import annotations

import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs/options.md"
HEAD = """# Options

Generated from `roles/*/meta/argument_specs.yml` by `tests/tools/render_docs.py`; the values shown are the defaults.
"""


def paragraph(text) -> str:
    """argument_specs descriptions are a string or a list of sentences."""
    joined = " ".join([text] if isinstance(text, str) else text or []).strip()
    return re.sub(r"\b[CMOV]\(([^)]*)\)", r"`\1`", joined)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def rows(options: dict, prefix: str = ""):
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if option.get("elements") else "")
        choices = option.get("choices")
        meaning = paragraph(option["description"])
        if choices:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        default = "" if prefix else f"`{json.dumps(option.get('default'))}`"
        yield f"| `{prefix}{name}` | {kind} | {cell(default)} | {cell(meaning)} |"
        yield from rows(option.get("options") or {}, f"{prefix}{name}.")


def render() -> str:
    parts = [HEAD]
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
        parts += [f"## {role.name}", "", paragraph(specs["main"]["short_description"]), ""]
        # The same option has the same meaning at each entry point.
        options = {name: option for spec in specs.values() for name, option in (spec.get("options") or {}).items()}
        if options:
            parts += ["| option | type | default | meaning |", "|---|---|---|---|", *rows(options)]
        else:
            parts.append("No options.")
        parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n"
