# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of each entry of the config, and HCAs that two entries would count. Pure."""

from __future__ import annotations

from typing import NamedTuple

from . import pools
from .config import Config, ExtraSelectors, Pool, Selectors
from .pools import Inventory

DEVICE_PLUGIN, DRA, BOTH = "device-plugin", "dra", "both"


class Split(NamedTuple):
    """The entries of a config by the API that serves them. warnings: settings without effect."""

    device: tuple[Pool, ...]
    dra: tuple[Pool, ...]
    warnings: tuple[str, ...] = ()


def split(config: Config, mode: str) -> Split:
    device, dra, warnings = [], [], []
    for pool in config.pools:
        over_dra = mode == DRA or (mode == BOTH and pool.api == DRA)
        if mode == DEVICE_PLUGIN and pool.api == DRA:
            warnings.append(f"{pool.resource}: not served, its api is dra and the mode is {mode}")
        elif over_dra:
            dra.append(pool)
            warnings += _in_vain(pool)
        else:
            device.append(pool)
    return Split(tuple(device), tuple(dra), tuple(warnings))


def _in_vain(pool: Pool) -> list[str]:
    found = []
    if pool.api == DEVICE_PLUGIN:
        found.append("api device-plugin is ignored in mode dra")
    if pool.allocation != "all":
        found.append(f"allocation {pool.allocation} has no meaning over DRA: a device is one HCA")
    return [f"{pool.resource}: {text}" for text in found]


def overlaps(parts: Split, inventory: Inventory) -> dict[str, str]:
    """{HCA: why DRA must not publish it}: another entry also has it, so it would be counted more than once."""
    found = {}
    for hca in inventory.hcas:
        over_dra = [pool.resource for pool in parts.dra if pools.unselected(pool, hca) is None]
        others = [pool.resource for pool in parts.device if pools.unselected(pool, hca) is None]
        if over_dra and len(over_dra) + len(others) > 1:
            names = " and ".join([*over_dra, *others])
            found[hca.label] = (
                f"{hca.label} is in {names}, so it would be counted more than once: give it to one of them"
            )
    return found


def contradictions(parts: Split) -> list[str]:
    """Pairs of entries where every HCA of one is also in the other, on any node."""
    found = []
    for index, pool in enumerate(parts.dra):
        for other in (*parts.dra[index + 1 :], *parts.device):
            inner = next((pair for pair in ((pool, other), (other, pool)) if _within(*pair)), None)
            if inner:
                found.append(
                    f"resource {inner[0].resource}: every HCA that it selects is also one of {inner[1].resource} and "
                    f"would be counted more than once: over DRA an HCA belongs to one entry"
                )
    return found


def _within(inner: Pool, outer: Pool) -> bool:
    """Whether every HCA that matches one selector also matches the other."""
    if inner.software and not outer.software and not _hardware_only(inner):
        return False
    return _narrower(inner.selectors, outer.selectors) and _narrower(inner.extra, outer.extra)


def _hardware_only(pool: Pool) -> bool:
    plain = pool.selectors
    return bool(plain.vendors or plain.deviceIDs or plain.drivers or pool.extra.pciAddresses)


def _narrower(inner: Selectors | ExtraSelectors, outer: Selectors | ExtraSelectors) -> bool:
    return all(not wide or (narrow and set(narrow) <= set(wide)) for narrow, wide in zip(inner, outer))
