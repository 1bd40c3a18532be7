"""Short forms of `soak.py`: everything at once for half a minute, and kubelet restarts; what a slope's verdict says."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import slopes
import soak

MINUTES = "0.4"


@pytest.mark.parametrize("watches", [False, True], ids=["legacy", "watch"])
def test_kubelet_restarts_and_refusals_leave_nothing_behind(base, watches):
    """Pitfall 2: after each restart the resources are back, and neither descriptors nor threads are left from it"""
    seen = soak.restarts(base, 24, watches)
    memory, descriptors = soak.growth(seen)
    assert descriptors <= len(soak.RAILS), seen  # a connection that is just about to close
    assert memory < 1, seen


@pytest.mark.parametrize("way", [(), ("--legacy",)], ids=["both", "legacy"])
def test_everything_at_once(tmp_path, way):
    """Flaps, swaps, kubelet, config, disk, clock, API server, claims, Allocate and scrapes from one seed"""
    # As a process: its mounts and its network namespace end with it.
    command = [
        sys.executable,
        soak.__file__,
        MINUTES,
        "--bound",
        "30",
        "--json",
        str(tmp_path / "json"),
        *way,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    sys.stdout.write(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads((tmp_path / "json").read_text())
    kinds = {"port", "plug", "kubelet", "config", "clock", "allocate"} | ({"api", "claim"} if not way else set())
    assert {kind for kind in kinds if not found["events"][kind]} == set()
    assert found["answers"]["granted"]
    assert found["answers"]["scrapes"]
    assert "disk full and free: not verified" in done.stdout or found["events"]["disk"]


def test_a_slope_and_its_interval():
    """Noise around a line: the interval has the slope of the line, and the verdict follows the limit"""
    chance = random.Random(1)
    hours = [number / 3600 for number in range(3600)]
    level = [60 + chance.gauss(0, 0.2) for _hour in hours]
    rising = [value + 5 * hour for value, hour in zip(level, hours)]
    for values, wanted, verdict in ((level, 0, slopes.HELD), (rising, 5, slopes.GROWS)):
        slope, low, high = slopes.theil_sen(*slopes.blocks(hours, values, 30))
        assert low <= wanted <= high, (low, slope, high)
        assert high - low < 0.5
        assert slopes.verdict(low, high, 1.0) == verdict
    assert slopes.verdict(-3, 4, 1.0) == slopes.OPEN, "too short a run says nothing"
    spiked = [value + 40 * (number % 400 == 7) for number, value in enumerate(level)]
    assert slopes.theil_sen(*slopes.blocks(hours, spiked, 30))[0] == pytest.approx(0, abs=0.1)
    assert slopes.theil_sen(hours[:30], [7.0] * 30) == (0, 0, 0)
