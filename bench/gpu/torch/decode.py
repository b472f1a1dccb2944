"""Compares a tensor-parallel decode layer with symmem's choice of paths to NCCL, batch 1 to 256.

A layer is a matrix product with partial sums and the all-reduce of its result, as after attention
or an MLP. Graphs are replayed in turns, so that noise affects both equally.
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from common import DEVICE, SIZE, attempt, capture, in_turns, say, verdict
from torch.nn import functional

import symmem

HIDDEN, LAYERS = 8192, 16
SLOWER = 0.02
"""The fraction by which symmem may be slower than the plain path for any batch."""


class Layer:
    """The weights and one batch of inputs."""

    def __init__(self, batch: int, weights: list[torch.Tensor]):
        self.weights = weights
        shape = (batch, HIDDEN // SIZE)
        self.x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)

    def plain(self) -> torch.Tensor:
        """Run the layers without symmem."""
        for n in range(LAYERS):
            out = functional.linear(self.x, self.weights[n % 2])
            dist.all_reduce(out)
        return out

    def product(self) -> torch.Tensor:
        """Run only the matrix products, which are the lower bound."""
        for n in range(LAYERS):
            out = functional.linear(self.x, self.weights[n % 2])
        return out

    def ours(self) -> torch.Tensor:
        """Run the layers with the products in symmetric memory."""
        for n in range(LAYERS):
            with symmem.use():
                out = functional.linear(self.x, self.weights[n % 2])
            symmem.all_reduce(out)
        return out


def weights() -> list[torch.Tensor]:
    """Return this rank's part of two weights."""
    shape = (HIDDEN, HIDDEN // SIZE)
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) * 0.01 for _ in range(2)]


def batches() -> None:
    """Compare all batches."""
    made = weights()
    worst = 0.0
    columns = ["batch", "bytes", "PyTorch us", "symmem us", "gain", "product alone us", "path"]
    rows: list[list[object]] = []
    say(" | ".join(columns))
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        layer = Layer(batch, made)
        want, found = layer.plain(), layer.ours()
        if not torch.allclose(want.float(), found.float(), 0.05, 0.05):
            raise AssertionError(f"batch {batch}: results differ")
        path = symmem.explain("all_reduce", found).path
        ways = {"plain": layer.plain, "ours": layer.ours, "product": layer.product}
        graphs = {name: capture(way) for name, way in ways.items()}
        plain, ours, product = (t / LAYERS for t in in_turns(graphs).values())
        gain = plain / ours - 1
        worst = min(worst, gain)
        size = batch * HIDDEN * 2
        times = [round(t, 1) for t in (plain, ours, product)]
        rows.append([batch, size, times[0], times[1], f"{gain:+.1%}", times[2], path])
        say(" | ".join(map(str, rows[-1])))
        del graphs, want, found
    common.record(f"torch-decode-{SIZE}", columns, rows)
    verdict("decode layer", worst >= -SLOWER, f"worst {worst:+.1%} (bar {-SLOWER:.0%})")


if __name__ == "__main__":
    common.needs_gpus("times of a layer")
    common.start(reserve=64 << 20)
    symmem.reserve(1 << 30, stream=common.capture_stream())
    attempt("decode layer", batches)
    common.leave()
