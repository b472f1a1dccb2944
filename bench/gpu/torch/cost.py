"""Costs of scopes, queries and windows, compared with PyTorch and NCCL."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, alone, attempt, gather, say, settle, verdict

import symmem
from symmem._torch.cuda import snapshot
from symmem._torch.pytorch import pytorch

BAR = 0.5
"""The limit for a query, and for a scope beyond PyTorch's begin and end, in microseconds."""

WINDOWS = 8
GIB = 1 << 30


def best(run: Callable[[], Any], calls: int = 2000, rounds: int = 15) -> float:
    """Return the time of a call in microseconds: the least mean of several rounds."""
    run()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return min(found)


def scopes() -> None:
    """Compare a scope without new memory with PyTorch's own begin and end of a pool."""
    world = symmem.world()
    with symmem.use(world):
        kept = torch.empty(MIB, device=DEVICE)
    found, index = pytorch(), torch.cuda.current_device()
    pool = torch.cuda.MemPool()
    register = world.library.raw.nccl_allocator_register_segments_with_comm

    def bare() -> None:
        found.begin(index, pool.id)
        found.end(index, pool.id)
        found.release(index, pool.id)

    def ours() -> None:
        with symmem.use(world):
            pass

    def manager() -> None:
        with torch.cuda.use_mem_pool(pool):
            pass

    scope, theirs, managed = alone(lambda: (best(ours), best(bare), best(manager)))
    over = scope - theirs
    shot = best(lambda: snapshot(found), 50, 5)
    verdict(
        "scope over begin and end",
        over <= BAR,
        f"{over:+.2f} us (bar {BAR}): scope {scope:.2f}, begin and end {theirs:.2f}, "
        f"use_mem_pool {managed:.2f}, snapshot {shot:.1f}",
    )
    comm = group_pointer()
    if comm:
        register(comm)
        say(f"INFO SGLang's register call with nothing new: {best(lambda: register(comm)):.2f} us")
    say(f"INFO {kept.numel()} elements live")


def group_pointer() -> int:
    """Return PyTorch's communicator for SGLang's call."""
    backend = dist.group.WORLD._get_backend(DEVICE)
    return int(backend._comm_ptr()) if hasattr(backend, "_comm_ptr") else 0


def questions() -> None:
    """Time queries whether tensors are symmetric, with 1,000 segments."""
    world = symmem.world()
    with symmem.use(world):
        inside = torch.empty(MIB, device=DEVICE)
    outside = torch.empty(MIB, device=DEVICE)
    ask, table = symmem.is_symmetric, world.windows
    assert ask(inside, world)
    assert not ask(outside, world)
    _, starts, ends = table.copy
    have = len(starts)
    (few,) = alone(lambda: (best(lambda: ask(inside, world), 5000),))
    far = 1 << 60
    starts += [far + i * 4096 for i in range(1000 - have)]
    ends += [far + i * 4096 + 4096 for i in range(1000 - have)]
    yes, no = alone(
        lambda: (best(lambda: ask(inside, world), 5000), best(lambda: ask(outside, world), 5000))
    )
    table.refresh()
    figures = f"{yes:.2f} us (bar {BAR}), no {no:.2f} us; with {have} windows {few:.2f} us"
    verdict("is_symmetric with 1000 segments", yes <= BAR and no <= BAR, figures)


def windows() -> None:
    """Allocate 4 GiB of tensors in PyTorch's segments, and count windows."""
    ours, tensors = timed_ours()
    pool = symmem.stats()["pools"][0]
    verdict(
        "windows after 4 GiB",
        pool["windows"] <= WINDOWS,
        f"{pool['windows']} windows (bar {WINDOWS}) for {len(tensors)} segments of PyTorch's, "
        f"{pool['mapped'] / GIB:.1f} GiB mapped",
    )
    del tensors
    say(f"INFO start-up: {ours:.2f} s; one window a segment: {timed_stock():.2f} s")


def timed_ours() -> tuple[float, list[torch.Tensor]]:
    """Allocate 4 GiB of 24 MiB tensors with symmem."""
    settle()
    begin = time.monotonic()
    tensors = []
    for _ in range(4 * GIB // (24 * MIB)):
        with symmem.use():
            tensors.append(torch.empty(24 * MIB, dtype=torch.uint8, device=DEVICE))
    settle()
    return max(gather(time.monotonic() - begin)), tensors


def timed_stock() -> float:
    """Allocate the same tensors in PyTorch's own pool, which registers every segment."""
    group = dist.new_group(backend="nccl")
    dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
    backend = group._get_backend(DEVICE)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    settle()
    begin = time.monotonic()
    with torch.cuda.use_mem_pool(pool):
        tensors = [
            torch.empty(24 * MIB, dtype=torch.uint8, device=DEVICE)
            for _ in range(4 * GIB // (24 * MIB))
        ]
    backend.register_mem_pool(pool, symm=True)
    settle()
    took = max(gather(time.monotonic() - begin))
    backend.deregister_mem_pool(pool)
    del tensors
    return took


if __name__ == "__main__":
    common.needs_gpus("times of calls")
    common.start()
    for part in (scopes, questions, windows):
        attempt(part.__name__, part)
    common.leave()
