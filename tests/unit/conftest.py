"""What all unit tests have."""

from __future__ import annotations

import pytest
from ansible.plugins.loader import lookup_loader
from ansible_collections.gpufabric.rdma.plugins.lookup import variable


@pytest.fixture(autouse=True, scope="session")
def lookup_of_the_collection():
    """Templates that a test renders itself find our lookup: Ansible's collection loader is not at work in pytest."""
    of_ansible = lookup_loader.get

    def get(name, *arguments, **options):
        if name == "gpufabric.rdma.variable":
            return variable.LookupModule(*arguments, **options)
        return of_ansible(name, *arguments, **options)

    lookup_loader.get = get
    yield
    lookup_loader.get = of_ansible
