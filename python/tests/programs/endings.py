"""How programs end: the first argument says which way."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE

import symmem

LIVE: list[Any] = []


def opened(**options: Any) -> symmem.Group:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    return symmem.init(**{"backend": "host", "timeout": 10, **options})


def live_tensors() -> None:
    """The interpreter ends with live tensors, one of them in use by a view."""
    with symmem.use(opened()):
        LIVE.append(symmem.empty(1 << 20).fill_(1))
    LIVE.append(LIVE[0][5:])
    symmem.all_reduce(LIVE[0])
    print("END", LIVE[0][0].item())


def open_scope() -> None:
    """The program ends inside of a scope, by SystemExit."""
    with symmem.use(opened()):
        symmem.empty(1 << 20)
        print("END")
        sys.exit(7)


def exception() -> None:
    """One rank raises inside of a scope; the others are told that it is gone."""
    world = opened()
    try:
        with symmem.use(world):
            x = symmem.empty(1 << 20)
            if RANK == 1:
                raise KeyError("a mistake of rank 1")
        symmem.all_reduce(x)
    except symmem.RankLostError as e:
        print("END RankLostError", e.ranks, e)
        sys.exit(3)


def interrupt() -> None:
    """A SIGINT comes while a rank waits for one that does not come."""
    world = opened(timeout=3)
    with symmem.use(world):
        x = symmem.empty(1000)
    if RANK == 0:
        # The signal comes while the main thread is in the library; Python raises when it is back.
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        if RANK == 0:
            symmem.all_reduce(x)
        else:
            dist.distributed_c10d._get_default_store().wait(["interrupted"], timedelta(seconds=30))
    except (KeyboardInterrupt, symmem.SymmemError) as e:
        print("END", type(e).__name__)
        if RANK == 0:
            dist.distributed_c10d._get_default_store().set("interrupted", "yes")
    print("AFTER")


def handler() -> None:
    """A program's own signal handlers go on working."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda n, _: seen.append(n))
    opened()
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGUSR1)
        x = symmem.empty(100).fill_(1)
        symmem.all_reduce(x)
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError):
        os.write(writer, b"x")
        raise SystemExit("a broken pipe was not told")
    print("END", len(seen) > 0)


def group_first() -> None:
    """The process group is destroyed before symmem is closed."""
    with symmem.use(opened()):
        x = symmem.empty(1000).fill_(1)
    dist.destroy_process_group()
    symmem.all_reduce(x)
    del x
    symmem.finalize()
    print("END")


def diverge(level: str) -> None:
    """Rank 1 makes a tensor more than the others."""
    world = opened(check=level, callsites=True)
    try:
        with symmem.use(world):
            a = symmem.empty(1 << 20)
            if RANK == 1:
                b = symmem.empty(1 << 18)  # the extra tensor
            c = symmem.empty(1 << 20)
        symmem.all_reduce(c)
        print("END no error", a.numel(), b.numel() if RANK == 1 else 0)
    except symmem.DivergenceError as e:
        lines = [side.site.rpartition("/")[2].split(":")[0] for side in e.sides]
        print("END DivergenceError", "endings.py" in str(e), lines)
        print(e)


class Squares(torch.utils.data.Dataset[int]):
    """A data set whose items are made in worker processes, which try symmem."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        try:
            symmem.empty(10)
        except symmem.ForkedError:
            return index * index
        return -1


def loader() -> None:
    """A DataLoader forks workers while symmem is open."""
    world = opened()
    with symmem.use(world):
        x = symmem.empty(1000).fill_(1)
    data = torch.utils.data.DataLoader(
        Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=20
    )
    found = [n for batch in data for n in batch.tolist()]
    symmem.all_reduce(x)
    print("END", found == [n * n for n in range(8)], x[0].item() == SIZE)


def late() -> None:
    """Rank 1 does not come to a collective, and rank 0 hears who it was."""
    world = opened(timeout=2)
    with symmem.use(world):
        x = symmem.empty(1000)
    store = dist.distributed_c10d._get_default_store()
    if RANK == 1:
        store.wait(["heard"], timedelta(seconds=40))
        print("END")
        return
    try:
        symmem.all_reduce(x)
    except symmem.TimeoutError as e:
        print("END TimeoutError", e.missing, e)
    store.set("heard", "yes")


if __name__ == "__main__":
    way, *rest = sys.argv[1:]
    globals()[way](*rest)
