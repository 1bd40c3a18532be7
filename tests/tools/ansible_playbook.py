"""ansible-playbook for tests: one warm process for each configuration, and a fork of it for each play.

Starting Python and importing Ansible takes as long as a short play. Here both happen once. Each fork runs the real
entry point with the environment, folder and standard streams of whoever asked.

    ansible_playbook.path()        the program to start instead of ansible-playbook
    ansible_playbook.py FOLDER     what it starts: answers on FOLDER/socket until it is killed

Ansible reads its configuration when it is imported, so what was imported under other variables is not reused: of
those variables it keeps a warm process each. An environment of a test's own therefore costs an import; what may differ
between tests without one is any variable that Ansible's configuration does not name.
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

# What decides how Ansible is imported, beside the variables that its own list of settings names.
OTHERS = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "TERM", "TMPDIR")
# Kinds of plugins that each play goes through, and that Ansible imports by their full names.
IN_EVERY_PLAY = ("action", "callback", "connection", "inventory", "lookup", "shell", "strategy", "vars")


@functools.cache
def path() -> str:
    folder = node_python.scratch("ansible-playbook-")
    return node_python.program(folder / "ansible-playbook", [sys.executable, __file__, folder])


def search_path() -> str:
    """PATH on which the name ansible-playbook finds it, and other programs of Ansible are those installed."""
    return f"{pathlib.Path(path()).parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"


@functools.cache
def no_settings() -> str:
    """A file for ANSIBLE_CONFIG that sets nothing."""
    file = node_python.scratch("ansible-cfg-") / "ansible.cfg"
    file.touch()
    return str(file)


def settings() -> list[str]:
    """Names of the environment variables that decide how Ansible is imported."""
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
    """Starts a process that has imported Ansible with the environment, and answers what comes over the socket."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        return ours
    # Nothing of those who ask now stays open here, or they would wait for the end of its output.
    os.closerange(3, its.fileno())
    os.closerange(its.fileno() + 1, 1 << 10)
    os.environ.clear()
    os.environ.update(environment)
    # As for the installed program: no folder of the tests comes before what is installed.
    sys.path[0] = os.path.dirname(sys.executable)
    import ansible.cli.playbook
    import ansible.executor.process.worker  # noqa: F401
    from ansible import plugins
    from ansible.utils.collection_loader import _collection_finder

    for kind in IN_EVERY_PLAY:
        for plugin in pkgutil.iter_modules([f"{plugins.__path__[0]}/{kind}"], f"ansible.plugins.{kind}."):
            importlib.import_module(plugin.name)

    compiled = node_python.compiler(folder)
    # Ansible compiles the plugins of collections anew in each run.
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
    # A temporary folder of its own, as every start of Ansible has one; that of the warm process is not removed here.
    atexit.unregister(cleanup_tmp_file)
    constants.set_constant("DEFAULT_INTERNAL_POLL_INTERVAL", 0.005)
    constants.set_constant("DEFAULT_LOCAL_TMP", constants.config.get_config_value("DEFAULT_LOCAL_TMP"))
    return node_python.exit_code(main)


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
