"""Which kernel boots next, from what GRUB reads, and what of it is missing."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import boot
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

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
# As grub-mkconfig writes it: a simple entry, then a submenu with one entry a kernel.
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
    """Writes files {path: text} and returns what the gate says; kernels that are whole are given by version."""

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


def debian(default="0", environment="", **more):
    return {"boot/grub/grub.cfg": DEFAULT.format(default) + DEBIAN, "boot/grub/grubenv": environment, **more}


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("boot/grub/grub.cfg", DEFAULT.format("0") + DEBIAN),  # nothing is lost
        *(("boot/initrd.img-6.8", None), ("boot/initrd.img-6.8", ""), ("boot/vmlinuz-6.8", None)),
        ("lib/modules/6.8/modules.dep", None),
    ],
)
def test_what_the_kernel_that_boots_next_lacks_is_named(node, lost, text):
    said, unknown = node({**debian(), lost: text}, ["6.1", "6.8"])
    wanted = f"kernel 6.8, which boots next (/boot/grub/grub.cfg): /{lost} is missing or empty"
    assert (said, unknown) == ("" if "grub" in lost else wanted, [])


@pytest.mark.parametrize(
    ("default", "environment", "kernel"),
    [
        ("0", "", "6.8"),
        ("0", "next_entry=1>1\n#####", "6.1"),
        ("1>1", "", "6.1"),
        ("1", "", "6.8"),
        ("gnulinux-advanced-1>gnulinux-6.1-advanced-1", "", "6.1"),
        ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1", "", "6.1"),
        ("${saved_entry}", "saved_entry=gnulinux-advanced-1>gnulinux-6.1-advanced-1\n", "6.1"),
        ("${saved_entry}", "", "6.8"),
        ("gone", "", "6.8"),
    ],
)
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


@pytest.mark.parametrize(
    ("files", "said", "unknown"),
    [
        (debian("uefi-firmware"), "", 1),  # it starts no Linux
        ({**debian("2"), "boot/memtest86+.bin": "x"}, "kernel /boot/memtest86+.bin, which boots next", 1),
        ({}, "", 1),
        # Without GRUB the newest kernel of /boot counts.
        (
            {"boot/vmlinuz-6.1.0-100": "x", "boot/vmlinuz-6.1.0-56": "x", "boot/vmlinuz-6.2.old": "x"},
            "kernel 6.1.0-100",
            0,
        ),
    ],
)
def test_what_is_no_kernel_of_grub(node, files, said, unknown):
    found, not_verified = node(files)
    assert found.startswith(said)
    assert (bool(found), len(not_verified)) == (bool(said), unknown)
