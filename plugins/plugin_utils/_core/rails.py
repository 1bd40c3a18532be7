"""Rails of a node's facts, in the form that the plans of networks and test pods take. Pure."""

from ansible.module_utils.common.validation import check_type_list

from ...module_utils._device_plugin import config, dra


def network_rails(facts: dict) -> list[dict]:
    """Each rail with index, hca, port, kind, netdev, pci, link_layer, active_mtu and char_devices."""
    hcas = {hca["name"]: hca for hca in facts["hcas"]}
    rails = []
    for rail in facts["rails"]:
        hca = hcas.get(rail["hca"]) or {"kind": None, "ports": [], "char_devices": {"uverbs": None, "umad": []}}
        port = next((port for port in hca["ports"] if port["number"] == rail["port"]), {})
        rails.append(
            {
                **{key: rail[key] for key in ("index", "hca", "port", "netdev", "pci")},
                "kind": hca["kind"],
                "link_layer": port.get("link_layer"),
                "active_mtu": port.get("active_mtu"),
                "char_devices": [hca["char_devices"]["uverbs"], *hca["char_devices"]["umad"]],
            }
        )
    return rails


def rail_states(facts: dict) -> list[tuple[dict, dict | None]]:
    """(rail, its port or None) of each rail, in order."""
    ports = {(hca["name"], port["number"]): port for hca in facts.get("hcas") or [] for port in hca["ports"]}
    rails = sorted(facts.get("rails") or [], key=lambda rail: rail["index"])
    return [(rail, ports.get((rail["hca"], rail["port"]))) for rail in rails]


def is_active(port: dict | None) -> bool:
    return bool(port) and port.get("state") == "ACTIVE"


def dra_rails(variables: dict, facts: dict | None) -> dict[int, str | None]:
    """{number of a rail that the node serves over DRA: the extended resource for it}; empty without facts."""
    resources, api, rails = (variables[f"device_plugin_{name}"] for name in ("resources", "api", "dra_rails"))
    if not facts or api == config.PLUGIN:
        return {}
    try:
        _over_plugin, over_dra = dra.served(resources, api, [int(index) for index in check_type_list(rails)], facts)
    except ValueError:
        return {}  # the plan reports it
    return dra.rails(over_dra, facts)
