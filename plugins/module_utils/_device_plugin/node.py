"""The device plugin as a service on a node: reads its state, applies the plan of _device_plugin.plan."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from typing import IO, Callable

from .._core.change import Change, Refused
from .._core.files import apply_file, remove_tree, rename, replacing, seen_file, sha256_of, under, write
from .._core.units import apply_units, running, started_at
from ..hca import Tree
from ..hca.netns import unit_of
from .ask import DRIVERS, ask_all
from .config import DRA, PLUGIN, api_of, keys
from .config import names as resource_names
from .dra import DRIVER
from .plan import (
    CODE,
    CODE_SUM,
    CONFIG,
    ENABLED,
    GO,
    HOME,
    KUBECONFIG,
    NAME,
    OBJECT,
    OURS,
    SERVICE,
    STAMP,
    TOKEN,
    UNIT,
    VENV,
)
from .wheels import PIP, stamp, without

KUBELET = "/var/lib/kubelet"
# Fixed in the kubelet, independent of its --root-dir.
DEVICE_PLUGINS = f"{KUBELET}/device-plugins"
PROGRAM = "k8s-rdma-shared-dp"
UPSTREAM_CONFIG = "/k8s-rdma-shared-dev-plugin/config.json"
_SHOWN = ("ActiveState", "SubState", "MainPID", "NeedDaemonReload", "ExecMainStartTimestampMonotonic", "StatusText")


# Options of the module device_plugin.
ARGUMENTS = {
    "state": {"type": "str", "choices": ["present", "absent", "sole"], "default": "present"},
    "config": {"type": "str"},
    "unit": {"type": "str"},
    "wheel_dir": {"type": "str", "default": ""},
    "kubelet_root": {"type": "str", "default": "/var/lib/kubelet"},
    "api": {"type": "str", "choices": ["device-plugin", "dra", "both"], "default": "device-plugin"},
    "api_server": {
        "type": "dict",
        "options": {
            "kubeconfig": {"type": "path", "required": True},
            "server": {"type": "str", "default": ""},
        },
    },
    "migrate_allowed": {"type": "bool"},
    "replaced": {"type": "str", "default": ""},
    "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
    "timeout_seconds": {"type": "int", "default": 120},
    "code_sha256": {"type": "str"},
    "wheels": {"type": "list", "elements": "dict", "default": []},
    "staged": {"type": "str"},
    "root": {"type": "path", "default": "/"},
}


def read(root: str, kubeconfigs: Iterable[str] = ()) -> dict:
    """The state of the node.

    kubeconfigs: of kubelets; `clusters` has the API server of each (server, and its CA as a path or as data) or
    None; kubeconfig: {content, mode} or None; token: the same, without the token.

    code: sha256 of the sources, None if they are missing or incomplete; stamp: packages of the environment, "" for
    none; config, unit: {content, mode} or None;
    enabled, home: whether they exist; service: None without systemd, else state, active, main_pid, stale (files were
    replaced since its start), status; rivals: see _rivals; python, machine, ensurepip: for the choice of wheels and
    environment.
    """
    tree, service = Tree(root), _service() if running(root) else None
    return {
        "code": _installed_code(tree),
        "stamp": (seen_file(tree, STAMP) or {"content": ""})["content"],
        "config": seen_file(tree, CONFIG),
        "unit": seen_file(tree, UNIT),
        "kubeconfig": seen_file(tree, KUBECONFIG),
        "token": {"content": "a token", "mode": ""} if os.path.lexists(under(root, TOKEN)) else None,
        "clusters": {path: _cluster(tree.read(path) or "") for path in kubeconfigs},
        "enabled": os.path.lexists(under(root, ENABLED)),
        "home": tree.isdir(HOME),
        "service": service,
        "rivals": _rivals(tree, service["main_pid"] if service else 0),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "machine": platform.machine(),
        "ensurepip": importlib.util.find_spec("ensurepip") is not None,
    }


def read_for(root: str, params: dict) -> dict:
    """The state that these module options need."""
    return read(root, [params["api_server"]["kubeconfig"]] if params["api_server"] else [])


def wants(params: dict, state: dict) -> dict:
    """The wanted state for the planner, from options of the module and the state."""
    if params["state"] == "absent":
        return {"present": False, "names": []}
    api = params["api_server"]
    return {
        "present": True,
        "code": params["code_sha256"],
        "stamp": stamp(params["wheels"], state["python"]),
        "config": params["config"],
        "unit": params["unit"],
        "names": resource_names(json.loads(params["config"])["configList"]),
        "wheels_missing": without(params["wheels"], state["python"], state["machine"]),
        "from_index": not params["wheel_dir"],
        "migrate_allowed": params["migrate_allowed"],
        "kubeconfig": api and {"source": api["kubeconfig"], "server": api["server"]},
        "directories": [
            "/var/lib/kubelet",
            params["kubelet_root"],
            f"{params['kubelet_root']}/plugins_registry",
            *([f"{params['kubelet_root']}/plugins/{DRIVER}"] if api else []),
        ],
    }


def answers(root: str, kubelet_root: str = KUBELET) -> dict[str, dict] | None:
    """What the sockets of the node's device plugins answer, as ask_all returns it; empty below another root than /,
    None if only root may ask.
    """
    if root.rstrip("/"):
        return {}
    resources = served(root)
    if not resources:
        return {}
    if os.geteuid() != 0:
        return None
    return ask_all(resources, [f"{kubelet_root}/plugins_registry", DEVICE_PLUGINS])


def served(root: str) -> dict[str, str]:
    """The resources that device plugins for RDMA should serve on the node, by name, each with its server: a unit,
    ours or that of another plugin, or else a process.
    """
    found, tree = {}, Tree(root)
    for rival in _rivals(tree, 0):
        by = rival["unit"] or f"process {rival['pid']} {rival['where']}"
        found.update(dict.fromkeys(rival["names"] or (), by))
    if os.path.lexists(under(root, ENABLED)):
        found.update(dict.fromkeys(_own_resources(tree), SERVICE))
    return found


def _own_resources(tree: Tree) -> list[str]:
    """Our service's device plugin resources and its DRA driver, by the names of their sockets."""
    mode = re.search(r"^ExecStart=.*\s-mode\s+(\S+)", tree.read(UNIT) or "", re.MULTILINE)
    api = mode[1] if mode else PLUGIN
    try:
        entries = json.loads(tree.read(CONFIG) or "")["configList"]
        own = resource_names([entry for entry in entries if api_of(entry, api) == PLUGIN])
        return [*own, f"{DRIVER}{DRIVERS}"] if any(api_of(entry, api) == DRA for entry in entries) else own
    except (ValueError, KeyError, AttributeError, TypeError):
        return []


def _cluster(kubeconfig: str) -> dict | None:
    """The API server in a kubeconfig; its credentials are not read."""
    keys = "server|certificate-authority(?:-data)?"
    found = dict(re.findall(rf"^\s*-?\s*({keys}):\s*[\"']?([^\"'\s]+)[\"']?\s*$", kubeconfig, re.MULTILINE))
    return found if found.get("server", "").startswith("https://") else None


def _sha256(path: str) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None


def _installed_code(tree: Tree) -> str | None:
    """The source checksum of the code file, if it has not changed since."""
    sources, _space, made = (tree.read(CODE_SUM) or "").partition(" ")
    return sources if made and made == _sha256(under(tree.root, CODE)) else None


# --- the service -----------------------------------------------------------------------------------------------------


def _service() -> dict:
    shown = _show(SERVICE)
    state = shown.get("ActiveState", "unknown")
    start = started_at(shown)
    replaced = [path for path in (CODE, STAMP, UNIT) if _changed_after(path, start)]
    return {
        "state": f"{state} ({shown.get('SubState', '')})",
        # A service in a restart loop is not up: between two attempts its state is activating.
        "active": state in ("active", "reloading"),
        "main_pid": int(shown.get("MainPID") or 0),
        "stale": bool(replaced) or shown.get("NeedDaemonReload") == "yes",
        "status": shown.get("StatusText", ""),
    }


def _show(unit: str) -> dict[str, str]:
    command = ["systemctl", "show", f"--property={','.join(_SHOWN)}", unit]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(line.partition("=")[::2] for line in answer.splitlines())


def _changed_after(path: str, moment: float) -> bool:
    try:
        return os.stat(path).st_mtime > moment
    except OSError:
        return False


# --- other plugins ---------------------------------------------------------------------------------------------------


def _rivals(tree: Tree, main_pid: int) -> list[dict]:
    """Processes of device plugins that are not our service, the Go one and copies of this one alike.

    pid, kind, program, where (words), pod (whether a kubelet runs it), unit (of systemd, or ""), config (words), names
    (of its resources, None when they cannot be read).
    """
    found = []
    for pid in sorted(int(name) for name in tree.listdir("/proc") if name.isdecimal()):
        process = f"/proc/{pid}"
        arguments = [word for word in (tree.read(f"{process}/cmdline") or "").split("\0") if word]
        program = (tree.readlink(f"{process}/exe") or "").replace(" (deleted)", "")
        if pid in (main_pid, os.getpid()) or not _is_plugin(program, arguments):
            continue
        groups = tree.read(f"{process}/cgroup") or ""
        unit = unit_of(tree, pid) or ""
        if unit == SERVICE:
            continue
        pod = "kubepods" in groups or "cri-containerd" in groups
        # A container runtime that runs the plugin must not be stopped.
        unit = unit if not pod and unit and running(tree.root) and _show(unit).get("MainPID") == str(pid) else ""
        path = _config_path(arguments)
        where = "in a pod" if pod else f"unit {unit}" if unit else "started by hand"
        found.append(
            {
                "pid": pid,
                "kind": GO if os.path.basename(program) == PROGRAM else OURS,
                "program": program or arguments[0],
                "where": where,
                "pod": pod,
                "unit": unit,
                "config": f"config {path} {where}",
                "names": _resources(
                    tree.read(f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}") or ""
                ),
            }
        )
    return found


def _is_plugin(program: str, arguments: list[str]) -> bool:
    if os.path.basename(program) == PROGRAM:
        return True
    # A script's program is its interpreter; the script is among the first arguments (-I and -B may precede it).
    words = [word for word in arguments[1:] if word not in ("-I", "-B")]
    serves = words[1:2] not in (["check-config"], ["explain"], ["-version"])
    script = words[0] if words and serves and os.path.basename(program).startswith("python") else ""
    return os.path.basename(script) == PROGRAM or script == CODE


def _config_path(arguments: list[str]) -> str:
    """The value of -config-file, in Go's syntax."""
    for position, word in enumerate(arguments):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "config-file":
            return value if equals else (arguments[position + 1 : position + 2] or [UPSTREAM_CONFIG])[0]
    return UPSTREAM_CONFIG


def _resources(text: str) -> list[str] | None:
    try:
        return [str(keys(entry)["resourcename"]) for entry in keys(json.loads(text))["configlist"]]
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


# --- applying --------------------------------------------------------------------------------------------------------


class Installer:
    """Applies the changes of a plan. run: AnsibleModule.run_command.

    staged: folder with files from the controller; wheels: {file: {name, version, sha256}} to install from it, empty to
    let pip use its own index; requirements: text for pip, with hashes.
    """

    def __init__(
        self, root: str, run: Callable, wanted: dict, staged: str | None, wheels: dict[str, dict], requirements: str
    ):
        self.root, self.run, self.wanted = root, run, wanted
        self.staged, self.wheels, self.requirements = staged or "", wheels, requirements

    def apply(self, changes: list[Change]) -> Iterable[Change]:
        """In order: other plugins stop once ours is installed, ours starts last, so the node keeps its resources."""
        files = [change for change in changes if change.object in (CONFIG, KUBECONFIG, TOKEN, UNIT, ENABLED)]
        config = [change for change in files if change.object in (CONFIG, KUBECONFIG, TOKEN)]
        for change in changes:
            if change.object in (CODE, VENV):
                (self._install_code if change.object == CODE else self._install_venv)()
                yield change
        for change in changes:
            if change.action in ("stop", "stop and disable"):
                yield self._stop(change)
        for change in config:
            apply_file(self.root, change)
            if change.action == "remove" and change.object == CONFIG:
                with contextlib.suppress(OSError):  # it holds a foreign file
                    os.rmdir(os.path.dirname(under(self.root, CONFIG)))
            yield change
        # The unit is the last file: systemd never sees one whose program or config is missing.
        starting = any(change.object == OBJECT and change.action in ("start", "restart") for change in changes)
        rest = [change for change in files if change not in config]
        yield from apply_units(self.root, rest, self.run, starting=starting)
        for change in changes:
            if change.object == OBJECT and change.action in ("start", "restart"):
                self._start(change)
                yield change
            elif change.object == HOME:
                remove_tree(self.root, HOME)
                yield change

    def _stop(self, change: Change) -> Change:
        unit = SERVICE if change.object == OBJECT else change.object.split()[1]
        words = ("stop", unit) if change.action == "stop" else ("disable", "--now", unit)
        code, out, error = self.run(["systemctl", *words])
        if code:
            step = f"stop it by hand (systemctl stop {unit}) and run again"
            raise Refused.because(f"unit {unit}", "stopped", (error or out).strip(), step)
        return change

    def _install_code(self) -> None:
        source = os.path.join(self.staged, os.path.basename(CODE))
        seen = _sha256(source)
        if seen != self.wanted["code"]:
            step = "run again; the transfer was incomplete"
            raise Refused.because(source, f"sha256 {self.wanted['code']}", str(seen), step)
        target = under(self.root, CODE)
        with replacing(target) as stream:
            _compiled(source, stream)
        write(under(self.root, CODE_SUM), f"{seen} {_sha256(target)}\n")

    def _install_venv(self) -> None:
        """Built next to the old one, then swapped: a running process keeps its open files."""
        target = under(self.root, VENV)
        fresh, old = f"{target}.new", f"{target}.old"
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        python = f"{fresh}/bin/python3"
        without_pip = ["--without-pip"] if self.wheels else []
        self._pip_step([sys.executable, "-m", "venv", *without_pip, fresh], "the virtual environment created")
        requirements = f"{fresh}/requirements.txt"
        write(requirements, self.requirements)
        command = ["install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"]
        command += ["--require-hashes", "--only-binary", ":all:", "--requirement", requirements]
        if self.wheels:
            pip = next(file for file, wheel in self.wheels.items() if wheel["name"] == PIP)
            self._verify_wheels()
            command = [f"{self.staged}/{pip}/pip", *command, "--no-index", "--find-links", self.staged]
        else:
            command = ["-m", "pip", *command]
        self._pip_step([python, *command], "the locked packages installed")
        self._pip_step(
            [python, "-I", "-c", "import grpc, google.protobuf"], "the packages imported (libstdc++ is there)"
        )
        write(f"{fresh}/{os.path.basename(STAMP)}", self.wanted["stamp"])
        if os.path.isdir(target):
            rename(target, old)
        rename(fresh, target)
        shutil.rmtree(old, ignore_errors=True)

    def _verify_wheels(self) -> None:
        """pip checks what it installs; its own wheel runs before that, so it is checked here."""
        for file, wheel in self.wheels.items():
            seen = _sha256(f"{self.staged}/{file}")
            if seen != wheel["sha256"]:
                raise Refused.because(file, f"sha256 {wheel['sha256']}", str(seen), "fetch the wheel again")

    def _pip_step(self, command: list[str], wanted: str) -> None:
        code, out, error = self.run(command, environ_update={"PYTHONDONTWRITEBYTECODE": ""})
        if code:
            said = (error or out).strip().splitlines()[-6:]
            raise Refused.because(
                VENV, wanted, " | ".join(said) or f"exit status {code}", f"run by hand: {' '.join(command)}"
            )

    def _start(self, change: Change) -> None:
        for folder in self.wanted["directories"]:
            os.makedirs(folder, mode=0o750, exist_ok=True)
        code, out, error = self.run(["systemctl", "restart", SERVICE])
        if code:
            _code, journal, _error = self.run(["journalctl", "--no-pager", "--output=cat", "-n", "12", "-u", SERVICE])
            seen = " | ".join([(error or out).strip(), *journal.strip().splitlines()[-6:]])
            raise Refused.because(OBJECT, "active", seen, f"check journalctl -u {NAME} and run again")


def _compiled(source: str, target: IO[bytes]) -> None:
    """The archive with this Python's byte code next to each source: Python caches none for an archive, and compiling
    dominates the start time. Another Python ignores the byte code and reads the source.
    """
    with tempfile.TemporaryDirectory(prefix="rdma-device-plugin-") as scratch:
        with zipfile.ZipFile(source) as archive:
            archive.extractall(scratch)
            members = archive.infolist()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for member in members:
                path = os.path.join(scratch, member.filename)
                with open(path, "rb") as file:
                    archive.writestr(member, file.read())
                if not member.filename.endswith(".py"):
                    continue
                shown = f"{CODE}/{member.filename}"
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                py_compile.compile(path, path + "c", shown, doraise=True, invalidation_mode=mode)
                with open(path + "c", "rb") as file:
                    archive.writestr(zipfile.ZipInfo(member.filename + "c", member.date_time), file.read())
