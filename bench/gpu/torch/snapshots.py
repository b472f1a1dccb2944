"""Records memory snapshots and Flight Recorder dumps of PyTorch: snapshots.py FOLDER CASE.

torch.distributed.run starts the ranks; snapshots.sh shows how. Each rank writes two files to
FOLDER, CASE_snapshot_rank<r>.pickle and CASE_calls_rank<r>.pickle. The cases:

    agree   all ranks allocate the same tensors in one MemPool
    extra   rank 2 allocates an extra tensor in the middle
    size    rank 1 allocates a larger tensor in the middle
    skew    a long random run, in which the ranks allocate the same tensors in the MemPool and
            different ones outside, so that their segments have different addresses
    call    at the end, rank 1 calls broadcast and the others call all_reduce
"""

from __future__ import annotations

import datetime
import os
import random
import sys
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "400")
os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "400")

import torch
import torch.distributed as dist

KIB = 1024
MIB = 1024 * KIB
STEPS = {"agree": 160, "extra": 160, "size": 160, "skew": 500, "call": 40}
"""The number of steps of each case."""


class Program:
    """A random program, which is the same on every rank except for the case's change."""

    def __init__(self, case: str, rank: int) -> None:
        self.case = case
        self.rank = rank
        self.rng = random.Random(41)
        self.own = random.Random(1000 + rank)
        self.pool = torch.cuda.MemPool()
        self.side = torch.cuda.Stream()
        self.live: list[torch.Tensor] = []
        self.outside: list[torch.Tensor] = []
        self.planted = False

    def make(self, size: int) -> torch.Tensor:
        """Allocate a tensor in the pool."""
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def size(self) -> int:
        """Draw a size, often one of a few, so that free blocks of the same size compete."""
        if self.rng.random() < 0.6:
            return self.rng.choice([64 * KIB, 512 * KIB, 2 * MIB, 4 * MIB])
        return self.rng.randrange(1, 3 * MIB)

    def disturb(self) -> None:
        """Allocate or free memory outside the pool, which moves later segments."""
        if self.outside and self.own.random() < 0.5:
            self.outside.pop(self.own.randrange(len(self.outside)))
            torch.cuda.empty_cache()
            return
        size = self.own.randrange(2, 40) * MIB
        self.outside.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def step(self, number: int, steps: int) -> None:
        """Allocate or free a tensor, and sometimes sum one across the ranks."""
        if self.case == "skew" and number % 10 == 0:
            self.disturb()
        if len(self.live) > 24 or (self.live and self.rng.random() < 0.45):
            self.live.pop(self.rng.randrange(len(self.live)))
            return
        size, other = self.size(), self.rng.random() < 0.2
        middle = number >= steps // 2 and not self.planted
        self.planted = self.planted or middle
        with torch.cuda.use_mem_pool(self.pool):
            if middle and self.case == "extra" and self.rank == 2:
                self.extra = self.make(768 * KIB)
            if middle and self.case == "size" and self.rank == 1:
                size += 512 * KIB
            with torch.cuda.stream(self.side if other else torch.cuda.current_stream()):
                self.live.append(self.make(size))
        if number % 8 == 0:
            dist.all_reduce(self.live[-1].zero_()[:1])


def end_with_a_difference(rank: int) -> None:
    """Submit a last collective, which differs on rank 1, without waiting for it."""
    tensor = torch.zeros(1024, device="cuda")
    if rank == 1:
        dist.broadcast(tensor, 0, async_op=True)
    else:
        dist.all_reduce(tensor, async_op=True)


def main() -> None:
    """Run the case on this rank."""
    folder, case = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    program = Program(case, rank)
    for number in range(STEPS[case]):
        program.step(number, STEPS[case])
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.memory._dump_snapshot(str(folder / f"{case}_snapshot_rank{rank}.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    if case == "call":
        end_with_a_difference(rank)
    dump = torch._C._distributed_c10d._dump_nccl_trace(True, True, False)
    (folder / f"{case}_calls_rank{rank}.pickle").write_bytes(dump)
    size = sum(p.stat().st_size for p in folder.glob(f"{case}_*_rank{rank}.pickle"))
    print(f"case {case} rank {rank}: {size} bytes, torch {torch.__version__}", flush=True)
    # All ranks write before any of them exits, because a mismatched collective never completes.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"written {rank}", "yes")
    store.wait([f"written {r}" for r in range(int(os.environ["WORLD_SIZE"]))])
    store.add("left", 1)
    while rank == 0 and store.add("left", 0) < int(os.environ["WORLD_SIZE"]):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
