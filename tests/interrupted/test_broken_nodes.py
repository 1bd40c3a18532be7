"""A node with a full disk, or with a name server that never answers: named or converged, and no file is half."""

from __future__ import annotations

import pytest

# Folders that roles write to, each with a file system of its own that has no room.
FULL = {
    "/etc/modprobe.d": "/etc/modprobe.d/",
    "/etc/modules-load.d": "/etc/modules-load.d/",
    "/etc/systemd/system": "/etc/systemd/system/",
    "/usr/local/lib": "/usr/local/lib/",
    "/etc": "/etc/",
    "/tmp": "/tmp",
}
FILL = """
set -e
mkdir -p {folder} && cp -a {folder} /run/kept
mount -t tmpfs -o size={size},mode=$(stat -c %a {folder}) full {folder}
cp -a /run/kept/. {folder}/
dd if=/dev/zero of={folder}/.filler bs=1M 2>/dev/null || true
"""
HASH = "find /etc /usr/local -type f ! -name .filler -exec sha256sum {} + | sort"
# Takes every question and answers none.
SILENT = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.53", 53))
while True:
    server.recv(4096)
"""


@pytest.mark.parametrize("folder", FULL)
def test_a_full_disk_is_named_and_leaves_no_half_file(node, undisturbed, note, folder):
    # Room for what the roles write there, once the filler is gone.
    size = int(node.node(f"du -sk {folder} 2>/dev/null || echo 0").split()[0]) + 200 * 1024
    node.node(FILL.format(folder=folder, size=f"{size}k"))
    before = set(node.node(HASH).splitlines())

    full = node.start()

    # Whole files of earlier tasks may be there, each as a finished node has it; none in the folder that is full.
    extra = {line for line in set(node.node(HASH).splitlines()) ^ before if f"  {folder}/" in line}
    node.node(f"rm {folder}/.filler")
    after = node.start()
    note(
        f"{after.seconds:7.1f} s  next run, {folder} with room: exit code {after.code}, {after.passed} passed, "
        f"{full.code} before"
    )
    if full.code:
        text = " ".join(full.text.split())
        assert FULL[folder] in text, full.last()
        assert "No space left on device" in text, full.last()
        assert extra == set()
    else:
        assert full.passed >= undisturbed.passed, f"{folder} was full, and the run says nothing of it"
    assert after.code == 0, after.last()
    assert after.passed >= undisturbed.passed
    # Lazily: the device plugin runs from /usr/local/lib.
    node.node(f"rm -rf /run/kept /run/late && mkdir /run/late && cp -a {folder}/. /run/late && umount -l {folder}")
    node.node(f"cp -a /run/late/. {folder}/ && rm -rf /run/late")
    assert sorted(node.look() ^ undisturbed.look) == []


def test_a_name_server_that_never_answers_delays_nothing(node, undisturbed, note):
    node.node("printf 'nameserver 127.0.0.53\\n' > /etc/resolv.conf")
    node.node(f"cat > /run/silent.py <<'END'\n{SILENT}END\nsystemd-run --quiet --unit=silent python3 /run/silent.py")
    waited = node.node("date +%s; getent hosts a.name.example.org; date +%s").split()
    assert int(waited[-1]) - int(waited[0]) >= 5, "the name server of this test hangs nobody"

    run = node.start()

    node.node("systemctl stop silent")
    note(f"{run.seconds:7.1f} s  first run, no name server answers; undisturbed {undisturbed.seconds:.1f} s")
    assert run.code == 0, run.last()
    assert run.passed >= undisturbed.passed
    differs = {line for line in node.look() ^ undisturbed.look if "resolv.conf" not in line}
    assert sorted(differs) == []
