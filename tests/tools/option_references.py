"""Where a role, a playbook or a plugin refers to a documented variable past the lookup that knows its type and default.

Ansible's own validation of role arguments only validates: -e NAME=false stays the text "false", which is true. So roles
read their own variables through the lookup, too.

option_references.py [FOLDER] prints each such reference, and how many of them bring a default of their own.
"""

from __future__ import annotations

import ast
import pathlib
import sys
from typing import NamedTuple

import jinja2
import yaml
from jinja2 import nodes

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where Ansible reads an expression without braces.
READ_BARE = {"when", "that", "until", "failed_when", "changed_when"}


class Reference(NamedTuple):
    path: str
    line: int
    variable: str
    default: bool  # whether it has a default of its own

    def __str__(self):
        return f"{self.path}:{self.line}: {self.variable}{' with a default' if self.default else ''}"


def documented(root: pathlib.Path) -> set[str]:
    """Variables that a role documents."""
    return {
        name
        for path in root.glob("roles/*/meta/argument_specs.yml")
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values()
        for name in spec.get("options") or {}
    }


def references(root: pathlib.Path) -> list[Reference]:
    """References to documented variables, in order of files and lines."""
    known, found = documented(root), set()
    files = [path for top in ("roles", "playbooks", "plugins") for path in root.glob(f"{top}/**/*") if path.is_file()]
    for path in files:
        place = path.relative_to(root)
        if "meta" in place.parts:
            continue
        if path.suffix == ".py":
            named = _in_python(ast.parse(path.read_text()))
        elif path.suffix == ".j2":
            named = _in_template(path.read_text(), 1)
        elif path.suffix in (".yml", ".yaml"):
            named = _in_yaml(path.read_text())
        else:
            continue
        found |= {Reference(place.as_posix(), line, name, default) for line, name, default in named if name in known}
    return sorted(found)


def _in_yaml(text: str):
    for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
        yield from _in_node(document, bare=False)


def _in_node(node, bare: bool):
    if isinstance(node, yaml.ScalarNode):
        # The text of a block begins a line below its sign.
        line = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        try:
            yield from _in_template(f"{{{{ {node.value} }}}}" if bare and "{{" not in node.value else node.value, line)
        except jinja2.TemplateSyntaxError:
            if not bare:  # an option of a module may have the name of such a keyword
                raise
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _in_node(item, bare)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _in_node(value, key.value in READ_BARE)


def _in_template(text: str, first: int):
    if "{{" not in text and "{%" not in text:
        return
    tree = ENVIRONMENT.parse(text)
    defaulted = {id(base) for node in tree.find_all(nodes.Filter) for base in _defaulted(node)}
    for node in tree.find_all(nodes.Name):
        yield first + node.lineno - 1, node.name, id(node) in defaulted
    # A key or an attribute may be one of typed variables passed on; then it needs no default.
    for kind, text_of in ((nodes.Const, "value"), (nodes.Getattr, "attr")):
        for node in tree.find_all(kind):
            if id(node) in defaulted:
                yield first + node.lineno - 1, getattr(node, text_of), True
    for node in tree.find_all((nodes.Getitem, nodes.Getattr)):
        if _of_a_host(node) and id(node) not in defaulted:
            key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
            yield first + node.lineno - 1, key, id(getattr(node, "arg", node)) in defaulted


def _of_a_host(node) -> bool:
    """Whether it is hostvars[HOST][KEY]: what the host was given, untyped."""
    base = getattr(node.node, "node", None)
    return isinstance(base, nodes.Name) and base.name == "hostvars"


def _defaulted(node: nodes.Filter):
    """What a filter gives a default to: its base, the key of a mapping, or the attribute that map looks for."""
    if node.name in ("default", "d"):
        yield node.node
        if isinstance(node.node, nodes.Getitem):
            yield node.node.arg
    elif node.name == "map":
        given = {pair.key: pair.value for pair in node.kwargs}
        if "default" in given:
            yield given.get("attribute")


class _Lenient(dict):
    """Filters and tests that only Ansible has; for the parser any will do."""

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return lambda *_args: None


ENVIRONMENT = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
ENVIRONMENT.filters, ENVIRONMENT.tests = _Lenient(), _Lenient()


def _in_python(tree):
    """Only what brings a default: get with two arguments. Plugins get typed values and may name them freely."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", None) != "get" or len(node.args) != 2:
            continue
        if isinstance(node.args[0], ast.Constant):
            yield node.lineno, node.args[0].value, True


if __name__ == "__main__":
    rows = references(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print(*rows, sep="\n")
    print(f"{len(rows)} references past the lookup, {sum(row.default for row in rows)} of them with a default")
