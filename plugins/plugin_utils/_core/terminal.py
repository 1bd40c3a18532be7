"""Output to the operator's terminal; every plugin of the collection prints through this module."""

import shlex

from ansible import context
from ansible.utils.display import Display

from ...module_utils._core.text import INVENTORY, clean, runnable


def here(text: str) -> str:
    sources = " ".join(f"-i {shlex.quote(source)}" for source in context.CLIARGS.get("inventory") or ())
    return runnable(text).replace(f"-i {INVENTORY}", sources or f"-i {INVENTORY}")


def show(text: str, problem: bool = False) -> None:
    """Print a text, cleaned. problem: to stderr."""
    Display().display(here(clean(text)), stderr=problem)


def warnings(texts) -> list[str]:
    """Texts for the `warnings` of a result, cleaned; Ansible prints them."""
    return [here(clean(text)) for text in texts]
