# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin's state and the counters of its ports in Prometheus' text format. Imported only if they are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from . import __version__, pools
from .hca import Tree, paths
from .status import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "rdma_device_plugin_"
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
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    return generate_latest(registry)


class _Fixed:
    def __init__(self, families: list[Any]):
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def families(state: State, counters: Counters) -> list[Any]:
    return [*_resources(state), *_node(state), *_ports(state), *_counters(counters)]


def _family(kind: Any, name: str, text: str, labels: list[str], samples: Iterator[tuple[list[str], float]]) -> Any:
    family = kind(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _resources(state: State) -> list[Any]:
    served = [(one.pool.resource, one) for one in state.served.values()]
    offers = [(name, one.service.offer) for name, one in served]

    def gauge(name: str, text: str, labels: list[str], samples: Iterator[tuple[list[str], float]]) -> Any:
        return _family(GaugeMetricFamily, _PREFIX + name, text, labels, samples)

    def counter(name: str, text: str, labels: list[str], samples: Iterator[tuple[list[str], float]]) -> Any:
        return _family(CounterMetricFamily, _PREFIX + name, text, labels, samples)

    return [
        gauge(
            "devices",
            "Units advertised to the kubelet, by health.",
            ["resource", "health"],
            (
                ([name, health], count)
                for name, offer in offers
                for health, count in (("Healthy", offer.healthy), ("Unhealthy", offer.count - offer.healthy))
            ),
        ),
        gauge("hcas", "HCAs behind the pool.", ["resource"], (([name], len(offer.members)) for name, offer in offers)),
        gauge(
            "registered",
            "1 while the kubelet holds a stream open.",
            ["resource"],
            (([name], one.resource.registered) for name, one in served),
        ),
        gauge(
            "streams",
            "Open ListAndWatch streams.",
            ["resource"],
            (([name], one.service.streams) for name, one in served),
        ),
        counter(
            "registrations",
            "Answers of the kubelet to a registration.",
            ["resource", "mode", "result"],
            (
                ([name, mode, result], count)
                for name, one in served
                for (mode, result), count in sorted(one.resource.registrations.items())
            ),
        ),
        counter(
            "updates",
            "Lists published after the first.",
            ["resource"],
            (([name], one.service.updates) for name, one in served),
        ),
        counter(
            "allocations",
            "Containers that asked for units.",
            ["resource", "result"],
            (
                ([name, result], one.service.allocations[result])
                for name, one in served
                for result in ("granted", "refused")
            ),
        ),
    ]


def _node(state: State) -> list[Any]:
    info = InfoMetricFamily(_PREFIX + "build", "Version.", value={"version": __version__})
    scans = CounterMetricFamily(_PREFIX + "scans", "Scans of the node.", labels=["result"])
    scans.add_metric(["done"], state.scans)
    scans.add_metric(["failed"], state.scan_failures)
    reloads = CounterMetricFamily(_PREFIX + "config_reloads", "Changes of the config file.", labels=["result"])
    for result in ("applied", "failed"):
        reloads.add_metric([result], state.reloads[result])
    return [
        info,
        scans,
        CounterMetricFamily(_PREFIX + "scan_seconds", "Time spent in scans.", value=state.scan_seconds_total),
        GaugeMetricFamily(_PREFIX + "last_scan_seconds", "Duration of the last scan.", value=state.scan_seconds),
        GaugeMetricFamily(_PREFIX + "monitoring_hangs", "1 while a read of sysfs does not return.", value=state.hung),
        GaugeMetricFamily(
            _PREFIX + "netns_exclusive", "1 in RDMA netns mode exclusive.", value=state.inventory.exclusive
        ),
        GaugeMetricFamily(
            _PREFIX + "config_valid", "0 while the config file cannot be used.", value=not state.config_error
        ),
        reloads,
    ]


def _ports(state: State) -> list[Any]:
    keys = sorted(state.ports.states)
    return [
        _family(
            GaugeMetricFamily,
            "rdma_port_active",
            "1 while the port's state is ACTIVE.",
            ["hca", "port"],
            (([hca, str(port)], state.ports.states[hca, port] == pools.ACTIVE) for hca, port in keys),
        ),
        _family(
            CounterMetricFamily,
            "rdma_port_link_flaps",
            "Times the port was seen to leave ACTIVE.",
            ["hca", "port"],
            (([hca, str(port)], state.ports.flaps[hca, port]) for hca, port in keys),
        ),
    ]


def _counters(counters: Counters) -> list[Any]:
    labels = ["hca", "port"]
    made = {name: CounterMetricFamily(name, f"{source} in bytes.", labels=labels) for source, name in _BYTES.items()}
    made["counters"] = CounterMetricFamily(
        "rdma_port_counters", "InfiniBand counters of the port (ports/N/counters).", labels=[*labels, "counter"]
    )
    made["hw_counters"] = CounterMetricFamily(
        "rdma_port_hw_counters", "The driver's counters of the port (ports/N/hw_counters).", labels=[*labels, "counter"]
    )
    for hca, port, kind, name, value in counters:
        if kind == "counters" and name in _BYTES:
            made[_BYTES[name]].add_metric([hca, str(port)], value * 4)
        else:
            made[kind].add_metric([hca, str(port), name], value)
    return list(made.values())
