"""Python libraries that the controller needs besides ansible-core."""

import importlib.util
import pathlib
import sys
from collections.abc import Iterable

from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.compat.version import LooseVersion
from ansible.release import __version__

from ...module_utils._core.change import Finding

_RUNTIME = pathlib.Path(__file__).resolve().parents[3] / "meta/runtime.yml"


def missing(name: str) -> Finding:
    step = f"install it next to ansible-core: {sys.executable} -m pip install {name}"
    return Finding("controller", f"the Python library {name}", f"none in {sys.executable}", step)


def findings(names: Iterable[str], core: str = __version__) -> list[Finding]:
    """What the controller lacks: a recent enough ansible-core, and libraries that this Python can import."""
    return [*_too_old(core), *(missing(name) for name in names if not installed(name))]


def _too_old(core: str) -> list[Finding]:
    wanted = yaml_load(_RUNTIME.read_text(encoding="utf-8"))["requires_ansible"]
    if LooseVersion(core) >= LooseVersion(wanted.removeprefix(">=")):
        return []
    step = f"in a virtual environment of Python 3.11 or newer: python3 -m pip install 'ansible-core{wanted}' netaddr"
    return [Finding("controller", f"ansible-core {wanted}", core, step, "controller:ansible-core")]


def installed(name: str) -> bool:
    """Whether this controller finds a library, or a collection by the name of its package."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its parent package
        return False
    except ValueError:  # sys.modules has it without a spec
        return sys.modules.get(name) is not None
