"""Measures the cost of a replay of two all-reduce graphs, replayed in turns on one stream.

Prints a line for each size: the bytes and the microseconds of a replay. SYMMEM_PATH chooses the
path. To compare two versions of symmem, run the program with the PYTHONPATH of each in turns.
"""

from __future__ import annotations

import os
import statistics

import common
import torch
from common import DEVICE, attempt, capture, gather, say, settle

import symmem

CALLS = 8
"""The number of all-reduces in a graph."""

REPLAYS, ROUNDS = 50, 20


def timed(graphs: list[torch.cuda.CUDAGraph]) -> float:
    """Return the median time of a replay, in microseconds. The graphs alternate."""
    found = []
    for _ in range(ROUNDS):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        settle()
        begin.record()
        for _ in range(REPLAYS):
            for graph in graphs:
                graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1000 / REPLAYS / len(graphs))
    return max(gather(statistics.median(found)))


def run() -> None:
    """Measure all sizes."""
    path = os.environ.get("SYMMEM_PATH", "auto")
    for nbytes in (1 << 10, 16 << 10, 256 << 10, 4 << 20):
        with symmem.use():
            tensors = [torch.ones(nbytes // 4, device=DEVICE) for _ in range(2)]
        graphs = []
        for tensor in tensors:
            symmem.all_reduce(tensor)
            graphs.append(capture(lambda t=tensor: symmem.all_reduce(t), CALLS))  # type: ignore[misc]
        say(f"turns {path} {nbytes} bytes, {CALLS} calls: {timed(graphs):.2f} us a replay")


if __name__ == "__main__":
    common.needs_gpus("times of replays")
    common.start(reserve=64 << 20)
    symmem.reserve(64 << 20, stream=common.capture_stream())
    attempt("turns", run)
    common.leave()
