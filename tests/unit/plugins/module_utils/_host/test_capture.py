"""A capture gives the facts back, and nothing that identifies the machine."""

from __future__ import annotations

import base64
import ipaddress
import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.capture import capture
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files as report_files
from ansible_collections.gpufabric.rdma.tests.tools import tree

NEVER_SECRET = ("127.0.0.1", "0.0.0.0", "7f000001", "7f00:0001")


def again(fixture, target):
    path = target / "captured.yml"
    path.write_text(report_files.capture_text(fixture))
    return gather(Tree(str(tree.lay_out(tree.load(path), target / "again"))), software_hcas=True)


def originals(fixture):
    """Every notation of every MAC, GUID, address and id of a node, found without the code under test."""
    addresses = fixture["seams"].get("addresses") or {}
    found = {ipaddress.ip_interface(address).ip for own in addresses.values() for address in own}
    found = {
        word for ip in found for word in (str(ip), ip.packed.hex(), f"{ip.packed.hex()[:4]}:{ip.packed.hex()[4:]}")
    }
    for path, text in fixture["files"].items():
        found.update(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text))
        if path.endswith("/address"):
            octets = text.split(":")[-8:]
            found.update((text, "".join(octets)))
            if len(octets) == 6:
                eui64 = [f"{int(octets[0], 16) ^ 2:02x}", *octets[1:3], "ff", "fe", *octets[3:]]
                found.update(("".join(eui64), ":".join(a + b for a, b in zip(eui64[::2], eui64[1::2]))))
        if path.endswith(("/node_guid", "/sys_image_guid")):
            found.update((text, text.replace(":", "")))
        if path == "/proc/net/if_inet6":
            digits = [line.split()[0] for line in text.splitlines()]
            found.update((*digits, *(str(ipaddress.IPv6Address(int(word, 16))) for word in digits)))
        if path == "/proc/net/route":
            found.update(word for line in text.splitlines()[1:] for word in line.split()[1:3])
    trivial = re.compile(r"[0:]*|ff[:f]*|.*00000000$")
    return {text for text in found if not trivial.fullmatch(text) and text not in NEVER_SECRET}


@pytest.mark.parametrize("name", tree.names())
def test_the_same_facts_come_back_scrubbed_and_no_original_survives(name, tmp_path):
    fixture = tree.load(name)
    captured, facts, scrubber = capture(str(tree.lay_out(fixture, tmp_path / "node")), name)
    assert again(captured, tmp_path) == scrubber.apply(facts)
    if fixture["provenance"]["kind"] == "captured":
        return  # it holds replacements already, and a second capture may choose the same ones
    text = everything(captured).lower()
    wanted = [word.lower() for word in originals(fixture)]
    assert len(wanted) > 5
    assert [word for word in wanted if re.search(rf"(?<![0-9a-f]){re.escape(word)}(?![0-9a-f])", text)] == []


def test_what_proc_links_to_its_reader_is_scrubbed_and_has_no_process_number(tmp_path):
    root = tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
    (root / "proc/4711").mkdir()
    (root / "proc/net").rename(root / "proc/4711/net")
    (root / "proc/self").symlink_to("4711")
    (root / "proc/net").symlink_to("self/net")
    found = tree.expand(capture(str(root), "live")[0])
    assert "C63364FD" not in str(found).upper().replace(":", "")
    assert found["files"]["/proc/net/route"].splitlines()[1].split()[2] != "FE6533C6"
    assert not any("4711" in path for section in ("files", "links") for path in found[section])
    assert "/proc/self" not in found["links"]


# Secrets of many kinds, planted in every file that people write and a capture reads. {t} and {n} tell them apart.
KINDS = r"""
inst.ks=http://user:pw{t}@boot.corp{t}.example/ks.cfg
netroot=iscsi:chap{t}:pw{t}pw{t}@10.200.{n}.9::3260::iqn.2026-01.corp{t}:disk
BOOTIF=01-a0-88-c2-ee-{n:02x}-77
ip=[2001:db8:77:{n:x}::7]::[2001:db8:77:{n:x}::1]:64:host{t}:eth0:none
ip=10.201.{n}.7::10.201.{n}.1:255.255.255.0:host{t}:eth0:none
root=PARTUUID=0123abcd-0000-4000-8000-{n:012x}
root=/dev/mapper/vg_host{t}-root
systemd.machine_id=5e{n:030x}
systemd.hostname=host{t}.corp.example
K10{n:032x}::server:pw{t}
-----BEGIN PRIVATE KEY----- key{t} -----END
https_proxy=http://pw{t}@proxy{t}.corp:3128
jane.{t}@corp.example
rd.luks.uuid=luks-0123abce-0000-4000-8000-{n:012x}
acme.secret=pw{t}
""".strip().splitlines()
# Where someone may have written them: the file, and the lines around a secret.
PLACES = {
    "/proc/cmdline": "{s}",
    "/etc/modprobe.d/site.conf": "# {s}\noptions acme {s}\noptions ib_core {s} netns_mode={s}\nsoftdep {s}\n"
    "install mlx5_ib /bin/x {s}\ninstall mlx5_ib /sbin/modprobe --ignore-install mlx5_ib {s}\n"
    "blacklist mlx5_ib {s}\noptions mlx5_core \\\n  {s}",
    "/etc/modules-load.d/site.conf": "# {s}\nmlx5_ib {s}\n{s}",
    "/etc/modules": "{s}",
    "/etc/rdma/modules/site.conf": "# {s}\n{s}",
    "/etc/systemd/system/k3s.service": "[Unit]\nDescription={s}\n[Service]\nEnvironment={s}\nEnvironment=A=\\\n  {s}\n"
    "ExecStart=/usr/local/bin/k3s server {s}\nExecStartPre=/bin/x {s}\nLimitMEMLOCK=64 {s}\n# {s}",
    "/etc/systemd/system/k3s.service.d/site.conf": "[Service]\n{s}\nEnvironment={s}\nSetCredential=a:{s}",
    "/etc/systemd/system.conf": "[Manager]\nDefaultEnvironment={s}\n# {s}",
    "/etc/infiniband/openib.conf": "ONBOOT=yes\nNOTE={s}\n# {s}",
    "/etc/os-release": "ID=debian\nSITE={s}\nBUILD_URL={s}\n# {s}",
    "/var/lib/dpkg/status": "\nPackage: acme\nStatus: install ok installed\nVersion: 1\nDescription: {s}\n"
    "\nPackage: rdma-core\nStatus: install ok installed\nArchitecture: amd64\nVersion: 50.0\nMaintainer: {s}\n",
    "/proc/1/environ": "TOKEN={s}\0container=lxc\0",
}
PLANTS = [
    (path, kind.format(t=f"{place}x{number}z", n=place * 20 + number))
    for place, path in enumerate(PLACES, 1)
    for number, kind in enumerate(KINDS)
]


PARTS = r"[a-zA-Z]+\d+x\d+z\w*|jane\.\w+|10\.20[01]\.\d+\.\d|ee-[0-9a-f]{2}-77|2001:db8:77:[0-9a-f]+::\d|[0-9a-f]{32}"


def telling(secret):
    return re.findall(rf"{PARTS}|0123abc[de][-0-9a-f]+", secret)


def everything(captured):
    """What a captured file says, its binary parts too."""
    binary = (captured.get("binary") or {}).values()
    return report_files.capture_text(captured) + "".join(base64.b64decode(data).decode("latin-1") for data in binary)


@pytest.mark.parametrize("name", ["gh200-cx7-roce", "exclusive-netns-foreign-file", "a100-8x-cx6"])
def test_no_secret_that_someone_wrote_into_a_file_survives(name, tmp_path):
    fixture = tree.load(name)
    for path, around in PLACES.items():
        secrets = [secret for place, secret in PLANTS if place == path]
        joint = " " if path == "/proc/cmdline" else "\n"
        planted = joint.join(around.replace("{s}", secret) for secret in secrets)
        fixture["files"][path] = joint.join(text for text in (fixture["files"].get(path), planted) if text)
    fixture["links"].pop("/etc/os-release", None)
    root = tree.lay_out(fixture, tmp_path / "node")
    captured, facts, scrubber = capture(str(root), name)
    text = str(tree.expand(captured)) + everything(captured)
    assert all(telling(secret) for _path, secret in PLANTS)
    assert [(path, part) for path, kind in PLANTS for part in telling(kind) if part.lower() in text.lower()] == []
    assert again(captured, tmp_path) == scrubber.apply(facts)


def test_names_and_addresses_of_namespaces_units_pods_and_the_machine_are_replaced_everywhere(tmp_path):
    fixture = tree.load("exclusive-netns-foreign-file")
    files = fixture["files"]
    files["/proc/sys/kernel/hostname"] = "acme-gpu-17.corp.example"
    files["/proc/1/mountinfo"] += "\n98 25 0:4 net:[4026533333] /run/netns/acme-customer rw - nsfs nsfs rw"
    files["/proc/2301/cgroup"] = "0::/acme.slice/acme-billing.service"
    pod = "kubepods-pod3f9c1b7e_5d1a_4c7e_8a55_aabbccddeeff.slice"
    files["/proc/2344/cgroup"] = f"0::/kubepods.slice/{pod}/cri-containerd-{'ab12' * 16}.scope"
    for host in ("babbeefffea75cd4", "0000000000000053"):
        files["/proc/net/if_inet6"] += f"\n20010db8beef0001{host} 02 40 00 00 eno1"
    addresses = {"eno1": ["203.0.113.66/26", "10.20.30.40/8"], "enp59s0np0": ["10.18.0.1/24", "10.20.99.1/24"]}
    fixture["seams"]["addresses"] |= addresses
    node_desc = next(path for path in files if path.endswith("/node_guid")).replace("node_guid", "node_desc")
    files[node_desc] = "acme-gpu-17 HCA-1"
    captured, facts, scrubber = capture(str(tree.lay_out(fixture, tmp_path / "node")), "a")
    secrets = ("acme", "3f9c1b7e", "ab12ab12", "beef", "203.0.113.66", "10.20.30.40", "10.18.0.1", "0a12")
    assert [secret for secret in secrets if secret in report_files.capture_text(captured)] == []
    found = again(captured, tmp_path)
    assert found == scrubber.apply(facts)
    netdev, port = found["hcas"][0]["netdevs"][0], found["hcas"][0]["ports"][0]
    mapped = ipaddress.IPv6Address(port["gids"][2]["gid"]).ipv4_mapped
    assert mapped in [ipaddress.ip_interface(address).ip for address in netdev["addresses"]], "relations survive"
    namespaces = found["subsystem"]["namespaces"]
    units = [owner["unit"] for namespace in namespaces for owner in namespace["owners"]]
    assert any(re.fullmatch(r"unit-\d+\.service", unit or "") for unit in units)
    assert any((namespace["name"] or "").startswith("/run/netns/ns-") for namespace in namespaces)
