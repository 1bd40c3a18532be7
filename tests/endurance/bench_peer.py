"""bench_peer.py [--rounds N]: this plugin and the Go one on one lab node, in one run: medians and ratios.

The Go plugin (Mellanox/k8s-rdma-shared-dev-plugin, version in lab/testbed/peer-plugin/go.mod) is built from its Go
module. Both get the same config.json, the same overlaid sysfs tree with 8 HCAs and the same kubelet double. The node is
emulated, so only the ratios mean something. `bench_peer.py --node TREE PLUGINS ROUNDS` is the part that runs there.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache/bench-peer"
NODE, TARGET, PLACE = "node1", "/opt/bench-peer", "/run/bench-peer"
# One node, in a separate lab besides those of `make lab` and molecule.
LAB = {"LAB_DIR": str(CHECKOUT / ".lab/plugin"), "LAB_PORT_BASE": "22600", "LAB_NODES": NODE}
# The node image is Debian 12. The double forks with its threads idle.
PYTHON = "env GRPC_ENABLE_FORK_SUPPORT=0 GRPC_VERBOSITY=NONE python3"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
SKIP = shutil.ignore_patterns("__pycache__")
OURS, THEIRS, GO_PLUGIN = "ours", "theirs", "k8s-rdma-shared-dp"
KUBELET = pathlib.Path("/var/lib/kubelet")
UNITS, CALLS, REST, PATIENCE, START = 1000, 400, 3.0, 30.0, 300.0


def labctl(*words, **settings):
    """lab/labctl on the lab of this benchmark; ends the program if it fails."""
    done = subprocess.run([CHECKOUT / "lab/labctl", *words], env={**os.environ, **LAB}, check=False, **settings)
    if done.returncode:
        sys.exit(f"bench-peer: lab/labctl {' '.join(words)[:200]}: exit code {done.returncode}, see above")
    return done


def payload(folder: pathlib.Path) -> None:
    """Files for the node: libraries, our built plugin, the Go one, the double, this file, a tree."""
    requirements = CHECKOUT / "device_plugin/requirements.txt"
    wheels = ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--target", folder, *wheels, *platforms]
    subprocess.run([*pip, "--requirement", requirements], check=True)
    shutil.copytree(CHECKOUT / "device_plugin/rdma_device_plugin", folder / "rdma_device_plugin", ignore=SKIP)
    shutil.copytree(CHECKOUT / "plugins/module_utils/hca", folder / "rdma_device_plugin/hca", ignore=SKIP)
    for file in (CHECKOUT / "tests/device_plugin/kubelet_double.py", pathlib.Path(__file__)):
        shutil.copy(file, folder)
    built = labctl("programs", "peer-plugin", stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    shutil.copy(built, folder / GO_PLUGIN)
    laid_out(folder / "tree")


def laid_out(folder: pathlib.Path) -> None:
    """A captured machine as a node's /sys and /dev/infiniband, with the Go plugin's additional files."""
    from ansible_collections.gpufabric.rdma.tests.tools import tree

    root = tree.lay_out(tree.load("h100-8x-cx7-ib"), folder)
    tree.add_modalias(root)
    (root / "sys/module/rdma_ucm").mkdir(parents=True, exist_ok=True)
    files = root / "dev/infiniband"
    files.mkdir(parents=True)
    for name in ("rdma_cm", *(f"{kind}{number}" for kind in ("uverbs", "umad", "issm") for number in range(8))):
        (files / name).touch()


def main(rounds: int) -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        payload(pathlib.Path(work))
        pack = ["tar", "-C", work, "-cf", "-", "."]
        packed = subprocess.run(pack, check=True, capture_output=True).stdout
    labctl("up")
    try:
        unpack = f"rm -rf {TARGET} {PLACE} && mkdir {TARGET} && tar -C {TARGET} -xf -"
        labctl("ssh", NODE, unpack, input=packed)
        script = f"mv {TARGET}/tree {PLACE} && cd {TARGET} && exec {PYTHON} bench_peer.py --node {PLACE} {rounds}"
        result = json.loads(labctl("ssh", NODE, script, stdout=subprocess.PIPE).stdout)
    finally:
        labctl("power", NODE, "off")
    for mode, figures in result.items():
        print(f"\n{mode}, median of {rounds}: ours, the Go plugin's, ours / the Go plugin's")
        for name in figures[OURS][0]:
            # None if it did not happen in one of the rounds.
            rounds_of = ([row[name] for row in figures[who]] for who in (OURS, THEIRS))
            ours, theirs = (None if None in values else statistics.median(values) for values in rounds_of)
            ratio = f"{ours / theirs:8.2f}" if ours and theirs else ""
            print(f"  {name:40} {shown(ours):>8} {shown(theirs):>8} {ratio}")
    print(f"\n8 resources of {UNITS} on 8 HCAs; never: not within {PATIENCE:.0f} s.")
    return 0


def shown(value):
    return "never" if value is None else f"{value:.2f}"


# On the node, in a separate mount namespace: TREE/sys is mounted over /sys, and /var/lib/kubelet is empty.


class Tree:
    """The overlaid node. Hot-plug changes the class entry (which ours reads) and the function's folder."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.aside = root, root / "aside"
        self.aside.mkdir()
        self.hcas = {path.name: path.resolve() for path in pathlib.Path("/sys/class/infiniband").iterdir()}

    def netdev(self, hca):
        return next((self.hcas[hca].parents[1] / "net").iterdir()).name

    def unplug(self, hca):
        link = pathlib.Path("/sys/class/infiniband", hca)
        os.symlink(os.readlink(link), self.aside / f"{hca}.link")
        os.unlink(link)
        shutil.move(self.hcas[hca].parent, self.aside / hca)
        self.announce()

    def plug(self, hca):
        shutil.move(self.aside / hca, self.hcas[hca].parent)
        shutil.move(self.aside / f"{hca}.link", f"/sys/class/infiniband/{hca}")
        self.announce()

    def announce(self):
        """A real uevent of the subsystem infiniband, about a real rxe device."""
        (self.root / "real-sys/class/infiniband/rxe0/uevent").write_text("change\n")


class Process:
    """A plugin while it runs."""

    def __init__(self, command, log):
        self.begun = time.monotonic()
        # PYTHON's settings for the double are not for the plugins.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def memory(self):
        """Resident set in MiB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def processor(self):
        """Seconds of processor time used so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(command, log, rails, tree, watches):
    """{what: figure, or None if it came too late} of one start. watches: plugins_registry, else Register."""
    from kubelet_double import Kubelet

    for path in KUBELET.iterdir():
        shutil.rmtree(path)

    def within(names, count, change=None, patience=PATIENCE):
        begun = time.monotonic()
        if change:
            change()
        seen = kubelet.wait(lambda: all(kubelet.allocatable(name) == count for name in names), patience)
        return time.monotonic() - begun if seen else None

    with Kubelet(KUBELET, watches=watches) as kubelet:
        process = Process(command, log)
        try:
            found = {"ready: all resources allocatable (s)": within(rails, UNITS, patience=START)}
            time.sleep(REST)
            found["RSS (MiB)"], before = process.memory(), process.processor()
            time.sleep(REST)
            found["idle processor (%)"] = (process.processor() - before) / REST * 100
            names, took = list(rails), []
            for number in range(CALLS):
                begun = time.perf_counter()
                kubelet.allocate(names[number % len(names)], ["7"])
                took.append((time.perf_counter() - begun) * 1000)
            found["Allocate (ms)"] = statistics.median(took)
            for what, count, act in (("HCA unplugged (s)", 0, tree.unplug), ("HCA plugged (s)", UNITS, tree.plug)):
                found[what] = within(names[3:4], count, lambda act=act: act(rails[names[3]]))
        except Exception:
            sys.stderr.write(pathlib.Path(log).read_text(errors="replace")[-2000:])
            raise
        finally:
            process.process.kill()
            process.process.wait()
    return found


def on_node(root: pathlib.Path, rounds: int) -> None:
    for folder in (root / "real-sys", root / "var", KUBELET):
        folder.mkdir(parents=True, exist_ok=True)
    over = {"/sys": root / "real-sys", root / "sys": "/sys", root / "var": KUBELET}
    over[root / "dev/infiniband"] = "/dev/infiniband"
    for source, target in over.items():
        subprocess.run(["mount", "--bind", source, target], check=True)
    tree = Tree(root)
    rails = {f"rdma/rail{number}": hca for number, hca in enumerate(sorted(tree.hcas))}
    for hca in rails.values():  # the Go plugin asks the kernel for each interface by name
        subprocess.run(["ip", "link", "add", tree.netdev(hca), "type", "dummy"], check=False, capture_output=True)
    common = {"resourcePrefix": "rdma", "rdmaHcaMax": UNITS}
    entries = [
        {**common, "resourceName": name[5:], "selectors": {"ifNames": [tree.netdev(hca)]}}
        for name, hca in rails.items()
    ]
    config = root / "config.json"
    config.write_text(json.dumps({"periodicUpdateInterval": 5, "configList": entries}))
    commands = {
        OURS: [sys.executable, "-m", "rdma_device_plugin", "-config-file", config],
        THEIRS: [pathlib.Path.cwd() / GO_PLUGIN, "-config-file", config],
    }
    found = {}
    for mode, watches in (("watch", True), ("legacy", False)):
        found[mode] = {who: [] for who in commands}
        for number in range(rounds):
            for who, command in commands.items():
                found[mode][who].append(one_round(command, root / f"{who}.log", rails, tree, watches))
                sys.stderr.write(f"  {mode}, round {number + 1} of {rounds}: {who} done\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--node"]:
        sys.exit(main(int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 3))
    if "BENCH_PEER_ALONE" not in os.environ:
        os.environ["BENCH_PEER_ALONE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    on_node(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
