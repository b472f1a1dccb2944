"""Measures how long two ranks need to agree on a number, compared with what programs use today.

Usage: PYTHONPATH=python/src agree.py [SECONDS [RANKS]]

Runs batches of these in turns in the same processes: `symmem.agree` and `symmem.step`, an
all-reduce of one int64 over gloo, a key of every rank in PyTorch's TCPStore, and, as the lower
bound, a library call that does nothing. It prints the time of a call in microseconds, as the median
and the 10th percentile of the batches. The exit code is 1 if half of the batches of `symmem.agree`
take more than 3 us per call. The program needs PyTorch and two processors, but no GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import symmem

# The limit for symmem.agree, in microseconds.
BAR = 3.0
# The number of calls in a batch of a slow way.
BATCHES = {"gloo all_reduce": 20, "TCPStore": 20}
BATCH = 500  # for all other ways


def one_step() -> None:
    """Enter and leave a step."""
    with symmem.step("decode", batch=8):
        pass


def stored(store: dist.Store, rank: int, ranks: int) -> Callable[[], None]:
    """Return a function that publishes a number to all ranks and reads theirs."""
    turn = 0

    def run() -> None:
        nonlocal turn
        turn += 1
        store.set(f"{turn}/{rank}", "8")
        for other in range(ranks):
            if other != rank and store.get(f"{turn}/{other}") != b"8":
                sys.exit(f"rank {other} has a different number")

    return run


def rank_main(rank: int, ranks: int, port: int, directory: str, seconds: float) -> None:
    """Measure on one rank."""
    processors = sorted(os.sched_getaffinity(0))
    # Adjacent processors may be two threads of one core.
    os.sched_setaffinity(0, {processors[rank * len(processors) // ranks]})
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="localhost", MASTER_PORT=str(port + 1),
    )  # fmt: skip
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks
    )
    store = dist.TCPStore("localhost", port, ranks, rank == 0)
    symmem.init(backend="host")
    number = torch.tensor([8])
    ways: dict[str, Callable[[], object]] = {
        "symmem.agree": lambda: symmem.agree(8, "batch size"),
        "symmem.step": one_step,
        "gloo all_reduce": lambda: dist.all_reduce(number, op=dist.ReduceOp.MAX),
        "TCPStore": stored(store, rank, ranks),
        "an empty call": symmem.world().library.raw.symmem_is_open,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    going = torch.tensor([1])
    begin = time.perf_counter()
    while going.item():
        for name, run in ways.items():
            dist.barrier()
            run()  # so that the ranks start together, because they leave a barrier far apart
            since = time.perf_counter()
            batch = BATCHES.get(name, BATCH)
            for _ in range(batch):
                run()
            times[name].append((time.perf_counter() - since) / batch * 1e6)
        going[0] = int(time.perf_counter() - begin < seconds)
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if rank == 0:
        report(times)
    symmem.finalize()
    dist.destroy_process_group()


def report(times: dict[str, list[float]]) -> None:
    """Print a table; exit with 1 if the limit is exceeded."""
    median = {name: sorted(of)[len(of) // 2] for name, of in times.items()}
    print("| | median, us | lowest tenth, us | over symmem.agree |")
    print("|---|---|---|---|")
    for name, of in times.items():
        factor = median[name] / median["symmem.agree"]
        print(f"| {name} | {median[name]:.2f} | {sorted(of)[len(of) // 10]:.2f} | {factor:.1f} |")
    if median["symmem.agree"] > BAR:
        sys.exit(f"symmem.agree: {median['symmem.agree']:.2f} us, the bar is {BAR:.0f}")


def main() -> None:
    """Start the ranks."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    port = 20000 + os.getpid() % 20000
    print(f"# {ranks} ranks, {os.cpu_count()} processors, PyTorch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        try:
            mp.spawn(rank_main, (ranks, port, directory, seconds), nprocs=ranks)
        except mp.ProcessExitedException:
            sys.exit(1)  # the rank has printed the reason


if __name__ == "__main__":
    main()
