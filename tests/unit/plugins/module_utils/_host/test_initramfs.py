"""Which initramfs images are rebuilt, and by which command. dracut is covered here only (E1)."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.initramfs import command, mark_stale, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

OURS = paths.OWN_MODPROBE
OLD, NEW = "/boot/initrd.img-6.1", "/boot/initrd.img-6.8"


@pytest.fixture
def facts() -> dict:
    images = [
        {"path": OLD, "kernel": "6.1", "mtime": 100.0},
        {"path": NEW, "kernel": "6.8", "mtime": 300.0},
    ]
    return {
        "node": {"container": None},
        "initramfs": {"generator": "update-initramfs", "images": images},
        "owned_files": {},
    }


@pytest.mark.parametrize(
    ("written", "expected"), [(None, []), (50.0, []), (100.0, [OLD]), (200.0, [OLD]), (400.0, [OLD, NEW])]
)
def test_age_decides(facts, written, expected):
    sources = {} if written is None else {OURS: written}
    made = plan(facts, {"sources": sources, "stale": []})
    assert [change.object for change in made.changes] == expected
    assert {change.action for change in made.changes} <= {"rebuild"}


def test_the_newest_source_counts(facts):
    made = plan(facts, {"sources": {OURS: 50.0, "/etc/modprobe.d": 200.0}, "stale": []})
    assert [change.object for change in made.changes] == [OLD]


def test_what_check_mode_would_make_stale_is_announced(facts):
    made = plan(facts, {"sources": {}, "stale": [NEW, "/boot/gone"]})
    assert [change.object for change in made.changes] == [NEW]


@pytest.mark.parametrize(
    ("container", "root", "generator", "where"),
    [
        ("docker", "/", "dracut", "not_verified"),
        (None, "/captured", "dracut", "not_verified"),
        (None, "/", None, "notes"),
    ],
)
def test_what_cannot_be_rebuilt_from_here_is_reported(facts, container, root, generator, where):
    facts["node"]["container"] = container
    facts["initramfs"]["generator"] = generator
    made = plan(facts, {"sources": {OURS: 200.0}, "stale": []}, root)
    assert made.changes == []
    assert OLD in getattr(made, where)[0]


@pytest.mark.parametrize(
    ("changed", "mtime", "expected"),
    [(True, None, [OLD, NEW]), (True, 50, [OLD, NEW]), (False, 50, []), (False, 200, [OLD]), (False, None, [])],
)
def test_roles_learn_what_their_write_leaves_stale(facts, changed, mtime, expected):
    if mtime is not None:
        facts["owned_files"][OURS] = {"mode": "0644", "content": "", "mtime": mtime}
    made = Plan()
    mark_stale(made, facts, changed, "/")
    assert made.stale_images == expected


def test_commands_rebuild_one_image_of_one_kernel():
    assert command("update-initramfs", OLD, "6.1") == ["update-initramfs", "-u", "-k", "6.1"]
    assert command("dracut", "/boot/initramfs-5.14.img", "5.14") == [
        "dracut",
        "--force",
        "/boot/initramfs-5.14.img",
        "5.14",
    ]
