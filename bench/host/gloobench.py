"""Measures collectives of torch.distributed over gloo, as mpibench.c measures those of MPI.

Usage: gloobench.py RANKS LABEL OPS SIZES BATCHES BATCH_MS
Rows: label, ranks, operation, bytes, median, 10th and 90th percentile in microseconds.
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def elements(size, ranks, shared):
    """Round a size in bytes up to whole floats for each rank."""
    unit = 4 * (ranks if shared else 1)
    return max(1, -(-size // unit)) * unit // 4


def operation(name, n, rank, ranks):
    """Return a function that runs the operation once, and one that checks its result."""
    send = torch.full((n,), float(rank + 1))
    if name == "all_reduce":
        total = float(ranks * (ranks + 1) // 2)
        recv = send.clone()
        return lambda: dist.all_reduce(recv), lambda: bool((recv == total).all())
    part = n // ranks
    parts = list(torch.zeros(n).split(part))
    mine = send[:part]

    def right():
        return all(bool((p == r + 1).all()) for r, p in enumerate(parts))

    return lambda: dist.all_gather(parts, mine), right


def batch(run, iters):
    """Return the slowest rank's time for a number of calls, in seconds."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iters):
        run()
    took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def measure(run, batches, seconds):
    """Return the sorted times of a call in seconds, one for each batch."""
    iters = 1
    while (took := batch(run, iters)) < seconds / 2 and iters < 1 << 20:
        iters *= 2
    iters = max(1, int(iters * seconds / took))
    return sorted(batch(run, iters) / iters for _ in range(batches))


def rank_main(rank, ranks, store, arguments):
    label, ops, sizes, batches, batch_ms = arguments
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for op in ops.split(","):
        if op not in ("all_reduce", "all_gather"):
            if rank == 0:
                print(f"# {label}: {op}: not-supported", flush=True)
            continue
        for size in map(int, sizes.split(",")):
            n = elements(size, ranks, op != "all_reduce")
            run, right = operation(op, n, rank, ranks)
            run()
            if not right():
                raise SystemExit(f"{op} of {n} floats is wrong")
            times = measure(run, int(batches), float(batch_ms) / 1e3)
            if rank == 0:
                k = len(times)
                middle, low, high = times[k // 2], times[k // 10], times[k - 1 - k // 10]
                print(
                    f"{label},{ranks},{op},{4 * n},"
                    f"{middle * 1e6:.4f},{low * 1e6:.4f},{high * 1e6:.4f}",
                    flush=True,
                )
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(rank_main, (ranks, f"{directory}/store", sys.argv[2:7]), nprocs=ranks)


if __name__ == "__main__":
    main()
