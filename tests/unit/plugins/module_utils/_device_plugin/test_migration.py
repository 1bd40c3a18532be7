"""DaemonSets of another device plugin: removed with consent, an operator's never."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import migration

FOUND = {"namespace": "kube-system", "name": "rdma-shared-dp-ds", "image": "go:1", "ours": False, "owner": ""}
THERE = "kube-system/rdma-shared-dp-ds"


@pytest.mark.parametrize(
    ("found", "replaced", "allowed", "outcome"),
    [
        ([], "", None, (0, 0, 0)),
        ([FOUND], "", None, (0, 1, 0)),
        ([FOUND], "", True, (1, 0, 0)),
        ([FOUND], "", False, (0, 0, 1)),
        ([FOUND], THERE, None, (0, 0, 0)),
        ([{**FOUND, "name": "other"}], THERE, None, (0, 1, 0)),
        ([{**FOUND, "ours": True}], "", None, (1, 0, 0)),
        ([{**FOUND, "owner": "NicClusterPolicy nic"}], "", True, (0, 1, 0)),
        ([{**FOUND, "owner": "NicClusterPolicy nic"}], THERE, True, (0, 1, 0)),
    ],
)
def test_daemonsets_go_on_consent_and_those_of_an_operator_never(found, replaced, allowed, outcome):
    made = migration.plan(found, replaced, allowed)
    assert (len(made.changes), len(made.findings), len(made.not_applied)) == outcome
