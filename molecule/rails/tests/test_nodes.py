"""What a run of playbooks/site.yml left on each node, seen over SSH; and playbooks over all nodes at once."""

import json
import re

from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

MANAGED = "# Managed by Ansible collection gpufabric.rdma; changes here are overwritten."
DROP_IN = "/etc/systemd/system/{}.service.d/10-gpufabric-rdma.conf"
CAP_SYS_RESOURCE = 1 << 24
SERVICES = {"h100-8x-cx7-ib": "containerd", "gh200-cx7-roce": "k3s"}
# What the container does not take from the captured machine: its processes, links, boot and our files.
# gpudirect: judged by the module files, which no captured machine contains.
OWN = ("node", "gpudirect", "limits", "subsystem", "modules", "initramfs", "owned_files", "reboot_reasons")


def lines(host, path: str) -> list[str]:
    file = host.file(path)
    assert file.exists, f"{path}: wanted: written by the roles; seen: absent"
    assert (file.mode, file.user) == (0o644, "root")
    first, *rest = file.content_string.splitlines()
    assert first == MANAGED
    return rest


def test_systemd_is_content_with_the_node(host):
    assert host.check_output("systemctl is-system-running") == "running"


def test_modules_load_at_boot_and_ipoib_only_where_a_port_is_infiniband(host, node, facts):
    loaded = lines(host, "/etc/modules-load.d/gpufabric-rdma.conf")
    assert loaded[:6] == ["mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm"]
    layers = {port["link_layer"] for hca in facts[node]["hcas"] for port in hca["ports"]}
    assert ("ib_ipoib" in loaded) == ("InfiniBand" in layers)


def locked_memory(host, pid: str) -> list[str]:
    """Soft and hard limit of a process."""
    limits = host.file(f"/proc/{pid}/limits").content_string
    return next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max locked memory"))


def test_a_service_that_starts_now_may_lock_all_memory(host, machine):
    service = SERVICES[machine]
    assert "LimitMEMLOCK=infinity" in lines(host, DROP_IN.format(service))
    assert host.check_output(f"systemctl show --property=LimitMEMLOCK --value {service}") == "infinity"
    host.check_output(f"systemctl start {service}")
    pid = host.check_output(f"systemctl show --property=MainPID --value {service}")
    # If the machine grants no CAP_SYS_RESOURCE, systemd raises the soft limit only to the hard one.
    capabilities = int(host.check_output("grep CapEff: /proc/1/status").split()[1], 16)
    most = "unlimited" if capabilities & CAP_SYS_RESOURCE else locked_memory(host, "1")[1]
    assert locked_memory(host, pid) == [most, most]


def leaves(value, path: str = "") -> dict[str, object]:
    """{path: value} of everything that is no list or mapping, so that a failure shows which facts differ."""
    if isinstance(value, dict):
        return {key: leaf for name in value for key, leaf in leaves(value[name], f"{path}/{name}").items()}
    if isinstance(value, list):
        return {key: leaf for index, item in enumerate(value) for key, leaf in leaves(item, f"{path}/{index}").items()}
    return {path: value}


def test_facts_over_ssh_are_those_of_the_captured_machine(node, tree, facts):
    expected = gather(Tree(str(tree)), Seams.recorded(json.loads((tree / ".seams.json").read_text())))
    seen = dict(facts[node])
    # The container's own /boot has another kernel's options.
    for known in (seen, expected):
        known["pcie"] = {**known["pcie"], "kernel_config": None}
    assert seen["gpudirect"]["evidence"]
    assert seen["node"]["container"] == "systemd-nspawn"
    assert seen["node"]["kernel"] == expected["node"]["kernel"]
    assert leaves({key: seen[key] for key in seen if key not in OWN}) == leaves(
        {key: expected[key] for key in expected if key not in OWN}
    )


def test_discover_prints_tables_of_nodes_and_hcas(ansible, groups):
    done = ansible("ansible-playbook", "playbooks/discover.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for node in groups["gpu_nodes"]:
        assert re.search(rf"^\W*{node}\b.*\bmlx5_0\b.*\bConnectX-7\b", done.stdout, re.MULTILINE), done.stdout
