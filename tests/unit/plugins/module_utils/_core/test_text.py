"""The reason of an unreachable node."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host

SSH = "Failed to connect to the host via ssh"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (f"{SSH}: ", SSH),
        (f"{SSH}:\n", SSH),
        (f"{SSH}: Connection refused\r\n", f"{SSH}: Connection refused"),
        ("", "no reason given"),
        (None, "no reason given"),
    ],
)
def test_a_reason_does_not_end_in_a_colon(message, reason):
    assert text.reason(message) == reason
    assert host.unreachable(message).seen == f"unreachable: {reason}"
