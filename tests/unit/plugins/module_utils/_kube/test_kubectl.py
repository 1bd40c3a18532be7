"""How long a silent API server is asked: a clock that only the calls and the pauses advance."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl

SILENT = (1, "", "Unable to connect to the server: net/http: TLS handshake timeout")


def calls_until(patience, seconds, answers):
    """How often a call that takes so many seconds is made; answers: how many are silent."""
    now, made = [0.0], []

    def call():
        made.append(now[0])
        now[0] += seconds
        return SILENT if len(made) <= answers else (0, "ok", "")

    def sleep(pause):
        now[0] += pause

    code, _out, _error = kubectl.retry_until(call, patience, lambda: now[0], sleep)
    return len(made), code


@pytest.mark.parametrize(
    ("patience", "seconds", "answers", "wanted"),
    [
        (60, 1, 3, (4, 0)),
        (60, 300, 1, (2, 0)),  # one call took more than the patience: a moment later the server may well answer
        (60, 300, 9, (2, 1)),
        (60, 10, 99, (5, 1)),
        (0, 300, 9, (1, 1)),
    ],
)
def test_a_silent_server_is_asked_again_and_not_for_ever(patience, seconds, answers, wanted):
    assert calls_until(patience, seconds, answers) == wanted
