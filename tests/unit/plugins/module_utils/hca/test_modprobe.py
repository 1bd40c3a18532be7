# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""modprobe.d(5) and modules-load.d(5): which file counts, which statement wins, what blocks a module."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import modprobe, modules, paths


def test_of_files_with_one_name_the_first_directory_wins(node):
    for directory in reversed(paths.MODPROBE_DIRECTORIES):
        node.write(f"{directory}/x.conf", f"options a from={directory}")
    assert [line.path for line in modprobe.statements(node.tree())] == ["/etc/modprobe.d/x.conf"]


def test_files_are_sorted_by_name_over_all_directories(node):
    node.write("/etc/modprobe.d/m.conf", "options a n=2")
    node.write("/usr/lib/modprobe.d/z.conf", "options a n=3")
    node.write("/run/modprobe.d/a.conf", "options a n=1")
    node.write("/etc/modprobe.d/ignored.txt", "options a n=9")
    node.write("/etc/modprobe.d/.hidden.conf", "options a n=9")
    found = modprobe.options(modprobe.statements(node.tree()), "a", "n")
    assert [value for _line, value in found] == ["1", "2", "3"]


def test_a_link_to_dev_null_masks(node):
    node.write("/usr/lib/modprobe.d/x.conf", "blacklist a")
    os.makedirs(node.host("/etc/modprobe.d"))
    os.symlink("/dev/null", node.host("/etc/modprobe.d/x.conf"))
    assert modprobe.statements(node.tree()) == []


def test_a_merged_usr_counts_once(node):
    node.write("/usr/lib/modprobe.d/x.conf", "blacklist a")
    node.link("/lib", "/usr/lib")
    assert [line.path for line in modprobe.statements(node.tree())] == ["/usr/lib/modprobe.d/x.conf"]


def test_comments_and_continuations(node):
    node.write("/etc/modprobe.d/x.conf", "# options a n=1\n\noptions a \\\n  n=2 \\\n  m=3\nblacklist b\\")
    lines = modprobe.statements(node.tree())
    assert [(line.line, line.words) for line in lines] == [
        (3, ("options", "a", "n=2", "m=3")),
        (6, ("blacklist", "b")),
    ]


def test_the_kernel_command_line_comes_last(node):
    node.write("/etc/modprobe.d/zzz.conf", "options ib_core netns_mode=1")
    node.write(
        "/proc/cmdline",
        'root=/dev/sda1 ib-core.netns_mode=0 quiet modprobe.blacklist=a,b module_blacklist=c x="y z" -- ib_core.n=1',
    )
    lines = modprobe.statements(node.tree())
    assert [(line.path, value) for line, value in modprobe.options(lines, "ib_core", "netns_mode")] == [
        ("/etc/modprobe.d/zzz.conf", "1"),
        ("/proc/cmdline", "0"),
    ]
    assert [line.words for line in modprobe.blocks(lines, "b")] == [("blacklist", "b")]
    assert [line.text for line in modprobe.blocks(lines, "c")] == ["module_blacklist=c"]
    assert modprobe.options(lines, "ib_core", "n") == []


def test_an_unfinished_quote_on_the_command_line(node):
    node.write("/proc/cmdline", 'quiet dyndbg="file x ib_core.netns_mode=0')
    assert len(modprobe.options(modprobe.statements(node.tree()), "ib_core", "netns_mode")) == 1


def test_names_with_dashes_and_an_option_without_a_value(node):
    node.write("/etc/modprobe.d/x.conf", 'options nvidia-peermem persistent-api-support\noptions nvidia_peermem b="1"')
    lines = modprobe.statements(node.tree())
    assert modprobe.options(lines, "nvidia_peermem", "persistent_api_support")[0][1] == "1"
    assert modprobe.options(lines, "nvidia-peermem", "b")[0][1] == "1"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("blacklist mlx5_ib", True),
        ("blacklist mlx5-ib", True),
        ("install mlx5_ib /bin/true", True),
        ("install mlx5_ib /bin/false", True),
        ("install mlx5_ib /usr/local/bin/instead", True),
        ("install mlx5_ib /sbin/modprobe --ignore-install mlx5_ib && true", False),
        ("blacklist mlx5_core", False),
        ("options mlx5_ib x=1", False),
        ("install", False),
    ],
)
def test_what_blocks_a_module(node, line, wanted):
    node.write("/usr/lib/modprobe.d/x.conf", f"\n{line}")
    found = modules.state(node.tree(), ["mlx5_ib"])["mlx5_ib"]["blocked_by"]
    assert found == ([{"path": "/usr/lib/modprobe.d/x.conf", "line": 2, "text": line}] if wanted else [])


def test_everything_that_loads_a_module_at_boot(node):
    node.write("/etc/modules-load.d/a.conf", "; no\n# no\nib-umad\n")
    node.write("/usr/lib/modules-load.d/a.conf", "ib_uverbs")
    node.write("/usr/lib/modules-load.d/b.conf", "ib_umad")
    node.write("/etc/modules", "ib_umad  with options")
    node.link("/etc/modules-load.d/modules.conf", "/etc/modules")
    node.write("/etc/rdma/modules/infiniband.conf", "ib_ipoib\nib_umad")
    node.write("/proc/cmdline", "modules-load=rdma_cm,ib-umad")
    found = modules.state(node.tree(), ["ib_umad", "ib_uverbs", "ib_ipoib", "rdma_cm"])
    assert found["ib_umad"]["persisted"] == [
        "/etc/modules",
        "/etc/modules-load.d/a.conf",
        "/etc/rdma/modules/infiniband.conf",
        "/proc/cmdline",
        "/usr/lib/modules-load.d/b.conf",
    ]
    assert found["ib_uverbs"]["persisted"] == []
    assert found["ib_ipoib"]["persisted"] == ["/etc/rdma/modules/infiniband.conf"]
    assert found["rdma_cm"]["persisted"] == ["/proc/cmdline"]


def test_loaded_built_in_and_available(node):
    node.write(
        "/lib/modules/6.1.0-test/modules.dep",
        "kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.xz: kernel/drivers/x/mlx5_core.ko.xz kernel/x/ib_umad.ko\n"
        "updates/dkms/nvidia-peermem.ko.zst:\n"
        "/opt/else/other.ko: \n",
    )
    node.write("/lib/modules/6.1.0-test/modules.builtin", "kernel/drivers/infiniband/core/ib_core.ko")
    node.module("mlx5_ib").write("/sys/module/ib_core/parameters/netns_mode", "Y")
    names = ["mlx5_ib", "ib_core", "nvidia_peermem", "ib_umad"]
    found = modules.state(node.tree(), names)
    assert [(found[name]["loaded"], found[name]["builtin"], found[name]["available"]) for name in names] == [
        (True, False, True),
        (True, True, True),
        (False, False, True),
        (False, False, False),
    ]
    catalogue = modules.Catalogue(node.tree(), "6.1.0-test")
    assert catalogue.path("nvidia-peermem") == "/lib/modules/6.1.0-test/updates/dkms/nvidia-peermem.ko.zst"
    assert catalogue.path("other") == "/opt/else/other.ko"
    assert catalogue.path("none") is None


def test_without_modules_dep_it_is_unknown_what_is_available(node):
    found = modules.state(node.tree(), ["mlx5_ib"])["mlx5_ib"]["available"]
    assert found == "unknown: /lib/modules/6.1.0-test/modules.dep is not readable"
