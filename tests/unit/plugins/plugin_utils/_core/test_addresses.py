"""A controller without netaddr says so where it is needed, and only there."""

from __future__ import annotations

import runpy
import sys

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import addresses


def test_a_missing_library_is_named_at_its_first_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "netaddr", None)
    missing = runpy.run_path(addresses.__file__)["netaddr"]
    with pytest.raises(AnsibleError, match=f"netaddr, seen none in {sys.executable}. Next step: install it"):
        missing.IPNetwork("192.0.2.0/24")
