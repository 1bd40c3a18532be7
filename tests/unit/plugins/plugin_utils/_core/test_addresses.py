"""A controller without netaddr says so where it is needed, and only there."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import addresses


def test_a_missing_library_is_named_at_its_first_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "netaddr", None)
    spec = importlib.util.spec_from_file_location(addresses.__name__, addresses.__file__)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    missing = loaded.netaddr
    with pytest.raises(AnsibleError, match=f"netaddr, seen none in {sys.executable}. Next step: install it"):
        missing.IPNetwork("192.0.2.0/24")
