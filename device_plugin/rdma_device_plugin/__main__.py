# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m rdma_device_plugin"""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> int:
    """The program. Signal handlers come before the other imports, which may take longer than a supervisor waits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        # As PID 1 the kernel drops a signal without a handler; elsewhere SIGINT would end in a traceback.
        signal.signal(number, lambda _number, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    # The imports leave nothing to collect, and looking for it takes 8 % of their time. `serve` enables it.
    gc.disable()
    from .cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
