"""Mode dra: registration, slices, claims and health, between doubles of a kubelet and an API server."""

import asyncio
import contextlib
import json
import os
import sys
import threading
import time

import grpc
import pytest
from api_server_double import ApiServer
from harness import Node, Running, document, entry
from kubelet_double import PATIENCE, Kubelet
from rdma_device_plugin import claims, claimspecs, kubeapi
from rdma_device_plugin.kubelet import dra_health_v1alpha1_pb2 as health

DRIVER = "rdma.gpufabric.io"
ROUNDS = int(os.environ.get("DRA_ROUNDS", "3"))
GATES = [(False, False), (True, False), (False, True), (True, True)]
UP, DOWN = "mlx5-0", "mlx5-1"  # of the GH200: one port has a cable


@pytest.fixture
def kubelet(base):
    with Kubelet(base) as running:
        yield running


@pytest.fixture
def api(base):
    with ApiServer(base) as running:
        yield running


def dra(base, node, api, *entries, mode="dra", node_name="node1", **more):
    places = {"kubeconfig": str(api.kubeconfig), "node_name": node_name, "plugins_directory": f"{base}/plugins"}
    return Running(base, document(*(entries or [entry(count=3)])), node.root, settings_mode=mode, **places, **more)


def units(name, count):
    return [f"{name}-u{unit:02d}" for unit in range(count)]


def soon(plugin, api, names, seconds=2 * PATIENCE):
    assert api.wait(lambda: api.devices() == sorted(names), seconds), (api.pool(), plugin.problems(), api.calls[-5:])


@contextlib.contextmanager
def offering(base, node, api, *entries, **more):
    with dra(base, node, api, *entries, **more) as plugin:
        soon(plugin, api, units(UP, 3))
        yield plugin


def specs(base):
    # And files beside them that belong to none.
    names = [path.name for path in (base / "cdi").glob("*rdma-claim*")]
    own = [name for name in names if name.endswith(".json")]
    return sorted(name for name in names if name in own or f"{name.rpartition('_')[0]}.json" not in own)


def checkpointed(base):
    return sorted(claimspecs.load(str(base / "cdi"))[0])


# Registration.


def test_it_registers_as_a_dra_driver(base, node, kubelet, api):
    with dra(base, node, api) as plugin:
        assert kubelet.wait(lambda: kubelet.count("notified"))
        info = next(line[2] for line in kubelet.log if line[0] == "info")
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        assert info.endpoint == f"{base}/plugins/{DRIVER}/dra.sock"
        assert os.listdir(base / "plugins_registry") == [f"{DRIVER}-reg.sock"]
        assert kubelet.clients == {}, "no resource of the device plugin API"
        soon(plugin, api, units(UP, 3))
        assert plugin.until(lambda: not plugin.problems()), plugin.problems()
    assert os.listdir(base / "plugins_registry") == []
    assert not [name for name in os.listdir(base / f"plugins/{DRIVER}") if "sock" in name]
    assert api.devices() == units(UP, 3), "a kubelet wipes them if we do not come back"


def test_nothing_is_asked_of_the_api_server_before_the_kubelet_knows_us(base, node, api):
    with dra(base, node, api) as plugin:
        time.sleep(1.0)
        assert api.calls == []
        with Kubelet(base):
            soon(plugin, api, units(UP, 3))


def test_an_older_kubelet_takes_the_older_version(base, node, api):
    with Kubelet(base, dra_versions=("v1beta1.DRAPlugin",)) as kubelet, offering(base, node, api):
        claim = api.allocate("one", {"rail": f"{UP}-u00"})
        assert kubelet.driver().service == "v1beta1.DRAPlugin"
        assert [one.device_name for one in kubelet.driver().prepare(claim)[claim[2]].devices] == [f"{UP}-u00"]


def test_a_watch_that_swallows_its_cancellation_keeps_nothing_from_its_end(base, node, kubelet, api, monkeypatch):
    """Like a network library can: sockets go, and the process ends in time."""
    watch = kubeapi.Api.watch

    async def stubborn(self, version, seconds):
        try:
            async for change in watch(self, version, seconds):
                yield change
        except asyncio.CancelledError:
            await asyncio.sleep(3600)

    monkeypatch.setattr(kubeapi.Api, "watch", stubborn)
    with offering(base, node, api) as plugin:
        assert plugin.until(lambda: plugin.plugin.front.publisher.current)
        start = time.monotonic()
    assert time.monotonic() - start < 5
    assert os.listdir(base / "plugins_registry") == []
    assert not [name for name in os.listdir(base / f"plugins/{DRIVER}") if "sock" in name]


# Slices.


@pytest.mark.parametrize(("consumable", "taints"), GATES)
def test_the_form_is_what_the_api_server_keeps(base, node, kubelet, consumable, taints):
    with ApiServer(base, consumable=consumable, taints=taints) as api, dra(base, node, api) as plugin:
        names = [UP, DOWN] if taints else [UP]
        soon(plugin, api, names if consumable else [unit for name in names for unit in units(name, 3)])
        _generation, found = api.pool()
        first = found[UP if consumable else f"{UP}-u00"]
        assert first.get("allowMultipleAllocations") == (True if consumable else None)
        if consumable:
            assert first["capacity"]["shares"] == {
                "value": "3",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
            }
            assert first["capacity"]["rate"]["requestPolicy"]["default"] == "0"
        else:
            assert "capacity" not in first
        assert "taints" not in first
        if taints:
            (taint,) = found[DOWN if consumable else f"{DOWN}-u00"]["taints"]
            assert (taint["key"], taint["value"], taint["effect"]) == (f"{DRIVER}/port-down", "DOWN", "NoSchedule")
        assert all("dryRun" not in name for name in api.slices)
        assert plugin.until(lambda: plugin.plugin.front.publisher.current)
        writes = plugin.plugin.front.publisher.writes
        time.sleep(0.5)
        assert plugin.plugin.front.publisher.writes == writes, "it settles"


def test_attributes(base, node, kubelet, api):
    with dra(base, node, api, entry("rail", count=1, rail=7)) as plugin:
        soon(plugin, api, units(UP, 1))
        (found,) = api.slices.values()
        wanted = {"name": "mlx5_0", "nodeGuid": "a088:c203:00a7:5cd4", "model": "ConnectX-7", "psid": "MT_0000000838"}
        wanted |= {"firmware": "28.40.1000", "linkLayer": "Ethernet", "rateGbps": 200, "state": "ACTIVE", "rail": 7}
        wanted |= {"netdev": "enp1s0f0np0", "resource": "rail"}
        standard = {"numaNode": 0, "pciBusID": "0000:01:00.0", "pcieRoot": "pci0000:00"}
        wanted |= {f"resource.kubernetes.io/{name}": value for name, value in standard.items()}
        wanted |= {"k8s.cni.cncf.io/deviceID": "0000:01:00.0", "k8s.cni.cncf.io/resourceName": "rdma/rail"}
        assert found["spec"]["devices"][0]["attributes"] == {
            name: {"int" if isinstance(value, int) else "string": value} for name, value in wanted.items()
        }
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node1", "uid-of-node1")


def test_every_rail_of_a_large_node_has_its_number_and_no_two_share_it(base, kubelet, api):
    """Units of one HCA carry one rail: a claim with a class per rail never gets two of them for two rails."""
    with dra(base, Node(base / "h100", "h100-8x-cx7-ib"), api, entry(count=63)) as plugin:
        assert api.wait(lambda: len(api.devices() or ()) == 8 * 63), plugin.problems()
        assert len(api.slices) == 4, "504 devices, 128 a slice"
        _generation, found = api.pool()
        rails = {}
        for device in found.values():
            rails.setdefault(device["attributes"]["rail"]["int"], set()).add(device["attributes"]["name"]["string"])
        assert sorted(rails) == list(range(8))
        assert all(len(names) == 1 for names in rails.values()), rails


def test_a_starting_kubelet_wipes_the_slices(base, node, api):
    with Kubelet(base, started=api.wipe) as kubelet, offering(base, node, api) as plugin:
        for _round in range(ROUNDS):
            kubelet.restart()
            begun = time.monotonic()
            soon(plugin, api, units(UP, 3), 10)
            assert kubelet.wait(lambda: DRIVER in kubelet.drivers)
            assert plugin.until(lambda: not plugin.problems()), plugin.problems()
            assert time.monotonic() - begun < 30
        assert len(api.slices) == 1


def test_the_api_server_is_away_and_comes_back(base, node, kubelet, api):
    with offering(base, node, api) as plugin:
        held, other = api.allocate("held", {"r": f"{UP}-u00"}), api.allocate("other", {"r": f"{UP}-u01"})
        first = kubelet.driver().prepare(held)[held[2]]
        api.stop()
        assert plugin.until(lambda: any("is the API server up?" in line for line in plugin.problems()))
        node.port("mlx5_0", "1: DOWN")
        answer = kubelet.driver().prepare(held, other)
        assert answer[held[2]] == first, "what is prepared stays prepared"
        assert "it cannot be read" in answer[other[2]].error
        api.start()
        soon(plugin, api, [])
        node.port("mlx5_0", "4: ACTIVE")
        soon(plugin, api, units(UP, 3))
        assert not kubelet.driver().prepare(other)[other[2]].error


@pytest.mark.parametrize("trouble", ["conflict", "expired", "token", "meddled", "duplicate", "node"])
def test_it_converges_whatever_happens_to_the_slices(base, node, kubelet, api, trouble):
    with offering(base, node, api) as plugin:
        before = api.pool()[0]
        if trouble == "conflict":
            api.conflicts = 2
        elif trouble == "expired":
            api.expire()
        elif trouble == "token":
            api.rotate()
        elif trouble == "meddled":
            api.meddle(lambda found: found["spec"]["devices"].pop())
        elif trouble == "duplicate":
            (found,) = api.slices.values()
            api.copy(found, "node1-second")
        else:
            api.nodes["node1"]["metadata"]["uid"] = "uid-of-a-new-node1"
            api.wipe()
        if trouble in ("conflict", "expired", "token"):
            node.port("mlx5_1", "4: ACTIVE")
            soon(plugin, api, units(UP, 3) + units(DOWN, 3))
        assert api.wait(lambda: len(api.slices) == 1 and api.pool() and (api.pool()[0] > before or trouble == "node"))
        soon(plugin, api, units(UP, 3) + (units(DOWN, 3) if trouble in ("conflict", "expired", "token") else []))
        (found,) = api.slices.values()
        assert found["metadata"]["ownerReferences"][0]["uid"] == api.nodes["node1"]["metadata"]["uid"]


def test_the_slices_of_another_node_are_out_of_reach(base, node, kubelet, api):
    with dra(base, node, api, node_name="node2") as plugin:
        assert plugin.until(lambda: any("-node-name" in line for line in plugin.problems())), plugin.problems()
        api.nodes["node2"] = {"metadata": {"name": "node2", "uid": "uid-of-node2"}}
        assert plugin.until(lambda: any("ClusterRole" in line for line in plugin.problems())), plugin.problems()
        assert api.slices == {}


# Health.


@pytest.mark.parametrize("taints", [False, True])
def test_a_port_that_goes_down_and_comes_back(base, node, taints, monkeypatch):
    monkeypatch.setattr("rdma_device_plugin.dra.REFRESH", 1.0)
    with (
        ApiServer(base, consumable=True, taints=taints) as api,
        Kubelet(base, health=True) as kubelet,
        dra(base, node, api, entry(health={"upSeconds": 0.1, "taint": "NoExecute"})) as plugin,
    ):
        soon(plugin, api, [UP, DOWN] if taints else [UP])
        assert not taints or api.pool()[1][DOWN]["taints"][0]["effect"] == "NoExecute"

        def usable():
            return bool(api.pool() and UP in api.pool()[1] and not api.pool()[1][UP].get("taints"))

        driver = kubelet.driver()
        assert kubelet.wait(lambda: driver.health == {UP: health.HEALTHY, DOWN: health.UNHEALTHY}), driver.health
        begun = time.monotonic()
        node.port("mlx5_0", "1: DOWN")
        assert api.wait(lambda: not usable())
        sys.stdout.write(f"port down to slice: {time.monotonic() - begun:.2f} s\n")
        assert kubelet.wait(lambda: driver.health[UP] == health.UNHEALTHY), "also when it has left the pool"
        node.port("mlx5_0", "4: ACTIVE")
        assert api.wait(usable)
        assert kubelet.wait(lambda: driver.health[UP] == health.HEALTHY)


def test_hot_plug_and_a_claim_whose_hca_is_gone(base, node, api):
    node.port("mlx5_1", "4: ACTIVE")
    with Kubelet(base, health=True) as kubelet, dra(base, node, api, entry(count=1)) as plugin:
        soon(plugin, api, [f"{UP}-u00", f"{DOWN}-u00"])
        claim = api.allocate("held", {"r": f"{DOWN}-u00"})
        driver = kubelet.driver()
        assert not driver.prepare(claim)[claim[2]].error
        node.unplug("mlx5_1")
        plugin.rescan()
        soon(plugin, api, [f"{UP}-u00"])
        assert kubelet.wait(lambda: driver.health.get(f"{DOWN}-u00") == health.UNHEALTHY)
        late = api.allocate("late", {"r": f"{DOWN}-u00"})
        assert "is not on this node any more" in driver.prepare(late)[late[2]].error
        node.plug("mlx5_1")
        plugin.rescan()
        soon(plugin, api, [f"{UP}-u00", f"{DOWN}-u00"])
        assert not driver.prepare(late)[late[2]].error


# Claims.


def test_claims_are_prepared_once_and_each_has_its_answer(base, node, kubelet, api):
    node.port("mlx5_1", "4: ACTIVE")
    with dra(base, node, api, entry(env=["generic", "nccl"])) as plugin:
        soon(plugin, api, units(UP, 100) + units(DOWN, 100))
        pair = api.allocate("pair", {"rail0": f"{UP}-u07", "rail1/first": f"{DOWN}-u00"})
        single = api.allocate("single", {"r": f"{UP}-u08"})
        missing = ("default", "missing", "uid-missing")
        driver = kubelet.driver()
        answer = driver.prepare(pair, single, missing)
        assert [(list(one.request_names), one.pool_name, one.device_name) for one in answer["uid-pair"].devices] == [
            (["rail0"], "node1", f"{UP}-u07"),
            (["rail1"], "node1", f"{DOWN}-u00"),
        ]
        ids = [one.cdi_device_ids[0] for one in answer["uid-pair"].devices]
        assert ids == ["gpufabric.io/rdma-claim=uid-pair-0", "gpufabric.io/rdma-claim=uid-pair-1"]
        assert answer["uid-missing"].error.startswith("claim default/missing: it cannot be read")
        found = json.loads((base / "cdi" / claimspecs.file("uid-pair")).read_text())
        edits = found["devices"][1]["containerEdits"]
        paths = [one["path"] for one in edits["deviceNodes"]]
        assert paths == ["/dev/infiniband/umad1", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
        assert edits["env"] == ["RDMA_RAIL1_DEVICES=mlx5_1", "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"]
        (mount,) = edits["mounts"]
        assert mount["containerPath"].split("/")[5:-1] == ["resourceclaims", "pair", "rail1"]
        told = json.loads((base / mount["hostPath"]).read_text().splitlines()[0])["requests"][0]["devices"][0]
        assert (told["name"], told["attributes"]["name"]) == (f"{DOWN}-u00", {"string": "mlx5_1"})
        assert driver.prepare(pair, single)["uid-pair"] == answer["uid-pair"], "a second time the same"
        api.allocate("single", {"r": f"{UP}-u09"})
        assert [one.device_name for one in driver.prepare(single)["uid-single"].devices] == [f"{UP}-u09"], "anew"
        (base / "cdi" / claimspecs.file("uid-pair")).unlink()
        assert plugin.until(lambda: checkpointed(base) == ["uid-pair", "uid-single"]), "a lost one is written again"
        unknown = ("default", "never", "uid-never")
        assert {one.error for one in driver.unprepare(pair, unknown).values()} == {""}
        assert not driver.unprepare(pair)["uid-pair"].error, "again"
        assert (specs(base), checkpointed(base)) == ([claimspecs.file("uid-single")], ["uid-single"])


def test_two_claims_share_an_hca(base, node, kubelet):
    with ApiServer(base, consumable=True) as api, dra(base, node, api) as plugin:
        soon(plugin, api, [UP])
        shares = [
            [{"request": "r", "driver": DRIVER, "pool": "node1", "device": UP, "shareID": f"share-{index}"}]
            for index in range(2)
        ]
        claims = [api.allocate(f"c{index}", one) for index, one in enumerate(shares)]
        answer = kubelet.driver().prepare(*claims)
        assert [answer[claim[2]].devices[0].share_id for claim in claims] == ["share-0", "share-1"]
        assert len(specs(base)) == 2


GOING = {"deletionTimestamp": "2026-11-26T00:00:00Z"}
UNPREPARED = [
    (lambda claim: claim["metadata"].update(uid="another"), "was deleted and recreated"),
    (lambda claim: claim.update(status={}), "it is not allocated"),
    (lambda claim: claim["status"].pop("reservedFor"), "it is reserved for no pod"),
    (lambda claim: (claim["status"].pop("reservedFor"), claim["metadata"].update(GOING)), "it is being deleted"),
    (lambda claim: claim["status"]["allocation"]["devices"].update(results=[]), "no device of"),
    (lambda claim: claim["status"]["allocation"]["devices"]["results"][0].update(pool="node2"), "-node-name"),
    (lambda claim: claim["status"]["allocation"]["devices"]["results"][0].update(device="gpu-0"), "has mlx5-0"),
    (
        lambda claim: claim["status"]["allocation"]["devices"].update(config=[{"opaque": {"driver": DRIVER}}]),
        "no opaque parameters",
    ),
    (lambda claim: claim["status"]["allocation"]["devices"].update(config=NETWORK), "resourceClaimTemplateName"),
]
NETWORK = [{"opaque": {"driver": DRIVER, "parameters": claims.NETWORK}}]


def test_a_claim_that_cannot_be_prepared_says_why_and_leaves_nothing(base, node, kubelet, api):
    with offering(base, node, api):
        for number, (change, wanted) in enumerate(UNPREPARED):
            claim = api.allocate(f"c{number}", {"r": f"{UP}-u00"})
            change(api.claims[claim[:2]])
            answer = kubelet.driver().prepare(claim)[claim[2]]
            assert wanted in answer.error
            assert f"default/c{number}" in answer.error
            assert (specs(base), checkpointed(base)) == ([], [])


def test_a_claim_brings_the_network_of_its_rail_to_its_own_pod(base, node, kubelet, api):
    def asking(name, owner=None, **config):
        made = api.allocate(name, {"a": f"{UP}-u00", "b/first": f"{UP}-u01"}, config=[{**NETWORK[0], **config}])
        pod = owner or f"pod-of-uid-{name}"
        api.claims[made[:2]]["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": pod}]
        return made

    def annotations(uid):
        return json.loads((base / "cdi" / claimspecs.file(uid)).read_text())["annotations"]

    (node.root / "networks").mkdir()
    (node.root / "networks/rail3.conf").touch()
    rail = entry(count=3, rail=3)
    with offering(base, node, api, rail, claim_networks="/networks/"):
        driver, every, one = kubelet.driver(), asking("every"), asking("one", requests=["b"])
        others = asking("other-owner", owner="another-pod"), asking("no-request", requests=["c"])
        answer = driver.prepare(every, one, *others)
        assert [bool(answer[claim[2]].error) for claim in (every, one, *others)] == [False, False, True, False]
        for uid in ("uid-every", "uid-one"):
            said = annotations(uid)
            assert (said[claimspecs.POD], said[claimspecs.NETWORKS]) == (f"pod-of-{uid}", "rail3")
        assert claimspecs.NETWORKS not in annotations("uid-no-request")
    (node.root / "networks/rail3.conf").unlink()
    with offering(base, node, api, rail, claim_networks="/networks/"):
        driver = kubelet.driver()
        assert driver.prepare(every)["uid-every"] == answer["uid-every"], "it is prepared already"
        late = asking("late")
        assert "rail3.conf" in driver.prepare(late)["uid-late"].error
    with offering(base, node, api):
        assert "it is not a rail" in kubelet.driver().prepare(late)["uid-late"].error


def test_a_uid_becomes_no_path(base, node, kubelet, api):
    with offering(base, node, api):
        driver = kubelet.driver()
        for uid in ("", "../../etc/passwd", "a/b", "x" * 300, "a\nb", "ü"):
            assert "is not one" in driver.prepare(("default", "one", uid))[uid].error
            assert not driver.unprepare(("default", "one", uid))[uid].error
            assert specs(base) == []


def test_a_restart_knows_what_is_prepared(base, node, kubelet, api):
    claims = [api.allocate(f"c{index}", {"r": f"{UP}-u{index:02d}"}) for index in range(3)]
    first = {}
    for turn in range(ROUNDS):
        with dra(base, node, api) as plugin:
            if turn == 0:
                soon(plugin, api, units(UP, 3))
                first = dict(kubelet.driver().prepare(*claims))
                api.stop()
            assert kubelet.wait(lambda: DRIVER in kubelet.drivers)
            assert dict(kubelet.driver().prepare(*claims)) == first
            assert len(specs(base)) == 3
        assert kubelet.wait(lambda: DRIVER not in kubelet.drivers)
    with dra(base, node, api):
        kubelet.driver().unprepare(*claims)
        assert (specs(base), checkpointed(base)) == ([], [])


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"null", b"[]", b'{"annotations": {}}', None])
def test_a_damaged_or_older_spec_is_made_anew_from_the_claim(base, node, kubelet, api, damage):
    claims = [api.allocate(f"c{index}", {"r": f"{UP}-u{index:02d}"}) for index in range(3)]
    with offering(base, node, api):
        first = dict(kubelet.driver().prepare(*claims))
    paths = [base / "cdi" / claimspecs.file(f"uid-c{index}") for index in range(2)]
    for path in paths:  # the third is whole
        older = json.loads(path.read_text())
        del older["annotations"][claimspecs.DEVICES]
        path.write_bytes(json.dumps(older).encode() if damage is None else damage)
    del api.claims[claims[1][:2]]
    (base / "cdi" / f"{claimspecs.file('uid-killed')}.new").touch()
    with dra(base, node, api) as plugin:
        kept = ["uid-c0", "uid-c2"] if damage is None else ["uid-c2"]
        assert plugin.until(lambda: specs(base) == [claimspecs.file(uid) for uid in kept]), "what ended leaves no file"
        assert plugin.until(lambda: checkpointed(base) == kept)
        assert kubelet.driver().prepare(claims[0])["uid-c0"] == first["uid-c0"]


def test_a_spec_that_cannot_be_written_prepares_nothing(base, node, kubelet, api):
    with offering(base, node, api):
        claim = api.allocate("one", {"r": f"{UP}-u00"})
        unfinished = base / "cdi" / f"{claimspecs.file('uid-one')}.new"
        unfinished.mkdir(parents=True)
        assert claimspecs.file("uid-one") in kubelet.driver().prepare(claim)[claim[2]].error
        assert checkpointed(base) == []
        unfinished.rmdir()
        assert not kubelet.driver().prepare(claim)[claim[2]].error


# Both.


def test_both_apis_split_the_entries(base, node, kubelet, api):
    node.port("mlx5_1", "4: ACTIVE")
    first = entry("plugin", count=5, selectors={"ifNames": ["enp1s0f0np0"]})
    second = entry("claims", count=2, selectors={"ifNames": ["enp1s0f1np1"]}, api="dra")
    with dra(base, node, api, first, second, mode="both") as plugin:
        kubelet.wait_allocatable("rdma/plugin", 5)
        soon(plugin, api, units(DOWN, 2))
        assert set(kubelet.clients) == {"rdma/plugin"}
        plugin.configure(document(first, {**second, "selectors": {"vendors": ["15b3"]}}))
        assert plugin.until(lambda: any("counted more than once" in line for line in plugin.problems()))
        assert api.devices() == units(DOWN, 2), "the running config stays"
        plugin.configure(document(first, {**second, "rdmaHcaMax": 1}))
        soon(plugin, api, units(DOWN, 1))
        assert plugin.until(lambda: not plugin.problems()), plugin.problems()


def test_one_hca_for_both_is_refused_at_the_start(base, node, kubelet, api):
    entries = (entry("plugin", selectors={"ifNames": ["enp1s0f0np0"]}), entry("claims", api="dra"))
    plugin = dra(base, node, api, *entries, mode="both", start=False)
    plugin._thread.start()
    plugin._thread.join(20)
    assert "counted more than once" in plugin.error
    assert "mlx5_0" in plugin.error


def test_a_kubelet_that_hangs_up_while_a_claim_is_written_leaves_no_record(base, node, kubelet, api, monkeypatch):
    """The file is written after the request to unprepare it, and has to go."""
    write, saving = claimspecs.write, threading.Event()

    def slow(*arguments):
        saving.set()
        time.sleep(1)
        return write(*arguments)

    with offering(base, node, api):
        claim = api.allocate("one", {"rail": f"{UP}-u00"})
        monkeypatch.setattr(claimspecs, "write", slow)
        call = threading.Thread(target=_given_up, args=(kubelet.driver(), claim))
        call.start()
        assert saving.wait(10)
        call.join()
        monkeypatch.setattr(claimspecs, "write", write)
        assert kubelet.driver().unprepare(claim)[claim[2]].error == ""
        assert checkpointed(base) == []
        assert specs(base) == []


def _given_up(driver, claim):
    with contextlib.suppress(grpc.RpcError):
        driver.prepare(claim, timeout=0.7)


def test_an_instance_that_waits_for_another_writes_nothing(base, node, kubelet, api):
    first, second = (api.allocate(f"c{number}", {"r": f"{UP}-u0{number}"}) for number in (0, 1))
    with offering(base, node, api) as plugin:
        kubelet.driver().prepare(first)
        with dra(base, node, api) as waiting:
            kubelet.driver().unprepare(first)
            kubelet.driver().prepare(second)
            time.sleep(1)
            wanted = ([claimspecs.file("uid-c1")], ["uid-c1"])
            assert (specs(base), checkpointed(base)) == wanted
            plugin.stop()
            waiting.until(lambda: not waiting.problems(), 15)
            assert (specs(base), checkpointed(base)) == wanted
