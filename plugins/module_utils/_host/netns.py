"""The RDMA subsystem's network namespace mode: running, and at boot. Pure: facts and options in, Plan out."""

from __future__ import annotations

import os

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import plan_file, with_directive
from ..hca import paths
from ..hca.modprobe import CMDLINE
from .initramfs import mark_stale

OBJECT = "RDMA netns mode"
_VALUE = {"shared": 1, "exclusive": 0}


def plan(facts: dict, wanted: dict, root: str = "/", busy: bool = False) -> Plan:
    """wanted: mode (shared|exclusive), override_allowed (None|True|False).

    busy: the kernel has just refused the change although only short-lived units seemed to block it.
    """
    made = Plan()
    mode = wanted["mode"]
    subsystem = facts["subsystem"]
    if not _may_persist(subsystem["netns_sources"], mode, wanted["override_allowed"], made):
        return made

    owned = facts["owned_files"].get(paths.OWN_MODPROBE)
    option = f"options ib_core netns_mode={_VALUE[mode]}"
    text = with_directive(owned["content"] if owned else "", "options ib_core", option)
    mark_stale(made, facts, plan_file(made, facts, paths.OWN_MODPROBE, text), root)
    _plan_running(facts, mode, kernel_out_of_reach(facts, root), busy, made)
    return made


def _may_persist(sources: list[dict], mode: str, override_allowed: bool | None, made: Plan) -> bool:
    """Whether our file may be written and will win; reports what else sets the mode."""
    against = [source for source in sources if not source["ours"] and source["mode"] != mode]
    cmdline = [source for source in against if source["path"] == CMDLINE]
    own = os.path.basename(paths.OWN_MODPROBE)
    later = [source for source in against if source not in cmdline and os.path.basename(source["path"]) > own]
    files = [source for source in against if source not in cmdline and source not in later]
    for source in cmdline:
        made.finding(
            OBJECT,
            f"{mode} at boot",
            f"the kernel command line says '{source['text']}', which no file can override",
            "remove it from the boot loader's configuration (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub "
            "or grub2-mkconfig; grubby --update-kernel=ALL --remove-args=...), reboot, and run again",
        )
    for source in later:
        made.finding(
            OBJECT,
            f"{mode} at boot",
            f"{_where(source)}, and that file is read after {paths.OWN_MODPROBE}",
            "remove that line or rename the file so that it sorts before ours",
        )
    if files and override_allowed is None:
        for source in files:
            made.finding(
                OBJECT,
                f"{mode} at boot",
                f"{_where(source)}; the file is not ours (the SR-IOV network operator writes such files)",
                "find out what owns it; then set rdma_netns_override_allowed: true to let our file win, or false to "
                "leave the node in the mode it sets",
            )
    if made.findings:
        return False
    if files and override_allowed is False:
        made.not_applied.append(
            f"{OBJECT} {mode}: left alone, because rdma_netns_override_allowed is false and "
            + " and ".join(_where(source) for source in files)
        )
        return False
    made.notes.extend(f"{_where(source)}; {paths.OWN_MODPROBE} is read later and wins" for source in files)
    return True


def _plan_running(facts: dict, mode: str, offline: str | None, busy: bool, made: Plan) -> None:
    subsystem = facts["subsystem"]
    running = subsystem["netns_mode"]
    if running == mode:
        return
    if offline:
        made.not_verified.append(f"the running RDMA netns mode is {running}, {mode} is persisted only: {offline}")
    elif running not in _VALUE:
        # Without ib_core there is no mode yet; the option applies when it is loaded.
        made.notes.append(f"the RDMA netns mode becomes {mode} when ib_core is loaded ({running})")
    elif busy or lasting(subsystem["namespaces"]):
        made.reboot_reasons.append(reboot_reason(running, mode, subsystem["namespaces"]))
    else:
        made.change(OBJECT, "set", running, mode)


def lasting(namespaces: list[dict] | str) -> list[dict]:
    """Namespaces that will not go away on their own: named ones, and those of anything but a short-lived unit.

    When the facts do not know (a string), the kernel decides.
    """
    if isinstance(namespaces, str):
        return []
    return [
        namespace
        for namespace in namespaces
        if namespace["name"] or not namespace["owners"] or not all(owner["transient"] for owner in namespace["owners"])
    ]


def reboot_reason(running: str, mode: str, namespaces: list[dict] | str) -> str:
    held = namespaces if isinstance(namespaces, str) else "; ".join(owners(namespace) for namespace in namespaces)
    return (
        f"{OBJECT} is {running}; {mode} is persisted and takes effect at boot, because the kernel does not change it "
        f"while another network namespace exists ({held or 'its owner is not visible from this process'})"
    )


def owners(namespace: dict) -> str:
    """One network namespace and its holders, for a message."""
    held = [f"named {namespace['name']}"] if namespace["name"] else []
    for owner in namespace["owners"]:
        held.append(f"pid {owner['pid']} {owner['command']}" + (f" of {owner['unit']}" if owner["unit"] else ""))
    return f"namespace {namespace['inode']}: {', '.join(held) or 'no visible owner'}"


def _where(source: dict) -> str:
    return f"{source['path']}:{source['line']} says '{source['text']}'"
