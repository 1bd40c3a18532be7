"""CDI specs of claims are kept right while claims come and go."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from rdma_device_plugin import checkpoint, claimspecs
from rdma_device_plugin.claims import Key, Prepared, Record, Result
from rdma_device_plugin.kubeapi import ApiProblem
from rdma_device_plugin.preparer import Preparer
from rdma_device_plugin.worker import Worker

KEY = Key("default", "rail", "6d0c1b4e-0000-4000-8000-000000000001")
RECORD = Record(KEY, (Prepared(Result("mlx5-0-u00", "node1"), "mlx5_0", 1, ("/dev/infiniband/uverbs0",)),))


def test_the_spec_of_a_claim_that_ends_does_not_come_back(tmp_path, monkeypatch):
    """The removal of a spec is an event of its folder, which is answered while the record is still there."""
    save = checkpoint.save

    def slow(*arguments):
        time.sleep(0.1)
        return save(*arguments)

    async def main():
        files = Worker("files")
        kept = Preparer(None, files, str(tmp_path / "checkpoint.json"), str(tmp_path / "cdi"))
        kept.records = {KEY.uid: RECORD}
        await kept.keep()
        assert claimspecs.present(str(tmp_path / "cdi")) == {KEY.uid: KEY}
        monkeypatch.setattr(checkpoint, "save", slow)
        ending = asyncio.ensure_future(kept.unprepare(KEY))
        while claimspecs.present(str(tmp_path / "cdi")):
            await asyncio.sleep(0.001)
        assert KEY.uid in kept.records
        await kept.keep()
        assert await ending == ""
        assert kept.records == {}
        files.close()

    asyncio.run(main())
    assert os.listdir(tmp_path / "cdi") == []


def found(uid=KEY.uid, reserved=True, **more):
    status = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]} if reserved else {}
    return {"metadata": {"uid": uid, **more}, "status": status}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (found(), True),
        (found(deletionTimestamp="2026-11-26T00:00:00Z"), True),  # its pod still runs
        (found(reserved=False), False),
        (found(reserved=False, deletionTimestamp="2026-11-26T00:00:00Z"), False),
        (found(uid="another"), False),
        (ApiProblem("gone", 404), False),
        (ApiProblem("no answer"), True),
        (ApiProblem("forbidden", 403), True),
    ],
)
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
        preparer = Preparer(Api(), files, str(tmp_path / "checkpoint.json"), str(tmp_path / "cdi"))
        preparer.records = {KEY.uid: RECORD}
        await preparer.keep()
        try:
            await preparer.compare()
        except ApiProblem:
            assert kept
        files.close()
        return preparer.records

    assert bool(asyncio.run(main())) is kept
    assert bool(claimspecs.present(str(tmp_path / "cdi"))) is kept
