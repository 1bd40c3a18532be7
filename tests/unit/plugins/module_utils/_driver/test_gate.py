"""The change gate as a table: overlays of a node; each row goes from files to facts, risks and a decision."""

import json
from typing import NamedTuple

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.gate import decide
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.risk import devlink, read, routes_lost
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures
from ansible_collections.gpufabric.rdma.tests.tools.overlays import KERNEL, NEWER, STALE, Over, file, newer_kernel

NIC, DEVICE = "enp59s0np0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
NET = f"{DEVICE}/net/{NIC}"
ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
INSTALL = {"change": "doca 3.2.1 is installed"}
ORDER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def module(name, refcount, *holds):
    return Over(
        {f"/sys/module/{name}/refcnt": str(refcount)},
        {f"/sys/module/{other}/holders/{name}": f"../../{name}" for other in holds},
    )


def default_route(netdev, more=""):
    routes = f"{ROUTES}{netdev}\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
    return file("/proc/net/route", f"{routes}\n{more}")


def ssh(netdev):
    """A session from 198.18.0.9 whose route leaves by netdev."""
    session = "   0: 010012C6:0016 090012C6:C350 01 00000000:00000000 02:00000000 00000000     0        0 4711 2 0"
    server = Over({"/proc/net/tcp": ORDER + session, "/proc/800/comm": "sshd"}, {"/proc/800/fd/4": "socket:[4711]"})
    return server + default_route("eno1", f"{netdev}\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0")


def process(pid, command, device, cgroup="/system.slice/slurmd.service"):
    return Over(
        {f"/proc/{pid}/comm": command, f"/proc/{pid}/cgroup": f"0::{cgroup}"},
        {f"/proc/{pid}/fd/7": f"/dev/infiniband/{device}"},
    )


POD = "1b2c3d4e-0000-4000-8000-00000000cafe"


def pod(name="train-0", namespace="jobs", container="main", uid=POD):
    return Over(
        {
            f"/sys/fs/cgroup/kubepods/burstable/pod{uid}/cgroup.procs": "",
            f"/var/log/pods/{namespace}_{name}_{uid}/{container}/0.log": "",
        }
    )


def mounted(mount, source, kind="ext4", options="rw", number="259:5"):
    return file(
        "/proc/1/mountinfo",
        "25 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        f"60 25 {number} / {mount} rw shared:9 - {kind} {source} {options}",
    )


PINNED = file("/run/systemd/network/10-fabric.link", f"[Match]\nMACAddress=a0:88:c2:b0:00:00\n[Link]\nName={NIC}")
NETPLAN = file("/etc/netplan/50-fabric.yaml", f"network:\n  ethernets:\n    {NIC}:\n      mtu: 9000\n")
EFI = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SECURE = Over(binary={EFI: "BgAAAAE="})  # attributes 6, value 1
LOOSE = Over(binary={EFI: "BgAAAAA="})
KEY = Over(binary={"/var/lib/dkms/mok.pub": "MIIDKmZha2UgY2VydA=="})
SITE_KEY = Over({"/etc/dkms/framework.conf.d/site.conf": 'mok_certificate="/etc/pki/site.der"'})
SITE_KEY += Over(binary={"/etc/pki/site.der": KEY.binary["/var/lib/dkms/mok.pub"]})
ENROLLED = Over(binary={"/sys/firmware/efi/mok-variables/MokListRT": "AAAAAAAwggMqZmFrZSBjZXJ0AA=="})
MACS = {f"{DEVICE}/sriov/{number}/mac": f"02:00:00:00:00:0{number + 1}" for number in range(2)}
VFS = Over({f"{DEVICE}/sriov_numvfs": "2", f"{DEVICE}/sriov/0/node": "00:11:22:33:44:55:66:77", **MACS})
BONDED = Over(links={f"{NET}/upper_bond0": "../bond0", f"{NET}/master": "../bond0"})


class Row(NamedTuple):
    name: str
    verdict: str
    codes: str = ""
    over: Over = Over()
    wanted: dict = {}
    says: str = ""  # must occur in the reasons, steps or notes
    fixture: str = STALE
    consent: str = ""


RELOAD = {"reload_allowed": True}
MANAGED, MAC = "name-change management-path", "a0:88:c2:b0:00:00"
NM, NETWORKD = "/etc/NetworkManager/system-connections/f.nmconnection", "/etc/systemd/network/f.network"
MATCHED = f"network:\n  ethernets:\n    {NIC}:\n      match:\n        macaddress: {MAC}\n      dhcp4: true"
RULE = "/etc/udev/rules.d/70-f.rules"
PLAN = "/etc/netplan/50-f.yaml"
LINK, BY_SLOT = "/etc/systemd/network/10-f.link", f"[Match]\nPath=pci-0000:3b:00.0\n[Link]\nName={NIC}"
MEMBER = Over({f"{NET}/address": "02:00:00:00:00:99", f"{NET}/bonding_slave/perm_hwaddr": MAC})
BOND = f"{MATCHED}\n  bonds:\n    bond0:\n      interfaces:\n      - {NIC}"
# (who configures the interface, the file, its text, whether it does so by name)
CONFIGURED = [
    ("netplan", PLAN, f"network:\n  ethernets:\n    {NIC}:\n      dhcp4: true", True),
    ("netplan by MAC", PLAN, MATCHED, False),
    ("netplan by MAC and driver", PLAN, MATCHED.replace("match:", "match: # card\n        driver: mlx5_core"), False),
    ("netplan by name, with another MAC", PLAN, MATCHED.replace("  mac", f"  name: {NIC}\n      mac"), True),
    ("netplan, a pattern of port names", PLAN, "network:\n  ethernets:\n    a:\n      match: {name: 'e*np0'}", True),
    ("NetworkManager, an old file", NM.rpartition(".")[0], f"[connection]\ninterface-name={NIC}", True),
    ("netplan refers to a block by MAC", PLAN, BOND, False),
    ("netplan sets a MAC", PLAN, f"network:\n ethernets:\n  {NIC}:\n   macaddress: {MAC}", True),
    ("NetworkManager", NM, f"[connection]\nid={NIC}\ninterface-name={NIC}", True),
    ("NetworkManager by MAC", NM, f"[connection]\nid={NIC}\n[ethernet]\nmac-address={MAC}", False),
    ("ifcfg", f"/etc/sysconfig/network-scripts/ifcfg-{NIC}", f"DEVICE={NIC}", True),
    ("ifcfg by its own name", f"/etc/sysconfig/network/ifcfg-{NIC}", "BOOTPROTO=static", True),
    ("networkd", NETWORKD, f"[Match]\nName={NIC}", True),
    ("networkd, a pattern that fits any name", NETWORKD, "[Match]\nName=en*", False),
    ("networkd by MAC", NETWORKD, f"[Match]\nMACAddress={MAC}", False),
    ("ifupdown", "/etc/network/interfaces", f"iface {NIC} inet dhcp", True),
    ("dracut", "/proc/cmdline", f"root=/dev/nfs ip={NIC}:dhcp", True),
    ("dracut by MAC", "/proc/cmdline", f"ifname={NIC}:{MAC} ip={NIC}:dhcp", False),
    ("ifupdown, a comment", "/etc/network/interfaces.d/x", f"# iface {NIC} inet dhcp", False),
]
BY_NAME, BY_MAC = ("refuse", MANAGED), ("reboot", "management-path")
NAMED = [
    Row(name, *BY_NAME, default_route(NIC) + file(path, text), says=path, consent="driver_rename_allowed")
    if named
    else Row(name, *BY_MAC, default_route(NIC) + file(path, text))
    for name, path, text, named in CONFIGURED
]
NVME, DATA = module("nvme", 1, "mlx_compat"), "/dev/mapper/vg-data"
LVM = mounted("/data", DATA, number="253:0")
LVM += Over(links={DATA: "../dm-0", "/sys/class/block/dm-0/slaves/nvme1n1": "../../nvme1n1"})
SWAP = file("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 1 0 -2")
NVME_RDMA = module("nvme_rdma", 1, "ib_core", "rdma_cm") + mounted("/data", "/dev/nvme3n1")
NVME_RDMA += file("/sys/class/nvme/nvme3/transport", "rdma")
GRUB = file("/boot/grub/grub.cfg", f"menuentry 'x' {{\nlinux /vmlinuz-{KERNEL}\n}}")
THROUGH = ("reboot", "management-path storage")
NFS_RDMA = mounted("/scratch", "10.0.0.1:/s", "nfs4", "rw,proto=rdma,addr=10.0.0.1")
LUSTRE = module("ko2iblnd", 2, "rdma_cm") + mounted("/l", "1@o2ib:/l", "lustre")


def remote(server):
    """Data on a server that is reached by TCP."""
    rbd, lun = "/sys/bus/rbd/devices/0/config_info", "/sys/devices/host5/session1/target5:0:0"
    iscsi = Over(links={"/sys/class/block/sda/device": f"../../../..{lun}"}, files={f"{lun}/vendor": "x"})
    iscsi += file("/sys/class/iscsi_connection/connection1:0/address", server)
    nvme = file("/sys/class/nvme/nvme3/transport", "tcp") + file("/sys/class/nvme/nvme3/address", f"traddr={server}")
    return {
        "NFS": mounted("/m", "n:/h", "nfs4", f"rw,proto=tcp,addr={server}"),
        "CephFS": mounted("/m", "admin@b3ac-057.fs=/", "ceph", f"rw,mon_addr={server}:6789/1::2"),
        "Lustre": mounted("/m", f"{server}@tcp:/scratch", "lustre"),
        "GlusterFS": mounted("/m", f"{server}:/volume", "fuse.glusterfs"),
        "a Ceph block device": mounted("/m", "/dev/rbd0") + file(rbd, f"{server}:6789 name=admin rbd vol -"),
        "iSCSI": mounted("/m", "/dev/sda") + iscsi,
        "NVMe over TCP": mounted("/m", "/dev/nvme3n1") + nvme,
    }


REPRESENTOR = {f"{DEVICE}/net/eth9/phys_port_name": "pf0vf1"}
SWITCHDEV = VFS + Over(REPRESENTOR, {"/sys/class/net/eth9": f"../..{DEVICE[4:]}/net/eth9"})
EMPTY = file(f"/sys/fs/cgroup/kubepods/burstable/pod{POD}/cgroup.events", "populated 0\nfrozen 0")
OF_A_POD = pod() + process(70, "python3", "uverbs0", f"/kubepods/burstable/pod{POD}/abc")
REBOOT, TO_REBOOT = ("reboot", ""), {"activation": "reboot"}
DRAIN = RELOAD | {"drain_allowed": True}
NETWORK_OPERATOR = pod("mofed-ubuntu22.04-x", "nvidia-network-operator", "mofed-container")
GPU_OPERATOR = pod("nvidia-driver-daemonset-a", "gpu-operator", "nvidia-peermem-ctr")
BLACKLIST = "/etc/modprobe.d/blacklist-ofed-modules.conf"
IDLE = "two-cards-cx6dx"
LOCKDOWN = file("/sys/kernel/security/lockdown", "none [integrity] confidentiality")
UNLOCKED = file("/sys/kernel/security/lockdown", "[none] integrity confidentiality")
LACKING = newer_kernel("kernel/mlx5_core.ko") + process(5, "job", "uverbs0")
ROWS = [
    *NAMED,
    Row("by name, and no management", "reload", over=NETPLAN, wanted=RELOAD),
    Row("by name, and allowed", *BY_MAC, ssh(NIC) + NETPLAN, {"rename_allowed": True}),
    Row("by name, and denied", *BY_NAME, ssh(NIC) + NETPLAN, {"rename_allowed": False}),
    Row("a .link file ties the name to the slot", *BY_MAC, ssh(NIC) + NETPLAN + file(LINK, BY_SLOT)),
    Row("a udev rule by MAC", *BY_MAC, ssh(NIC) + NETPLAN + file(RULE, f'ATTR{{address}}=="{MAC}", NAME="{NIC}"')),
    Row("one that only mentions it", *BY_NAME, ssh(NIC) + NETPLAN + file(RULE, f'x=="{MAC}", RUN+="ip l s {NIC}"')),
    Row("one that is switched off", *BY_NAME, ssh(NIC) + NETPLAN + file(LINK, f"#{MAC}\n#Name={NIC}")),
    Row("one ties a member of a bond to its own MAC", *BY_MAC, ssh(NIC) + NETPLAN + PINNED + MEMBER),
    # Nothing to do.
    Row("inbox, and memory agrees", "nothing", fixture="gh200-cx7-roce", says="same driver: inbox"),
    Row("DOCA, and memory agrees", "nothing", fixture="h100-8x-cx7-ib", says="same driver: doca"),
    Row("agrees, with pods and jobs running", "nothing", fixture=IDLE, over=pod() + process(9, "a", "umad0")),
    Row("an HCA of another maker", "nothing", fixture="irdma"),
    Row("memory agrees although Secure Boot is on", "nothing", fixture=IDLE, over=SECURE),
    # Reload.
    Row("only memory is old", "reload", wanted=RELOAD, says="save MTU, state, addresses and routes of enp59s0np0"),
    Row("the same, and nobody said yes to a reload", "reload", consent="driver_reload_allowed"),
    Row("to be installed on an idle inbox node", "reload", fixture=IDLE, wanted=INSTALL | RELOAD),
    Row("default route elsewhere", "reload", over=default_route("eno1"), wanted=RELOAD),
    Row("SSH comes in elsewhere", "reload", over=ssh("eno1"), wanted=RELOAD),
    Row("idle peermem", "reload", "", module("nvidia_peermem", 0, "ib_core"), RELOAD, "unload nvidia_"),
    Row("virtual functions that sysfs shows", "reload", "", VFS, RELOAD, "2 virtual functions of mlx5_0"),
    Row("local NVMe without mlx_compat", "reload", over=mounted("/data", "/dev/nvme1n1"), wanted=RELOAD),
    *(Row(f"{name}, elsewhere", "reload", "", over, RELOAD) for name, over in remote("192.0.2.7").items()),
    Row("pods, and draining is allowed", "reload", over=pod(), wanted=DRAIN, says="cordon and drain"),
    Row("cgroups of pods that a killed kubelet has left", "reload", over=pod() + EMPTY, wanted=RELOAD),
    Row("a pod's process, and draining is allowed", "reload", over=OF_A_POD, wanted=DRAIN, says="uncordon"),
    Row("Secure Boot off in the firmware", "reload", over=LOOSE, wanted=RELOAD),
    Row("Secure Boot that shim does not enforce", "reload", over=SECURE + UNLOCKED, wanted=RELOAD),
    Row("Secure Boot with an enrolled DKMS key", "reload", over=SECURE + KEY + ENROLLED, wanted=RELOAD),
    Row("Secure Boot with an enrolled key of the site", "reload", over=SECURE + SITE_KEY + ENROLLED, wanted=RELOAD),
    Row("Secure Boot with signed modules", "reload", over=SECURE, wanted=RELOAD | {"signed": True}),
    Row("the next kernel has the driver too", *REBOOT, newer_kernel("updates/dkms/mlx5_core.ko"), TO_REBOOT),
    Row("and it is from Ubuntu", *REBOOT, newer_kernel("kernel/doca-ofed-26.01/mlx5_core.ko"), TO_REBOOT),
    Row("but the boot menu has this one", *REBOOT, newer_kernel("kernel/mlx5_core.ko") + GRUB, TO_REBOOT),
    Row("the other kernel is older", *REBOOT, newer_kernel("kernel/mlx5_core.ko", "6.8.0-generic"), TO_REBOOT),
    # Reboot: a reload is ruled out.
    Row("default route over the HCA", *BY_MAC, default_route(NIC), says="the default route"),
    Row("SSH session over the HCA", *BY_MAC, ssh(NIC), says="SSH session from 198.18.0.9"),
    Row("over a bond", "reboot", "management-path upper-device", default_route("bond0"), INSTALL, "bond0", "bond"),
    Row("interface in a bond", "reboot", "upper-device", BONDED, says="bond0 is on top of it"),
    Row("a pod's macvlan", "reboot", "upper-device", Over(links={f"{NET}/upper_mac0": "../mac0"}), says="macvlans"),
    Row("root on such NVMe", "reboot", "storage third-party", module("nvme_core", 3, "mlx_compat") + NVME),
    Row("LVM on such NVMe", "reboot", "storage third-party", NVME + LVM, says=f"/data on {DATA}"),
    Row("swap on such NVMe", "reboot", "storage third-party", NVME + SWAP, says="swap on /dev/nvme0n1p3"),
    Row("a disk over NVMe/RDMA", "reboot", "storage consumer", NVME_RDMA),
    Row("NFS over RDMA", "reboot", "storage", NFS_RDMA),
    *(Row(f"{name}, through the HCA", *THROUGH, over + ssh(NIC)) for name, over in remote("198.18.0.7").items()),
    Row("Lustre over o2ib", "reboot", "storage consumer", LUSTRE),
    Row("iSER", "reboot", "consumer", module("ib_iser", 0, "ib_core", "rdma_cm"), says="modprobe -r ib_iser"),
    Row("a third party's module on ib_core", "reboot", "third-party", module("gds_magic", 0, "ib_core")),
    Row("peermem in use", "reboot", "peermem-in-use", module("nvidia_peermem", 4, "ib_core")),
    Row("neither a module nor a process", "reboot", "unknown-user", file("/sys/module/rdma_cm/refcnt", "5")),
    Row("a job", "reboot", "process", process(4242, "python3", "uverbs0"), says="slurmd.service"),
    Row("in a login", "reboot", "process", process(7, "ib_read_bw", "uverbs0", "/session-5.scope"), says="stop it and"),
    Row("the subnet manager", "reboot", "process", process(99, "opensm", "umad0", "/system.slice/opensm.service")),
    Row("VFs set by netlink", "reboot", "vf-settings vf-passed-through", wanted=INSTALL, fixture="vfs"),
    Row("switchdev mode with representors", "reboot", "switchdev", SWITCHDEV, says="eth9"),
    Row("a reload is denied", "reboot", "reload-denied", wanted={"reload_allowed": False}),
    # Refuse.
    Row("a reload is demanded, and SSH over it", "refuse", "management-path", ssh(NIC), {"activation": "reload"}),
    Row("in a container", "refuse", "container", file("/run/systemd/container", "systemd-nspawn"), INSTALL),
    Row("pods, and nobody said yes to a drain", "refuse", "pods", pod(), consent="driver_drain_allowed"),
    Row("pods, and draining is denied", "refuse", "pods", pod(), {"drain_allowed": False}, "jobs/train-0"),
    Row("Secure Boot, no key", "refuse", "secure-boot", SECURE, INSTALL, "mokutil --import"),
    Row("a key that is not enrolled", "refuse", "secure-boot", SECURE + KEY, INSTALL, "mok.pub is not enrolled"),
    Row("locked-down kernel", "refuse", "secure-boot", LOCKDOWN, says="integrity"),
    Row("signatures enforced", "refuse", "secure-boot", file("/sys/module/module/parameters/sig_enforce", "Y")),
    Row("Network Operator", "refuse", "cluster-operator pods", NETWORK_OPERATOR, INSTALL, "NicClusterPolicy"),
    Row("its directory is mounted", "refuse", "cluster-operator", file("/run/mellanox/drivers/usr/x"), INSTALL),
    Row("its blacklist", "refuse", "operator-blacklist", file(BLACKLIST, "blacklist mlx5_core"), INSTALL, BLACKLIST),
    Row("GPU Operator with peermem", "refuse", "cluster-operator pods", GPU_OPERATOR, INSTALL, "ClusterPolicy"),
    Row("blacklisted by hand", "refuse", "blocked", file("/etc/modprobe.d/no.conf", "blacklist mlx5_core")),
    Row("the next kernel lacks it", "refuse", "next-kernel process", LACKING, says=f"autoinstall -k {NEWER}"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_gate_answers(row, tmp_path):
    fixtures.lay_out(row.over.on(fixtures.load(row.fixture)), tmp_path)
    tree = Tree(str(tmp_path))
    facts = gather(tree, Seams.of(tree))
    decision = decide(facts, read(tree, facts), row.wanted)
    text = " ".join([decision.summary, *map(str, decision.findings), *decision.steps, *decision.notes])
    assert decision.verdict == row.verdict, text
    assert {finding.id for finding in decision.findings} == set(row.codes.split()), text
    assert row.says in text
    assert not row.consent or decision.consents == [row.consent]
    assert all(map(all, decision.findings))


AT, CUT = "pci/0000:3b:00.0", '{"param": '


def values(**named):
    """`devlink -j dev param show`."""
    keys = ("cmode", "value", "default")
    rows = [{"name": key, "values": [dict(zip(keys, value))]} for key, value in named.items()]
    return {"param": {AT: rows}}


@pytest.mark.parametrize(("parameters", "mode", "verdict", "says"), [
    (values(enable_roce=("driverinit", True), max_macs=("driverinit", 64)), "legacy", "reload", ""),
    (values(enable_roce=("driverinit", False)), "legacy", "reboot", "enable_roce false"),
    (values(esw_multiport=("runtime", True)), "legacy", "reboot", "esw_multiport true"),
    (values(max_macs=("driverinit", 64, 128)), "legacy", "reboot", "max_macs 64"),
    (values(enable_roce=("driverinit", False, False)), "legacy", "reload", ""),
    (values(of_tomorrow=("runtime", 3)), "legacy", "reboot", "of_tomorrow 3"),
    (values(enable_roce=("permanent", False)), "legacy", "reload", ""),
    ({"param": {}}, "switchdev", "reboot", "eswitch mode switchdev"),
    ({"param": {}}, None, "reload", ""),  # the card has no embedded switch
    (CUT, "legacy", "reload", "Not verified: the mode of embedded switches"),
    (None, "legacy", "reload", "Not verified: the mode of embedded switches"),
])  # fmt: skip
def test_what_only_devlink_shows_is_not_lost_by_a_reload(tmp_path, parameters, mode, verdict, says):
    def run(argv):
        told = parameters if "param" in argv else mode and {"dev": {AT: {"mode": mode}}}
        return (1, "", "no") if told is None else (0, told if told == CUT else json.dumps(told), "")

    fixtures.lay_out(fixtures.load(STALE), tmp_path)
    tree = Tree(str(tmp_path))
    facts = gather(tree, Seams.of(tree))
    decision = decide(facts, read(tree, facts, told=devlink(run, tree, facts)), RELOAD)
    text = " ".join([decision.summary, *map(str, decision.findings), *decision.notes])
    assert (decision.verdict, says in text, "Not verified: the mode" in text) == (verdict, True, says[:3] == "Not")


@pytest.mark.parametrize(("rows", "verdict", "words"), [
    ([{"dst": "198.19.0.0/16", "gateway": "198.18.0.254", "table": "101", "flags": ["onlink", "linkdown"]},
      {"dst": "198.20.0.0/16", "protocol": "static", "scope": "link", "metric": 5, "flags": []}], "reload",
     ["198.20.0.0/16 metric 5 proto static scope link", "198.19.0.0/16 via 198.18.0.254 table 101 onlink"]),
    ([{"dst": "198.18.0.0/24", "protocol": "kernel", "scope": "link", "flags": []}], "reload", []),
    ([{"dst": "198.19.0.0/16", "gateway": "198.18.0.254", "metrics": [{"mtu": 9000}], "flags": []}], "reboot", [None]),
    ([{"dst": "198.19.0.0/16", "flags": [], "dev": "eth9", "nexthops": [{"dev": "enp59s0np0"}]}], "reboot", [None]),
])  # fmt: skip
def test_routes_that_go_with_an_interface_are_restored_or_rule_out_a_reload(tmp_path, rows, verdict, words):
    rows = [{"dev": "enp59s0np0", **row} for row in rows]
    fixtures.lay_out(fixtures.load(STALE), tmp_path)
    tree = Tree(str(tmp_path))
    facts = gather(tree, Seams.of(tree))
    seen = read(tree, facts, routed=routes_lost(lambda argv: (0, json.dumps(rows if "-4" in argv else []), "")))
    kept = [route["words"] for entry in seen["netdevs"] for route in entry["routes"]]
    assert (decide(facts, seen, RELOAD).verdict, kept) == (
        verdict, [text and f"-4 route replace {text}".split() for text in words]
    )  # fmt: skip


@pytest.mark.parametrize("answer", [(1, ""), (0, "[{"), (0, '[{"dst": 1}]')])
def test_without_an_answer_of_ip_the_routes_are_not_verified(answer):
    assert routes_lost(lambda argv: (*answer, "")) is None
