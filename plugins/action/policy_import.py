"""Controller side of gpufabric.rdma.policy_import: reads the files; _policy.importer decides."""

import json
import os
import pathlib
import re

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, Refused, at
from ansible_collections.gpufabric.rdma.plugins.modules import policy_import as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._policy import importer, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables

ROLES = pathlib.Path(__file__).resolve().parents[2] / "roles"
HEADER, MARK = "---\n# Made by gpufabric.rdma.import_policy from ", "gpufabric.rdma.import_policy"
# The roles whose variables an import writes.
WRITTEN = ("device_plugin", "driver", "networks")


class ActionModule(ActionBase):
    _requires_connection = False

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=options(documented.DOCUMENTATION))
        documents, findings = _read(args["files"])
        # Plain texts: YAML cannot write those that Ansible has tagged.
        nodes = json.loads(json.dumps([node for node in args["nodes"] if node.get("facts")]))
        pinned = yaml.safe_load((ROLES / "networks/vars/main.yml").read_text(encoding="utf-8"))
        made = importer.run(documents, nodes, pinned["__networks_pinned_images"], folder.lock())
        findings += made["findings"] or ([] if findings else _refused(made))
        explanation = page.explanation(made["lines"])
        unread = [node["host"] for node in args["nodes"] if not node.get("facts")]
        if unread or not nodes:
            who = f"{core_text.names(unread)} could not be read" if unread else "no node was read"
            explanation += f"\n\nnot verified: {who}, so interfaces and drivers there were not compared with the files"
        terminal.show(f"{explanation}\n")
        variables = {**made["variables"], **({"groups": made["groups"]} if made["groups"] else {})}
        result = {"changed": False, "variables": variables, "lines": made["lines"], "explanation": explanation}
        if findings:
            findings = at("import", findings)
            count = core_text.count(len(findings), "problem")
            terminal.show(f"{count} with the files:\n\n{core_text.four_facts(findings)}\n")
            listed = "; ".join(f"{item['object']}: {item['seen']}" for item in findings)
            return {**result, "failed": True, "findings": findings, "msg": f"{count}, nothing is written: {listed}"}
        names = [pathlib.Path(path).name for path in args["files"]]
        parts = {"": made["variables"], **{group: one["variables"] for group, one in made["groups"].items()}}
        dest, texts = args["dest"], []
        base = _group_vars(task_vars.get("ansible_inventory_sources") or [])
        for group, one in parts.items():
            if dest:
                path = pathlib.Path(os.path.abspath(dest))
                path = path.parents[1] / group / path.name if group else path
            else:
                path = _place(base, group or "gpu_nodes")
            findings += _twice(path, one)
            if one or not _shared(path):
                texts.append({"group": group, "text": text(one, names), "dest": str(path), "block": _shared(path)})
        if findings:
            raise Refused(findings)
        terminal.show(f"variables for {', '.join(one['dest'] for one in texts)}\n")
        return {**result, "text": text(made["variables"], names), "texts": texts}


def _group_vars(sources: list[str]) -> pathlib.Path:
    """Where Ansible reads variables of the inventory's groups: next to its file, in its folder, else where it runs."""
    for path in map(pathlib.Path, map(os.path.abspath, sources)):
        if path.exists():
            return (path if path.is_dir() else path.parent) / "group_vars"
    return pathlib.Path("group_vars").absolute()


def _place(group_vars: pathlib.Path, group: str) -> pathlib.Path:
    """The group's file if there is one, because a folder of the group would hide it; else a file in its folder."""
    folder = group_vars / group
    files = [] if folder.is_dir() else [path for path in _files(folder) if path.is_file()]
    return files[0] if files else folder / "policy.yml"


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Files that a group may have instead of this folder."""
    return [folder.with_name(f"{folder.name}{end}") for end in ("", ".yml", ".yaml", ".json")]


def _shared(path: pathlib.Path) -> bool:
    """Whether the file has variables of the user, too: then the import is a block of it."""
    return path.is_file() and not path.read_text(errors="replace").startswith(HEADER)


def _twice(path: pathlib.Path, variables: dict) -> list[Finding]:
    """What would hide the user's variables, or be set twice."""
    hidden = [file for file in _files(path.parent) if file.is_file()]
    if hidden and not path.parent.is_dir():
        step = "leave policy_dest out, and the import becomes a block of that file"
        return [Finding(f"policy_dest {path}", f"a path that leaves {hidden[0]} in effect", "its folder", step)]
    if files.is_special(str(path)):
        step = "name a file, such as group_vars/gpu_nodes/policy.yml"
        return [Finding(f"policy_dest {path}", "a file", "a folder, a device or a pipe", step)]
    if not _shared(path):
        return []
    own = re.sub(rf"^# BEGIN {MARK}$.*?^# END {MARK}$", "", path.read_text(errors="replace"), flags=re.M | re.S)
    if re.match(r"\s*(---\s*)?(\{|\$ANSIBLE_VAULT)", own):
        step = f"cd {path.parent} && mkdir {path.stem} && mv {path.name} {path.stem}/, then import again"
        seen = "one that is encrypted (ansible-vault) or JSON"
        return [Finding(f"{path}", "a file that takes a block of variables at its end", seen, step)]
    return [
        Finding(f"variable {name}", "set in one place", f"{path} sets it too", "remove it there and import again")
        for name in variables
        if re.search(rf"^{re.escape(name)}\s*:", own, re.M)
    ]


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key; YAML would silently keep the last one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _value in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(twice)} is a duplicate key", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _read(paths):
    documents, findings = [], []
    for path in paths:
        try:
            content = pathlib.Path(path).read_text(encoding="utf-8")
            found = list(yaml.load_all(content, Loader=_Loader))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            step = "correct the line in the message"
            findings.append(Finding(path, "a file that holds YAML", " ".join(str(error).split()), step))
            continue
        name = pathlib.Path(path).name
        for number, content in enumerate(found, 1):
            source = name if len(found) == 1 else f"{name}, document {number}"
            documents.append({"source": source, "content": content})
    return documents, findings


def _refused(made):
    """What the roles themselves would refuse in the result, for each group of nodes."""
    found = []
    for group in [{}, *(one["variables"] for one in made["groups"].values())]:
        options_of = preflight_variables.options(WRITTEN)
        effective, findings = host.validate(options_of, {**made["variables"], **group})
        findings += host.values(effective, options_of)
        found += findings or networks.plan(effective, [])["findings"]
    return list(dict.fromkeys(found))


class _Dumper(yaml.SafeDumper):
    """Tags what Ansible would take for an expression: a foreign file holds data, never templates."""

    def represent_str(self, data):
        if page.template(data):
            return self.represent_scalar("!unsafe", data, style="'")
        return super().represent_str(data)


_Dumper.add_representer(str, _Dumper.represent_str)


def text(variables: dict, sources: list[str]) -> str:
    made = yaml.dump(variables, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120)
    return f"{HEADER}{', '.join(sources)}.\n{made}"
