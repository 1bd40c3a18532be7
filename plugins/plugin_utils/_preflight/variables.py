"""The variables of all roles: their documented options, and their typed values for a host.

The argument specs of the roles hold every type and default; nothing else repeats one.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping

from ansible.errors import AnsibleError
from ansible.module_utils.common.yaml import yaml_load

from ...module_utils._core.change import Finding
from . import host

ROLES = pathlib.Path(__file__).resolve().parents[3] / "roles"
_COMMON = ROLES / "common/meta/argument_specs.yml"


@functools.cache
def documented_roles() -> dict:
    """{role: {variable: option}} from the argument_specs of every role of this collection. Do not modify it.

    Options that several roles read are in the role common, and count for the role in their names.
    """
    roles = {}
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        specs = yaml_load(path.read_text(encoding="utf-8"))["argument_specs"]
        roles[path.parents[1].name] = {
            name: option for spec in specs.values() for name, option in (spec.get("options") or {}).items()
        }
    for name, option in roles.pop("common").items():
        roles[next(role for role in roles if name.startswith(f"{role}_"))][name] = option
    return roles


@functools.cache
def of_cluster() -> frozenset[str]:
    """Variables that only k3s and its pod network read."""
    own = options(["k3s", "flannel", "cni_plugins", "multus"])
    shared = yaml_load(_COMMON.read_text(encoding="utf-8"))["argument_specs"]["shared"]["options"]
    return frozenset(own) - frozenset(shared)


def options(roles=None) -> dict:
    """{variable: option} of these roles, or of all."""
    known = documented_roles()
    return {name: option for role in roles or known for name, option in known[role].items()}


def effective(wanted: dict, known: Mapping, template: Callable) -> tuple[dict, list[Finding]]:
    """{variable: typed value, or default} of these options for a host, and findings.

    known: the variables of the host. template: renders a value with them.
    """
    values, findings = {}, []
    for name in wanted:
        if name in known:
            try:
                values[name] = template(known[name])
            except AnsibleError as error:
                findings.append(host.unresolved(name, " ".join(str(error).split())))
    typed, invalid = host.validate(wanted, values)
    return typed, findings + invalid
