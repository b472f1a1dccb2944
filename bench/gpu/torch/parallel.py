"""Unchanged PyTorch programs with `symmem.attach`, compared with NCCL alone.

DDP, FSDP2 and tensor parallelism train a stack of MLPs. Each model is trained twice: without
symmem, and in a scope of the attached group, so that PyTorch's allocations are in windows. The
program prints the time of a step, measured in turns, the memory, and whether the losses are the
same. NCCL chooses its kernels for windows, which may be slower.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import common
import torch
from common import DEVICE, MIB, SIZE, attempt, gather, say, settle, verdict
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import symmem

LAYERS, WIDTH = 8, 4096
TOKENS = int(os.environ.get("TOKENS", "2048"))
STEPS, TURNS = 5, 4

Scope = Callable[[], AbstractContextManager[object]]


class Layer(nn.Module):
    """A multilayer perceptron with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and the perceptron's output."""
        return x + self.down(nn.functional.gelu(self.up(x)))


def stack() -> nn.Module:
    """Return the model, with the same weights on all ranks."""
    torch.manual_seed(3)
    with torch.device(DEVICE):
        return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(torch.bfloat16)


def ddp(_: DeviceMesh) -> nn.Module:
    """Replicate the model."""
    return nn.parallel.DistributedDataParallel(stack(), gradient_as_bucket_view=True)


def fsdp(mesh: DeviceMesh) -> nn.Module:
    """Shard the model."""
    model = stack()
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    """Divide the matrices of each layer."""
    model = stack()
    for layer in model.children():
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


class Trained:
    """A model trained in a scope."""

    def __init__(self, make: Callable[[DeviceMesh], nn.Module], mesh: DeviceMesh, scope: Scope):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.scope = scope
        with scope():
            self.model = make(mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        torch.manual_seed(4)
        self.x = torch.randn(TOKENS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
        self.loss = torch.zeros(())
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        self.memory = (torch.cuda.max_memory_allocated() - before) / MIB

    def step(self) -> None:
        """Train one step."""
        with self.scope():
            self.optimizer.zero_grad(set_to_none=False)
            self.loss = self.model(self.x).float().pow(2).mean()
            self.loss.backward()
            self.optimizer.step()

    def timed(self) -> float:
        """Return the time of a step in milliseconds."""
        settle()
        begin = time.monotonic()
        for _ in range(STEPS):
            self.step()
        torch.cuda.synchronize()
        return (time.monotonic() - begin) * 1e3 / STEPS


def compare(name: str, make: Callable[[DeviceMesh], nn.Module], mesh: DeviceMesh) -> None:
    """Train plainly and in windows, in turns."""
    group = symmem.attach(mesh.get_group())
    plain = Trained(make, mesh, contextlib.nullcontext)
    ours = Trained(make, mesh, lambda: symmem.use(group))
    times: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for of, model in zip(times, (plain, ours), strict=True):
            of.append(model.timed())
    a, b = (max(gather(statistics.median(of))) for of in times)
    near = abs(plain.loss.item() - ours.loss.item()) <= 0.02 * abs(plain.loss.item())
    mapped = sum(pool["mapped"] for pool in symmem.stats()["pools"]) / MIB
    verdict(
        f"{name} with attach is right",
        near,
        f"step {a:.2f} ms, with attach {b:.2f} ms: {a / b - 1:+.1%}; peak {plain.memory:.0f} and "
        f"{ours.memory:.0f} MiB, {mapped:.0f} MiB in windows; loss {plain.loss.item():.5f} and "
        f"{ours.loss.item():.5f}",
    )


if __name__ == "__main__":
    common.needs_gpus("times of training")
    if not common.attachable():
        say("SKIP, not supported here: attach needs NCCL 2.30.7 or newer")
        raise SystemExit(0)
    common.start()
    world = init_device_mesh("cuda", (SIZE,))
    programs = {"DDP": ddp, "FSDP2": fsdp, "tensor parallel": tensor_parallel}
    for label, program in programs.items():
        attempt(label, lambda n=label, p=program: compare(n, p, world))
    common.leave()
