"""Tests CUDA graphs that outlive their group: replays end, and memory is freed.

Ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL 2.30 or newer).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, gather, settle, verdict

import symmem

PATIENCE = 30.0
"""The maximum time of a replay on a failed or closed group, in seconds."""


def second() -> symmem.Group:
    """Open another group of all ranks."""
    return symmem.group(another())


def another() -> dist.ProcessGroup:
    """Create another process group of all ranks."""
    return dist.new_group(list(range(SIZE)), backend="nccl")


def captured(group: symmem.Group, tensors: list[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Capture an all-reduce of each tensor, on the direct path where possible."""
    symmem.set_path("direct", group)
    for tensor in tensors:
        symmem.all_reduce(tensor, group=group)
    return common.capture(lambda: [symmem.all_reduce(t, group=group) for t in tensors])


def ends(graph: torch.cuda.CUDAGraph) -> bool:
    """Replay, and return whether the GPU finishes in time and is usable afterwards."""
    begin = time.monotonic()
    with torch.cuda.stream(common.capture_stream()):
        graph.replay()
    torch.cuda.synchronize()
    probe = torch.ones(4, device=DEVICE).sum()
    return bool(probe == 4) and time.monotonic() - begin < PATIENCE


def inputs(group: symmem.Group) -> list[torch.Tensor]:
    """Return an ordinary tensor and two symmetric ones, the last for direct kernels."""
    with symmem.use(group):
        symmetric = [torch.zeros(n, device=DEVICE) for n in (1024, 8 * MIB)]
    return [torch.zeros(1024, device=DEVICE), *symmetric]


def after_a_fault() -> None:
    """Abort the group while one rank's replay waits in a kernel, then replay on all ranks."""
    group = second()
    tensors = inputs(group)
    graph = captured(group, tensors)
    settle()
    if RANK == 0:
        with torch.cuda.stream(common.capture_stream()):
            graph.replay()  # no other rank replays
        time.sleep(0.5)
        group.abort()
    gather(RANK)
    again = [ends(graph) for _ in range(3)]
    verdict("replays end after a fault", all(again), again)
    del graph
    fresh = second()
    one = torch.full((1024,), RANK + 1.0, device=DEVICE)
    symmem.all_reduce(one, group=fresh)
    verdict("a new group is right", bool((one == SUM).all()))


def after_a_close() -> None:
    """Close the group before its graphs are destroyed."""
    group = second()
    graph = captured(group, inputs(group))
    settle()
    group.close()
    again = [ends(graph) for _ in range(3)]
    verdict("replays end after a close", all(again), again)


def comes_back(rounds: int) -> None:
    """Capture calls, end the groups and destroy the graphs. The memory must be freed.

    PyTorch's process groups without symmem show how much memory PyTorch and NCCL keep.
    """

    def plain(i: int) -> None:
        process_group = another()
        settle()
        gather(i)
        dist.destroy_process_group(process_group)

    def full(i: int) -> None:
        process_group = another()
        group = symmem.group(process_group)
        graph = captured(group, [torch.zeros(1024, device=DEVICE)])
        settle()
        if i % 2:
            group.abort()
        else:
            group.close()
        ends(graph)
        gather(i)
        del graph
        group.close()
        dist.destroy_process_group(process_group)

    kept, lost = (lost_by(one, rounds) for one in (plain, full))
    # A rank of a group has 32 MiB of exchange memory.
    verdict(
        "memory of groups comes back",
        lost - kept < rounds * 16 * MIB,
        f"{rounds} groups keep {lost / MIB:.0f} MiB; without symmem, {kept / MIB:.0f} MiB",
    )


def lost_by(one: Callable[[int], None], rounds: int) -> int:
    """Return how many more bytes of the GPU are used after all rounds than before."""
    for i in range(4):
        one(i)
    before = mapped()
    for i in range(rounds):
        one(i)
    return mapped() - before


def mapped() -> int:
    """Return the used bytes of the GPU after the destructors of graphs."""
    gc.collect()
    settle()
    time.sleep(1)
    free, total = torch.cuda.mem_get_info()
    return total - free


def after_symmem() -> None:
    """Close symmem before a graph is destroyed. This must be the last test."""
    world = symmem.world()
    graph = captured(world, inputs(world))
    settle()
    symmem.finalize(force=True)
    again = [ends(graph) for _ in range(3)]
    verdict("replays end after finalize", all(again), again)
    del graph
    gc.collect()
    time.sleep(1)
    verdict("the GPU goes on", bool(torch.ones(4, device=DEVICE).sum() == 4))


if __name__ == "__main__":
    common.start(timeout=10)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    attempt("after_a_fault", after_a_fault)
    attempt("after_a_close", after_a_close)
    attempt("comes_back", lambda: comes_back(count))
    attempt("after_symmem", after_symmem)
    common.leave()
