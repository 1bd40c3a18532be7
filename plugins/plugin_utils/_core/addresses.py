"""netaddr, for everything that runs on the controller; code that runs on nodes has only ipaddress.

PRIVATE to the collection. Import it from here: if netaddr is missing, its first use says what to install.
"""

from __future__ import annotations

from ansible.errors import AnsibleError

from ...module_utils._core.text import sentence
from . import libraries

__all__ = ("netaddr",)

try:
    import netaddr
except ImportError:

    class _Missing:
        def __getattr__(self, name: str):
            raise AnsibleError(sentence(libraries.missing("netaddr")))

    netaddr = _Missing()
