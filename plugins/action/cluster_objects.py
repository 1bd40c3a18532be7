"""Controller side of gpufabric.rdma.cluster_objects: answers `render` and `folder` here, the module does the rest."""

import pathlib

from ansible.module_utils.common.validation import check_type_path
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, Refused, result
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import objects as planner
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops import folder as git_folder

MODULE = "gpufabric.rdma.cluster_objects"
# What another task needs to do this owner's work.
PART = ("objects", "owner", "prune_types", "takeover_allowed", "applied_by", "wait")


class ActionModule(ActionBase):
    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        if "folder" in args:
            types = {"folder": "path", "rendered": "dict"}
            spec = {name: {"type": kind, "required": True} for name, kind in types.items()}
            _validation, args = self.validate_argument_spec(argument_spec=spec)
            return written(pathlib.Path(args["folder"]).absolute(), args["rendered"], self._task.check_mode)
        if "bundle" in args:
            args["objects"] = by_digest(args["objects"], args.pop("bundle"))
        if not boolean(args.pop("render", False)):
            return self._execute_module(MODULE, module_args=args, task_vars=task_vars)
        return render(args)


def by_digest(objects: list[dict], bundle: str | None) -> list[dict]:
    """The objects with the lock's digest of each image that a node has to pull."""
    described = folder.described(check_type_path(bundle or ""))
    return folder.by_digest(objects, folder.lock(), described)


def written(path: pathlib.Path, rendered: dict, check_mode: bool) -> dict:
    made, changes = git_folder.converge(path, rendered, check_mode)
    return {"warnings": terminal.warnings(made.notes), **result(made, changes)}


def render(args: dict) -> dict:
    (part,), findings = planner.prepare([args])
    if findings:
        raise Refused(findings)
    kept = {name: args[name] for name in PART if name in args}
    rendered = [item for stage in planner.stages(part["wanted"]) for item in stage]
    return {"part": kept, "rendered": rendered, **result(Plan(), [])}
