"""Compares an engine's fused all-reduce and norm with separate steps. engines.py runs it.

The separate steps are an all-reduce of the engine's own group, or of the group with the plug-in,
and PyTorch's addition and norm: eager, or compiled to one kernel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import DEVICE, gather, in_turns, settle, verdict

CALLS, ROUNDS, TURNS = 10, 20, 3
EPSILON = 1e-6
SLOWER, NOISE = 1.02, 0.3
"""The time limit of a fused call: a multiple of the time of separate steps, plus microseconds."""

EAGER_NOISE = 3.0
"""The noise of eager calls of short kernels, whose times are those of the host."""

Tensors = list[torch.Tensor]
Steps = Callable[[], Tensors]


def recorded(group: Any, work: Callable[[], Any], times: int) -> torch.cuda.CUDAGraph:
    """Capture work as the engine does."""
    graph = torch.cuda.CUDAGraph()
    work()
    settle()
    with group.graph_capture() as context:
        work()
        settle()
        with torch.cuda.graph(graph, stream=context.stream):
            for _ in range(times):
                work()
    settle()
    return graph


def eager_times(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the median times of a call, in microseconds: on the stream, and on the host."""
    streams, hosts = [], []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        hosts.append((time.perf_counter() - start) * 1e6 / CALLS)
        end.record()
        torch.cuda.synchronize()
        streams.append(begin.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(streams), statistics.median(hosts)


def eager_in_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Time calls in turns. Return each one's least medians, of the slowest rank."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            settle()
            found[name].append(eager_times(call))
    least = {
        name: [min(turns) for turns in zip(*times, strict=True)] for name, times in found.items()
    }
    return {
        name: tuple(map(max, zip(*gather(times), strict=True)))  # type: ignore[misc]
        for name, times in least.items()
    }


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Add a residual to rows and normalize the sums."""
    added = x + residual
    return [torch.nn.functional.rms_norm(added, weight.shape, weight, EPSILON), added]


class Norm:
    """A fused norm and its separate steps, for one number of tokens.

    Attributes:
        fused: the engine's function on the group with the plug-in.
        calls: the steps to compare, by name.
    """

    def __init__(self, own: Any, ours: Any, fused: Callable[..., Any], one_kernel: Any, x: Any):
        hidden = x.shape[-1]
        weight = torch.linspace(0.5, 1.5, hidden, device=DEVICE).bfloat16()
        row = (torch.arange(hidden, device=DEVICE) % 7 - 3).bfloat16()
        residual = row.expand_as(x).contiguous()  # the same on all ranks
        self.fused: Steps = lambda: list(fused(x, residual, weight))

        def steps(group: Any, norm: Callable[..., Tensors]) -> Steps:
            input = x.clone()  # SGLang sums in place
            return lambda: norm(group.all_reduce(input), residual, weight)

        self.calls = {
            "own": steps(own, add_norm),
            "own, one kernel": steps(own, one_kernel),
            "symmem's all-reduce, one kernel": steps(ours, one_kernel),
            "fused": self.fused,
        }
        self.want = steps(own, add_norm)()

    def check(self) -> float:
        """Return the largest difference between the results of fused and separate steps."""
        pairs = zip(self.fused(), self.want, strict=True)
        return max((a.float() - b.float()).abs().max().item() for a, b in pairs)

    def time(self, groups: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the times in graphs, and the times of eager calls on the stream and the host."""
        graphs = {n: recorded(groups[n], call, CALLS) for n, call in self.calls.items()}
        times = in_turns(graphs, TURNS, replays=3)
        in_graphs = {name: time / CALLS / 3 for name, time in times.items()}
        return in_graphs, eager_in_turns(self.calls)


def compare(own: Any, ours: Any, fused: Any, inputs: list[torch.Tensor], count: Any) -> None:
    """Compare a fused norm with separate steps.

    Args:
        own: the engine's group.
        ours: the group with the plug-in.
        fused: the engine's function for a fused norm in `ours`.
        inputs: rows of this rank for each number of tokens.
        count: returns the number of calls that symmem has run in `ours`.
    """
    torch._dynamo.reset()
    one_kernel = torch.compile(add_norm, dynamic=False)
    for x in inputs:
        norm = Norm(own, ours, fused, one_kernel, x)
        before = count()
        apart = norm.check()
        called = count() > before
        groups = dict.fromkeys(norm.calls, own) | dict.fromkeys(list(norm.calls)[-2:], ours)
        graphs, eager = norm.time(groups)
        slower = graphs["fused"] > SLOWER * graphs["own, one kernel"] + NOISE
        slower |= eager["fused"][0] > SLOWER * eager["own"][0] + EAGER_NOISE
        figures = "; ".join(
            f"{n}: graph {graphs[n]:.1f}, eager {eager[n][0]:.1f}, host {eager[n][1]:.1f}"
            for n in norm.calls
        )
        verdict(
            f"fused norm, slower: {slower}",
            apart <= 0.07 and called and not slower,
            f"{x.nbytes} bytes, symmem was called: {called}, {apart:.3f} apart; us: {figures}",
        )
