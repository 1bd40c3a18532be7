# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""config.json of the device plugin, built from the role's variables and a node's rails.

PRIVATE to the collection. Pure; runs on the controller.
"""

from __future__ import annotations

import json

RAILS = "rails"
# What users' manifests of the Go plugin assume; its own default is silently 0.
COUNT = 63
WANTED = "rails, or a list of mappings as in configList"
NAME = "hca_shared_devices_{index}"


def document(resources, rails: list[dict] | None, interval: int) -> str:
    """The text of config.json.

    resources: `rails`, or the list used as configList unchanged. rails: those of the node's facts, each with index,
    netdev and pci. ValueError describes problems.
    """
    return json.dumps({"periodicUpdateInterval": interval, "configList": entries(resources, rails)}, indent=2) + "\n"


def entries(resources, rails: list[dict] | None) -> list[dict]:
    if not is_known(resources):
        raise ValueError(f"wanted {WANTED}, seen {_short(resources)}")
    if resources != RAILS:
        return resources
    if not rails:
        raise ValueError(
            "wanted one rail or more in the node's facts, seen none; list the resources, or name the rails"
        )
    return [_entry(rail) for rail in rails]


def is_known(resources) -> bool:
    """Whether it is rails or a list; the list's content is left to the plugin's check-config."""
    if resources == RAILS:
        return True
    return isinstance(resources, list) and bool(resources) and all(isinstance(item, dict) for item in resources)


def names(resources: list[dict]) -> list[str]:
    """The resource names of a configList; the plugin's keys are case-insensitive."""
    found = [{str(key).lower(): value for key, value in item.items()}.get("resourcename") for item in resources]
    return [name for name in found if isinstance(name, str)]


def sets_links_up(resources: list[dict]) -> bool:
    """Whether an entry leaves linkUp at its default, true, which needs CAP_NET_ADMIN."""
    return any(
        {str(key).lower(): value for key, value in item.items()}.get("linkup") is not False for item in resources
    )


def _entry(rail: dict) -> dict:
    entry = {"resourceName": NAME.format(index=rail["index"]), "rdmaHcaMax": COUNT}
    if rail["netdev"]:
        entry["selectors"] = {"ifNames": [rail["netdev"]]}
    elif rail["pci"]:
        entry["extraSelectors"] = {"pciAddresses": [rail["pci"]]}
    else:
        entry["extraSelectors"] = {"rdmaDevices": [rail["hca"]]}
    if not rail["pci"]:
        entry["softwareDevices"] = True
    # Interfaces are up to rail_links and the operating system.
    entry["linkUp"] = False
    # Where the kubelet aligns GPUs and rails to NUMA nodes (k3s_topology_manager_policy), it uses these hints.
    entry["topology"] = "auto"
    return entry


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
