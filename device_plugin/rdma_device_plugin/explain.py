# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`explain`: one line for each network card and pool: whether the card is in, and if not, why."""

from __future__ import annotations

from . import allocation, pools
from .config import Config
from .hca import Tree
from .hca.facts import gather
from .pools import Inventory


def explain(config: Config, root: str) -> list[str]:
    """The report for the node below root, as lines."""
    tree = Tree(root)
    found = pools.discover(tree, pools.Wanted(any(pool.extra.pKeys for pool in config.pools)))
    # The library knows more about a Mellanox card without RDMA: which module is blocked, and by which file.
    facts = gather(tree, subset=["pci"])["cards_without_rdma"]
    return lines(config, found, {card["address"]: f"{card['reason']} {card['next_step']}" for card in facts})


def lines(config: Config, found: Inventory, reasons: dict[str, str]) -> list[str]:
    answer = []
    if found.exclusive:
        answer.append("node: RDMA netns mode exclusive, all devices are Unhealthy (wanted: shared)")
    if not found.rdma_cm:
        answer.append("node: no /dev/infiniband/rdma_cm: load rdma_ucm (modprobe rdma_ucm)")
    for pool in config.pools:
        chosen = pools.members(pool, found)
        states = {
            hca.name: pools.hca_healthy(pool.health, [port.state == pools.ACTIVE for port in hca.ports])
            for hca in chosen
        }
        offer = allocation.offer(pool, chosen, states, found.rdma_cm, found.exclusive)
        answer.append(f"pool {pool.resource}: {offer.count} devices, {offer.healthy} healthy, {len(chosen)} HCAs")
        answer += [f"  {text}" for text in [pools.moved(pool, found)] if text]
        for hca in found.hcas:
            out = pools.judge(pool, hca, found.rdma_cm)
            verdict = f"out: {out.text}" if out else f"in: {_ports(hca)}"
            answer.append(f"  {hca.label}: {verdict}")
        answer += [f"  {card.label}: out: {reasons.get(card.address, card.reason)}" for card in found.cards]
    if not found.hcas and not found.cards:
        answer.append("node: no network card on PCI and no RDMA device")
    return answer


def _ports(hca: pools.Hca) -> str:
    return ", ".join(f"port {port.number} {port.state or 'unreadable'}" for port in hca.ports) or "no ports"
