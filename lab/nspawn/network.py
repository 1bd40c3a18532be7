"""The bridge between this machine and the nodes: a host-only subnet; nothing is forwarded, nothing leaves the host."""

import ipaddress
import json
import os
import time

from lab.settings import LabError, run

FIRST_NODE = 10  # node N has host number FIRST_NODE + N; number 1 is this machine


class Bridge:
    def __init__(self, name: str, subnet: str | None = None) -> None:
        self.name = name
        self.subnet = ipaddress.IPv4Network(subnet or os.environ.get("RAILS_SUBNET") or "10.78.0.0/24")

    def node_address(self, number: int) -> ipaddress.IPv4Interface:
        if number + FIRST_NODE >= self.subnet.num_addresses - 1:
            room = self.subnet.num_addresses - FIRST_NODE - 2
            raise LabError(
                f"node{number}", f"an address in {self.subnet}", f"room for {room}", "set RAILS_SUBNET wider"
            )
        return ipaddress.IPv4Interface((self.subnet[number + FIRST_NODE], self.subnet.prefixlen))

    def create(self) -> None:
        for route in self._ip("-4", "route", "show", "table", "all"):
            destination = route["dst"]
            if destination != "default" and ipaddress.ip_network(destination, strict=False).overlaps(self.subnet):
                raise LabError(
                    f"subnet {self.subnet} of the nodes",
                    "a range that this machine does not use",
                    f"a route to {destination} on {route.get('dev')}",
                    "set RAILS_SUBNET to a free range, for example RAILS_SUBNET=10.79.0.0/24",
                )
        self._change("add", self.name, "type", "bridge")
        run(
            ["ip", "address", "add", f"{self.subnet[1]}/{self.subnet.prefixlen}", "dev", self.name],
            f"bridge {self.name}",
            "look at `ip address`",
        )
        self._change("set", self.name, "up")

    def remove(self, patience: float = 20.0) -> None:
        """Removes the bridge once its ports are gone, which takes a moment under load: their names must be free."""
        deadline = time.monotonic() + patience
        while ports := [link["ifname"] for link in self._ip("link", "show") if link.get("master") == self.name]:
            if time.monotonic() > deadline:
                next_step = "remove them with `ip link delete`, then run: lab/nspawnctl down"
                raise LabError(f"bridge {self.name}", "no port left", ", ".join(ports), next_step)
            time.sleep(0.05)
        if any(link["ifname"] == self.name for link in self._ip("link", "show")):
            self._change("delete", self.name)

    def _change(self, *words: str) -> None:
        needs = "this needs root with CAP_NET_ADMIN and a kernel with bridge and veth"
        run(["ip", "link", *words], f"bridge {self.name}", needs)

    @staticmethod
    def _ip(*words: str) -> list[dict]:
        return json.loads(run(["ip", "-json", *words], "network of this machine", f"look at: ip {' '.join(words)}"))
