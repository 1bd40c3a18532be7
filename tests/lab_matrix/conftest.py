"""The bandwidth matrix on the nodes of `make lab`, each test from the same snapshot."""

from ansible_collections.gpufabric.rdma.tests.lab.conftest import converged, lab

__all__ = ["converged", "lab"]
