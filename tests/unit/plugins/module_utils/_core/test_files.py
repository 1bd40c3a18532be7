"""Our files: compared as text, written whole, read back."""

import contextlib
import errno
import os
import pathlib
import signal
import stat

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files

ONE, DEP = "options ib_core netns_mode=1", "softdep b pre: c"


@pytest.mark.parametrize(("content", "directive", "line", "expected"), [
    ("", "options ib_core", ONE, [ONE]),
    ("options ib_core netns_mode=0", "options ib_core", ONE, [ONE]),
    (DEP, "options ib_core", ONE, [ONE, DEP]),
    (f"{DEP}\n{ONE}", "softdep b", None, [ONE]),
    ("options ib_core_other y=1", "options ib_core", None, ["options ib_core_other y=1"]),
    (ONE, "options ib_core", None, []),
])  # fmt: skip
def test_two_roles_share_one_file_line_by_line(content, directive, line, expected):
    text = files.with_directive(content, directive, line)
    assert text == files.HEADER + "".join(f"{kept}\n" for kept in expected)
    assert files.with_directive(text, directive, line) == text


OTHER_USER = 65534
STEPS = ("open", "mkdir", "fchmod", "fsync", "replace", "close", "symlink", "unlink")


@pytest.fixture
def umask():
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.fixture
def root_only():
    if os.geteuid():
        pytest.skip("not verified: wants root, it gives files to another user or mounts")


def killed_at(number, work):
    """Run work in a process that is killed before its Nth system call; returns whether it was."""
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


NEW = "new" * 100_000


def content(place):
    return os.readlink(place) if place.is_symlink() else place.read_text() if place.exists() else None


@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize(("act", "new"), [(files.write, NEW), (files.link, "new")], ids=["write", "link"])
def test_what_is_killed_anywhere_leaves_the_old_or_the_new_whole(tmp_path, act, new, old):
    """The next write in the folder removes its leftovers, those of links once they are not new."""
    litter, seen, number, going = 0, [], 0, True
    while going:
        place = tmp_path / f"{number}/made/place"
        if old:
            place.parent.mkdir(parents=True)
            act(str(place), old)
        going = killed_at(number, lambda place=place: act(str(place), new))
        seen.append(content(place))
        for path in place.parent.glob(f"{files.BESIDE}*"):
            litter += 1
            if path.is_symlink():
                os.utime(path, (0, 0), follow_symlinks=False)
        act(str(place.parent / "other"), "x")
        assert {path.name for path in place.parent.iterdir()} <= {"place", "other"}
        number += 1
    assert set(seen) == {old, new}
    assert seen == sorted(seen, key=lambda found: found == new), "once new, it stays new"
    assert litter > 0, "killed calls leave something, or this test shows nothing"


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
    order, real_sync, real_replace = [], os.fsync, os.replace

    def fsync(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real_sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *args, **more: (order.append("rename"), real_replace(*args, **more)))
    files.write(str(tmp_path / "file"), "text")
    assert order == ["file", "rename", "folder"]


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
@pytest.mark.parametrize(("mode", "folder"), [(0o600, 0o700), (0o755, 0o755)])
def test_a_file_is_born_closed_and_has_its_mode_before_it_has_content(tmp_path, umask, monkeypatch, mask, mode, folder):
    """With any umask; a folder for a secret is private, one for readable files can be entered by all."""
    umask(mask)
    born, made, real_mkdir, real_fchmod = [], [], os.mkdir, os.fchmod
    monkeypatch.setattr(
        os, "fchmod", lambda handle, to: (born.append(os.fstat(handle).st_mode), real_fchmod(handle, to))
    )
    monkeypatch.setattr(os, "mkdir", lambda name, to=0o777, **more: (made.append(to), real_mkdir(name, to, **more)))
    with files.replacing(str(tmp_path / "token"), mode) as stream:
        found = os.fstat(stream.fileno())
        assert (stat.S_IMODE(found.st_mode), found.st_size) == (mode, 0)
    assert (stat.S_IMODE((tmp_path / "token").stat().st_mode), stat.S_IMODE(born[0])) == (mode, 0o600 & ~mask)
    files.write(str(tmp_path / "a/b/file"), "x", mode)
    assert made == [0o755, folder]


@pytest.mark.parametrize("failing", ["fchmod", "fsync", "replace", "the caller"])
def test_a_step_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, failing):
    target = tmp_path / "file"
    target.write_text("old")

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write():
        with files.replacing(str(target)) as stream:
            stream.write(b"new")
            if failing == "the caller":
                full()

    monkeypatch.setattr(os, failing, full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        write()
    monkeypatch.undo()
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


ACTS = {
    "write": lambda path: files.write(path, "new"),
    "mode": lambda path: files.set_mode(path, 0o600),
    "link": lambda path: files.link(path, "elsewhere"),
    "remove": files.remove,
    "rename": lambda path: files.rename(path, f"{path}.aside"),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dangling", [False, True])
def test_what_a_link_at_the_path_leads_to_is_never_touched(tmp_path, act, dangling):
    victim, path = tmp_path / "victim", tmp_path / "folder/file"
    path.parent.mkdir()
    if not dangling:
        victim.write_text("victim")
        victim.chmod(0o640)
    path.symlink_to(victim)
    with contextlib.suppress(*[FileNotFoundError] * dangling):
        ACTS[act](str(path))
    found = (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) if victim.exists() else None
    assert found == (None if dangling else ("victim", 0o640))
    if path.exists() and not path.is_symlink():
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) in (("new", 0o644), ("victim", 0o600))


@pytest.mark.parametrize("target", ["{base}/disk/real", "../base/disk/real", "./disk//../disk/real/", "linked"])
def test_folders_above_may_be_links_of_root_and_of_the_user_who_writes(tmp_path, target):
    """/var/run is such a link; they may be relative, absolute and lead up, but not in a loop."""
    base = tmp_path / "base"
    (base / "disk/real").mkdir(parents=True)
    (base / "linked").symlink_to(target.format(base=base))
    if target == "linked":
        with pytest.raises(OSError, match="linked/made/file"):
            files.write(str(base / "linked/made/file"), "text")
        return
    files.write(str(base / "linked/made/file"), "text")
    assert (base / "disk/real/made/file").read_text() == "text"


@pytest.mark.parametrize("act", ["write", "link", "remove", "set_mode"])
def test_a_folder_above_that_another_user_linked_is_refused(tmp_path, root_only, act):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/file").write_text("old")
    (tmp_path / "home").symlink_to("etc")
    os.chown(tmp_path / "home", OTHER_USER, OTHER_USER, follow_symlinks=False)
    arguments = {"write": ("new",), "link": ("new",), "remove": (), "set_mode": (0o777,)}[act]
    with pytest.raises(OSError, match=str(OTHER_USER)) as raised:
        getattr(files, act)(str(tmp_path / "home/file"), *arguments)
    assert (raised.value.errno, raised.value.filename) == (errno.ELOOP, str(tmp_path / "home/file"))
    assert ((tmp_path / "etc/file").read_text(), os.listdir(tmp_path / "etc")) == ("old", ["file"])


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
