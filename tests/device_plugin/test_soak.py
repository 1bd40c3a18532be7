"""Memory and descriptors over kubelet restarts and refused registrations; `soak.py` does it for longer."""

from __future__ import annotations

import pytest
import soak


@pytest.mark.parametrize("watches", [False, True], ids=["legacy", "watch"])
def test_kubelet_restarts_and_refusals_leave_nothing_behind(base, watches):
    """Pitfall 2: after each restart the resources are back, and neither descriptors nor threads are left from it"""
    seen = soak.soak(base, 24, watches)
    memory, descriptors = soak.growth(seen)
    assert descriptors <= len(soak.RAILS), seen  # a connection that is just about to close
    assert memory < 1, seen
