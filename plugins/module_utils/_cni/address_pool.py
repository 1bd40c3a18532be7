"""Addresses that an IPAM hands out, counted as host-local, whereabouts and nv-ipam do, and whether there are enough.

Pure; standard library only. The linter, the planner of networks and the import of policies share it.
"""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple, Optional

from .._core import text as core_text
from .._core.change import Finding


class Pool(NamedTuple):
    """first, last: the addresses to hand out. outside: excluded (first, last). stray: options outside of the range.

    block: how many addresses each node gets, one node after the other; None if all nodes share the range. within:
    excluded (first, last) of every block, counted from its first address.
    """

    network: Any
    first: int
    last: int
    outside: tuple = ()
    block: Optional[int] = None
    stray: tuple = ()
    within: tuple = ()

    def ranges(self, index: Optional[int]) -> list:
        """(first, last) of a node's block without exclusions; of the whole range for None.

        An excluded address still belongs to its block, so that blocks stay in place when the
        exclusions change.
        """
        cursor = self.first + (index or 0) * (self.block or 0)
        end = self.last if index is None else min(cursor + (self.block or 0) - 1, self.last)
        found = []
        for low, high in sorted([*self.outside, *((cursor + first, cursor + last) for first, last in self.within)]):
            if high < cursor or low > end:
                continue
            if low > cursor:
                found.append((cursor, low - 1))
            cursor = max(cursor, high + 1)
        return [*found, (cursor, end)] if cursor <= end else found

    def free(self, index: Optional[int]) -> int:
        return sum(high - low + 1 for low, high in self.ranges(index))

    @property
    def blocks(self) -> int:
        """How many nodes can get a block."""
        return max(0, self.last - self.first + 1) // (self.block or 1)


def span(value) -> tuple:
    """(version, first, last) of an address, a network, or two addresses; ValueError for anything else."""
    first, dash, last = str(value).partition("-")
    one = ipaddress.ip_network(first.strip(), strict=False)
    end = ipaddress.ip_address(last.strip()) if dash else one.broadcast_address
    if dash and end < one.network_address:
        raise ValueError(f"{value}, which ends before it starts")
    return one.version, int(one.network_address), int(end)


def make(subnet, start=None, end=None, gateway=None, exclude=(), block=None, whole=False, reserving=False) -> Pool:
    """A Pool; ValueError for an invalid address. whole: the network and broadcast addresses are handed out too.

    subnet: whereabouts also takes FIRST-LAST/PREFIX. reserving: like host-local, keep the first address as gateway.
    """
    text, dash, rest = str(subnet).partition("-")
    if dash:
        start, (end, _slash, prefix) = start or text, rest.partition("/")
        text = f"{text}/{prefix}"
    network = ipaddress.ip_network(text, strict=False)
    lowest, highest = int(network.network_address), int(network.broadcast_address)
    first, last = lowest, highest
    if not whole and network.version == 4 and network.prefixlen < 31:
        first, last = first + 1 + (reserving and not gateway), last - 1
    stray, outside = [], []
    for name, value in (
        ("range_start", start), ("range_end", end), ("gateway", gateway), *(("exclude", one) for one in exclude)
    ):  # fmt: skip
        if not value:
            continue
        version, low, high = span(value)
        if name != "exclude" and "/" in str(value):
            raise ValueError(f"{name} {value} with a prefix")
        if version != network.version or high < lowest or low > highest:
            stray.append(f"{name} {value}")
        elif name == "range_start":
            first = max(first, low)
        elif name == "range_end":
            last = min(last, high)
        else:
            outside.append((low, high))
    return Pool(network, first, last, tuple(sorted(outside)), block, tuple(stray))


def judge(obj: str, pool: Pool, nodes: dict, family: str, pods: Optional[int] = None) -> list[Finding]:
    """What keeps pods from an address. nodes: {host: number of its block}. pods: how many of a node attach."""
    found = []
    if pool.stray:
        seen = f"{core_text.listing(pool.stray)} outside of it"
        step = "correct the address, or the network"
        found.append(Finding(obj, f"addresses of {pool.network}", seen, step, f"{family}:outside"))
    if pool.block is None:
        free = pool.free(None)
        if free < max(1, len(nodes)):
            seen = f"{free} of {pool.network} are left by its range and exclusions"
            step = "exclude fewer addresses, or use a larger range"
            wanted = f"an address for {core_text.count(max(1, len(nodes)), 'node')}"
            found.append(Finding(obj, wanted, seen, step, f"{family}:blocks"))
        return found
    needed = max(nodes.values(), default=-1) + 1
    if needed > pool.blocks:
        wanted = f"{core_text.count(needed, 'block')} of {pool.block} addresses, one per node"
        seen = f"{pool.network} has {max(0, pool.last - pool.first + 1)} to hand out, so {pool.blocks} of them"
        step = "use a larger subnet (networks_rails_prefix for rails), or a smaller per_node_block_size"
        return [*found, Finding(obj, wanted, seen, step, f"{family}:blocks")]
    free = {host: pool.free(index) for host, index in nodes.items()}
    # Each host's own address and the gateway may lie in a block.
    few = {host: left for host, left in free.items() if left == 0 or left + len(nodes) + 1 < min(pods or 0, pool.block)}
    if few:
        seen = f"exclusions and hosts leave {min(few.values())} in the block of {core_text.names(list(few))}"
        step = "exclude fewer addresses, or use another subnet"
        wanted = f"addresses for {core_text.count(pods, 'pod')} per node" if pods else "addresses to hand out"
        found.append(Finding(obj, wanted, seen, step, f"{family}:blocks"))
    return found
