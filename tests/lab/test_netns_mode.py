"""The RDMA subsystem's network namespace mode on a real kernel, where it refuses to change."""

MODE = "cat /sys/module/ib_core/parameters/netns_mode"
FOREIGN_FILE = "/etc/modprobe.d/sriov-operator.conf"


def test_a_foreign_namespace_is_named_and_left_alone_until_a_reboot_is_allowed(lab):
    lab.node("node1", "rdma system set netns exclusive && ip netns add tenant")
    lab.node("node1", "systemd-run --quiet --unit=tenant --property=NetworkNamespacePath=/run/netns/tenant sleep 3600")
    pid = lab.node("node1", "systemctl show --property=MainPID --value tenant.service")

    refused = lab.play("host.yml", "--limit", "node1", "-e", '{"reboot_allowed": false}')

    said = refused.messages("node1")
    assert refused.code == 0, refused.text
    assert "Reboot pending" in said
    assert pid in said
    assert "tenant" in said
    assert lab.node("node1", "systemctl is-active tenant.service") == "active"
    assert lab.node("node1", MODE) == "N"

    allowed = lab.play("host.yml", "--limit", "node1", "-e", '{"reboot_allowed": true}')

    assert allowed.code == 0, allowed.text
    assert lab.node("node1", MODE) == "Y"
    assert int(lab.node("node1", "cut -d. -f1 /proc/uptime")) < 300


def test_without_an_answer_about_reboots_the_play_stops_with_the_reasons(lab):
    lab.node("node1", "rdma system set netns exclusive && ip netns add tenant")

    asked = lab.play("host.yml", "--limit", "node1", "-e", '{"reboot_allowed": null, "rdma_netns_retry_seconds": 0}')

    assert asked.code != 0
    assert "reboot_allowed" in asked.messages("node1")
    assert "tenant" in asked.messages("node1")
    assert lab.node("node1", "ip netns list").split()[0] == "tenant"


def test_a_foreign_file_with_another_mode_is_named_and_stops_the_play(lab):
    ours = "/etc/modprobe.d/zz-gpufabric-rdma.conf"
    lab.node("node1", f"rm {ours}; echo options ib_core netns_mode=0 > {FOREIGN_FILE}")

    stopped = lab.play("host.yml", "--limit", "node1")

    assert stopped.code != 0
    assert FOREIGN_FILE in stopped.said
    assert "rdma_netns_override_allowed" in stopped.said
    assert not any(result.get("changed") for result in stopped.results["node1"])
    assert lab.node("node1", f"test -e {ours} || echo absent") == "absent"

    overridden = lab.play("host.yml", "--limit", "node1", "-e", '{"rdma_netns_override_allowed": true}')

    assert overridden.code == 0, overridden.text
    assert (
        lab.node("node1", "modprobe --showconfig | grep '^options ib_core' | tail -n 1")
        == "options ib_core netns_mode=1"
    )
    assert lab.node("node1", f"cat {FOREIGN_FILE}") == "options ib_core netns_mode=0"
