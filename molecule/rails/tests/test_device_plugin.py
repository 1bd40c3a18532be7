"""Role device_plugin as a service of a real systemd: offline from the wheel folder, hardened, left alone after.

On one node, since an installed plugin is the same everywhere; there is no kubelet, so it has to wait for one.
"""

import json
import pathlib
import re

import pytest
import testinfra
from ansible_collections.gpufabric.rdma.tests.tools import running

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
SSH_CONFIG = CHECKOUT / ".lab/nspawn/ssh/config"
WHEELS = CHECKOUT / "build/wheels"
SERVICE = "rdma-device-plugin"
PLACE = f"/usr/local/lib/{SERVICE}"
REGISTRY = "/var/lib/kubelet/plugins_registry"


@pytest.fixture(scope="module")
def name(groups) -> str:
    return groups["gpu_nodes"][0]


@pytest.fixture(scope="module")
def node(name):
    return testinfra.get_host(f"ssh://{name}", ssh_config=str(SSH_CONFIG))


@pytest.fixture(scope="module")
def run(ansible, name):
    """run(resources): the role on the node; exit code, output, number of tasks that changed something."""

    def play(resources=None, folder=None, options=(), **environment):
        words = ["-e", f"device_plugin_wheel_dir={WHEELS}", "--limit", name, *options]
        if resources:
            (folder / "variables.json").write_text(json.dumps({"device_plugin_resources": resources}))
            words += ["-e", f"@{folder}/variables.json"]
        done = ansible("ansible-playbook", "molecule/rails/plays/device_plugin.yml", *words, **environment)
        text = done.stdout + done.stderr
        return done.returncode, text, int(re.search(r"^\w+ +: .*changed=(\d+)", text, re.MULTILINE)[1])

    return play


@pytest.fixture(scope="module")
def installed(run, node) -> dict[str, str]:
    """The service after a first run."""
    if not WHEELS.is_dir():
        pytest.fail(f"{WHEELS}: no wheels: python device_plugin/fetch_wheels.py build/wheels")
    code, text, changed = run()
    assert (code, changed) == (0, 1), text
    return shown(node)


def shown(node) -> dict[str, str]:
    wanted = "ActiveState,MainPID,NRestarts,StatusText"
    return dict(
        line.split("=", 1) for line in node.check_output(f"systemctl show --property={wanted} {SERVICE}").splitlines()
    )


def test_it_runs_and_waits_for_a_kubelet(node, installed, groups, name):
    entries = json.loads(node.file(f"/etc/{SERVICE}/config.json").content_string)["configList"]
    if name in groups.get("playing_h100_8x_cx7_ib", []):
        assert len(entries) == 8
    assert (installed["ActiveState"], installed["NRestarts"]) == ("active", "0")
    assert installed["StatusText"].startswith(f"0 of {len(entries)} resources registered")
    assert node.check_output(f"ls {REGISTRY}").split() == [f"{entry['resourceName']}.sock" for entry in entries]


def test_it_has_no_right_that_it_does_not_need(node, installed):
    pid = installed["MainPID"]
    status = dict(line.split(":\t", 1) for line in node.check_output(f"cat /proc/{pid}/status").splitlines())
    assert {status[field].strip("0") for field in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {""}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    mounts = {
        line.split()[4]: line.split()[5] for line in node.file(f"/proc/{pid}/mountinfo").content_string.splitlines()
    }
    assert mounts["/"].startswith("ro")
    assert mounts[REGISTRY].startswith("rw")
    exposure = node.check_output(f"systemd-analyze security --no-pager {SERVICE}.service")
    assert float(re.search(r"exposure level for \S+ ([0-9.]+)", exposure)[1]) <= 3


def test_explain_works_with_what_is_installed(node, installed):
    said = node.check_output(
        f"{PLACE}/venv/bin/python3 -I -B {PLACE}/plugin.pyz explain -config-file /etc/{SERVICE}/config.json"
    )
    assert "mlx5_0" in said


def test_a_second_run_changes_and_restarts_nothing_in_two_remote_calls(node, run, installed, name, tmp_path):
    code, text, changed = run(**running.environment(tmp_path))
    assert (code, changed) == (0, 0), text
    record = running.written(tmp_path)
    # One call reads the node, as site.yml has already; the other is the role itself.
    assert record[name]["remote_calls"] <= 2, record[name]["calls"]
    assert shown(node)["MainPID"] == installed["MainPID"]


def test_a_new_config_is_read_by_the_process_that_runs(node, run, installed, tmp_path):
    entry = {"resourceName": "all", "rdmaHcaMax": 5, "selectors": {"vendors": ["15b3"]}, "linkUp": False}
    code, text, changed = run([entry], tmp_path)
    assert (code, changed) == (0, 1), text
    node.check_output(f"for i in $(seq 100); do [ $(ls {REGISTRY}) = all.sock ] && exit; sleep 0.2; done; exit 1")
    after = shown(node)
    assert (after["MainPID"], after["NRestarts"]) == (installed["MainPID"], "0")


@pytest.fixture
def go_plugin(node):
    """A double of the Go plugin as a service, with the same program name and config."""
    unit = (
        "[Service]\\nExecStart=/usr/local/bin/k8s-rdma-shared-dp infinity\\n[Install]\\nWantedBy=multi-user.target\\n"
    )
    config = json.dumps({"configList": [{"resourceName": "all", "rdmaHcaMax": 1}]})
    node.check_output("cp /usr/bin/sleep /usr/local/bin/k8s-rdma-shared-dp && mkdir -p /k8s-rdma-shared-dev-plugin")
    node.check_output(f"echo '{config}' > /k8s-rdma-shared-dev-plugin/config.json")
    node.check_output(f"printf '{unit}' > /etc/systemd/system/go-plugin.service")
    node.check_output("systemctl enable --quiet --now go-plugin.service")
    yield "go-plugin.service"
    node.check_output("systemctl disable --quiet --now go-plugin.service; rm /etc/systemd/system/go-plugin.service")
    node.check_output("rm -r /usr/local/bin/k8s-rdma-shared-dp /k8s-rdma-shared-dev-plugin; systemctl daemon-reload")


def test_the_service_of_another_plugin_is_stopped_on_consent_only(node, run, installed, go_plugin, tmp_path):
    entry = {"resourceName": "all", "rdmaHcaMax": 5, "selectors": {"vendors": ["15b3"]}, "linkUp": False}
    code, text, changed = run([entry], tmp_path)
    assert (code != 0, changed) == (True, 0)
    assert f"the Go plugin, unit {go_plugin}" in text
    assert node.service(go_plugin).is_running
    code, text, changed = run([entry], tmp_path, ["-e", "device_plugin_migrate_allowed=true"])
    assert (code, changed) == (0, 1), text
    assert not node.service(go_plugin).is_running
    assert not node.service(go_plugin).is_enabled
    assert shown(node)["ActiveState"] == "active"
