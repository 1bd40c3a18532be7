# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import netns, paths

INIT = 4026531840


def process(node, pid, inode, command="x", cgroup="0::/"):
    os.makedirs(node.host(f"/proc/{pid}/ns"))
    os.symlink(f"net:[{inode}]", node.host(f"/proc/{pid}/ns/net"))
    node.files(f"/proc/{pid}", comm=command, cgroup=cgroup)


@pytest.mark.parametrize(("value", "wanted"), [("Y", "shared"), ("N", "exclusive")])
def test_the_running_mode(node, value, wanted):
    node.write("/sys/module/ib_core/parameters/netns_mode", value)
    assert netns.running(node.tree()) == wanted


def test_why_the_running_mode_is_unknown(node):
    assert netns.running(node.tree()) == "unknown: ib_core is not loaded"
    node.module("ib_core")
    assert netns.running(node.tree()) == "unknown: ib_core has no parameter netns_mode (a kernel before 5.2)"
    node.write("/sys/module/ib_core/parameters/netns_mode", "?")
    assert netns.running(node.tree()) == "unknown: the kernel reports '?'"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("1", "shared"),
        ("y", "shared"),
        ("on", "shared"),
        ("0", "exclusive"),
        ("No", "exclusive"),
        ("off", "exclusive"),
        ("2", None),
        ("o", None),
        ("", None),
    ],
)
def test_modes_as_the_kernel_reads_them(value, wanted):
    assert netns.mode_of(value) == wanted


def test_nothing_persists_the_mode(node):
    found = netns.state(node.tree())
    assert (found["persisted_netns_mode"], found["netns_sources"], found["foreign_owners"]) == (None, [], [])


def test_our_file_wins_among_files_and_the_command_line_over_all(node):
    node.write("/etc/modprobe.d/sriov.conf", "options ib_core netns_mode=0")
    node.write(paths.OWN_MODPROBE, f"{paths.HEADER}\noptions ib_core netns_mode=1")
    found = netns.state(node.tree())
    assert found["persisted_netns_mode"] == "shared"
    assert found["netns_sources"] == [
        {
            "path": "/etc/modprobe.d/sriov.conf",
            "line": 1,
            "text": "options ib_core netns_mode=0",
            "mode": "exclusive",
            "ours": False,
            "wins": False,
        },
        {
            "path": paths.OWN_MODPROBE,
            "line": 2,
            "text": "options ib_core netns_mode=1",
            "mode": "shared",
            "ours": True,
            "wins": True,
        },
    ]
    assert found["foreign_owners"] == ["/etc/modprobe.d/sriov.conf"]
    node.write("/proc/cmdline", "quiet ib_core.netns_mode=0")
    found = netns.state(node.tree())
    assert found["persisted_netns_mode"] == "exclusive"
    assert found["netns_sources"][-1]["text"] == "ib_core.netns_mode=0"
    assert found["foreign_owners"] == ["/etc/modprobe.d/sriov.conf", "/proc/cmdline"]


def test_namespaces_and_their_owners(node):
    process(node, 1, INIT, "systemd", "0::/init.scope")
    process(node, 20, INIT)
    process(node, 300, 40, "systemd-hostnam", "0::/system.slice/systemd-hostnamed.service")
    pod = "0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-1f.scope"
    process(node, 402, 41, "python", pod)
    process(node, 401, 41, "pause", pod)
    process(node, 500, 42, "bash", "1:name=systemd:/user.slice/user-0.slice\n2:cpu:/x.service")
    process(node, 501, 42, "bash", "0::/user.slice")
    node.write(
        "/proc/1/mountinfo",
        "24 1 0:22 / /run rw shared:5 - tmpfs tmpfs rw\n"
        "90 24 0:4 net:[43] /run/netns/blue rw shared:9 - nsfs nsfs rw\n"
        "91 24 0:4 net:[41] /run/netns/cni-7 rw shared:9 - nsfs nsfs rw\n"
        f"92 24 0:4 net:[{INIT}] /run/netns/init rw - nsfs nsfs rw\n"
        "93 24 0:4 mnt:[9] /run/snapd/ns/x rw - nsfs nsfs rw",
    )
    assert netns.namespaces(node.tree()) == [
        {
            "inode": 40,
            "owners": [
                {
                    "pid": 300,
                    "command": "systemd-hostnam",
                    "unit": "systemd-hostnamed.service",
                    "transient": True,
                }
            ],
            "name": None,
        },
        {
            "inode": 41,
            "owners": [{"pid": 401, "command": "pause", "unit": "cri-containerd-1f.scope", "transient": False}],
            "name": "/run/netns/cni-7",
        },
        {"inode": 42, "owners": [{"pid": 500, "command": "bash", "unit": None, "transient": False}], "name": None},
        {"inode": 43, "owners": [], "name": "/run/netns/blue"},
    ]


@pytest.mark.parametrize(
    ("unit", "text", "wanted"),
    [
        ("systemd-timedated.service", None, True),
        ("fstrim.service", None, True),
        ("e2scrub@root.service", None, True),
        ("job.service", "[Service]\nType=oneshot\nPrivateNetwork=yes", True),
        ("job.service", "[Service]\nType=oneshot", False),
        ("upower.service", "[Service]\nType=dbus\nPrivateNetwork=true", False),
        ("gone.service", None, False),
        ("x.scope", None, False),
        (None, None, False),
    ],
)
def test_which_units_go_away_by_themselves(node, unit, text, wanted):
    if text:
        node.write(f"/lib/systemd/system/{unit}", text)
    assert netns.is_transient(node.tree().snapshot(), unit) is wanted


def test_namespaces_need_root(node):
    assert netns.namespaces(node.tree()) == "unknown: /proc/1/ns/net is not readable (root only)"


def test_processes_that_end_meanwhile_do_not_count(node):
    process(node, 1, INIT)
    node.files("/proc/77", comm="gone")
    process(node, 78, 44)
    node.host("/proc/78/comm").unlink()
    assert netns.namespaces(node.tree())[0]["owners"] == [
        {"pid": 78, "command": None, "unit": None, "transient": False}
    ]
