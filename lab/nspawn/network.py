"""The bridge between this machine and the nodes: a host-only subnet; nothing is forwarded and nothing leaves the machine."""

from __future__ import annotations

import ipaddress
import json

from .errors import fail, run

FIRST_NODE = 10  # node N has host number FIRST_NODE + N; number 1 is this machine


class Bridge:
    def __init__(self, name: str, subnet: str) -> None:
        self.name = name
        self.subnet = ipaddress.IPv4Network(subnet)

    def node_address(self, number: int) -> ipaddress.IPv4Interface:
        if number + FIRST_NODE >= self.subnet.num_addresses - 1:
            fail(
                f"node{number}",
                f"an address in {self.subnet}",
                "the subnet is full",
                "set RAILS_SUBNET to a larger one",
            )
        return ipaddress.IPv4Interface((self.subnet[number + FIRST_NODE], self.subnet.prefixlen))

    def create(self) -> None:
        for route in json.loads(
            run(["ip", "-json", "-4", "route", "show", "table", "all"], "routes of this machine", "check `ip route`")
        ):
            destination = route.get("dst", "default")
            if destination == "default" or route.get("dev") == self.name:
                continue
            if ipaddress.ip_network(destination, strict=False).overlaps(self.subnet):
                fail(
                    f"subnet {self.subnet} of the nodes",
                    "a range that this machine does not use",
                    f"a route to {destination} on {route.get('dev')}",
                    "set RAILS_SUBNET to a free range, for example RAILS_SUBNET=10.79.0.0/24",
                )
        what, hint = (
            f"bridge {self.name}",
            "check that this is root with CAP_NET_ADMIN and that the kernel has bridge and veth",
        )
        run(["ip", "link", "add", self.name, "type", "bridge"], what, hint)
        run(["ip", "address", "add", f"{self.subnet[1]}/{self.subnet.prefixlen}", "dev", self.name], what, hint)
        run(["ip", "link", "set", self.name, "up"], what, hint)

    def remove(self) -> None:
        links = json.loads(run(["ip", "-json", "link", "show"], "links of this machine", "check `ip link`"))
        if any(link["ifname"] == self.name for link in links):
            run(
                ["ip", "link", "delete", self.name],
                f"bridge {self.name}",
                f"remove it by hand: ip link delete {self.name}",
            )
