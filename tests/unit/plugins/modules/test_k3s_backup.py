"""k3s_backup and k3s_restore at their seams: SQLite while it is written, snapshots that are cut off, steps that die."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import threading

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import backup
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.modules import k3s_backup, k3s_restore

NAME, STAMP = "20261124T220000Z", "20261125T060000Z"


def put(root, files):
    for path, content in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def server(tmp_path):
    """A server with SQLite, of which the last rows are in its log only."""
    put(
        tmp_path,
        {
            backup.SERVER_TOKEN: "K10abc::server:planted-secret\n",
            backup.PASSWORD: "planted-password",
            backup.AUTHORITIES[0]: "the CA",
            f"{backup.SERVER}/tls/server-ca.key": "key of the CA",
            f"{backup.SERVER}/cred/encryption-config.json": "keys of secrets",
            "/proc/sys/kernel/hostname": "server1\n",
            backup.SQLITE: "",
        },
    )
    os.unlink(tmp_path / backup.SQLITE.lstrip("/"))
    held = sqlite3.connect(tmp_path / backup.SQLITE.lstrip("/"), check_same_thread=False)
    held.execute("PRAGMA journal_mode=WAL")
    held.execute("PRAGMA wal_autocheckpoint=0")
    held.execute("CREATE TABLE kine (name TEXT, value BLOB)")
    held.commit()
    yield tmp_path, held
    held.close()


def rows(path):
    # A connection's own context ends its transaction, and does not close it.
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return opened.execute("SELECT count(*) FROM kine").fetchone()[0]


def save(root, run=None, name=NAME):
    node = k3s_backup.Node(str(root), run or (lambda argv: (1, "", "")), name)
    _made, changes = settle(node.read, lambda seen: backup.plan_save(seen, name), node.apply, False)
    return node.manifest(), changes


def test_sqlite_is_copied_whole_while_it_is_written(server):
    root, held = server
    ended = threading.Event()

    def write():
        while not ended.is_set():
            held.executemany("INSERT INTO kine VALUES (?, ?)", [("a", b"x" * 4000)] * 20)
            held.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        manifest, changes = save(root)
    finally:
        ended.set()
        writer.join()
    folder = root / backup.STAGED.lstrip("/")
    assert [change.action for change in changes] == ["save"]
    assert rows(folder / backup.SNAPSHOT) % 20 == 0, "between two transactions"
    assert sorted(manifest["files"]) == [backup.NODE_PASSWORD, backup.ARCHIVE, backup.SNAPSHOT, backup.TOKEN]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert manifest["cluster"] == hashlib.sha256(b"the CA").hexdigest()
    assert "planted" not in json.dumps(manifest)
    assert save(root)[1] == [], "one of this name is there"


def test_a_database_that_is_not_whole_is_no_backup(server):
    root, held = server
    held.executemany("INSERT INTO kine VALUES (?, ?)", [("a", b"x" * 4000)] * 200)
    held.commit()
    held.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    held.close()
    place = root / backup.SQLITE.lstrip("/")
    content = bytearray(place.read_bytes())
    content[4096 * 3 : 4096 * 40] = os.urandom(4096 * 37)
    place.write_bytes(content)
    with pytest.raises((Refused, sqlite3.DatabaseError)):
        save(root)
    assert k3s_backup.Node(str(root), None, NAME).manifest() == {}


def etcd(root, made):
    """A server with etcd, whose k3s writes `made` as its snapshot."""
    put(root, {f"{backup.ETCD}/member/wal": "", backup.SERVER_TOKEN: "secret", backup.AUTHORITIES[0]: "CA"})
    os.unlink(root / f"{backup.ETCD}/member/wal".lstrip("/"))

    def run(argv):
        if "etcd-snapshot" in argv and made is not None:
            put(root, {f"{backup.STAGED}/gpufabric-rdma-server1-1790000000": made})
        return (0, "", "") if made is not None else (1, "", "level=fatal msg=no-etcd")

    return run


WHOLE = b"data" * 4000 + hashlib.sha256(b"data" * 4000).digest()
SNAPSHOTS = {"cut off": WHOLE[:-1], "changed": b"x" + WHOLE[1:], "empty": b"", "none": None}


def test_a_snapshot_of_etcd_is_taken_by_its_own_sum(tmp_path):
    manifest, _changes = save(tmp_path, etcd(tmp_path, WHOLE))
    assert manifest["files"][backup.SNAPSHOT]["bytes"] == len(WHOLE)
    assert backup.ARCHIVE not in manifest["files"], "the snapshot has the certificates"


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_that_is_not_whole_is_no_backup(tmp_path, name):
    run = etcd(tmp_path, SNAPSHOTS[name])
    with pytest.raises(Refused) as refused:
        save(tmp_path, run)
    assert refused.value.findings[0].next_step
    assert k3s_backup.Node(str(tmp_path), run, NAME).manifest() == {}


@pytest.mark.parametrize("path", backup.ENVIRONMENTS)
def test_an_external_datastore_is_left_to_its_own_tools(tmp_path, path):
    put(tmp_path, {path: "K3S_DATASTORE_ENDPOINT=postgres://user:planted@db\n"})
    with pytest.raises(Refused, match="external") as refused:
        save(tmp_path)
    assert "planted" not in str(refused.value)


class Service:
    """systemd and k3s of one node, as far as a restore sees them; it dies at a chosen call."""

    def __init__(self, root, name):
        self.root, self.name, self.active, self.calls, self.dies_at = root, name, True, [], None

    def systemctl(self, *words):
        self._call(words[0])
        self.active = words[0] != "stop"

    def start(self, action):
        self._call(action)
        self.active = True
        return 1.0

    def reset(self, argv, **_more):
        if "--cluster-reset" in argv:
            self._call("reset")
        if argv[:2] == ["systemctl", "show"]:
            state = "active" if self.active else "inactive"
            return 0, f"Id={self.name}.service\nActiveState={state}\nMainPID={7 * self.active}\n", ""
        return 0, "", ""

    def _call(self, what):
        self.calls.append(what)
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt


PARTS = {"server": ("stop", "restore"), "server, not the first": ("stop", "rejoin"), "agent": ("reconnect",)}


def through(root, service, parts, role, datastore="etcd"):
    manifest = {"name": NAME, "datastore": datastore, "server": "server1", "files": {"snapshot.db": {}, "token": {}}}
    given = {"backup": manifest, "stamp": STAMP, "source": "/srv/backup", "start_timeout_seconds": 60}
    made = []
    for part in parts:
        node = k3s_restore.Node(str(root), service.reset, given, service)

        def read(node=node):
            return {**node.read(), "services": {service.name: {"active": service.active, "starting": False}}}

        made += settle(
            read, lambda seen, part=part: backup.plan_step(seen, part, role, NAME, STAMP), node.apply, False
        )[1]
    return made


@pytest.mark.parametrize("name", PARTS)
def test_a_restore_that_dies_at_any_call_ends_the_same_when_it_is_run_again(tmp_path, name):
    role = name.partition(",")[0]
    whole = Service(tmp_path / "whole", k3s.SERVICES[role])
    put(whole.root, {f"{backup.ETCD}/member/old": "data of today", "/srv/backup/snapshot.db": "data"})
    through(whole.root, whole, PARTS[name], role)
    assert backup.record(Tree(str(whole.root))) == {"backup": NAME, "stamp": STAMP, "step": backup.DONE}
    assert whole.active
    calls = list(whole.calls)
    assert calls == {"server": ["stop", "reset", "start"], "agent": ["restart"]}.get(name, ["stop", "start"])
    assert through(whole.root, whole, PARTS[name], role) == [], "a second run changes nothing"
    for number in range(1, len(calls) + 1):
        root = tmp_path / str(number)
        put(root, {f"{backup.ETCD}/member/old": "data of today", "/srv/backup/snapshot.db": "data"})
        service = Service(root, k3s.SERVICES[role])
        service.dies_at = number
        with pytest.raises(KeyboardInterrupt):
            through(root, service, PARTS[name], role)
        service.dies_at = None
        through(root, service, PARTS[name], role)
        assert backup.record(Tree(str(root)))["step"] == backup.DONE
        assert service.active
        kept = root / f"{backup.aside(STAMP)}/etcd/member/old".lstrip("/")
        assert kept.exists() is (name == "server, not the first"), "set aside once, with what was in it"


def test_sqlite_goes_back_with_its_certificates_and_the_old_one_stays_beside_it(server, tmp_path_factory):
    root, held = server
    held.execute("INSERT INTO kine VALUES ('kept', '')")
    held.commit()
    save(root)
    other = tmp_path_factory.mktemp("bare")
    put(other, {f"/srv/backup/{path.name}": path.read_bytes() for path in (root / backup.STAGED.lstrip("/")).iterdir()})
    put(other, {backup.SQLITE: "the database of today", "/proc/sys/kernel/hostname": "server1\n"})
    service = Service(other, "k3s")
    through(other, service, ("stop", "restore"), "server", datastore="sqlite")
    assert rows(other / backup.SQLITE.lstrip("/")) == 1
    assert (other / f"{backup.aside(STAMP)}/state.db".lstrip("/")).read_text() == "the database of today"
    assert (other / f"{backup.SERVER}/cred/encryption-config.json".lstrip("/")).read_text() == "keys of secrets"
    password = other / backup.PASSWORD.lstrip("/")
    assert (password.read_text(), stat.S_IMODE(password.stat().st_mode)) == ("planted-password", 0o600)


def test_two_restores_of_one_node_do_not_meet(tmp_path):
    with k3s_restore.alone(str(tmp_path)) as held:
        assert all(isinstance(number, int) for number in held)
        with pytest.raises(Refused, match="another run"), k3s_restore.alone(str(tmp_path)):
            pass
    with k3s_restore.alone(str(tmp_path)):
        pass
