"""Tests DDP's and FSDP2's buffers in symmetric memory on GPUs, and the backend's allocator.

Rank 0 prints PASS or FAIL with each check.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["SYMMEM_COMM_MEMORY"] = "1"

import backend
import common
import torch
import torch.distributed as dist
from backend import check, new_store, opened, trial
from common import DEVICE, RANK, SIZE
from torch import nn

import symmem


def mapped() -> int:
    """Return the bytes that symmem's pools have mapped."""
    return sum(int(pool["mapped"]) for pool in symmem.stats()["pools"])


def paths() -> dict[str, int]:
    """Return the number of the world's calls by path."""
    found: dict[str, int] = symmem.stats()["groups"]["world"]["paths"]
    return dict(found)


def train_again(run: Callable[[], list[float]]) -> None:
    """Train a new model, and free it at the same point on all ranks."""
    run()
    gc.collect()
    torch.cuda.synchronize()


def compare(name: str, store: Any, run: Callable[[], list[float]]) -> None:
    """Compare losses with NCCL's, and check that later steps map no more memory."""
    losses: dict[str, list[float]] = {}
    for kind in ("nccl", "symmem"):

        def train(kind: str = kind) -> None:
            opened(dist.PrefixStore(name, store), kind)
            losses[kind] = run()
            gc.collect()
            torch.cuda.synchronize()
            if kind == "symmem":
                train_again(run)
                before, calls = mapped(), paths()
                for _ in range(5):
                    train_again(run)
                check(f"{name} maps no more memory", mapped() == before, f"{before >> 20} MiB")
                check(f"{name}: calls by path", True, f"{calls}, then {paths()}")

        trial(f"{name} {kind}", train)
        if dist.is_initialized():
            trial(f"{name} {kind}: destroy", dist.destroy_process_group)
    theirs, ours = (torch.tensor(losses[k], dtype=torch.float64) for k in ("nccl", "symmem"))
    apart = ((theirs - ours) / theirs).abs().max().item()
    exact = losses["nccl"] == losses["symmem"]
    check(f"{name} has NCCL's losses", apart < 1e-5, f"bits equal {exact}, {apart:.1e} apart")


def buckets(store: Any) -> None:
    """Check that DDP's buckets are symmetric."""
    opened(dist.PrefixStore("buckets", store), "symmem")
    symmetric: list[bool] = []

    def hook(_, bucket):  # type: ignore[no-untyped-def] # DDP rejects string annotations
        buffer = bucket.buffer().div_(SIZE)
        work = dist.all_reduce(buffer, async_op=True)
        symmetric.append(symmem.is_symmetric(buffer))
        return work.get_future().then(lambda future: future.value()[0])

    model = nn.parallel.DistributedDataParallel(backend.network(), [DEVICE.index], bucket_cap_mb=1)
    model.register_comm_hook(None, hook)
    backend.train(model)
    torch.cuda.synchronize()
    check("DDP's buckets are symmetric", bool(symmetric) and all(symmetric), symmetric[:4])


def shards() -> None:
    """Check that FSDP2's buffers are symmetric."""
    symmetric: dict[str, list[bool]] = {}
    names = ("all_gather_into_tensor", "reduce_scatter_tensor")
    originals = {name: getattr(dist, name) for name in names}

    def noted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            tensors = [t for t in (*arguments, *named.values()) if torch.is_tensor(t)]
            work = originals[name](*arguments, **named)
            symmetric.setdefault(name, []).extend(symmem.is_symmetric(t) for t in tensors)
            return work

        return call

    for name in names:
        setattr(dist, name, noted(name))
    try:
        backend.fsdp2()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    torch.cuda.synchronize()
    good = {*symmetric} == {*names} and all(all(found) for found in symmetric.values())
    check("FSDP2's buffers are symmetric", good, {n: f[:6] for n, f in symmetric.items()})


def allocator() -> None:
    """Use the backend's allocator as programs use NCCL's."""
    ours = dist.group.WORLD._get_backend(DEVICE)
    check("allocate_tensor is supported", ours.supports_tensor_alloc(DEVICE))
    direct = ours.allocate_tensor(1000, dtype=torch.float32, device=DEVICE)
    pool = torch.cuda.MemPool(ours.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        pooled = torch.empty(1 << 20, device=DEVICE)
    ours.register_mem_pool(pool)
    check("the pool's memory is symmetric", symmem.is_symmetric(pooled))
    for name, tensor in (("allocate_tensor", direct), ("MemPool", pooled)):
        tensor.fill_(RANK + 1)
        dist.all_reduce(tensor)
        check(f"{name}: all_reduce", bool((tensor == common.SUM).all()), tensor[:2].tolist())
    check("allocate_tensor is symmetric", symmem.is_symmetric(direct))
    other = dist.new_group([*range(SIZE)])
    one = other._get_backend(DEVICE).allocate_tensor(1000, dtype=torch.bfloat16, device=DEVICE)
    one.fill_(RANK + 1)
    dist.all_reduce(one, group=other)
    check("allocate_tensor of another group", bool((one == common.SUM).all()), one[:2].tolist())
    del direct, pooled, one, pool
    torch.cuda.synchronize()


def main() -> None:
    """Run all checks. Most of them create their own default process group."""
    store = new_store()
    torch.use_deterministic_algorithms(True, warn_only=True)
    compare("ddp", store, backend.ddp)
    compare("fsdp2", store, backend.fsdp2)
    trial("buckets", lambda: buckets(store))
    trial("shards", shards)
    trial("allocator", allocator)
    trial("destroy", dist.destroy_process_group)
    sys.stdout.flush()
    time.sleep(2)  # rank 0 serves the store
    os._exit(1 if common.failed else 0)


if __name__ == "__main__":
    main()
