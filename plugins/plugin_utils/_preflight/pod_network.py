"""The pod network against the facts of a node. Pure."""

from ...module_utils._core.change import Finding
from .._core.addresses import netaddr
from .._core.addresses import network as as_network

# Bytes of encapsulation that a backend adds to each packet.
OVERHEAD = {"vxlan": 50, "wireguard": 80, "host-gw": 0}
# UDP ports of the backends, Flannel's documented defaults if its configuration sets none, and their links.
PORTS = {"vxlan": 8472, "wireguard": 51820, "host-gw": None}
LINKS = {"vxlan": "flannel.1", "wireguard": "flannel-wg"}
_VARIABLE = "correct it where it is set (inventory, group_vars or -e)"


def findings(facts: dict, variables: dict) -> list[Finding]:
    found: list[Finding] = []
    network = _network("flannel_cidr", variables["flannel_cidr"], found)
    if network:
        found += _clashes(network, facts, variables)
    if variables["flannel_backend"] == "host-gw" and variables["flannel_mtu"]:
        wanted = "0 with flannel_backend host-gw, which does not encapsulate"
        step = "set flannel_mtu to 0, or use another backend"
        found.append(Finding("variable flannel_mtu", wanted, str(variables["flannel_mtu"]), step))
    netdev = pod_nic(facts, variables["flannel_interface"], variables["k3s_node_ip"])
    if netdev:
        found += _on(netdev, facts, variables)
    return found


def _network(name: str, text: str, found: list[Finding]):
    network = as_network(text)
    if network is not None and network.version == 4 and network.ip == network.network:
        return network
    like = network.cidr if network is not None and network.version == 4 else "10.42.0.0/16"
    found.append(Finding(f"variable {name}", f"an IPv4 network such as {like}", repr(text), _VARIABLE))
    return None


def _clashes(network, facts: dict, variables: dict) -> list[Finding]:
    """K10: one pod network everywhere, which overlaps nothing else."""
    found: list[Finding] = []
    if network.prefixlen > 24:
        step = "set a larger network: k3s allocates a /24 to each node"
        found.append(Finding("variable flannel_cidr", "room for a /24 per node", str(network), step))
    given, cluster = variables["flannel_cidr"], variables["k3s_cluster_cidr"]
    if given != cluster:
        step = "set both to the same network; the cluster-cidr of a running cluster cannot be changed"
        found.append(Finding("variable flannel_cidr", f"k3s_cluster_cidr {cluster}", given, step))
    service = _network("k3s_service_cidr", variables["k3s_service_cidr"], found)
    if service and (network in service or service in network):
        step = "choose networks that share no address"
        seen = f"{network} overlaps k3s_service_cidr {service}"
        found.append(Finding("variable flannel_cidr", "a network that overlaps no other", seen, step))
    for netdev in _netdevs(facts):
        for address in netdev["addresses"] if isinstance(netdev["addresses"], list) else ():
            own = netaddr.IPNetwork(address)
            if network in own or own in network:
                step = "choose a network that no NIC of a node is in"
                seen = f"{network} overlaps {address} of {netdev['name']}"
                found.append(Finding("variable flannel_cidr", "a network that overlaps no other", seen, step))
    return found


def _netdevs(facts: dict) -> list[dict]:
    found = {netdev["name"]: netdev for hca in facts["hcas"] for netdev in hca["netdevs"]}
    return [found[name] for name in sorted(found)]


def pod_nic(facts: dict, interface: str, node_address: str) -> dict | None:
    """The HCA's NIC that pod traffic would use; None if the NIC is not an HCA's, or not in the facts."""
    for netdev in _netdevs(facts):
        addresses = netdev["addresses"] if isinstance(netdev["addresses"], list) else []
        if interface:
            if netdev["name"] == interface:
                return netdev
        elif node_address:
            if node_address in {address.partition("/")[0] for address in addresses}:
                return netdev
        elif netdev["default_route"]:
            return netdev
    return None


def fabric(facts: dict, netdev: dict) -> str | None:
    """Why a NIC of an HCA belongs to the fabric; None for the node's management NIC."""
    if netdev["default_route"]:
        return None
    rails = [rail["index"] for rail in facts["rails"] if rail["netdev"] == netdev["name"]]
    return f"it is rail {rails[0]}" if rails else "it belongs to an HCA and does not carry the default route"


def _on(netdev: dict, facts: dict, variables: dict) -> list[Finding]:
    """K8: the NIC and its MTU."""
    found = []
    why = fabric(facts, netdev)
    if why and variables["flannel_fabric_allowed"] is not True:
        step = (
            "set k3s_node_ip (or flannel_interface) to the node's own network, or flannel_fabric_allowed: true if it "
            "should use the fabric"
        )
        seen = f"{why}: pod traffic would share it with RDMA"
        found.append(Finding(f"NIC {netdev['name']}", "pod traffic on the node's own network", seen, step))
    mtu, backend = variables["flannel_mtu"], variables["flannel_backend"]
    room = (netdev["mtu"] or 0) - OVERHEAD[backend]
    if mtu and netdev["mtu"] and mtu > room:
        seen = f"{mtu}, with MTU {netdev['mtu']} on {netdev['name']}"
        step = "lower flannel_mtu, set it to 0, or raise the NIC's MTU first"
        found.append(Finding("variable flannel_mtu", f"{room} or less ({backend})", seen, step))
    return found
