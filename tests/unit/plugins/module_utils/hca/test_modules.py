"""modprobe.d(5), modules-load.d(5) and unit files: which file counts and which statement wins; the netns mode and its
namespaces; the limit that a new start of a service gets and the one that the running service has."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import limits, modprobe, modules, netns, paths, units

INIT = 4026531840


def symlink(node, path, target):
    os.makedirs(os.path.dirname(node.host(path)), exist_ok=True)
    os.symlink(target, node.host(path))


def test_files_are_sorted_by_name_and_of_one_name_the_first_directory_wins(node):
    for directory in reversed(paths.MODPROBE_DIRECTORIES):
        node.write(f"{directory}/x.conf", f"options a from={directory}")
    node.write("/usr/lib/modprobe.d/z.conf", "options a n=3")
    node.write("/run/modprobe.d/a.conf", "options a n=1")
    node.write("/etc/modprobe.d/ignored.txt", "options a n=9").write("/etc/modprobe.d/.hidden.conf", "options a n=9")
    found = [line.path for line in modprobe.statements(node.tree())]
    assert found == ["/run/modprobe.d/a.conf", "/etc/modprobe.d/x.conf", "/usr/lib/modprobe.d/z.conf"]


def test_a_link_to_dev_null_masks_and_a_merged_usr_counts_once(node):
    for name in "xy":
        node.write(f"/usr/lib/modprobe.d/{name}.conf", "blacklist a")
    symlink(node, "/etc/modprobe.d/x.conf", "/dev/null")
    node.link("/lib", "/usr/lib")
    assert [line.path for line in modprobe.statements(node.tree())] == ["/usr/lib/modprobe.d/y.conf"]


def test_comments_and_continuations(node):
    node.write("/etc/modprobe.d/x.conf", "# options a n=1\n\noptions a \\\n  n=2 \\\n  m=3\nblacklist b\\")
    found = [(line.line, line.words) for line in modprobe.statements(node.tree())]
    assert found == [(3, ("options", "a", "n=2", "m=3")), (6, ("blacklist", "b"))]


@pytest.mark.parametrize("more", ['x="y z"', 'dyndbg="file x'])
def test_the_kernel_command_line_comes_last(node, more):
    node.write("/etc/modprobe.d/zzz.conf", "options ib_core netns_mode=1")
    words = "root=/dev/sda1 ib-core.netns_mode=0 quiet modprobe.blacklist=a,b module_blacklist=c"
    node.write("/proc/cmdline", f"{words} {more} -- ib_core.n=1")
    lines = modprobe.statements(node.tree())
    found = [(line.path, value) for line, value in modprobe.options(lines, "ib_core", "netns_mode")]
    assert found == [("/etc/modprobe.d/zzz.conf", "1"), ("/proc/cmdline", "0")]
    assert [line.words for line in modprobe.blocks(lines, "b")] == [("blacklist", "b")]
    assert [line.text for line in modprobe.blocks(lines, "c")] == ["module_blacklist=c"]
    assert modprobe.options(lines, "ib_core", "n") == [] or "dyndbg" in more


def test_names_with_dashes_and_an_option_without_a_value(node):
    node.write("/etc/modprobe.d/x.conf", 'options nvidia-peermem persistent-api-support\noptions nvidia_peermem b="1"')
    lines = modprobe.statements(node.tree())
    assert modprobe.options(lines, "nvidia_peermem", "persistent_api_support")[0][1] == "1"
    assert modprobe.options(lines, "nvidia-peermem", "b")[0][1] == "1"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        *(("blacklist mlx5_ib", True), ("blacklist mlx5-ib", True), ("blacklist mlx5_core", False)),
        *(("install mlx5_ib /bin/true", True), ("install mlx5_ib /usr/local/bin/instead", True), ("install", False)),
        ("install mlx5_ib /sbin/modprobe --ignore-install mlx5_ib && true", False),
        ("options mlx5_ib x=1", False),
    ],
)
def test_what_blocks_a_module(node, line, wanted):
    node.write("/usr/lib/modprobe.d/x.conf", f"\n{line}")
    found = modules.state(node.tree(), ["mlx5_ib"])["mlx5_ib"]["blocked_by"]
    assert found == ([{"path": "/usr/lib/modprobe.d/x.conf", "line": 2, "text": line}] if wanted else [])


def test_everything_that_loads_a_module_at_boot(node):
    node.write("/etc/modules-load.d/a.conf", "; no\n# no\nib-umad\n")
    node.write("/usr/lib/modules-load.d/a.conf", "ib_uverbs").write("/usr/lib/modules-load.d/b.conf", "ib_umad")
    node.write("/etc/modules", "ib_umad  with options").link("/etc/modules-load.d/modules.conf", "/etc/modules")
    node.write("/etc/rdma/modules/infiniband.conf", "ib_ipoib\nib_umad")
    node.write("/proc/cmdline", "modules-load=rdma_cm,ib-umad")
    found = modules.state(node.tree(), ["ib_umad", "ib_uverbs", "ib_ipoib", "rdma_cm"])
    assert found["ib_umad"]["persisted"] == [
        *("/etc/modules", "/etc/modules-load.d/a.conf", "/etc/rdma/modules/infiniband.conf"),
        *("/proc/cmdline", "/usr/lib/modules-load.d/b.conf"),
    ]
    assert found["ib_uverbs"]["persisted"] == []
    assert found["ib_ipoib"]["persisted"] == ["/etc/rdma/modules/infiniband.conf"]
    assert found["rdma_cm"]["persisted"] == ["/proc/cmdline"]


def test_loaded_built_in_and_available(node):
    folder = "/lib/modules/6.1.0-test"
    unknown = modules.state(node.tree(), ["mlx5_ib"])["mlx5_ib"]["available"]
    assert unknown == f"unknown: {folder}/modules.dep is not readable"
    node.write(
        f"{folder}/modules.dep",
        "kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.xz: kernel/drivers/x/mlx5_core.ko.xz kernel/x/ib_umad.ko\n"
        "updates/dkms/nvidia-peermem.ko.zst:\n"
        "/opt/else/other.ko: \n",
    )
    node.write(f"{folder}/modules.builtin", "kernel/drivers/infiniband/core/ib_core.ko")
    node.module("mlx5_ib").write("/sys/module/ib_core/parameters/netns_mode", "Y")
    wanted = {"mlx5_ib": (True, False, True), "ib_core": (True, True, True)}
    wanted |= {"nvidia_peermem": (False, False, True), "ib_umad": (False, False, False)}
    found = modules.state(node.tree(), list(wanted))
    assert {name: (fact["loaded"], fact["builtin"], fact["available"]) for name, fact in found.items()} == wanted
    catalogue = modules.Catalogue(node.tree(), "6.1.0-test")
    assert catalogue.path("nvidia-peermem") == f"{folder}/updates/dkms/nvidia-peermem.ko.zst"
    assert (catalogue.path("other"), catalogue.path("none")) == ("/opt/else/other.ko", None)


# --- the netns mode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("Y", "shared"), ("N", "exclusive"), ("?", "unknown: the kernel reports '?'")],
)
def test_the_running_mode(node, value, wanted):
    assert netns.running(node.tree()) == "unknown: ib_core is not loaded"
    node.module("ib_core")
    assert netns.running(node.tree()).startswith("unknown: ib_core has no parameter netns_mode")
    node.write("/sys/module/ib_core/parameters/netns_mode", value)
    assert netns.running(node.tree()) == wanted


@pytest.mark.parametrize(
    ("mode", "values"),
    [("shared", ("1", "y", "on")), ("exclusive", ("0", "No", "off")), (None, ("2", "o", ""))],
)
def test_modes_as_the_kernel_reads_them(mode, values):
    assert {netns.mode_of(value) for value in values} == {mode}


def test_our_file_wins_among_files_and_the_command_line_over_all(node):
    def found():
        state = netns.state(node.tree())
        keys = ("path", "line", "mode", "ours", "wins")
        sources = [tuple(source[key] for key in keys) for source in state["netns_sources"]]
        return state["persisted_netns_mode"], sources, state["foreign_owners"]

    assert found() == (None, [], [])
    foreign = "/etc/modprobe.d/sriov.conf"
    node.write(foreign, "options ib_core netns_mode=0")
    node.write(paths.OWN_MODPROBE, f"{paths.HEADER}\noptions ib_core netns_mode=1")
    theirs, ours = (foreign, 1, "exclusive", False, False), (paths.OWN_MODPROBE, 2, "shared", True)
    assert found() == ("shared", [theirs, (*ours, True)], [foreign])
    node.write("/proc/cmdline", "quiet ib_core.netns_mode=0")
    mode, sources, owners = found()
    assert (mode, sources[:2], owners) == ("exclusive", [theirs, (*ours, False)], [foreign, "/proc/cmdline"])
    assert netns.state(node.tree())["netns_sources"][-1]["text"] == "ib_core.netns_mode=0"


def in_namespace(node, pid, inode, command="x", cgroup="0::/"):
    symlink(node, f"/proc/{pid}/ns/net", f"net:[{inode}]")
    node.files(f"/proc/{pid}", comm=command, cgroup=cgroup)


def test_namespaces_and_their_owners(node):
    assert netns.namespaces(node.tree()) == "unknown: /proc/1/ns/net is not readable (root only)"
    in_namespace(node, 1, INIT, "systemd", "0::/init.scope")
    in_namespace(node, 20, INIT)
    in_namespace(node, 300, 40, "systemd-hostnam", "0::/system.slice/systemd-hostnamed.service")
    pod = "0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-1f.scope"
    in_namespace(node, 402, 41, "python", pod)
    in_namespace(node, 401, 41, "pause", pod)
    in_namespace(node, 500, 42, "bash", "1:name=systemd:/user.slice/user-0.slice\n2:cpu:/x.service")
    in_namespace(node, 501, 42, "bash", "0::/user.slice")
    node.files("/proc/77", comm="ended meanwhile")
    in_namespace(node, 78, 44)
    node.host("/proc/78/comm").unlink()
    node.write(
        "/proc/1/mountinfo",
        "24 1 0:22 / /run rw shared:5 - tmpfs tmpfs rw\n"
        "90 24 0:4 net:[43] /run/netns/blue rw shared:9 - nsfs nsfs rw\n"
        "91 24 0:4 net:[41] /run/netns/cni-7 rw shared:9 - nsfs nsfs rw\n"
        f"92 24 0:4 net:[{INIT}] /run/netns/init rw - nsfs nsfs rw\n"
        "93 24 0:4 mnt:[9] /run/snapd/ns/x rw - nsfs nsfs rw",
    )
    found = {
        (one["inode"], one["name"]): [tuple(owner.values()) for owner in one["owners"]]
        for one in netns.namespaces(node.tree())
    }
    assert found == {
        (40, None): [(300, "systemd-hostnam", "systemd-hostnamed.service", True)],
        (41, "/run/netns/cni-7"): [(401, "pause", "cri-containerd-1f.scope", False)],
        (42, None): [(500, "bash", None, False)],
        (43, "/run/netns/blue"): [],
        (44, None): [(78, None, None, False)],
    }


@pytest.mark.parametrize(
    ("unit", "text", "wanted"),
    [
        ("systemd-timedated.service", None, True),
        ("e2scrub@root.service", None, True),
        ("job.service", "[Service]\nType=oneshot\nPrivateNetwork=yes", True),
        ("job.service", "[Service]\nType=oneshot", False),
        ("upower.service", "[Service]\nType=dbus\nPrivateNetwork=true", False),
        ("gone.service", None, False),
        (None, None, False),
    ],
)
def test_which_units_go_away_by_themselves(node, unit, text, wanted):
    if text:
        node.write(f"/lib/systemd/system/{unit}", text)
    assert netns.is_transient(node.tree().snapshot(), unit) is wanted


# --- units and limits -------------------------------------------------------------------------------------------------

UNIT = "[Unit]\nLimitMEMLOCK=1\n[Service]\nExecStart=/usr/local/bin/k3s server\nType=notify\n"
DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
SLICE = "system.slice/k3s.service"


def service(node, name="k3s"):
    return limits.state(node.tree(), [name])["services"][name]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *(("infinity", "infinity"), ("65536", 65536), ("64K", 65536), ("2 G", 2 << 30), ("1.5M", 3 << 19)),
        *(("8M:infinity", 8 << 20), ("infinity:infinity", "infinity"), ("", 8 << 20), ("0", 0)),
        *(("64KB", 64 << 20), ("much", 64 << 20)),
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
    found = service(node)
    assert (found["exists"], found["active"], found["main_pid"], found["drop_ins"]) == (False, False, None, [])
    assert found["memlock"] == wanted if wanted else found["memlock"].startswith("unknown: no unit file")


def test_the_managers_own_default(node):
    node.write("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=1M\nDefaultLimitMEMLOCK=2M")
    node.write("/usr/lib/systemd/system.conf.d/a.conf", "[Manager]\nDefaultLimitMEMLOCK=3M")
    node.write("/etc/systemd/system.conf.d/a.conf", "[Manager]\nDefaultLimitMEMLOCK=4M")
    assert service(node)["memlock"] == 4 << 20
    node.write("/run/systemd/system.conf.d/b.conf", "[Manager]\nDefaultLimitMEMLOCK=")
    assert service(node)["memlock"] == 8 << 20


def test_drop_ins_apply_by_name_over_all_directories(node):
    etc, run, lib = DIRECTORIES
    node.write(f"{etc}/k3s-agent.service", UNIT)
    places = (f"{lib}/service.d/05-all.conf", paths.own_drop_in("k3s-agent"), f"{run}/k3s-.service.d/20-prefix.conf")
    more = (f"{lib}/k3s-agent.service.d/10-gpufabric-rdma.conf", f"{lib}/service.d/ignored.txt")
    for path, value in zip((*places, *more), ("3M", "1M", "2M", "9M", "4M")):
        node.write(path, f"[Service]\nLimitMEMLOCK={value}")
    found = service(node, "k3s-agent")
    assert (found["memlock"], found["drop_ins"]) == (2 << 20, list(places))


def test_the_more_important_unit_file_counts_and_a_mask_hides_all(node):
    etc, run, lib = DIRECTORIES
    for directory, value in ((lib, "1M"), (run, "2M")):
        node.write(f"{directory}/k3s.service", f"{UNIT}LimitMEMLOCK={value}")
    assert service(node)["memlock"] == 2 << 20
    symlink(node, f"{etc}/k3s.service", "/dev/null")
    assert service(node)["exists"] is False


def test_sections_comments_continuations_and_templates(node):
    text = "[Unit]\nA=0\n[Service]\nA = 1 \\\n# why\n  2\n;A=3\nB=\n[Install]\nA=4"
    assert units.assignments(text, "Service") == [("A", "1  2"), ("B", "")]
    found = [units.template(unit) for unit in ("a@b.service", "a.service", "a@.service")]
    assert found == ["a@.service", None, None]
    node.write("/lib/systemd/system/a@.service", "[Service]\nType=oneshot")
    assert units.settings(node.tree(), "a@b.service", "Service") == {"Type": ["oneshot"]}


def process(node, pid, parent, started, command, soft="8388608"):
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    node.files(f"/proc/{pid}", comm=command, stat=f"{pid} ({command} ) x) {' '.join(fields)}")
    rows = f"Limit        Soft Limit\nMax locked memory         {soft:<20} unlimited            bytes     "
    node.write(f"/proc/{pid}/limits", rows)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(SLICE, id="version 2"),
        pytest.param(f"systemd/{SLICE}", id="version 1"),
        pytest.param(f"unified/{SLICE}", id="hybrid"),
        pytest.param(f"{SLICE}/init", id="delegated"),
    ],
)
def test_the_main_process_and_its_limit(node, group):
    """The shim of a container outlives the k3s that started it; a restarted k3s is younger than the old shim."""
    node.write("/etc/systemd/system/k3s.service", UNIT)
    node.write(f"/sys/fs/cgroup/{group}/cgroup.procs", "100\n200\n201")
    process(node, 100, 1, 1000, "containerd-shim")
    process(node, 200, 1, 5000, "k3s-server", "unlimited")
    process(node, 201, 200, 5001, "k3s-server")
    found = service(node)
    assert (found["active"], found["main_pid"], found["memlock_running"]) == (True, 200, "infinity")


def test_a_service_in_a_nested_slice_with_a_pid_file(node):
    node.write("/lib/systemd/system/docker.service", "[Service]\nSlice=a-b.slice\nPIDFile=/run/docker.pid\n")
    node.write("/sys/fs/cgroup/a.slice/a-b.slice/docker.service/cgroup.procs", "7\n8").write("/run/docker.pid", "8")
    process(node, 8, 7, 1, "dockerd")
    found = service(node, "docker")
    assert (found["main_pid"], found["memlock_running"]) == (8, 8 << 20)


@pytest.mark.parametrize(
    ("group", "wanted"), [("", (False, None, None)), ("7", (True, 7, "unknown: /proc/7/limits is not readable"))]
)
def test_an_empty_group_is_no_running_service_and_a_process_may_end_meanwhile(node, group, wanted):
    node.write("/lib/systemd/system/k3s.service", UNIT)
    node.write(f"/sys/fs/cgroup/{SLICE}/cgroup.procs", group)
    found = service(node)
    assert (found["active"], found["main_pid"], found["memlock_running"]) == wanted
