"""ansible-playbook for tests: one warm process for each configuration, and a fork of it for each play.

Starting Python and importing Ansible takes as long as a short play. Here both happen once. Each fork runs the real
entry point with the environment, folder and standard streams of its caller.

    ansible_playbook.path()        the program to start instead of ansible-playbook
    ansible_playbook.py FOLDER     what it starts: answers on FOLDER/socket until it is killed

Ansible reads its configuration when it is imported, so an import under other variables is not reused: each set
of those variables has its own warm process. So a test with a different environment costs an import, unless it only
differs in variables that are not in Ansible's configuration.
"""

import atexit
import functools
import importlib
import importlib.util
import marshal
import os
import pathlib
import pkgutil
import socket
import sys

if __name__ == "__main__":
    import node_python
else:
    from ansible_collections.gpufabric.rdma.tests.tools import node_python

# Variables that affect Ansible's import, besides those in its own list of settings.
OTHERS = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "TERM", "TMPDIR")
# Kinds of plugins that each play needs, and that Ansible imports by their full names.
IN_EVERY_PLAY = ("action", "callback", "connection", "inventory", "lookup", "shell", "strategy", "vars")


@functools.cache
def path() -> str:
    folder = node_python.scratch("ansible-playbook-")
    return node_python.program(folder / "ansible-playbook", [sys.executable, __file__, folder])


def search_path() -> str:
    """PATH with it as ansible-playbook, and Ansible's other programs as installed."""
    return f"{pathlib.Path(path()).parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"


@functools.cache
def no_settings() -> str:
    """A file for ANSIBLE_CONFIG that sets nothing."""
    file = node_python.scratch("ansible-cfg-") / "ansible.cfg"
    file.touch()
    return str(file)


def settings() -> list[str]:
    """Names of the environment variables that affect Ansible's import."""
    import yaml

    listed = pathlib.Path(importlib.util.find_spec("ansible").origin).parent / "config/base.yml"
    options = yaml.load(listed.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [*OTHERS, *(entry["name"] for option in options.values() for entry in option.get("env", ()))]


def serve(folder: pathlib.Path) -> None:
    names, warm = settings(), {}
    for client in node_python.clients(folder):
        streams, text = node_python.request(client)
        _cwd, environment, _arguments = marshal.loads(text)
        values = tuple(environment.get(name) for name in names)
        if values not in warm:
            warm[values] = imported(folder, environment)
        call = os.memfd_create("call")
        os.write(call, text)
        socket.send_fds(warm[values], [b"."], [client.fileno(), call, *streams])
        for number in (call, *streams):
            os.close(number)


def imported(folder: pathlib.Path, environment: dict) -> socket.socket:
    """Starts a process that has imported Ansible with the environment, and answers requests over the socket."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        return ours
    # No stream of a caller stays open here, or callers would wait for the end of its output.
    os.closerange(3, its.fileno())
    os.closerange(its.fileno() + 1, 1 << 10)
    os.environ.clear()
    os.environ.update(environment)
    # Like the installed program: no folder of the tests comes before the installed packages.
    sys.path[0] = os.path.dirname(sys.executable)
    import ansible.cli.playbook
    import ansible.executor.process.worker  # noqa: F401
    from ansible import plugins
    from ansible.utils.collection_loader import _collection_finder

    for kind in IN_EVERY_PLAY:
        for plugin in pkgutil.iter_modules([f"{plugins.__path__[0]}/{kind}"], f"ansible.plugins.{kind}."):
            importlib.import_module(plugin.name)

    compiled = node_python.compiler(folder)
    # Ansible recompiles the plugins of collections in each run.
    _collection_finder.compile = lambda source, filename, **_same: compiled(source, filename)
    while True:
        data, numbers, _flags, _address = socket.recv_fds(its, 1, 5)
        if not data:
            atexit._run_exitfuncs()
            os._exit(0)
        client, call, *streams = numbers
        os.lseek(call, 0, os.SEEK_SET)
        with socket.socket(fileno=client) as connection, open(call, "rb") as text:
            node_python.answer(connection, streams, text.read(), play)


def play(folder: str, environment: dict, arguments: list[str]) -> int:
    from ansible import constants
    from ansible.cli.playbook import main
    from ansible.config.manager import cleanup_tmp_file

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ansible-playbook", *arguments]
    # A separate temporary folder, like every start of Ansible; that of the warm process is not removed here.
    atexit.unregister(cleanup_tmp_file)
    constants.set_constant("DEFAULT_INTERNAL_POLL_INTERVAL", 0.005)
    constants.set_constant("DEFAULT_LOCAL_TMP", constants.config.get_config_value("DEFAULT_LOCAL_TMP"))
    return node_python.exit_code(main)


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
