# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files in systemd's precedence, the limit a new start gets, and the one that the running service has."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import limits, paths, units

UNIT = "[Unit]\nLimitMEMLOCK=1\n[Service]\nExecStart=/usr/local/bin/k3s server\nType=notify\n"


def service(node, name="k3s"):
    return limits.state(node.tree(), [name])["services"][name]


def test_a_service_that_does_not_exist(node):
    assert service(node) == {
        "exists": False,
        "active": False,
        "main_pid": None,
        "memlock": 8388608,
        "memlock_running": None,
        "drop_ins": [],
    }


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("infinity", "infinity"),
        ("65536", 65536),
        ("64K", 65536),
        ("2 G", 2 << 30),
        ("1.5M", 3 << 19),
        ("8M:infinity", 8 << 20),
        ("infinity:infinity", "infinity"),
        ("", 8388608),
        ("0", 0),
        ("64KB", 64 << 20),
        ("much", 64 << 20),
    ],
)
def test_limits_as_systemd_writes_them(node, value, wanted):
    node.write("/lib/systemd/system/k3s.service", f"{UNIT}LimitMEMLOCK=64M\nLimitMEMLOCK={value}")
    assert service(node)["memlock"] == wanted


@pytest.mark.parametrize(
    ("kernel", "container", "wanted"),
    [("6.1.0-1-amd64", "", 8 << 20), ("5.16.0", "", 8 << 20), ("5.15.0-140", "", None), ("6.1.0", "docker", None)],
)
def test_the_default_where_nothing_is_set(node, kernel, container, wanted):
    node.write("/proc/sys/kernel/osrelease", kernel)
    node.write("/run/systemd/container", container)
    found = service(node)["memlock"]
    assert found == wanted if wanted else found.startswith("unknown: no unit file sets LimitMEMLOCK")


def test_the_managers_own_default(node):
    node.write("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=1M\nDefaultLimitMEMLOCK=2M")
    node.write("/usr/lib/systemd/system.conf.d/a.conf", "[Manager]\nDefaultLimitMEMLOCK=3M")
    node.write("/etc/systemd/system.conf.d/a.conf", "[Manager]\nDefaultLimitMEMLOCK=4M")
    assert service(node)["memlock"] == 4 << 20
    node.write("/run/systemd/system.conf.d/b.conf", "[Manager]\nDefaultLimitMEMLOCK=")
    assert service(node)["memlock"] == 8 << 20


def test_drop_ins_apply_by_name_over_all_directories(node):
    node.write("/etc/systemd/system/k3s-agent.service", UNIT)
    system = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
    node.write(f"{system[0]}/k3s-agent.service.d/10-gpufabric-rdma.conf", "[Service]\nLimitMEMLOCK=1M")
    node.write(f"{system[2]}/k3s-agent.service.d/10-gpufabric-rdma.conf", "[Service]\nLimitMEMLOCK=9M")
    node.write(f"{system[1]}/k3s-.service.d/20-prefix.conf", "[Service]\nLimitMEMLOCK=2M")
    node.write(f"{system[2]}/service.d/05-all.conf", "[Service]\nLimitMEMLOCK=3M")
    node.write(f"{system[2]}/service.d/ignored.txt", "[Service]\nLimitMEMLOCK=4M")
    found = service(node, "k3s-agent")
    assert found["memlock"] == 2 << 20
    assert found["drop_ins"] == [
        f"{system[2]}/service.d/05-all.conf",
        paths.own_drop_in("k3s-agent"),
        f"{system[1]}/k3s-.service.d/20-prefix.conf",
    ]


def test_the_more_important_unit_file_counts_and_a_mask_hides_all(node):
    node.write("/usr/lib/systemd/system/k3s.service", f"{UNIT}LimitMEMLOCK=1M")
    node.write("/run/systemd/system/k3s.service", f"{UNIT}LimitMEMLOCK=2M")
    assert service(node)["memlock"] == 2 << 20
    os.makedirs(node.host("/etc/systemd/system"))
    os.symlink("/dev/null", node.host("/etc/systemd/system/k3s.service"))
    assert service(node)["exists"] is False


def test_sections_comments_and_continuations():
    text = "[Unit]\nA=0\n[Service]\nA = 1 \\\n# why\n  2\n;A=3\nB=\n[Install]\nA=4"
    assert units.assignments(text, "Service") == [("A", "1  2"), ("B", "")]


@pytest.mark.parametrize(("unit", "wanted"), [("a@b.service", "a@.service"), ("a.service", None), ("a@.service", None)])
def test_templates(unit, wanted):
    assert units.template(unit) == wanted


def test_an_instance_uses_its_template(node):
    node.write("/lib/systemd/system/a@.service", "[Service]\nType=oneshot")
    assert units.settings(node.tree(), "a@b.service", "Service") == {"Type": ["oneshot"]}


def process(node, pid, parent, started, command, soft="8388608"):
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    node.files(f"/proc/{pid}", comm=command, stat=f"{pid} ({command} ) x) {' '.join(fields)}")
    node.write(
        f"/proc/{pid}/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max locked memory         {soft:<20} unlimited            bytes     ",
    )


@pytest.mark.parametrize(
    "group",
    [
        "/sys/fs/cgroup/system.slice/k3s.service",
        "/sys/fs/cgroup/systemd/system.slice/k3s.service",
        "/sys/fs/cgroup/unified/system.slice/k3s.service",
        "/sys/fs/cgroup/system.slice/k3s.service/init",
    ],
    ids=["version 2", "version 1", "hybrid", "delegated"],
)
def test_the_main_process_and_its_limit(node, group):
    """The shim of a container outlives the k3s that started it; a restarted k3s is younger than the old shim."""
    node.write("/etc/systemd/system/k3s.service", UNIT)
    node.write(f"{group}/cgroup.procs", "100\n200\n201")
    process(node, 100, 1, 1000, "containerd-shim")
    process(node, 200, 1, 5000, "k3s-server", "unlimited")
    process(node, 201, 200, 5001, "k3s-server")
    found = service(node)
    assert (found["active"], found["main_pid"], found["memlock_running"]) == (True, 200, "infinity")


def test_a_service_in_a_nested_slice_with_a_pid_file(node):
    node.write("/lib/systemd/system/docker.service", "[Service]\nSlice=a-b.slice\nPIDFile=/run/docker.pid\n")
    node.write("/sys/fs/cgroup/a.slice/a-b.slice/docker.service/cgroup.procs", "7\n8")
    node.write("/run/docker.pid", "8")
    process(node, 8, 7, 1, "dockerd")
    found = service(node, "docker")
    assert (found["main_pid"], found["memlock_running"]) == (8, 8 << 20)


def test_a_process_that_ends_meanwhile(node):
    node.write("/lib/systemd/system/k3s.service", UNIT)
    node.write("/sys/fs/cgroup/system.slice/k3s.service/cgroup.procs", "7")
    found = service(node)
    assert (found["main_pid"], found["memlock_running"]) == (7, "unknown: /proc/7/limits is not readable")


def test_an_empty_group_is_no_running_service(node):
    node.write("/lib/systemd/system/k3s.service", UNIT)
    node.write("/sys/fs/cgroup/system.slice/k3s.service/cgroup.procs", "")
    assert service(node)["active"] is False
