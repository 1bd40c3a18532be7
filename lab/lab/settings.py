"""Names, numbers and paths of the lab; the environment may change them for another machine or a second lab."""

import dataclasses
import os
import pathlib
import subprocess
import time
from collections.abc import Sequence

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
IMAGE_SOURCE = CHECKOUT / "lab" / "image"
NUMBERS = {"node1": 1, "node2": 2}
# LAB_NODES=node1 makes a lab with one node; its cables then lead nowhere.
NODES = {name: NUMBERS[name] for name in os.environ.get("LAB_NODES", "").split() if name in NUMBERS} or NUMBERS
# eth0 is QEMU's user network (SSH from the controller); the others are cables to the other node.
CABLES = {f"eth{number}": number for number in range(1, 10)}
NICS = ("eth0", *CABLES)
PRISTINE = "ready"
# About 1 cold boot in 30 hangs early under emulation: without a sign of life for this long a node gets one retry.
STALL_SECONDS = 30
BOOT_SECONDS = 300


class LabError(Exception):
    """An error for the user: the object, what was wanted, what was seen, what to do next."""

    def __init__(self, what: str, wanted: str, seen: str, next_step: str):
        super().__init__(f"{what}\n  wanted: {wanted}\n  seen:   {seen}\n  next:   {next_step}")


@dataclasses.dataclass(frozen=True)
class Settings:
    state: pathlib.Path
    images: pathlib.Path
    port_base: int
    memory_mib: int
    accelerator: str
    gpu: bool

    @property
    def nodes(self) -> pathlib.Path:
        return self.state / "nodes"

    @property
    def ssh(self) -> pathlib.Path:
        return self.state / "ssh"

    def ssh_port(self, number: int) -> int:
        return self.port_base + number

    @property
    def mirror_port(self) -> int:
        return self.port_base + 5

    def cable_ports(self, cable: int, number: int) -> tuple[int, int]:
        """UDP ports of this node's end and of the other node's end."""
        other = next(n for n in NUMBERS.values() if n != number)
        return self.port_base + 10 * cable + number, self.port_base + 10 * cable + other


def number(name: str, default: int, lowest: int, highest: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        raise LabError(
            f"environment variable {name}", f"a number from {lowest} to {highest}", text, f"unset {name} or correct it"
        )
    return int(text)


def load() -> Settings:
    accelerator = os.environ.get("LAB_ACCEL") or "auto"
    if accelerator not in ("auto", "tcg", "kvm"):
        raise LabError(
            "environment variable LAB_ACCEL", "auto, tcg or kvm", accelerator, "unset LAB_ACCEL or correct it"
        )
    if wrong := sorted(set(os.environ.get("LAB_NODES", "").split()) - set(NUMBERS)):
        raise LabError(
            "environment variable LAB_NODES",
            f"names of nodes: {' '.join(NUMBERS)}",
            " ".join(wrong),
            "unset LAB_NODES or correct it",
        )
    state = pathlib.Path(os.environ.get("LAB_DIR") or CHECKOUT / ".lab").absolute()
    return Settings(
        state=state,
        images=CHECKOUT / ".lab" / "image",
        port_base=number("LAB_PORT_BASE", 22220, 1024, 65500),
        memory_mib=number("LAB_MEMORY_MIB", 3072, 1024, 65536),
        accelerator=accelerator,
        gpu=bool(os.environ.get("LAB_GPU")),
    )


STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"lab {time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def run(argv: Sequence[str], what: str, next_step: str) -> str:
    """Runs one program and returns its output; `what` is the object for the error."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError(what, f"the program {argv[0]}", "it is not on PATH", "run: lab/packages lab") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-12:]
        seen = "\n          ".join([f"exit code {done.returncode}:", *said])
        raise LabError(what, f"exit code 0 of: {' '.join(argv)}", seen, next_step)
    return done.stdout
