"""Tests that SYMMEM_COMM_MEMORY puts buffers of DDP and FSDP2 into symmetric memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import check, main
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import symmem

ON = os.environ.get("SYMMEM_COMM_MEMORY") == "1"


def windows() -> int:
    """Return the number of the world's calls on the window path."""
    return int(symmem.stats()["groups"]["world"]["paths"].get("window", 0))


def steps(parallel: nn.Module) -> int:
    """Train a model, and return the number of its calls on the window path."""
    before = windows()
    for _ in range(3):
        parallel(torch.ones(4, 32)).sum().backward()
    return windows() - before


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


@check
def world_opens() -> None:
    dist.init_process_group("symmem", timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    assert windows() == 0, "an ordinary tensor has no window"


@check
def ddp_buckets_are_symmetric() -> None:
    symmetric = []

    def hook(_, bucket):  # type: ignore[no-untyped-def] # DDP rejects string annotations
        dist.all_reduce(bucket.buffer())
        symmetric.append(symmem.is_symmetric(bucket.buffer()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    with_hook = DistributedDataParallel(model())
    with_hook.register_comm_hook(None, hook)
    steps(with_hook)
    assert symmetric == [ON] * 3, symmetric
    taken = steps(DistributedDataParallel(model()))
    assert taken >= 3 if ON else taken == 0, taken


@check
def fsdp2_buffers_are_symmetric() -> None:
    symmetric: dict[str, list[bool]] = {}

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def call(*arguments: Any, **named: Any) -> Any:
            tensors = [t for t in (*arguments, *named.values()) if torch.is_tensor(t)]
            work = original(*arguments, **named)
            symmetric.setdefault(name, []).extend(symmem.is_symmetric(t) for t in tensors)
            return work

        setattr(dist, name, call)
        return original  # type: ignore[no-any-return]

    names = ("all_gather_into_tensor", "reduce_scatter_tensor")
    originals = {name: noted(name) for name in names}
    try:
        taken = steps(fully_shard(model()))
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    assert {*symmetric} == {*names}, symmetric
    for name, found in symmetric.items():
        assert all(found) if ON else not any(found), (name, found)
    assert taken >= 6 if ON else taken == 0, taken


@check
def a_program_can_choose_buffers_for_each_model() -> None:
    sharded = fully_shard(model())
    sharded.set_allocate_memory_from_process_group_for_comm(True)
    assert steps(sharded) >= 6
    sharded = fully_shard(model())
    sharded.set_allocate_memory_from_process_group_for_comm(False)
    assert steps(sharded) == 0


@check
def other_backends_use_ordinary_memory() -> None:
    mesh = dist.init_device_mesh(
        "cpu", (dist.get_world_size(),), mesh_dim_names=("x",), backend_override={"x": "gloo"}
    )
    assert steps(fully_shard(model(), mesh=mesh)) == 0


if __name__ == "__main__":
    main()
