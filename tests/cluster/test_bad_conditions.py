"""site.yml while the API server hangs, over a bad management NIC, on a node whose clock is a day off.

Each run converges, or ends with a message that names what is wrong; then the next run converges once it is mended.
"""

from __future__ import annotations

import pytest

DAY = 86400
# From the moment the API server is there: it stands still for 60 s five times, with these seconds of work before each.
GAPS = (5, 40, 60, 80, 100)
HANG = f"""
server() {{ pgrep -f '[k]3s kube-apiserver'; }}
for gap in {" ".join(map(str, GAPS))}; do
  until server >/dev/null; do sleep 1; done
  sleep $gap
  pids=$(server) && kill -STOP $pids && sleep 60 && kill -CONT $pids && echo hung >>/run/api-hung
done
"""
# Both ways: what comes in is sent through ifb0 first.
BAD_NIC = """
set -e
modprobe ifb numifbs=1 && ip link set ifb0 up
tc qdisc add dev eth0 handle ffff: ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
for nic in eth0 ifb0; do tc qdisc add dev $nic root netem delay 100ms loss 2% rate 1mbit; done
"""


@pytest.fixture
def bare(breakable):
    """The node as after its first boot."""
    breakable.labctl("restore", "ready")
    return breakable


def test_an_api_server_that_hangs_for_a_minute_five_times_in_a_first_run(bare):
    bare.node(bare.server, f"systemd-run --quiet --unit=hang sh -c \"$(cat <<'END'\n{HANG}END\n)\"")

    with bare.timed("first run, the API server hung for 60 s up to five times"):
        run = bare.run("site.yml")
    hung = bare.node(bare.server, "systemctl stop hang; cat /run/api-hung 2>/dev/null | wc -l")
    bare.node(bare.server, "pkill -CONT -f '[k]3s kube-apiserver'; true")

    bare.note(f"{hung:>7}    times that it hung; exit code {run.code}")
    assert int(hung) > 0
    after = run if run.code == 0 else bare.run("site.yml")
    assert after.code == 0, after.text[-6000:]
    assert [after.checks(name, "failed") for name in bare.nodes] == [[]] * len(bare.nodes)


def test_the_host_layer_over_a_bad_management_nic(bare):
    """Only the host layer: the cluster's images alone take over an hour at 1 Mbit/s."""
    for name in bare.nodes:
        bare.node(name, BAD_NIC)

    with bare.timed("host.yml over 100 ms, 2 % loss and 1 Mbit/s each way"):
        run = bare.run("host.yml")

    dropped = bare.node(bare.server, "tc -s qdisc show dev eth0 root; tc -s qdisc show dev ifb0 root")
    bare.note(f"        {' '.join(dropped.split())}")
    assert run.code == 0, run.text[-6000:]
    assert bare.run("host.yml").record["hosts"][bare.server]["changed"] == []


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_first_run_on_a_node_whose_clock_is_a_day_off(bare, seconds):
    for name in bare.nodes[-1:]:
        bare.node(name, f"date -s @$(($(date +%s) + {seconds}))")

    with bare.timed(f"first run, the clock {seconds:+d} s off"):
        run = bare.run("site.yml")

    bare.note(f"        exit code {run.code}")
    if run.code:
        assert "clock" in run.text, run.text[-6000:]


def test_a_clock_that_goes_back_a_day_is_named(breakable):
    """Certificates of the cluster are not valid yet then."""
    breakable.node(breakable.server, f"date -s @$(($(date +%s) - {DAY})); systemctl restart k3s || true")

    run = breakable.run("site.yml")

    breakable.node(breakable.server, f"date -s @$(($(date +%s) + {DAY}))")
    breakable.note(f"        the clock a day back: exit code {run.code}")
    if run.code:
        assert "clock" in run.text, run.text[-6000:]
    after = breakable.run("site.yml")
    assert after.code == 0, after.text[-6000:]
