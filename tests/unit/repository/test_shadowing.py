"""A comprehension's variable hides no name that is in view around its function: Python 3.12.1 and 3.13.0 compile
comprehensions into the function and lose the hidden name for all of it (UnboundLocalError where it is used next).
"""

from __future__ import annotations

import ast
import builtins
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
BUILTINS = frozenset(dir(builtins))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(node):
    """Names that a statement or expression binds in its own scope."""
    if isinstance(node, COMPREHENSIONS):
        return
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield getattr(node, "name", None)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from bound(child)


def hidden(node, around=BUILTINS, own=frozenset()):
    """(line, name) of each comprehension's variable that has a meaning around the function it stands in."""
    if isinstance(node, (ast.Module, *FUNCTIONS)):
        around |= own
        own = {name for child in ast.iter_child_nodes(node) for name in bound(child)}
        own |= {child.arg for child in ast.walk(getattr(node, "args", ast.arguments())) if isinstance(child, ast.arg)}
        if isinstance(node, ast.Module):
            around, own = around | own, frozenset()
    elif isinstance(node, ast.comprehension):
        for target in ast.walk(node.target):
            if isinstance(target, ast.Name) and target.id in around:
                yield target.lineno, target.id
    for child in ast.iter_child_nodes(node):
        yield from hidden(child, around, own)


def sources():
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for path in map(ROOT.joinpath, filter(None, names)) if path.exists()]


def test_no_comprehension_hides_a_name_around_its_function():
    places = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        for line, name in hidden(ast.parse(path.read_text()))
    ]
    assert places == []


PLANTED = [
    ("def f(rows):\n    return {a for a, g in rows}\ndef g(): pass\n", [(2, "g")]),
    ("from m import text\nx = [text for text in ()]\n", [(2, "text")]),
    ("def f(rows):\n    return {a: 1 for a, sum in rows}\n", [(2, "sum")]),
    ("def f(x):\n    def g(rows):\n        return [x for x in rows]\n", [(3, "x")]),
    ("def f(x):\n    return lambda rows: [x for x in rows]\n", [(2, "x")]),
    ("if A:\n    import b\ndef f():\n    return [1 for b in ()]\n", [(4, "b")]),
    # A name of the same function is kept apart; so are two comprehensions.
    ("def f(x):\n    return [x for x in x], [x for x in ()]\n", []),
    ("A = {name for name in ()}\ndef f():\n    return [name for name in ()]\n", []),
]


@pytest.mark.parametrize(("text", "places"), PLANTED)
def test_the_search_sees_what_is_hidden_and_only_that(text, places):
    assert list(hidden(ast.parse(text))) == places
