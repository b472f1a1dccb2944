"""Tests that symmem orders concurrent calls of one group, so that every sum is correct.

    overlap.py            three programs, every path and size, REPLAYS (1000) times each
    overlap.py opposite   opposite order on the last rank: an error, no swapped sums

The programs are two graphs that are replayed on two streams, a graph that is replayed while another
stream makes calls, and two branches of one capture. The calls have the same size, or one has half
the size. After each call, wrong elements are counted on the device. SIZES lists the sizes of the
larger call in bytes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

import common
import torch
from common import DEVICE, MIB, RANK, SUM, attempt, settle, verdict

import symmem

REPLAYS = int(os.environ.get("REPLAYS", "1000"))
SIZES = [int(n) for n in os.environ.get("SIZES", f"1024 16384 {MIB} {8 * MIB} {64 * MIB}").split()]
PATHS = os.environ.get("PATHS", "direct plain window").split()


class Sums:
    """A repeated sum of changing numbers whose results are checked."""

    def __init__(self, nbytes: int, path: str, base: int):
        make = symmem.empty if path == "window" else torch.empty
        self.tensor = make(max(1, nbytes // 4), dtype=torch.float32, device=DEVICE)
        self.base = base
        self.turn = torch.zeros((), device=DEVICE)
        self.wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def fill(self) -> torch.Tensor:
        """Fill the tensor for the next turn with small integers, whose sums are exact."""
        self.turn.add_(1).remainder_(97)
        return self.tensor.copy_((self.turn + self.base) * (RANK + 1))

    def look(self) -> None:
        """Count this turn if any number is wrong."""
        self.wrong.add_((self.tensor != (self.turn + self.base) * SUM).any())

    def step(self) -> None:
        """Make one sum and check it."""
        symmem.all_reduce(self.fill())
        self.look()


def captured(on: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture work on a stream."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=on, capture_error_mode="thread_local"):
        work()
    return graph


def replays(pair: list[Sums], streams: list[torch.cuda.Stream]) -> int:
    """Replay two graphs, each on its stream."""
    graphs = [captured(on, sums.step) for sums, on in zip(pair, streams, strict=True)]
    settle()
    for n in range(REPLAYS):
        for i in (0, 1) if n % 3 else (1, 0):
            with torch.cuda.stream(streams[i]):
                graphs[i].replay()
    return 2 * REPLAYS


def eager(pair: list[Sums], streams: list[torch.cuda.Stream]) -> int:
    """Replay a graph on one stream and make calls on another."""
    graph = captured(streams[0], pair[0].step)
    settle()
    for _ in range(REPLAYS):
        with torch.cuda.stream(streams[0]):
            graph.replay()
        with torch.cuda.stream(streams[1]):
            pair[1].step()
    return 2 * REPLAYS


def branches(pair: list[Sums], streams: list[torch.cuda.Stream]) -> int:
    """Replay a graph with two branches."""

    def part() -> None:
        tensors = [sums.fill() for sums in pair]
        work = symmem.all_reduce(tensors[0], async_op=True)
        symmem.all_reduce(tensors[1])
        work.wait()
        for sums in pair:
            sums.look()

    graph = captured(streams[0], part)
    settle()
    with torch.cuda.stream(streams[0]):
        for _ in range(REPLAYS):
            graph.replay()
    return 2 * REPLAYS


def nodes() -> None:
    """Count the nodes of graphs with 1 and with 9 direct calls, each of which is a kernel."""
    symmem.set_path("direct")
    tensor = torch.ones(4096, device=DEVICE)
    symmem.all_reduce(tensor)
    counts = []
    for calls in (1, 9):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        settle()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                symmem.all_reduce(tensor)
        count = ctypes.c_size_t()
        found = ctypes.c_void_p(graph.raw_cuda_graph())
        ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(found, None, ctypes.byref(count))
        counts.append(count.value)
    verdict("nodes of graphs with 1 and 9 calls", counts == [3, 11], counts)


def overlap() -> None:
    """Run the programs."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for path in PATHS:
        symmem.set_path(path)
        for nbytes in SIZES:
            for other, kind in ((nbytes, "alike"), (nbytes // 2, "different")):
                for program in (replays, eager, branches):
                    begin = time.monotonic()
                    pair = [Sums(nbytes, path, 1), Sums(other, path, 200)]
                    for sums, on in zip(pair, streams, strict=True):
                        with torch.cuda.stream(on):  # so that a capture does not allocate
                            sums.step()
                    settle()
                    made = program(pair, streams)
                    torch.cuda.synchronize()
                    wrong = sum(int(sums.wrong) for sums in pair)
                    took = time.monotonic() - begin
                    verdict(
                        f"{program.__name__}, {path}, {nbytes} bytes, {kind}",
                        wrong == 0,
                        f"{wrong} of {made} wrong, {took:.1f} s",
                    )


def opposite() -> None:
    """Make the last rank replay its two graphs in the opposite order."""
    symmem.set_path("direct")
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    pair = [Sums(16384, "direct", 1), Sums(16384, "direct", 200)]
    for sums in pair:
        sums.step()
    settle()
    graphs = [captured(on, sums.step) for sums, on in zip(pair, streams, strict=True)]
    settle()
    begin, error = time.monotonic(), None
    for graph in graphs[::-1] if RANK == common.SIZE - 1 else graphs:
        with torch.cuda.stream(streams[0]):
            graph.replay()
    try:
        with torch.cuda.stream(streams[0]):
            symmem.synchronize()
    except symmem.DivergenceError as e:
        error = e
    took = time.monotonic() - begin
    ok = error is not None and "of capture" in str(error) and took < 1
    verdict("opposite order", ok, f"after {took:.3f} s: {error}")


if __name__ == "__main__":
    common.start(reserve=256 * MIB)
    for part in [opposite] if "opposite" in sys.argv[1:] else [nodes, overlap]:
        attempt(part.__name__, part)
    common.leave()
