"""MTU, link-up and RoCE settings by PCI address or MAC; rules of ufw and firewalld, and whether a port answers."""

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import programs
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import enabled
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall, nic_settings, reach
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.rail_links import plan, script
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths

ENABLED, LINK_TARGET = enabled(paths.OWN_LINKS_UNIT)
MAC = "b8:3f:d2:00:00:01"
SETTING = {"pci": "0000:3b:00.0", "mac": None, "mtu": 9000, "up": True}
NETDEV = {"name": "eth2", "mac": MAC, "mtu": 1500, "carrier": None, "management": None}


def hca(address: str, *netdevs: dict) -> dict:
    return {"name": "mlx5_0", "pci": {"address": address} if address else None, "netdevs": list(netdevs)}


def wanted(*settings: dict) -> dict:
    return {"settings": list(settings)}


@pytest.fixture
def facts() -> dict:
    return {"node": {"container": None}, "hcas": [hca("0000:3b:00.0", copy.deepcopy(NETDEV))], "owned_files": {}}


def owned(made) -> dict:
    """The files that a plan writes, as facts."""
    written = [change for change in made.changes if change.action == "write"]
    return {change.object: {"mode": "0644", "content": change.after} for change in written}


def test_running_values_and_boot_are_both_set_and_go_with_the_last_setting(facts):
    assert plan(facts, wanted()).changes == []
    made = plan(facts, wanted(SETTING))
    assert [(change.object, change.action) for change in made.changes] == [
        *(("NIC eth2 MTU", "set"), ("NIC eth2 link", "set")),
        *((paths.OWN_LINKS_SCRIPT, "write"), (paths.OWN_LINKS_UNIT, "write"), (ENABLED, "link")),
    ]
    assert [change.after for change in made.changes if change.action != "write"] == ["9000", "up", LINK_TARGET]
    facts["hcas"][0]["netdevs"][0].update(mtu=9000, carrier=1)
    facts |= {"owned_files": owned(made), "enabled": [paths.OWN_LINKS_UNIT]}
    assert plan(facts, wanted(SETTING)).changes == []
    assert [(change.object, change.action) for change in plan(facts, wanted()).changes] == [
        *((ENABLED, "unlink"), (paths.OWN_LINKS_UNIT, "remove"), (paths.OWN_LINKS_SCRIPT, "remove"))
    ]


@pytest.mark.parametrize("key", [{"pci": "3b:00.0"}, {"pci": "0000:3B:00.0"}, {"mac": MAC}, {"mac": MAC.upper()}])
def test_keys_are_found_as_people_write_them(facts, key):
    assert "NIC eth2 MTU" in [change.object for change in plan(facts, wanted({**key, "mtu": 9000})).changes]


OTHER = {**NETDEV, "name": "eth3", "mac": "b8:3f:d2:00:00:02"}
MEMBERS = [{**OTHER, "master": "bond0"}, {**NETDEV, "name": "bond0", "master": None}]


@pytest.mark.parametrize(
    ("netdevs", "settings", "objects", "seen"),
    [
        ([], [{"pci": "0000:99:00.0"}, {"pci": "0000:98:00.0"}], ["PCI 0000:99:00.0", "PCI 0000:98:00.0"], MAC),
        ([OTHER], [SETTING], ["PCI 0000:3b:00.0"], "eth3"),
        (MEMBERS, [SETTING], ["PCI 0000:3b:00.0"], "set it where bond0 is configured"),
        ([], [SETTING, {"mac": MAC, "mtu": 4200}], ["NIC eth2"], "PCI 0000:3b:00.0 and MAC"),
    ],
    ids=["no HCA has it, all at once", "one function with two netdevs", "a bond", "two settings for one NIC"],
)
def test_a_key_that_is_not_one_nic_is_refused(facts, netdevs, settings, objects, seen):
    facts["hcas"][0]["netdevs"] += netdevs
    found = plan(facts, wanted(*settings)).findings
    assert [finding.object.removeprefix("rail_links_settings ") for finding in found] == objects
    assert seen in f"{found[0].seen} {found[0].next_step}"


def test_in_a_container_only_files_are_written(facts):
    facts["node"]["container"] = "systemd-nspawn"
    made = plan(facts, wanted(SETTING))
    assert not any(change.object.startswith("NIC") for change in made.changes)
    assert "eth2" in made.not_verified[0]


def test_the_interface_of_an_ipoib_address_is_found_after_the_driver_was_loaded_again(facts, put, boot):
    """Octets 2 to 4 are the queue pair's number; children share the rest and stay unchanged."""
    tail = "fe:80:00:00:00:00:00:00:58:a2:e1:03:00:60:00:00"
    netdevs = [{**NETDEV, "name": "ib0", "mac": f"00:00:08:29:{tail}"}]
    netdevs.append({**NETDEV, "name": "ib0.8001", "mac": f"00:00:08:41:{tail}", "parent": "ib0"})
    facts["hcas"] = [hca("0000:3b:00.0", *netdevs)]
    setting = {"mac": f"00:00:10:29:{tail}", "mtu": 4092}
    assert plan(facts, wanted(setting)).changes[0].object == "NIC ib0 MTU"
    for netdev in netdevs:
        interface(put, netdev["name"], netdev["mac"], "2044")
    for file, text in (("type", "32"), ("ifindex", "4"), ("iflink", "3")):
        put(f"sys/class/net/ib0.8001/{file}", f"{text}\n")
    assert boot(setting).returncode == 0
    assert [boot.value(netdev["name"], "mtu") for netdev in netdevs] == ["4092", "2044"]


def interface(put, name, address, mtu="1500"):
    for file, text in (("address", address), ("mtu", mtu), ("flags", "0x1002")):
        put(f"sys/class/net/{name}/{file}", f"{text}\n")


@pytest.fixture
def boot(tmp_path, put):
    """Runs the script that a unit would run at boot, with /sys below tmp_path."""
    for name, address in (("eth2", MAC), ("vlan7", MAC), ("eth3", OTHER["mac"]), ("*", "b8:3f:d2:00:00:09")):
        interface(put, name, address)
    (tmp_path / "sys/class/net/vlan7/lower_eth2").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0/net/eth3").mkdir(parents=True)

    def run(*settings: dict, wait: str = "0"):
        text = script({}, [{"pci": "", "mac": "", "mtu": None, "up": False, **setting} for setting in settings], [])
        words = ["sh", "-c", text.replace("/sys/", f"{tmp_path}/sys/")]
        environment = {"PATH": os.environ["PATH"], "LINK_WAIT_SECONDS": wait}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    run.value = lambda name, file: (tmp_path / "sys/class/net" / name / file).read_text().strip()
    return run


@pytest.mark.parametrize(
    ("setting", "name", "mtu", "flags"),
    [
        ({"pci": "0000:3b:00.0", "mtu": 9000, "up": True}, "eth3", "9000", str(0x1003)),
        ({"mac": MAC, "mtu": 4200}, "eth2", "4200", "0x1002"),
        ({"mac": "b8:3f:d2:00:00:09", "mtu": 4200}, "*", "4200", "0x1002"),
    ],
)
def test_the_script_sets_the_nic_of_a_key_and_not_what_is_above_it(boot, setting, name, mtu, flags):
    done = boot(setting)
    assert (done.returncode, done.stderr) == (0, "")
    assert (boot.value(name, "mtu"), boot.value(name, "flags")) == (mtu, flags)
    assert {boot.value(other, "mtu") for other in ("eth2", "eth3", "vlan7", "*") if other != name} == {"1500"}


def test_a_nic_that_comes_late_is_waited_for(boot, tmp_path):
    late = tmp_path / "sys/bus/pci/devices/0000:99:00.0/net/eth2"
    timer = threading.Timer(0.3, lambda: late.mkdir(parents=True))
    timer.start()
    done = boot({"pci": "0000:99:00.0", "mtu": 9000}, wait="30")
    timer.join()
    assert (done.returncode, boot.value("eth2", "mtu")) == (0, "9000")


def test_a_nic_that_is_gone_fails_the_script_and_not_the_others(boot):
    done = boot({"pci": "0000:99:00.0", "mtu": 9000}, {"mac": MAC, "mtu": 4200})
    assert (done.returncode, "0000:99:00.0" in done.stderr, boot.value("eth2", "mtu")) == (1, True, "4200")


# Two rails of one subnet, and a peer beyond a bridge. Nothing leaves the namespaces.
_SUBNET = """
mount -t sysfs sysfs /sys
unshare --net sleep 60 & peer=$!
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
in_peer() { nsenter --net=/proc/$peer/ns/net "$@"; }
in_peer ip link add br0 type bridge
in_peer ip address add 10.9.0.100/24 dev br0
in_peer ip link set br0 up
echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter
for rail in 1 2; do
    ip link add "rail$rail" address "b8:3f:d2:00:00:0$rail" type veth peer name "port$rail" netns $peer
    in_peer ip link set "port$rail" master br0 up
    ip address add "10.9.0.$rail/24" dev "rail$rail"
    ip link set "rail$rail" up
    ip -6 route add "fd00:9:$rail::/64" dev "rail$rail" expires 3000
    ip nexthop add id "$rail" via 10.9.0.100 dev "rail$rail"
    ip route add "10.77.$rail.0/24" nhid "$rail"
done
for phase in '' routes unroute; do
    [ -z "$phase" ] || sh script "$phase"
    "$1" -c "$2"
done
kill $peer
"""
_SEND = """
import json, pathlib, socket, time
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, subnets
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.netdevs import Network
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

def kilobytes(netdev):
    return int(pathlib.Path(f"/sys/class/net/{netdev}/statistics/tx_bytes").read_text()) // 1000

before = [kilobytes(netdev) for netdev in ("rail1", "rail2")]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.bind(("10.9.0.2", 0))
    for _number in range(100):
        sender.sendto(bytes(1000), ("10.9.0.100", 9))
        time.sleep(0.002)
time.sleep(0.3)
network = Network(Tree(), Seams.live())
rails = [{"index": number, "netdev": f"rail{number}", "pci": None} for number in (1, 2)]
shared = subnets.shared(
    Tree(), Seams.live(), [{"netdevs": [network.netdev(rail["netdev"]) for rail in rails]}], rails
)
second = shared[0]["rails"][1]
sent = [min(100, kilobytes(netdev) - earlier) for netdev, earlier in zip(("rail1", "rail2"), before)]
print(json.dumps([second["leaves_by"], second["arp_ignore"], second["arp_announce"], *sent]))
"""


def test_of_rails_in_one_subnet_each_sends_through_its_own_nic(tmp_path):
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces need root")
    rails = [{"index": number, "pci": None, "mac": f"b8:3f:d2:00:00:0{number}"} for number in (1, 2)]
    (tmp_path / "script").write_text(script({"hcas": []}, [], rails))
    done = subprocess.run(
        [*apart, "sh", "-ec", _SUBNET, "sh", sys.executable, _SEND],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    without, routed, removed = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, without[0], without[3:]) == (0, "rail1", [100, 0]), done.stderr
    assert routed == ["rail2", 1, 2, 0, 100]
    assert (removed[0], removed[3:]) == ("rail1", [100, 0])


PLAN = {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6, "lossless": True}
RIGHT_NIC = {
    "rail": 0, "netdev": "eth2", "pci": "0000:3b:00.0", "mac": MAC, "management": None, "trust": "dscp", "dcbx": "host",
    "dscp": {"26": [3], "48": [6]}, "pfc": {"priorities": [3]}, "pause": {"rx": False, "tx": False},
}  # fmt: skip
PFC, FILES = {"pfc": {"priorities": [3, 6]}}, [paths.OWN_NIC_SCRIPT, paths.OWN_NIC_UNIT, paths.OWN_NIC_RULE]
NO_DCB, UNKNOWN = {"trust": None, "dscp": None, "pfc": None, "dcbx": None}, "unknown: Operation not permitted"


@pytest.mark.parametrize(("seen", "wrong", "unknown"), [
    ({}, [], []),
    ({"dcbx": "firmware"}, ["dcbx"], []),
    ({"trust": "pcp", "dscp": {}}, ["trust", "dscp", "cnp-dscp"], []),
    ({"dscp": {"26": [5], "48": [6]}}, ["dscp"], []),
    ({"dscp": {"26": [3, 5], "48": [6]}}, ["dscp"], []),
    ({"dscp": {"26": [3]}}, ["cnp-dscp"], []),
    (PFC, ["pfc"], []),
    ({"pfc": {"priorities": []}}, ["pfc"], []),
    ({"pause": {"rx": False, "tx": True}}, ["pause"], []),
    ({"pause": None, "dcbx": None}, [], ["dcbx", "pause"]),
    ({"pfc": UNKNOWN, "pause": UNKNOWN}, [], ["pfc", "pause"]),
    (dict.fromkeys(("trust", "dscp", "dcbx"), UNKNOWN), [], ["dcbx", "trust", "dscp", "cnp-dscp"]),
    (NO_DCB, [], ["dcbx", "trust", "dscp", "cnp-dscp", "pfc"]),
])  # fmt: skip
def test_each_setting_is_judged_by_itself_and_what_is_not_known_is_not_wrong(seen, wrong, unknown):
    rows = list(nic_settings.settings({**RIGHT_NIC, **seen}, PLAN))
    assert [row.id for row in rows if row.good is False] == wrong
    assert [row.id for row in rows if row.good is None] == unknown
    lossy = {row.id: row.good for row in nic_settings.settings({**RIGHT_NIC, **seen}, {**PLAN, "lossless": False})}
    assert ("pause" in lossy, lossy["pfc"] is True) == (False, seen.get("pfc") == {"priorities": []})


def of_nics(facts, *nics):
    return {**facts, "qos": {"nics": [{**RIGHT_NIC, **nic} for nic in nics]}}


def planned(facts, allowed=None, traffic=types.MappingProxyType(PLAN), root="/", programs=("dcb", "ethtool")):
    facts["qos"]["programs"] = programs
    made = nic_settings.plan(facts, {"traffic": traffic, "link_flap_allowed": allowed}, root)
    counts = (len(made.not_applied), len(made.not_verified))
    return [change.object for change in made.changes], [finding.object for finding in made.findings], *counts


SECOND = {"netdev": "eth3", "pci": "0000:3c:00.0"}


@pytest.mark.parametrize(("nics", "options", "made"), [
    ([{}], {}, (FILES, [], 0, 0)),
    ([PFC], {}, ([], ["NIC eth2 pfc"], 0, 0)),
    ([PFC], {"allowed": True}, ([*FILES, "NIC eth2 pfc"], [], 0, 0)),
    ([{**PFC, "dcbx": "firmware"}], {"allowed": False}, ([*FILES, "NIC eth2 dcbx"], [], 1, 0)),
    ([{"dcbx": "firmware"}, SECOND], {}, ([*FILES, "NIC eth2 dcbx"], [], 0, 0)),
    ([{"management": "the default route"}, SECOND], {"allowed": True}, ([], ["NIC eth2 (rail 0)"], 0, 0)),
    ([NO_DCB], {"allowed": True}, ([], [], 1, 0)),
    ([{"pfc": UNKNOWN}], {"allowed": True}, ([], [], 0, 1)),
    ([NO_DCB, {**SECOND, "dcbx": "firmware"}], {}, ([*FILES, "NIC eth3 dcbx"], [], 1, 0)),
    ([PFC], {"allowed": True, "root": "/mnt"}, (FILES, [], 0, 1)),
    ([], {"allowed": True}, ([], [], 0, 0)),
    ([{}], {"programs": ["ethtool"]}, ([], ["program dcb"], 0, 0)),
    ([{}], {"programs": ["dcb"]}, (FILES, [], 0, 0)),
    ([{"pause": {"rx": True, "tx": True}}], {"programs": ["dcb"]}, ([], ["program ethtool"], 0, 0)),
    ([NO_DCB], {"programs": []}, ([], [], 1, 0)),
])  # fmt: skip
def test_nics_are_set_where_they_differ_and_a_link_goes_down_with_consent_only(facts, nics, options, made):
    assert planned(of_nics(facts, *nics), **options) == made


def test_a_second_run_changes_nothing_and_the_files_go_without_a_plan(facts):
    facts = of_nics(facts, {}, {"netdev": "eth3", "mac": OTHER["mac"]})
    facts["hcas"][0]["netdevs"].append(OTHER)
    facts["qos"]["programs"] = ["dcb", "ethtool"]
    facts["owned_files"] = owned(nic_settings.plan(facts, {"traffic": PLAN, "link_flap_allowed": None}))
    assert planned(facts) == planned(facts, allowed=True) == ([], [], 0, 0)
    # Ports of one function: by MAC.
    rules = facts["owned_files"][paths.OWN_NIC_RULE]["content"].splitlines()[1:]
    assert [f'ATTR{{address}}=="{mac}"' in rule for mac, rule in zip((MAC, OTHER["mac"]), rules)] == [True, True]
    assert planned(facts, traffic=None) == (FILES[::-1], [], 0, 0)
    # A refused change must not happen at the next boot.
    assert planned(facts, allowed=False)[0] == [paths.OWN_NIC_SCRIPT]


def test_the_unit_of_a_device_has_the_name_that_udev_gives_it():
    name = nic_settings.instance("/sys/devices/pci0000:00/0000:3b:00.0/net/en-s_1~.7")
    assert name == r"gpufabric-rdma-nic@sys-devices-pci0000:00-0000:3b:00.0-net-en\x2ds_1\x7e.7.service"


# dcb and ethtool of a driver like mlx5: a DSCP's older entry goes by itself, so dcb fails when it tries to remove it.
_DOUBLE = """#!{python}
import json, os, pathlib, sys
state = json.loads(pathlib.Path("state").read_text())
tool, words, code = os.path.basename(sys.argv[0]), [word for word in sys.argv[1:] if word != "-N"], 0
if words[0] == "-a":
    code = int(state["pause"] is None)
    print(f"Pause parameters:\\nAutonegotiate:\\ton\\nRX:\\t\\t{{state['pause']}}\\nTX:\\t\\toff\\nRX negotiated: on")
elif words[0] == "-A":
    state["pause"] = "off"
elif words[:2] == ["dcbx", "show"]:
    code = int(state["dcbx"] is None)
elif words[:2] == ["dcbx", "set"]:
    state["dcbx"] = words[4]
elif words[:2] == ["app", "show"]:
    print("dscp-prio", *(f"{{dscp}}:{{priority}}" for dscp, priority in state["dscp"].items()), "")
elif words[:2] == ["app", "replace"]:
    dscp, priority = words[5].split(":")
    code = int(dscp in state["dscp"])
    if not state.get("refuses"):
        state["dscp"][dscp] = priority
elif words[:2] == ["pfc", "show"]:
    print("prio-pfc", *(f"{{number}}:{{'on' if number in state['pfc'] else 'off'}}" for number in range(8)), "")
else:
    state["pfc"] = [int(word[0]) for word in words[5:] if word.endswith(":on")]
    state["flaps"] += 1
pathlib.Path("state").write_text(json.dumps(state))
sys.exit(code)
"""
BAD = {"dcbx": "firmware", "dscp": {"26": "0"}, "pfc": [6], "pause": "on", "flaps": 0}
GOOD = {"dcbx": "host", "dscp": {"26": "3", "48": "6"}, "pfc": [3], "pause": "off", "flaps": 0}


@pytest.mark.parametrize(
    ("before", "may_flap", "lossless", "code", "after"),
    [
        (BAD, True, True, 0, {**GOOD, "flaps": 1}),
        (GOOD, True, True, 0, GOOD),
        (BAD, False, True, 0, {**GOOD, "pfc": [6]}),
        (BAD, True, False, 0, {**GOOD, "pfc": [], "pause": "on", "flaps": 1}),
        ({**BAD, "dcbx": None, "pause": None}, True, True, 0, {**GOOD, "dcbx": None, "pause": None, "flaps": 1}),
        ({**BAD, "refuses": True}, True, True, 1, {**GOOD, "dscp": {"26": "0"}, "refuses": True, "flaps": 1}),
    ],
    ids=["all wrong", "all right", "no flap", "lossy", "what the driver has not", "a refusal does not stop the rest"],
)
def test_the_script_sets_what_differs_and_a_second_time_nothing(
    tmp_path, script_of, before, may_flap, lossless, code, after
):
    run = script_of(before, nic_settings.script({**PLAN, "lossless": lossless}, may_flap))
    assert run() == (code, after)
    assert run() == (code, after)


@pytest.mark.parametrize(("file", "text", "set_it"), [
    ("phys_port_name", "p0", True),
    ("phys_port_name", "pf0vf1", False),
    ("phys_port_name", "c1pf0sf88", False),
    ("lower_eth2/x", "", False),
    ("qos/trust_state", "pcp", True),
])  # fmt: skip
def test_the_script_leaves_alone_what_only_shares_the_address(tmp_path, put, script_of, file, text, set_it):
    put(f"devices/net/eth2/{file}", f"{text}\n")
    run = script_of(BAD, nic_settings.script(PLAN, True))
    assert run() == (0, {**GOOD, "flaps": 1} if set_it else BAD)
    if file.startswith("qos"):
        assert (tmp_path / "devices/net/eth2" / file).read_text() == "dscp\n"


@pytest.fixture
def script_of(tmp_path):
    """(state of the NIC, text of the script) -> a call that runs it and returns its exit status and the state."""
    (tmp_path / "bin").mkdir()
    for tool in ("dcb", "ethtool"):
        (tmp_path / "bin" / tool).write_text(_DOUBLE.format(python=sys.executable))
        (tmp_path / "bin" / tool).chmod(0o755)

    def made(state, text):
        (tmp_path / "state").write_text(json.dumps(state))

        def run():
            words = ["sh", "-c", text, "sh", str(tmp_path / "devices/net/eth2")]
            environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
            return done.returncode, json.loads((tmp_path / "state").read_text())

        return run

    return made


SHARED = {"index": 1, "netdev": "eth2", "pci": "0000:3b:00.0", "mac": MAC, "management": None, "address": "10.9.0.1"}
BESIDE = {**SHARED, "index": 2, "netdev": "eth3", "pci": "0000:3c:00.0", "mac": OTHER["mac"], "address": "10.9.0.2"}
RIGHT, WRONG = {"arp_ignore": 1, "arp_announce": 2}, {"arp_ignore": 0, "arp_announce": 0}


@pytest.mark.parametrize(
    ("first", "second", "changed"),
    [
        ({"leaves_by": "eth2", **RIGHT}, {"leaves_by": "eth2", **RIGHT}, ["NIC eth3 source route"]),
        ({"leaves_by": "eth2", **WRONG}, {"leaves_by": "eth3", **RIGHT}, ["NIC eth2 source route"]),
        ({"leaves_by": "eth2", **RIGHT}, {"leaves_by": "eth3", **RIGHT}, []),
        ({"leaves_by": None, **WRONG}, {"leaves_by": "eth3", "arp_ignore": None, "arp_announce": None}, []),
    ],
)
def test_source_routes_are_set_where_the_kernel_sends_otherwise_and_go_without_the_option(
    facts, first, second, changed
):
    facts["shared_subnets"] = [{"network": "10.9.0.0/24", "rails": [{**SHARED, **first}, {**BESIDE, **second}]}]
    on = {**wanted(), "source_routes": True}
    made = plan(facts, on)
    assert [change.object for change in made.changes if change.object.startswith("NIC")] == changed
    assert len(made.not_verified) == [first["leaves_by"], second["leaves_by"]].count(None)
    facts["owned_files"] = owned(made)
    link, target = enabled(paths.OWN_ROUTES_UNIT)
    assert (link, "link", "", target) in made.changes
    assert [change.object for change in plan(facts, on).changes] == changed
    assert [(change.object, change.action) for change in plan(facts, wanted()).changes] == [
        *((link, "unlink"), (paths.OWN_ROUTES_UNIT, "remove"), (paths.OWN_LINKS_SCRIPT, "remove"))
    ]
    facts["shared_subnets"][0]["rails"][0]["management"] = "the default route"
    assert [finding.object for finding in plan(facts, on).findings] == ["NIC eth2 (rail 1)"]


UFW = """### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
-A ufw-user-input -p tcp --dport 22 -j ACCEPT

### tuple ### allow tcp 2379:2380 0.0.0.0/0 any 10.0.0.8/30 in comment=6770
### tuple ### allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### route:allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### allow vrrp any 0.0.0.0/0 any 10.0.0.2 in comment=6770
### tuple ### deny tcp 6443 0.0.0.0/0 any 10.0.0.9 in
### tuple ### allow udp 8472 ::/0 any fd00::2 in
"""
PUBLIC = """<zone><service name="ssh"/><source address="10.42.0.0/16"/>
<rule family="ipv4"><source address="10.0.0.2"/><port port="6443" protocol="tcp"/><accept/></rule>
<rule family="ipv4"><source address="10.0.0.3"/><protocol value="vrrp"/><accept/></rule>
<rule family="ipv4"><source address="10.0.0.4"/><port port="6443" protocol="tcp"/><drop/></rule></zone>"""


def test_rules_of_ufw():
    assert firewall.ufw_rules(UFW) == [
        ["port", "0.0.0.0/0", "tcp", "22", ""],
        ["port", "10.0.0.8/30", "tcp", "2379-2380", ""],
        ["trust", "10.42.0.0/16", "", "", ""],
        ["route", "10.42.0.0/16", "", "", ""],
        ["protocol", "10.0.0.2", "vrrp", "", ""],
        ["port", "fd00::2", "udp", "8472", ""],
    ]


def test_rules_and_zones_of_firewalld():
    assert firewall.firewalld_rules("public", PUBLIC) == [
        ["trust", "10.42.0.0/16", "", "", "public"],
        ["port", "10.0.0.2", "tcp", "6443", "public"],
        ["protocol", "10.0.0.3", "vrrp", "", "public"],
    ]
    assert firewall.firewalld_rules("public", "<zone>") == []
    assert firewall.zones("public (default)\n  interfaces: eth0 eth1\ntrusted\n  sources: 10.42.0.0/16\n") == {
        "public": {"interfaces": ["eth0", "eth1"], "sources": []},
        "trusted": {"interfaces": [], "sources": ["10.42.0.0/16"]},
    }


@pytest.mark.parametrize(
    ("said", "names"), [("ufw 0.36.2\n", True), ("ufw 0.36.1", False), ("ufw 0.35", False), ("", False)]
)
def test_which_ufw_names_vrrp(said, names):
    assert firewall._names_vrrp(said) is names


@pytest.mark.parametrize(
    ("programs", "running", "enabled", "tool"),
    [
        ({"ufw", "firewall-cmd", "nft"}, True, True, "firewalld"),
        ({"ufw", "firewall-cmd", "nft"}, False, True, "ufw"),
        ({"ufw", "nft"}, False, False, "nftables"),
        (set(), False, True, None),
    ],
)
def test_the_tool_is_the_one_that_runs(monkeypatch, programs, running, enabled, tool):
    class Live(Tree):
        live = True

        def read(self, path):
            return f"ENABLED={'yes' if enabled else 'no'}" if path == "/etc/ufw/ufw.conf" else None

    monkeypatch.setattr(firewall.programs, "found", lambda name, *_: name if name in programs else None)
    assert firewall._tool(Live("/"), lambda argv: (0 if running else 252, "", "")) == tool


@pytest.mark.parametrize(("text", "count"), [(json.dumps({"rules": [{"kind": "port"}, "x"]}), 1), ("[]", 0), ("{", 0)])
def test_a_record_that_is_not_ours_proves_nothing(tmp_path, put, text, count):
    put(firewall.RECORD, text)
    put("proc/net/tcp", "head\n 0: 00000000:192B 00000000:0000 0A x\n 1: 0100007F:0016 0:0 01 x\n")
    put("proc/net/udp", "head\n 0: 00000000:2118 00000000:0000 07 x\n")
    put(".seams.json", '{"addresses": {}}')
    found = firewall.info(Tree(str(tmp_path)), None)
    assert (len(found["recorded"]), found["tool"]) == (count, None)
    assert found["bound"] == {"tcp": [6443], "udp": [8472]}


def free(kind):
    with socket.socket(socket.AF_INET, kind) as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def port(protocol):
    return {"protocol": protocol, "address": "127.0.0.1", "port": free(reach._STREAM[protocol])}


def states(*questions):
    return [one["state"] for one in reach.ask(list(questions), 1.5)]


@pytest.fixture
def listening():
    """A function that listens for this long; the rest is stopped at the end."""
    made = []

    def listen(ports, seconds=30):
        made.append(reach.listen(ports, seconds))
        return made[-1]

    yield listen
    for one in made:
        if one["listener"]:
            reach.stop(one["listener"])


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_port_answers_while_somebody_listens(listening, protocol):
    one = port(protocol)
    assert states(one) == ["refused"]
    found = listening([one])
    assert found["deaf"] == {}
    assert states(one, {**one, "id": "kept"}) == ["answered"] * 2
    assert reach.ask([{**one, "id": "kept"}], 1)[0]["id"] == "kept"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:  # the listener ends it first: TIME_WAIT is its own
        if protocol == "tcp":
            asked.connect((one["address"], one["port"]))
            assert asked.recv(1) == b""
    reach.stop(found["listener"])
    assert wait_for(lambda: states(one) == ["refused"])
    assert listening([one])["listener"], "the next probe, while connections of the last one hold the port"
    assert states(one) == ["answered"]


def wait_for(done):
    until = time.monotonic() + 5
    while not done() and time.monotonic() < until:
        time.sleep(0.01)
    return done()


def test_a_listener_ends_at_its_deadline(listening):
    pid = listening([port("tcp")], 0.3)["listener"]["pid"]
    assert wait_for(lambda: not os.path.exists(f"/proc/{pid}") or programs.born(pid) is None)


def test_no_other_process_is_ended():
    reach.stop({"pid": os.getpid(), "born": "1"})


def test_a_port_in_use_answers_by_itself_and_an_address_of_another_node_is_named(listening):
    with socket.create_server(("127.0.0.1", 0)) as used:
        taken = {"protocol": "tcp", "address": "127.0.0.1", "port": used.getsockname()[1]}
        found = listening([taken, {**taken, "address": "192.0.2.1", "port": 1}])
        assert found["listener"] is None
        assert list(found["deaf"]) == ["1/tcp"]
        assert states(taken) == ["answered"]


def test_a_port_that_says_nothing_is_silent_and_what_it_says_must_be_what_was_sent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        one = {"protocol": "udp", "address": "127.0.0.1", "port": mute.getsockname()[1]}
        (answer,) = reach.ask([one], 0.3)
        assert (answer["state"], bool(answer["why"])) == ("silent", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="not verified: a raw socket takes root")
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"])
def test_an_address_echoes(address):
    one = {"protocol": "ping", "address": address, "port": 8472}
    assert states(one, one) == ["answered"] * 2


def test_an_address_without_a_route_is_an_answer_too(monkeypatch):
    assert states({"protocol": "tcp", "address": "255.255.255.255", "port": 1}) == ["silent"]
