"""Renders the roles' Jinja: every object of a cluster, and texts with hostile strings in all their variables.

rendering.py            prints JSON: {"texts", "values", "refused", "faults"}

A text is a template, or an item with `content` in a role's vars; all are found automatically, with all their variables,
direct and indirect. Each is rendered twice with plain values, which shows where a value ends up, and then with each
hostile string in all of them: the result has the same structure and differs only in those places. It is a separate
process, because Ansible's collection loader has to be active.
"""

import configparser
import copy
import functools
import json
import os
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLES = ROOT / "roles"
HOSTILE = [
    "bad1 #\",\"good1", "bad1', 'good1", "x\"}],\"y\":[{\"z\":\"", "x}, evil: {", "a: b", "a:", "- a", "? a", "{a: b}",
    "[a]", "*a", "&a b", "!!python/object:os.system x", "!a", "| a", "> a", "#a", "a #b", "@a", "`a`", "%a", "%n",
    "%%", "$a", "${HOME}", "$(id)", "$$", "`id`", "; id", "&& id", "| sh", "> /tmp/x", "'", "\"", "''", "\"\"", "\\",
    "\\n", "\\\"", "null", "~", "true", "yes", "no", "on", "123", "0x10", "0o7", "1e3", ".inf", "2026-01-01", "1:30",
    "=", "<<", "---", "...", " a", "a ", "a  b", "\ta", "{{ 7 * 7 }}", "{% raw %}", "{# a #}", "-a", "--evil",
    "../../etc", "/a/../b", "*", "a\n  evil: true", "a\n---\nkind: Evil\n", "a\r\nb", "a\n", "\n",
    "a\n[Service]\nExecStartPre=/bin/evil\n", "a\nExecStartPre=/bin/evil", "a \\\nb", "a;b", "[Service]", "a\u0000b",
    "a\u001b[2Jb", "a\u007fb", "a\u0085b", "a\u009bb", "a\u2028b", "a\u2029b", "a\u202eb", "\ufeffa", "\u00e9\u5317",
    "A" * 5000,
]  # fmt: skip
# Registered or set variables, and those of Ansible, with real values.
GIVEN = {
    "__networks_plan": {"sriov_config": {"resourceList": [{"resourceName": "", "selectors": {"pfNames": [""]}}]}},
    "__networks_used_images": dict.fromkeys(
        ("nv-ipam", "whereabouts", "ipoib-cni", "sriov-cni", "ib-sriov-cni", "sriov-device-plugin"), ""
    ),
    "__node_ready_node": {"contents": {"/proc/sys/kernel/hostname": ""}},
    "__device_plugin_mine": {"links_up": True, "config": {}},
    "__device_plugin_node": "",
    "__k3s_mine": {"name": "node1"},
    "shared": {"interface": "eth1", "node_ip": "192.0.2.1", "address": "192.0.2.9", "peers": ["192.0.2.2"]},
    "__discovery_planned": {"hosts": {"node1": {"name": ""}, "node2": {"name": ""}}},
    "ansible_facts": {"rdma": {"hcas": [{"name": "", "kind": "pci"}], "rails": []}},
    "groups": {"all": ["node1", "node2"], "gpu_nodes": ["node1", "node2"], "k3s_servers": ["node1"]},
    "__common_nodes": ["node1", "node2"],
    "__common_servers": ["node1"],
    "inventory_hostname": "node1",
    "component": "sriov-cni",
}
# Checked earlier: names of hosts and components, addresses of the shared address' plan.
CHECKED = ("__common_nodes", "__common_servers", "__device_plugin_mine", "__k3s_mine", "component", "groups")
CHECKED += ("inventory_hostname", "shared")
PLANTABLE = set(GIVEN) - set(CHECKED)
# Variables that decide which parts exist.
CHOSEN = {"networks_components": list(GIVEN["__networks_used_images"]), "k3s_node_features_by_nfd": True}
# Derived from its value, so it takes no other text.
PLAIN = {"limits_memlock": {"a": "1G", "b": "2G"}}
ALTERNATIVES = {"device_plugin_use_cdi": True, "flannel_health_port": 8090}


@functools.cache
def options() -> dict:
    from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as documented

    return documented.options()


def texts(roles: pathlib.Path = ROLES) -> list[tuple[str, str]]:
    """(role, template file or variable of the role) of all rendered texts."""
    found = [(path.parents[1].name, path.name) for path in sorted(roles.glob("*/templates/*.j2"))]
    for path in sorted(roles.glob("*/vars/main.yml")):
        for name, value in (yaml.safe_load(path.read_text()) or {}).items():
            if isinstance(value, list) and any(isinstance(item, dict) and "content" in item for item in value):
                found.append((path.parents[1].name, name))
    return found


def source(role: str, name: str) -> str:
    own = role_vars(role)
    return json.dumps(own[name]) if name in own else (ROLES / role / "templates" / name).read_text()


@functools.cache
def role_vars(role: str) -> dict:
    path = ROLES / role / "vars/main.yml"
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def taken(role: str, name: str) -> set:
    """Names of options and of GIVEN that a text uses, directly or through the role's vars, templates and lookups."""
    own, known, found, seen = role_vars(role), set(options()) | set(GIVEN), set(), set()
    pending = [source(role, name)]
    while pending:
        text = pending.pop()
        local = set(re.findall(r"{%-? *(?:set|for) (\w+)", text))
        for word in set(re.findall(r"\b[a-zA-Z_]\w*", text)) - seen - local:
            seen.add(word)
            if word in GIVEN and word not in own:
                found.add(word)
            elif word in own:
                found |= {word} & set(GIVEN)
                pending.append(json.dumps(own[word]))
            elif word in known:
                found.add(word)
            elif word.startswith("__") and f"'{word}'" not in text and word != "__discovery_read":
                raise SystemExit(f"{role} {name} takes {word}, and rendering.py has no value for it")
    return found


def plantable(option: dict) -> bool:
    """Options of free text: invalid choices, numbers and booleans are refused earlier."""
    return option["type"] in ("str", "path", "list", "dict") and not option.get("choices")


def with_texts(value, text):
    """The same structure with this instead of each text."""
    if isinstance(value, dict):
        return {key: with_texts(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, text) for item in value]
    return (text if value != "pci" else value) if isinstance(value, str) else value


def planted(name: str, text: str):
    """The value of a variable with this text in it."""
    if name in GIVEN:
        return with_texts(copy.deepcopy(GIVEN[name]), text)
    kind = options()[name]["type"]
    return [text] if kind == "list" else {"key": text} if kind == "dict" else text


class Refused(Exception):
    pass


@functools.cache
def of_role(role: str) -> dict:
    """Defaults and variables of a role, as Ansible loads them."""
    from ansible.parsing.dataloader import DataLoader

    paths = [ROLES / folder / "main.yml" for folder in ("common/defaults", f"{role}/defaults", f"{role}/vars")]
    loaded = [DataLoader().load_from_file(str(path), trusted_as_template=True) for path in paths if path.exists()]
    return {name: value for variables in loaded for name, value in (variables or {}).items()}


def variables(*roles: str, **values) -> dict:
    """Variables of these roles, of GIVEN and of the plan that reads the options; `values` come first."""
    found = {name: value for role in roles for name, value in of_role(role).items()}
    found.update(copy.deepcopy({key: value for key, value in GIVEN.items() if key not in values}))
    found.update({**CHOSEN, **values})
    documented = {name: option.get("default") for name, option in options().items()}
    known = {name: value for name, value in found.items() if name in documented}
    found["__discovery_read"] = {"variables": {**documented, **known}}
    return found


def template(expression: str, values: dict):
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    return Templar(loader=DataLoader(), variables=values).template(trust_as_template(expression))


def render(role: str, name: str, values: dict):
    from ansible.errors import AnsibleError

    home = str(ROLES / role)
    places = {"ansible_play_hosts": ["node1", "node2"], "role_path": home, "ansible_search_path": [home]}
    expression = f"lookup('ansible.builtin.template', '{name}')" if name.endswith(".j2") else name
    try:
        return template(f"{{{{ {expression} }}}}", variables(role, **places, **values))
    except AnsibleError as error:
        raise Refused(str(error)) from error


def parsed(name: str, made):
    if not name.endswith(".j2"):
        return [{"path": item["path"], "content": parsed(item["path"] + ".j2", item["content"])} for item in made]
    kind = name.removesuffix(".j2").rpartition(".")[2]
    if kind == "yml":
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return [unfolded(item) for item in yaml.load_all(str(made), loader)]
    if kind in ("json", "conflist"):
        return json.loads(made)
    if kind == "service":
        configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=False).read_string(made)
    return made.splitlines()


def unfolded(value):
    """JSON texts as their parsed values."""
    if isinstance(value, dict):
        return {key: unfolded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unfolded(item) for item in value]
    if isinstance(value, str) and value[:1] in "{[" and value:
        try:
            return {"json": json.loads(value)}
        except ValueError:
            return value
    return value


# --- the objects of a cluster -----------------------------------------------------------------------------------------

# Includes the templates of the chosen components, which are rendered one by one.
GATHERED = ("networks", "components.yml.j2")
ALIKE = ("sriov-cni", "ib-sriov-cni", "ipoib-cni")
PLUGIN = ROOT / "device_plugin/deploy"
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "Job", "CronJob", "Pod")


def of_template(role: str, name: str, values: dict | None = None) -> list[dict]:
    """The objects of one template, with the defaults and variables of all roles."""
    known = {
        "__node_ready_hosts": ["node1"],
        "__discovery_planned": {"hosts": {"node1": {"name": "node1"}}},
        "__networks_used_images": role_vars("networks")["__networks_pinned_images"],
        **(values or {}),
    }
    roles = [path.name for path in sorted(ROLES.iterdir())]
    made = template((ROLES / role / "templates" / name).read_text(), variables(*roles, **known))
    return [item for item in yaml.safe_load_all(made) if item]


def by_source() -> dict[str, list[dict]]:
    """{path below the repository: its objects}: the roles' templates and the device plugin's files."""
    found = {}
    for role, name in texts():
        if name.endswith(".yml.j2") and (role, name) != GATHERED:
            parts = ALIKE if (role, name) == ("networks", "cni.yml.j2") else ("",)
            objects = [item for component in parts for item in of_template(role, name, {"component": component})]
            found[f"roles/{role}/templates/{name}"] = objects
    for path in sorted(PLUGIN.rglob("*.yaml")):
        items = [item for item in yaml.safe_load_all(path.read_text()) if item]
        patches = [entry["patch"] for item in items for entry in item.get("patches") or () if "patch" in entry]
        items += [made for text in patches for made in [yaml.safe_load(text)] if isinstance(made, dict)]
        found[str(path.relative_to(ROOT))] = items
    return found


def pod_of(item: dict) -> dict:
    spec = item["spec"]
    if item["kind"] == "Pod":
        return spec
    return (spec["jobTemplate"]["spec"] if item["kind"] == "CronJob" else spec)["template"]["spec"]


def workloads() -> dict[str, dict]:
    """{Kind namespace/name: object} of all objects that run pods."""
    found = {}
    for items in by_source().values():
        for item in items:
            if item.get("kind") in WORKLOADS and "containers" in pod_of(item):
                meta = item["metadata"]
                found[f"{item['kind']} {meta['namespace']}/{meta['name']}"] = copy.deepcopy(item)
    return found


def tolerates(pod: dict, taint: dict) -> bool:
    """Like the scheduler: taint {key, value, effect}."""
    return any(
        (one.get("effect") or taint["effect"]) == taint["effect"]
        and (
            (one.get("operator") == "Exists" and one.get("key") in (None, taint["key"]))
            or (one.get("key"), one.get("value", "")) == (taint["key"], taint["value"])
        )
        for one in pod.get("tolerations") or ()
    )


# --- the comparison ---------------------------------------------------------------------------------------------------

HASH = re.compile(r"[0-9a-f]{64}")


def differences(first, second, third, plain, hostile, place="$"):
    """Where the third differs from the first although the second does not, or in structure, or not by the value."""
    if isinstance(first, dict) and isinstance(third, dict):
        if list(first) != list(third):
            return [f"{place}: keys {list(first)} are {list(third)}"]
        pairs = [(f"{place}.{key}", first[key], second[key], third[key]) for key in first]
    elif isinstance(first, list) and isinstance(third, list):
        if len(first) != len(third):
            return [f"{place}: {len(first)} items are {len(third)}"]
        pairs = [(f"{place}[{index}]", *items) for index, items in enumerate(zip(first, second, third))]
        if first[:1] in (["sh"], ["/bin/sh"]) and first[:3] != second[:3]:
            return [f"{place}: a value is part of a script: {second}"]
    else:
        if type(first) is not type(third):
            return [f"{place}: {first!r} is {third!r}"]
        if first == second:
            return [] if first == third else [f"{place}: {first!r} is {third!r}"]
        expected = filled = str(first)
        for old, new in zip(plain, hostile):
            expected, filled = (
                expected.replace(old, new),
                filled.replace(old, os.path.expanduser(os.path.expandvars(new))),
            )
        # Names are trimmed and in lower case; Ansible expands paths.
        forms = (expected, expected.strip(), expected.strip().lower(), filled)
        same = str(third) in forms or HASH.fullmatch(str(third))
        # An address is split at its last colon.
        part = any(str(third) in (value, value.rpartition(":")[0], value.rpartition(":")[2]) for value in hostile)
        return [] if same or part else [f"{place}: wanted {expected!r}, is {third!r}"]
    return [fault for item in pairs for fault in differences(*item[1:], plain, hostile, item[0])]


def look(role: str, name: str, more: dict) -> dict:
    """Values planted, refused, and faults of one text."""
    known = options()
    names = sorted(
        word for word in taken(role, name) if word in PLANTABLE or (word in known and plantable(known[word]))
    )

    def plain(letter):
        """{variable: a unique text}"""
        made = {word: f"/{letter}-{place}-plain:{letter}{place}" for place, word in enumerate(names)}
        return {word: PLAIN.get(word, {}).get(letter, own) for word, own in made.items()}

    def values(letter):
        return {**more, **{word: planted(word, own) for word, own in plain(letter).items()}}

    marks = list(plain("a").values())
    outcome = {"values": 0, "refused": 0, "faults": []}

    def one(chosen, text):
        """Whether it is correct with this text in the chosen variables; None if it was refused."""
        own = {word: planted(word, text) for word in chosen}
        try:
            third = render(role, name, {**values("a"), **own})
        except Refused:
            return None
        hostile = [text if word in chosen else mark for word, mark in zip(names, marks)]
        try:
            return differences(first, second, parsed(name, third), marks, hostile)
        except (yaml.YAMLError, ValueError, configparser.Error) as error:
            return [f"not to be parsed: {' '.join(str(error).split())[:200]}"]

    first, second = (parsed(name, render(role, name, values(letter))) for letter in "ab")
    for text in HOSTILE:
        groups = [names] if names else []
        while groups:
            chosen = groups.pop()
            faults = one(chosen, text)
            if faults is None and len(chosen) > 1:
                groups += [[word] for word in chosen]
                continue
            outcome["values"] += len(chosen)
            outcome["refused"] += faults is None
            outcome["faults"] += [
                f"{role} {name} with {text[:40]!r} in {', '.join(chosen)}: {fault}" for fault in faults or ()
            ]
    return outcome


def compile_once() -> None:
    """Each rendering has its own Jinja environment for the same few sources, so the compiled ones are shared."""
    import jinja2

    by_jinja, compiled = jinja2.Environment.compile, {}

    def once(self, source, *rest):
        key = (source, self.trim_blocks, self.lstrip_blocks, self.keep_trailing_newline, *rest)
        if key not in compiled:
            compiled[key] = by_jinja(self, source, *rest)
        return compiled[key]

    jinja2.Environment.compile = once


def main() -> None:
    os.environ.setdefault("ANSIBLE_LOCALHOST_WARNING", "false")
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    compile_once()
    told: dict = {"texts": {}, "faults": []}
    for role, name in texts():
        variants = [{}] + [{key: value} for key, value in ALTERNATIVES.items() if key in taken(role, name)]
        for more in variants:
            found = look(role, name, more)
            told["faults"] += found.pop("faults")
            key = " ".join([role, name, *more])
            told["texts"][key] = found
    json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
