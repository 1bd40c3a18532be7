"""Controller side of gpufabric.rdma.cni_plugins: extracts the programs from the bundle, sends what the node lacks."""

from __future__ import annotations

import os
import tempfile

import yaml
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, Refused, failure
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import cni
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded

MODULE = "gpufabric.rdma.cni_plugins"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False  # only once the node has reported what it lacks
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "bundle": {"type": "path", "required": True},
                "names": {"type": "list", "elements": "str", "required": True},
                "machine": {"type": "str", "required": True},
                "directory": {"type": "path", "default": "/opt/cni/bin"},
                "root": {"type": "path", "default": "/"},
            },
        )
        bundle, findings = _load(args["bundle"])
        programs = {}
        if not findings:
            programs, findings = cni.choose(bundle, args["bundle"], args["names"], args["machine"])
        if findings:
            return {"failed": True, **failure(Refused(findings))}
        call = {
            "binaries": cni.wanted(programs),
            "directory": args["directory"],
            "root": args["root"],
        }
        result = self._execute_module(MODULE, module_args=call, task_vars=task_vars)
        if not result.get("needed") or self._task.check_mode or result.get("failed"):
            return result
        call["archive"] = self._send({name: programs[name] for name in result["needed"]})
        return self._execute_module(MODULE, module_args=call, task_vars=task_vars)

    def _send(self, programs) -> str:
        """Path on the node of an archive with these programs."""
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "cni-plugins.tar.gz")
        with tempfile.TemporaryDirectory(prefix="gpufabric-") as scratch:
            local = os.path.join(scratch, "cni-plugins.tar.gz")
            files.write(local, cni.packed(programs))
            self._transfer_file(local, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote


def _load(directory: str):
    path = os.path.join(directory, bundle_folder.DESCRIPTION)
    try:
        with open(path, "rb") as stream:
            return yaml_load(stream), []
    except (OSError, yaml.YAMLError) as error:
        step = "set k3s_bundle_dir to a folder that playbooks/bundle.yml has filled"
        return None, [Finding(path, "the list of a bundle's files", " ".join(str(error).split()), step)]
