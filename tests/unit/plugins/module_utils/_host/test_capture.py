"""A capture reproduces the facts, without anything that identifies the machine. The kernel that GRUB boots next."""

import base64
import ipaddress
import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import boot
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.capture import capture
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files as report_files
from ansible_collections.gpufabric.rdma.tests.tools import tree

NEVER_SECRET = ("127.0.0.1", "0.0.0.0", "7f000001", "7f00:0001")


def again(fixture, target):
    path = target / "captured.yml"
    path.write_text(report_files.capture_text(fixture))
    return gather(Tree(str(tree.lay_out(tree.load(path), target / "again"))), software_hcas=True)


def originals(fixture):
    """Every notation of every MAC, GUID, address and id of a node, found without the code under test."""
    addresses = fixture["seams"].get("addresses") or {}
    found = {ipaddress.ip_interface(address).ip for own in addresses.values() for address in own}
    found = {
        word for ip in found for word in (str(ip), ip.packed.hex(), f"{ip.packed.hex()[:4]}:{ip.packed.hex()[4:]}")
    }
    for path, text in fixture["files"].items():
        found.update(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text))
        if path.endswith("/address"):
            octets = text.split(":")[-8:]
            found.update((text, "".join(octets)))
            if len(octets) == 6:
                eui64 = [f"{int(octets[0], 16) ^ 2:02x}", *octets[1:3], "ff", "fe", *octets[3:]]
                found.update(("".join(eui64), ":".join(a + b for a, b in zip(eui64[::2], eui64[1::2]))))
        if path.endswith(("/node_guid", "/sys_image_guid")):
            found.update((text, text.replace(":", "")))
        if path == "/proc/net/if_inet6":
            digits = [line.split()[0] for line in text.splitlines()]
            found.update((*digits, *(str(ipaddress.IPv6Address(int(word, 16))) for word in digits)))
        if path == "/proc/net/route":
            found.update(word for line in text.splitlines()[1:] for word in line.split()[1:3])
    trivial = re.compile(r"[0:]*|ff[:f]*|.*00000000$")
    return {text for text in found if not trivial.fullmatch(text) and text not in NEVER_SECRET}


@pytest.mark.parametrize("name", tree.names())
def test_the_same_facts_come_back_scrubbed_and_no_original_survives(name, tmp_path):
    fixture = tree.load(name)
    captured, facts, scrubber = capture(str(tree.lay_out(fixture, tmp_path / "node")), name)
    assert again(captured, tmp_path) == scrubber.apply(facts)
    if fixture["provenance"]["kind"] == "captured":
        return  # it already has replacements, and a second capture may choose the same ones
    text = everything(captured).lower()
    wanted = [word.lower() for word in originals(fixture)]
    assert len(wanted) > 5
    assert [word for word in wanted if re.search(rf"(?<![0-9a-f]){re.escape(word)}(?![0-9a-f])", text)] == []


def test_what_proc_links_to_its_reader_is_scrubbed_and_has_no_process_number(tmp_path):
    root = tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
    (root / "proc/4711").mkdir()
    (root / "proc/net").rename(root / "proc/4711/net")
    (root / "proc/self").symlink_to("4711")
    (root / "proc/net").symlink_to("self/net")
    found = tree.expand(capture(str(root), "live")[0])
    assert "C63364FD" not in str(found).upper().replace(":", "")
    assert found["files"]["/proc/net/route"].splitlines()[1].split()[2] != "FE6533C6"
    assert not any("4711" in path for section in ("files", "links") for path in found[section])
    assert "/proc/self" not in found["links"]


# Secrets of many kinds, planted in every hand-written file that a capture reads. {t} and {n} distinguish them.
KINDS = r"""
inst.ks=http://user:pw{t}@boot.corp{t}.example/ks.cfg
netroot=iscsi:chap{t}:pw{t}pw{t}@10.200.{n}.9::3260::iqn.2026-01.corp{t}:disk
BOOTIF=01-a0-88-c2-ee-{n:02x}-77
ip=[2001:db8:77:{n:x}::7]::[2001:db8:77:{n:x}::1]:64:host{t}:eth0:none
ip=10.201.{n}.7::10.201.{n}.1:255.255.255.0:host{t}:eth0:none
root=PARTUUID=0123abcd-0000-4000-8000-{n:012x}
root=/dev/mapper/vg_host{t}-root
systemd.machine_id=5e{n:030x}
systemd.hostname=host{t}.corp.example
K10{n:032x}::server:pw{t}
-----BEGIN PRIVATE KEY----- key{t} -----END
https_proxy=http://pw{t}@proxy{t}.corp:3128
jane.{t}@corp.example
rd.luks.uuid=luks-0123abce-0000-4000-8000-{n:012x}
acme.secret=pw{t}
""".strip().splitlines()
# Where a person may have put them: the file, and the lines around a secret.
PLACES = {
    "/proc/cmdline": "{s}",
    "/etc/modprobe.d/site.conf": "# {s}\noptions acme {s}\noptions ib_core {s} netns_mode={s}\nsoftdep {s}\n"
    "install mlx5_ib /bin/x {s}\ninstall mlx5_ib /sbin/modprobe --ignore-install mlx5_ib {s}\n"
    "blacklist mlx5_ib {s}\noptions mlx5_core \\\n  {s}",
    "/etc/modules-load.d/site.conf": "# {s}\nmlx5_ib {s}\n{s}",
    "/etc/modules": "{s}",
    "/etc/rdma/modules/site.conf": "# {s}\n{s}",
    "/etc/systemd/system/k3s.service": "[Unit]\nDescription={s}\n[Service]\nEnvironment={s}\nEnvironment=A=\\\n  {s}\n"
    "ExecStart=/usr/local/bin/k3s server {s}\nExecStartPre=/bin/x {s}\nLimitMEMLOCK=64 {s}\n# {s}",
    "/etc/systemd/system/k3s.service.d/site.conf": "[Service]\n{s}\nEnvironment={s}\nSetCredential=a:{s}",
    "/etc/systemd/system.conf": "[Manager]\nDefaultEnvironment={s}\n# {s}",
    "/etc/infiniband/openib.conf": "ONBOOT=yes\nNOTE={s}\n# {s}",
    "/etc/os-release": "ID=debian\nSITE={s}\nBUILD_URL={s}\n# {s}",
    "/var/lib/dpkg/status": "\nPackage: acme\nStatus: install ok installed\nVersion: 1\nDescription: {s}\n"
    "\nPackage: rdma-core\nStatus: install ok installed\nArchitecture: amd64\nVersion: 50.0\nMaintainer: {s}\n",
    "/proc/1/environ": "TOKEN={s}\0container=lxc\0",
}
PLANTS = [
    (path, kind.format(t=f"{place}x{number}z", n=place * 20 + number))
    for place, path in enumerate(PLACES, 1)
    for number, kind in enumerate(KINDS)
]


PARTS = r"[a-zA-Z]+\d+x\d+z\w*|jane\.\w+|10\.20[01]\.\d+\.\d|ee-[0-9a-f]{2}-77|2001:db8:77:[0-9a-f]+::\d|[0-9a-f]{32}"


def telling(secret):
    return re.findall(rf"{PARTS}|0123abc[de][-0-9a-f]+", secret)


def everything(captured):
    """The content of a captured file, including binary parts."""
    binary = (captured.get("binary") or {}).values()
    return report_files.capture_text(captured) + "".join(base64.b64decode(data).decode("latin-1") for data in binary)


@pytest.mark.parametrize("name", ["gh200-cx7-roce", "exclusive-netns-foreign-file", "a100-8x-cx6"])
def test_no_secret_that_someone_wrote_into_a_file_survives(name, tmp_path):
    fixture = tree.load(name)
    for path, around in PLACES.items():
        secrets = [secret for place, secret in PLANTS if place == path]
        joint = " " if path == "/proc/cmdline" else "\n"
        planted = joint.join(around.replace("{s}", secret) for secret in secrets)
        fixture["files"][path] = joint.join(text for text in (fixture["files"].get(path), planted) if text)
    fixture["links"].pop("/etc/os-release", None)
    root = tree.lay_out(fixture, tmp_path / "node")
    captured, facts, scrubber = capture(str(root), name)
    text = str(tree.expand(captured)) + everything(captured)
    assert all(telling(secret) for _path, secret in PLANTS)
    assert [(path, part) for path, kind in PLANTS for part in telling(kind) if part.lower() in text.lower()] == []
    assert again(captured, tmp_path) == scrubber.apply(facts)


def test_names_and_addresses_of_namespaces_units_pods_and_the_machine_are_replaced_everywhere(tmp_path):
    fixture = tree.load("exclusive-netns-foreign-file")
    files = fixture["files"]
    files["/proc/sys/kernel/hostname"] = "acme-gpu-17.corp.example"
    files["/proc/1/mountinfo"] += "\n98 25 0:4 net:[4026533333] /run/netns/acme-customer rw - nsfs nsfs rw"
    files["/proc/2301/cgroup"] = "0::/acme.slice/acme-billing.service"
    pod = "kubepods-pod3f9c1b7e_5d1a_4c7e_8a55_aabbccddeeff.slice"
    files["/proc/2344/cgroup"] = f"0::/kubepods.slice/{pod}/cri-containerd-{'ab12' * 16}.scope"
    for host in ("babbeefffea75cd4", "0000000000000053"):
        files["/proc/net/if_inet6"] += f"\n20010db8beef0001{host} 02 40 00 00 eno1"
    addresses = {"eno1": ["203.0.113.66/26", "10.20.30.40/8"], "enp59s0np0": ["10.18.0.1/24", "10.20.99.1/24"]}
    fixture["seams"]["addresses"] |= addresses
    node_desc = next(path for path in files if path.endswith("/node_guid")).replace("node_guid", "node_desc")
    files[node_desc] = "acme-gpu-17 HCA-1"
    captured, facts, scrubber = capture(str(tree.lay_out(fixture, tmp_path / "node")), "a")
    secrets = ("acme", "3f9c1b7e", "ab12ab12", "beef", "203.0.113.66", "10.20.30.40", "10.18.0.1", "0a12")
    assert [secret for secret in secrets if secret in report_files.capture_text(captured)] == []
    found = again(captured, tmp_path)
    assert found == scrubber.apply(facts)
    netdev, port = found["hcas"][0]["netdevs"][0], found["hcas"][0]["ports"][0]
    mapped = ipaddress.IPv6Address(port["gids"][2]["gid"]).ipv4_mapped
    assert mapped in [ipaddress.ip_interface(address).ip for address in netdev["addresses"]], "relations survive"
    namespaces = found["subsystem"]["namespaces"]
    units = [owner["unit"] for namespace in namespaces for owner in namespace["owners"]]
    assert any(re.fullmatch(r"unit-\d+\.service", unit or "") for unit in units)
    assert any((namespace["name"] or "").startswith("/run/netns/ns-") for namespace in namespaces)


# --- the kernel that boots next, from GRUB's files, and its missing files ---------------------------------------------


DEFAULT = """\
if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="{}"
fi
function savedefault {{
  if [ -z "${{boot_once}}" ]; then
    saved_entry="${{chosen}}"
  fi
}}
"""
# As from grub-mkconfig: a simple entry, then a submenu with one entry per kernel.
DEBIAN = """\
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1' {
\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
\tlinux\t/boot/vmlinuz-6.8 root=UUID=1 ro quiet
\techo\t'Loading initial ramdisk ...'
\tinitrd\t/boot/initrd.img-6.8
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {
\tmenuentry 'Debian GNU/Linux, with Linux 6.8' --class debian $menuentry_id_option 'gnulinux-6.8-advanced-1' {
\t\tlinux\t/boot/vmlinuz-6.8 root=UUID=1 ro quiet
\t\tinitrd\t/boot/initrd.img-6.8
\t}
\tmenuentry 'Debian GNU/Linux, with Linux 6.1' --class debian $menuentry_id_option 'gnulinux-6.1-advanced-1' {
\t\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro quiet
\t\tinitrd\t/boot/initrd.img-6.1
\t}
}
menuentry 'Memory test' {
\tlinux16\t/boot/memtest86+.bin
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
\tfwsetup
}
"""
ENTRY = """\
title Red Hat Enterprise Linux ({version}) 9.4
version {version}
linux /vmlinuz-{version}
initrd /initramfs-{version}.img $tuned_initrd
options $kernelopts $tuned_params
"""


@pytest.fixture
def node(tmp_path, put):
    """Writes files {path: text} and returns the gate's answer; complete kernels are given by version."""

    def lay_out(files: dict, whole=()) -> tuple[str, list]:
        for version in whole:
            names = [f"vmlinuz-{version}", f"initrd.img-{version}", f"initramfs-{version}.img"]
            files = {**{f"boot/{name}": "x" for name in names}, f"lib/modules/{version}/modules.dep": "x", **files}
        for path, text in files.items():
            if text is not None:
                put(path, text)
        findings, unknown = boot.judge(Tree(tmp_path))
        return "\n".join(f"{found.object}: {found.seen}" for found in findings), unknown

    return lay_out


GRUB = DEFAULT.format("0") + DEBIAN


def debian(default="0", environment="", **more):
    return {"boot/grub/grub.cfg": DEFAULT.format(default) + DEBIAN, "boot/grub/grubenv": environment, **more}


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        # Nothing is lost; as on one partition, on one of its own and on a subvolume.
        *(("boot/grub/grub.cfg", GRUB.replace("/boot/", prefix)) for prefix in ("/boot/", "/", "/@/boot/")),
        *(("boot/initrd.img-6.8", None), ("boot/initrd.img-6.8", ""), ("boot/vmlinuz-6.8", None)),
        ("lib/modules/6.8/modules.dep", None),
    ],
)
def test_what_the_kernel_that_boots_next_lacks_is_named(node, lost, text):
    said, unknown = node({**debian(), lost: text}, ["6.1", "6.8"])
    wanted = f"kernel 6.8, which boots next (/boot/grub/grub.cfg): /{lost} is missing or empty"
    assert (said, unknown) == ("" if "grub" in lost else wanted, [])


@pytest.mark.parametrize(("default", "environment", "kernel"), [
    ("0", "", "6.8"),
    ("0", "next_entry=1>1\n#####", "6.1"),
    ("1>1", "", "6.1"),
    ("1", "", "6.8"),
    ("gnulinux-advanced-1>gnulinux-6.1-advanced-1", "", "6.1"),
    ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1", "", "6.1"),
    ("${saved_entry}", "saved_entry=gnulinux-advanced-1>gnulinux-6.1-advanced-1\n", "6.1"),
    ("${saved_entry}", "", "6.8"),
    ("gone", "", "6.8"),
])  # fmt: skip
def test_the_default_entry_is_found_as_grub_finds_it(node, default, environment, kernel):
    said, _unknown = node(debian(default, environment))
    assert said.startswith(f"kernel {kernel}, which boots next")


@pytest.mark.parametrize(("saved", "kernel"), [("id-5.14.0-9", "5.14.0-9"), ("", "5.14.0-70"), ("1", "5.14.0-9")])
def test_entries_of_the_boot_loader_specification_are_read(node, saved, kernel):
    entries = {f"boot/loader/entries/id-{v}.conf": ENTRY.format(version=v) for v in ("5.14.0-9", "5.14.0-70")}
    entries["boot/loader/entries/id-0-rescue.conf"] = ENTRY.format(version="0-rescue")
    grub = {
        "boot/grub2/grub.cfg": DEFAULT.format("${saved_entry}") + "insmod blscfg\nblscfg\n",
        "boot/grub2/grubenv": f"# GRUB Environment Block\nsaved_entry={saved}\n",
    }
    assert node({**entries, **grub})[0].startswith(f"kernel {kernel}, which boots next (/boot/grub2/grub.cfg)")
    assert node({**entries, **grub}, [kernel]) == ("", [])


@pytest.mark.parametrize(("files", "said", "unknown"), [
    (debian("uefi-firmware"), "", 1),  # it starts no Linux
    ({**debian("2"), "boot/memtest86+.bin": "x"}, "kernel /boot/memtest86+.bin, which boots next", 1),
    ({}, "", 1),
    # Without GRUB the newest kernel of /boot counts.
    (
        {"boot/vmlinuz-6.1.0-100": "x", "boot/vmlinuz-6.1.0-56": "x", "boot/vmlinuz-6.2.old": "x"},
        "kernel 6.1.0-100",
        0,
    ),
])  # fmt: skip
def test_what_is_no_kernel_of_grub(node, files, said, unknown):
    found, not_verified = node(files)
    assert found.startswith(said)
    assert (bool(found), len(not_verified)) == (bool(said), unknown)
