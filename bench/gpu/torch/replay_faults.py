"""Tests faults of the last rank while all ranks replay a graph and no rank calls symmem.

replay_faults.py pause    the rank sleeps for longer than the timeout and then continues
replay_faults.py stop     the same with SIGSTOP
replay_faults.py kill     the rank is killed
replay_faults.py differ   the rank replays another graph

A second argument is the number of elements to sum (default: 4096). On all other ranks
symmem.failed must return True, and check, synchronize and the next call must raise errors. No rank
may ever find a number that is neither the sum nor a NaN. An aborted call leaves at least one NaN,
and so does every replay after the fault.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import common
import torch
from common import DEVICE, RANK, SIZE, SUM, say

import symmem

TIMEOUT = 2.0
ROUNDS = 20
"""The number of replays before the fault."""

LIMIT = 60.0
SOON = 0.5
"""The maximum delay of the word after the first NaN, in seconds. It is 0.2 on an idle machine."""

LARGE = 1 << 20
"""Tensors of at least this many elements are symmetric, so that peers access them directly."""

LAST = RANK == SIZE - 1


class Sums:
    """A graph that copies and sums an input, and the results found in its output."""

    def __init__(self, count: int) -> None:
        self.input = torch.full((count,), float(RANK + 1), device=DEVICE)
        with symmem.use(disabled=count < LARGE):
            self.output = torch.empty_like(self.input)
        self.step()
        self.half()
        self.graph = common.capture(self.step)
        self.other = common.capture(self.half)
        self.wrong = self.nans = 0

    def step(self) -> None:
        """Sum all elements."""
        self.output.copy_(self.input)
        symmem.all_reduce(self.output)

    def half(self) -> None:
        """Sum half of the elements, which is a different call."""
        self.output.copy_(self.input)
        symmem.all_reduce(self.output[: self.output.numel() // 2])

    def replay(self, graph: torch.cuda.CUDAGraph | None = None) -> bool:
        """Replay, check every number, and return whether one is a NaN."""
        (graph or self.graph).replay()
        torch.cuda.synchronize()
        found = self.output if graph is None else self.output[: self.output.numel() // 2]
        nan = found.isnan()
        self.wrong += int((~nan & (found != SUM)).sum())
        self.nans += int(nan.any())
        return bool(nan.any())


def fail(way: str, sums: Sums) -> None:
    """Cause a fault of the last rank."""
    away = TIMEOUT + 5
    if way == "pause":
        time.sleep(away)
    elif way == "stop":
        subprocess.Popen(["sh", "-c", f"sleep {away}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        sums.replay(sums.other)


def raises(name: str, call: object) -> list[str]:
    """Return whether a call raises a symmem error."""
    try:
        call()  # type: ignore[operator]
    except symmem.SymmemError as e:
        print(f"rank {RANK}: {name}: {type(e).__name__}: {e}", flush=True)
        return []
    return [f"{name} raised nothing"]


def run(way: str, count: int) -> list[str]:
    """Replay until the fault is detected, and return descriptions of failures."""
    sums = Sums(count)
    begin, first = time.monotonic(), 0.0
    rounds = 0
    while not symmem.failed():
        if rounds == ROUNDS and LAST:
            fail(way, sums)
        if sums.replay() and not first:
            first = time.monotonic()
        rounds += 1
        if time.monotonic() - begin > LIMIT:
            return [f"after {LIMIT} s and {rounds} replays the word says nothing"]
    late = time.monotonic() - first if first else 0.0
    bad = []
    if late > SOON:
        bad.append(f"the word came {late:.2f} s after the first NaN")
    if rounds < ROUNDS:
        bad.append(f"it came after {rounds} replays")
    for _ in range(3):
        if not sums.replay():
            bad.append("a replay after the fault has left no NaN")
    bad += raises("synchronize", symmem.synchronize)
    bad += raises("check", symmem.check)
    bad += raises("a call", lambda: symmem.all_reduce(sums.output))
    if sums.wrong:
        bad.append(f"{sums.wrong} numbers are wrong")
    print(f"rank {RANK}: {rounds} replays, the word {1e3 * late:.0f} ms after a NaN", flush=True)
    return bad


def main() -> None:
    """Run one case, and exit without Python's cleanup."""
    way = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    common.start(path="direct", timeout=TIMEOUT)
    say("EXPECT", *[-signal.SIGKILL if r == SIZE - 1 and way == "kill" else 0 for r in range(SIZE)])
    bad = run(way, count)
    print("FAIL" if bad else "PASS", f"rank {RANK}, {way} of {count}:", *bad, sep=" ", flush=True)
    if RANK == 0:
        time.sleep(3)  # rank 0 serves the store of the other ranks
    os._exit(1 if bad else 0)


main()
