# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin's state and the counters of its ports in Prometheus' text format. Imported only if they are served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import InfoMetricFamily

from . import __version__, pools
from .hca import Tree, paths
from .status import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX, _PORT = "rdma_device_plugin", ["hca", "port"]
# The two that the kernel counts in units of four bytes (IBTA PortCounters).
_BYTES = {"port_xmit_data": "rdma_port_transmit_bytes", "port_rcv_data": "rdma_port_receive_bytes"}
_KINDS = ("counters", "hw_counters")
_NO_COUNTER = ("lifespan",)  # how long the driver keeps values, in milliseconds

Counters = list[tuple[str, int, str, str, int]]


def port_counters(tree: Tree, ports: tuple[tuple[str, int], ...]) -> Counters:
    """(HCA, port, counters or hw_counters, name, value) of every counter that reads as a number."""
    found = []
    for hca, number in ports:
        for kind in _KINDS:
            directory = f"{paths.INFINIBAND}/{hca}/ports/{number}/{kind}"
            for name in tree.listdir(directory):
                text = tree.read(f"{directory}/{name}") if name not in _NO_COUNTER else None
                if text and text.isdecimal():
                    found.append((hca, number, kind, name, int(text)))
    return found


def render(families: list[Any]) -> bytes:
    return generate_latest(SimpleNamespace(collect=lambda: families))


def families(state: State, counters: Counters) -> list[Any]:
    return [*_resources(state), *_node(state), *_ports(state), *_counters(counters)]


def _resources(state: State) -> list[Any]:
    of = ["resource"]
    devices = Gauge(f"{_PREFIX}_devices", "Units advertised to the kubelet, by health.", labels=[*of, "health"])
    hcas = Gauge(f"{_PREFIX}_hcas", "HCAs behind the pool.", labels=of)
    registered = Gauge(f"{_PREFIX}_registered", "1 while the kubelet holds a stream open.", labels=of)
    streams = Gauge(f"{_PREFIX}_streams", "Open ListAndWatch streams.", labels=of)
    answers = [*of, "mode", "result"]
    registrations = Counter(f"{_PREFIX}_registrations", "Answers of the kubelet to a registration.", labels=answers)
    updates = Counter(f"{_PREFIX}_updates", "Lists published after the first.", labels=of)
    allocations = Counter(f"{_PREFIX}_allocations", "Containers that asked for units.", labels=[*of, "result"])
    for one in state.served.values():
        name, service, offer = one.pool.resource, one.service, one.service.offer
        devices.add_metric([name, "Healthy"], offer.healthy)
        devices.add_metric([name, "Unhealthy"], offer.count - offer.healthy)
        hcas.add_metric([name], len(offer.members))
        registered.add_metric([name], one.resource.registered)
        streams.add_metric([name], service.streams)
        for (mode, result), count in sorted(one.resource.registrations.items()):
            registrations.add_metric([name, mode, result], count)
        updates.add_metric([name], service.updates)
        for result in ("granted", "refused"):
            allocations.add_metric([name, result], service.allocations[result])
    return [devices, hcas, registered, streams, registrations, updates, allocations]


def _node(state: State) -> list[Any]:
    scans = Counter(f"{_PREFIX}_scans", "Scans of the node.", labels=["result"])
    scans.add_metric(["done"], state.scans)
    scans.add_metric(["failed"], state.scan_failures)
    reloads = Counter(f"{_PREFIX}_config_reloads", "Changes of the config file.", labels=["result"])
    for result in ("applied", "failed"):
        reloads.add_metric([result], state.reloads[result])
    exclusive, valid = state.inventory.exclusive, not state.config_error
    return [
        InfoMetricFamily(f"{_PREFIX}_build", "Version.", value={"version": __version__}),
        scans,
        Counter(f"{_PREFIX}_scan_seconds", "Time spent in scans.", value=state.scan_seconds_total),
        Gauge(f"{_PREFIX}_last_scan_seconds", "Duration of the last scan.", value=state.scan_seconds),
        Gauge(f"{_PREFIX}_monitoring_hangs", "1 while a read of sysfs does not return.", value=state.hung),
        Gauge(f"{_PREFIX}_netns_exclusive", "1 in RDMA netns mode exclusive.", value=exclusive),
        Gauge(f"{_PREFIX}_config_valid", "0 while the config file cannot be used.", value=valid),
        reloads,
    ]


def _ports(state: State) -> list[Any]:
    active = Gauge("rdma_port_active", "1 while the port's state is ACTIVE.", labels=_PORT)
    flaps = Counter("rdma_port_link_flaps", "Times the port was seen to leave ACTIVE.", labels=_PORT)
    for hca, port in sorted(state.ports.states):
        active.add_metric([hca, str(port)], state.ports.states[hca, port] == pools.ACTIVE)
        flaps.add_metric([hca, str(port)], state.ports.flaps[hca, port])
    return [active, flaps]


def _counters(counters: Counters) -> list[Any]:
    made = {name: Counter(name, f"{source} in bytes.", labels=_PORT) for source, name in _BYTES.items()}
    of = [*_PORT, "counter"]
    text = "InfiniBand counters of the port (ports/N/counters)."
    made["counters"] = Counter("rdma_port_counters", text, labels=of)
    text = "The driver's counters of the port (ports/N/hw_counters)."
    made["hw_counters"] = Counter("rdma_port_hw_counters", text, labels=of)
    for hca, port, kind, name, value in counters:
        if kind == "counters" and name in _BYTES:
            made[_BYTES[name]].add_metric([hca, str(port)], value * 4)
        else:
            made[kind].add_metric([hca, str(port), name], value)
    return list(made.values())
