"""Process 1 of a node until systemd takes over: creates the captured machine's links, overlays its /sys and /proc.

Runs inside the node with the node's Python. It must run before systemd, so no unit ever sees the real machine.
"""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
UNDER = "/run/machine"
SYSTEMD = "/lib/systemd/systemd"
# Files that the container must provide itself: its processes, its links, and the identity of this boot.
OWN_PROC = ("net", "self", "thread-self", "sys/kernel/random", "sys/net")
# Overlaid completely: only the captured driver made its files, and no process in a node needs this kernel's.
WHOLE_PROC = ("driver",)


def run(*argv, stdin=None):
    subprocess.run(argv, input=stdin, text=True, check=True)


def make_links(node):
    commands = ["address add {} dev host0".format(node["address"]), "link set host0 up"]
    for link in node["links"]:
        # A bridge without ports replaces the NIC: every kernel that can run these nodes has the type.
        mac = "address {}".format(link["mac"]) if len(link["mac"]) == 17 else ""
        commands.append("link add name {} {} type bridge".format(link["name"], mac))
        if 68 <= link["mtu"] <= 65535:
            commands.append("link set {} mtu {}".format(link["name"], link["mtu"]))
        # Only the addresses of the capture, none that this kernel would add itself.
        commands.append("link set {} addrgenmode none".format(link["name"]))
        commands += ["address add {} dev {}".format(address, link["name"]) for address in link["addresses"]]
        if link["up"]:
            commands.append("link set {} up".format(link["name"]))
    for route in node["default_routes"]:
        commands.append("route add default via {via} dev {netdev} metric {metric} onlink".format(**route))
    run("ip", "-batch", "-", stdin="\n".join(commands) + "\n")


def lay_over_proc(tree):
    """Binds each captured file over its namesake; returns those that the container does not have."""
    missing = []
    for folder, folders, files in os.walk(tree):
        below = os.path.relpath(folder, tree)
        inner = {name: os.path.normpath(os.path.join(below, name)) for name in folders if not name.isdigit()}
        for path in WHOLE_PROC:
            if path in inner.values() and os.path.isdir("/proc/" + path):
                run("mount", "--bind", os.path.join(tree, path), "/proc/" + path)
        folders[:] = [name for name, path in inner.items() if path not in OWN_PROC + WHOLE_PROC]
        for name in files:
            target = os.path.normpath(os.path.join("/proc", below, name))
            if os.path.isfile(target):
                run("mount", "--bind", os.path.join(folder, name), target)
            else:
                missing.append(target)
    return missing


def lay_over_sys(tree):
    run("mount", "--rbind", "/sys/fs/cgroup", tree + "/fs/cgroup")
    run("mount", "--rbind", tree, "/sys")
    # A write here would change a plain file and look like success, but the captured kernel cannot act on it.
    run("mount", "-o", "remount,bind,ro", "/sys")


def main():
    with open(os.path.join(HERE, "node.json"), encoding="utf-8") as file:
        node = json.load(file)
    make_links(node)
    # The root again without the container's mounts: there the captured /sys and /proc are plain files.
    os.mkdir(UNDER)
    run("mount", "--bind", "/", UNDER)
    run("mount", "--make-rprivate", UNDER)
    missing = lay_over_proc(UNDER + "/proc")
    lay_over_sys(UNDER + "/sys")
    run("umount", "--lazy", UNDER)
    os.rmdir(UNDER)
    with open(os.path.join(HERE, "not-laid-over"), "w", encoding="utf-8") as file:
        file.writelines(path + "\n" for path in missing)
    os.execv(SYSTEMD, [SYSTEMD])


try:
    main()
except (OSError, subprocess.CalledProcessError) as error:
    sys.exit(f"node_init: {error}")
