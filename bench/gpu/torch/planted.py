"""Records programs with planted differences: planted.py PROGRAMS FOLDER [SECONDS].

torch.distributed.run starts the ranks. PROGRAMS is a file that TestWritePrograms of
cmd/symmem/internal/diff/load has written. Each rank runs its variant of each program in two new
MemPools, until SECONDS have passed, and writes FOLDER/rank<r>.tar.gz:

    <n>.pickle      the memory snapshot of program n
    <n>.json        where PyTorch placed the tensors of each pool: ordinal of the segment, offset

and, if each rank has its own GPU, FOLDER/calls<r>.tar.gz:

    calls.pickle    the Flight Recorder's dump of several groups, in each of which one rank makes
                    a different call at a random place
    calls.json      for each group, the number of the different call
"""

from __future__ import annotations

import datetime
import io
import json
import os
import pickle
import random
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "1000")
os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "1000")

import torch
import torch.distributed as dist

MIB = 1 << 20
GROUPS = 6
"""The number of groups whose calls differ."""

Place = tuple[int, int]


class Outside:
    """Memory outside the pools, which moves the addresses of later segments.

    The driver puts a new segment into the address range of freed memory, so that the order of the
    segments' addresses differs from the order of their creation.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tensors = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(24)]

    def change(self) -> None:
        """Free a tensor if there is one, and give its segment back to the driver."""
        if self.tensors:
            self.tensors.pop(self.rng.randrange(len(self.tensors)))
            torch.cuda.empty_cache()


def places(snapshot: dict[str, Any], pools: list[tuple[int, int]]) -> list[list[Place]]:
    """Return the places of each pool's tensors.

    PyTorch 2.11 does not record the pools of events, so this uses the pools of the final segments.
    Before a pool got its segment, memory outside the pools may have had the address.
    """
    owners = {s["address"]: tuple(s["segment_pool_id"]) for s in snapshot["segments"]}
    trace = snapshot["device_traces"][torch.cuda.current_device()]
    last = {e["addr"]: i for i, e in enumerate(trace) if e["action"] == "segment_alloc"}
    segments: list[list[tuple[int, int]]] = [[] for _ in pools]
    found: list[list[Place]] = [[] for _ in pools]
    for i, entry in enumerate(trace):
        if last.get(entry["addr"]) == i and owners.get(entry["addr"]) in pools:
            pool = pools.index(owners[entry["addr"]])
            segments[pool].append((entry["addr"], entry["size"]))
        if entry["action"] == "alloc":
            for pool, known in enumerate(segments):
                for ordinal, (start, size) in enumerate(known):
                    if start <= entry["addr"] < start + size:
                        found[pool].append((ordinal, entry["addr"] - start))
    return found


def run(
    requests: list[list[int]], streams: list[torch.cuda.Stream], outside: Outside | None
) -> Any:
    """Run a program and return its snapshot and the places of its tensors."""
    pools = [torch.cuda.MemPool() for _ in range(2)]
    live: dict[int, torch.Tensor] = {}
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    for number, (tensor, size, stream, pool, free) in enumerate(requests):
        if outside is not None and number % 5 == 0:
            outside.change()
        if free:
            del live[tensor]
            continue
        with torch.cuda.use_mem_pool(pools[pool]), torch.cuda.stream(streams[stream]):
            live[tensor] = torch.empty(size, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    live.clear()  # before the pools end
    placed = places(snapshot, [tuple(p.id) for p in pools])
    return snapshot, placed


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file to an archive."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    archive.addfile(header, io.BytesIO(data))


def record_programs(
    archive: tarfile.TarFile, programs: list[dict[str, Any]], rank: int, end: float
) -> int:
    """Run the programs and return how many were recorded."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for number, program in enumerate(programs):
        if time.monotonic() > end:
            return number
        odd = rank == program["odd"]
        outside = Outside(number) if odd and program["kind"] == "different place" else None
        requests = program["planted"] if odd and program["planted"] else program["common"]
        snapshot, placed = run(requests, streams, outside)
        add(archive, f"{number}.pickle", pickle.dumps(snapshot))
        add(archive, f"{number}.json", json.dumps(placed).encode())
        del snapshot, outside
        torch.cuda.empty_cache()
    return len(programs)


def submit(group: dist.ProcessGroup, kind: int, tensor: torch.Tensor) -> None:
    """Submit a call without waiting for it."""
    if kind == 0:
        dist.all_reduce(tensor, group=group, async_op=True)
    elif kind == 1:
        dist.broadcast(tensor, 0, group=group, async_op=True)
    else:
        dist.reduce(tensor, 0, group=group, async_op=True)


def record_calls(archive: tarfile.TarFile, rank: int, size: int) -> None:
    """Submit calls that differ on one rank of each group, and record the Flight Recorder's dump."""
    rng = random.Random(7)
    groups = [dist.new_group(list(range(size))) for _ in range(GROUPS)]
    tensors = [torch.zeros(n, device="cuda") for n in (64, 1024)]
    for group in groups:
        dist.all_reduce(tensors[0], group=group)
    torch.cuda.synchronize()
    planted = []
    for group in groups:
        at, odd, last = rng.randrange(1, 30), rng.randrange(size), rng.randrange(1, 10)
        planted.append({"group": group.group_name, "call": at, "rank": odd})
        for number in range(1, at + last):
            kind, which = rng.randrange(3), rng.randrange(2)
            if number == at and rank == odd:
                kind = (kind + 1) % 3
            submit(group, kind, tensors[which])
    dump = torch._C._distributed_c10d._dump_nccl_trace(True, True, False)
    add(archive, "calls.pickle", dump)
    add(archive, "calls.json", json.dumps(planted).encode())


def main() -> None:
    """Record the programs and the calls on this rank."""
    programs = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    end = time.monotonic() + float(sys.argv[3] if len(sys.argv) > 3 else "60")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    shared = gpus < size  # NCCL 2.28 does not accept two ranks on one GPU.
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    backend, device = ("gloo", "cpu") if shared else ("nccl", "cuda")
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.zeros(1, device=device))
    torch.cuda.synchronize()
    with tarfile.open(folder / f"rank{rank}.tar.gz", "w:gz", compresslevel=6) as archive:
        done = record_programs(archive, programs, rank, end)
    print(f"rank {rank}: {done} programs, torch {torch.__version__}", flush=True)
    if shared:
        dist.barrier()
        dist.destroy_process_group()
        return
    with tarfile.open(folder / f"calls{rank}.tar.gz", "w:gz") as archive:
        record_calls(archive, rank, size)
    print(f"rank {rank}: calls recorded", flush=True)
    # The calls never end, so the ranks exit without closing their groups after all have written.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"written {rank}", "yes")
    store.wait([f"written {r}" for r in range(size)])
    store.add("left", 1)
    while rank == 0 and store.add("left", 0) < size:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
