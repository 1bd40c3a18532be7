"""What apt and dnf are given: files, names and command lines, compared exactly."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_repository
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import origins, packages
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.paths import HEADER

URL = "https://mirror.example.net/doca/3.2.1/"


def node(name, version, architecture="x86_64", like=()):
    return {"os": {"id": name, "version_id": version, "like": list(like)}, "architecture": architecture}


RHEL9 = node("rhel", "9.6", like=["fedora"])
ROCKY10 = node("rocky", "10.0", like=["rhel", "centos", "fedora"])
NOBLE = node("ubuntu", "24.04", like=["debian"])
BOOKWORM = node("debian", "12")


@pytest.mark.parametrize(
    ("machine", "manager", "distribution"),
    [
        (RHEL9, "dnf", "rhel9"),
        (ROCKY10, "dnf", "rhel10"),
        (NOBLE, "apt", "ubuntu24.04"),
        (BOOKWORM, "apt", "debian12"),
        (node("opensuse-leap", "15.6", like=["suse"]), None, "opensuse-leap15.6"),
    ],
)
def test_each_node_has_one_manager_and_one_key_in_the_lock(machine, manager, distribution):
    assert packages.manager(machine) == manager
    assert packages.distribution(machine) == distribution


def test_the_apt_files():
    assert packages.repository_file("apt", {"url": URL}, "doca 3.2.1") == (
        f"{HEADER}\nTypes: deb\nURIs: {URL}\nSuites: ./\nSigned-By: /etc/apt/keyrings/gpufabric-rdma-driver.asc\n"
    )
    assert packages.pins_file("DOCA-HOST*").splitlines()[2:] == [
        "Package: dkms",
        "Pin: release l=DOCA-HOST*",
        "Pin-Priority: -1",
    ]


def test_a_repository_out_of_a_verified_package_needs_no_key():
    repository = {"url": "file:///var/lib/x/repo/", "trusted": True}
    assert packages.repository_file("apt", repository, "doca").endswith("Suites: ./\nTrusted: yes\n")
    assert "gpgcheck=0\npriority=10" in packages.repository_file("dnf", repository, "doca")
    assert "gpgkey" not in packages.repository_file("dnf", repository, "doca")


def test_the_drop_in_of_openibd():
    assert packages.service_file() == (
        f"{HEADER}\n[Unit]\nAfter=systemd-udev-settle.service\nWants=systemd-udev-settle.service\n\n[Service]\n"
        "Restart=on-failure\nExecStartPost=-/bin/sh -c 'grep -qxs nvidia_peermem "
        "/etc/modules-load.d/gpufabric-rdma.conf && exec modprobe nvidia_peermem'\n"
    )


def test_the_repo_file_of_rhel():
    assert packages.repository_file("dnf", {"url": URL}, "doca 3.2.1") == (
        f"{HEADER}\n[gpufabric-rdma-driver]\nname=HCA driver doca 3.2.1\nbaseurl={URL}\nenabled=1\ngpgcheck=1\n"
        "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpufabric-rdma-driver\npriority=10\nexcludepkgs=dkms\n"
    )


@pytest.mark.parametrize(
    ("manager", "kernel", "package"),
    [
        ("dnf", "5.14.0-570.12.1.el9_6.x86_64", "kernel-devel-5.14.0-570.12.1.el9_6.x86_64"),
        ("dnf", "5.14.0-570.12.1.el9_6.aarch64+64k", "kernel-64k-devel-5.14.0-570.12.1.el9_6.aarch64"),
        ("apt", "6.8.0-1010-nvidia-64k", "linux-headers-6.8.0-1010-nvidia-64k"),
    ],
)
def test_headers_of_a_kernel(manager, kernel, package):
    assert packages.headers_package(manager, kernel) == package


APT_INSTALL = "apt-get install --yes --no-install-recommends -o Dpkg::Options::=--force-confold"
COMMANDS = [
    ("dnf", packages.install_command, ["a-1*"], "dnf install --assumeyes --setopt=install_weak_deps=False a-1*"),
    ("dnf", packages.remove_command, ["a"], "dnf remove --assumeyes --setopt=clean_requirements_on_remove=False a"),
    ("dnf", packages.restore_command, ["rdma-core"], "dnf distro-sync --assumeyes rdma-core"),
    ("apt", packages.install_command, ["a=1"], f"{APT_INSTALL} a=1"),
    ("apt", packages.remove_command, ["a", "b"], "apt-get purge --yes a b"),
]


@pytest.mark.parametrize(("manager", "command", "names", "line"), COMMANDS)
def test_the_command_lines(manager, command, names, line):
    assert " ".join(command(manager, names)) == line
    assert packages.install_command("dnf", ["x"], downgrade=True)[1] == "downgrade"
    assert "--allow-downgrades" in packages.install_command("apt", ["x"], downgrade=True)


def test_a_users_own_packages_are_no_stack():
    stack = "doca-ofed doca-ofed-userspace mlnx-ofed-kernel-dkms mlnx-ofa_kernel kmod-mlnx-ofa_kernel mlnx-tools"
    stack += " iser-dkms kmod-srp ofed-scripts linux-modules-doca-ofed-3.4-generic doca-ofed-generic-hwe-26.04"
    own = "doca-telemetry-of-ours my-doca-app rdma-core isert-notes"
    assert set(packages.stack_packages(dict.fromkeys(f"{stack} {own}".split(), "1"))) == set(stack.split())


# Version strings of DOCA 3.2.1 and of its predecessors, as apt shows them on a node.
POLICY = """\
rdma-core:
  Installed: 2510.0.11-1
  Candidate: 2510.0.11-1
  Version table:
 *** 2510.0.11-1 500
        500 https://linux.mellanox.com/public/repo/doca/3.2.1/ubuntu24.04/x86_64 ./ Packages
        100 /var/lib/dpkg/status
     50.0-2ubuntu0.2 500
        500 http://mirror.example/ubuntu noble-updates/main amd64 Packages
     50.0-2build2 500
        500 http://mirror.example/ubuntu noble/main amd64 Packages
libibverbs1:
  Installed: 2510.0.11-1
  Candidate: 2510.0.11-1
  Version table:
 *** 2510.0.11-1 100
        100 /var/lib/dpkg/status
     50.0-2build2 500
        500 http://mirror.example/ubuntu noble/main amd64 Packages
librdmacm1t64:
  Installed: 2507mlnx58-1.2507097
  Candidate: 2507mlnx58-1.2507097
  Version table:
 *** 2507mlnx58-1.2507097 500
        500 file:/var/lib/gpufabric-rdma/doca-host-3.1.0/root/usr/share/doca-host-3.1.0/repo ./ Packages
        100 /var/lib/dpkg/status
     50.0-2build2 500
        500 http://mirror.example/ubuntu noble/main amd64 Packages
perftest:
  Installed: 25.10.0-0.128.g8f1c7ab
  Candidate: 25.10.0-0.128.g8f1c7ab
  Version table:
 *** 25.10.0-0.128.g8f1c7ab 500
        500 https://mirror.example.net/doca ./ Packages
        100 /var/lib/dpkg/status
     4.5-1 -1
         -1 http://mirror.example/ubuntu noble/universe amd64 Packages
mft:
  Installed: 4.34.1-10
  Candidate: 4.34.1-10
  Version table:
 *** 4.34.1-10 500
        500 https://linux.mellanox.com/public/repo/doca/3.2.1/ubuntu24.04/x86_64 ./ Packages
        100 /var/lib/dpkg/status
libibumad3:
  Installed: 50.0-2build2
  Candidate: 50.0-2ubuntu0.2
  Version table:
     50.0-2ubuntu0.2 500
        500 http://mirror.example/ubuntu noble-updates/main amd64 Packages
 *** 50.0-2build2 500
        500 http://mirror.example/ubuntu noble/main amd64 Packages
        100 /var/lib/dpkg/status
our-mlnx5-tool:
  Installed: 1.0mlnx5
  Candidate: 1.0mlnx5
  Version table:
 *** 1.0mlnx5 100
        100 /var/lib/dpkg/status
     0.9 500
        500 http://apt.example.net/ours stable/main amd64 Packages
"""
MIRROR = ["https://mirror.example.net/doca/"]


def installed_of(policy):
    names = re.findall(r"^(\S+):$", policy, re.MULTILINE)
    return dict(zip(names, re.findall(r"Installed: (\S+)", policy)))


def test_user_space_of_the_stack_is_known_by_where_it_came_from():
    installed = installed_of(POLICY)
    replaced, foreign = packages.replaced_packages(installed, origins.parse_policy(POLICY, MIRROR))
    assert replaced == {name: installed[name] for name in ("libibverbs1", "librdmacm1t64", "perftest", "rdma-core")}
    assert foreign == ["mft"]
    # A mirror that is not known to be one: its perftest is someone's own.
    assert "perftest" not in packages.replaced_packages(installed, origins.parse_policy(POLICY, []))[0]
    assert packages.replaced_packages(installed, {}) == ({}, [])


def test_dnf_remembers_the_repository_of_each_package():
    told = "rdma-core doca\nlibibverbs gpufabric-rdma-driver\nperftest appstream\nlibibumad @commandline\nmft doca\n\n"
    offers = "rdma-core 57.0-2.el9 baseos\nlibibverbs 57.0-2.el9 baseos\nlibibumad 57.0-2.el9 baseos\nmft 4.34 doca\n"
    installed = dict.fromkeys(["rdma-core", "libibverbs", "libibumad", "mft"], "2510.0.11-1.el9") | {
        "perftest": "24.07"
    }
    replaced, foreign = packages.replaced_packages(installed, origins.parse_repoquery(told, offers))
    assert list(replaced) == ["libibumad", "libibverbs", "rdma-core"]
    assert foreign == ["mft"]


def test_the_way_back_hides_exactly_the_versions_of_the_stack():
    assert packages.restore_pins({"rdma-core": "2510.0.11-1", "perftest": "25.10.0-0.128"}) == (
        "Package: rdma-core\nPin: version 2510.0.11-1\nPin-Priority: -1\n\n"
        "Package: rdma-core\nPin: release *\nPin-Priority: 1001\n\n"
        "Package: perftest\nPin: version 25.10.0-0.128\nPin-Priority: -1\n\n"
        "Package: perftest\nPin: release *\nPin-Priority: 1001\n"
    )


def test_the_kernel_packages_that_a_hold_keeps():
    held = "linux-generic-hwe-24.04 linux-headers-6.8.0-60-generic linux-image-6.8.0-60-generic"
    held = f"{held} linux-image-amd64 linux-image-generic"
    others = "linux-image-6.5.0-1-generic linux-libc-dev linux-base"
    installed = dict.fromkeys(f"{others} {held}".split(), "1")
    assert packages.kernel_packages(installed, "6.8.0-60-generic") == held.split()


LOCK = {
    "repositories": [
        {
            "name": "doca",
            "version": "3.2.1",
            "kind": "dnf",
            "keys": [{"id": None, "fingerprint": None, "stated_by": ["https://x"]}],
            "places": [{"distribution": "rhel9", "architecture": "amd64", "url": URL}],
        }
    ],
}


def test_the_row_of_a_node_or_what_there_is_instead():
    assert driver_repository(LOCK, {"node": RHEL9}, "doca", "3.2.1")["url"] == URL
    for machine, version in ((RHEL9, "3.2.9"), (NOBLE, "3.2.1"), (node("rhel", "9.6", "aarch64"), "3.2.1")):
        row = driver_repository(LOCK, machine, "doca", version)
        assert (row["url"], row["known"]) == ("", "3.2.1 for rhel9 amd64")
