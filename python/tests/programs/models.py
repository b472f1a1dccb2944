"""Compares the losses of models that PyTorch trains in parallel with symmem and with gloo."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import RANK, SIZE, check, main
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import symmem

STEPS = 5


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 8))


def train(
    parallel: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS, seed: int = RANK
) -> list[float]:
    losses = []
    for step in range(steps):
        torch.manual_seed(100 * step + seed)
        optimizer.zero_grad()
        loss = parallel(torch.randn(16, 32)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


def ddp(**options: bool) -> list[float]:
    parallel = DistributedDataParallel(model(), bucket_cap_mb=0.01, **options)  # type: ignore[arg-type]
    return train(parallel, sgd(parallel))


def ddp_with_a_static_graph() -> list[float]:
    return ddp(static_graph=True)


def ddp_with_a_hook() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    parallel = DistributedDataParallel(model())
    parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(parallel, sgd(parallel))


def ddp_with_uneven_inputs() -> list[float]:
    parallel = DistributedDataParallel(model())
    with parallel.join():
        return train(parallel, sgd(parallel), STEPS + RANK)


def zero() -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parallel = DistributedDataParallel(model())
    return train(parallel, ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.Adam, lr=0.1))


def fsdp1() -> list[float]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    parallel = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    return train(parallel, sgd(parallel))


def fsdp2() -> list[float]:
    from torch.distributed.fsdp import fully_shard

    parallel = model()
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    for layer in parallel:
        fully_shard(layer, mesh=mesh)
    fully_shard(parallel, mesh=mesh)
    return train(parallel, sgd(parallel))


def tensor_parallel() -> list[float]:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = nn.Sequential(*[model()[i] for i in (0, 1, 2)])
    parallel = parallelize_module(parallel, dist.init_device_mesh("cpu", (SIZE,)), plan)
    return train(parallel, sgd(parallel), seed=0)


def checkpoint() -> list[float]:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    box = [tempfile.mkdtemp() if RANK == 0 else ""]
    dist.broadcast_object_list(box)
    parallel = model()
    fully_shard(parallel, mesh=dist.init_device_mesh("cpu", (SIZE,)))
    before = train(parallel, sgd(parallel))
    dcp.save({"model": parallel.state_dict()}, checkpoint_id=box[0])
    state = {"model": parallel.state_dict()}
    for value in state["model"].values():
        value.zero_()
    dcp.load(state, checkpoint_id=box[0])
    parallel.load_state_dict(state["model"])
    return before + train(parallel, sgd(parallel))


def pipeline() -> list[float]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole = model()
    parts = [whole[:2], whole[2:]] if SIZE == 2 else [whole[:2], whole[2:3], whole[3:]]
    stage = PipelineStage(parts[RANK], RANK, SIZE, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, lambda output, target: (output - target).pow(2).mean())
    torch.manual_seed(0)
    inputs, target, losses = torch.randn(16, 32), torch.randn(16, 8), []
    arguments = [inputs] if RANK == 0 else []
    if RANK == SIZE - 1:
        schedule.step(*arguments, target=target, losses=losses)
    else:
        schedule.step(*arguments)
    gradients = [p.grad.sum().item() for p in parts[RANK].parameters()]
    return [loss.item() for loss in losses] + gradients


def functional_collectives() -> list[float]:
    torch.manual_seed(RANK)
    group = dist.group.WORLD
    values = torch.randn(SIZE * 4, 3)
    found = [
        functional.all_reduce(values, "sum", group),
        functional.all_gather_tensor(values, 0, group),
        functional.reduce_scatter_tensor(values, "sum", 0, group),
        functional.all_to_all_single(values, None, None, group),
        *functional.all_reduce_coalesced([values, values + 1], "sum", group),
    ]
    return [t.double().pow(2).sum().item() for t in found]


def compiled_ddp() -> list[float]:
    parallel = torch.compile(DistributedDataParallel(model()), backend="aot_eager")
    return train(parallel, sgd(parallel))


KINDS: list[Callable[[], list[float]]] = [
    ddp,
    ddp_with_a_static_graph,
    ddp_with_a_hook,
    ddp_with_uneven_inputs,
    zero,
    fsdp1,
    fsdp2,
    tensor_parallel,
    checkpoint,
    pipeline,
    functional_collectives,
    compiled_ddp,
]


@functools.cache
def store() -> dist.Store:
    return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)


def losses(backend: str, kind: Callable[[], list[float]]) -> list[float]:
    dist.init_process_group(
        backend,
        # Models that were not collected yet keep their groups, and so the groups' keys.
        store=dist.PrefixStore(f"{kind.__name__} {backend}", store()),
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
    )
    try:
        return kind()
    finally:
        gc.collect()  # gloo aborts the process if one of its threads frees the group
        dist.destroy_process_group()


def compare(kind: Callable[[], list[float]]) -> Callable[[], None]:
    def run() -> None:
        got, want = losses("symmem", kind), losses("gloo", kind)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=1e-7)
        assert not symmem.is_initialized()

    run.__name__ = kind.__name__
    return run


for each in KINDS:
    check(compare(each))


if __name__ == "__main__":
    main(sys.argv[1:])
