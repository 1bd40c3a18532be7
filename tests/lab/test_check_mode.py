"""What --check announces on untouched nodes is what the run after it does, object by object."""

NODES = ("node1", "node2")


def test_check_announces_exactly_what_the_run_changes(untouched):
    for node in NODES:
        untouched.node(node, "rdma system set netns exclusive")

    announced = untouched.play("site.yml", "--check", "--diff")
    still = [
        untouched.node(node, "cat /sys/module/ib_core/parameters/netns_mode; ls /etc/modules-load.d") for node in NODES
    ]
    done = untouched.play("site.yml")
    again = untouched.play("site.yml")

    assert announced.code == 0, announced.text
    assert still == ["N\nmodules.conf"] * 2
    assert done.code == 0, done.text
    for node in NODES:
        assert len(done.changes(node)) > 5
        assert announced.changes(node) == done.changes(node)
        assert again.changes(node) == set()
        assert not any(result.get("changed") for result in again.results[node])
    assert again.code == 0, again.text
