"""labctl: creates the lab's two nodes up to SSH, and removes them."""

import argparse
import concurrent.futures
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from . import accelerator, cluster, image, mirror, programs, settings, ssh
from .settings import CABLES, NODES, PRISTINE, LabError, say
from .vm import Node


class Lab:
    def __init__(self) -> None:
        self.settings = settings.load()
        self.nodes = [Node(self.settings, name, number) for name, number in NODES.items()]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one labctl at a time changes the lab."""
        self.settings.state.mkdir(parents=True, exist_ok=True)
        with (self.settings.state / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another labctl works on this lab; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def each(self, action: Callable[[Node], None], nodes: list[Node] | None = None) -> None:
        """Every node at once; all failures are reported, not only the first."""
        chosen = self.nodes if nodes is None else nodes
        with concurrent.futures.ThreadPoolExecutor(len(NODES)) as pool:
            errors = [job.exception() for job in [pool.submit(action, node) for node in chosen]]
        failed = [error for error in errors if error]
        for error in failed:
            if not isinstance(error, LabError):
                raise error
        if failed:
            raise LabErrors(failed)

    def up(self) -> None:
        """Running nodes stay unchanged, stopped ones boot from their disk, missing ones are created and saved."""
        ssh.prepare(self.settings)
        # A node without its first snapshot is incomplete.
        missing = [node for node in self.nodes if PRISTINE not in node.snapshots()]
        running = [node for node in self.nodes if node not in missing and node.pid()]
        stopped = [node for node in self.nodes if node not in missing and node not in running]
        for node in running:
            say(f"{node.name}: already running, reused")
        if missing:
            built = image.ensure(self.settings)
            for node in missing:
                node.create(built)
        else:
            wanted = image.wanted(self.settings).name
            if stale := [node.name for node in self.nodes if node.record()["image"] != wanted]:
                say(f"{', '.join(stale)}: made from an older image than today's packages and files would give; ")
                say("  `lab/labctl down` and `up` take the new one")
        if to_boot := stopped + missing:
            accel = accelerator.choose(self.settings, to_boot[0].image())
            how = "KVM" if accel == "kvm" else "plain emulation"
            say(f"booting {', '.join(node.name for node in to_boot)} ({how})")
            self.each(Node.require_free_ports, to_boot)
            self.each(lambda node: node.boot(accel), to_boot)
        if missing:
            self.each(lambda node: node.save(PRISTINE), missing)
            say(f"snapshot {PRISTINE}: the nodes after their first boot")
        self.each(Node.require_hardware, running)
        say("up: " + ", ".join(f"`lab/labctl ssh {node.name}`" for node in self.nodes))

    def up_with_bundle(self) -> None:
        """Both; builds the programs that the bundle lacks while the image is made and the nodes boot."""
        # None if they come from a release, or there is no cluster.
        with programs.built_meanwhile(cluster.WANTED.get(cluster.choose()[0], [])):
            self.up()
        cluster.fill(self.settings)

    def down(self, keep_image: bool) -> None:
        """Removes only labctl's files from the state folder, not the fast nodes or another lab."""
        self.each(Node.remove)
        mirror.stop(self.settings.state / "mirror")
        shutil.rmtree(self.settings.ssh, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.settings.nodes.rmdir()
        stays = "the image stays"
        if not keep_image:
            (self.settings.state / "accelerator.json").unlink(missing_ok=True)
            if self.settings.images.is_relative_to(self.settings.state):
                stays = self.remove_images()
            if [path.name for path in self.settings.state.iterdir()] == ["lock"]:
                shutil.rmtree(self.settings.state)
        say(f"down: nodes, disks and keys removed; {stays}")

    def remove_images(self) -> str:
        images = self.settings.images
        holders = image.prune(self.settings)
        for leftover in ("build.log", "lock"):
            (images / leftover).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            images.rmdir()
        return f"the image stays for {', '.join(holders)}" if holders else "image removed"

    def snapshot(self, name: str) -> None:
        if name == PRISTINE:
            raise LabError(
                f"snapshot {name}",
                "another name",
                f"{name} is the state after the first boot",
                "choose another name",
            )
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", name):
            raise LabError(
                "snapshot name", "a lower-case letter, then letters, digits, - or _", name, "choose another name"
            )
        self.each(lambda node: node.save(name))
        say(f"snapshot {name}: saved on {', '.join(NODES)}")

    def restore(self, name: str) -> None:
        lacking = [node.name for node in self.nodes if name not in node.snapshots()]
        if lacking:
            have = sorted(set.intersection(*(set(node.snapshots()) for node in self.nodes)))
            seen = f"none on {', '.join(lacking)}; there are: {', '.join(have) or 'none'}"
            wanted = f"one on each of {', '.join(NODES)}"
            raise LabError(f"snapshot {name}", wanted, seen, f"lab/labctl up makes `{PRISTINE}`, snapshot NAME others")

        def back(node: Node) -> None:
            accel = node.record()["accelerator"] or "tcg"
            node.stop()
            node.boot(accel, name)

        self.each(back)

    def power(self, name: str, how: str) -> None:
        node = self.node(name)
        if not node.disk.exists():
            raise LabError(name, "a node of this lab", "it was never made", "lab/labctl up")
        if how == "reboot":
            node.reboot()
        if how == "reset" and node.pid():
            node.read_menu()
        if how in ("off", "reset"):
            node.stop()
            say(f"{name}: off")
        if how in ("on", "reset") and not node.pid():
            node.boot(accelerator.choose(self.settings, node.image()))

    def link(self, name: str, nic: str, how: str) -> None:
        self.node(name).link(nic, how == "up")
        say(f"{name}: cable of {nic} is {'in' if how == 'up' else 'out'}")

    def status(self) -> None:
        rows = [("NODE", "STATE", "SSH", "ACCEL", "IMAGE", "DISK MiB", "CABLES OUT", "SNAPSHOTS")]
        for node in self.nodes:
            record = node.record()
            on = node.pid()
            running = "off" if not on else "up" if ssh.banner(node.port) else "no sshd"
            state = running if node.disk.exists() else "missing"
            disk = str(node.disk.stat().st_blocks * 512 // 2**20) if node.disk.exists() else "-"
            cables = " ".join(record.get("cables_out") or ()) if on else ""
            row = (node.name, state, f"127.0.0.1:{node.port}", record["accelerator"], record["image"], disk, cables)
            rows.append(tuple(cell or "-" for cell in (*row, " ".join(node.snapshots()))))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

    def ssh(self, name: str, words: list[str]) -> int:
        if not self.node(name).pid():
            raise LabError(name, "a running node", "it is off", "lab/labctl up")
        return subprocess.run(ssh.command(self.settings, name, *words), check=False).returncode


class LabErrors(LabError):
    def __init__(self, errors: list[LabError]):
        Exception.__init__(self, "\n".join(str(error) for error in errors))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="labctl",
        description="The lab: two virtual machines with a real RDMA kernel stack, joined by cables on loopback.",
        epilog="Environment: LAB_PORT_BASE (22220: ssh on +1 and +2, cables on +11 to +92), LAB_DIR (.lab), "
        "LAB_ACCEL (auto, tcg, kvm), LAB_MEMORY_MIB (3072, each node), LAB_NODES (node1 node2), LAB_CLUSTER (auto; "
        "release, testbed, mirror, none), LAB_K3S (1.35; 1.36, 1.37), LAB_GPU (1: a GPU's double beside eth2).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="build the image once, boot both nodes or reuse them")
    up.add_argument("--bundle", action="store_true", help="also `bundle`, whose programs are built meanwhile")
    down = commands.add_parser("down", help="remove nodes, disks, keys and image")
    down.add_argument("--keep-image", action="store_true", help="leave the image for the next `up`")
    shell = commands.add_parser("ssh", help="a shell on a node, or one command")
    shell.add_argument("node", choices=NODES)
    shell.add_argument("words", nargs=argparse.REMAINDER, metavar="command")
    commands.add_parser("status", help="a table of the nodes")
    commands.add_parser("image", help="build the node image once and print its path in the last line")
    commands.add_parser("bundle", help="fill the bundle folder of the lab's cluster (LAB_CLUSTER)")
    build = commands.add_parser("programs", help="build the test bed's programs from Go modules and print their paths")
    build.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(programs.PARTS)} (all)")
    commands.add_parser("snapshot", help="save the present state of both nodes").add_argument("name")
    commands.add_parser("restore", help=f"take both nodes back ({PRISTINE}: first boot)").add_argument("name")
    link = commands.add_parser("link", help="pull a cable or plug it in again")
    link.add_argument("node", choices=NODES)
    link.add_argument("nic", choices=CABLES)
    link.add_argument("how", choices=("up", "down"))
    power = commands.add_parser("power", help="the power button, as abrupt as on a real machine; reboot asks systemd")
    power.add_argument("node", choices=NODES)
    power.add_argument("how", choices=("reset", "off", "on", "reboot"))
    return parser.parse_args(arguments)


def show_programs(parts: list[str]) -> None:
    if wrong := sorted(set(parts) - set(programs.PARTS)):
        raise LabError("parts of the test bed", ", ".join(programs.PARTS), ", ".join(wrong), "correct the command")
    for part, folder in programs.ensure(parts).items():
        for path in sorted(folder.iterdir()):
            print(f"{part:12} {programs.PARTS[part].version:10} {path.stat().st_size / 2**20:6.1f} MiB  {path}")


def require_programs() -> None:
    wanted = (accelerator.QEMU, "qemu-img", "mmdebstrap", "mke2fs", "ssh", "ssh-keygen", str(image.BUSYBOX))
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    os.environ["PATH"] = path
    if missing := [program for program in wanted if not shutil.which(program)]:
        raise LabError("this machine", "the lab's programs", f"missing: {', '.join(missing)}", "lab/packages lab")


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    try:
        lab = Lab()
        if given.command == "status":
            lab.status()
        elif given.command == "ssh":
            return lab.ssh(given.node, given.words)
        elif given.command == "programs":
            show_programs(given.parts or list(programs.PARTS))
        else:
            require_programs()
            with lab.locked():
                change(lab, given)
    except LabError as error:
        print(f"labctl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labctl: interrupted; run the command again", file=sys.stderr)
        return 130
    return 0


def change(lab: Lab, given: argparse.Namespace) -> None:
    {
        "up": lambda: lab.up_with_bundle() if given.bundle else lab.up(),
        "image": lambda: print(image.ensure(lab.settings).folder),
        "bundle": lambda: cluster.fill(lab.settings),
        "down": lambda: lab.down(given.keep_image),
        "snapshot": lambda: lab.snapshot(given.name),
        "restore": lambda: lab.restore(given.name),
        "link": lambda: lab.link(given.node, given.nic, given.how),
        "power": lambda: lab.power(given.node, given.how),
    }[given.command]()
