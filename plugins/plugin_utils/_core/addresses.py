"""netaddr, for everything that runs on the controller; code that runs on nodes has only ipaddress.

Import it from here: if netaddr is missing, its first use says what to install.
"""

from ansible.errors import AnsibleError

from ...module_utils._core.text import sentence
from . import libraries

__all__ = ("address", "inside", "netaddr", "network")

try:
    import netaddr
except ImportError:

    class _Missing:
        def __getattr__(self, name: str):
            raise AnsibleError(sentence(libraries.missing("netaddr")))

    netaddr = _Missing()


def network(value):
    """The IPNetwork of a value; None where it is none."""
    try:
        return netaddr.IPNetwork(value)
    except (netaddr.AddrFormatError, TypeError, ValueError):
        return None


def address(value):
    """The IPAddress of a value; None where it is none."""
    try:
        return netaddr.IPAddress(value)
    except (netaddr.AddrFormatError, TypeError, ValueError):
        return None


def inside(value, net) -> bool:
    """Whether a value is an address of a network; not where there is none."""
    held = address(value)
    return held is not None and net is not None and held in net
