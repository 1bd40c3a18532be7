"""Files, units, modules and sysctls of a role: decisions from a state, and the effect of a run on a tree."""

import copy
import os
import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import node_files as planner
from ansible_collections.gpufabric.rdma.plugins.modules import node_files
from ansible_collections.gpufabric.rdma.tests.tools import running

CONF = "/etc/a.conf"
UNIT = "/etc/systemd/system/a.service"
LINK = "/etc/systemd/system/multi-user.target.wants/a.service"
EXCLUSIVE = {"directory": "/etc/cni/net.d", "suffixes": [".conf"], "keep": ["00-multus.conf"], "allowed": None}
UNITS = {"present": True, "wanted_by": ["multi-user.target"], "running": True, "restarted_by": ["/etc/a.conf"]}
WANTED = {
    "files": [
        {"path": "/etc/a.conf", "content": "a\n", "mode": "0644"},
        {"path": UNIT, "content": "[Unit]\n", "mode": "0644"},
    ],
    "secrets": [{"path": "/etc/token", "content": "hush\n"}],
    "absent": ["/etc/old.conf"],
    "units": [{"name": "a.service", **UNITS}],
    "kernel_modules": ["br_netfilter"],
    "sysctls": {"net.ipv4.ip_forward": 1},
    "exclusive": [{**EXCLUSIVE, "reason": "pods would take it", "consent": "multus_foreign_allowed"}],
}


@pytest.fixture
def wanted() -> dict:
    return copy.deepcopy(WANTED)


@pytest.fixture
def settled() -> dict:
    known = {"mode": "0644", "mtime": 100}
    files = {CONF: {"content": "a\n", **known}, UNIT: {"content": "[Unit]\n", **known}, "/etc/old.conf": None}
    return {
        "files": files,
        "secrets": {"/etc/token": {"content": "hush\n", "mode": "0600"}},
        "links": {LINK: "../a.service"},
        "units": {"a.service": {"active": True, "started": 100}},
        "modules": {"br_netfilter": planner.LOADED},
        "sysctls": {"net.ipv4.ip_forward": "1"},
        "offline": None,
        "others": {"/etc/cni/net.d": [("00-multus.conf", "{}")]},
    }


def shown(made) -> list:
    return [(change.object, change.action) for change in made.changes]


STOPPED, LEFT = {"active": False, "started": None}, {"content": "", "mode": "0644"}


@pytest.mark.parametrize(("part", "drift", "expected"), [
    ("files", {}, []),
    ("files", {CONF: None}, [(CONF, "write"), ("a.service", "restart")]),
    ("files", {CONF: {"content": "b\n"}}, [(CONF, "write"), ("a.service", "restart")]),
    ("files", {CONF: {"mode": "0666"}}, [(CONF, "mode")]),
    ("files", {UNIT: {"content": "x"}}, [(UNIT, "write"), ("a.service", "restart")]),
    ("files", {UNIT: {"mtime": 101}}, [("a.service", "restart")]),
    ("files", {"/etc/old.conf": LEFT}, [("/etc/old.conf", "remove")]),
    ("links", {LINK: None}, [(LINK, "link")]),
    ("secrets", {"/etc/token": None}, [("/etc/token", "write secret")]),
    ("secrets", {"/etc/token": {"content": "former"}}, [("/etc/token", "write secret")]),
    ("secrets", {"/etc/token": {"mode": "0644"}}, [("/etc/token", "mode")]),
    ("units", {"a.service": STOPPED}, [("a.service", "start")]),
    ("modules", {"br_netfilter": "loadable"}, [("module br_netfilter", "load")]),
    ("sysctls", {"net.ipv4.ip_forward": "0"}, [("sysctl net.ipv4.ip_forward", "set")]),
])  # fmt: skip
def test_each_drift_is_one_decision_that_shows_no_secret(settled, wanted, part, drift, expected):
    for key, value in drift.items():
        before = settled[part][key]
        settled[part][key] = {**before, **value} if isinstance(before, dict) and value else value
    made = planner.plan(settled, wanted)
    assert shown(made) == expected
    assert (made.findings, made.not_applied, made.not_verified) == ([], [], [])
    assert not re.search("hush|former", str(made))


def test_a_secret_without_content_is_reported_and_never_touched(settled, wanted):
    wanted["secrets"][0]["content"] = None
    for missing in ([], ["/etc/token"]):
        assert shown(planner.plan(settled, wanted)) == []
        assert planner.missing_secrets(settled, wanted) == missing
        settled["secrets"]["/etc/token"] = None


def test_a_unit_that_is_not_wanted_any_more_is_stopped_before_its_file_goes(settled, wanted):
    wanted["units"][0]["present"] = False
    wanted |= {"files": [], "absent": [UNIT, CONF]}
    stopped = [("a.service", "stop"), (LINK, "unlink"), (UNIT, "remove"), (CONF, "remove")]
    assert shown(planner.plan(settled, wanted)) == stopped


@pytest.mark.parametrize(
    ("allowed", "actions", "findings", "left"), [(None, 0, 1, 0), (True, 1, 0, 0), (False, 0, 0, 1)]
)
def test_a_file_of_someone_else_waits_for_consent(settled, wanted, allowed, actions, findings, left):
    settled["others"]["/etc/cni/net.d"].append(("10-flannel.conf", "{}"))
    wanted["exclusive"][0]["allowed"] = allowed
    made = planner.plan(settled, wanted)
    assert (len(made.changes), len(made.findings), len(made.not_applied)) == (actions, findings, left)
    assert "/etc/cni/net.d/10-flannel.conf" in str(made)
    assert allowed is True or "multus_foreign_allowed" in str(made)


def test_a_module_that_the_kernel_lacks_stops_and_where_no_kernel_may_be_touched_that_is_reported(settled, wanted):
    settled["modules"]["br_netfilter"] = "absent"
    assert [finding.object for finding in planner.plan(settled, wanted).findings] == ["module br_netfilter"]
    settled.update(offline="it is a tree of files", units=None, modules={"br_netfilter": "absent"}, sysctls={})
    made = planner.plan(settled, wanted)
    assert (made.changes, len(made.not_verified)) == ([], 3)


def call(root, check=False, **options):
    found = running.module(node_files, check, root=str(root), **options)
    assert "hush" not in str(found)
    return found


def test_a_run_writes_what_check_mode_announced_and_a_second_run_nothing(tmp_path, wanted):
    (tmp_path / "etc/cni/net.d").mkdir(parents=True)
    (tmp_path / "etc/cni/net.d/10-flannel.conf").write_text("{}")
    (tmp_path / "etc/old.conf").write_text("old")
    wanted["exclusive"][0]["allowed"] = True
    wanted["files"][0]["mode"] = "0755"
    options = {**wanted, "contents": ["/etc/a.conf", "/etc/none"], "programs": ["nfd-worker"]}
    announced = call(tmp_path, check=True, **options)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["10-flannel.conf", "old.conf"]
    done = call(tmp_path, **options)
    assert done["changes"] == announced["changes"]
    assert (tmp_path / "etc/a.conf").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "etc/token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "etc/token").read_text() == "hush\n"
    assert os.readlink(tmp_path / LINK[1:]) == "../a.service"
    assert (tmp_path / f"etc/cni/net.d/10-flannel.conf{planner.ASIDE}").exists()
    assert not (tmp_path / "etc/old.conf").exists()
    again = call(tmp_path, **options)
    assert (again["changed"], again["changes"]) == (False, [])
    assert again["contents"] == {"/etc/a.conf": "a\n", "/etc/none": None}
    assert again["programs"] == {"nfd-worker": False}


def applied(root, changes, failing=""):
    """The programs that changes run; one of them may refuse."""
    ran = []

    def run(argv):
        ran.append(" ".join(argv))
        return (1, "", "no") if argv[1] == failing else (0, "", "")

    wanted = {"files": [{"path": UNIT, "mode": "0644"}], "secrets": []}
    assert list(node_files.apply(changes, wanted, str(root), run, live=True))
    return ran


def test_systemd_reads_its_units_before_one_is_started(tmp_path):
    steps = (("a.service", "restart", ""), (UNIT, "write", "[Unit]\n"), ("module br_netfilter", "load", ""))
    changes = [Change(thing, action, "", after) for thing, action, after in steps]
    reloaded = ["modprobe -- br_netfilter", "systemctl daemon-reload", "systemctl restart a.service"]
    assert applied(tmp_path, changes) == reloaded


@pytest.mark.parametrize("failing", ["daemon-reload", "start"])
def test_a_systemd_that_refuses_is_reported(tmp_path, failing):
    with pytest.raises(Refused, match=failing):
        applied(tmp_path, [Change("a.service", "start", "", "")], failing)


def test_units_are_asked_about_in_one_call_that_any_systemd_understands(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1700000100.0)
    monkeypatch.setattr("time.monotonic", lambda: 600.0)

    def run(argv):
        assert not any(word.startswith("--timestamp") for word in argv)
        return 0, (
            "Id=a.service\nActiveState=active\nExecMainStartTimestampMonotonic=500000000\n\n"
            "Id=b.service\nActiveState=inactive\nExecMainStartTimestampMonotonic=0\n"
        ), ""  # fmt: skip

    assert planner._unit_states(["a.service", "b.service"], run) == {
        "a.service": {"active": True, "started": 1700000000},
        "b.service": {"active": False, "started": None},
    }
