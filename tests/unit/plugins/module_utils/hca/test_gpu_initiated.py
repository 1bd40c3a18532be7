"""GPU-initiated RDMA: each published failure is named, and a way works only where nothing of it is missing."""

import itertools

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, gpu_initiated, modprobe, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.gpu_initiated import WAYS, judge

GPU = ({"vendor": "10de"},)
PARAMS = 'ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: {}\nRegistryDwords: "{}"\nRegistryDwordsPerDevice: ""\n'
LINE = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"\n'
BOTH = ("peer-mapping", "stream-memory")


def whys(state):
    return {each["need"]: each["why"] for way in state["ways"].values() for each in way["missing"]}


@pytest.fixture
def node(tmp_path, put):
    """node(files): the state of a node with the NVIDIA driver loaded and these files."""

    def read(files, gpus=GPU):
        (tmp_path / "sys/module/nvidia").mkdir(parents=True)
        for path, text in files.items():
            put(path, text)
        tree = Tree(str(tmp_path))
        return gpu_initiated.state(tree, gpus, modprobe.statements(tree))

    return read


ON = {"proc/driver/nvidia/params": PARAMS.format(1, "PeerMappingOverride=1;")}
OFF = {"proc/driver/nvidia/params": PARAMS.format(0, "")}
CONF, OURS = "etc/modprobe.d/nvidia.conf", paths.OWN_MODPROBE.lstrip("/")
LATE = "options nvidia NVreg_EnableStreamMemOPs=0\n"


@pytest.mark.parametrize(("files", "expected"), [
    (ON, {}),
    ({"proc/driver/nvidia/params": PARAMS.format(1, "RmX=3;PeerMappingOverride=0x1")}, {}),
    (OFF, dict.fromkeys(BOTH, "absent")),
    ({}, dict.fromkeys(BOTH, "unknown")),
    ({**OFF, CONF: LINE}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, CONF: LINE.replace("nvidia", "nvidia-current", 1)}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, CONF: LINE.removeprefix("options nvidia ")}, dict.fromkeys(BOTH, "stray")),
    ({**OFF, CONF: LINE.removeprefix("options ")}, dict.fromkeys(BOTH, "stray")),
    ({**OFF, CONF: "#" + LINE}, dict.fromkeys(BOTH, "absent")),
    ({**OFF, OURS: LINE, "proc/stat": "btime 1\n"}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, OURS: LINE, "proc/stat": "btime 4000000000\n"}, dict.fromkeys(BOTH, "ignored")),
    ({**OFF, OURS: LINE, "etc/modprobe.d/zzz.conf": LINE}, dict.fromkeys(BOTH, "reboot")),
    ({**OFF, OURS: LINE, "etc/modprobe.d/zzz.conf": LATE},
     {"peer-mapping": "reboot", "stream-memory": "overridden"}),
])  # fmt: skip
def test_the_options_as_loaded_and_as_configured_are_two_states(node, files, expected):
    state = node(
        {**files, "sys/module/nvidia_peermem/version": "1", "dev/gdrdrv": "", "sys/module/gdrdrv/version": "2.5"}
    )
    found = whys(state)
    assert found.pop("gdrdrv") == "mode"
    assert found == expected
    assert bool(state["overridden"]) == ("overridden" in expected.values())


def test_gdrdrv_needs_its_module_its_node_and_rights_for_everybody(node, tmp_path, put):
    assert whys(node(ON)) == {"gdrdrv": "absent", "peermem": "absent"}
    for path, mode, why in (("sys/module/gdrdrv/version", 0o644, "no-node"), ("dev/gdrdrv", 0o660, "mode"),
                            ("dev/gdrdrv", 0o666, None)):  # fmt: skip
        put(path, "").chmod(mode)
        state = gpu_initiated.state(Tree(str(tmp_path)), GPU, [])
        assert whys(state).get("gdrdrv") == why
    assert {way: of["works"] for way, of in state["ways"].items()} == {
        "ibgda": True, "ibgda-cpu": True, "gin": True, "gdaki": False,
    }  # fmt: skip


def test_a_node_without_an_nvidia_gpu_is_not_asked(node):
    assert node(ON, gpus=[{"vendor": "1002"}]) is None


def test_a_way_works_exactly_where_all_that_it_needs_is_there():
    states = itertools.product(("1", "0", None), ("PeerMappingOverride=1;", ""), (None, "0666"), (True, False))
    for stream, dwords, mode, peermem in states:
        names = gpu_initiated.OPTIONS
        running = None if stream is None else dict(zip(names, (stream, dwords)))
        facts = {"loaded": True, "running": running, "configured": dict.fromkeys(names), "stray": [], "overridden": []}
        facts |= {"written_before_boot": False, "gdrdrv": {"loaded": True, "node": mode}, "peermem": peermem}
        met = {"peer-mapping": bool(running and dwords), "stream-memory": stream == "1"}
        met |= {"gdrdrv": mode is not None, "peermem": peermem}
        for way, of in judge(facts).items():
            assert bool(of["works"]) == all(met[need] for need in WAYS[way])
            assert {each["need"] for each in of["missing"]} == {need for need in WAYS[way] if not met[need]}
