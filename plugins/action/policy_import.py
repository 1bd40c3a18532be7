"""Controller side of gpufabric.rdma.policy_import: reads the files; _policy.importer decides."""

from __future__ import annotations

import pathlib

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.modules import policy_import as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._policy import importer, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables

ROLES = pathlib.Path(__file__).resolve().parents[2] / "roles"
# Whose variables an import writes.
WRITTEN = ("device_plugin", "driver", "networks")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=options(documented.DOCUMENTATION))
        documents, findings = _read(args["files"])
        nodes = [node for node in args["nodes"] if node.get("facts")]
        pinned = yaml.safe_load((ROLES / "networks/vars/main.yml").read_text(encoding="utf-8"))
        made = importer.run(documents, nodes, pinned["__networks_pinned_images"])
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
        parts = {"": text(made["variables"], names)}
        parts.update({group: text(one["variables"], names) for group, one in made["groups"].items()})
        return {**result, "text": parts[""], "texts": [{"group": name, "text": one} for name, one in parts.items()]}


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
            step = "correct the line that the message names"
            findings.append(Finding(path, "a file that holds YAML", " ".join(str(error).split()), step))
            continue
        name = pathlib.Path(path).name
        for number, content in enumerate(found, 1):
            source = name if len(found) == 1 else f"{name}, document {number}"
            documents.append({"source": source, "content": content})
    return documents, findings


def _refused(made):
    """What the roles themselves would refuse of the result, for each group of nodes."""
    found = []
    for group in [{}, *(one["variables"] for one in made["groups"].values())]:
        effective, findings = host.validate(preflight_variables.options(WRITTEN), {**made["variables"], **group})
        found += findings or networks.plan(effective, [])["findings"]
    return list(dict.fromkeys(found))


class _Dumper(yaml.SafeDumper):
    """Marks what Ansible would take for an expression: a foreign file holds data, never templates."""

    def represent_str(self, data):
        if page.template(data):
            return self.represent_scalar("!unsafe", data, style="'")
        return super().represent_str(data)


_Dumper.add_representer(str, _Dumper.represent_str)


def text(variables: dict, sources: list[str]) -> str:
    """The variables as a file of group_vars."""
    made = yaml.dump(variables, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120)
    return f"---\n# Made by gpufabric.rdma.import_policy from {', '.join(sources)}.\n{made}"
