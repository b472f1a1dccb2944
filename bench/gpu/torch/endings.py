"""Tests how programs on GPUs exit: no hang, no crash, a clear error. The argument is the way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, say

import symmem

LIVE: list[Any] = []


def judge(ok: bool, *words: Any) -> None:
    """Print the verdict and exit, with an error code if it is FAIL."""
    say("PASS" if ok else "FAIL", *words)
    if not ok:
        sys.exit(1)


def live() -> None:
    """Exit with live tensors and unfinished work."""
    with symmem.use(common.start()):
        LIVE.append(torch.ones(64 * MIB, device=DEVICE))
    for _ in range(20):
        symmem.all_reduce(LIVE[0])
    say("PASS exit with live tensors, if the exit codes are 0")


def scope() -> None:
    """Raise an exception inside a scope on one rank. The others must learn that it is lost."""
    world = common.start()
    say("EXPECT", *[1 if r == SIZE - 1 else 3 for r in range(SIZE)])
    try:
        with symmem.use(world):
            x = torch.ones(MIB, device=DEVICE)
            if RANK == SIZE - 1:
                raise KeyError("a mistake of the last rank")
        for _ in range(3):
            symmem.all_reduce(x)
            symmem.synchronize()
    except (symmem.RankLostError, symmem.TimeoutError) as e:
        named = f"rank {SIZE - 1}" in str(e)
        say("PASS" if named else "FAIL", "exception in a scope:", type(e).__name__, e)
        sys.stdout.flush()
        os._exit(3 if named else 4)
    except KeyError:
        os._exit(1)


def group() -> None:
    """Destroy the process group, then finalize symmem with live tensors."""
    with symmem.use(common.start()):
        x = torch.ones(MIB, device=DEVICE)
    if common.attachable():
        symmem.attach()
    dist.destroy_process_group()
    symmem.all_reduce(x)
    torch.cuda.synchronize()
    ok = bool((x == SIZE).all())
    del x
    torch.cuda.empty_cache()
    symmem.finalize(force=True)
    judge(ok, "process group first, then finalize")


class Squares(torch.utils.data.Dataset[int]):
    """Items from forked workers, which try to use symmem."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        try:
            symmem.check()
        except symmem.ForkedError:
            return index * index
        return -1


def loader() -> None:
    """Let a DataLoader fork workers while symmem is initialized."""
    with symmem.use(common.start()):
        x = torch.ones(MIB, device=DEVICE)
    data = torch.utils.data.DataLoader(
        Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=15
    )
    found = [n for batch in data for n in batch.tolist()]
    symmem.all_reduce(x)
    torch.cuda.synchronize()
    ok = found == [n * n for n in range(8)] and bool((x == SIZE).all())
    judge(ok, "fork in a DataLoader:", found)


def interrupt() -> None:
    """Send SIGINT to the last rank between collectives. The others must learn that it is lost.

    Any other exception ends the rank with a code that launch.py does not expect.
    """
    with symmem.use(common.start()):
        x = torch.ones(MIB, device=DEVICE)
    expected: type[BaseException] = symmem.RankLostError
    if RANK == SIZE - 1:
        expected = KeyboardInterrupt
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    done = 0
    try:
        while True:
            symmem.barrier()
            torch.cuda.synchronize()
            done += 1
    except expected as e:
        say(f"PASS SIGINT: {type(e).__name__} after {done} barriers, {x.numel()} elements live")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
