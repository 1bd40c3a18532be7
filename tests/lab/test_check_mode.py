"""What --check announces on untouched nodes is what the run after it does; a third run does nothing, in few calls."""

NODES = ("node1", "node2")

# Everything a role may write to; what the kernel and the services keep for themselves lies elsewhere.
CHANGED_FILES = "find /boot /etc /opt /root /usr -xdev -newer /run/before-the-run -type f ! -path '/root/.ansible/*'"

# A run of site.yml needs one call for the facts, one for the firewall, one a host role, five at most for verification.
CALLS = 10


def test_check_announces_exactly_what_the_run_changes(untouched):
    for node in NODES:
        untouched.node(node, "rdma system set netns exclusive; touch /run/before-the-run; sleep 1")

    announced = untouched.play("site.yml", "--check", "--diff")
    still = [untouched.node(node, f"cat /sys/module/ib_core/parameters/netns_mode; {CHANGED_FILES}") for node in NODES]
    done = untouched.play("site.yml")
    written = {node: set(untouched.node(node, CHANGED_FILES).splitlines()) for node in NODES}
    again = untouched.play("site.yml")

    assert announced.code == 0, announced.text
    assert still == ["N", "N"]
    assert done.code == 0, done.text
    assert again.code == 0, again.text
    for node in NODES:
        assert len(done.changes(node)) > 5
        assert announced.changes(node) == done.changes(node)
        assert written[node] == {thing for thing, _action in announced.changes(node) if thing.startswith("/")}
        assert again.changes(node) == set()
        assert not any(result.get("changed") for result in again.results[node])
        calls = again.record["hosts"][node]
        assert 0 < calls["remote_calls"] <= CALLS, calls["calls"]
        print(f"{node}: {calls['remote_calls']} remote calls in a converged run")
