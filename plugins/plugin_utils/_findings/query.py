"""One JMESPath expression over the facts of many nodes. Pure."""

import contextlib
import json

from ansible.errors import AnsibleError

from ...module_utils._core.change import Finding
from ...module_utils._core.text import clean, sentence
from .._core import libraries


def ask(nodes: dict, query: str) -> dict:
    """answers (what the expression gives for each node), unread (the reason for each node without facts), and text.

    The text is all of it for people, a line an answer or, where an answer is a list, an element. AnsibleError where the
    expression cannot be evaluated. nodes: by name, with facts or failure. query: see https://jmespath.org.
    """
    try:
        import jmespath
    except ImportError:
        raise AnsibleError(sentence(libraries.missing("jmespath"))) from None
    # Ansible tags what it templates, and jmespath knows plain types only.
    nodes, query = json.loads(json.dumps(nodes)), str(query)
    facts = {name: node["facts"] for name, node in nodes.items() if node.get("facts")}
    unread = {name: node.get("failure") or "no reason given" for name, node in nodes.items() if name not in facts}
    try:
        parsed = jmespath.compile(query)
        with contextlib.suppress(jmespath.exceptions.JMESPathTypeError):
            parsed.search({})  # a function that does not exist is refused without facts too
        answers = {name: parsed.search(of_node) for name, of_node in facts.items()}
    except jmespath.exceptions.JMESPathError as error:
        wanted, seen = "a JMESPath expression that fits the facts", " ".join(str(error).split())
        step = 'correct it, such as hcas[].[name,firmware]; one with spaces takes -e \'{"discover_query": "…"}\''
        raise AnsibleError(sentence(Finding(f"query {query}", wanted, seen, step))) from error
    rows = [(name, row) for name, said in answers.items() for row in (said if isinstance(said, list) else [said])]
    lines = [f"{name}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows]
    lines += [f"{name}: not read: {reason}" for name, reason in unread.items()]
    return {"answers": answers, "unread": unread, "text": clean("\n".join(lines) + "\n")}
