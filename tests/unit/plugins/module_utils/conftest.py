"""Kernel headers, and the modules that are compiled against them."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import kernel_modules


@pytest.fixture(scope="session")
def headers():
    try:
        return kernel_modules.build_tree()
    except kernel_modules.NoHeaders as reason:
        pytest.skip(f"not verified: no kernel headers to build modules against ({reason})")


@pytest.fixture(scope="session")
def kernel(headers):
    return kernel_modules.release(headers)


@pytest.fixture(scope="session")
def built(headers):
    return kernel_modules.build_all(headers)
