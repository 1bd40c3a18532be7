"""Every path that this library reads by name, and every file that the collection owns on a node."""

from __future__ import annotations

INFINIBAND = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
MAD = "/sys/class/infiniband_mad"
NET = "/sys/class/net"
PCI = "/sys/bus/pci/devices"
MODULE = "/sys/module"
MLX5_DEBUG = "/sys/kernel/debug/mlx5"

# Where kmod and systemd look for configuration, in their order: of files with the same name the first directory wins.
CONFIGURATION = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
# systemd.unit(5), "Unit File Load Path" of the system manager.
UNIT_DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)

# Files that the collection writes. The first line of each file is HEADER.
HEADER = "# Managed by Ansible collection gpufabric.rdma; changes here are overwritten."
MODE = 0o644
OWN_MODULES_LOAD = "/etc/modules-load.d/gpufabric-rdma.conf"
# kmod sorts by file name over all directories and the last option wins: zz- sorts ours last.
OWN_MODPROBE = "/etc/modprobe.d/zz-gpufabric-rdma.conf"
OWN_DROP_IN = "10-gpufabric-rdma.conf"
# May be foreign: ours begins with HEADER.
NCCL_CONF = "/etc/nccl.conf"
OWN_LINKS_UNIT = "/etc/systemd/system/gpufabric-rdma-links.service"
OWN_ROUTES_UNIT = "/etc/systemd/system/gpufabric-rdma-routes.service"
OWN_LINKS_SCRIPT = "/usr/local/libexec/gpufabric-rdma-links"
OWN_VFS_UNIT = "/etc/systemd/system/gpufabric-rdma-vfs.service"
OWN_VFS_SCRIPT = "/usr/local/libexec/gpufabric-rdma-vfs"
# The boot parameter for ACS: in GRUB's drop-ins, or a record of it if grubby edits the entries.
OWN_ACS_GRUB = "/etc/default/grub.d/gpufabric-rdma-acs.cfg"
OWN_ACS_RECORD = "/var/lib/gpufabric-rdma/acs_parameter"
OWN_READ_REQUEST = "/etc/udev/rules.d/95-gpufabric-rdma-read-request.rules"
OWN_NIC_RULE = "/etc/udev/rules.d/90-gpufabric-rdma-nic.rules"
OWN_NIC_UNIT = "/etc/systemd/system/gpufabric-rdma-nic@.service"
OWN_NIC_SCRIPT = "/usr/local/libexec/gpufabric-rdma-nic"
# Firmware values before the first change, and those written to each HCA; only for root.
OWN_FIRMWARE = "/var/lib/gpufabric-rdma/firmware"
# Records of work that a run began on the node; the run that ends it removes the record.
RECORDS = {
    "driver_reload": "/var/lib/gpufabric-rdma/driver_reload.json",
    "reboot": "/var/lib/gpufabric-rdma/reboot.json",
}


def own_drop_in(service: str) -> str:
    """Path of our drop-in for a service (name without `.service`)."""
    return f"/etc/systemd/system/{service}.service.d/{OWN_DROP_IN}"
