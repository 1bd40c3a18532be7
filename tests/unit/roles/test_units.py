"""The systemd units that roles render: confined as far as their work allows, and each template is found by itself."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import jinja2
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import rail_links, sriov
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

ROOT = pathlib.Path(__file__).resolve().parents[3]
# keepalived's unit is not confined, like that of k3s: both run programs that are not ours.
KEEPALIVED = ROOT / "roles/k3s/templates/address.service.j2"
TEMPLATES = sorted(set(ROOT.glob("roles/*/templates/*.service.j2")) - {KEEPALIVED})
# Those that modules write, by the file that has them.
WRITTEN = {
    "plugins/module_utils/_host/rail_links.py": (paths.OWN_LINKS_UNIT, rail_links._UNIT),
    "plugins/module_utils/_host/sriov.py": (sriov.UNIT, sriov._UNIT),
}
# k3s runs every container of the node, and its unit is the vendor's; keepalived is the distribution's program, which
# opens raw sockets and starts the check script: what it needs has only been seen without confinement.
UNCONFINED = {"plugins/module_utils/_k3s/config.py"}
MOST = 3.0


def render(path):
    """With the defaults and variables as they are; what a role works out itself is in WORKED_OUT."""
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters.update({"bool": bool, "gpufabric.rdma.unit_word": str})
    known = dict(WORKED_OUT)
    for folder in (ROOT / "roles/common/defaults", path.parents[1] / "defaults", path.parents[1] / "vars"):
        known.update(yaml.safe_load((folder / "main.yml").read_text()))
    known.update(WORKED_OUT)
    text = path.read_text()
    for _depth in range(3):
        text = environment.from_string(text).render(known)
    return text


WORKED_OUT = {
    "__device_plugin_sets_links_up": False,
    "__device_plugin_command": ["/usr/bin/env", "python3", "-I"],
}


def settings(text):
    """{setting: its values, of all lines}"""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).extend(value.split())
    return found


@pytest.fixture(params=[*TEMPLATES, *map(pathlib.Path, WRITTEN)], ids=lambda path: path.name)
def unit(request, tmp_path):
    if request.param in TEMPLATES:
        path, text = tmp_path / request.param.name.removesuffix(".j2"), render(request.param)
    else:
        place, text = WRITTEN[str(request.param)]
        path = tmp_path / pathlib.Path(place).name
    path.write_text(text)
    return path


def analyze(*words):
    if not shutil.which("systemd-analyze"):
        pytest.skip("not verified: no systemd-analyze here")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("not verified: this systemd-analyze cannot judge a file (systemd 250 can)")
    return done


def test_there_are_three_and_those_of_the_modules():
    assert len(TEMPLATES) == 3
    services = {
        str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/**/*.py") if "\nExecStart=" in path.read_text()
    }
    assert services == {*WRITTEN, *UNCONFINED}


def test_it_is_confined_and_systemd_finds_nothing_wrong_with_it(unit):
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure, done.stdout + done.stderr
    assert float(exposure[1]) <= MOST, done.stdout
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    said = [line for line in done.stderr.splitlines() if unit.name in line and "is not executable" not in line]
    assert said == []


def test_it_leaves_the_machine_with_one_network_namespace(unit):
    """The kernel refuses to change the netns mode of the RDMA subsystem while there is a second one."""
    assert not set(settings(unit.read_text())) & {"PrivateNetwork", "NetworkNamespacePath", "JoinsNamespaceOf"}


# What each of them does, by what it needs of its unit.
NEEDS = {
    "guard.service": {
        "ReadWritePaths": {"/etc/cni/net.d", "/etc/cni/gpufabric-rdma.d"},  # removes 00-multus.conf, replaces the other
        "RestrictAddressFamilies": {"AF_UNIX"},  # the daemon's socket
        "CapabilityBoundingSet": {"CAP_DAC_OVERRIDE"},
    },
    "gpufabric-rdma-links.service": {
        "ProtectKernelTunables": set(),  # writes mtu and flags in /sys
        "RestrictAddressFamilies": {"AF_UNIX"},
        "CapabilityBoundingSet": {"CAP_NET_ADMIN"},
    },
    "gpufabric-rdma-vfs.service": {
        "ProtectKernelTunables": set(),  # writes sriov_numvfs in /sys, binds VFs to their driver
        "RestrictAddressFamilies": {"AF_UNIX", "AF_NETLINK"},  # ip link set vf
        "CapabilityBoundingSet": {"CAP_NET_ADMIN"},
    },
    "node_ready.service": {
        "RuntimeDirectory": {"gpufabric-rdma"},
        "RuntimeDirectoryPreserve": {"yes"},  # Multus waits for the file in it, the role reads the other
        "RestrictAddressFamilies": {"AF_UNIX", "AF_INET", "AF_INET6"},  # systemctl; the API server
        "CapabilityBoundingSet": set(),
    },
}


@pytest.mark.parametrize("name", NEEDS)
def test_it_may_do_what_it_is_for_and_no_more(name):
    written = {pathlib.Path(place).name: text for place, text in WRITTEN.values()}
    found = settings(written.get(name) or render(next(path for path in TEMPLATES if path.name == f"{name}.j2")))
    assert found["ProtectSystem"] == ["strict"]
    for setting, needed in NEEDS[name].items():
        assert set(found.get(setting, ())) == needed, setting
    if name == "guard.service":
        # A folder that is missing at start would be read-only for good.
        assert found["ExecStartPre"][:2] == ["+/bin/mkdir", "-p"]
        assert set(found["ExecStartPre"][2:]) == NEEDS[name]["ReadWritePaths"]
    elif name == "node_ready.service":
        # /proc/PID/limits of k3s, which has more capabilities, and /proc/sys/kernel/random/boot_id.
        assert not {"ProtectProc", "ProcSubset"} & set(found)
