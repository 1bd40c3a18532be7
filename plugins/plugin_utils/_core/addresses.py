"""netaddr, for everything that runs on the controller; code that runs on nodes has only ipaddress.

Import it from here: if netaddr is missing, its first use reports what to install.
"""

from collections.abc import Iterator

from ansible.errors import AnsibleError

from ...module_utils._core.text import clean, sentence
from . import libraries

__all__ = ("address", "for_peers", "inside", "malformed", "netaddr", "network")

try:
    import netaddr
except ImportError:

    class _Missing:
        def __getattr__(self, name: str):
            raise AnsibleError(sentence(libraries.missing("netaddr")))

    netaddr = _Missing()


def network(value):
    """The IPNetwork of a value; None if it is not a network."""
    try:
        return netaddr.IPNetwork(value)
    except (netaddr.AddrFormatError, TypeError, ValueError):
        return None


def address(value):
    """The IPAddress of a value; None if it is not an address."""
    try:
        return netaddr.IPAddress(value)
    except (netaddr.AddrFormatError, TypeError, ValueError):
        return None


def inside(value, net) -> bool:
    """Whether a value is an address of a network; False without a network."""
    held = address(value)
    return held is not None and net is not None and held in net


def for_peers(texts) -> list[str]:
    """Those of an interface's addresses that peers can use: each port has a link-local one."""
    given = texts if isinstance(texts, list) else []
    ips = {text: net.ip for text in given if (net := network(text)) is not None}
    return [
        text
        for text, ip in ips.items()
        if not (ip.is_link_local() or ip.is_loopback() or ip.is_multicast() or not int(ip))
    ]


def malformed(answer: dict) -> str:
    """Malformed values among a node's addresses and routes' destinations; empty if there are none."""
    wrong = [text for text in _own(answer) if not _is_interface(text)]
    return clean(str(wrong))[:300] if wrong else ""


def _own(answer, key: str = "") -> Iterator:
    meant = key in ("addresses", "routes")
    if isinstance(answer, dict):
        for name, item in answer.items():
            yield from _own(item, key if meant else name)
    for item in answer if isinstance(answer, list) else ():
        if meant:
            yield item.get("address", item.get("destination")) if isinstance(item, dict) else item
        else:
            yield from _own(item)


def _is_interface(text) -> bool:
    return isinstance(text, str) and (":" in text or text.count(".") == 3) and network(text) is not None
