"""python3 traced.py ARGUMENTS: the plugin under tracemalloc; SIGUSR1 writes to stderr what grew since the first one."""

from __future__ import annotations

import gc
import signal
import sys
import tracemalloc
from collections import Counter

from rdma_device_plugin import cli

SNAPSHOTS = []


def figures(*_signal):
    gc.collect()
    kinds = Counter(type(thing).__name__ for thing in gc.get_objects())
    snapshot = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, tracemalloc.__file__),))
    SNAPSHOTS.append((snapshot, kinds))
    first, before = SNAPSHOTS[0]
    sys.stderr.write(f"traced {tracemalloc.get_traced_memory()[0]} bytes, {sum(kinds.values())} objects\n")
    for line in snapshot.compare_to(first, "lineno")[:15]:
        sys.stderr.write(f"  {line}\n")
    for name, count in (kinds - before).most_common(15):
        sys.stderr.write(f"  +{count} {name}\n")
    sys.stderr.flush()


tracemalloc.start()
signal.signal(signal.SIGUSR1, figures)
sys.exit(cli.main())
