"""What a second run promises: it changes nothing."""

# On the first server, and on every other node; those of docs/cluster.md.
ON_THE_SERVER, ON_AN_AGENT = 15, 13


def test_a_second_run_changes_nothing_and_restarts_nothing(cluster):
    pids, pods = cluster.main_pids(), set(cluster.pods())

    with cluster.timed("site.yml on the finished cluster"):
        second = cluster.run("site.yml")

    assert second.code == 0, second.text[-6000:]
    cluster.note_longest(second, "the second run", 20)
    for name in cluster.nodes:
        assert second.record["hosts"][name]["changed"] == []
        calls = second.record["hosts"][name]["calls"]
        cluster.note(f"{len(calls):7}    remote calls of the second run to {name}")
        assert len(calls) <= (ON_THE_SERVER if name == cluster.server else ON_AN_AGENT), calls
        assert second.checks(name, "failed") == []
    assert cluster.main_pids() == pids
    assert set(cluster.pods()) == pods
