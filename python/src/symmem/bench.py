"""Measures what symmem costs a program that uses PyTorch.

    python -m symmem.bench scope        # a scope with nothing new, and PyTorch's own pools
    python -m symmem.bench query        # is this tensor symmetric?
    python -m symmem.bench windows      # windows and start-up for so many bytes of tensors
    python -m symmem.bench collective   # all-reduce, and torch.distributed's
    torchrun --nproc-per-node 4 -m symmem.bench all

Each line has the figures of one run side by side; only ratios of one run count. On GPUs collectives
are captured and replayed. Exit codes are those of `python -m symmem.verify`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import symmem
from symmem._rank import launch
from symmem._torch.cuda import snapshot
from symmem._torch.pytorch import pytorch

PARTS = ("scope", "query", "windows", "collective")


def best(run: Callable[[], Any], calls: int = 2000, rounds: int = 15) -> float:
    """Time a call in microseconds: the least of the means of several rounds."""
    run()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return min(found)


class Bench:
    """The measurements of one rank. Only rank 0 prints."""

    def __init__(self, flags: argparse.Namespace):
        import torch
        import torch.distributed as dist

        self.torch: Any = torch
        self.dist: Any = dist
        self.flags = flags
        self.out = launch.take_stdout()
        gpu = None
        if flags.backend != "host" and torch.cuda.is_available():
            gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(gpu)
        dist.init_process_group("nccl" if gpu else "gloo", device_id=gpu)
        self.world = symmem.init(backend=flags.backend, check=flags.check, path=flags.path)
        self.cuda = self.world.runtime.cuda
        self.device = "cpu" if self.cuda is None else f"cuda:{self.cuda.device}"

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.world.rank == 0:
            print(text, file=self.out, flush=True)

    def scope(self) -> None:
        """Measure a scope with nothing new."""
        with symmem.use(self.world):
            kept = symmem.empty(1 << 20)
        symmem.barrier()

        def ours() -> None:
            with symmem.use(self.world):
                pass

        scope = best(ours)
        if self.cuda is None:
            self.say(f"scope with nothing new: {scope:.2f} us")
            return
        theirs, manager, shot = self._pools()
        self.say(
            f"scope with nothing new: {scope:.2f} us; PyTorch's begin and end {theirs:.2f} us, "
            f"use_mem_pool {manager:.2f} us, snapshot {shot:.1f} us; over begin and end "
            f"{scope - theirs:+.2f} us ({len(kept)} elements live)"
        )

    def _pools(self) -> tuple[float, float, float]:
        """Measure what PyTorch's own pools cost: bare, as a context manager, as a snapshot."""
        found = pytorch()
        pool = self.torch.cuda.MemPool()
        index = self.torch.cuda.current_device()

        def bare() -> None:
            found.begin(index, pool.id)
            found.end(index, pool.id)
            found.release(index, pool.id)

        def manager() -> None:
            with self.torch.cuda.use_mem_pool(pool):
                pass

        return best(bare), best(manager), best(lambda: snapshot(found), 20, 5)

    def query(self) -> None:
        """Measure the question whether a tensor is symmetric, with many windows."""
        with symmem.use(self.world):
            inside = symmem.empty(1 << 20)
        outside = self.torch.empty(1 << 20, device=self.device)
        ask = symmem.is_symmetric
        table = self.world.windows
        ask(inside, self.world)
        few, no = best(lambda: ask(inside, self.world)), best(lambda: ask(outside, self.world))
        _, starts, ends = table.copy
        have = len(starts)
        # More windows than anybody has: the table that is asked grows, the windows stay.
        far = 1 << 60
        starts += [far + i * 4096 for i in range(1000 - have)]
        ends += [far + i * 4096 + 4096 for i in range(1000 - have)]
        many = best(lambda: ask(inside, self.world))
        table.refresh()
        self.say(
            f"is_symmetric: {few:.2f} us with {have} windows, {many:.2f} us with 1000, "
            f"{no:.2f} us for an ordinary tensor"
        )

    def windows(self) -> None:
        """Make tensors of a total size and count windows."""
        total, each = self.flags.bytes, 24 << 20
        kept, begin = [], time.perf_counter()
        for _ in range(max(1, total // each)):
            with symmem.use(self.world):
                kept.append(symmem.empty(each, dtype=self.torch.uint8))
        took = time.perf_counter() - begin
        pool = symmem.stats()["pools"][self.world.pool]
        self.say(
            f"{total / 2**30:.2f} GiB of tensors, {len(kept)} of them: "
            f"{pool['windows']} windows in {took:.2f} s"
        )
        del kept
        symmem.barrier()

    def collective(self) -> None:
        """Measure all-reduces on symmetric tensors, and torch.distributed's."""
        dtype = self.torch.float32 if self.cuda is None else self.torch.bfloat16
        self.say("bytes | torch.distributed us | symmem us | ratio | path")
        size = self.flags.min
        while size <= self.flags.max:
            count = max(1, size // dtype.itemsize)
            with symmem.use(self.world):
                ours = symmem.empty(count, dtype=dtype)
            theirs = self.torch.ones(count, dtype=dtype, device=self.device)
            ours.fill_(1)
            mine = self.timed(partial(symmem.all_reduce, ours))
            stock = self.timed(partial(self.dist.all_reduce, theirs))
            path = symmem.explain("all_reduce", ours).path
            self.say(f"{size} | {stock:.1f} | {mine:.1f} | {stock / mine:.2f} | {path}")
            size *= 4

    def timed(self, call: Callable[[], Any], calls: int = 20, rounds: int = 20) -> float:
        """Time a collective: replayed on GPUs, called on the host; the median, in us."""
        self.dist.barrier()
        for _ in range(3):
            call()
        if self.cuda is None:
            return statistics.median(self._called(call, calls) for _ in range(rounds))
        return self._replayed(call, calls, rounds)

    def _called(self, call: Callable[[], Any], calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls * 1e6

    def _replayed(self, call: Callable[[], Any], calls: int, rounds: int) -> float:
        cuda = self.torch.cuda
        cuda.synchronize()
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        with cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
        self.dist.barrier()
        found: list[float] = []
        for _ in range(rounds):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            with cuda.stream(stream):  # on the default stream calls of NCCL take longer
                begin.record()
                graph.replay()
                end.record()
            cuda.synchronize()
            found.append(begin.elapsed_time(end) * 1000 / calls)
        return statistics.median(found)


def parser() -> argparse.ArgumentParser:
    """Describe the flags."""
    p = argparse.ArgumentParser(prog="python -m symmem.bench", description=__doc__)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument(
        "parts", nargs="*", metavar="part", help="scope, query, windows, collective, all"
    )
    p.add_argument("--ranks", type=int, default=0, help="processes to start (2, or as GPUs)")
    p.add_argument("--backend", default="auto", choices=["auto", "nccl", "host"])
    p.add_argument("--check", default=None, choices=["off", "registration", "every"])
    p.add_argument("--path", default=None)
    p.add_argument("--bytes", type=int, default=256 << 20, help="tensors of `windows`, in bytes")
    p.add_argument("--min", type=int, default=1 << 10, help="smallest message, in bytes")
    p.add_argument("--max", type=int, default=4 << 20, help="largest message, in bytes")
    return p


def run(flags: argparse.Namespace) -> int:
    """Be one rank."""
    bench = Bench(flags)
    for part in PARTS:
        if not flags.parts or part in flags.parts or "all" in flags.parts:
            getattr(bench, part)()
    bench.dist.barrier()
    symmem.finalize(force=True)
    bench.dist.destroy_process_group()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    flags = parser().parse_args(given)
    if unknown := set(flags.parts) - {*PARTS, "all"}:
        parser().error(f"no such part: {', '.join(sorted(unknown))}")
    try:
        if launch.launched():
            return run(flags)
        import torch

        gpus = torch.cuda.device_count() if flags.backend != "host" else 0
        return launch.start("symmem.bench", given, flags.ranks or gpus or 2)
    except KeyboardInterrupt:
        return 130
    except (symmem.SymmemError, ImportError, RuntimeError) as e:
        print(f"symmem.bench: {e}", file=sys.stderr)
        return launch.CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
