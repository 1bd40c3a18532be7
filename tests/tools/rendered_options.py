"""Whether an option given as text, like in -e and INI inventories, has the same effect as the typed value.

A case is one option from one source in one spelling. It renders every expression of roles and playbooks that reads the
option, and the input of plugins. A module option's value is compared after conversion by the module's argument spec,
and a value under an option's name after that option's conversion, because actions read variables by their names.
Ansible's collection loader has to be active before this is imported, so it needs a separate process.
"""

import functools
import json
import pathlib
import re
import sys
import tempfile
from typing import NamedTuple

import jinja2
import yaml
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv
from ansible.plugins.loader import fragment_loader, module_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.plugin_docs import get_docstring
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.gpufabric.rdma.tests.tools.rendering import GIVEN, compile_once
from ansible_collections.gpufabric.rdma.tests.tools.running import ROOT

# Where Ansible reads an expression without braces.
READ_BARE = {"when", "that", "until", "failed_when", "changed_when"}
_YES, _NO = ("true", "True", "yes", "on", "1"), ("false", "False", "no", "off", "0")
# Texts that YAML and a host's line of an INI inventory may read as a number.
_NUMBERS = (
    "device_plugin_server", "driver_drain_host", "driver_drain_node", "driver_repository_fingerprint", "k3s_node_name",
    "nccl_tests_namespace", "verification_namespace",
)  # fmt: skip
# Results of earlier tasks that are in the same expressions as options.
_OF_NODE = {"k3s": {"token_present": False, "version": "v1"}, "dra": {"name": "node1", "rails": {}}, "name": "node1"}
_OF_NODE["drain"] = {"node": "node1", "host": "node1"}
_OF_NODE["networks"] = {"files": [], "absent": [], "vfs_unit": False}
_OF_NODE["device_plugin"] = {"config": "{}", "links_up": False}
_REGISTERED = {
    "ansible_check_mode": False,
    "ansible_facts": {"rdma": {"hcas": [], "rails": [], "node": {"architecture": "x86_64"}}},
    "ansible_play_hosts": ["node1"],
    "ansible_play_hosts_all": ["node1"],
    "groups": {"all": ["node1"], "gpu_nodes": ["node1"], "k3s_servers": ["node1"]},
    "hostvars": {"node1": {}},
    "inventory_hostname": "node1",
    "rdma_initramfs_stale": ["/boot/initrd.img"],
    "rdma_reboot_reasons": ["a reason"],
    "__device_plugin_result": {"rivals": []},
    "__discovery_planned": {
        "hosts": {"node1": _OF_NODE},
        "networks": {"objects": [], "complete": True, "sriov_config": {}},
        "device_plugin": {"objects": [], "namespace": "gpufabric-rdma"},
        "roles": [],
    },
    "__driver_gate": {"consents": [], "steps": [], "verdict": "reboot"},
    "__driver_plan": {"change": {}, "changes": []},
    "__driver_reboot_unanswered": False,
    "__k3s_handed": "",
    "__k3s_mine": _OF_NODE["k3s"],
    "__matrix_planned": {"grace_seconds": 5, "wait_seconds": 5},
    "__reboot_read": {"reboot": {"cluster": {"member": True}, "findings": []}},
    "__networks_used_images": dict.fromkeys(GIVEN["__networks_used_images"], "image:1"),
    "__node_ready_node": {
        "contents": {"/proc/sys/kernel/hostname": "node1", "/run/gpufabric-rdma/node-ready.json": None},
        "missing_secrets": ["/etc/gpufabric-rdma/node-ready.token"],
        "programs": {"nfd-worker": False},
    },
    "__verification_networks": {"networks": {"node1": []}},
    "__verification_offered": {"cluster": {"dns": True}},
    "__verification_variables": {"discovery_software_hcas": False, "limits_services": [], "discovery_rails": []},
}


class _Lenient(dict):
    """Filters and tests that only Ansible has; any are fine for the parser."""

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return lambda *_args: None


ENVIRONMENT = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
ENVIRONMENT.filters, ENVIRONMENT.tests = _Lenient(), _Lenient()


class Expression(NamedTuple):
    place: str
    text: str
    role: str
    names: frozenset  # variables that it reads, and texts in it, such as arguments of lookups
    option: str  # of a module, as JSON, if it is the whole value of one


# --- what is read -----------------------------------------------------------------------------------------------------


def expressions() -> list[Expression]:
    found = []
    for pattern in ("roles/*/tasks/*.yml", "roles/*/vars/*.yml", "roles/*/templates/*.j2", "playbooks/**/*.yml"):
        for path in sorted(ROOT.glob(pattern)):
            place, text = path.relative_to(ROOT), path.read_text()
            texts = [(1, text, {})] if path.suffix == ".j2" else _scalars(yaml.compose(text, Loader=yaml.SafeLoader))
            role = place.parts[1] if place.parts[0] == "roles" else "discovery"
            for line, part, option in texts:
                found.append(Expression(f"{place}:{line}", part, role, _names(part), json.dumps(option)))
    return found


def _scalars(node, option=None, bare=False):
    """(line, expression, option of a module that it is the value of)"""
    option = option or {}
    if isinstance(node, yaml.ScalarNode):
        if "{{" in node.value:
            yield node.start_mark.line + 1, node.value, option
        elif bare:
            yield node.start_mark.line + 1, f"{{{{ {node.value} }}}}", option
    elif isinstance(node, yaml.SequenceNode):
        item = {"type": option["elements"], "options": option.get("options")} if option.get("elements") else {}
        for value in node.value:
            yield from _scalars(value, item, bare)
    elif isinstance(node, yaml.MappingNode):
        of_task = "name" in [key.value for key, _value in node.value]
        for key, value in node.value:
            below = (option.get("options") or {}).get(key.value) or preflight_variables.options().get(key.value)
            if _MODULE.fullmatch(key.value):
                below = {"options": _options(key.value)}
            yield from _scalars(value, below, of_task and key.value in READ_BARE)


_MODULE = re.compile(r"(ansible\.builtin|gpufabric\.rdma)\.\w+")


@functools.cache
def _options(module: str) -> dict:
    path = module_loader.find_plugin(module, mod_type=".py")
    documented = get_docstring(path, fragment_loader)[0] if path else None

    def spec(options):
        return {
            name: {key: it[key] for key in ("type", "elements", "choices") if key in it}
            | ({"options": spec(it["suboptions"])} if "suboptions" in it else {})
            for name, it in options.items()
        }

    return spec((documented or {}).get("options") or {})


def _names(text: str, texts: bool = True) -> frozenset:
    tree = ENVIRONMENT.parse(text)
    names = {node.name for node in tree.find_all(jinja2.nodes.Name)}
    found = (
        {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)} if texts else set()
    )
    return frozenset(found | names)


def out_of_scope(known: list[Expression], options: dict, defaults: dict) -> list[str]:
    """Options read by their plain names although neither the role itself nor the role common has the default."""
    found = []
    for expression in known:
        role = pathlib.PurePath(expression.place).parts[1]
        foreign = (_names(expression.text, texts=False) & set(options)) - set(defaults["common"])
        # A play has no role's defaults, only its own.
        of_play = expression.place.startswith("playbooks")
        said = set(re.findall(r"(\w+) \| default\(", expression.text) if of_play else ())
        found += [f"{expression.place}: {name}" for name in foreign - said - set(defaults.get(role, ()))]
    return found


def readers(option: str, known: list[Expression], variables: dict) -> list[Expression]:
    """The expressions that read an option, by themselves or through variables. variables: {name: what it reads}"""
    names, more = set(), {option}
    while more - names:
        names |= more
        more = {name for name, reads in variables.items() if reads & names}
    return [expression for expression in known if expression.names & names]


# --- what is given ----------------------------------------------------------------------------------------------------


def spellings(name: str, option: dict) -> list[tuple[object, tuple]]:
    """[(typed value, texts that mean it)]"""
    kind = option.get("type", "str")
    if kind == "bool":
        return [(True, _YES), (False, _NO)]
    if name in _NUMBERS:
        return [("17", ("17",))]
    if kind in ("int", "float"):
        value = option["choices"][0] if "choices" in option else (option.get("default") or 0) + 7
        return [(value, (str(value),))]
    if kind == "list" and option.get("elements") in ("str", "int"):
        value = [0, 1] if option["elements"] == "int" else list(option.get("choices") or ("one", "two"))[:2]
        return [(value, (",".join(map(str, value)),))]
    if kind == "dict" and "options" not in option:
        return [({"key": "one"}, ('{"key": "one"}', "key=one"))]
    return []


def given(name: str, text: str, folder: pathlib.Path) -> dict:
    """{source: what Ansible makes of the text}: of -e NAME=TEXT, and of a group's variable in INI and in YAML."""
    path = folder / "hosts.ini"
    path.write_text(f"[gpu_nodes]\nnode1\n\n[gpu_nodes:vars]\n{name}={text}\n")
    inventory = InventoryManager(loader=DataLoader(), sources=[str(path)])
    of_group = inventory.groups["gpu_nodes"].vars
    return {"-e": parse_kv(f"{name}='{text}'")[name], "INI": of_group[name], "YAML": yaml.safe_load(text)}


# --- the comparison ---------------------------------------------------------------------------------------------------


def trusted(value):
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    return [trusted(item) for item in value] if isinstance(value, list) else value


def rendered(expression: Expression, variables: dict) -> str:
    """Its value as JSON, which tells true from 1 and from "true"; the error's words if it fails."""
    role = str(ROOT / "roles" / expression.role)
    loader = DataLoader()
    loader.set_basedir(role)
    places = {"role_path": role, "ansible_search_path": [role], "playbook_dir": str(ROOT / "playbooks")}
    try:
        value = Templar(loader, variables={**variables, **places}).template(trust_as_template(expression.text))
    except AnsibleError as error:
        return f"ERROR {' '.join(str(error).split())}"
    option = json.loads(expression.option)
    if "type" in option:
        checked = ArgumentSpecValidator({"value": option}).validate({"value": value})
        value = checked.error_messages or checked.validated_parameters["value"]
    return json.dumps(value, sort_keys=True, default=repr)


def outcome(name: str, value, reading: list[Expression], base: dict) -> dict:
    """Each reader's value if the option has this value, and the input of plugins."""
    known = preflight_variables.options()
    plan, _findings = preflight_variables.effective(known, {name: value}, trusted)
    variables = {**base, "__discovery_read": {"k3s": {}, "variables": plan}, name: value}
    typed, findings = preflight_variables.effective({name: known[name]}, {name: value}, trusted)
    plugins = json.dumps([typed, findings], sort_keys=True, default=repr)
    return {**{it: rendered(it, variables) for it in reading}, "plugins": plugins}


def _variables(kind: str) -> dict:
    """{role: content of its defaults/main.yml or vars/main.yml}"""
    return {
        path.parents[1].name: yaml.safe_load(path.read_text()) or {} for path in ROOT.glob(f"roles/*/{kind}/main.yml")
    }


def _merged(of_roles: dict) -> dict:
    return {name: value for variables in of_roles.values() for name, value in variables.items()}


def main() -> None:
    """Prints JSON: {cases, rendered, options: {option: type}, unseen: {option: its readers' errors}, differences,
    out_of_scope}.
    """
    compile_once()
    known, options = expressions(), preflight_variables.options()
    defaults, read = _variables("defaults"), _merged(_variables("vars"))
    base = trusted({**_merged(defaults), **read, **_REGISTERED})
    through = {
        name: frozenset().union(*(_names(text) for _line, text, _option in _scalars(yaml.compose(json.dumps(value)))))
        for name, value in read.items()
    }
    result = {"cases": 0, "rendered": 0, "options": {}, "unseen": {}, "differences": []}
    result["out_of_scope"] = out_of_scope(known, options, defaults)
    with tempfile.TemporaryDirectory() as folder:
        for name, option in sorted(options.items()):
            reading = readers(name, known, through)
            for value, texts in spellings(name, option):
                result["options"][name] = option["type"]
                typed = outcome(name, value, reading, base)
                # An expression that needs more than _REGISTERED proves nothing; each option needs one that works.
                failed = {it.place: typed[it] for it in reading if typed[it].startswith("ERROR")}
                if failed and len(failed) == len(reading):
                    result["unseen"][name] = failed
                sources = [(text, given(name, text, pathlib.Path(folder))) for text in texts]
                for text, source, seen in ((text, *pair) for text, pairs in sources for pair in pairs.items()):
                    result["cases"] += 1
                    result["rendered"] += len(reading) - len(failed)
                    got = outcome(name, seen, reading, base)
                    result["differences"] += [
                        f"{getattr(it, 'place', it)}: {source} {name}={text}: {got[it][:200]}, typed {typed[it][:200]}"
                        for it in typed
                        if got[it] != typed[it]
                    ]
    json.dump(result, sys.stdout, indent=1)
