"""Tests that memory of CUDA graphs is not reused, and that growth in a capture warns.

The test reduces a symmetric tensor inside a graph, allocates a sentinel tensor outside, fills it
with 7.0, and replays the graph. If a pool ignored graphs and reused the memory of the graph's
tensor, replays would overwrite the sentinel.
"""

from __future__ import annotations

import warnings

import common
import torch
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, settle, verdict

import symmem

SIZES = [2 << 10, 12 << 10, 96 << 10, MIB, 24 * MIB]


def stream() -> torch.cuda.Stream:
    """Return the stream that captures use, with memory reserved on it."""
    made = torch.cuda.Stream()
    symmem.reserve(256 * MIB, stream=made)
    return made


def step(source: torch.Tensor, out: torch.Tensor) -> None:
    """Reduce a temporary symmetric tensor."""
    with symmem.use():
        inside = source * 2
    symmem.all_reduce(inside)
    out.copy_(inside)


def sevens(on: torch.cuda.Stream, count: int) -> list[torch.Tensor]:
    """Allocate symmetric tensors on a stream, and fill them with 7.0."""
    with torch.cuda.stream(on), symmem.use():
        made = [torch.full((count,), 7.0, device=DEVICE) for _ in range(8)]
    torch.cuda.synchronize()
    return made


def paths() -> dict[str, int]:
    """Return the number of calls on each path."""
    counts = symmem.stats()["groups"]["world"]["paths"]
    return {path: counts.get(path, 0) for path in ("plain", "window", "direct")}


def captured(
    graph: torch.cuda.CUDAGraph, on: torch.cuda.Stream, source: torch.Tensor, out: torch.Tensor
) -> tuple[int, dict[str, int]]:
    """Capture a step; return the warnings about growth and the calls on each path."""
    before = paths()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph, stream=on, capture_error_mode="thread_local"):
            step(source, out)
    warned = sum(issubclass(w.category, symmem.GrowthInCaptureWarning) for w in seen)
    return warned, {path: count - before[path] for path, count in paths().items()}


def sentinel() -> None:
    """Capture, allocate sentinels, and replay ten times."""
    intact, right, reserved = [], [], []
    for nbytes in SIZES:
        on = stream()
        count = nbytes // 4
        source, out = torch.ones(count, device=DEVICE), torch.empty(count, device=DEVICE)
        step(source, out)
        settle()
        graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        warned, took = captured(graph, on, source, out)
        reserved.append(warned == 0 and took["window"] == 1)
        # Allocate where freed memory would be reused: on the capture's stream, in a graph of
        # another pool, and after free memory was returned.
        sentinels = sevens(on, count)
        with torch.cuda.graph(other, stream=on, capture_error_mode="thread_local"):
            step(source, torch.empty_like(out))
        symmem.trim()
        sentinels += sevens(on, count) + sevens(torch.cuda.current_stream(), count)
        for n in range(10):
            source.fill_((RANK + 1) * (n + 1))
            graph.replay()
            torch.cuda.synchronize()
            right.append(bool((out == 2 * SUM * (n + 1)).all()))
        intact.append(all(bool((s == 7.0).all()) for s in sentinels))
        del graph, other, sentinels
    verdict("capture in reserved memory goes over windows, untold", all(reserved), reserved)
    verdict("graph sentinel", all(intact), f"intact for {SIZES} bytes: {intact}")
    verdict("graph replays", all(right), f"{sum(right)} of {len(right)} right")


def shared() -> None:
    """Share a private pool between two graphs, as engines do, and replay them in turns."""
    on, handle = stream(), torch.cuda.graph_pool_handle()
    graphs, sources, outs = [], [], []
    for n in range(3):
        source = torch.full((MIB,), float(n + 1), device=DEVICE)
        out = torch.empty(MIB, device=DEVICE)
        step(source, out)
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=handle, stream=on, capture_error_mode="thread_local"):
            step(source, out)
        graphs.append(graph)
        sources.append(source)
        outs.append(out)
    ok = True
    for turn in range(5):
        for n in (0, 2, 1):
            sources[n].fill_(turn + n)
            graphs[n].replay()
        torch.cuda.synchronize()
        ok = ok and all(bool((outs[n] == 2 * SIZE * (turn + n)).all()) for n in range(3))
    lanes = symmem.stats()["lanes"][0]
    verdict("graphs with one pool", ok, f"lanes {lanes}")


def growth() -> None:
    """Use memory in a capture that was not reserved."""
    world = symmem.world()
    count = 512 * MIB // 4
    source, out = torch.ones(count, device=DEVICE), torch.empty(count, device=DEVICE)
    settle()
    graph, fresh = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    warned, took = captured(graph, fresh, source, out)
    graph.replay()
    torch.cuda.synchronize()
    right = bool((out == 2 * SIZE).all())
    with symmem.use(world):
        pass
    figures = f"{warned} warnings, calls {took}, right: {right}"
    verdict("growth in a capture", right and warned > 0 and took["plain"] == 1, figures)


def forgotten() -> None:
    """Trim the memory of destroyed graphs."""
    before = symmem.stats()["pools"][0]["mapped"]
    settle()
    symmem.trim()
    after = symmem.stats()["pools"][0]["mapped"]
    lanes = symmem.stats()["lanes"][0]
    verdict(
        "trim after graphs", after < before, f"{before / MIB:.0f} to {after / MIB:.0f} MiB {lanes}"
    )


if __name__ == "__main__":
    common.start(path="window", reserve=64 * MIB)
    for part in (sentinel, shared, growth, forgotten):
        attempt(part.__name__, part)
    common.leave()
