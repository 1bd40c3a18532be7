"""Controller side of gpufabric.rdma.device_plugin: builds the code, checks the config, sends what the node lacks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.config import PLUGIN
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded

MODULE = "gpufabric.rdma.device_plugin"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False  # only once the node has reported what it lacks
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        for filled in ("code_sha256", "wheels", "staged"):
            args.pop(filled, None)
        if args.get("state", "present") == "absent":
            return self._call(args, task_vars)
        with tempfile.TemporaryDirectory(prefix="rdma-device-plugin-") as scratch:
            folder = pathlib.Path(scratch)
            files.write(str(folder / "plugin.pyz"), device_plugin.archive(device_plugin.COLLECTION))
            problem = check_config(folder, args.get("config") or "", args.get("api") or PLUGIN)
            if problem:
                return {"failed": True, "changed": False, "msg": problem}
            args.update(device_plugin.locked())
            result = self._call(args, task_vars)
            if not result.get("needs"):
                return result
            sources = [folder / name for name in result["needs"] if name.endswith(".pyz")]
            wheels = [pathlib.Path(args["wheel_dir"], name) for name in result["needs"] if name.endswith(".whl")]
            missing = [str(path) for path in wheels if not path.is_file()]
            if missing:
                return {"failed": True, "changed": False, "msg": missing_wheels(missing)}
            return self._send(sources + wheels, args, task_vars)

    def _call(self, args, task_vars):
        return self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars)

    def _send(self, sources, args, task_vars):
        staged = self._make_tmp_path()
        try:
            for source in sources:
                self._transfer_file(str(source), self._connection._shell.join_path(staged, source.name))
            # The connection's user need not be the one that the module runs as.
            self._fixup_perms2([staged, *(self._connection._shell.join_path(staged, one.name) for one in sources)])
            return self._execute_module(module_name=MODULE, module_args={**args, "staged": staged}, task_vars=task_vars)
        finally:
            self._remove_tmp_path(staged)


def check_config(folder: pathlib.Path, text: str, api: str = PLUGIN) -> str:
    """What the plugin that is about to be installed rejects in a config; empty if it accepts it."""
    path = folder / "config.json"
    files.write(str(path), text)
    mode = [] if api == PLUGIN else ["-mode", api]
    command = [sys.executable, "-I", "-B", str(folder / "plugin.pyz"), "check-config", "-strict", *mode, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    if not done.returncode:
        return ""
    said = [line.replace(f"{path}: ", "") for line in done.stderr.splitlines() if "warning:" not in line]
    return (
        "variable device_plugin_resources: wanted a config that the plugin accepts (check-config -strict), seen: "
        + " | ".join(said)
        + ". Next step: correct it where it is set (inventory, group_vars or -e); docs/device-plugin.md lists the keys"
    )


def missing_wheels(paths: list[str]) -> str:
    folder, program = os.path.dirname(paths[0]), device_plugin.COLLECTION / "device_plugin/fetch_wheels.py"
    return (
        f"variable device_plugin_wheel_dir: wanted {', '.join(os.path.basename(path) for path in paths)} in {folder}, "
        f"seen no such file. Next step: python3 {program} {folder} --python X.Y with "
        "the node's Python and --architecture with its processor, both named in the files"
    )
