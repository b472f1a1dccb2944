"""Compares symmem's collectives with NCCL, NCCL's windows and PyTorch's symmetric kernels.

Each column does the same work on tensors of the same size, in graphs of 20 calls that are replayed
in turns. It is timed in three ways. "alone" is one replay between two events, which includes part
of the graph's launch, as in an engine that launches one graph per step. "steady" is eight replays
in a row, whose launches overlap with work. Both use CUDA's default stream, as programs do that do
not choose a stream. On that stream, each captured NCCL call that is followed by an event record
takes several microseconds more. "own" is "steady" on another stream. Factors are the best peer's
time divided by symmem's.
"""

from __future__ import annotations

from collections.abc import Callable

import common
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from common import (
    DEVICE,
    MIB,
    SIZE,
    SUM,
    attempt,
    capture,
    capture_stream,
    in_turns,
    say,
    verdict,
)

import symmem

KIB = 1024
SIZES = [1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB]
SIZES += [1 * MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]
CALLS = 20
SLOWER = 0.02
"""The fraction by which symmem may be slower than the best peer, to allow for noise."""

Work = Callable[[], object]
Graphs = dict[str, torch.cuda.CUDAGraph]


def symmetric(count: int) -> torch.Tensor:
    """Return a symmetric tensor of zeros."""
    with symmem.use():
        made = torch.empty(count, device=DEVICE, dtype=torch.bfloat16)
    return made.zero_()


def own(paths: dict[str, str], work: Work) -> Graphs:
    """Capture symmem's calls under each choice of path."""
    graphs = {}
    for name, path in paths.items():
        symmem.set_path(path)
        work()
        graphs[name] = capture(work, CALLS)
    symmem.set_path("auto")
    return graphs


PATHS = {"NCCL": "plain", "windows": "window", "symmem": "auto"}


class AllReduce:
    """All-reduce in place. PyTorch's kernels use PyTorch's own symmetric buffers."""

    name = "all-reduce"

    def __init__(self) -> None:
        self.group = dist.distributed_c10d._get_default_group().group_name
        self.theirs = symm_mem.empty(SIZES[-1] // 2, device=DEVICE, dtype=torch.bfloat16).zero_()
        symm_mem.rendezvous(self.theirs, self.group)
        self.ours = symmetric(SIZES[-1] // 2)

    def graphs(self, size: int) -> Graphs:
        """Capture all columns."""
        ours, theirs = self.ours[: size // 2], self.theirs[: size // 2]
        self.check(ours)
        graphs = own(PATHS, lambda: symmem.all_reduce(ours))
        for name, op in (
            ("one-shot", torch.ops.symm_mem.one_shot_all_reduce),
            ("two-shot", torch.ops.symm_mem.two_shot_all_reduce_),
        ):
            op(theirs, "sum", self.group)
            graphs[name] = capture(lambda op=op: op(theirs, "sum", self.group), CALLS)
        return graphs

    def check(self, ours: torch.Tensor) -> None:
        """Check the sum of the ranks."""
        ours.fill_(common.RANK + 1)
        symmem.all_reduce(ours)
        if not bool((ours == SUM).all()):
            raise AssertionError(f"all-reduce of {ours.numel()} elements is wrong")
        ours.zero_()


class AllGather:
    """All-gather. Sizes are those of the result."""

    name = "all-gather"

    def __init__(self) -> None:
        self.whole, self.part = symmetric(SIZES[-1] // 2), symmetric(SIZES[-1] // 2 // SIZE)

    def graphs(self, size: int) -> Graphs:
        """Capture all columns."""
        count = size // 2
        whole, part = self.whole[:count], self.part[: count // SIZE]
        return own(PATHS, lambda: symmem.all_gather_into_tensor(whole, part))


class ReduceScatter(AllGather):
    """Reduce-scatter. Sizes are those of the input."""

    name = "reduce-scatter"

    def graphs(self, size: int) -> Graphs:
        """Capture all columns."""
        count = size // 2
        whole, part = self.whole[:count], self.part[: count // SIZE]
        return own(PATHS, lambda: symmem.reduce_scatter_tensor(part, whole))


def row(size: int, graphs: Graphs) -> tuple[list[float], list[float]]:
    """Time one size in all three ways; print the times and factors."""
    cells, factors = [float(size)], []
    default, side = torch.cuda.default_stream(), capture_stream()
    for stream, replays in ((default, 1), (default, 8), (side, 8)):
        with torch.cuda.stream(stream):
            times = in_turns(graphs, turns=3 if size > MIB else 5, replays=replays)
        each = {name: t / CALLS / replays for name, t in times.items()}
        best = min(t for name, t in each.items() if name != "symmem")
        factors.append(best / each["symmem"])
        cells += [round(t, 2) for t in each.values()] + [round(factors[-1], 2)]
    say(f"{size} | " + " | ".join(f"{cell:.2f}" for cell in cells[1:]))
    return cells, factors


def table(kind: type[AllReduce] | type[AllGather]) -> None:
    """Compare all sizes of an operation."""
    made = kind()
    worst = [float("inf")] * 3
    columns, rows = ["bytes"], []
    for size in SIZES:
        graphs = made.graphs(size)
        if size == SIZES[0]:
            ways = ("alone", "steady", "own")
            columns += [f"{way}: {name}" for way in ways for name in (*graphs, "factor")]
            say(f"{kind.name}, us: " + " | ".join(columns))
        cells, factors = row(size, graphs)
        rows.append(cells)
        worst = [min(pair) for pair in zip(worst, factors, strict=True)]
        del graphs
    common.record(f"torch-{kind.name}-{SIZE}", columns, rows)
    figures = f"least factor alone {worst[0]:.2f}, steady {worst[1]:.2f}, own {worst[2]:.2f}"
    verdict(kind.name, min(worst) >= 1 - SLOWER, figures)


if __name__ == "__main__":
    common.needs_gpus("times of collectives")
    common.start(reserve=512 << 20)
    for kind in (AllReduce, AllGather, ReduceScatter):
        attempt(kind.name, lambda kind=kind: table(kind))
    common.leave()
