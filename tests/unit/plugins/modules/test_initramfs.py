"""How an image is rebuilt, by programs that run: on a /boot that is too small and on one with room."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused
from ansible_collections.gpufabric.rdma.plugins.modules import initramfs

# How dracut.sh ends: the image is copied to its place, and what is there goes where the copy fails.
DRACUT = """#!/bin/sh
[ "$1" = --force ] || exit 2
cp --reflink=auto {built} "$2" 2>/dev/null && exit 0
rm -f -- "$2"
echo "dracut: creation of $2 failed" >&2
exit 1
"""


@pytest.fixture
def boot(tmp_path):
    """A file system of 256 KiB with an image of 100 KiB."""
    folder = tmp_path / "boot"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("not verified: wants to mount a file system")
    try:
        (folder / "initramfs-5.14.img").write_bytes(b"old" * 33_000)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def rebuild(boot, tmp_path):
    """Rebuilds the image with a dracut whose result has the given content."""

    def run(content: bytes, script: str = DRACUT) -> list[Change]:
        (tmp_path / "built").write_bytes(content)
        dracut = tmp_path / "dracut"
        dracut.write_text(script.format(built=tmp_path / "built"))
        dracut.chmod(0o755)
        image = str(boot / "initramfs-5.14.img")
        facts = {"initramfs": {"generator": "dracut", "images": [{"path": image, "kernel": "5.14"}]}}

        def call(argv):
            done = subprocess.run([str(tmp_path / argv[0]), *argv[1:]], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

        return list(initramfs.apply([Change(image, "rebuild", "older", "newer")], facts, call))

    return run


def names(boot: pathlib.Path) -> list[str]:
    return sorted(os.listdir(boot))


def test_a_full_boot_keeps_the_old_image(boot, rebuild):
    with pytest.raises(Refused, match="the image is still the old one"):
        rebuild(b"new" * 100_000)
    assert names(boot) == ["initramfs-5.14.img"]
    assert (boot / "initramfs-5.14.img").read_bytes() == b"old" * 33_000


def test_a_new_image_takes_the_place_of_the_old_one_in_one_step(boot, rebuild):
    before = os.stat(boot / "initramfs-5.14.img").st_ino
    with open(boot / "initramfs-5.14.img", "rb") as held:
        assert len(rebuild(b"new" * 10)) == 1
        assert held.read() == b"old" * 33_000, "the old image is never written over"
    assert names(boot) == ["initramfs-5.14.img"]
    assert (boot / "initramfs-5.14.img").read_bytes() == b"new" * 10
    assert os.stat(boot / "initramfs-5.14.img").st_ino != before


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 0\n", '#!/bin/sh\n: >"$2"\n'])
def test_a_program_that_ends_well_without_an_image_changes_nothing(boot, rebuild, script):
    with pytest.raises(Refused, match="an empty file or none"):
        rebuild(b"", script)
    assert names(boot) == ["initramfs-5.14.img"]
    assert (boot / "initramfs-5.14.img").read_bytes() == b"old" * 33_000
