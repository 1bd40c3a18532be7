# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line, in Go's flag syntax because that is what the manifests of the Go plugin use.

Exit codes: 0 done or stopped by a signal; 1 cannot run, or check-config found problems; 2 invalid command line.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, NoReturn, Optional

from . import __version__, log
from .config import Config, ConfigError, load

if TYPE_CHECKING:
    from . import modes
    from .lifecycle import Settings

PROGRAM = "k8s-rdma-shared-dp"
_PR_SET_THP_DISABLE = 41
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


class Flag(NamedTuple):
    """One flag. default: its type is the flag's. choices: empty for any text."""

    name: str
    default: object
    text: str
    choices: tuple[str, ...] = ()


CONFIG_FILE = Flag("config-file", "/k8s-rdma-shared-dev-plugin/config.json", "path to device plugin config file")
MODE = Flag(
    "mode",
    "device-plugin",
    "which API serves the config: device-plugin, dra, or both: entries with api dra over DRA, the others as before",
    ("device-plugin", "dra", "both"),
)
STRICT = Flag("strict", False, "refuse a config with unknown keys")
ROOT = Flag("root", "/", "read the node below this folder; explain also takes a captured host file")
VERSION_FLAGS = (Flag("v", False, "show application version"), Flag("version", False, "show application version"))
SERVE = (
    CONFIG_FILE,
    Flag("use-cdi", False, "use Container Device Interface to expose devices in containers"),
    *VERSION_FLAGS,
    STRICT,
    ROOT,
    Flag("kubelet-root", "/var/lib/kubelet", "the kubelet's --root-dir, which contains plugins_registry"),
    Flag(
        "device-plugin-dir",
        "/var/lib/kubelet/device-plugins",
        "directory of kubelet.sock; the kubelet's --root-dir does not move it",
    ),
    Flag("registration", "auto", "how to register: auto, watch or legacy", ("auto", "watch", "legacy")),
    Flag("cdi-mode", "devices", "how CDI devices are passed: devices or annotations", ("devices", "annotations")),
    Flag("cdi-dir", "/var/run/cdi", "directory for the CDI specs of this plugin"),
    Flag(
        "metrics-address",
        "",
        "host:port, or :port for every address of the node, for /metrics, /healthz and /readyz; empty for none",
    ),
    Flag("log-format", "text", "text or json", ("text", "json")),
    MODE,
    Flag("kubeconfig", "", "DRA: credential for the API server; if empty, the pod's service account"),
    Flag("node-name", "", "DRA: name of the Node object; if empty, NODE_NAME, else the host name"),
    Flag("plugins-dir", "", "DRA: the kubelet's directory for drivers; if empty, plugins below -kubelet-root"),
    Flag("claim-networks", "", "DRA: path of the networks of claims, up to the name of one; empty for none"),
    Flag("plugins-registry", "", "where plugins register; if empty, plugins_registry below -kubelet-root"),
)
CHECK_ROOT = Flag("root", "", "compare with the node below this folder, or in a captured host file; empty for none")
COMMANDS = {
    "check-config": (
        (STRICT, MODE, CHECK_ROOT),
        "check-config [-strict] [-mode M] [-root R] [FILE]: report every problem of a config file",
    ),
    "explain": ((CONFIG_FILE, STRICT, ROOT), "explain [flags]: report for each NIC and pool why it is in or out"),
}


class Usage(Exception):
    """The command line is invalid; empty text for -h."""


def parse(arguments: list[str], flags: tuple[Flag, ...]) -> tuple[dict[str, object], list[str]]:
    """Go's flag.Parse: (values, remaining words). Stops at the first word that is not a flag."""
    known = {flag.name: flag for flag in flags}
    values = {flag.name: flag.default for flag in flags}
    rest = list(arguments)
    while rest:
        word = rest[0]
        if len(word) < 2 or not word.startswith("-"):
            break
        rest.pop(0)
        if word == "--":
            break
        body = word[2:] if word.startswith("--") else word[1:]
        if not body or body[0] in "-=":
            raise Usage(f"bad flag syntax: {word}")
        name, equals, value = body.partition("=")
        flag = known.get(name)
        if flag is None:
            raise Usage("" if name in ("h", "help") else f"flag provided but not defined: -{name}")
        if isinstance(flag.default, bool):
            if equals and value not in _TRUE + _FALSE:
                raise Usage(f'invalid boolean value "{value}" for -{name}: parse error')
            values[name] = not equals or value in _TRUE
            continue
        if not equals:
            if not rest:
                raise Usage(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        if flag.choices and value not in flag.choices:
            raise Usage(f'invalid value "{value}" for flag -{name}: wanted one of {", ".join(flag.choices)}')
        values[name] = value
    return values, rest


def usage(flags: tuple[Flag, ...], command: str = "") -> str:
    lines = [f"Usage of {PROGRAM}{' ' + command if command else ''}:"]
    for flag in sorted(flags, key=lambda one: one.name):
        kind = "" if isinstance(flag.default, bool) else " string"
        default = f' (default "{flag.default}")' if flag.default and isinstance(flag.default, str) else ""
        lines += [f"  -{flag.name}{kind}", f"    \t{flag.text}{default}"]
    if not command:
        lines += ["Commands:", *(f"  {text}" for _flags, text in COMMANDS.values())]
    return "\n".join(lines) + "\n"


def version() -> str:
    """In upstream's format. The build adds commit and date."""
    try:
        from . import _build
    except ImportError:
        return f"k8s-rdma-shared-dev-plugin version:{__version__}, commit:none, date:unknown"
    return f"k8s-rdma-shared-dev-plugin version:{__version__}, commit:{_build.COMMIT}, date:{_build.DATE}"


def _out(text: str) -> None:
    """Write to stdout; ignore a closed pipe."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Python flushes again at exit and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Optional[list[str]] = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    flags = COMMANDS[command][0] if command else SERVE
    try:
        values, rest = parse(arguments[1:] if command else arguments, flags)
    except Usage as wrong:
        text = str(wrong)
        sys.stderr.write((log.printable(text) + "\n" if text else "") + usage(flags, command))
        return 2 if text else 0
    if command == "check-config":
        return report(rest[0] if rest else str(CONFIG_FILE.default), values, _checked)
    if command == "explain":
        return report(str(values["config-file"]), values, _explained)
    if values["v"] or values["version"]:
        _out(version() + "\n")
        return 0
    return serve(values, rest)


def report(path: str, values: dict[str, object], answer: Callable[..., list[str]]) -> int:
    """Exit code 0 with the lines of an answer about a config file, or 1 with one line per problem."""
    from .explain import NoCapture

    try:
        with open(path, "rb") as handle:
            config = load(handle.read(), bool(values["strict"]))
        lines = answer(config, path, values)
    except OSError as error:
        problems = [f"{error.filename or path}: {error.strerror}"]
    except ConfigError as error:
        problems = [f"{path}: {problem}" for problem in error.problems]
    except NoCapture as error:
        problems = [str(error)]
    else:
        _out("".join(log.printable(line) + "\n" for line in lines))
        return 0
    sys.stderr.write("".join(log.printable(problem) + "\n" for problem in problems))
    return 1


def _checked(config: Config, path: str, values: dict[str, object]) -> list[str]:
    """With a root, a node or a captured one, its HCAs must not be counted twice either. ConfigError."""
    from . import modes

    parts = modes.split(config, str(values["mode"]))
    problems = modes.contradictions(parts) or (_counted_twice(parts, str(values["root"])) if values["root"] else [])
    if problems:
        raise ConfigError(problems)
    for warning in (*config.warnings, *parts.warnings):
        sys.stderr.write(log.printable(f"{path}: warning: {warning}") + "\n")
    names = ", ".join(f"{pool.resource} ({pool.count})" for pool in config.pools)
    return [f"{path}: ok, every {config.interval} s: {names}"]


def _explained(config: Config, _path: str, values: dict[str, object]) -> list[str]:
    from .explain import explain

    with _node(str(values["root"])) as folder:
        return explain(config, folder)


def _counted_twice(parts: modes.Split, root: str) -> list[str]:
    from . import modes, pools
    from .hca import Tree

    wanted = pools.Wanted(pkeys=any(pool.extra.pKeys for pool in (*parts.device, *parts.dra)))
    with _node(root) as folder:
        return list(modes.overlaps(parts, pools.discover(Tree(folder), wanted)).values())


@contextlib.contextmanager
def _node(root: str) -> Iterator[str]:
    """A folder with a node's tree: root itself, or an unpacked captured host file. NoCapture, OSError."""
    import pathlib
    import tempfile

    from . import explain as explanation

    if os.path.isdir(root):
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="rdma-explain-") as folder:
        explanation.lay_out(explanation.load(root), pathlib.Path(folder).resolve())
        yield folder


def serve(values: dict[str, object], rest: list[str]) -> int:
    """Run until a signal. Exits without joining threads: a hung read would block the interpreter."""
    # The library's core reports each connection that a kubelet cuts, past our log and once per call.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # No transparent huge pages: if they are always on, a thread's stack can take 2 MiB instead of 40 KiB.
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    _one_heap()
    asyncio = _asyncio() if values["mode"] == MODE.default else importlib.import_module("asyncio")
    from . import daemon, status

    gc.freeze()  # what the imports made stays: later collections leave it out
    gc.enable()
    log.set_up(values["log-format"] == "json")
    try:
        if values["metrics-address"]:
            status.parse_address(str(values["metrics-address"]))
    except ValueError as error:
        sys.stderr.write(f"invalid value for flag -metrics-address: {error}\n" + usage(SERVE))
        return 2
    if rest:
        log.warning(f"ignored, starting with the first word that is not a flag: {' '.join(rest)}")
    # GIL slices short enough that a scan or a scrape in another thread does not make an RPC wait for 5 ms.
    sys.setswitchinterval(0.0005)
    _all_descriptors()
    try:
        asyncio.run(_serve(settings(values)))
    except daemon.Fatal as error:
        log.error(str(error))
    return _exit(1)


def _exit(code: int) -> NoReturn:
    log.flush(0.5)
    os._exit(code)


def _all_descriptors() -> None:
    """Raise the descriptor limit to the hard limit: a pool needs five, and the usual 1024 exists for select(2)."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _one_heap() -> None:
    """Let all threads allocate from one heap. grpc's ten would get one each, and each kubelet restart would leave
    buffers in a different one: 3 MB after 100 restarts then, 1 MB with one heap, which stops growing after 50.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl has no arenas
    if mallopt:
        mallopt(-8, 1)  # M_ARENA_MAX


def _asyncio() -> Any:
    """asyncio without its optional TLS: OpenSSL is 4.5 MB of memory that nothing here uses."""
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]
        try:
            return importlib.import_module("asyncio")
        finally:
            del sys.modules["ssl"]
    return importlib.import_module("asyncio")


def settings(values: dict[str, object]) -> Settings:
    from .lifecycle import Places, Settings

    kubelet = str(values["kubelet-root"]).rstrip("/")
    return Settings(
        config_file=str(values["config-file"]),
        strict=bool(values["strict"]),
        use_cdi=bool(values["use-cdi"]),
        cdi_mode=str(values["cdi-mode"]),
        cdi_directory=str(values["cdi-dir"]),
        root=str(values["root"]),
        places=Places(
            registry=str(values["plugins-registry"]).rstrip("/") or f"{kubelet}/plugins_registry",
            plugins=str(values["device-plugin-dir"]).rstrip("/"),
            mode=str(values["registration"]),
        ),
        metrics=str(values["metrics-address"]),
        mode=str(values["mode"]),
        kubeconfig=str(values["kubeconfig"]),
        node_name=str(values["node-name"]) or os.environ.get("NODE_NAME") or os.uname().nodename.strip().lower(),
        plugins_directory=str(values["plugins-dir"]).rstrip("/") or f"{kubelet}/plugins",
        claim_networks=str(values["claim-networks"]),
    )


async def _serve(chosen: Settings) -> None:
    import asyncio

    from . import daemon

    stop = asyncio.Event()
    plugin = daemon.Plugin(chosen)
    loop = asyncio.get_running_loop()

    def end() -> None:
        gc.disable()  # with thousands of pools it would take most of the remaining time, and the process ends anyway
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, plugin.reload)
    # Upstream's two lines, on its stream, because scripts look for them.
    watched = chosen.places.watched()
    _out("Using Kubelet Plugin Registry Mode\n" if watched else "Using Deprecated Devie Plugin Registry Path\n")
    await plugin.run(stop)
    # Here and not after asyncio.run, which would wait for all tasks of all servers.
    _exit(0)
