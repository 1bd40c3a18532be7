# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All-reduce over every GPU of the job, by PyTorch on NCCL; prints the table that all_reduce_perf of nccl-tests prints.

Run by torchrun, one process for each GPU. Exit status 1 if a sum was wrong.
"""

import os
import sys
import time

FIRST, LAST = 8, 8 << 30
WARM_UP, TIMES = 5, 20
WIDTH = 4  # bytes of a float
HEADER = """\
#       size        count    type   redop    root      time   algbw   busbw #wrong
#        (B)   (elements)                              (us)  (GB/s)  (GB/s)"""


def sizes(free):
    """Bytes of each test: doubled from FIRST to LAST, or to what half of the free GPU memory holds."""
    size = FIRST
    while size <= min(LAST, free // 2):
        yield size
        size *= 2


def bandwidth(size, seconds, ranks):
    """(algorithm, bus) bandwidth in GByte/s; a ring sends each byte 2 (n - 1) / n times."""
    speed = size / seconds / 1e9
    return speed, speed * 2 * (ranks - 1) / ranks


def row(size, seconds, ranks, wrong):
    speed, bus = bandwidth(size, seconds, ranks)
    start = f"{size:>12} {size // WIDTH:>12}   float     sum      -1"
    return f"{start} {seconds * 1e6:>9.2f} {speed:>7.2f} {bus:>7.2f} {wrong:>6}"


def summary(speeds, wrong):
    average = sum(speeds) / len(speeds)
    return f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : {average:.4f}"


def measure(torch, dist, size, ranks):
    """(seconds for one all-reduce, how many values of its result are wrong)."""
    data = torch.ones(size // WIDTH, dtype=torch.float32, device="cuda")
    dist.all_reduce(data)
    wrong = int((data != ranks).sum().item())
    for _time in range(WARM_UP):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _time in range(TIMES):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / TIMES, wrong


def main():
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Every rank must test the same sizes.
    free = torch.tensor([torch.cuda.mem_get_info()[0]], device="cuda")
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    speeds, bad = [], 0
    if rank == 0:
        print(HEADER, flush=True)
    for size in sizes(int(free.item())):
        seconds, wrong = measure(torch, dist, size, ranks)
        total = torch.tensor([wrong], device="cuda")
        dist.all_reduce(total)
        bad += int(total.item())
        speeds.append(bandwidth(size, seconds, ranks)[1])
        if rank == 0:
            print(row(size, seconds, ranks, int(total.item())), flush=True)
    if rank == 0:
        print(summary(speeds, bad), flush=True)
    dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
