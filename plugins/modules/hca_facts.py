# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hca_facts
short_description: Gather RDMA facts of a node
version_added: 0.1.0
description:
  - Returns one dictionary, C(ansible_facts.rdma), with HCAs, their ports, interfaces and PCI locations, GPUs and their
    distance, rails, the RDMA subsystem, the driver, kernel modules and limits.
  - Reads files only. It starts no process on a Debian node, loads no kernel module, sends nothing over netlink and
    changes nothing.
  - On other systems it runs at most two commands, C(rpm -qa) if an rpm database exists and C(modinfo) for a module
    that is compressed with zstd. IPv4 addresses come from the ioctl that C(ifconfig) uses.
  - What cannot be known is the text C(unknown) followed by the reason; what does not apply is null.
attributes:
  facts:
    support: full
    description: Returns an C(ansible_facts) dictionary that is merged into existing host facts.
extends_documentation_fragment: [gpufabric.rdma.reading, gpufabric.rdma.reading.rails]
options:
  root:
    description:
      - Root directory of the node, V(/) for the machine itself.
      - Any captured or mounted tree works. Symbolic links are resolved inside it. What no file contains comes from its
        C(.seams.json), which a capture writes.
    type: path
    default: /
  gather_subset:
    description:
      - Parts to gather. V(!gids) leaves out the GID tables, the bulk of the files on a node with many HCAs.
      - V(hcas) includes C(cards_without_rdma), V(pci) is that and C(gpus), V(gpudirect) includes C(pcie).
      - A part that was not requested is absent from the facts. C(schema), C(node), C(unfinished) and
        C(reboot_reasons) are always present, the last one as far as the gathered parts allow.
    type: list
    elements: str
    default: [all]
    choices: [all, min, hcas, pci, gpus, rails, subsystem, driver, gpudirect, modules, limits, initramfs, owned_files,
      gids, "!all", "!hcas", "!pci", "!gpus", "!rails", "!subsystem", "!driver", "!gpudirect", "!modules", "!limits",
      "!initramfs", "!owned_files", "!gids"]
  capture:
    description:
      - Return in RV(fixture), instead of the facts, every file, link and answer that they come from.
      - GUIDs, MACs, GIDs, IP addresses, UUIDs (boot id, disks, GPUs, pods), container ids and the machine's name are
        replaced. The same original gives the same replacement, so that a MAC and its EUI-64 GID, or an address and its
        subnet, still belong together. Commands and variables of systemd units, other packages and other kernel modules
        are left out.
      - Review the result before you share it; names of interfaces, files and units are kept.
    type: dict
    suboptions:
      name:
        description: Name of the fixture. It is not scrubbed, so choose one that may be public.
        type: str
        required: true
      about: {description: 'One line about the node. The default names its system, kernel, GPUs and HCAs.', type: str}
  software_hcas:
    description:
      - Whether software HCAs (C(rdma_rxe), C(siw)) may be automatic rails. They are listed under C(hcas) either way.
    type: bool
    default: false
notes:
  - Run it as root. Other users may not see which processes own a network namespace, nor the options of some files.
"""

EXAMPLES = r"""
- name: Gather RDMA facts of a node
  gpufabric.rdma.hca_facts:

- name: Gather HCAs without their GID tables, with two named rails
  gpufabric.rdma.hca_facts:
    gather_subset: [hcas, rails, "!gids"]
    rails:
      - pci: "0000:3b:00.0"
      - netdev: enp175s0np0

- name: Read a captured node
  gpufabric.rdma.hca_facts:
    root: /tmp/captured/gpu7

- name: Capture this node
  gpufabric.rdma.hca_facts:
    capture: {name: h100-rack-7}
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to ansible_facts.
  returned: without O(capture)
  type: dict
  contains:
    rdma:
      description: RDMA facts of the node.
      type: dict
      contains:
        schema:
          description: Version of this model. It increases when a field changes its meaning or is removed.
          type: int
        node:
          description: The machine.
          type: dict
          contains:
            kernel: {description: Release of the running kernel., type: str}
            architecture: {description: Machine name as C(uname -m) prints it., type: str}
            os: {description: 'C(id), C(version_id), C(like) (list) and C(pretty_name) of os-release.', type: dict}
            container:
              description: The container manager around this system such as C(docker) or C(systemd-nspawn), or null.
              type: str
            product: {description: 'Product name of the machine (DMI), or null.', type: str}
            boot_id: {description: Changes with each boot., type: str}
            cmdline: {description: The kernel command line., type: str}
        hcas:
          description: HCAs in the order of their PCI addresses, then software ones by name.
          type: list
          elements: dict
          contains:
            name: {description: Name of the RDMA device., type: str}
            kind: {description: C(pci) or C(software)., type: str}
            function:
              description: C(pf), C(vf), C(sf) (on the auxiliary bus), or null for a software HCA.
              type: str
            auxiliary:
              description: Auxiliary device of a sub-function, such as C(mlx5_core.sf.4), or null.
              type: str
            pci:
              description: The PCI function, for a sub-function its parent, null for a software HCA.
              type: dict
              contains:
                address: {description: 'Domain, bus, device and function.', type: str}
                vendor: {description: 'Vendor id, hexadecimal.', type: str}
                device:
                  description: Device id, hexadecimal. C(1021) is what C(ibv_devinfo) shows as C(4129).
                  type: str
                subsystem_vendor: {description: 'Vendor id of the board, hexadecimal.', type: str}
                subsystem_device: {description: 'Id of the board, hexadecimal.', type: str}
                model: {description: Name of the model., type: str}
                driver: {description: 'The bound driver, or null.', type: str}
                numa_node: {description: 'NUMA node, C(-1) when the firmware reports none.', type: int}
                local_cpus: {description: 'CPUs near it, such as C(0-71).', type: str}
                path:
                  description: Its location in the PCI tree, as the host bridge (C(pci0000:17)), the bridges below it
                    and the function itself; empty if it cannot be read.
                  type: list
                  elements: str
                link:
                  description: C(speed_gts), C(width), C(max_speed_gts) and C(max_width) of the PCIe link (GT/s).
                  type: dict
                iommu_group: {description: 'IOMMU group, or null.', type: str}
                sriov: {description: 'Virtual functions, C(total) possible and C(enabled).', type: dict}
                physfn: {description: "PCI address of a virtual function's physical function, or null.", type: str}
                virtfns: {description: PCI addresses of its virtual functions., type: list, elements: str}
            node_type: {description: 'C(CA), C(RNIC) (iWARP), C(unspecified) (EFA), ...', type: str}
            hca_type: {description: 'Hardware type such as C(MT4129), or null.', type: str}
            hw_rev: {description: 'Hardware revision, or null.', type: str}
            firmware: {description: 'Firmware version, or null.', type: str}
            psid: {description: 'Board id (PSID), or null.', type: str}
            node_guid: {description: Node GUID., type: str}
            sys_image_guid: {description: 'System image GUID, the same on both ports of a card.', type: str}
            char_devices:
              description: Names below C(/dev/infiniband). C(uverbs) is one name or null, C(umad) and C(issm) are lists.
              type: dict
            netdevs:
              description: Its network interfaces, and the bond over them if there is one.
              type: list
              elements: dict
              contains:
                name: {description: Name., type: str}
                mac: {description: Hardware address., type: str}
                mtu: {description: MTU in bytes., type: int}
                operstate: {description: State as the kernel reports it., type: str}
                carrier:
                  description: Whether there is a link. Null while the interface is administratively down.
                  type: bool
                speed_mbps: {description: 'Speed in Mbit/s, or null.', type: int}
                type: {description: C(ether) or C(infiniband)., type: str}
                phys_port_name: {description: 'Name of the port on the card, such as C(p0), or null.', type: str}
                parent: {description: 'For an IPoIB child its parent interface, else null.', type: str}
                port: {description: 'Port of the HCA it belongs to, or null.', type: int}
                master: {description: 'The bond or bridge it belongs to, or null.', type: str}
                default_route:
                  description: Whether the default route uses it, directly or through a bond, VLAN or bridge.
                  type: bool
                management:
                  description: What the node's management uses it for, in the same way (a default route of any table, an
                    SSH session, the address of k3s), or null.
                  type: str
                addresses: {description: 'IP addresses with prefix length, IPv4 first.', type: list, elements: str}
            representors:
              description: Interfaces that represent VFs and SFs in switchdev mode.
              type: list
              elements: str
            bonded_functions:
              description: PCI addresses of further functions that this HCA joins, in a bond or as Socket Direct.
              type: list
              elements: str
            ports:
              description: Its ports.
              type: list
              elements: dict
              contains:
                number: {description: 'Port number, from 1.', type: int}
                state: {description: 'C(ACTIVE), C(DOWN), C(INIT), C(ARMED), ...', type: str}
                phys_state: {description: 'C(LinkUp), C(Disabled), C(Polling), ...', type: str}
                rate_gbps: {description: Rate in Gbit/s., type: float}
                rate_text: {description: Rate as the kernel writes it., type: str}
                link_layer: {description: C(InfiniBand) or C(Ethernet)., type: str}
                lid: {description: 'LID, 0 on Ethernet.', type: int}
                sm_lid: {description: 'LID of the subnet manager, 0 when there is none.', type: int}
                active_mtu:
                  description: On Ethernet the RDMA MTU in bytes that fits into the interface's MTU. On InfiniBand a
                    text which says that reading it takes verbs.
                  type: raw
                netdev:
                  description: Its network interface (the bond where its interfaces are bonded), or null.
                  type: str
                gids:
                  description: GIDs that are not empty, as C(index), C(gid), C(type) (such as C(RoCE v2)) and C(netdev).
                  type: list
                  elements: dict
            nearest_gpus:
              description: GPUs in the nearest distance class, as C(address) and C(distance).
              type: list
              elements: dict
            nic_distances:
              description: Distance to each other PCI HCA by name, C(PIX), C(PXB), C(PHB), C(NODE) or C(SYS) as
                C(nvidia-smi topo -m) defines them.
              type: dict
        cards_without_rdma:
          description: Mellanox cards on PCI that have no RDMA device. Each has, as C(pci) of an HCA, C(address),
            C(vendor), C(device), C(model), C(driver), C(numa_node) and C(path); then C(netdevs) (names of its network
            interfaces), C(reason) (why there is no RDMA device) and C(next_step).
          type: list
          elements: dict
          returned: with subset hcas or pci
        gpus:
          description: GPUs in PCI order. Each has C(index) (its position) and, as C(pci) of an HCA, C(address),
            C(vendor), C(device), C(model), C(driver), C(numa_node), C(local_cpus) and C(path).
          type: list
          elements: dict
          returned: with subset gpus or pci
        rails:
          description: The fabric ports in order.
          type: list
          elements: dict
          contains:
            index: {description: 'Number of the rail, the same on identically built nodes.', type: int}
            hca: {description: Name of the HCA., type: str}
            port: {description: Port of the HCA., type: int}
            netdev: {description: 'Network interface of the port, or null.', type: str}
            pci: {description: 'PCI address, or null for a software HCA.', type: str}
            gpu: {description: 'PCI address of its GPU, or null.', type: str}
            distance: {description: 'Distance to that GPU, or null.', type: str}
            data_direct:
              description: PCI address of the Data Direct function through which the card reaches its GPU, null without
                one; a string beginning with C(unknown) if the card may have one that nothing links to it.
              type: str
            card:
              description: System image GUID of the card; rails with the same one share it (Socket Direct, two ports).
              type: str
            reason: {description: C(automatic) or C(named)., type: str}
            lacks: {description: 'Which evidence of a rail a named one lacks, or null.', type: str}
        shared_subnets:
          description:
            - Subnets of more than one rail, each with C(network) and its C(rails). By default Linux sends through only
              one of these rails.
            - A rail has C(index), C(netdev), C(pci), C(mac), C(management), C(address), what takes effect of
              C(arp_ignore) and C(arp_announce), and C(leaves_by), the interface that the address is sent from.
          type: list
          elements: dict
          returned: with subset rails
        qos:
          description:
            - RoCE settings of NICs. C(programs) has what is installed of C(dcb) and C(ethtool), C(nics) a row for
              each rail over Ethernet.
            - A row has C(rail), C(netdev), C(pci), C(mac), C(management), C(trust) (dscp or pcp), C(dscp) (priorities
              of each DSCP), C(pfc) (C(priorities), C(capable), C(delay)), C(ets) (C(classes), C(bandwidth),
              C(schedulers)), C(buffers) (C(of), C(bytes)), C(dcbx) (host or firmware), C(pause) (C(rx), C(tx)), and
              C(ecn), the priorities with congestion control at receiver (C(np)) and sender (C(rp)), which only MOFED
              reports.
            - Null stands for a setting that the driver does not offer, a text for one that cannot be known.
          type: dict
          returned: with subset rails
        not_rails:
          description: Everything that is not a rail, that is ports of HCAs, cards and GPUs that leave a number empty,
            and names without an HCA.
          type: list
          elements: dict
          returned: with subset rails
          contains:
            hca: {description: Name of the HCA; null if there is none., type: str}
            port: {description: 'Port of the HCA, or null.', type: int}
            pci: {description: 'PCI address, or null.', type: str}
            index: {description: 'The number that stays empty because of it, or null.', type: int}
            gpu: {description: 'PCI address of the GPU of that number, or null.', type: str}
            code:
              description: C(no-verbs), C(no-port), C(virtual), C(software), C(representor), C(bond-member), C(no-gid),
                C(management), C(no-lid), C(shared), C(unused), C(no-gpu), C(other-kind), C(other-rate), C(no-rdma),
                C(no-card) or C(named).
              type: str
            reason: {description: The same as a sentence., type: str}
        subsystem:
          description: The RDMA subsystem of the kernel.
          type: dict
          contains:
            ib_core_loaded: {description: Whether it is loaded., type: bool}
            netns_mode: {description: 'Running network namespace mode, C(shared) or C(exclusive).', type: str}
            persisted_netns_mode:
              description: The configured mode of the next boot, null when nothing sets it.
              type: str
            netns_sources:
              description: What sets it, weakest first, as C(path), C(line), C(text), C(mode), C(ours) and C(wins).
              type: list
              elements: dict
            foreign_owners: {description: Paths among them that are not ours., type: list, elements: str}
            namespaces:
              description: Network namespaces besides that of PID 1, as C(inode), C(name) (mount point or null) and
                C(owners), a list of C(pid), C(command), C(unit) and C(transient).
              type: list
              elements: dict
        driver:
          description: The driver as installed, on disk and loaded.
          type: dict
          contains:
            installed:
              description: C(flavor) (C(inbox), C(doca), C(mlnx_ofed), C(mlnx_en), C(ubuntu_archive)), C(version) and
                C(packages).
              type: dict
            on_disk:
              description: C(flavor), C(version), C(srcversion) and C(modules) of what would be loaded for this kernel.
              type: dict
            loaded:
              description: C(flavor), C(version), C(srcversion) and C(modules) of what is in memory.
              type: dict
            agree:
              description: Whether memory and disk hold the same modules, by srcversion, or by build id where a
                distribution builds its modules without one.
              type: bool
            explanation: {description: The above as a sentence., type: str}
        gpudirect:
          description: How HCAs reach GPU memory, C(mode) (C(peermem), C(dmabuf), C(none)), C(verdict), C(action),
            C(not_verified) (what may still keep dma-buf from working, one sentence each) and C(evidence) (null
            without an NVIDIA GPU).
          type: dict
        gpu_initiated:
          description: What GPU-initiated RDMA needs (IBGDA, NCCL GIN, GDAKI), null without an NVIDIA GPU. C(running)
            and C(configured) options of the NVIDIA driver, C(stray) lines of modprobe.d that miss it, C(gdrdrv),
            C(peermem), and C(ways) by name with C(works) and what is C(missing), each C(need) with its C(why).
          type: dict
          returned: with subset gpudirect
        pcie:
          description: The PCIe path between each rail's HCA and its GPU.
          type: dict
          returned: with subset gpudirect
          contains:
            paths:
              description: One for each pair, as C(rail), C(hca), C(gpu), C(function) (Data Direct's, where the card has
                it), C(data_direct), C(root_port), C(meets) (the bridge below which they part, or null), C(gpu_side) and
                C(function_side) (the bridges below it), C(group_shared) (both are in one IOMMU group), C(topology),
                C(verdict) (C(direct), C(root-complex), C(translated), C(direct-translated-only), C(unknown)),
                C(bridge), C(bits) and C(reason) (what decides it), and C(masks), the ACS control that this topology
                wants of each bridge, as in the kernel parameter C(pci=config_acs=).
              type: list
              elements: dict
            functions:
              description: What the config space of these functions and bridges says, each with C(id), C(port), C(acs)
                (C(capability) and C(control)), C(ats), C(relaxed_ordering), C(max_read_request), C(max_payload),
                C(max_payload_supported), C(link), C(iommu_group) and C(iommu_type); a string beginning with C(unknown)
                where it could not be read.
              type: dict
            iommu: {description: Whether the kernel uses an IOMMU., type: bool}
            lockdown: {description: 'C(none), C(integrity) or C(confidentiality), or null.', type: str}
            kernel_config:
              description: Options of the running kernel that matter here and whether they are on, null without a pair.
              type: dict
            loader: {description: 'What sets a boot parameter here, C(update-grub), C(grubby) or null.', type: str}
        modules:
          description: Modules by name, each with C(loaded), C(builtin), C(available), C(persisted) (paths that load
            it at boot) and C(blocked_by) (C(path), C(line), C(text)).
          type: dict
        limits:
          description: C(services) by name, each with C(exists), C(active), C(main_pid), C(memlock) (of a new start,
            C(infinity) or bytes), C(memlock_running) and C(drop_ins).
          type: dict
        initramfs:
          description: C(generator) (C(update-initramfs), C(dracut) or null) and C(images) with C(path), C(kernel) and
            C(mtime).
          type: dict
        owned_files:
          description: Files of this collection on the node, and C(/etc/nccl.conf), by path, each with C(mode) and
            C(content).
          type: dict
        unfinished:
          description: What a run began on the node and no run has finished yet, C(driver_reload) and C(reboot).
          type: list
          elements: str
        reboot_reasons:
          description: Why the node needs a reboot, one sentence each.
          type: list
          elements: str
forks: {description: 'Processes that were started, 0 on Debian.', returned: without O(capture), type: int}
fixture:
  description: The node as one dictionary with the keys name, about, provenance, seams, links, files, binary, errors,
    modes, mtimes, directories and repeat; keys without content are left out.
  returned: with O(capture)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.capture import capture
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS, existing, rdma_facts
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import SUBSETS

CHOICES = ["all", "min", *SUBSETS, "!all", *(f"!{name}" for name in SUBSETS)]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "gather_subset": {"type": "list", "elements": "str", "default": ["all"], "choices": CHOICES},
            "software_hcas": {"type": "bool", "default": False},
            "capture": {
                "type": "dict",
                "options": {"name": {"type": "str", "required": True}, "about": {"type": "str"}},
            },
            "rails": RAILS,
        },
        supports_check_mode=True,
    )
    root, named = module.params["root"], module.params["capture"]
    with reported(module):
        existing(module)
        if named:
            module.exit_json(changed=False, fixture=capture(root, named["name"], named["about"])[0])
        facts, forks = rdma_facts(module, module.params["gather_subset"])
        module.exit_json(changed=False, ansible_facts={"rdma": facts}, forks=forks)


if __name__ == "__main__":
    main()
