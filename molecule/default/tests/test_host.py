"""What site.yml must leave on a node, read with an operator's tools, not with the collection's modules."""

import pytest

MODULES = ("mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm")
SERVICES = ("k3s", "k3s-agent", "containerd")
HCAS = [f"rxe{rail}" for rail in range(8)]
OUR_FILES = (
    "/etc/modules-load.d/gpufabric-rdma.conf",
    "/etc/modprobe.d/zz-gpufabric-rdma.conf",
    *(f"/etc/systemd/system/{service}.service.d/10-gpufabric-rdma.conf" for service in SERVICES),
)


def settings(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_every_required_module_is_loaded(host):
    loaded = {line.split()[0] for line in host.check_output("cat /proc/modules").splitlines()}
    assert sorted(set(MODULES) - loaded) == [], host.run("journalctl --boot --no-pager --dmesg").stdout


def test_every_required_module_loads_at_boot(host):
    assert set(settings(host.file(OUR_FILES[0]).content_string)) == set(MODULES)


def test_the_kernel_shares_hcas_between_network_namespaces(host):
    assert host.check_output("cat /sys/module/ib_core/parameters/netns_mode") == "Y"
    assert host.check_output("rdma system show").startswith("netns shared")


def test_the_shared_mode_is_what_modprobe_would_set(host):
    options = [
        line for line in host.check_output("modprobe --showconfig").splitlines() if line.startswith("options ib_core")
    ]
    assert options[-1:] == ["options ib_core netns_mode=1"]


@pytest.mark.parametrize("path", OUR_FILES)
def test_our_files_say_whose_they_are(host, path):
    file = host.file(path)
    assert (file.user, file.group, oct(file.mode)) == ("root", "root", "0o644")
    assert file.content_string.startswith("# Managed by Ansible collection gpufabric.rdma")


def test_containers_may_pin_all_memory_and_start_after_the_hcas(host):
    shown = host.check_output("systemctl show --property=LimitMEMLOCK --property=After containerd.service")
    unit = dict(line.split("=", 1) for line in shown.splitlines())
    assert unit["LimitMEMLOCK"] == "infinity"
    assert {"rdma-hw.target", "openibd.service"} <= set(unit["After"].split())


def test_systemd_finds_nothing_wrong_with_the_drop_ins(host):
    assert host.run("systemd-analyze verify containerd.service").stderr == ""


def test_a_network_namespace_of_its_own_sees_the_hcas(host):
    """The purpose of shared mode; in exclusive mode the list is empty."""
    assert host.check_output("unshare --net ls /sys/class/infiniband").split() == HCAS


def test_the_initramfs_has_todays_module_options(host):
    """An initramfs with older options would load ib_core in another mode."""
    kernel = host.check_output("uname -r")
    held = host.check_output(f"lsinitramfs /boot/initrd.img-{kernel}").splitlines()
    image = host.file(f"/boot/initrd.img-{kernel}")
    if "etc/modprobe.d/zz-gpufabric-rdma.conf" not in held:
        assert not any(name.endswith("/ib_core.ko") for name in held)
    else:
        assert image.mtime >= host.file("/etc/modprobe.d/zz-gpufabric-rdma.conf").mtime


def test_no_unit_failed(host):
    listed = host.check_output("systemctl list-units --failed --no-legend --plain").splitlines()
    failed = [line.split()[0] for line in listed]
    assert failed == [], "\n".join(host.run(f"journalctl --boot --no-pager --unit={unit}").stdout for unit in failed)
