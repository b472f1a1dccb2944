"""Measures how much memory the world's pool maps if tensors are allocated on many streams.

There are three parts: FSDP2, which has its own streams for gathers and reductions, trains 200 steps
in `symmem.use`; tensors of 1 MiB are allocated on 1 to 64 streams, the maximum in PyTorch; and
1,000 short graphs are captured, each on another stream. A pool may map twice its peak use, 2 MiB
for each stream, and its first segment, in logarithmically many segments
(docs/design/placement.md).
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import common
import torch
from common import DEVICE, MIB, SIZE, SUM, attempt, needs_gpus, record, say, settle, verdict
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import symmem

LAYERS, WIDTH, TOKENS, STEPS = 8, 2048, 1024, 200
CAPTURES = 1000
FIRST = 64 * MIB

rows: list[list[object]] = []


class Layer(nn.Module):
    """A multilayer perceptron with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and the layer's output."""
        return x + self.down(nn.functional.gelu(self.up(x)))


def bounded(name: str, streams: int, ok: bool, begin: float) -> None:
    """Print the memory that the pool maps after a part."""
    pool: dict[str, Any] = symmem.stats()["pools"][0]
    mapped, high, segments = pool["mapped"], pool["high_water"], pool["segments"]
    most = max(FIRST, 2 * high + 2 * MIB * streams)
    within = mapped <= most and segments <= math.log2(max(mapped, FIRST) / FIRST) + 2
    rows.append([name, high // MIB, mapped // MIB, segments])
    verdict(
        f"{name}: memory is bounded",
        ok and within,
        f"at most {high / MIB:.0f} MiB in use, {mapped / MIB:.0f} MiB mapped in {segments} "
        f"segments, {time.monotonic() - begin:.1f} s",
    )


def many_streams() -> None:
    """Allocate a tensor on each of PyTorch's streams, and sum one of them."""
    begin = time.monotonic()
    live = []
    for number in range(64):
        with torch.cuda.stream(torch.cuda.Stream(priority=-(number % 2))), symmem.use():
            live.append(torch.full((MIB // 4,), float(common.RANK + 1), device=DEVICE))
        if number + 1 in (1, 10, 64):
            settle()
            symmem.all_reduce(live[-1])
            torch.cuda.synchronize()
            right = bool((live[-1] == SUM).all())
            bounded(f"{number + 1} streams of 1 MiB", number + 1, right, begin)


def fsdp() -> None:
    """Train a sharded stack of layers."""
    begin = time.monotonic()
    mesh = init_device_mesh("cuda", (SIZE,))
    torch.manual_seed(3)
    with symmem.use():
        with torch.device(DEVICE):
            model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(torch.bfloat16)
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(TOKENS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    losses = []
    for step in range(STEPS):
        with symmem.use():
            optimizer.zero_grad()
            loss = model(x).float().pow(2).mean()
            loss.backward()
            optimizer.step()
        if step in (0, STEPS - 1):
            losses.append(loss.item())
    bounded(f"FSDP2, {STEPS} steps", 70, losses[1] < losses[0], begin)
    symmem.check()


def captures() -> None:
    """Capture, replay and destroy one graph after the other."""
    begin = time.monotonic()
    right = True
    for number in range(CAPTURES):
        graph = torch.cuda.CUDAGraph()
        on = torch.cuda.Stream()
        capturing = torch.cuda.graph(graph, stream=on, capture_error_mode="thread_local")
        with warnings.catch_warnings(), capturing, symmem.use():
            warnings.simplefilter("ignore", symmem.GrowthInCaptureWarning)
            tensor = torch.full((MIB // 4,), float(common.RANK + 1), device=DEVICE)
            symmem.all_reduce(tensor)
        if number % 100 == 0:
            graph.replay()
            torch.cuda.synchronize()
            right = right and bool((tensor == SUM).all())
        del tensor
        graph.reset()
    bounded(f"{CAPTURES} captures", 64, right, begin)
    symmem.check()


if __name__ == "__main__":
    needs_gpus("training")
    common.start()
    attempt("many streams", many_streams)
    attempt("FSDP2", fsdp)
    attempt("captures", captures)
    record("streams", ["what", "in use, MiB", "mapped, MiB", "segments"], rows)
    say(f"# {len(rows)} rows")
    common.leave()
