"""python3 peer_node.py TREE PLUGINS ROUNDS REST: on a lab node, the plugins in turn on one sysfs tree with one config.

PLUGINS holds the Go plugin, and `before` if another version of ours is measured too.
Runs in a mount namespace of its own: TREE/sys lies over /sys, TREE/dev/infiniband over /dev/infiniband, and
/var/lib/kubelet is empty. The real /sys stays at TREE/real-sys; a uevent is played by writing to a file of it.
Prints {mode: {plugin: [figures of each round]}} as JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import measure

KUBELET = pathlib.Path("/var/lib/kubelet")
UNITS = 1000
INTERVAL = 5
OURS, THEIRS, BEFORE = "ours", "theirs", "before"
GO_PLUGIN = "k8s-rdma-shared-dp"
# What labnode.PYTHON sets for the double is not for the plugins.
PLUGIN_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
ALONE = "PEER_MOUNTS_DONE"
# `-m` takes the working directory's package, which is ours; the libraries lie there too.
RUN = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('rdma_device_plugin', None, '__main__')"


class Tree:
    """The laid-over node. What comes and goes is the class entry (ours looks there) and the function's folder."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self._aside = self.root / "aside"
        self._aside.mkdir(exist_ok=True)
        self.hcas = {path.name: path.resolve() for path in pathlib.Path("/sys/class/infiniband").iterdir()}

    def netdev(self, hca):
        return next((self.hcas[hca].parents[1] / "net").iterdir()).name

    def port(self, hca, state, number=1):
        path = self.hcas[hca] / f"ports/{number}/state"
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{state}\n")
        os.rename(unfinished, path)

    def unplug(self, hca):
        link = pathlib.Path("/sys/class/infiniband", hca)
        os.symlink(os.readlink(link), self._aside / f"{hca}.link")
        os.unlink(link)
        shutil.move(self.hcas[hca].parent, self._aside / hca)

    def plug(self, hca):
        shutil.move(self._aside / hca, self.hcas[hca].parent)
        os.rename(self._aside / f"{hca}.link", self._aside / hca)
        os.symlink(os.readlink(self._aside / hca), f"/sys/class/infiniband/{hca}")
        os.unlink(self._aside / hca)

    def announce(self):
        """A real uevent of the subsystem infiniband, about a real rxe device."""
        (self.root / "real-sys/class/infiniband/rxe0/uevent").write_text("change\n")


def lay_over(root):
    """Mounts, in a namespace of our own."""
    (root / "real-sys").mkdir(exist_ok=True)
    (root / "var").mkdir(exist_ok=True)
    KUBELET.mkdir(parents=True, exist_ok=True)
    for source, target in (("/sys", root / "real-sys"), (root / "sys", "/sys"), (root / "var", KUBELET)):
        subprocess.run(["mount", "--bind", str(source), str(target)], check=True)
    subprocess.run(["mount", "--bind", str(root / "dev/infiniband"), "/dev/infiniband"], check=True)


def interfaces(names):
    """The Go plugin asks the kernel for each interface by name, so they have to be there."""
    for name in names:
        if not pathlib.Path(f"/proc/sys/net/ipv4/conf/{name}").exists():
            subprocess.run(["ip", "link", "add", name, "type", "dummy"], check=True)


def subjects(config_file, plugins):
    flags = ("-config-file", str(config_file))
    ours = (sys.executable, "-m", "rdma_device_plugin", *flags)
    found = [
        measure.Subject(OURS, ours, PLUGIN_ENVIRONMENT),
        measure.Subject(THEIRS, (str(plugins / GO_PLUGIN), *flags), PLUGIN_ENVIRONMENT),
    ]
    if (plugins / BEFORE).exists():
        command = (sys.executable, "-c", RUN, str(plugins / BEFORE), *flags)
        found.append(measure.Subject(BEFORE, command, PLUGIN_ENVIRONMENT))
    return found


def main(root, plugins, rounds, rest):
    tree = Tree(root)
    rails = {f"rdma/rail{number}": hca for number, hca in enumerate(sorted(tree.hcas))}
    names = {resource: tree.netdev(hca) for resource, hca in rails.items()}
    config_file = root / "config.json"
    config_file.write_bytes(measure.config(rails, UNITS, INTERVAL, values=names))
    interfaces(names.values())
    found = {}
    try:
        for mode, watches in (("watch", True), ("legacy", False)):
            measured = subjects(config_file, plugins)
            found[mode] = {subject.name: [] for subject in measured}
            for number in range(rounds):
                for subject in measured:
                    for path in KUBELET.iterdir():
                        shutil.rmtree(path)
                    log = root / f"{subject.name}.log"
                    plan = measure.Plan(
                        KUBELET,
                        rails,
                        UNITS,
                        tree,
                        tree.announce,
                        calls=400,
                        rest=rest,
                        patience=30.0,
                        start=300.0,
                        log=log,
                    )
                    try:
                        found[mode][subject.name].append(measure.measure(subject, plan, watches))
                    except RuntimeError:
                        sys.stderr.write(log.read_text(errors="replace")[-2000:])
                        raise
                    sys.stderr.write(f"  {mode}, round {number + 1} of {rounds}: {subject.name} done\n")
    finally:
        for name in names.values():
            subprocess.run(["ip", "link", "del", name], check=True)
    sys.stdout.write(json.dumps({"figures": found, "interval": INTERVAL, "load": os.getloadavg()[0]}) + "\n")


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1])
    if ALONE not in os.environ:
        os.environ[ALONE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    lay_over(place)
    main(place, pathlib.Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
