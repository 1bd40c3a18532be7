"""Values in firmware: output of two versions of mstconfig, refusals before a change, and only one try."""

from __future__ import annotations

import itertools
import json

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, Refused, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firmware, nic_settings
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.modules import nic_settings as module

A, B = "0000:01:00.0", "0000:02:00.0"
KEYS = {"ATS_ENABLED": ["False", "True"], "PCI_WR_ORDERING": ["per_mkey", "force_relax"], "NUM_OF_VFS": []}


class Mstconfig:
    """A double with the output of that version's mlxcfg_ui.cpp. boots: the effect of a warm reboot on next values."""

    def __init__(self, version: str, *addresses: str):
        state = {key: dict.fromkeys(("default", "current", "next"), 1) for key in KEYS}
        self.version, self.hcas, self.argvs = version, {at: json.loads(json.dumps(state)) for at in addresses}, []
        self.keeps, self.read_only, self.columns = (lambda key, value: value), (), ("default", "current", "next")
        self.stored = "22.41.1000"

    def __call__(self, argv):
        if argv[0].endswith("devlink"):
            versions = {"running": {"fw.version": "22.41.1000"}, "stored": {"fw.version": self.stored}}
            return 0, json.dumps({"info": {argv[4]: {"driver": "mlx5_core", "versions": versions}}}), ""
        self.argvs.append(argv[1:])
        words = [word for word in argv[3:] if not word.startswith("-")]
        if argv[2] not in self.hcas:
            return 3, "-E- Failed to open the device\n", ""
        head = f"\nDevice #1:\n----------\n\nDevice type:    ConnectX7\nDevice:         {argv[2]}\n\n"
        asked = [word.partition("=")[0] for word in words[1:]]
        wrong = [f"-E- The Device doesn't support {key} parameter\n" for key in asked if key not in KEYS]
        if wrong:
            return 3, head + wrong[0], ""
        if words[0] == "set":
            return self._set(argv[2], words[1:])
        rows = [self._row(key, self.hcas[argv[2]][key]) for key in asked]
        note = "The '*' shows parameters with next value different from default/current value.\n"
        return 0, f"{head}{self._header()}\n{''.join(rows)}{note}", ""

    def _set(self, address, pairs):
        for key, value in (pair.split("=") for pair in pairs):
            number = int(value) if value.isdecimal() else KEYS[key].index(value)
            if number > 64:
                return 3, f"Applying... Failed!\n-E- Cannot set the value {value} for the parameter {key}\n", ""
            self.hcas[address][key]["next"] = self.keeps(key, number)
        return 0, "Applying... Done!\n-I- Please reboot machine to load new configurations.\n", ""

    def _header(self):
        widths = (16, 36, 16, 18) if self.version == "4.21" else (20, 44, 20, 18)
        titles = {"default": "Default", "current": "Current", "next": "Next Boot"}
        shown = [titles[name].rjust(width) for name, width in zip(titles, widths[1:]) if name in self.columns]
        return "Configurations:".ljust(widths[0]) + "".join(shown)

    def _row(self, key, state):
        star = "*" if len(set(state.values())) > 1 else " "
        old = self.version == "4.21"
        begin = f"{star}        {key:<36}" if old else f"{star}{'RO' if key in self.read_only else '  '}     {key:<44}"
        cells = [state[name] for name in self.columns]
        cells = [f"{KEYS[key][value]}({value})" if KEYS[key] else str(value) for value in cells]
        cells = [cell.ljust(16 if old else 20) + " " * (len(cell) > 16 if old else len(cell) >= 20) for cell in cells]
        return f"{begin}{''.join(cells)}\n"

    def reboot(self):
        for state in (state for hca in self.hcas.values() for state in hca.values()):
            state["current"] = state["next"]

    def sets(self):
        return [words[1:] for words in self.argvs if "set" in words]


def function(address, **more):
    netdevs = [{"name": "eth0", "management": more.pop("management", None)}]
    return {"pci": {"address": address, "vendor": "15b3", "physfn": None, **more}, "netdevs": netdevs}


def facts(*hcas, boot="first"):
    hcas = hcas or (function(A), function(B))
    node = {"container": None, "boot_id": boot}
    return {"node": node, "hcas": list(hcas), "cards_without_rdma": [], "owned_files": {}, "qos": {"nics": []}}


@pytest.fixture
def run(tmp_path, put, monkeypatch):
    """run(double, stated, allowed, boot, check): the last plan and the changes, from the module's own functions."""
    for program in ("mstconfig", "devlink"):
        put(f"bin/{program}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def once(double, stated, allowed=True, boot="first", check=False):
        wanted = {"traffic": None, "firmware": stated, "firmware_allowed": allowed}

        def read():
            there = facts(boot=boot)
            return {**there, "firmware": firmware.read(Tree(str(tmp_path)), double, there, stated)}

        return settle(
            read,
            lambda there: nic_settings.plan(there, wanted),
            lambda changes: module.apply(changes, str(tmp_path), double),
            check,
        )

    return once


ATS = {"all": {"ATS_ENABLED": False}}


@pytest.mark.parametrize(("row", "state"), [
    ("         MODULE_SPLIT_M0     Array[0..15]   Array[0..15]   Array[0..15]", ["Array[0..15]"] * 3),
    # 4.21 puts no space behind 16 characters.
    (f"         MODULE_SPLIT_M0     {'ADDRESS_BASED(3)' * 3}", ["ADDRESS_BASED(3)"] * 3),
    ("*        NUM_OF_VFS          N/A            N/A            8", [None, None, "8"]),
    ("         NUM_OF_VFS          8              N/A            N/A", None),
    ("         NUM_OF_VFS_VALID    8              8              8", None),
    ("         NUM_OF_VFS          8              8", None),
    ("         NUM_OF_VFS          8              8              8              9", None),
    ("-E- The Device doesn't support NUM_OF_VFS parameter", None),
])  # fmt: skip
def test_a_row_that_cannot_be_told_apart_is_not_guessed(row, state):
    text = f"Configurations:    Default   Current     Next Boot\n{row}\n"
    values = firmware.parsed(text, ["NUM_OF_VFS", "MODULE_SPLIT_M0"]).values()
    assert [[each[name] for name in ("default", "current", "next")] for each in values] == ([state] if state else [])


@pytest.mark.parametrize(("wanted", "seen", "equal"), [
    ("8", "8", True), ("8", "18", False), ("1", "True(1)", True), ("true", "True(1)", True), ("0", "True(1)", False),
    ("per_mkey", "per_mkey(0)", True), ("0", "per_mkey(0)", True), ("mkey", "per_mkey(0)", False),
    ("0x10", "16", True), ("0x10", "0x10(16)", True), ("16", "0x10(16)", True), ("per_mkey", "0", False),
])  # fmt: skip
def test_values_are_compared_by_number_or_name(wanted, seen, equal):
    assert firmware.same(wanted, seen) is equal


@pytest.mark.parametrize(("stated", "bad"), [
    ('{all: {ATS_ENABLED: false}, "01:00.0": {"HOST_CHAINING_DESCRIPTORS[3]": 0x10}}', False),
    ("{}", False),
    ("{0000:01:00.0: {ATS_ENABLED: false}}", True),  # sexagesimal, to YAML
    ("{mlx5_0: {ATS_ENABLED: false}}", True),
    ("{all: {ATS_ENABLED: null}}", True),
    ("{all: {ATS_ENABLED: [1]}}", True),
    ("{all: [ATS_ENABLED]}", True),
    ("{all: {--force: 1}}", True),
    ('{all: {ATS_ENABLED: "1 SRIOV_EN=1"}}', True),
    ("[ATS_ENABLED]", True),
])  # fmt: skip
def test_what_cannot_be_a_value_is_refused(stated, bad):
    given, made = yaml.safe_load(stated), Plan()
    assert firmware.malformed(given) is bad
    firmware.plan(facts(), given, True, "/", made)
    assert len(made.findings) == bad


OVER = {**ATS, A: {"NUM_OF_VFS": 8}}
SECOND = "0000:01:00.1"


@pytest.mark.parametrize(("hcas", "stated", "chosen", "counts"), [
    ([], ATS, {A: {"ATS_ENABLED": "0"}, B: {"ATS_ENABLED": "0"}}, (0, 0)),
    ([function(A), function(SECOND), function(B, physfn=A)], ATS, {A: {"ATS_ENABLED": "0"}}, (0, 0)),
    ([function(A), function(SECOND, management="ssh")], ATS, {}, (0, 1)),
    ([function(A, management="ssh"), function(A)], ATS, {}, (0, 1)),
    ([function(A, management="ssh")], OVER, {A: {"ATS_ENABLED": "0", "NUM_OF_VFS": "8"}}, (0, 0)),
    ([function(A), function(SECOND)], {**ATS, "01:00.1": {}}, {SECOND: {"ATS_ENABLED": "0"}}, (0, 0)),
    ([function(A, vendor="14e4"), {"pci": None, "netdevs": []}], OVER, {}, (1, 0)),
])  # fmt: skip
def test_all_is_a_function_of_each_card_that_management_does_not_use(hcas, stated, chosen, counts):
    made = Plan()
    assert firmware.chosen(facts(*hcas), stated, made) == chosen
    assert (len(made.findings), len(made.not_applied)) == counts


@pytest.mark.parametrize("version", ["4.21", "4.31"])
def test_consent_has_three_states_and_a_second_run_changes_nothing(run, tmp_path, version):
    double, stated = Mstconfig(version, A, B), {**ATS, A: {"PCI_WR_ORDERING": "per_mkey"}}
    with pytest.raises(Refused) as refused:
        run(double, stated, None)
    assert [finding.object for finding in refused.value.findings] == [f"firmware of {A}", f"firmware of {B}"]
    plan, changes = run(double, stated, False)
    assert (changes, len(plan.not_applied), plan.reboot_reasons, double.sets()) == ([], 2, [], [])
    planned = run(double, stated, check=True)
    plan, changes = run(double, stated)
    assert (double.sets(), planned[1]) == (
        [[A, "-y", "set", "ATS_ENABLED=0", "PCI_WR_ORDERING=per_mkey"], [B, "-y", "set", "ATS_ENABLED=0"]],
        changes,
    )
    assert len(planned[0].reboot_reasons) == len(plan.reboot_reasons) == 2
    kept = tmp_path / paths.OWN_FIRMWARE.lstrip("/")
    before = {A: {"ATS_ENABLED": "True(1)", "PCI_WR_ORDERING": "force_relax(1)"}, B: {"ATS_ENABLED": "True(1)"}}
    assert json.loads((kept / "before.json").read_text()) == before
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    plan, changes = run(double, stated)
    assert (changes, len(plan.reboot_reasons)) == ([], 2)
    double.reboot()
    plan, changes = run(double, stated, boot="second")
    assert (changes, plan.reboot_reasons, len(double.sets())) == ([], [], 2)
    # The old value is that before the first change.
    run(double, {A: {"ATS_ENABLED": True, "PCI_WR_ORDERING": "per_mkey"}}, boot="second")
    assert json.loads((kept / "before.json").read_text()) == before


@pytest.mark.parametrize(("stated", "there", "count"), [
    ({"all": {"ATS_ENABLED": False, "NO_SUCH_KEY": 1, "NOR_THIS": 1}}, (A, B), 4),
    (ATS, (A,), 1),
    ({**ATS, "0000:09:00.0": {"ATS_ENABLED": True}}, (A, B), 1),
    ({**ATS, B: {"NUM_OF_VFS": 8}}, (A, B), 1),
])  # fmt: skip
def test_one_problem_of_one_hca_keeps_all_from_being_written(run, stated, there, count):
    double = Mstconfig("4.31", *there)
    double.read_only = ("NUM_OF_VFS",)
    with pytest.raises(Refused) as refused:
        run(double, stated)
    assert (len(refused.value.findings), refused.value.done, double.sets()) == (count, [], [])
    assert run(double, {A: {"NUM_OF_VFS": 1}})[1] == [], "a read-only value may be as stated"


def test_without_the_program_or_a_kernel_that_may_be_touched_nothing_is_judged(run, tmp_path):
    (tmp_path / "bin/mstconfig").unlink()
    with pytest.raises(Refused) as refused:
        run(Mstconfig("4.31", A, B), ATS)
    assert [finding.object for finding in refused.value.findings] == ["program mstconfig"]
    assert len(run(Mstconfig("4.31", A, B), ATS, False)[0].not_applied) == 1
    made = Plan()
    firmware.plan(facts(), ATS, True, "/mnt", made)
    assert (made.changes, made.findings, len(made.not_verified)) == ([], [], 1)


def ignored(double):
    """A reboot that does not reset the firmware."""


def reverted(double):
    for state in (state for hca in double.hcas.values() for state in hca.values()):
        state["next"] = state["current"] = state["default"]


@pytest.mark.parametrize(("keeps", "reboot", "columns", "value", "ends"), [
    (None, Mstconfig.reboot, 3, 8, ("used", 1)),
    (None, ignored, 3, 8, ("finding", 1)),
    (None, reverted, 3, 8, ("finding", 1)),
    (lambda key, value: value - 1, Mstconfig.reboot, 3, 8, ("finding", 0)),
    (None, Mstconfig.reboot, 3, 99, ("finding", 0)),
    (None, ignored, 1, 8, ("unknown", 1)),
])  # fmt: skip
def test_there_is_one_write_and_one_reboot_whatever_the_firmware_does(run, keeps, reboot, columns, value, ends):
    double, stated, reboots, end = Mstconfig("4.31", A, B), {A: {"NUM_OF_VFS": value}}, 0, None
    double.keeps, double.columns = keeps or double.keeps, double.columns[-columns:]
    for boot, again in itertools.product("abc", range(2)):
        try:
            plan, _changes = run(double, stated, boot=boot)
        except Refused:
            end = "finding"
            continue
        end = "unknown" if plan.not_verified else "used"
        if plan.reboot_reasons and again:
            reboots += 1
            reboot(double)
    assert (len(double.sets()), (end, reboots)) == (1, ends)


def test_what_another_has_written_gets_one_reboot_too(run):
    double = Mstconfig("4.31", A, B)
    double.hcas[A]["ATS_ENABLED"]["next"] = double.hcas[B]["ATS_ENABLED"]["next"] = 0
    assert (run(double, ATS, None)[0].reboot_reasons, len(run(double, ATS, None)[0].notes)) == ([], 2)
    double.stored = "22.43.1014"
    assert sum(double.stored in note for note in run(double, ATS, None)[0].notes) == 2
    assert len(run(double, ATS)[0].reboot_reasons) == 2
    with pytest.raises(Refused) as refused:
        run(double, ATS, boot="second")
    assert (len(refused.value.findings), double.sets()) == (2, [])
    # Set back by something else before the reset, so no reset is needed.
    double.hcas[A]["ATS_ENABLED"]["next"] = 0
    assert run(double, {A: {"ATS_ENABLED": True}})[0].reboot_reasons == []
