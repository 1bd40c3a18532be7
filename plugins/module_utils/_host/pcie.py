"""ACS of the bridges between GPUs and HCAs, by a kernel parameter for the next boot; and MaxReadReq of the HCAs.

Pure: facts and options in, Plan out. The kernel sets ACS before any driver is loaded, and derives IOMMU groups from it:
writing the registers of a running node would change one without the other. MaxReadReq is lost when a driver is loaded
again, so a udev rule sets it by PCI address whenever a driver is bound.
"""

from __future__ import annotations

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal
from ..hca import paths, pcie_path

REPORT, TOPOLOGY = "report", "topology"
READ_REQUEST = 4096
MENU = "boot menu"
GRUB, GRUBBY = "update-grub", "grubby"
_FILES = {GRUB: paths.OWN_ACS_GRUB, GRUBBY: paths.OWN_ACS_RECORD}
_OBJECT = "ACS at boot"
_BOUND = 'ACTION=="add|bind", SUBSYSTEM=="pci"'
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: acs (report|topology), read_request (bytes or None).

    facts: with `acs_before`, the parameter when the module began, and `acs_in_menu`, whether the boot menu has the
    present one; without them the file decides.
    """
    made = Plan()
    _read_request(facts, wanted["read_request"], root, made)
    now = pcie_path.persisted(facts["owned_files"])
    parameter = _wanted(facts, wanted, now, made)
    if made.findings:
        return made
    if parameter:
        _set(facts, parameter, now, root, made)
    elif any(path in facts["owned_files"] for path in _FILES.values()):
        _remove(facts, now or "", root, made)
    booted = pcie_path.booted(facts["node"]["cmdline"])
    before = facts.get("acs_before", now)
    if parameter and parameter not in booted and pcie_path.unlike(parameter, facts["pcie"]["functions"]):
        made.reboot_reasons.append(f"The kernel runs without {parameter}, which is set for the next boot.")
    elif not parameter and before in booted:
        made.reboot_reasons.append(f"The kernel runs with {before}, which is not set for the next boot.")
    return made


def _wanted(facts: dict, wanted: dict, now: str | None, made: Plan) -> str | None:
    """The wanted parameter at boot: none, or the present one if the paths cannot be judged now."""
    if wanted["acs"] != TOPOLOGY:
        return None
    found = facts["pcie"]
    unknown = [path for path in found["paths"] if path["verdict"] == pcie_path.UNKNOWN]
    if unknown or not found["paths"]:
        why = "; ".join(sorted({path["reason"] for path in unknown})) or "no rail has its GPU on PCI now"
        made.not_applied.append(f"{_OBJECT} is left as it is: {why}")
        return now
    setting = pcie_path.setting(found, facts["node"]["kernel"])
    if not setting.parameter:
        made.not_applied.append(f"{_OBJECT}: {setting.reason}")
        return None
    foreign = _foreign(facts, setting.parameter, now)
    if foreign:
        made.finding(
            _OBJECT,
            f"{setting.parameter}, the only such parameter of the kernel",
            foreign,
            "remove it from the boot loader (GRUB_CMDLINE_LINUX, or grubby --update-kernel=ALL "
            "--remove-args=...), reboot, and run again; or set pcie_acs: report",
        )
    elif found["loader"] is None:
        made.finding(
            _OBJECT,
            "update-grub or grubby, which this role needs to set boot parameters",
            "neither in /usr/sbin",
            f"add {setting.parameter} to the kernel's command line yourself, and set pcie_acs: report",
        )
    return setting.parameter


def _foreign(facts: dict, parameter: str, now: str | None) -> str | None:
    """A parameter of the running kernel that conflicts with ours; one that equals ours may be its own."""
    for word in (facts["node"]["cmdline"] or "").split():
        if word.startswith("pcie_acs_override="):
            return f"{word}, which reports isolation that the bridges do not have"
        # If we have set a parameter, a different one is ours from the last boot. grubby replaces any of this name.
        other = now is None and facts.get("acs_before") is None and word.strip('"').startswith("pci=")
        other = other and word.strip('"') != parameter
        if other and (pcie_path.booted(word) or facts["pcie"]["loader"] == GRUBBY):
            return word
    return None


def text(loader: str, parameter: str) -> str:
    """Our file. GRUB reads a bare semicolon as the end of its command."""
    line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX \\"{parameter}\\""' if loader == GRUB else parameter
    return f"{HEADER}{line}\n"


def _set(facts: dict, parameter: str, now: str | None, root: str, made: Plan) -> None:
    # If the paths cannot be judged now, nothing differs and nothing is written.
    loader = facts["pcie"]["loader"]
    if loader is None:
        return
    stale = parameter != now or not facts.get("acs_in_menu", True)
    if loader == GRUB:
        plan_file(made, facts, _FILES[loader], text(loader, parameter))
    if stale:
        _menu(facts, now or "", parameter, root, made)
    if loader == GRUBBY:
        # The record comes last: it proves that grubby succeeded.
        plan_file(made, facts, _FILES[loader], text(loader, parameter))


def _remove(facts: dict, now: str, root: str, made: Plan) -> None:
    """The file goes last: a run killed before the menu was rebuilt leaves a file without a parameter."""
    if paths.OWN_ACS_GRUB in facts["owned_files"] and not kernel_out_of_reach(facts, root):
        plan_file(made, facts, paths.OWN_ACS_GRUB, HEADER)
    _menu(facts, now, "", root, made)
    for path in _FILES.values():
        plan_removal(made, facts, path)


def _read_request(facts: dict, wanted: int | None, root: str, made: Plan) -> None:
    """For the functions through which the rails reach their GPUs."""
    if wanted is None:
        plan_removal(made, facts, paths.OWN_READ_REQUEST)
        return
    functions = facts["pcie"]["functions"]
    found = sorted({path["function"] for path in facts["pcie"]["paths"] if path["function"] in functions})
    if not found:
        made.not_applied.append("MaxReadReq is left as it is: no rail has its GPU on PCI now")
        return
    offline = kernel_out_of_reach(facts, root)
    for address in found:
        now, obj = functions[address]["max_read_request"], f"MaxReadReq of {address}"
        if now is None or offline:
            made.not_verified.append(f"{obj}: {offline or 'its config space cannot be read'}")
        elif now != wanted and facts["pcie"].get("lockdown") not in (None, "none"):
            made.finding(
                obj,
                str(wanted),
                f"{now}, and lockdown {facts['pcie']['lockdown']}, in which the kernel refuses to write config space",
                "set it in the firmware and pcie_read_request: null here, or switch Secure Boot off",
            )
        elif now != wanted:
            made.change(obj, "set", str(now), str(wanted))
    rules = (
        f'{_BOUND}, KERNEL=="{at}", RUN+="/bin/sh -c \'{_PATH} {" ".join(setpci(at, wanted))}\'"\n' for at in found
    )
    plan_file(made, facts, paths.OWN_READ_REQUEST, HEADER + "".join(rules))


def setpci(address: str, size: int) -> list[str]:
    """MaxReadReq is in bits 14:12 of Device Control: 128 bytes, doubled that many times."""
    return ["setpci", "-s", address, f"CAP_EXP+08.w={size.bit_length() - 8:x}000:F000"]


def _menu(facts: dict, before: str, after: str, root: str, made: Plan) -> None:
    offline = kernel_out_of_reach(facts, root)
    if offline:
        made.not_verified.append(f"the {MENU} is not rebuilt: {offline}")
    else:
        made.change(MENU, "set" if after else "unset", before, after)


def commands(loader: str, before: str, after: str) -> list[list[str]]:
    """The command that changes the boot menu from one parameter to the other."""
    if loader == GRUB:
        return [[GRUB]]
    found = [[GRUBBY, "--update-kernel=ALL", f'--remove-args="{before}"']] if before else []
    return found + ([[GRUBBY, "--update-kernel=ALL", f'--args="{after}"']] if after else [])
