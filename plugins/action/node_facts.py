"""Controller side of the modules that run on nodes, see meta/runtime.yml: guarded, and sends what a node lacks."""

import pathlib
import tempfile

from ansible.plugins.action import ActionBase
from ansible.plugins.action.normal import ActionModule as Normal
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import plugins
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import cni, device_plugin
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import addresses
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded

# Modules that return the names of files that they need; their options say what they may get.
SUPPLIED = {
    "cni_plugins": (cni.supply, plugins.ARGUMENTS),
    "device_plugin": (device_plugin.supply, node.ARGUMENTS),
}


class ActionModule(Normal):
    @guarded
    def run(self, tmp=None, task_vars=None):
        name = self._task.action.rpartition(".")[2]
        if name not in SUPPLIED:
            result = super().run(tmp, task_vars)
            wrong = addresses.malformed(result) if name in ("node_facts", "hca_facts") else None
            if wrong:
                raise Refused.because(
                    "the node", "addresses and networks as its own", wrong, "check which host answers there"
                )
            return result
        ActionBase.run(self, tmp, task_vars)
        supply, spec = SUPPLIED[name]
        _validation, given = self.validate_argument_spec(argument_spec=spec)
        supplied = supply(given)
        args = {**self._task.args, **supplied.options, "staged": None}
        result = self._execute_module(module_args=args, task_vars=task_vars)
        needs = result.get("needs")
        if not needs or result.get("failed") or self._task.check_mode:
            return result
        unknown = {*needs} - {*supplied.files}
        if unknown:
            seen = clean(str(sorted(unknown)))[:300]
            raise Refused.because("the node", "names of files that it may get", seen, "check which host answers there")
        return self._sent(supplied.packed({need: supplied.files[need] for need in needs}), args, task_vars)

    def _sent(self, contents, args, task_vars):
        """The result once these files (bytes, or the path of each) are in a folder of the node."""
        staged = self._make_tmp_path()
        with tempfile.TemporaryDirectory(prefix="gpufabric-") as scratch:
            try:
                remote = [self._connection._shell.join_path(staged, name) for name in contents]
                for content, path in zip(contents.values(), remote):
                    source = pathlib.Path(scratch, "sent") if isinstance(content, bytes) else content
                    if isinstance(content, bytes):
                        files.write(str(source), content)
                    self._transfer_file(str(source), path)
                # The connection's user need not be the one that the module runs as.
                self._fixup_perms2([staged, *remote])
                return self._execute_module(module_args={**args, "staged": staged}, task_vars=task_vars)
            finally:
                self._remove_tmp_path(staged)
