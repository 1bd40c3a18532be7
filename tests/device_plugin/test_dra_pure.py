"""Plans of slices, records, claims and entries of both APIs, over many inputs; what mode device-plugin loads."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
from api_server_double import ApiServer
from harness import ENVIRONMENT, document, entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from rdma_device_plugin import claims, claimspecs, cli, devices, modes, slices
from rdma_device_plugin.claims import Key, Metadata, Prepared, Record, Refused, Result
from rdma_device_plugin.config import load
from rdma_device_plugin.devices import Form
from rdma_device_plugin.kubeapi import ApiProblem
from rdma_device_plugin.preparer import Preparer
from rdma_device_plugin.worker import Worker

OWNER = slices.Owner("node1", "uid-of-node1")
FORMS = some.builds(Form, shared=some.booleans(), taints=some.booleans())
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
QUIET = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def listed(count, taints=False):
    taint = {"taints": [{"key": devices.TAINT, "effect": "NoSchedule"}]} if taints else {}
    return [{"name": f"d{index}", "attributes": {}, **taint} for index in range(count)]


def carried_out(api, steps):
    """Like the publisher; at each moment a scheduler sees the whole new pool, or none."""
    for step in steps:
        verb = {"delete": "DELETE", "create": "POST", "replace": "PUT"}[step.verb]
        with api.changed:
            api._slices(verb, step.name or None, {}, step.body)
        yield api.pool()


@QUIET
@given(some.lists(some.tuples(some.integers(0, 300), FORMS), min_size=1, max_size=5), some.booleans())
def test_a_pool_is_whole_after_every_change_and_never_half_visible(tmp_path_factory, changes, duplicate):
    api = ApiServer(tmp_path_factory.mktemp("api"), consumable=True, taints=True)
    kept = slices.Kept()
    for count, form in changes:
        wanted = slices.chunks(listed(count, form.taints), form)
        assert all(len(chunk) <= (64 if form.taints else 128) for chunk in wanted)
        before = api.pool()
        steps = slices.plan(api.slices, wanted, OWNER, kept)
        for pool in carried_out(api, steps):
            visible = pool if pool else (None, None)
            assert pool is None or pool == before or pool[0] == slices.generation(api.slices), visible[0]
        _generation, found = api.pool()
        assert len(found) == count
        assert slices.plan(api.slices, wanted, OWNER, kept) == [], "a second look changes nothing"
        if duplicate and api.slices:
            api.copy(next(iter(api.slices.values())), "another")


def test_a_slice_of_another_pool_name_is_replaced_by_a_new_one(tmp_path):
    """Driver, node and pool name are immutable"""
    api = ApiServer(tmp_path)
    kept = slices.Kept()
    list(carried_out(api, slices.plan({}, [listed(1)], OWNER, kept)))
    api.meddle(lambda found: found["spec"]["pool"].update(name="old"))
    assert [step.verb for step in slices.plan(api.slices, [listed(1)], OWNER, kept)] == ["create", "delete"]


def test_a_quantity_has_the_api_servers_form():
    assert [devices.quantity(number) for number in (0, 63, 1000, 1500, 2 * 10**6)] == ["0", "63", "1k", "1500", "2M"]


# Names.


@given(some.text(max_size=80))
def test_every_name_becomes_a_label(name):
    label = devices.label(name)
    assert 0 < len(label) <= 52
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert label[0] != "-"


# Records of claims.

TEXT = some.text(max_size=12)
RESULTS = some.builds(Result, TEXT, TEXT, some.lists(TEXT, max_size=2).map(tuple), some.none() | TEXT)
NAMES = some.text(max_size=12).filter(lambda name: "=" not in name)
PREPARED = some.builds(
    Prepared,
    RESULTS,
    TEXT,
    some.none() | some.integers(0, 9),
    some.lists(TEXT, min_size=1, max_size=3).map(tuple),
    some.dictionaries(NAMES, TEXT, max_size=2).map(lambda env: tuple(env.items())),
    TEXT,
).map(lambda one: one._replace(result=one.result._replace(network=bool(one.network))))
RECORDS = some.builds(
    Record,
    some.builds(Key, TEXT, TEXT, some.from_regex(r"[0-9a-f]{1,36}", fullmatch=True)),
    some.lists(PREPARED, min_size=1, max_size=3).map(tuple),
    TEXT,
    some.builds(Metadata, TEXT, some.lists(some.tuples(TEXT, TEXT), max_size=2).map(tuple)),
).map(
    lambda record: record._replace(
        pod=record.pod if any(one.network for one in record.devices) else "",
        metadata=record.metadata if record.metadata.documents else Metadata(),
    )
)


@given(RECORDS)
def test_a_spec_holds_the_record_that_was_written(record):
    assert claimspecs.decode(json.loads(json.dumps(claimspecs.encode(record, "/cdi"))), record.key.uid) == record


@given(RECORDS, JSON, some.data())
def test_a_spec_of_any_shape_is_a_record_or_unknown_and_no_surprise(tmp_path_factory, record, other, data):
    document = json.loads(json.dumps(claimspecs.encode(record, "/cdi")))
    inside = [claimspecs.DEVICES, claimspecs.METADATA]
    place = data.draw(some.sampled_from(["all", "annotations", "devices", *inside, "env", "row"]))
    if place == "all":
        document = other
    elif place in inside:
        document["annotations"][place] = json.dumps(other)
    elif place == "env":
        document["devices"][0]["containerEdits"][place] = other
    elif place == "row":
        document["annotations"][claimspecs.DEVICES] = json.dumps([other for _device in record.devices])
    else:
        document[place] = other
    folder = tmp_path_factory.mktemp("cdi")
    (folder / claimspecs.file(record.key.uid)).write_text(json.dumps(document))
    records, unknown = claimspecs.load(str(folder))
    assert [*records, *unknown] == [record.key.uid]


# Claims.


OURS = {"driver": devices.DRIVER, "parameters": claims.NETWORK}


def claim_of(results, config):
    allocation = {"devices": {"results": results, "config": config}}
    return {"metadata": {"uid": "uid-1"}, "status": {"allocation": allocation}}


@pytest.mark.parametrize("in_pod", ["a/../b", ".."])
def test_no_name_leads_out_of_the_folder_of_metadata(in_pod):
    found = claim_of([{"driver": devices.DRIVER, "pool": "node1", "device": "mlx5-0", "request": "rail"}], [])
    found["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": in_pod}
    assert claims.metadata(found, Key("default", "one", "uid-1"), [{}]) == Metadata()


@given(
    JSON
    | some.builds(
        claim_of, JSON, JSON | some.lists(some.fixed_dictionaries({"requests": JSON, "opaque": some.just(OURS)}))
    )
)
def test_a_claim_or_allocation_of_any_shape_is_refused_with_its_name(found):
    with pytest.raises(Refused, match="default/one"):
        claims.results(found, Key("default", "one", "uid-1"), "node1")


# Entries of both APIs.


@pytest.mark.parametrize(("first", "second", "refused"), [
    ({"selectors": {"vendors": ["15b3"]}}, {"selectors": {"vendors": ["15b3"]}}, True),
    ({"selectors": {"vendors": ["15b3"], "ifNames": ["a"]}}, {"selectors": {"vendors": ["15b3", "8086"]}}, True),
    ({"selectors": {"ifNames": ["a"]}}, {"selectors": {"ifNames": ["b"]}}, False),
    ({"selectors": {"ifNames": ["a"]}}, {"selectors": {"vendors": ["15b3"]}}, False),
    ({"devices": ["a"], "softwareDevices": True}, {"devices": ["a"]}, True),
])  # fmt: skip
def test_entries_that_count_an_hca_twice_on_every_node(base, capsys, first, second, refused):
    path = base / "config.json"
    path.write_bytes(document(entry("a", api="dra", **first), entry("b", **second)))
    code = cli.main(["check-config", "-mode", "both", str(path)])
    assert code == (1 if refused else 0), capsys.readouterr()
    if refused:
        assert "counted more than once" in capsys.readouterr().err
    assert cli.main(["check-config", str(path)]) == 0, "mode device-plugin may share an HCA between pools"


def test_a_node_is_compared_on_request(base, node, capsys):
    path = base / "config.json"
    first = entry("a", api="dra", extraSelectors={"rdmaDevices": ["mlx5_*"]})
    path.write_bytes(document(first, entry("b", selectors={"ifNames": ["enp1s0f0np0"]})))
    assert cli.main(["check-config", "-mode", "both", str(path)]) == 0
    assert cli.main(["check-config", "-mode", "both", "-root", str(node.root), str(path)]) == 1
    assert "mlx5_0 0000:01:00.0" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "over_dra"), [("device-plugin", ""), ("both", "b"), ("dra", "ab")])
def test_the_mode_decides_who_serves_an_entry(mode, over_dra):
    config = load(document(entry("a", allocation="spread"), entry("b", api="dra")))
    parts = modes.split(config, mode)
    assert "".join(pool.name for pool in parts.dra) == over_dra
    assert any("allocation spread" in line for line in parts.warnings) == (mode == "dra")
    assert any(line.startswith("rdma/b: not served") for line in parts.warnings) == (mode == "device-plugin")


def test_mode_device_plugin_loads_nothing_of_dra():
    """Start time and memory are unchanged"""
    program = (
        "import sys; from rdma_device_plugin import cli; cli._asyncio(); from rdma_device_plugin import daemon;"
        "print(*(name for name in sys.modules if 'dra' in name or name.partition('.')[0] in"
        " ('lightkube', 'httpx', 'ssl', 'hashlib') or name.endswith(('.slices', '.claims', '.devices', '.roots'))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == ""


# Claims that end.


KEY = Key("default", "rail", "6d0c1b4e-0000-4000-8000-000000000001")
RECORD = Record(KEY, (Prepared(Result("mlx5-0-u00", "node1"), "mlx5_0", 1, ("/dev/infiniband/uverbs0",)),))


def test_the_spec_of_a_claim_that_ends_does_not_come_back(tmp_path, monkeypatch):
    """The removal of a spec is an event of its folder, which is answered while the record is still there."""
    remove = claimspecs.remove

    def slow(*arguments):
        removed = remove(*arguments)
        time.sleep(0.1)
        return removed

    async def main():
        files = Worker("files")
        kept = Preparer(None, files, str(tmp_path / "cdi"))
        kept.records = {KEY.uid: RECORD}
        await kept.keep()
        assert claimspecs.load(str(tmp_path / "cdi")) == ({KEY.uid: RECORD}, {})
        monkeypatch.setattr(claimspecs, "remove", slow)
        ending = asyncio.ensure_future(kept.unprepare(KEY))
        while claimspecs.load(str(tmp_path / "cdi"))[0]:
            await asyncio.sleep(0.001)
        assert KEY.uid in kept.records
        await kept.keep()
        assert await ending == ""
        assert kept.records == {}
        files.close()

    asyncio.run(main())
    assert os.listdir(tmp_path / "cdi") == []


def found(uid=KEY.uid, reserved=True, pool="node1", config=(), **more):
    results = [{"driver": devices.DRIVER, "pool": pool, "device": "mlx5-0-u00", "request": "r"}]
    made = claim_of(results, list(config))
    made["metadata"].update(more, uid=uid)
    made["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}] if reserved else []
    return made


@pytest.mark.parametrize(("answer", "kept"), [
    (found(), True),
    (found(deletionTimestamp="2026-11-26T00:00:00Z"), True),  # its pod still runs
    (found(reserved=False), False),
    (found(uid="another"), False),
    (found(pool="node2"), False),
    (found(config=[{"opaque": {"driver": devices.DRIVER}}]), True),  # parameters of a newer version
    (ApiProblem("gone", 404, gone=True), False),
    (ApiProblem("no such type", 404), True),
    (ApiProblem("no answer"), True),
    (ApiProblem("forbidden", 403), True),
])  # fmt: skip
def test_a_prepared_claim_ends_where_the_api_server_says_so(tmp_path, answer, kept):
    class Api:
        node = "node1"

        async def claim(self, namespace, name):
            assert (namespace, name) == (KEY.namespace, KEY.name)
            if isinstance(answer, ApiProblem):
                raise answer
            return answer

    async def main():
        files = Worker("files")
        preparer = Preparer(Api(), files, str(tmp_path / "cdi"))
        preparer.records = {KEY.uid: RECORD}
        await preparer.keep()
        try:
            await preparer.compare()
            preparer._unknown = {KEY.uid: KEY}
            await preparer.rebuild()
        except ApiProblem:
            assert kept
        files.close()
        return preparer.records

    assert bool(asyncio.run(main())) is kept
    assert bool(claimspecs.load(str(tmp_path / "cdi"))[0]) is kept
