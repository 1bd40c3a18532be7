"""The driver's plan: the state on disk, packages to install, remove, build and hold, and the commands."""

import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.filter.driver import driver_repository
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import dkms, keys, packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import state as driver_state
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.plan import anchors, plan, sentence
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.paths import HEADER
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules.driver import Installer
from ansible_collections.gpufabric.rdma.tests.tools import overlays
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures

KERNEL, NEWER = "6.8.0-60-generic", "6.8.0-71-generic"
BASE = "mlnx-ofed-kernel"


KEY = "AB" * 20
BOUNDS = "--setopt=timeout=10 --setopt=retries=2"


@pytest.fixture
def wanted():
    repository = {"url": "https://mirror.example.net/doca/", "key": "as gpg exports it", "label": "DOCA-HOST*"}
    repository |= {"primary": [KEY], "fingerprints": [KEY], "known": ""}
    return {"flavor": "doca", "version": "3.2.1", "packages": [], "sha256": {}, "repository": repository}


def ubuntu(version):
    return {"id": "ubuntu", "version_id": version, "like": ["debian"], "pretty_name": f"Ubuntu {version}"}


def rhel(version="9.6"):
    return {"id": "rhel", "version_id": version, "like": ["fedora"], "pretty_name": f"RHEL {version}"}


NOBLE = ubuntu("24.04")


def state(manager="apt", os=None, flavor="inbox", installed=None, **more):
    own = (packages.KEYS, packages.REPOSITORIES)
    files = [*(table[manager or "apt"] for table in own), packages.PINS, packages.SERVICE]
    node = {"kernel": KERNEL, "architecture": "x86_64", "os": os or NOBLE, "container": None}
    known = {"facts": {"node": node, "driver": {"installed": {"flavor": flavor, "version": None}}}}
    known |= {"manager": manager, "packages": installed or {"dkms": "3.0.11"}, "held": set(), "unfinished": {}}
    known |= {"files": dict.fromkeys(files), "foreign_repositories": [], "origins": {}, "builds": []}
    known |= {"enabled_repositories": [("baseos", ""), ("epel", "")], "kernels": [KERNEL], "headers": {KERNEL: True}}
    return {**known, **more}


def listed(made):
    return [(change.object, change.action) for change in made.changes]


def one_problem(made):
    (finding,) = made.findings
    return finding


def carried_out(node, wanted):
    """The command lines and files of a run in their order, with a package manager that always agrees."""
    done = []

    def run(argv, environment=None, cwd=None):
        done.append(" ".join(re.sub(r"/var/tmp/gpufabric-driver-\w+", "TRIAL", word) for word in argv))
        return 0, "", ""

    made = plan(node, wanted)
    installer = Installer(node, wanted, run, trial_build=False)
    installer._files = lambda changes: (done.append(c.object) or c for c in changes if c.object.startswith("/"))
    assert {change.object for change in installer.apply(made.changes)} == {change.object for change in made.changes}
    return done


def test_a_fresh_apt_node(wanted):
    node = state(installed={"make": "4"}, kernels=[KERNEL, NEWER], headers={KERNEL: True, NEWER: False})
    made = plan(node, wanted)
    assert listed(made) == [
        *((f"package {name}", "need") for name in (f"linux-headers-{NEWER}", "dkms")),
        *((path, "write") for path in (packages.KEYS["apt"], packages.PINS, packages.REPOSITORIES["apt"])),
        *(("package doca-ofed", "install"), (packages.SERVICE, "write")),
    ]
    assert sentence(made, wanted) == "doca 3.2.1 is installed"


@pytest.mark.parametrize(
    ("version", "kernel"), [("9.6", "5.14.0-570.12.1.el9_6.x86_64"), ("10.0", "6.12.0-55.9.1.el10_0.x86_64")]
)
def test_the_whole_order_on_rhel(wanted, version, kernel):
    old = {"mlnx-ofa_kernel": "24.10-OFED.24.10.2.1.8.1", "kmod-mlnx-ofa_kernel": "24.10", "gcc": "11", "make": "4"}
    node = state("dnf", rhel(version), "mlnx_ofed", old, kernels=[kernel], headers={kernel: False})
    trial, quiet = "dnf --setopt=reposdir=TRIAL/repos", f"{BOUNDS} --setopt=install_weak_deps=False"
    tools = f"kernel-devel-{kernel} dkms elfutils-libelf-devel"
    removed = "--setopt=clean_requirements_on_remove=False kmod-mlnx-ofa_kernel mlnx-ofa_kernel"
    assert carried_out(node, {**wanted, "remove_allowed": True}) == [
        f"{trial} install --assumeno {quiet} {tools}",
        f"{trial} install --assumeno {quiet} doca-ofed-3.2.1*",
        f"{trial} install --assumeyes {quiet} doca-ofed-3.2.1* --downloadonly",
        "rpmkeys --dbpath TRIAL/rpmdb --import TRIAL/key.asc",
        f"dnf install --assumeyes {quiet} {tools}",
        *(f"dnf remove --assume{word} {removed}" for word in ("no", "yes")),
        *(packages.KEYS["dnf"], packages.REPOSITORIES["dnf"], packages.SERVICE),
        f"dnf install --assumeyes {quiet} doca-ofed-3.2.1*",
    ]


@pytest.mark.parametrize(("enabled", "stops"), [
    ([("rhel-9-for-x86_64-baseos-rpms", ""), ("rhel-9-for-x86_64-appstream-rpms", "")], True),
    ([], True),
    ([("baseos", ""), ("epel", "")], False),
    ([("appstream", "baseurl=https://mirror.example.net/epel/9/\n")], False),
    ([("baseos", ""), ("site-extra", "")], False),
])  # fmt: skip
def test_on_rhel_dkms_needs_epel_and_the_preflight_says_so(wanted, enabled, stops):
    node = state("dnf", rhel(), installed={"gcc": "11"}, enabled_repositories=enabled)
    made = plan(node, wanted)
    assert [finding.object for finding in made.findings] == ["package dkms"] * stops
    node["packages"]["dkms"] = "3.2.2"
    assert plan(node, wanted).findings == []


NVIDIA = [dkms.Build(*row, KERNEL, "installed", "") for row in (("nvidia", "570.86.15"), ("nvidia-fs", "2.24"))]


def test_a_closed_nvidia_driver_is_rebuilt_on_consent_after_the_stack(wanted):
    node = state(builds=NVIDIA, nvidia={"closed": True, "stale": None})
    asked = one_problem(plan(node, wanted))
    assert asked.object == "NVIDIA driver nvidia 570.86.15"
    assert "driver_nvidia_rebuild_allowed: true" in asked.next_step
    denied = plan(node, {**wanted, "nvidia_rebuild_allowed": False})
    command = f"dkms remove -m nvidia -v 570.86.15 -k {KERNEL} && dkms install -m nvidia"
    assert denied.findings == []
    assert command in denied.notes[0]
    allowed = plan(node, {**wanted, "nvidia_rebuild_allowed": True})
    assert listed(allowed)[-1] == (f"DKMS module nvidia 570.86.15 for {KERNEL}", "rebuild")
    tools = dict.fromkeys(["dkms", "gcc", "make", "elfutils-libelf-devel"], "1")
    node = state("dnf", rhel(), installed=tools, builds=NVIDIA, nvidia={"closed": True, "stale": None})
    done = carried_out(node, {**wanted, "nvidia_rebuild_allowed": True})
    assert done[-5] == f"dnf install --assumeyes {BOUNDS} --setopt=install_weak_deps=False doca-ofed-3.2.1*"
    # It is built next to the old one before that goes.
    assert [line.split(" -")[0] for line in done[-4:]] == ["dkms add", "dkms build", "dkms remove", "dkms install"]
    assert "--dkmstree TRIAL" in done[-3]


def test_an_nvidia_driver_that_needs_no_rebuild_is_left_alone(wanted):
    node = converged(wanted)
    node["builds"] += NVIDIA
    for nvidia, there in (({"closed": True, "stale": None}, []), ({"closed": False, "stale": "x"}, []), (None, [])):
        node["nvidia"] = nvidia
        assert listed(plan(node, wanted)) == there
    # An earlier run, or another installation of the stack, left it behind.
    node["nvidia"] = {"closed": True, "stale": "it was built without peer-memory support"}
    allowed = {**wanted, "nvidia_rebuild_allowed": True}
    assert listed(plan(node, allowed)) == [(f"DKMS module nvidia 570.86.15 for {KERNEL}", "rebuild")]
    node["builds"] = [build for build in node["builds"] if build.module == BASE]
    assert "install it again" in plan(node, allowed).notes[0]


@pytest.mark.parametrize(
    ("manager", "name", "version", "like"), [(None, "sles", "15.6", "suse"), ("dnf", "rhel", "8.10", "fedora")]
)
def test_a_distribution_that_no_release_is_for_is_refused(wanted, manager, name, version, like):
    system = {"id": name, "version_id": version, "like": [like], "pretty_name": f"{name} {version}"}
    assert one_problem(plan(state(manager, system), wanted)).seen == f"{name} {version}"


def converged(wanted):
    node = state(flavor="doca", installed={"dkms": "3", "doca-ofed": "3.2.1-044000", f"{BASE}-dkms": "25.10-1"})
    for change in plan(node, wanted).changes:
        if change.object.startswith("/"):
            node["files"][change.object] = change.after
    node["builds"] = [dkms.Build(BASE, "25.10", KERNEL, "installed", "")]
    return node


def test_upgrade_and_downgrade(wanted):
    node = converged(wanted)
    assert ("package doca-ofed", "upgrade") in listed(plan(node, {**wanted, "version": "3.3.0"}))
    finding = one_problem(plan(node, {**wanted, "version": "2.9.3"}))
    assert (finding.seen, finding.wanted) == ("3.2.1-044000, which is newer", "2.9.3")
    assert "driver_downgrade_allowed: true" in finding.next_step
    denied = one_problem(plan(node, {**wanted, "version": "2.9.3", "downgrade_allowed": False}))
    assert "driver_downgrade_allowed" not in denied.next_step
    allowed = plan(node, {**wanted, "version": "2.9.3", "downgrade_allowed": True})
    assert ("package doca-ofed", "downgrade") in listed(allowed)


def test_another_stack_goes_first_and_only_on_consent(wanted):
    node = state(flavor="mlnx_ofed", installed={"dkms": "3", f"{BASE}-dkms": "24.10", "ofed-scripts": "24.10"})
    asked = one_problem(plan(node, wanted))
    assert "driver_remove_allowed: true" in asked.next_step
    assert "driver_remove_allowed" not in one_problem(plan(node, {**wanted, "remove_allowed": False})).next_step
    assert listed(plan(node, {**wanted, "remove_allowed": True}))[0] == ("driver stack", "take out")


def test_back_to_inbox(wanted):
    node = converged(wanted)
    node["packages"]["rdma-core"] = "2510.0.11-1"
    node["origins"] = {"rdma-core": {"vendor": True, "offered": True, "elsewhere": True}}
    made = plan(node, {"flavor": "inbox", "remove_allowed": True})
    files = (packages.REPOSITORIES["apt"], packages.PINS, packages.KEYS["apt"], packages.SERVICE)
    removed = [(path, "remove") for path in files]
    assert listed(made) == [("driver stack", "take out"), *removed, ("user space of the stack", "return")]
    assert sentence(made, {"flavor": "inbox"}) == "the driver stack is removed and the inbox driver used again"
    assert listed(plan(state(), {"flavor": "inbox"})) == []
    node["origins"] = packages.origins_of("dnf", ["rdma-core"], "", lambda argv: ("--available" in argv, "", ""))
    made = plan(node, {"flavor": "inbox", "remove_allowed": True})
    assert (len(made.changes), len(made.not_verified)) == (1 + len(files), 1)


def test_what_depends_on_the_stack_is_not_removed_with_it(wanted):
    node = converged(wanted)
    changes = plan(node, {"flavor": "inbox", "remove_allowed": True}).changes
    answers = iter([(0, "Purg doca-ofed [3.2.1]\nPurg site-gpu-node [1]\n", "")])
    with pytest.raises(Refused) as caught:
        list(Installer(node, {"flavor": "inbox"}, lambda _argv: next(answers)).apply(changes))
    assert caught.value.findings[0].seen == "apt would remove site-gpu-node"


OTHER, SHA = "CD" * 20, "12" * 32
NO_GPG = {"primary": None, "file_sha256": SHA}
# {row: (the repository's data, whether its key is accepted; a string: the finding instead)}
KEYS = {
    "accepted": ({}, True),
    "accepted as people write it": ({"fingerprints": [" ".join([KEY[:20].lower(), KEY[20:]])]}, True),
    "one of several that are accepted": ({"fingerprints": [OTHER, KEY]}, True),
    "another": ({"primary": [OTHER]}, False),
    "two, both accepted": ({"primary": [KEY, OTHER], "fingerprints": [KEY, OTHER]}, False),
    "none": ({"primary": []}, False),
    "more than gpg reads": ({"unread": "a second block"}, False),
    "not verified": ({"fingerprints": []}, "driver_repository_fingerprint"),
    "no gpg": (NO_GPG, False),
    "no gpg, another file": ({**NO_GPG, "key_sha256": "34" * 32}, False),
    "no gpg, the file": ({**NO_GPG, "key_sha256": SHA.upper()}, True),
    "out of a verified package": ({"primary": None, "trusted": True}, True),
}


@pytest.mark.parametrize("case", KEYS)
def test_which_key_file_is_taken(wanted, case):
    more, taken = KEYS[case]
    found = keys.problem({**wanted["repository"], **more})
    assert (found and found[0]) == {True: None, False: "key of the driver repository"}.get(taken, taken)


def test_a_key_that_the_lock_names_for_another_release_is_called_that(wanted):
    named = {"id": OTHER[-16:], "fingerprint": None, "release": "3.2.1 for ubuntu22.04", "stated_by": ["https://x"]}
    wanted["repository"] |= {"primary": [OTHER], "known_keys": [named]}
    assert "3.2.1 for ubuntu22.04, see https://x" in one_problem(plan(state(), wanted)).seen


def test_a_release_that_the_lock_does_not_have_and_a_repository_that_is_not_ours(wanted):
    node = state(foreign_repositories=["/etc/apt/sources.list.d/doca.list"])
    assert one_problem(plan(node, wanted)).object == "/etc/apt/sources.list.d/doca.list"
    wanted["repository"] |= {"url": "", "known": "3.2.1 for rhel9 amd64"}
    finding = one_problem(plan(state(), wanted))
    assert (finding.object, finding.seen) == ("doca 3.2.1 for ubuntu24.04 amd64", "3.2.1 for rhel9 amd64")
    assert one_problem(plan(state(), {**wanted, "version": ""})).object == "driver_version"


def test_the_archive_of_ubuntu_2604():
    made = plan(state(os=ubuntu("26.04")), {"flavor": "ubuntu_archive"})
    assert listed(made) == [("package doca-ofed-generic", "install"), (packages.SERVICE, "write")]
    assert anchors("ubuntu_archive", "7.0.0-1003-nvidia-64k") == ["doca-ofed-nvidia-64k"]
    assert "Ubuntu 26.04 or newer" in one_problem(plan(state(), {"flavor": "ubuntu_archive"})).wanted
    mixed = state(os=ubuntu("26.04"), foreign_repositories=["/etc/apt/sources.list.d/doca.list"])
    assert "no NVIDIA repository" in one_problem(plan(mixed, {"flavor": "ubuntu_archive"})).wanted


def test_a_build_that_a_kernel_upgrade_left_undone(wanted):
    node = converged(wanted)
    node |= {"kernels": [KERNEL, NEWER], "headers": {KERNEL: True, NEWER: True}}
    made = plan(node, wanted)
    assert listed(made) == [(f"DKMS module {BASE} 25.10 for {NEWER}", "build")]
    assert carried_out(node, wanted) == [f"dkms install -m {BASE} -v 25.10 -k {NEWER} --force"]


def test_kernels_are_held_and_released(wanted):
    node = converged(wanted)
    assert (listed(plan(node, wanted)), sentence(plan(node, wanted), wanted)) == ([], None), "a second look"
    node["packages"] |= {f"linux-image-{KERNEL}": "1", "linux-image-generic": "1"}
    held = plan(node, {**wanted, "hold_kernel": True})
    assert listed(held) == [(f"package linux-image-{KERNEL}", "hold"), ("package linux-image-generic", "hold")]
    node["held"] = {f"linux-image-{KERNEL}", "linux-image-generic"}
    assert listed(plan(node, {**wanted, "hold_kernel": True})) == []
    assert len(listed(plan(node, {**wanted, "hold_kernel": False}))) == 2
    assert listed(plan(node, wanted)) == []


def test_in_a_container_nothing_is_installed(wanted):
    node = state()
    node["facts"]["node"]["container"] = "docker"
    made = plan(node, wanted)
    assert (listed(made), len(made.not_verified)) == ([], 1)
    half = state(unfinished={f"{BASE}-dkms": "half-configured"})
    assert listed(plan(half, wanted))[0] == (f"package {BASE}-dkms", "finish")


VERSION = "25.10.OFED.25.10.1.6.6.1"
OF_2_8 = f"{BASE}, {{}}: installed{{}}\nsrp, 25.10: added\n"
OF_3_0 = f"{BASE}/25.11: broken\n{BASE}/{{}}: installed{{}}\nsrp/25.10: added\nDeprecated feature: REMAKE_INITRD (x)\n"


@pytest.mark.parametrize("form", [OF_2_8, OF_3_0])
@pytest.mark.parametrize(
    ("remark", "healthy"),
    [
        *(("", True), (" (original_module exists)", True), (" (Original modules exist)", True)),
        (" (WARNING! Diff between built and installed module!)", False),
        (" (Something that no version says yet)", False),
        *(("-weak from 5.14.0-362.el9.x86_64", True), ("-weak from 5.14.0-362.el9.x86_64 (Diff)", False)),
    ],
)
def test_only_what_is_known_to_be_healthy_counts_as_installed(form, remark, healthy):
    builds = dkms.parse(form.format(f"{VERSION}, {KERNEL}, x86_64", remark))
    assert builds[-1][:4] == ("srp", "25.10", None, "added")
    *base, srp = dkms.not_installed(builds, [BASE, "srp"], [KERNEL])
    assert base == [(BASE, VERSION, KERNEL, "another copy is installed")] * (not healthy)
    assert srp == ("srp", "25.10", KERNEL, "added")
    assert dkms.not_installed(dkms.parse(f"{BASE}/1: broken\n"), [BASE], [KERNEL]) == [(BASE, "1", KERNEL, "added")]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        *(("3.2.1-044000", "3.3.0-1"), ("3.9", "3.10"), ("1.0~rc1", "1.0"), ("2.0", "1:1.0"), ("1.0-1", "1.0-1+b1")),
        *(("24.10-3.2.5.0", "25.07-0.9.7.0"), ("1:2:0", "1:10")),
    ],
)
def test_versions_are_ordered_as_dpkg_orders_them(older, newer):
    assert packages.order(older) < packages.order(newer)


URL = "https://mirror.example.net/doca/3.2.1/"


REPO = f"{HEADER}\n[gpufabric-rdma-driver]\nname=HCA driver doca\nbaseurl={URL}\nenabled=1\n"
OF_A_KEY = "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpufabric-rdma-driver"
SOURCES = f"{HEADER}\nTypes: deb\nURIs: {URL}\nSuites: ./\n"
SIGNED, TRUSTED = {"url": URL}, {"url": URL, "trusted": True}


@pytest.mark.parametrize(("text", "wanted"), [
    (packages.repository_file("apt", SIGNED, "doca"),
        f"{SOURCES}Signed-By: /etc/apt/keyrings/gpufabric-rdma-driver.asc\n"),
    (packages.repository_file("apt", TRUSTED, "doca"), f"{SOURCES}Trusted: yes\n"),
    (packages.repository_file("dnf", SIGNED, "doca"), f"{REPO}gpgcheck=1\n{OF_A_KEY}\npriority=10\nexcludepkgs=dkms\n"),
    (packages.repository_file("dnf", TRUSTED, "doca"), f"{REPO}gpgcheck=0\npriority=10\nexcludepkgs=dkms\n"),
    (packages.pins_file("A*").partition("Package: ")[2], "dkms\nPin: release l=A*\nPin-Priority: -1\n"),
    (packages.restore_pins({"a": "25-1", "b": "3"}),
        "Package: a\nPin: version 25-1\nPin-Priority: -1\n\nPackage: a\nPin: release *\nPin-Priority: 1001\n\n"
        "Package: b\nPin: version 3\nPin-Priority: -1\n\nPackage: b\nPin: release *\nPin-Priority: 1001\n"),
    (packages.restore_command("dnf", ["rdma-core"]), f"dnf distro-sync --assumeyes {BOUNDS} rdma-core"),
    (packages.apart_command(["a-1"]),
        f"dnf install --assumeyes {BOUNDS} --setopt=install_weak_deps=False a-1 --setopt=skip_if_unavailable=True"),
    (packages.install_command("apt", ["a=1"], downgrade=True),
        "apt-get install --yes --no-install-recommends -o Dpkg::Options::=--force-confold --allow-downgrades a=1"),
    (packages.install_command("dnf", ["x"], downgrade=True)[:2], "dnf downgrade"),
    (packages.headers_package("dnf", "5.15.0-307.el9uek.x86_64"), "kernel-uek-devel-5.15.0-307.el9uek.x86_64"),
    (packages.remove_command("apt", ["a", "b"]), "apt-get purge --yes a b"),
])  # fmt: skip
def test_the_files_and_commands(text, wanted):
    assert (text if isinstance(text, str) else " ".join(text)) == wanted


def test_a_users_own_packages_are_no_stack():
    stack = "doca-ofed doca-ofed-userspace mlnx-ofed-kernel-dkms mlnx-ofa_kernel kmod-mlnx-ofa_kernel mlnx-tools"
    stack += " iser-dkms kmod-srp ofed-scripts linux-modules-doca-ofed-3.4-generic doca-ofed-nvidia-64k"
    own = "doca-telemetry-of-ours my-doca-app rdma-core isert-notes"
    assert set(packages.stack_packages(dict.fromkeys(f"{stack} {own}".split(), "1"))) == set(stack.split())


# Version strings of DOCA 3.2.1 and its predecessors, from apt on a node.
def origin(name, installed, *versions):
    """A package in the output of `apt-cache policy`; versions: (version, priority, source)."""
    rows = [f"{name}:", f"  Installed: {installed}", f"  Candidate: {installed}", "  Version table:"]
    for version, priority, source in versions:
        rows.append(f"{' ***' if version == installed else '    '} {version} {priority}")
        rows += [f"        {priority} {source}"] if source else []
        rows += ["        100 /var/lib/dpkg/status"] if version == installed else []
    return "\n".join(rows)


UBUNTU = "http://mirror.example/ubuntu noble/main amd64 Packages"
NVIDIA_DOCA = "https://linux.mellanox.com/public/repo/doca/3.2.1/ubuntu24.04/x86_64 ./ Packages"
FOLDER = "file:/var/lib/gpufabric-rdma/doca-host-3.1.0/root/usr/share/doca-host-3.1.0/repo ./ Packages"
INBOX = ("50.0-2build2", 500, UBUNTU)
OWN_ARCHIVE = ("0.9", 500, "http://apt.example.net/ours stable/main amd64 Packages")
NEWER_PERFTEST = ("25.10.0-0.128.g8f1c7ab", 500, "https://mirror.example.net/doca ./ Packages")
POLICY = "\n".join([
    origin("rdma-core", "2510.0.11-1", ("2510.0.11-1", 500, NVIDIA_DOCA), ("50.0-2ubuntu0.2", 500, UBUNTU), INBOX),
    origin("libibverbs1", "2510.0.11-1", ("2510.0.11-1", 100, ""), INBOX),
    origin("librdmacm1t64", "2507mlnx58-1.2507097", ("2507mlnx58-1.2507097", 500, FOLDER), INBOX),
    origin("perftest", NEWER_PERFTEST[0], NEWER_PERFTEST, ("4.5-1", -1, UBUNTU.replace("main", "universe"))),
    origin("mft", "4.34.1-10", ("4.34.1-10", 500, NVIDIA_DOCA)),
    origin("libibumad3", "50.0-2build2", ("50.0-2ubuntu0.2", 500, UBUNTU), INBOX),
    origin("our-mlnx5-tool", "1.0mlnx5", ("1.0mlnx5", 100, ""), OWN_ARCHIVE),
])  # fmt: skip
MIRROR = ["https://mirror.example.net/doca/"]


def test_user_space_of_the_stack_is_known_by_where_it_came_from():
    installed = dict(re.findall(r"^(\S+):\n  Installed: (\S+)", POLICY, re.MULTILINE))
    replaced, foreign = packages.replaced_packages(installed, packages.parse_policy(POLICY, MIRROR))
    assert replaced == {name: installed[name] for name in ("libibverbs1", "librdmacm1t64", "perftest", "rdma-core")}
    assert foreign == ["mft"]
    # A mirror that is not known as one: its perftest is a foreign build.
    assert "perftest" not in packages.replaced_packages(installed, packages.parse_policy(POLICY, []))[0]
    assert packages.replaced_packages(installed, {}) == ({}, [])


def test_dnf_remembers_the_repository_of_each_package():
    told = "rdma-core doca\nlibibverbs gpufabric-rdma-driver\nperftest appstream\nlibibumad @commandline\nmft doca\n\n"
    offers = "rdma-core 57.0-2.el9 baseos\nlibibverbs 57.0-2.el9 baseos\nlibibumad 57.0-2.el9 baseos\nmft 4.34 doca\n"
    installed = dict.fromkeys(["rdma-core", "libibverbs", "libibumad", "mft", "perftest"], "2510.0.11-1.el9")
    replaced, foreign = packages.replaced_packages(installed, packages.parse_repoquery(told, offers))
    assert list(replaced) == ["libibumad", "libibverbs", "rdma-core"]
    assert foreign == ["mft"]


PLACE = {"distribution": "rhel9", "architecture": "amd64", "url": URL}
STATED = {"id": None, "fingerprint": None, "stated_by": ["https://x"]}
LOCK = {"repositories": [{"name": "doca", "version": "3.2.1", "kind": "dnf", "keys": [STATED], "places": [PLACE]}]}


def test_the_row_of_a_node_or_what_there_is_instead():
    machine = {"os": rhel(), "architecture": "x86_64"}
    assert driver_repository(LOCK, {"node": machine}, "doca", "3.2.1")["url"] == URL
    for other, version in (({}, "3.2.9"), ({"os": NOBLE}, "3.2.1"), ({"architecture": "aarch64"}, "3.2.1")):
        row = driver_repository(LOCK, {**machine, **other}, "doca", version)
        assert (row["url"], row["known"]) == ("", "3.2.1 for rhel9 amd64")


DOCA = "https://linux.mellanox.com/public/repo/doca"
DPKG = [("dkms", "install ok installed", "3.0.11"), ("mlnx-ofed-kernel-dkms", "install ok half-configured", "25.10-1")]
DPKG.append(("linux-image-generic", "hold ok installed", "1"))
DPKG_STATUS = "\n\n".join("Package: {}\nStatus: {}\nVersion: {}".format(*row) for row in DPKG)


def read(folder, over, fixture=overlays.STALE):
    fixtures.lay_out(over.on(fixtures.load(fixture)), folder)
    tree = Tree(str(folder))
    seams = Seams.of(tree)
    return driver_state.read(tree, gather(tree, seams, ["driver", "initramfs"]), seams, lambda argv: (1, "", ""))


def test_packages_files_and_kernels_of_an_apt_node(tmp_path):
    text = packages.pins_file("DOCA-HOST*")
    over = overlays.Over({"/var/lib/dpkg/status": DPKG_STATUS, packages.PINS: text.rstrip("\n")})
    over += overlays.newer_kernel("kernel/mlx5_core.ko") + overlays.file("/etc/apt/sources.list.d/x.list", "deb x")
    over += overlays.file("/etc/apt/sources.list.d/doca.list", f"deb {DOCA} ./")
    over += overlays.file("/etc/apt/sources.list.d/off.sources", f"URIs: {DOCA}\nEnabled: no\n\nURIs: x")
    over += overlays.file("/etc/apt/sources.list", f"deb {DOCA} ./")
    state = read(tmp_path, over)
    assert state["manager"] == "apt"
    assert state["packages"] == {"dkms": "3.0.11", "linux-image-generic": "1"}
    assert state["unfinished"] == {"mlnx-ofed-kernel-dkms": "half-configured"}
    assert state["held"] == {"linux-image-generic"}
    assert state["files"][packages.PINS] == text
    assert state["files"][packages.SERVICE] is None
    assert state["files"].keys() >= {packages.KEYS["apt"], packages.REPOSITORIES["apt"]}
    assert state["kernels"] == [overlays.KERNEL, overlays.NEWER]
    assert state["headers"][overlays.NEWER] is False
    assert state["foreign_repositories"] == ["/etc/apt/sources.list.d/doca.list", "/etc/apt/sources.list"]


def test_packages_and_repositories_of_an_rpm_node_with_the_tool_dpkg(tmp_path):
    off = f"[doca]\nbaseurl={DOCA}\n\nenabled = 0\n[epel]\nenabled=1"
    over = overlays.Over({"/var/lib/dpkg/status": "", "/etc/yum.repos.d/a.repo": off})
    state = read(tmp_path, over + overlays.file("/etc/yum.repos.d/b.repo", f"[b]\nbaseurl={DOCA}"), "hfi1")
    assert "rdma-core" in state["facts"]["driver"]["installed"]["packages"]
    assert state["foreign_repositories"] == ["/etc/yum.repos.d/b.repo"]
    assert [name for name, _text in state["enabled_repositories"]] == ["epel", "b"]


@pytest.mark.parametrize("fixture", fixtures.names())
def test_every_captured_node_can_be_read_and_none_is_changed_from_afar(fixture, tmp_path):
    state = read(tmp_path, overlays.Over(), fixture)
    made = plan(state, {"flavor": "inbox", "remove_allowed": True}, str(tmp_path))
    assert made.changes == []
    assert made.findings or made.not_verified[0].startswith("the driver is left as it is: ")
