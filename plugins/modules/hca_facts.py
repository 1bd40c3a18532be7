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
author: The gpufabric founders (@gpufabric)
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
          description: The machine, as C(kernel) (release of the running one), C(architecture) (as C(uname -m) prints
            it), C(os) (C(id), C(version_id), C(like) and C(pretty_name) of os-release), C(container) (the container
            manager around this system such as C(docker) or C(systemd-nspawn), or null), C(product) (by DMI, or null),
            C(boot_id) and C(cmdline) (the kernel's).
          type: dict
        hcas:
          description:
            - HCAs in the order of their PCI addresses, then software ones by name. What is not there is null.
            - Besides the keys below an HCA has C(name), C(kind) (C(pci) or C(software)), C(node_type) (C(CA), C(RNIC)
              (iWARP), C(unspecified) (EFA), ...), C(hca_type) such as C(MT4129), C(hw_rev), C(firmware), C(psid),
              C(node_guid) and C(sys_image_guid) (the same on both ports of a card).
          type: list
          elements: dict
          contains:
            function:
              description: C(pf), C(vf), C(sf) (on the auxiliary bus), or null for a software HCA.
              type: str
            auxiliary:
              description: Auxiliary device of a sub-function, such as C(mlx5_core.sf.4), or null.
              type: str
            pci:
              description:
                - The PCI function, for a sub-function its parent, null for a software HCA.
                - It has C(address), C(vendor), C(device), C(subsystem_vendor) and C(subsystem_device) (hexadecimal ids;
                  the device C(1021) is what C(ibv_devinfo) shows as C(4129)), C(model), C(driver) (the bound one),
                  C(numa_node) (C(-1) when the firmware reports none), C(local_cpus) such as C(0-71), C(path) (the host
                  bridge, the bridges below it and the function itself; empty if it cannot be read), C(link)
                  (C(speed_gts), C(width), C(max_speed_gts) and C(max_width)), C(iommu_group), C(sriov) (virtual
                  functions, C(total) possible and C(enabled)), and the addresses C(physfn) (of a virtual function's
                  physical one) and C(virtfns).
              type: dict
            char_devices:
              description: Names below C(/dev/infiniband). C(uverbs) is one name or null, C(umad) and C(issm) are lists.
              type: dict
            netdevs:
              description:
                - Its network interfaces, and the bond over them if there is one.
                - Each has C(name), C(mac), C(mtu), C(operstate), C(carrier) (null while it is administratively down),
                  C(speed_mbps), C(type) (C(ether) or C(infiniband)), C(phys_port_name) such as C(p0), C(parent) (of an
                  IPoIB child), C(port) (of the HCA), C(master) (bond or bridge) and C(addresses) (with prefix length,
                  IPv4 first).
                - C(default_route) tells whether the default route uses it, directly or through a bond, VLAN or bridge.
                  C(management) is what the node's management uses it for, in the same way (a default route of any
                  table, an SSH session, the address of k3s), or null.
              type: list
              elements: dict
            representors:
              description: Interfaces that represent VFs and SFs in switchdev mode.
              type: list
              elements: str
            bonded_functions:
              description: PCI addresses of further functions that this HCA joins, in a bond or as Socket Direct.
              type: list
              elements: str
            ports:
              description:
                - Each has C(number) (from 1), C(state) (C(ACTIVE), C(DOWN), ...), C(phys_state) (C(LinkUp),
                  C(Disabled), C(Polling), ...), C(rate_gbps) and C(rate_text) (as the kernel writes it), C(link_layer)
                  (C(InfiniBand) or C(Ethernet)), C(lid) and C(sm_lid) (0 on Ethernet), C(netdev) (the bond where its
                  interfaces are bonded), and the C(gids) that are not empty (C(index), C(gid), C(type) such as C(RoCE
                  v2), C(netdev)).
                - C(active_mtu) is on Ethernet the RDMA MTU in bytes that fits into the interface's MTU. On InfiniBand a
                  text says that reading it takes verbs.
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
          description: The fabric ports in order. Each has C(index) (the same on identically built nodes), C(hca),
            C(port), C(netdev), C(pci) (null for a software HCA), C(gpu) (the PCI address of its GPU) and its
            C(distance), C(card) (a system image GUID, the same for rails that share a card), C(reason) (C(automatic) or
            C(named)), C(lacks) (which evidence of a rail a named one lacks), and C(data_direct), the function through
            which the card reaches its GPU (null without one; a string beginning with C(unknown) if nothing links it to
            the card).
          type: list
          elements: dict
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
            and names without an HCA. Each has C(hca), C(port) and C(pci), null where there is none.
          type: list
          elements: dict
          returned: with subset rails
          contains:
            index: {description: 'The number that stays empty because of it, or null.', type: int}
            gpu: {description: 'PCI address of the GPU of that number, or null.', type: str}
            code:
              description: C(no-verbs), C(no-port), C(virtual), C(software), C(representor), C(bond-member), C(no-gid),
                C(management), C(no-lid), C(shared), C(unused), C(no-gpu), C(other-kind), C(other-rate), C(no-rdma),
                C(no-card) or C(named).
              type: str
            reason: {description: The same as a sentence., type: str}
        subsystem:
          description: The RDMA subsystem of the kernel, as C(ib_core_loaded), C(netns_mode) (C(shared) or C(exclusive),
            now), C(persisted_netns_mode) (at the next boot, null when nothing sets it), C(netns_sources) (what sets it,
            weakest first, as C(path), C(line), C(text), C(mode), C(ours) and C(wins)), C(foreign_owners) (paths among
            them that are not ours), and C(namespaces) besides that of PID 1 (C(inode), C(name), the mount point or
            null, and C(owners), a list of C(pid), C(command), C(unit) and C(transient)).
          type: dict
        driver:
          description: The driver, C(installed) (C(flavor), C(version) and C(packages)), C(on_disk) for this kernel and
            C(loaded) (C(flavor), C(version), C(srcversion) and C(modules)). Flavors are C(inbox), C(doca),
            C(mlnx_ofed), C(mlnx_en) and C(ubuntu_archive). C(agree) tells whether memory and disk hold the same
            modules, by srcversion, or by build id where a distribution builds its modules without one; C(explanation)
            says it as a sentence.
          type: dict
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
