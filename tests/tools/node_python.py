"""The Python of laid-out nodes: one warm process, and a fork of it for each module.

Of the 0.3 s that a module takes, 0.2 s are Python's start and AnsiballZ's import of `ansible.module_utils` from an
archive. Here those are imported once, from their installation. The module and its imports from the collection come from
the archive as on a node, and only the standard library is available besides.

    node_python.path()             the program for ansible_python_interpreter
    node_python.py FOLDER          the process that it starts: answers on FOLDER/socket until it is killed
"""

from __future__ import annotations

import _imp
import array
import atexit
import functools
import gc
import hashlib
import marshal
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
import zipimport

# Passes folder, environment, arguments and standard streams to the warm process, and ends like the fork.
CLIENT = """#!{python} -ISE
import _socket, marshal, os, sys
{before}
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({place!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(marshal.dumps((os.getcwd(), dict(os.environ), sys.argv[1:])))
server.shutdown(_socket.SHUT_WR)
os._exit(int.from_bytes(server.recv(1) or b"\\1", "big"))
"""
ANOTHER_USE = f"""if len(sys.argv) > 1 and not os.path.isfile(sys.argv[1]):
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])"""


@functools.cache
def path() -> str:
    import ansible

    folder = scratch("node-python-")
    # The package's files in AnsiballZ's archive, so a module does not think that it runs on a controller.
    package, installed = folder / "ansible", pathlib.Path(ansible.__file__).parent
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {ansible.__version__!r}\n__author__ = 'Ansible, Inc.'\n")
    for name in ("module_utils", "modules"):
        (package / name).symlink_to(installed / name)
    return program(folder / "python3", [sys.executable, "-IS", __file__, folder], ANOTHER_USE)


def scratch(prefix: str) -> pathlib.Path:
    """A folder that is removed when this process ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def program(path: pathlib.Path, server: list, before: str = "") -> str:
    """Starts the warm process, which listens next to the path, and writes the program that requests forks."""
    warm = subprocess.Popen(server, stdout=subprocess.PIPE)
    atexit.register(warm.kill)
    assert warm.stdout.readline() == b"ready\n"
    path.write_text(CLIENT.format(python=sys.executable, place=str(path.parent / "socket"), before=before))
    path.chmod(0o755)
    return str(path)


def serve(folder: pathlib.Path) -> None:
    sys.path.insert(0, str(folder))
    import ansible.module_utils._internal._ansiballz._loader
    import ansible.module_utils._internal._json._profiles._module_legacy_c2m
    import ansible.module_utils._internal._json._profiles._module_legacy_m2c
    import ansible.module_utils._internal._json._profiles._module_modern_c2m
    import ansible.module_utils._internal._json._profiles._module_modern_m2c  # noqa: F401

    compiled = compiler(folder)
    # An archive only has sources, and zipimport compiles each of them twice.
    zipimport._compile_source = lambda name, source: compiled(zipimport._normalize_line_endings(source), name)
    for client in clients(folder):
        answer(client, *request(client), run)


def compiler(folder: pathlib.Path):
    """compile(source, name) that reuses the results of other forks in the folder."""

    def compiled(source: bytes | str, name: str):
        text = source if isinstance(source, bytes) else source.encode()
        kept = folder / f"{hashlib.blake2b(text, digest_size=20).hexdigest()}.code"
        if not kept.exists():
            whole = folder / f"{os.getpid()}.part"
            whole.write_bytes(marshal.dumps(compile(source, name, "exec", dont_inherit=True)))
            whole.rename(kept)
        code = marshal.loads(kept.read_bytes())
        _imp._fix_co_filename(code, name)
        return code

    return compiled


def clients(folder: pathlib.Path):
    """Connections of clients; each is closed here before the next.

    Forks collect no cycles: they end soon, and a collection would copy every page that they share with this process.
    """
    gc.disable()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        client, _address = listening.accept()
        with client:
            yield client


def request(client: socket.socket) -> tuple[list[int], bytes]:
    """Standard streams of the client, and its folder, environment and arguments (marshalled)."""
    _data, ancillary, _flags, _address = client.recvmsg(1, socket.CMSG_SPACE(12))
    text = b""
    while part := client.recv(1 << 16):
        text += part
    return list(array.array("i", ancillary[0][2])), text


def answer(client: socket.socket, streams: list[int], text: bytes, work) -> None:
    """Does the work in a fork with the client's streams as its own; the client gets its exit code."""
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        client.send(bytes([work(*marshal.loads(text)) & 0xFF]))
        os._exit(0)
    for stream in streams:
        os.close(stream)


def run(folder: str, environment: dict, arguments: list[str]) -> int:
    """Runs `python arguments`; without arguments the program comes from standard input. Returns its exit code."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.argv = arguments or [""]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments:
        main.__file__ = arguments[0]
    source = pathlib.Path(arguments[0]).read_bytes() if arguments else sys.stdin.buffer.read()
    return exit_code(lambda: exec(compile(source, getattr(main, "__file__", "<stdin>"), "exec"), main.__dict__))


def exit_code(work) -> int:
    """The interpreter's exit code after the work and the exit handlers."""
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - like the interpreter itself
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
