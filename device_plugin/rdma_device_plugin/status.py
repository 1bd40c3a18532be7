# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin's status as sentences: for /readyz, for `systemctl status`, and for the log after a scan."""

from __future__ import annotations

import logging

from . import log, pools
from .config import Config
from .pools import Inventory
from .state import State

EXCLUSIVE = (
    "incorrect RDMA subsystem network namespace mode: exclusive, wanted shared; all devices are Unhealthy. Set it "
    "before pods run: rdma system set netns shared, or options ib_core netns_mode=1 (role gpufabric.rdma.rdma_netns)"
)


def problems(state: State) -> list[str]:
    """Problems that keep the plugin from serving, one line each; empty when all is well."""
    found = [
        f"{served.pool.resource}: {served.resource.state}"
        + (f" ({served.resource.error})" if served.resource.error else "")
        + (f", tried {served.resource.attempts} times" if served.resource.attempts > 1 else "")
        for served in state.served.values()
        if not served.resource.registered
    ]
    if state.front:
        found += state.front.problems()
    found += filter(None, (pools.moved(pool, state.inventory) for pool in state.pools))
    if state.inventory.exclusive:
        found.append(EXCLUSIVE)
    if state.hung:
        found.append(f"a read of sysfs has been hanging for {state.hangs:.0f} s: health is unknown")
    if state.config_error:
        found.append(f"the config file cannot be used as it is: {state.config_error}")
    return found


def empty(state: State) -> list[str]:
    """Resources that select no HCA of this node, which is right where the node has none."""
    served = [one for one in state.served.values() if not one.service.offer.members]
    return [f"{one.pool.resource}: no HCA of this node is selected, see the command explain" for one in served]


def line(state: State) -> str:
    """One line for a service manager."""
    registered = sum(served.resource.registered for served in state.served.values())
    why = log.printable("; ".join(problems(state)))
    known = [f"{registered} of {len(state.served)} resources registered"] if state.served or not state.front else []
    if state.front:
        published = state.front.publisher.published
        known.append(f"DRA driver {'' if state.front.driver.registered else 'not '}registered, {published} devices")
    return ", ".join(known) + (f": {why}" if why else "")


def report(config: Config, inventory: Inventory) -> None:
    """Log what a scan found, where it differs from the last one."""
    for pool in config.pools:
        for hca in inventory.hcas:
            out = pools.judge(pool, hca, inventory.rdma_cm)
            # Only HCAs that are selected but left out are logged; `explain` covers the rest.
            if out and out.code.startswith("no-"):
                log.on_change(
                    f"judge {pool.name} {hca.name}", f"{pool.resource}: {hca.label} {out.text}", logging.WARNING
                )
            elif not out:
                log.on_change(f"judge {pool.name} {hca.name}", f"{pool.resource}: has {hca.label}")
    if inventory.exclusive:
        log.on_change("netns", EXCLUSIVE, logging.ERROR)
    else:
        log.on_change("netns", f"RDMA network namespace mode: {inventory.netns}")
