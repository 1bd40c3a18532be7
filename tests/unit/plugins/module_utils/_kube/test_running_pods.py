"""When the test pods' questions to the cluster's DNS are worth asking: a clock that only the pauses advance."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import running_pods


class Cluster:
    """Stands in for Kubectl and for time: gives one list of EndpointSlices a call, the last one for ever."""

    def __init__(self, *answers):
        self.answers, self.asked, self.now = list(answers), 0, 0.0

    def items(self, *_words):
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def slices(*ready):
    return [{"kind": "EndpointSlice", "endpoints": [{"conditions": {"ready": one}} for one in ready] or None}]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [([slices(False, True)], 1), ([slices(), slices(False), slices(True)], 3), ([[]], 1)],
)
def test_the_dns_service_is_waited_for_until_it_has_an_endpoint(answers, asked):
    cluster = Cluster(*answers)
    running_pods.wait_for_dns(cluster, 60, clock=cluster)
    assert cluster.asked == asked


def test_a_dns_service_that_never_gets_ready_is_given_up_in_time():
    cluster = Cluster(slices(False))
    running_pods.wait_for_dns(cluster, 60, clock=cluster)
    assert 60 < cluster.now <= 64
