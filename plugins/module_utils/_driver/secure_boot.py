"""Whether this kernel loads unsigned modules, and whether the DKMS signing key is enrolled.

PRIVATE to the collection. Sources: the EFI variable SecureBoot (four bytes of attributes, then 0 or 1), the lockdown
file of securityfs, the kernel's own sig_enforce, and shim's list of machine owner keys, which contains the raw
certificates.
"""

from __future__ import annotations

import re
from typing import Any

from ..hca.tree import Tree

_EFI = "/sys/firmware/efi"
_SECURE_BOOT = f"{_EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_MOK_LISTS = (
    f"{_EFI}/mok-variables/MokListRT",
    f"{_EFI}/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
)
# Ubuntu signs with shim's key, all others with DKMS's own.
_DKMS_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")


def secure_boot(tree: Tree) -> dict[str, Any]:
    """{enabled: bool|"unknown: …", lockdown, signatures_required, dkms_key: path|None, dkms_key_enrolled: bool}."""
    enabled: Any = False
    if tree.isdir(_EFI):
        data = tree.read_bytes(_SECURE_BOOT)
        enabled = "unknown: the EFI variable SecureBoot is not readable" if data is None else data[4:5] == b"\x01"
    chosen = re.search(r"\[(\w+)\]", tree.read("/sys/kernel/security/lockdown") or "")
    lockdown = chosen.group(1) if chosen else "none"
    enforced = tree.read("/sys/module/module/parameters/sig_enforce") == "Y"
    key = next((path for path in _DKMS_KEYS if tree.exists(path)), None)
    certificate = tree.read_bytes(key) if key else None
    enrolled = any(certificate in (tree.read_bytes(path) or b"") for path in _MOK_LISTS) if certificate else False
    return {
        "enabled": enabled,
        "lockdown": lockdown,
        # A distribution kernel locks itself down under Secure Boot; without securityfs only the variable shows it.
        "signatures_required": enabled is True or lockdown != "none" or enforced,
        "dkms_key": key,
        "dkms_key_enrolled": enrolled,
    }
