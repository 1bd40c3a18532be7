"""Our files: compared as text, written whole, read back."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import signal
import stat
import subprocess
import tempfile
import threading
import time

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Plan

PATH = "/etc/modprobe.d/zz.conf"


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        (None, ("write", "", "new\n")),
        ({"mode": "0644", "content": "old"}, ("write", "old\n", "new\n")),
        ({"mode": "0600", "content": "new"}, ("mode", "0600", "0644")),
        ({"mode": "0644", "content": "new\n"}, None),
        ({"mode": "0644", "content": "new"}, None),
    ],
)
def test_what_is_planned(owned, expected):
    made = Plan()
    changed = files.plan_file(made, {"owned_files": {PATH: owned} if owned else {}}, PATH, "new\n")
    assert made.changes == ([(PATH, *expected)] if expected else [])
    assert changed is (bool(expected) and expected[0] == "write")


def test_removal_of_what_is_not_there_is_not_a_change():
    made = Plan()
    files.plan_removal(made, {"owned_files": {}}, PATH)
    assert made.changes == []


def test_changes_are_carried_out_below_the_root(tmp_path):
    target = tmp_path / "etc/modprobe.d/zz.conf"
    files.apply_file(str(tmp_path), Change(PATH, "write", "", "text\n"))
    assert target.read_text() == "text\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    target.chmod(0o600)
    files.apply_file(str(tmp_path), Change(PATH, "mode", "0600", "0644"))
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    files.apply_file(str(tmp_path), Change(PATH, "remove", "text\n", ""))
    assert not target.exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    target = tmp_path / "file"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(OSError, match=r"directory|not empty"):
        files.write(str(target), "text")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "directive", "line", "expected"),
    [
        ("", "options ib_core", "options ib_core netns_mode=1", ["options ib_core netns_mode=1"]),
        (
            "options ib_core netns_mode=0",
            "options ib_core",
            "options ib_core netns_mode=1",
            ["options ib_core netns_mode=1"],
        ),
        ("softdep b pre: c", "options ib_core", "options ib_core x=1", ["options ib_core x=1", "softdep b pre: c"]),
        ("softdep b pre: c\noptions ib_core x=1", "softdep b", None, ["options ib_core x=1"]),
        ("options ib_core_other y=1", "options ib_core", None, ["options ib_core_other y=1"]),
        ("options ib_core x=1", "options ib_core", None, []),
    ],
)
def test_two_roles_share_one_file_line_by_line(content, directive, line, expected):
    text = files.with_directive(content, directive, line)
    assert text == files.HEADER + "".join(f"{kept}\n" for kept in expected)
    assert files.with_directive(text, directive, line) == text


# --- the one write ----------------------------------------------------------------------------------------------------

OTHER_USER = 65534
STEPS = ("open", "mkdir", "fchmod", "fsync", "replace", "close", "symlink", "unlink")


@pytest.fixture
def umask():
    """Set the umask for one test."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.fixture
def root_only():
    if os.geteuid():
        pytest.skip("not verified: wants root, it gives files to another user or mounts")


def killed_at(number, work):
    """Run work in a process that is killed before its call of that number into the system; whether it was."""
    child = os.fork()
    if child == 0:
        calls = iter(range(number))

        def counted(real):
            def step(*args, **options):
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return step

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_write_killed_anywhere_leaves_the_old_content_or_the_new_whole(tmp_path, old):
    new = b"new" * 100_000
    seen, going = [], True
    while going:
        target = tmp_path / f"{len(seen)}/made/file"
        if old is not None:
            target.parent.mkdir(parents=True)
            target.write_bytes(old)
        going = killed_at(len(seen), lambda target=target: files.write(str(target), new, 0o600))
        seen.append(target.read_bytes() if target.exists() else None)
    assert set(seen) == {old, new}
    assert seen == sorted(seen, key=lambda found: found == new), "once new, it stays new"
    assert len(seen) > 8


def test_a_link_killed_anywhere_is_the_old_one_or_the_new(tmp_path):
    number, going, seen = 0, True, set()
    while going:
        place = tmp_path / str(number)
        place.symlink_to("old")
        going = killed_at(number, lambda place=place: files.link(str(place), "new"))
        seen.add(os.readlink(place))
        number += 1
    assert seen == {"old", "new"}


def killed_anywhere(tmp_path, work):
    """A folder for each call at which work(folder) was killed, and one in which it came to its end."""
    number, going = 0, True
    while going:
        folder = tmp_path / str(number)
        folder.mkdir()
        going = killed_at(number, lambda folder=folder: work(folder))
        yield folder
        number += 1


def test_what_a_killed_write_leaves_goes_with_the_next_one_in_the_folder(tmp_path):
    litter = 0
    for folder in killed_anywhere(tmp_path, lambda folder: files.write(str(folder / "file"), "new")):
        litter += len([path for path in folder.iterdir() if path.name != "file"])
        files.write(str(folder / "other"), "")
        assert {path.name for path in folder.iterdir()} <= {"file", "other"}
    assert litter > 2, "killed writes leave something, or this test shows nothing"


def test_what_a_killed_link_leaves_goes_once_it_is_not_new(tmp_path):
    litter = 0
    for folder in killed_anywhere(tmp_path, lambda folder: files.link(str(folder / "link"), "new")):
        for path in folder.iterdir():
            litter += path.name != "link"
            os.utime(path, (0, 0), follow_symlinks=False)
        files.link(str(folder / "other"), "x")
        assert {path.name for path in folder.iterdir()} <= {"link", "other"}
    assert litter > 0


def test_what_others_still_write_stays(tmp_path):
    fresh, ours = tmp_path / ".gpufabric-0123456789abcdef", tmp_path / ".gpufabric-1a2b3c4d"
    fresh.symlink_to("x")
    ours.write_text("of a unit on the node, which names its own")
    with files.replacing(str(tmp_path / "slow")) as stream:
        stream.write(b"slow")
        files.write(str(tmp_path / "quick"), "quick")
        assert len([path for path in tmp_path.iterdir() if path.name.startswith(files.BESIDE)]) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"slow", "quick", fresh.name, ours.name}


def test_a_program_never_finds_what_a_killed_one_has_built(tmp_path):
    image = tmp_path / "initrd.img"
    for _turn in range(3):
        child = os.fork()
        if child == 0:
            with files.built_beside(str(image)) as beside:
                pathlib.Path(beside).write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert len(list(tmp_path.iterdir())) == 1
    with files.built_beside(str(image)) as beside:
        assert not os.path.exists(beside)
        pathlib.Path(beside).write_text("whole")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"initrd.img": "whole"}


def test_the_file_and_then_its_folder_are_on_the_disk(tmp_path, monkeypatch):
    order = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real_sync(handle)

    def replace(*args, **options):
        order.append("rename")
        real_replace(*args, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    files.write(str(tmp_path / "file"), "text")
    assert order == ["file", "rename", "folder"]


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_has_its_mode_before_it_has_content_whatever_the_umask(tmp_path, umask, mask, mode):
    umask(mask)
    with files.replacing(str(tmp_path / "token"), mode) as stream:
        found = os.fstat(stream.fileno())
        assert (stat.S_IMODE(found.st_mode), found.st_size) == (mode, 0)
        stream.write(b"secret")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == mode


def test_a_file_is_born_closed_to_others(tmp_path, umask, monkeypatch):
    umask(0)
    born = []
    monkeypatch.setattr(os, "fchmod", lambda handle, _mode: born.append(stat.S_IMODE(os.fstat(handle).st_mode)))
    files.write(str(tmp_path / "file"), "text", 0o644)
    assert born == [0o600]


def test_bytes_and_text_are_written_as_they_are(tmp_path):
    files.write(str(tmp_path / "bytes"), b"\xff\x00\r\n")
    files.write(str(tmp_path / "text"), "ü\r\n")
    assert (tmp_path / "bytes").read_bytes() == b"\xff\x00\r\n"
    assert (tmp_path / "text").read_bytes() == b"\xc3\xbc\r\n"


@pytest.mark.parametrize("failing", ["fchmod", "fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, failing):
    target = tmp_path / "file"
    target.write_text("old")

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        files.write(str(target), "new")
    monkeypatch.undo()
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_a_file_system_that_is_full_leaves_the_old_file_and_no_litter(tmp_path, root_only):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not verified: wants to mount a file system")
    try:
        target = tmp_path / "file"
        files.write(str(target), "old")
        with pytest.raises(OSError, match="No space left"):
            files.write(str(target), b"x" * 200_000)
        assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["file"])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_error_names_the_whole_path(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NotADirectoryError) as raised:
        files.write(str(tmp_path / "file/below"), "text")
    assert raised.value.filename == str(tmp_path / "file/below")


@pytest.mark.parametrize(
    "act",
    [
        lambda path: files.write(path, "new"),
        lambda path: files.set_mode(path, 0o600),
        lambda path: files.link(path, "elsewhere"),
        files.remove,
        lambda path: files.rename(path, f"{path}.aside"),
    ],
    ids=["write", "mode", "link", "remove", "rename"],
)
@pytest.mark.parametrize("dangling", [False, True])
def test_what_a_link_at_the_path_leads_to_is_never_touched(tmp_path, act, dangling):
    victim, path = tmp_path / "victim", tmp_path / "folder/file"
    path.parent.mkdir()
    if not dangling:
        victim.write_text("victim")
        victim.chmod(0o640)
    path.symlink_to(victim)
    try:
        act(str(path))
    except FileNotFoundError:
        assert dangling
    if dangling:
        assert not victim.exists()
    else:
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("victim", 0o640)


@pytest.mark.parametrize(
    "act", [lambda path: files.write(path, "same", 0o600), lambda path: files.set_mode(path, 0o600)]
)
def test_a_link_gives_way_to_a_file_of_its_own(tmp_path, act):
    (tmp_path / "victim").write_text("same")
    path = tmp_path / "file"
    path.symlink_to("victim")
    act(str(path))
    assert (path.is_symlink(), path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (False, "same", 0o600)


def test_a_mode_alone_leaves_the_time_of_the_content(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    os.utime(path, (1, 1))
    files.set_mode(str(path), 0o600)
    assert (path.stat().st_mtime, stat.S_IMODE(path.stat().st_mode)) == (1, 0o600)


@pytest.mark.parametrize("target", ["disk/real", "{base}/disk/real", "../base/disk/real", "./disk//../disk/real/"])
def test_folders_above_may_be_links_of_root_and_of_the_user_who_writes(tmp_path, target):
    """/var/run is such a link; they may be relative, absolute and lead up."""
    base = tmp_path / "base"
    (base / "disk/real").mkdir(parents=True)
    (base / "linked").symlink_to(target.format(base=base))
    files.write(str(base / "linked/made/file"), "text")
    assert (base / "disk/real/made/file").read_text() == "text"


@pytest.mark.parametrize("act", ["write", "link", "remove", "set_mode"])
def test_a_folder_above_that_another_user_linked_is_refused(tmp_path, root_only, act):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/file").write_text("old")
    (tmp_path / "home").symlink_to("etc")
    os.chown(tmp_path / "home", OTHER_USER, OTHER_USER, follow_symlinks=False)
    arguments = {"write": ("new",), "link": ("new",), "remove": (), "set_mode": (0o777,)}[act]
    with pytest.raises(OSError, match=f"folder home is a link owned by user {OTHER_USER}") as raised:
        getattr(files, act)(str(tmp_path / "home/file"), *arguments)
    assert (raised.value.errno, raised.value.filename) == (errno.ELOOP, str(tmp_path / "home/file"))
    assert ((tmp_path / "etc/file").read_text(), os.listdir(tmp_path / "etc")) == ("old", ["file"])


def test_links_that_lead_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="a/file"):
        files.write(str(tmp_path / "a/file"), "text")


def test_a_folder_that_may_be_passed_but_not_listed_is_enough(root_only):
    with tempfile.TemporaryDirectory() as passed:
        os.chmod(passed, 0o711)
        inner = pathlib.Path(passed, "inner")
        inner.mkdir()
        os.chown(inner, OTHER_USER, OTHER_USER)
        child = os.fork()
        if child == 0:
            os.setuid(OTHER_USER)
            files.write(str(inner / "file"), "text")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (inner / "file").read_text() == "text"


def test_a_relative_path_is_one_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write("report/file", "text")
    files.write("file", "text")
    assert (pathlib.Path("report/file").read_text(), pathlib.Path("file").read_text()) == ("text", "text")


def test_folders_and_files_move_whole(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/file").write_text("text")
    files.rename(str(tmp_path / "new"), str(tmp_path / "deep/place"))
    assert (tmp_path / "deep/place/file").read_text() == "text"
    (tmp_path / "old").write_text("old")
    files.rename(str(tmp_path / "deep/place/file"), str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "text"


@pytest.mark.parametrize("kind", ["file", "link", "none"])
def test_a_restorer_brings_back_what_was(tmp_path, kind):
    path = tmp_path / "x.service"
    if kind == "file":
        path.write_bytes(b"\xff")
        path.chmod(0o640)
    elif kind == "link":
        path.symlink_to("/dev/null")
    restore = files.restorer(str(path))
    files.write(str(path), "other")
    restore()
    if kind == "file":
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"\xff", 0o640)
    elif kind == "link":
        assert os.readlink(path) == "/dev/null"
    else:
        restore()
        assert os.listdir(tmp_path) == []


def test_a_folder_is_removed_without_its_links_targets_and_not_through_a_link(tmp_path):
    for name in ("outside", "gone/deep/er"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside/file").write_text("mine")
    (tmp_path / "gone/deep/link").symlink_to(tmp_path / "outside")
    (tmp_path / "gone/keep").write_text("kept")
    os.mkfifo(tmp_path / "gone/deep/fifo")
    files.remove_tree(str(tmp_path), "/gone", keep=("keep",))
    assert [path.name for path in (tmp_path / "gone").iterdir()] == ["keep"]
    (tmp_path / "parent").symlink_to(tmp_path / "outside")
    (tmp_path / "outside/below").mkdir()
    for path in ("/parent", "/parent/below"):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            files.remove_tree(str(tmp_path), path)
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["below", "file"]


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_secret_is_never_open_to_others_not_for_a_moment(tmp_path, mask):
    """A thread looks at everything in the folder all the while; the file is large enough to be seen half-written."""
    seen, ended = set(), threading.Event()

    def look():
        while not ended.is_set():
            for folder in (tmp_path / "site", tmp_path / "site/held"):
                with contextlib.suppress(FileNotFoundError):
                    for name in os.listdir(folder):
                        seen.add((name.partition("-")[0], os.stat(folder / name).st_mode & 0o777))

    watcher = threading.Thread(target=look)
    before = os.umask(mask)
    try:
        (tmp_path / "site").mkdir(mode=0o755)
        watcher.start()
        # On a busy machine the watcher gets its turn late: as often as it takes to catch one half-written.
        deadline = time.monotonic() + 60
        for number in itertools.count():
            files.write(str(tmp_path / "site/held/token"), bytes([65 + number % 60]) * (1 << 20), 0o600)
            caught = any(name == ".gpufabric" for name, _mode in tuple(seen))
            if number >= 20 and (caught or time.monotonic() > deadline):
                break
    finally:
        os.umask(before)
        ended.set()
        watcher.join()
    assert {name for name, _mode in seen} == {"held", ".gpufabric", "token"}, "the test has seen too little"
    assert {mode for name, mode in seen if name != "held"} == {0o600}
    assert {mode for name, mode in seen if name == "held"} == {0o700}


@pytest.mark.parametrize("mask", [0, 0o022])
def test_a_folder_for_what_all_may_read_can_be_entered_by_all(tmp_path, mask):
    before = os.umask(mask)
    try:
        files.write(str(tmp_path / "a/b/c"), "x")
        files.write(str(tmp_path / "d/e/f"), "x", 0o600)
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()
    }
    assert modes == {"a": 0o755, "a/b": 0o755, "d": 0o755, "d/e": 0o700}
