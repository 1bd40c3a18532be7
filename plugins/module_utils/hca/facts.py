"""gather(): the whole model of a node as one dictionary, `ansible_facts.rdma`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Optional

from . import (
    boot,
    dcb,
    driver,
    gpu_initiated,
    limits,
    modprobe,
    modules,
    netns,
    paths,
    pci,
    pcie,
    pcie_path,
    subnets,
)
from . import hcas as devices
from . import node as machine
from . import rails as fabric
from .netdevs import Network
from .seams import Seams
from .tree import Tree

SCHEMA = 2
SUBSETS = (
    "hcas", "pci", "gpus", "rails", "subsystem", "driver", "gpudirect", "modules", "limits", "initramfs",
    "owned_files", "gids",
)  # fmt: skip


def chosen(subset: Optional[Iterable[str]] = None) -> set[str]:
    """The subsets that a list such as ["hcas", "!gids"] means.

    `all` and an empty list mean everything; a list of exclusions only starts from everything; `min` is only the node.
    """
    given = [str(name) for name in subset or ()]
    plain = [name for name in given if not name.startswith("!")]
    without = [name[1:] for name in given if name.startswith("!")]
    wanted = set(SUBSETS) if not plain or "all" in plain else {name for name in plain if name != "min"}
    if "hcas" in wanted:
        # The GID tables come with the HCAs unless excluded.
        wanted.add("gids")
    return set() if "all" in without else wanted - set(without)


def gather(
    tree: Tree,
    seams: Optional[Seams] = None,
    subset: Optional[Iterable[str]] = None,
    software_hcas: bool = False,
    rails: Optional[list[dict[str, Any]]] = None,
) -> dict[str, Any]:
    """The facts of a node; keys of subsets that were not requested are absent. _host.gpudirect judges `gpudirect`.

    Reads files below `tree` only (see Seams for the exceptions), loads no module and changes nothing. Each file is read
    at most once. It never raises for anything on the node.

    seams: those of the tree by default. subset: see `chosen`. software_hcas: allow rxe and siw devices as automatic
    rails; they are listed under `hcas` either way. rails: named rails, see `rails.rails`.
    """
    wanted = chosen(subset)
    tree = tree.snapshot()
    seams = seams or Seams.of(tree)
    facts: dict[str, Any] = {"schema": SCHEMA, "node": machine.node(tree, seams)}
    facts["unfinished"] = [name for name, path in paths.RECORDS.items() if tree.exists(path)]
    kernel = machine.kernel(tree)
    needs_devices = wanted & {"hcas", "pci", "rails", "gpudirect"}
    functions = pci.classes(tree) if needs_devices or "gpus" in wanted else {}
    catalogue = modules.Catalogue(tree, kernel) if needs_devices or wanted & {"driver", "modules"} else None
    lines = modprobe.statements(tree) if needs_devices or wanted & {"subsystem", "modules"} else []
    gpus = pci.gpus(tree, functions)
    network = Network(tree, seams) if needs_devices else None
    found = devices.hcas(tree, network, "gids" in wanted, functions) if network else []
    devices.place(tree, found, gpus)
    if needs_devices:
        if "hcas" in wanted:
            facts["hcas"] = found
        if wanted & {"hcas", "pci"}:
            state = functools.partial(modules.state, tree, catalogue=catalogue, lines=lines)
            facts["cards_without_rdma"] = devices.cards_without_rdma(tree, found, functions, network, state)
        if wanted & {"rails", "gpudirect"}:
            numbered, rest = fabric.rails(tree, found, gpus, rails, software_hcas, functions)
            if "rails" in wanted:
                facts["rails"], facts["not_rails"] = numbered, rest
                facts["shared_subnets"] = subnets.shared(tree, seams, found, numbered)
                facts["qos"] = dcb.state(tree, seams.qos, found, numbered)
            if "gpudirect" in wanted:
                facts["pcie"] = pcie.state(tree, numbered, gpus, kernel, functions)
                facts["gpu_initiated"] = gpu_initiated.state(tree, gpus, lines)
    if wanted & {"gpus", "pci"}:
        facts["gpus"] = gpus
    others = {
        "subsystem": lambda: netns.state(tree, lines),
        "driver": lambda: driver.state(tree, catalogue, seams),
        "modules": lambda: modules.state(tree, modules.NAMES, catalogue=catalogue, lines=lines),
        "limits": lambda: limits.state(tree),
        "initramfs": lambda: boot.images(tree),
        "owned_files": lambda: owned_files(tree),
    }
    facts.update({name: read() for name, read in others.items() if name in wanted})
    facts["reboot_reasons"] = reboot_reasons(facts)
    return facts


def owned_files(tree: Tree) -> dict[str, dict[str, str]]:
    """{path: {mode: "0644", content: text}} of every file that the collection owns on the node, and of nccl.conf."""
    tree = tree.snapshot()
    system = "/etc/systemd/system"
    folders = [f"{system}/{name}" for name in tree.listdir(system) if name.endswith(".service.d")]
    candidates = [f"{folder}/{paths.OWN_DROP_IN}" for folder in folders if paths.OWN_DROP_IN in tree.listdir(folder)]
    candidates += [paths.OWN_MODULES_LOAD, paths.OWN_MODPROBE, paths.NCCL_CONF]
    candidates += [paths.OWN_LINKS_UNIT, paths.OWN_ROUTES_UNIT, paths.OWN_LINKS_SCRIPT]
    candidates += [paths.OWN_VFS_UNIT, paths.OWN_VFS_SCRIPT]
    candidates += [paths.OWN_ACS_GRUB, paths.OWN_ACS_RECORD, paths.OWN_READ_REQUEST]
    candidates += [paths.OWN_NIC_RULE, paths.OWN_NIC_UNIT, paths.OWN_NIC_SCRIPT]
    found = {}
    for path in sorted(candidates):
        data = tree.read_bytes(path)
        mode = None if data is None else tree.mode(path)
        if mode is not None:
            # Unstripped: comparing it with the wanted content needs every byte.
            found[path] = {"mode": f"{mode:04o}", "content": data.decode("utf-8", "replace")}
    return found


def reboot_reasons(facts: dict[str, Any]) -> list[str]:
    """Changes that take effect only with a reboot (or an explicit driver reload), one sentence each."""
    found = []
    drivers = facts.get("driver")
    if drivers and drivers["agree"] is False:
        _agree, different = driver.compare(drivers["on_disk"]["modules"], drivers["loaded"]["modules"])
        found.append(f"The loaded RDMA driver is not the one on disk: {' '.join(different)}")
    subsystem = facts.get("subsystem") or {"netns_sources": [], "netns_mode": None}
    running = subsystem["netns_mode"]
    for source in subsystem["netns_sources"] if running in (netns.SHARED, netns.EXCLUSIVE) else ():
        if source["wins"] and source["ours"] and source["mode"] not in (None, running):
            sets = f"{source['path']} sets {source['mode']} for the next boot."
            found.append(f"The RDMA subsystem runs in netns mode {running}, {sets}")
    parameter = pcie_path.persisted(facts.get("owned_files") or {})
    waits = parameter and "pcie" in facts and parameter not in pcie_path.booted(facts["node"]["cmdline"])
    if waits and pcie_path.unlike(parameter, facts["pcie"]["functions"]):
        found.append(f"The kernel runs without {parameter}, which is set for the next boot.")
    return found
