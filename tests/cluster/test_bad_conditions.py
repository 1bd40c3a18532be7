"""A first run while the API server hangs, over a bad management NIC, and on a node whose clock is a day off."""

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
# Ansible's own default, in place of the checkout's ssh_args: they do not compress, for the sake of a fast network.
COMPRESSED = "-C -o ControlMaster=auto -o ControlPersist=60s"
# Both ways: what comes in is sent through ifb0 first.
BAD_NIC = """
set -e
modprobe ifb numifbs=1 && ip link set ifb0 up
tc qdisc add dev eth0 handle ffff: ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
for nic in eth0 ifb0; do tc qdisc add dev $nic root netem delay 100ms loss 2% rate 1mbit; done
"""


def test_an_api_server_that_hangs_for_a_minute_five_times_in_a_first_run(bare):
    script = f"cat > /run/hang.sh <<'END'\n{HANG}END\nsystemd-run --quiet --unit=hang sh /run/hang.sh"
    bare.node(bare.server, script)

    with bare.timed("first run, the API server hung for 60 s up to five times"):
        run = bare.run("site.yml")
    hung = bare.node(bare.server, "systemctl stop hang; cat /run/api-hung 2>/dev/null | wc -l")
    bare.node(bare.server, "pkill -CONT -f '[k]3s kube-apiserver'; true")

    bare.note(f"{hung:>7}    times that it hung; exit code {run.code}")
    assert int(hung) > 0
    after = run if run.code == 0 else bare.run("site.yml")
    assert after.code == 0, after.text[-6000:]
    assert [after.checks(name, "failed") for name in bare.nodes] == [[]] * len(bare.nodes)


@pytest.mark.parametrize("playbook", ["host.yml", "site.yml"])
def test_a_first_run_over_a_bad_management_nic(bare, monkeypatch, playbook):
    """For site.yml that is mostly the time of k3s and its images: 380 MB, which ssh compresses."""
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", COMPRESSED)
    for name in bare.nodes:
        bare.node(name, BAD_NIC)

    with bare.timed(f"{playbook} over 100 ms, 2 % loss and 1 Mbit/s each way"):
        run = bare.run(playbook)

    dropped = bare.node(bare.server, "tc -s qdisc show dev eth0 root; tc -s qdisc show dev ifb0 root")
    bare.note(f"        {' '.join(dropped.split())}")
    assert run.code == 0, run.text[-6000:]
    again = bare.run(playbook).record["hosts"]
    assert {name: again[name]["changed"] for name in bare.nodes} == {name: [] for name in bare.nodes}


@pytest.mark.parametrize(("seconds", "seen"), [(DAY, "24.0 hours ahead of them"), (-DAY, "24.0 hours behind them")])
def test_a_node_whose_clock_is_a_day_off_is_named_before_a_change(bare, seconds, seen):
    name = bare.worker
    bare.node(name, f"date -s @$(($(date +%s) + {seconds}))")
    files = "find /etc /usr/local /opt -xdev -type f -exec sha256sum {} + | sort"
    before = bare.node(name, files)

    with bare.timed(f"first run, the clock of {name} {seconds:+d} s off: refused"):
        run = bare.run("site.yml")

    assert run.code != 0
    text = " ".join(run.text.split())
    for part in (f"{name} clock", "certificates that one node makes", seen, "timedatectl set-ntp true"):
        assert part in text, run.text[-6000:]
    assert run.record["hosts"][name]["changed"] == []
    assert bare.node(name, files) == before
