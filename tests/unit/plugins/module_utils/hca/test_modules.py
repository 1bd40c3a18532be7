"""Module files, packages and the driver; modprobe.d and units; the netns mode; the limits of services; and of
GPU-initiated RDMA: each published failure is named, and a way works only where nothing of it is missing.
"""

import gzip
import lzma
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import (
    driver,
    elf,
    gpu_initiated,
    limits,
    modprobe,
    modules,
    netns,
    paths,
)
from ansible_collections.gpufabric.rdma.tests.tools import tree


def test_files_are_sorted_by_name_and_of_one_name_the_first_directory_wins(node):
    for directory in reversed(paths.CONFIGURATION):
        node.write(f"{directory}/modprobe.d/x.conf", f"options a from={directory}")
    node.write("/usr/lib/modprobe.d/z.conf", "options a n=3")
    node.write("/run/modprobe.d/a.conf", "options a n=1")
    node.write("/etc/modprobe.d/ignored.txt", "options a n=9").write("/etc/modprobe.d/.hidden.conf", "options a n=9")
    found = [line.path for line in modprobe.statements(node.tree())]
    assert found == ["/run/modprobe.d/a.conf", "/etc/modprobe.d/x.conf", "/usr/lib/modprobe.d/z.conf"]


def test_a_link_to_dev_null_masks_and_a_merged_usr_counts_once(node):
    for name in "xy":
        node.write(f"/usr/lib/modprobe.d/{name}.conf", "blacklist a")
    node.write("/etc/modprobe.d/x.conf").host("/etc/modprobe.d/x.conf").unlink()
    node.host("/etc/modprobe.d/x.conf").symlink_to("/dev/null")
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


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        *(("blacklist mlx5_ib", True), ("blacklist mlx5-ib", True), ("blacklist mlx5_core", False)),
        *(("install mlx5_ib /bin/true", True), ("install mlx5_ib /usr/local/bin/instead", True), ("install", False)),
        ("install mlx5_ib /sbin/modprobe --ignore-install mlx5_ib && true", False),
        ("install mlx5_ib /sbin/modprobe -qi mlx5_ib && true", False),
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
    listed = "kernel/x/mlx5_ib.ko.xz: kernel/x/mlx5_core.ko.xz kernel/x/ib_umad.ko\n/opt/else/other.ko: \n"
    node.write(f"{folder}/modules.dep", f"{listed}updates/dkms/nvidia-peermem.ko.zst:\n")
    node.write(f"{folder}/modules.builtin", "kernel/drivers/infiniband/core/ib_core.ko")
    node.module("mlx5_ib").write("/sys/module/ib_core/parameters/netns_mode", "Y")
    wanted = {"mlx5_ib": (True, False, True), "ib_core": (True, True, True)}
    wanted |= {"nvidia_peermem": (False, False, True), "ib_umad": (False, False, False)}
    found = modules.state(node.tree(), list(wanted))
    assert {name: (fact["loaded"], fact["builtin"], fact["available"]) for name, fact in found.items()} == wanted
    catalogue = modules.Catalogue(node.tree(), "6.1.0-test")
    assert catalogue.path("nvidia-peermem") == f"{folder}/updates/dkms/nvidia-peermem.ko.zst"
    assert (catalogue.path("other"), catalogue.path("none")) == ("/opt/else/other.ko", None)


@pytest.mark.parametrize(
    ("mode", "values"), [("shared", ("1", "y", "on")), ("exclusive", ("0", "No", "off")), (None, ("2", "o", ""))]
)
def test_modes_as_the_kernel_reads_them(mode, values):
    assert {netns.mode_of(value) for value in values} == {mode}


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


def process(node, pid, parent, started, command, soft="8388608"):
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    node.files(f"/proc/{pid}", comm=command, stat=f"{pid} ({command} ) x) {' '.join(fields)}")
    rows = f"Limit        Soft Limit\nMax locked memory         {soft:<20} unlimited            bytes     "
    node.write(f"/proc/{pid}/limits", rows)


@pytest.mark.parametrize("group", [SLICE, f"systemd/{SLICE}", f"unified/{SLICE}", f"{SLICE}/init"])
def test_the_main_process_and_its_limit(node, group):
    """The shim of a container outlives the k3s that started it; a restarted k3s is younger than the old shim."""
    node.write("/etc/systemd/system/k3s.service", UNIT)
    node.write(f"/sys/fs/cgroup/{group}/cgroup.procs", "100\n200\n201")
    process(node, 100, 1, 1000, "containerd-shim")
    process(node, 200, 1, 5000, "k3s-server", "unlimited")
    process(node, 201, 200, 5001, "k3s-server")
    found = service(node)
    assert (found["active"], found["main_pid"], found["memlock_running"]) == (True, 200, "infinity")


KERNEL, kernel_module = "6.1.0-test", tree.COMPOSED["kernel_module"]


def note(build_id: str) -> bytes:
    return struct.pack("<III4s", 4, len(build_id) // 2, 3, b"GNU") + bytes.fromhex(build_id)


def state(node):
    return driver.state(node.tree(), modules.Catalogue(node.tree(), KERNEL), None)


@pytest.mark.parametrize(
    ("name", "pack", "order"),
    [("x.ko", bytes, "<"), ("x.ko", bytes, ">"), ("x.ko.xz", lzma.compress, "<"), ("x.ko.gz", gzip.compress, "<")],
)
def test_modinfo_reads_the_file_itself(node, name, pack, order):
    node.write(f"/{name}", pack(kernel_module({"version": "1.2", "srcversion": "ABC", "alias": "a\0alias=b"}, order)))
    assert elf.modinfo(node.tree(), f"/{name}") == {"version": "1.2", "srcversion": "ABC", "alias": "a"}


@pytest.mark.parametrize("name", ["x.ko", "x.ko.xz", "x.ko.gz"])
@pytest.mark.parametrize("data", [b"", b"no module", b"\x7fELF\x02\x01" + bytes(58), kernel_module({"a": "b"})[:90]])
def test_what_is_not_a_module_has_no_modinfo(node, name, data):
    node.write(f"/{name}", data)
    assert elf.modinfo(node.tree(), f"/{name}") is None


def packages(node, text):
    """`name version[ status]` of each package, in dpkg's format."""
    rows = [(*one.split(), "install")[:3] for one in filter(None, text.split(", "))]
    stanzas = [f"Package: {name}\nStatus: {how} ok installed\nVersion: {version}\n" for name, version, how in rows]
    gone = "Package: doca-ofed\nStatus: deinstall ok config-files\nVersion: 3.0.0\nDescription: x\n Package: fake\n"
    node.write("/var/lib/dpkg/status", "\n".join([*stanzas, gone]))


@pytest.mark.parametrize(("listed", "info", "wanted"), [
    ("rdma-core 44", None, ("inbox", None)),
    ("doca-ofed-userspace 3.2, mlnx-ofed-kernel-utils 24.10", None, ("inbox", None)),
    ("ofed-scripts 24.10", "echo MLNX_OFED_LINUX-24.10-3.2.5.0:", ("inbox", None)),
    ("mlnx-ofed-kernel-dkms 24.10", None, ("mlnx_ofed", "24.10")),
    ("mlnx-ofed-kernel-dkms 25.10, doca-ofed 3.2.1", None, ("doca", "3.2.1")),
    ("mlnx-ofed-kernel-dkms 25.10", "echo OFED-internal-25.10-1.2.8:", ("doca", "25.10-1.2.8")),
    ("", 'echo "MLNX_OFED_LINUX-24.10-3.2.5.0 (OFED-24.10)"', ("mlnx_ofed", "24.10-3.2.5.0")),
    ("linux-main-modules-doca-ofed-3.4-6.14.0-1-generic 6.14, doca-ofed-generic 3.4", None, ("ubuntu_archive", "3.4")),
])  # fmt: skip
def test_the_installed_stack(node, listed, info, wanted):
    packages(node, listed)
    if info:
        node.write("/usr/bin/ofed_info", f"#!/bin/bash\n{info}")
    found = driver.installed(node.tree())
    assert (found["flavor"], found["version"]) == wanted


def test_mlx_compat_in_memory_is_an_ofed_stack(node):
    node.module("mlx5_core", version="24.10-1.1.4", srcversion="A").module("mlx_compat")
    assert driver.loaded(node.tree())["flavor"] == "ofed"
    assert driver.loaded(node.tree(), "doca")["flavor"] == "doca"


def test_what_cannot_be_compared_is_unknown(node):
    assert state(node)["agree"] == "unknown: no RDMA driver module is loaded"
    node.module("mlx5_core")
    found = state(node)
    assert found["agree"].startswith("unknown: no loaded module has a srcversion or build id")
    assert found["on_disk"]["flavor"] == f"unknown: /lib/modules/{KERNEL}/modules.dep is not readable"


@pytest.mark.parametrize(("running", "agree"), [("aa" * 20, True), ("bb" * 20, False)])
def test_debian_modules_are_compared_by_their_build_id(node, running, agree):
    """Debian's kernels have no srcversion for modules without a version."""
    path = "kernel/drivers/mlx5_core.ko"
    node.write(f"/lib/modules/{KERNEL}/modules.dep", f"{path}:")
    node.write(f"/lib/modules/{KERNEL}/{path}", kernel_module({}, build_id=note("aa" * 20)))
    node.module("mlx5_core").write("/sys/module/mlx5_core/notes/.note.gnu.build-id", note(running))
    found = state(node)
    assert found["agree"] is agree
    assert found["on_disk"]["modules"]["mlx5_core"]["build_id"] == "aa" * 20
    assert found["loaded"]["modules"]["mlx5_core"]["build_id"] == running


# GPU-initiated RDMA.

GPU = ({"vendor": "10de"},)
PARAMS = 'ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: {}\nRegistryDwords: "{}"\nRegistryDwordsPerDevice: ""\n'
LINE = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"\n'
BOTH = ("peer-mapping", "stream-memory")


def whys(state):
    return {each["need"]: each["why"] for way in state["ways"].values() for each in way["missing"]}


def initiated(node, files, gpus=GPU):
    """The state of a node with the NVIDIA driver loaded and these files."""
    node.host("/sys/module/nvidia").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        node.write(path, text.encode())
    return gpu_initiated.state(node.tree(), gpus, modprobe.statements(node.tree()))


ON = {"proc/driver/nvidia/params": PARAMS.format(1, "PeerMappingOverride=1;")}
OFF = {"proc/driver/nvidia/params": PARAMS.format(0, "")}
CONF, OURS = "etc/modprobe.d/nvidia.conf", paths.OWN_MODPROBE.lstrip("/")
LATE = "options nvidia NVreg_EnableStreamMemOPs=0\n"


@pytest.mark.parametrize(("files", "expected"), [
    (ON, {}),
    ({"proc/driver/nvidia/params": PARAMS.format(1, "RmX=3;PeerMappingOverride=0x1")}, {}),
    (OFF, dict.fromkeys(BOTH, "absent")),
    ({}, dict.fromkeys(BOTH, "unknown")),
    ({**OFF, CONF: LINE}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, CONF: LINE.replace("nvidia", "nvidia-current", 1)}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, CONF: LINE.removeprefix("options nvidia ")}, dict.fromkeys(BOTH, "stray")),
    ({**OFF, CONF: LINE.removeprefix("options ")}, dict.fromkeys(BOTH, "stray")),
    ({**OFF, CONF: "#" + LINE}, dict.fromkeys(BOTH, "absent")),
    ({**OFF, OURS: LINE, "proc/stat": "btime 1\n"}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, OURS: LINE, "proc/stat": "btime 4000000000\n"}, dict.fromkeys(BOTH, "ignored")),
    ({**OFF, OURS: LINE, "etc/modprobe.d/zzz.conf": LINE}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, OURS: LINE, "etc/modprobe.d/zzz.conf": LATE},
     {"peer-mapping": "reboot", "stream-memory": "overridden"}),
])  # fmt: skip
def test_the_options_as_loaded_and_as_configured_are_two_states(node, files, expected):
    more = {"sys/module/nvidia_peermem/version": "1", "dev/gdrdrv": "", "sys/module/gdrdrv/version": "2.5"}
    state = initiated(node, {**files, **more})
    found = whys(state)
    assert found.pop("gdrdrv") == "mode"
    assert found == expected
    assert bool(state["overridden"]) == ("overridden" in expected.values())


def test_gdrdrv_needs_its_module_its_node_and_rights_for_everybody(node):
    assert initiated(node, ON, gpus=[{"vendor": "1002"}]) is None
    assert whys(initiated(node, ON)) == {"gdrdrv": "absent", "peermem": "absent"}
    for path, mode, why in (("sys/module/gdrdrv/version", 0o644, "no-node"), ("dev/gdrdrv", 0o660, "mode"),
                            ("dev/gdrdrv", 0o666, None)):  # fmt: skip
        node.write(path, b"").host(path).chmod(mode)
        state = gpu_initiated.state(node.tree(), GPU, [])
        assert whys(state).get("gdrdrv") == why
    assert {way: of["works"] for way, of in state["ways"].items()} == {
        "ibgda": True, "ibgda-cpu": True, "gin": True, "gdaki": False,
    }  # fmt: skip
