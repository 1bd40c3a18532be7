"""Prometheus' text format: its own parser reads what the collection writes, and promlint's rules find nothing."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import exposition as writer
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import formats
from ansible_collections.gpufabric.rdma.tests.tools import exposition, report_documents
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families


def gauges(text):
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize("kind", [kind for kind, make in report_documents.KINDS.items() if make().get("drift")])
def test_the_textfile_of_drift_is_read_as_it_was_meant(kind):
    drift = report_documents.KINDS[kind]()["drift"]
    text = formats.prometheus(drift)
    assert exposition.problems(text) == []
    read = gauges(text)
    assert read["gpufabric_rdma_drift_differences"] == [
        ({"host": host["host"]}, len(host["differences"])) for host in drift["hosts"]
    ]
    states = [labels for labels, value in read["gpufabric_rdma_drift_verdict"] if value]
    assert states == [{"host": host["host"], "verdict": host["verdict"]} for host in drift["hosts"]]
    assert read["gpufabric_rdma_drift_exit_code"] == [({}, drift["exit_code"])]


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3, unique_by=clean))
@settings(max_examples=200, deadline=None)
def test_any_label_is_read_back_as_it_was_shown(explained, hosts):
    text = writer.text([writer.Gauge("gpufabric_x", f"x{explained}", [({"host": host}, 1) for host in hosts])])
    assert exposition.problems(text) == []
    assert gauges(text) == {"gpufabric_x": [({"host": clean(host)}, 1.0) for host in hosts]}


GOOD = "# HELP rdma_x_total Text.\n# TYPE rdma_x_total counter\nrdma_x_total 1\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD.replace("rdma_x_total", "rdma_x"), "not end in _total"),
        (GOOD.replace("counter", "gauge"), "does end in _total"),
        (GOOD.replace("rdma_x_total", "rdma_x_counter_total"), "holds its type"),
        (GOOD.replace("rdma_x_total", "rdma_milliseconds_total"), "no base unit"),
        (GOOD.replace("rdma_x_total", "rdma_ms_total"), "shortened"),
        (GOOD.replace("rdma_x_total", "rdmaX_total"), "snake_case"),
        (GOOD.replace("# HELP rdma_x_total Text.\n", ""), "no HELP"),
        (GOOD.replace("# TYPE rdma_x_total counter\n", ""), "no TYPE"),
        (GOOD.replace("total 1", 'total{aB="1"} 1'), "camelCase"),
        (GOOD + "rdma_x_total 2\n", "twice"),
        (GOOD + GOOD.replace("x", "y") + 'rdma_x_total{a="1"} 2\n', "not in one place"),
        (GOOD.rstrip(), "does not end"),
        (GOOD.replace("total 1", 'total{a="1} 1'), "not the text format"),
    ],
)
def test_each_rule_is_seen_broken(text, fault):
    assert exposition.problems(GOOD) == []
    assert any(fault in problem for problem in exposition.problems(text)), exposition.problems(text)
