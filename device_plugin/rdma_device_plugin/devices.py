# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What DRA publishes about a node: one shared device per HCA port, or one unit per share. Pure."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from . import pools
from .config import Pool
from .pools import Hca, Inventory

DRIVER = "rdma.gpufabric.io"
# Domains of Kubernetes' standard attributes, and of those by which Multus finds a claim's device
# (multus-cni pull request 1492). Multus rejects a resourceName other than the network's.
STANDARD, CNI = "resource.kubernetes.io", "k8s.cni.cncf.io"
TAINT = f"{DRIVER}/port-down"
SHARES, RATE = "shares", "rate"
# Limits of the API: a string attribute holds 64 characters, a device's name 63. Its suffix is at most -p255-u9999.
_TEXT, _NAME = 64, 63 - 11
# Units of one HCA port: each is a device for the scheduler. With consumable capacity there is no such limit.
MOST_UNITS = 1000
_NOT_IN_LABEL = re.compile("[^a-z0-9-]+")
_NOT_IN_VALUE = re.compile("[^A-Za-z0-9]+")
_UNIT = re.compile(r"(.+)-u([0-9]{2,4})\Z")


class Form(NamedTuple):
    """Fields that the API server keeps. shared: DRAConsumableCapacity; taints: DRADeviceTaints."""

    shared: bool = False
    taints: bool = False


class Device(NamedTuple):
    """An HCA's port for publication. port: None for an HCA without one. up: usable now."""

    name: str
    pool: Pool
    hca: Hca
    port: Optional[int]
    up: bool
    state: Optional[str] = None

    def names(self, form: Form) -> list[str]:
        """Its names in the pool: its own, or one per unit."""
        if form.shared:
            return [self.name]
        return [f"{self.name}-u{unit:02d}" for unit in range(min(self.pool.count, MOST_UNITS))]


def label(name: str) -> str:
    """An HCA's name as a DNS label."""
    text = _NOT_IN_LABEL.sub("-", name.lower()).strip("-") or "hca"
    return text if len(text) <= _NAME else f"{text[: _NAME - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def devices(
    entries: Iterable[tuple[Pool, Mapping[str, tuple[int, ...]]]],
    inventory: Inventory,
    states: Mapping[tuple[str, int], Optional[str]],
) -> tuple[Device, ...]:
    """All devices of the node, usable or not. entries: each pool with {HCA: ports that are up}, see Ports.judge."""
    taken = Counter(label(hca.name) for hca in inventory.hcas)
    found = []
    for pool, active in entries:
        for hca in pools.members(pool, inventory) if pool.count else ():
            base = label(hca.name)
            if taken[base] > 1:
                base = f"{base[: _NAME - 9]}-{_digest(hca.name)}"
            for port in hca.ports or (None,):
                number = port.number if port else None
                suffix = f"-p{number}" if len(hca.ports) > 1 else ""
                up = pool.health.ports == "ignore" or number is None or number in active.get(hca.name, ())
                seen = states.get((hca.name, number)) if number is not None else None
                state = pools.ACTIVE if up and pool.health.ports != "ignore" and number is not None else seen
                found.append(Device(f"{base}{suffix}", pool, hca, number, up and not inventory.exclusive, state))
    return tuple(found)


def find(name: str, known: Iterable[Device]) -> Optional[Device]:
    """The device of a published name of either form: a claim may be older than the present form."""
    by_name = {device.name: device for device in known}
    if name in by_name:
        return by_name[name]
    unit = _UNIT.match(name)
    return by_name.get(unit.group(1)) if unit else None


def published(known: Iterable[Device], form: Form) -> list[dict[str, Any]]:
    """The devices of the pool in the API's form, in order. A device that is down has a taint, or is left out."""
    found = []
    for device in known:
        if not device.up and not form.taints:
            continue
        made: dict[str, Any] = {"attributes": attributes(device)}
        if form.shared:
            made["capacity"] = _capacity(device)
            made["allowMultipleAllocations"] = True
        if not device.up:
            # An ACTIVE port is not usable while its health holds it down, or in netns mode exclusive.
            state = "unusable" if device.state == pools.ACTIVE else device.state or ""
            value = _NOT_IN_VALUE.sub("", state)[:63] or "unknown"
            made["taints"] = [{"key": TAINT, "value": value, "effect": device.pool.health.taint}]
        found += [{"name": name, **made} for name in device.names(form)]
    return found


def attributes(device: Device) -> dict[str, dict[str, Any]]:
    """Attributes under the driver's domain, Kubernetes' standard ones and Multus's. Unknown ones are left out."""
    hca, details = device.hca, device.hca.details
    port = next((one for one in hca.ports if one.number == device.port), None)
    rate = dict(details.rates).get(device.port or 0)
    full = device.pool.resource
    values: dict[str, Any] = {
        "name": hca.name,
        "nodeGuid": details.node_guid,
        "model": details.model,
        "psid": details.psid,
        "firmware": details.firmware,
        "linkLayer": port and port.link_layer,
        "rateGbps": int(rate) if rate else None,
        "state": device.state,
        "rail": rail(device),
        "netdev": port and port.netdev,
        "resource": device.pool.name,
        f"{STANDARD}/numaNode": hca.numa_node if hca.numa_node >= 0 else None,
        f"{STANDARD}/pciBusID": hca.address,
        f"{STANDARD}/pcieRoot": details.root,
        f"{CNI}/deviceID": hca.address,
        f"{CNI}/resourceName": full if len(full) <= _TEXT else None,
    }
    return {
        name: {"int": value} if isinstance(value, int) else {"string": value[:_TEXT]}
        for name, value in values.items()
        if value is not None and value != ""
    }


def rail(device: Device) -> Optional[int]:
    """The number of its rail; None for a port that is not a rail."""
    if device.pool.rail is not None:
        return device.pool.rail
    return dict(device.hca.details.rails).get(device.port or 0)


def _capacity(device: Device) -> dict[str, Any]:
    """A claim takes one share unless it asks for more, and bandwidth only if it asks for it."""
    most = device.pool.max_per_container
    shares: dict[str, Any] = {"min": "1", "step": "1"} if device.pool.count > 1 else {"min": "1"}
    if 0 < most <= device.pool.count:
        shares["max"] = quantity(most)
    found = {SHARES: {"value": quantity(device.pool.count), "requestPolicy": {"default": "1", "validRange": shares}}}
    rate = dict(device.hca.details.rates).get(device.port or 0)
    if rate and int(rate):
        policy = {"default": "0", "validRange": {"min": "0", "step": "1"}}
        found[RATE] = {"value": quantity(int(rate)), "requestPolicy": policy}
    return found


def quantity(number: int) -> str:
    """As the API server returns it, with the largest suffix: other text would count as a change by others."""
    power = 0
    while number and not number % 1000:
        number, power = number // 1000, power + 1
    return f"{number}{('', *'kMGTPE')[power]}"
