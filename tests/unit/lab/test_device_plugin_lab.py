"""tests/device_plugin_lab without a node: what it prints, and that a miss is one."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def lab(monkeypatch):
    """The programs of tests/device_plugin_lab, which import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/device_plugin_lab"))
    for name in ("labnode", "plugin_lab", "bench_peer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import bench_peer
    import plugin_lab

    return plugin_lab, bench_peer


def outcome(lab, monkeypatch, good=True, code=0, text=None):
    """plugin_lab.main() with a node that answers so."""
    rows = [{"what": "link down", "wanted": "0", "seen": "0" if good else "10", "times": [0.5, 0.7], "good": good}]
    figures = {"after": "end", "rounds": 200, "rss": 1, "anonymous": 1, "descriptors": 24, "threads": 10}
    result = json.dumps({"rows": rows, "growth": [figures], "load": [0.1, 0.2]}) if text is None else text
    node = lab[0].labnode
    monkeypatch.setattr(sys, "argv", ["plugin_lab.py"])
    monkeypatch.setattr(node, "payload", lambda: None)
    monkeypatch.setattr(node, "bring", lambda _folder: None)
    monkeypatch.setattr(node, "labctl", lambda *words, **_more: subprocess.CompletedProcess(words, 0, "", ""))
    monkeypatch.setattr(node, "on_node", lambda _script, **_more: subprocess.CompletedProcess((), code, result, ""))
    return lab[0].main()


def test_all_as_wanted_is_success(lab, monkeypatch, capsys):
    assert outcome(lab, monkeypatch) == 0
    assert "1 as wanted, 0 missed" in capsys.readouterr().out


def test_a_miss_is_shown_and_fails_the_run(lab, monkeypatch, capsys):
    assert outcome(lab, monkeypatch, good=False, code=1) == 1
    out = capsys.readouterr().out
    assert "MISS  link down" in out
    assert "0.60 (to 0.70)" in out


@pytest.mark.parametrize(("code", "text"), [(1, None), (1, ""), (0, "")])
def test_a_run_that_broke_off_is_not_a_success(lab, monkeypatch, code, text):
    assert outcome(lab, monkeypatch, code=code, text=text) == 1


def test_a_ratio_stands_only_where_both_have_a_figure(lab):
    ours = [{"Allocate p99 (ms)": 2.0, "HCA plugged (s)": 0.5}, {"Allocate p99 (ms)": 4.0, "HCA plugged (s)": 0.7}]
    theirs = [{"Allocate p99 (ms)": 6.0, "HCA plugged (s)": None}, {"Allocate p99 (ms)": 6.0, "HCA plugged (s)": 3.0}]
    lines = [line.split() for line in lab[1].show("watch", {"ours": ours, "theirs": theirs})]
    assert lines[1][-3:] == ["3.00", "6.00", "2.00"]
    assert lines[2][-2:] == ["0.60", "never"]


def test_the_alias_of_a_pci_function_is_the_kernels(lab, tmp_path):
    values = {"vendor": "0x15b3", "device": "0x1021", "subsystem_vendor": "0x15b3", "class": "0x020700"}
    for name, value in values.items():
        (tmp_path / name).write_text(value + "\n")
    assert lab[1].tree.modalias(tmp_path) == "pci:v000015B3d00001021sv000015B3sd00000000bc02sc07i00\n"
