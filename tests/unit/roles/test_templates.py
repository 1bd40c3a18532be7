"""Rendered files of roles: a value stays a value with any content and spelling; pods start on taints.

And the systemd units of roles and modules: all are confined as far as their work allows.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jinja2
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import nic_settings, rail_links, sriov
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.tests.tools import rendering

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOOLS = "ansible_collections.gpufabric.rdma.tests.tools"
PROGRAM = (
    "from ansible.plugins.loader import init_plugin_loader; init_plugin_loader([]); "
    f"from {TOOLS} import rendered_options; rendered_options.main()"
)


def told_by(folder, *words):
    """The output of a tool in a separate process, because Ansible's collection loader has to be active."""
    path = ":".join(filter(None, sys.path))
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": path, "ANSIBLE_HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


# --- hostile strings --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return told_by(tmp_path_factory.mktemp("home"), rendering.__file__)


def test_a_value_stays_a_value_in_every_text_that_roles_render(told):
    assert told["faults"] == []


def test_what_is_refused_is_refused_where_systemd_has_no_quotes_for_it(told):
    """Objects accept every string; a unit and tmpfiles.d only accept words."""
    refusing = {name.split()[1] for name, text in told["texts"].items() if text["refused"]}
    assert refusing == {
        "rdma-device-plugin.service.j2",
        "guard.service.j2",
        "__multus_files",  # tmpfiles.d, and the unit above
        "__node_ready_files",  # a memlock limit that is no number of bytes
    }


def test_every_text_that_a_task_writes_is_one_of_those():
    """`content` of a task is a text from a module that builds it from data, or a token."""
    found = set()
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")]:
        found |= set(re.findall(r"^ *(?:- )?content: (.*)$", path.read_text(), re.MULTILINE))
    # JSON from a filter has its quotes.
    found = {text for text in found if not re.search(r"\| to_(nice_)?json }}(\\n)?\"$", text)}
    assert found == {
        "\"{{ __device_plugin_tokens['tokens']['rdma-device-plugin-' ~ __device_plugin_node] }}\"",
        "\"{{ __node_ready_tokens['tokens']['node-ready-' ~ __node_ready_name] }}\"",
        "\"{{ item['text'] }}\"",
    }


@pytest.mark.parametrize("text", [*rendering.HOSTILE, "\U0001f600", "a\U0010fffdb"], ids=ascii)
def test_k3s_reads_the_strings_that_it_was_given(text):
    options = {"node-name": text, "node-label": [text, "x"]}
    assert yaml.safe_load(k3s.yaml(options)) == options
    mirrors = {"configs": {text[:99]: {"auth": {"password": text}}}}
    assert yaml.safe_load(k3s.registries(mirrors)) == mirrors


# --- refused before anything changes ----------------------------------------------------------------------------------

UNPRINTABLE = ["a\x00", "a\x1b[2J", "a\x7f", "a\x85", "a\x9b31m", "a\u2028b", "a\u202eb", "a\u200bb", "\ufeffa"]
LINES = ["a\nb", "a\n[Service]\nExecStartPre=/bin/evil", "a\tb"]


def findings_of(name, value):
    known = rendering.options()
    typed, findings = host.validate({name: known[name]}, {name: value})
    return findings + host.values(typed, known)


TEXTS = sorted(name for name, option in rendering.options().items() if rendering.plantable(option))


@pytest.mark.parametrize("name", TEXTS)
def test_no_option_takes_what_cannot_be_printed(name):
    option = rendering.options()[name]
    several = option["type"] == "dict" or "options" in option
    for text in UNPRINTABLE + ([] if several else LINES):
        fields = option.get("options")
        value = [{next(iter(fields)): text}] if fields else rendering.planted(name, text)
        found = findings_of(name, value)
        assert [finding.object for finding in found] != [], ascii(text)


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("k3s_node_name", ["node1", "gpu-1.example.com", "1"], ['bad1 #","good1', "Node1", "-a", "a..b", "a" * 254]),
    ("verification_namespace", ["gpufabric-verification"], ["a.b", "A", "a b", "-a", "x" * 64, "kube-system\n"]),
    ("multus_conf_directory", ["/etc/cni/net.d"], ["etc", "/a b", "/a%n", "/a$b", '/a"', "/a\nb", "/a:b"]),
    ("multus_image", ["ghcr.io/a/b:v1", "localhost:5000/x@sha256:0a"], ["a b", "a: b", "-a", 'a"', "{a}"]),
    ("device_plugin_metrics_address", [":9808", "[::1]:9808", ""], [":1 -x", ":1\n", "$HOME:1"]),
    ("multus_api_server", ["192.0.2.1:6443", "[2001:db8::1]:6443", ""], ["192.0.2.1", "2001:db8::1"]),
])  # fmt: skip
def test_names_paths_and_images_are_what_they_say(name, good, bad):
    assert [value for value in good if findings_of(name, value)] == []
    assert [value for value in bad if not findings_of(name, value)] == []


# --- spellings: an option given as text, as -e and INI inventories give it, acts like the typed value ----------------


def test_every_option_in_every_spelling_renders_as_its_typed_value_does(tmp_path):
    seen = told_by(tmp_path, "-c", PROGRAM)
    assert seen["differences"] == []
    assert seen["out_of_scope"] == [], "an option is read by its plain name only where its default is in scope"
    assert seen["unseen"] == {}, "put what the expression lacks into _REGISTERED of tests/tools/rendered_options.py"
    kinds = collections.Counter(seen["options"].values())
    assert (kinds["bool"] >= 39, kinds["int"] >= 32) == (True, True), kinds
    assert (seen["cases"] >= 900, seen["rendered"] >= 1700) == (True, True), seen


# --- pods of all objects that the collection applies, rendered instead of listed by hand ------------------------------

SETTINGS = rendering.role_vars("node_ready")["__node_ready_configuration"]
STARTUP = {"key": SETTINGS["taint"], "value": "true", "effect": SETTINGS["effect"]}
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "value": "", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def workloads():
    return rendering.workloads()


@pytest.mark.parametrize("role", ["flannel", "multus"])
def test_a_pod_joins_host_and_port_itself_and_so_gets_an_address_without_brackets(role):
    objects = rendering.of_template(role, "objects.yml.j2", {f"{role}_api_server": "[2001:db8::1]:6443"})
    (daemon,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet"]
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": "2001:db8::1"} in daemon["containers"][0]["env"]


@pytest.mark.parametrize("taint", [STARTUP, CONTROL_PLANE, GPU], ids=lambda taint: taint["key"])
def test_what_is_deployed_and_waited_for_can_start_on_a_tainted_node(workloads, taint):
    """A node keeps the startup taint until Multus and the plugin serve; a role that waits for a pod that the taint
    keeps off every node waits forever, and so does the taint."""
    kept_off = [name for name, item in workloads.items() if not rendering.tolerates(rendering.pod_of(item), taint)]
    assert kept_off == []


def test_only_pods_that_belong_to_their_node_tolerate_everything(workloads):
    """A pod that may run elsewhere has to leave a node that is cordoned or lost."""
    gone = [
        {"key": f"node.kubernetes.io/{key}", "value": "", "effect": effect}
        for key, effect in (("unschedulable", "NoSchedule"), ("unreachable", "NoExecute"))
    ]
    elsewhere = {name: item for name, item in workloads.items() if item["kind"] != "DaemonSet"}
    pods = {name: rendering.pod_of(item) for name, item in elsewhere.items()}
    assert [name for name, pod in pods.items() if any(rendering.tolerates(pod, taint) for taint in gone)] == []


def test_the_device_plugin_s_patches_keep_its_tolerations():
    """A kustomize component that set the list would replace it."""
    for path in sorted((rendering.PLUGIN / "components").rglob("*.yaml")):
        assert "tolerations" not in yaml.safe_dump(list(yaml.safe_load_all(path.read_text())))


# --- systemd units ----------------------------------------------------------------------------------------------------

# keepalived's unit is not confined, like that of k3s: both run foreign programs.
KEEPALIVED = ROOT / "roles/k3s/templates/address.service.j2"
TEMPLATES = {path.name: path for path in set(ROOT.glob("roles/*/templates/*.service.j2")) - {KEEPALIVED}}
PLUGIN = "rdma-device-plugin.service.j2"
OPTIONS = {
    "links up": {"__device_plugin_sets_links_up": True},
    "metrics": {"device_plugin_metrics_address": ":9808"},
    "dra": {"__device_plugin_over_dra": True},
}


def render(name, **changes):
    """With the real defaults and variables; values that a role derives itself are set here."""
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters.update({"bool": bool, "gpufabric.rdma.unit_word": str})
    path, known = TEMPLATES[name], {}
    for folder in (ROOT / "roles/common/defaults", path.parents[1] / "defaults", path.parents[1] / "vars"):
        known.update(yaml.safe_load((folder / "main.yml").read_text()))
    known.update(__device_plugin_sets_links_up=False, __device_plugin_command=["/usr/bin/env", "python3", "-I"])
    known.update({"__device_plugin_over_dra": False, **changes})
    text = path.read_text()
    for _depth in range(3):
        text = environment.from_string(text).render(known)
    return text


EVERY = {key: value for changes in OPTIONS.values() for key, value in changes.items()}
EVERY |= {"device_plugin_kubelet_root": "/data/kubelet", "device_plugin_use_cdi": True}
UNITS = {
    "guard": render("guard.service.j2"),
    "node_ready": render("node_ready.service.j2"),
    "links": rail_links._LINKS,
    "routes": rail_links._ROUTES,
    "nic": nic_settings._UNIT,
    "vfs": sriov._UNIT,
    "plugin": render(PLUGIN),
    **{f"plugin, {name}": render(PLUGIN, **changes) for name, changes in OPTIONS.items()},
    "plugin, all": render(PLUGIN, **EVERY),
}
# The goal is 3; the limits are the reached values: systemd 252 reports 1.4, 1.8, 1.8 and 2.0 for the plugin's.
MOST = {"plugin": 1.5, "plugin, links up": 1.9, "plugin, metrics": 1.9, "plugin, dra": 1.9, "plugin, all": 2.1}


def settings(name):
    """{setting: its values, of all lines}"""
    made = {}
    for line in UNITS[name].splitlines():
        setting, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            made.setdefault(setting, []).extend(value.split())
    return made


def analyze(*words):
    if not shutil.which("systemd-analyze"):
        pytest.skip("not verified: no systemd-analyze here")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("not verified: this systemd-analyze cannot judge a file (systemd 250 can)")
    return done


@pytest.mark.parametrize("name", UNITS)
def test_it_is_confined_and_systemd_finds_nothing_wrong_with_it(name, tmp_path):
    # The kernel refuses to change the netns mode of the RDMA subsystem while there is a second network namespace.
    assert not set(settings(name)) & {"PrivateNetwork", "NetworkNamespacePath", "JoinsNamespaceOf"}
    unit = tmp_path / ("one@sys-net-eth2.service" if name == "nic" else "one.service")
    unit.write_text(UNITS[name])
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure, done.stdout + done.stderr
    assert float(exposure[1]) <= MOST.get(name, 3.0), done.stdout
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert [line for line in done.stderr.splitlines() if unit.name in line and "is not executable" not in line] == []


# What no lab node can show, because it has no such NIC: by the work that needs it.
@pytest.mark.parametrize(("name", "setting", "values"), [
    ("nic", "ProtectKernelTunables", []),  # writes MOFED's qos/trust_state
    ("nic", "RestrictAddressFamilies", ["AF_UNIX", "AF_NETLINK", "AF_INET"]),  # dcb, ethtool
    ("nic", "CapabilityBoundingSet", ["CAP_NET_ADMIN"]),
    ("vfs", "ProtectKernelTunables", []),  # writes sriov_numvfs in /sys, binds VFs to their driver
    ("vfs", "RestrictAddressFamilies", ["AF_UNIX", "AF_NETLINK"]),  # ip link set vf
    ("vfs", "CapabilityBoundingSet", ["CAP_NET_ADMIN"]),
])  # fmt: skip
def test_it_may_do_what_it_is_for_and_no_more(name, setting, values):
    assert (settings(name)["ProtectSystem"], set(settings(name).get(setting, []))) == (["strict"], set(values))


def test_the_plugin_is_restarted_when_it_is_stuck_but_not_when_it_is_slow():
    """A node that is busy booting may need minutes for a task of a second."""
    made = settings("plugin")
    assert set(made["Before"]) == {"k3s.service", "k3s-agent.service", "kubelet.service"}
    assert int(made["TimeoutStartSec"][0]) >= 300
    assert 10 * 5 <= int(made["WatchdogSec"][0]) <= 300
