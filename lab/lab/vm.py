"""One node: its QEMU process, its disk with the snapshots inside, its cables."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from typing import Any

from . import network, ssh
from .accelerator import QEMU
from .image import Image
from .settings import BOOT_SECONDS, CABLES, PRISTINE, STALL_SECONDS, LabError, Settings, run, say

# Drivers of devices on QEMU's q35 board and CPU that no lab node needs; each costs udev time at boot.
BLACKLIST = (
    "modprobe.blacklist=ahci,button,ccp,evbug,floppy,i2c_i801,intel_agp,iTCO_wdt,kvm_amd,kvm_intel,lpc_ich,"
    "parport_pc,pcspkr,psmouse,qemu_fw_cfg,tiny_power_button"
)
# Exits from the emulation and discarded translations cost a control plane node most of its cycles. The emulated TSC
# counts the same on both processors, but the kernel sees them a little apart and would use the HPET: each read of it is
# an exit. So is setting a timer, but not a steady tick. Code is translated once per virtual address, so programs should
# always start at the same one; and a change inside a huge page flushes the whole emulated TLB.
EMULATED_KERNEL = "tsc=reliable clocksource=tsc highres=off nohz=off norandmaps transparent_hugepage=never psi=0"
GPU_BOARD = ("-device", "intel-iommu,intremap=off", "-smbios", "type=1,product=Lab")
MENU = r"sed -n '/^\s*linux\s/{s/.* ro *//p;q}' /boot/grub/grub.cfg"


class Node:
    def __init__(self, settings: Settings, name: str, number: int):
        self.settings = settings
        self.name = name
        self.number = number
        self.folder = settings.nodes / name
        self.disk = self.folder / "disk.qcow2"
        self.port = settings.ssh_port(number)

    # The process

    def pid(self) -> int | None:
        """Our own QEMU only: the pid file's process must run in this node's folder."""
        try:
            pid = int((self.folder / "qemu.pid").read_text())
            if (
                pathlib.Path(f"/proc/{pid}/cwd").samefile(self.folder)
                and QEMU in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            ):
                return pid
        except (OSError, ValueError):
            pass
        return None

    def require_free_ports(self) -> None:
        network.require_free_ports(self.settings, self.name, self.number)

    def start(self, accelerator: str, snapshot: str | None = None) -> None:
        self.require_free_ports()
        image = self.image()
        (self.folder / "node.json").write_text(json.dumps({"image": image.name, "accelerator": accelerator}))
        # Host keys and name of the node ride on the initrd: the kernel unpacks one archive after the other.
        (self.folder / "initrd").write_bytes(
            image.initrd.read_bytes() + network.node_archive(self.settings, self.name, self.number)
        )
        (self.folder / "console.log").unlink(missing_ok=True)
        command = self.command(image, accelerator) + (["-loadvm", snapshot] if snapshot else [])
        with (self.folder / "qemu.log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while not (self.folder / "console.log").exists() or not self.pid():
            if process.poll() is not None:
                seen = (self.folder / "qemu.log").read_text(
                    errors="replace"
                ).strip() or f"exit code {process.returncode}"
                raise LabError(f"{self.name}: QEMU", "a running process", seen, f"read {self.folder / 'qemu.log'}")
            time.sleep(0.05)

    def command(self, image: Image, accelerator: str) -> list[str]:
        half = self.settings.memory_mib // 2
        # With less room a control plane's translated code is discarded every half minute.
        accel = "tcg,thread=multi,tb-size=2048" if accelerator == "tcg" else "kvm"
        words = ["console=ttyS0 loglevel=4 net.ifnames=0 mitigations=off"]
        words += [EMULATED_KERNEL] if accelerator == "tcg" else []
        menu = self.folder / "menu"
        words += ["intel_iommu=on"] if self.settings.gpu else []
        words += [menu.read_text()] if menu.exists() else []
        return [
            QEMU, "-name", f"gpufabric-lab-{self.name}", "-nodefaults", "-no-user-config", "-display", "none",
            "-M", "q35", "-accel", accel, "-cpu", "qemu64" if accelerator == "tcg" else "host",
            "-pidfile", "qemu.pid", "-qmp", "unix:qmp.sock,server=on,wait=off",
            "-chardev", "file,id=console,path=console.log", "-serial", "chardev:console",
            # Two sockets with their own memory: two NUMA nodes, each with a fabric NIC.
            "-smp", "2,sockets=2,cores=1,threads=1", "-m", str(2 * half),
            "-object", f"memory-backend-ram,id=ram0,size={half}M", "-numa", "node,nodeid=0,cpus=0,memdev=ram0",
            "-object", f"memory-backend-ram,id=ram1,size={half}M", "-numa", "node,nodeid=1,cpus=1,memdev=ram1",
            "-numa", "dist,src=0,dst=1,val=21",
            "-kernel", os.path.relpath(image.kernel, self.folder), "-initrd", "initrd",
            "-append", " ".join([*words, BLACKLIST, f"lab.node={self.number}"]),
            "-drive", "if=none,id=disk,file=disk.qcow2,format=qcow2,cache=unsafe,discard=unmap",
            # Behind an IOMMU the kernel switches ACS on. Bridges of a product that is a virtual machine are not judged.
            *(GPU_BOARD if self.settings.gpu else ()),
            "-device", "virtio-blk-pci,drive=disk",
            "-device", "virtio-rng-pci",
            *network.arguments(self.settings, self.number),
        ]  # fmt: skip

    def stop(self) -> None:
        """Pulls the plug. SSH clients' connections end with the process, so none hangs."""
        if not (pid := self.pid()):
            return
        handle = os.pidfd_open(pid)
        try:
            if self.pid() == pid:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            deadline = time.monotonic() + 10
            while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            os.close(handle)
        (self.folder / "qemu.pid").unlink(missing_ok=True)

    def read_menu(self) -> None:
        """What the node's boot menu has for its next boot; the lab has no boot loader that would read it."""
        shown = ssh.run(self.settings, self.name, MENU, timeout=30)
        if shown.returncode == 0:
            (self.folder / "menu").write_text(shown.stdout.strip())

    def qmp(self) -> "Qmp":
        if not self.pid():
            raise LabError(self.name, "a running node", "it is off", f"lab/labctl power {self.name} on")
        return Qmp(self.folder, self.name)

    # The disk

    def create(self, image: Image) -> None:
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.disk.unlink(missing_ok=True)
        backing = os.path.relpath(image.disk, self.folder)
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", backing, "-F", "raw", str(self.disk)]
        run(words, f"{self.name}: disk", "lab/labctl down")
        (self.folder / "node.json").write_text(json.dumps({"image": image.name, "accelerator": None}))
        image.claim(self.folder)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def record(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "node.json").read_text())
        except OSError:
            return {"image": None, "accelerator": None}

    def image(self) -> Image:
        """The image below this node's disk, which may be older than today's package lists require."""
        image = Image(self.settings.images / str(self.record()["image"]))
        if not image.folder.is_dir():
            raise LabError(
                f"{self.name}: disk",
                f"its image {image.name} in {image.folder.parent}",
                "it is gone",
                "lab/labctl down, then up",
            )
        return image

    def snapshots(self) -> list[str]:
        if not self.disk.exists():
            return []
        told = run(["qemu-img", "info", "-U", "--output=json", str(self.disk)], f"{self.name}: disk", "lab/labctl down")
        return [snapshot["name"] for snapshot in json.loads(told).get("snapshots", [])]

    def save(self, name: str) -> None:
        with self.qmp() as qmp:
            if seen := qmp.monitor(f"savevm {name}"):
                raise LabError(f"{self.name}: snapshot {name}", "savevm without a complaint", seen, "lab/labctl status")

    # Life

    def boot(self, accelerator: str, snapshot: str | None = None) -> None:
        """Starts the node, waits for SSH and the hardware unit; one retry, because a cold boot sometimes hangs."""
        start = time.monotonic()
        for attempt in (1, 2):
            self.start(accelerator, snapshot)
            seen = self.wait_for_banner()
            if not seen:
                break
            tail = self.console_tail()
            self.stop()
            say(f"{self.name}: {seen}" + (", once more" if attempt == 1 else ""))
            if attempt == 2:
                raise LabError(f"{self.name}: boot", "SSH, in two attempts", f"{seen}; end of the console:\n{tail}",
                               f"read {self.folder / 'console.log'}; on a busy machine run it again")  # fmt: skip
        if snapshot:  # which may have been saved with a cable unplugged
            for nic in CABLES:
                self.link(nic, up=True)
        self.settle(restored=snapshot is not None)
        how = "restored" if snapshot else "booted"
        say(f"{self.name}: {how}, SSH on 127.0.0.1:{self.port}, {time.monotonic() - start:.1f} s")

    def reboot(self) -> None:
        """By the node's own systemd, within the same QEMU. Such a boot can hang like a cold one: the same retry."""
        before = self.boot_id()
        if not before:
            next_step = f"lab/labctl power {self.name} reset"
            raise LabError(f"{self.name}: reboot", "a node that answers", "no SSH", next_step)
        start = time.monotonic()
        ssh.run(self.settings, self.name, "systemd-run --quiet --on-active=1 systemctl reboot", timeout=BOOT_SECONDS)
        while self.boot_id() in ("", before):
            if seen := self.wait_for_banner():
                say(f"{self.name}: {seen}, once more; end of the console:\n{self.console_tail()}")
                self.stop()
                self.boot(self.record()["accelerator"])
            elif time.monotonic() - start > BOOT_SECONDS:
                wanted, next_step = "systemd to end the boot", f"lab/labctl ssh {self.name} systemctl list-jobs"
                raise LabError(f"{self.name}: reboot", wanted, f"it runs on after {BOOT_SECONDS} s", next_step)
            time.sleep(0.5)
        self.settle(restored=False)
        say(f"{self.name}: rebooted, {time.monotonic() - start:.1f} s")

    def boot_id(self) -> str:
        """Empty while the node does not answer."""
        return ssh.run(self.settings, self.name, "cat /proc/sys/kernel/random/boot_id", timeout=10).stdout.strip()

    def wait_for_banner(self) -> str | None:
        """None if sshd answers, else what was seen.

        A hung guest stops writing to its console, but so does one without CPU time on a busy machine. So QEMU's time
        waiting for a CPU does not count, and mere silence counts only after much longer.
        """
        console = self.folder / "console.log"
        start = alive = time.monotonic()
        size = 0
        worked, first_wait = self.cpu_seconds(), self.starved_seconds()
        waited = first_wait
        # Each try costs the guest a process; a starved guest would be overloaded by abandoned ones.
        while not ssh.banner(self.port, min(30.0, max(2.0, (time.monotonic() - start) / 5))):
            now = time.monotonic()
            if not self.pid():
                return f"QEMU ended: {(self.folder / 'qemu.log').read_text(errors='replace').strip()}"
            if console.stat().st_size != size:
                size, alive = console.stat().st_size, now
                worked, waited = self.cpu_seconds(), self.starved_seconds()
            silent = now - alive - (self.starved_seconds() - waited)
            if silent > STALL_SECONDS and (self.cpu_seconds() - worked > STALL_SECONDS or silent > 3 * STALL_SECONDS):
                return f"no sign of life for {silent:.0f} s"
            if now - start - (self.starved_seconds() - first_wait) > BOOT_SECONDS:
                return f"no SSH after {BOOT_SECONDS} s"
            time.sleep(0.2)
        return None

    def cpu_seconds(self) -> float:
        """QEMU's CPU time so far."""
        try:
            fields = pathlib.Path(f"/proc/{self.pid()}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def starved_seconds(self) -> float:
        """How long QEMU has waited for a CPU so far, by the kernel's count for the longest waiting thread."""
        try:
            threads = list(pathlib.Path(f"/proc/{self.pid()}/task").iterdir())
            return max(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def settle(self, restored: bool) -> None:
        """A snapshot's clock stood still; after a boot systemd may still have jobs."""
        script = f"date --set=@{time.time():.0f} >/dev/null; "
        self.require_hardware(script if restored else script + "systemctl is-system-running --wait >/dev/null; ")

    def require_hardware(self, first: str = "") -> None:
        unit = "lab-hardware.service"
        script = f"{first}systemctl is-active {unit} || journalctl --no-pager --lines=20 --unit={unit}"
        done = ssh.run(self.settings, self.name, script, timeout=BOOT_SECONDS)
        if done.returncode or done.stdout.strip() != "active":
            seen = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
            next_step = (
                f"lab/labctl ssh {self.name} journalctl -b; or back to a good state: lab/labctl restore {PRISTINE}"
            )
            raise LabError(f"{self.name}: unit {unit}", "active", seen, next_step)

    def console_tail(self) -> str:
        text = (self.folder / "console.log").read_text(errors="replace")
        return "\n".join(f"          {line}" for line in text.splitlines()[-8:])

    def link(self, nic: str, up: bool) -> None:
        with self.qmp() as qmp:
            qmp.execute("set_link", name=nic, up=up)
        # QEMU does not report a link's state, so the record keeps it until QEMU starts again.
        out = set(self.record().get("cables_out") or ()) - {nic} | (set() if up else {nic})
        (self.folder / "node.json").write_text(json.dumps({**self.record(), "cables_out": sorted(out)}))


class Qmp:
    """A session on the control socket of a node's QEMU, with only the commands that the lab needs."""

    def __init__(self, folder: pathlib.Path, name: str, timeout: float = 120):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        # A socket path holds 107 bytes and checkouts may be deep: reach the folder through an open descriptor.
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.connect(f"/proc/self/fd/{descriptor}/qmp.sock")
        finally:
            os.close(descriptor)
        self.stream = self.socket.makefile("r")
        self.stream.readline()
        self.execute("qmp_capabilities")

    def __enter__(self) -> "Qmp":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def execute(self, command: str, **arguments: object) -> object:
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self.stream:
            answer = json.loads(line)
            if "error" in answer:
                raise LabError(
                    f"{self.name}: QEMU",
                    command,
                    answer["error"]["desc"],
                    f"read qemu.log and console.log of {self.name}",
                )
            if "return" in answer:
                return answer["return"]
        raise LabError(f"{self.name}: QEMU", f"an answer to {command}", "QEMU ended", f"read qemu.log of {self.name}")

    def monitor(self, line: str) -> str:
        """A command of the human monitor: it has savevm and returns errors as text."""
        return str(self.execute("human-monitor-command", **{"command-line": line})).strip()
