"""Whether a series grows: Theil and Sen's slope with its 95 % interval. Pure."""

from __future__ import annotations

import math
import statistics

# 95 % of the normal distribution, two-sided.
_NORMAL = 1.96
HELD, GROWS, OPEN = "held", "GROWS", "not verified"


def blocks(times, values, count):
    """(times, values) of so many blocks of equal length: the median of each.

    Neighbouring samples of a process are alike, and the interval takes them for independent: without blocks it would be
    far too narrow.
    """
    size = len(times) / count
    cuts = [(round(block * size), round((block + 1) * size)) for block in range(count)]
    return tuple([statistics.median(series[start:end]) for start, end in cuts] for series in (times, values))


def theil_sen(times, values):
    """(slope, low, high) for each unit of time: the median of the slopes of all pairs, and Sen's interval of 95 %.

    No assumption about the distribution, and a step or a spike moves it little: least squares would follow both.
    """
    points = list(zip(times, values))
    slopes = sorted(
        (after[1] - before[1]) / (after[0] - before[0])
        for index, before in enumerate(points)
        for after in points[index + 1 :]
        if after[0] != before[0]
    )
    count = len(points)
    spread = _NORMAL * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return statistics.median(slopes), slopes[low], slopes[high]


def verdict(low, high, limit):
    """held: even the upper end is within the limit. GROWS: even the lower end is above it. Else: too short a run."""
    return HELD if high <= limit else GROWS if low > limit else OPEN
