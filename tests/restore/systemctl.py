"""A double of systemctl on a node that is a root: starts, stops and shows services, and knows which are enabled."""

import os
import re
import signal
import subprocess
import sys
import time

STARTS = ("start", "restart")
READY = "/run/k3s-ready"
UNIT = "/etc/systemd/system/{}.service"
WANTED = "/etc/systemd/system/multi-user.target.wants/{}.service"


def pid_of(name):
    try:
        with open(f"/run/double-{name}.pid") as stream:
            pid = int(stream.read())
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stream:
            return 0 if stream.read().rpartition(")")[2].split()[0] == "Z" else pid
    except (OSError, ValueError):
        return 0


def stop(name):
    pid = pid_of(name)
    if pid:
        os.kill(pid, signal.SIGKILL if name.startswith("k3s") else signal.SIGTERM)
        while pid_of(name):
            time.sleep(0.05)
    if name.startswith("k3s") and os.path.exists(READY):
        os.unlink(READY)


def start(name):
    with open(UNIT.format(name)) as stream:
        command = re.search(r"^ExecStart=(.*)$", stream.read(), re.MULTILINE)[1]
    with open(f"/var/log/{name}.log", "a") as log:
        begun = subprocess.Popen(
            command.split(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    with open(f"/run/double-{name}.pid", "w") as stream:
        stream.write(str(begun.pid))
    with open(f"/run/{name}.invocation", "w") as stream:
        stream.write(f"{begun.pid}\n{int(time.monotonic() * 1e6)}")


def show(names, wanted):
    for name in names:
        name = name.rpartition(".service")[0] or name
        pid = pid_of(name)
        begun = ("", "0")
        if pid:
            with open(f"/run/{name}.invocation") as stream:
                begun = stream.read().split()
        state = "inactive"
        if pid:
            state = "active" if os.path.exists(READY) or not name.startswith("k3s") else "activating"
        said = {
            "Id": f"{name}.service",
            "ActiveState": state,
            "MainPID": str(pid),
            "NRestarts": "0",
            "InvocationID": begun[0],
            "ExecMainStartTimestampMonotonic": begun[1],
            "UnitFileState": "enabled" if os.path.lexists(WANTED.format(name)) else "disabled",
        }
        sys.stdout.write("".join(f"{key}={value}\n" for key, value in said.items() if key in wanted) + "\n")


def main():
    verb, words = sys.argv[1], [word for word in sys.argv[2:] if not word.startswith("--")]
    if verb == "show":
        option = next(word for word in sys.argv if word.startswith("--property="))
        return show(words, option.partition("=")[2].split(","))
    for name in words:
        if verb in ("stop", "disable", *STARTS):
            stop(name)
        if verb == "disable" and os.path.lexists(WANTED.format(name)):
            os.unlink(WANTED.format(name))
        if verb in STARTS:
            start(name)
        if verb == "enable":
            os.makedirs(os.path.dirname(WANTED), exist_ok=True)
            if not os.path.lexists(WANTED.format(name)):
                os.symlink(UNIT.format(name), WANTED.format(name))
    return None


if __name__ == "__main__":
    main()
