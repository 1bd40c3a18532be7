"""Carries out the changes of a driver plan with the node's package manager and DKMS."""

from __future__ import annotations

import os
import tempfile

from .._core.change import Refused
from .._core.files import write
from .._core.units import apply_units
from . import dkms, packages, trial
from .plan import DKMS_MODULES, INBOX

ADDS = ("install", "upgrade", "downgrade")


class Installer:
    """Applies the changes of one plan. Packages of one action go to the package manager in one call."""

    def __init__(self, state: dict, wanted: dict, run, trial_build: bool = True):
        self._state, self._wanted, self._run, self._trial_build = state, wanted, run, trial_build
        self._kind = state["manager"]

    def apply(self, changes):
        if self._wanted["flavor"] != INBOX:
            exact = yield from self._prove(changes)
        else:
            exact = yield from self._need(changes)
        yield from self._finish(changes)
        yield from self._take_out(changes)
        yield from self._files(changes)
        yield from self._return(changes)
        yield from self._add(changes, exact or {})
        yield from self._build(changes)
        yield from self._hold(changes)

    def _prove(self, changes):
        """A trial next to the node. Returns {package: exact version}."""
        adding = [change for change in changes if change.action in ADDS]
        if not adding:
            yield from self._need(changes)
            return {}
        names = [change.object.split()[1] for change in adding]
        downgrade = any(change.action == "downgrade" for change in adding)
        with trial.OF[self._kind](self._run) as beside:
            exact, archives = beside.resolve(self._wanted, names, _named(changes, "need"), downgrade)
            yield from self._need(changes)
            if self._trial_build:
                beside.build(archives, self._state["kernels"], self._architecture())
        return exact

    def _need(self, changes):
        command = packages.install_command(self._kind, _named(changes, "need"))
        return self._at_once(changes, "need", command, "build tools and kernel headers")

    def _at_once(self, changes, action: str, command: list[str], what: str):
        mine = [change for change in changes if change.action == action]
        if mine:
            self._do(command, what)
            yield from mine

    def _finish(self, changes):
        """Finish packages that an interrupted run left half configured; dpkg refuses anything else until then."""
        command = ["dpkg", "--configure", "--pending"]
        return self._at_once(changes, "finish", command, "packages that an earlier run left half configured")

    def _take_out(self, changes):
        for change in changes:
            if change.action == "take out":
                names = [line.split()[0] for line in change.before.splitlines()]
                command = packages.remove_command(self._kind, names)
                trial.refuse_removal(self._kind, "driver stack", "removed", self._run(packages.only_shown(command))[1])
                self._do(command, "old driver stack")
                yield change

    def _files(self, changes):
        yield from apply_units("/", [change for change in changes if change.object.startswith("/")], self._run)

    def _return(self, changes):
        for change in changes:
            if change.action == "return":
                versions = dict(line.split() for line in change.before.splitlines())
                command = packages.restore_command(self._kind, list(versions))
                self._do_pinned(command, packages.restore_pins(versions), "the distribution's user space")
                yield change

    def _add(self, changes, exact):
        adding = [change for change in changes if change.action in ADDS]
        if not adding:
            return
        if self._kind == packages.APT and (self._wanted["repository"] or {}).get("url"):
            self._do(packages.update_command(packages.REPOSITORIES[packages.APT]), "list of the driver repository")
        names = [change.object.split()[1] for change in adding]
        names = [packages.pinned(self._kind, name, exact.get(name)) for name in names]
        downgrade = any(change.action == "downgrade" for change in adding)
        command = packages.install_command(self._kind, names, downgrade)
        if downgrade:
            self._do_pinned(command, packages.downgrade_pins(self._wanted["repository"]["label"]), " ".join(names))
        else:
            self._do(command, " ".join(names))
        yield from adding

    def _build(self, changes):
        """Modules with DKMS. The GPU driver last, against the RDMA stack now on disk; first next to the old one."""
        for change in changes:
            if change.action not in ("build", "rebuild"):
                continue
            _dkms, _module, module, version, _for, kernel = change.object.split()
            commands = [["dkms", "install", "-m", module, "-v", version, "-k", kernel, "--force"]]
            if change.action == "rebuild":
                with trial.OF[self._kind](self._run) as beside:
                    beside.build_source((module, version), "/usr/src", [kernel], self._architecture())
                commands = packages.rebuild_commands(module, version, kernel)
            for command in commands:
                code, out, error = self._run(command)
                if code:
                    raise trial.build_failed(module, version, kernel, self._architecture(), out + error)
            yield change

    def _hold(self, changes):
        for action in ("hold", "unhold"):
            command = ["apt-mark", action, *_named(changes, action)]
            yield from self._at_once(changes, action, command, "kernel packages")

    def _architecture(self) -> str:
        return self._state["facts"]["node"]["architecture"]

    def _do_pinned(self, argv: list[str], pins: str, what: str) -> None:
        """Run apt with pins for this command only; dnf has no such feature and needs none."""
        if self._kind != packages.APT:
            self._do(argv, what)
            return
        with tempfile.TemporaryDirectory(prefix="gpufabric-driver-") as scratch:
            path = os.path.join(scratch, "pins")
            write(path, pins)
            self._do([*argv, *packages.with_preferences(path)], what)

    def _do(self, argv: list[str], what: str) -> None:
        code, out, error = self._run(argv)
        if code:
            self._look_for_failed_builds()
            lines = [line for line in (error or out).splitlines() if line.strip() and not line.startswith("W: ")]
            raise Refused.because(
                what,
                f"{argv[0]} {argv[1]} to succeed",
                "\n".join(lines[-12:]) or f"exit status {code}",
                "fix what it reports and run again; the next run continues from here",
            )

    def _look_for_failed_builds(self) -> None:
        """A package with a failed build only reports that its script failed; the reason is in DKMS's log."""
        if self._kind != packages.APT:
            return
        _code, out, _error = self._run(["dkms", "status"])
        for module, version, kernel, _state in dkms.not_installed(
            dkms.parse(out), list(DKMS_MODULES), self._state["kernels"]
        ):
            if any(map(os.path.exists, dkms.log_path(module, version, kernel, self._architecture()))):
                raise trial.build_failed(module, version, kernel, self._architecture(), "")


def _named(changes, action: str) -> list[str]:
    """The packages of an action."""
    return [change.object.split()[1] for change in changes if change.action == action]
