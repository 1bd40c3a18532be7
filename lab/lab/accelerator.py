"""Plain emulation, or KVM if a guest has run under it: a writable /dev/kvm proves nothing."""

import json
import os
import platform
import subprocess

from .image import Image
from .settings import LabError, Settings, say

PROBE_SECONDS = 15
QEMU = "qemu-system-x86_64"


def choose(settings: Settings, image: Image) -> str:
    if settings.accelerator == "tcg":
        return "tcg"
    if settings.accelerator == "auto" and not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    cache = settings.state / "accelerator.json"
    machine = [platform.release(), platform.node(), image.name]
    if cache.exists() and (known := json.loads(cache.read_text()))["machine"] == machine:
        works = known["kvm"]
    else:
        works = probe(image)
        cache.write_text(json.dumps({"machine": machine, "kvm": works}))
        say("KVM: a probe guest booted" if works else "KVM: the probe guest did not boot, using plain emulation")
    if settings.accelerator == "kvm" and not works:
        raise LabError(
            "KVM", "a guest that boots, because LAB_ACCEL=kvm", f"none within {PROBE_SECONDS} s", "unset LAB_ACCEL"
        )
    return "kvm" if works else "tcg"


def probe(image: Image) -> bool:
    """Boots kernel and initrd up to our init, which reports it and powers off."""
    command = [
        QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-m", "512",
        "-accel", "kvm", "-cpu", "host", "-kernel", str(image.kernel), "-initrd", str(image.initrd),
        "-append", "console=ttyS0 quiet lab.probe", "-serial", "stdio",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return b"lab-probe-ok" in done.stdout
