"""Programs that exit in different ways. The first argument names the way."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
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
    """The interpreter exits with live tensors, one of them kept alive by a view."""
    with symmem.use(opened()):
        LIVE.append(symmem.empty(1 << 20).fill_(1))
    LIVE.append(LIVE[0][5:])
    symmem.all_reduce(LIVE[0])
    print("END", LIVE[0][0].item())


def open_scope() -> None:
    """The program exits inside a scope with SystemExit."""
    with symmem.use(opened()):
        symmem.empty(1 << 20)
        print("END")
        sys.exit(7)


def exception() -> None:
    """One rank raises an exception inside a scope, and the others get RankLostError."""
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


def interrupt(where: str) -> None:
    """Rank 0 gets SIGINT while it waits for rank 1, which arrives later."""
    # Python installs no handler if SIGINT is ignored, as in background jobs of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if where == "init":
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    else:
        with symmem.use(opened(timeout=60)):
            x = symmem.empty(1000).fill_(1)
    store = dist.distributed_c10d._get_default_store()
    if RANK == 1:
        store.wait(["interrupted"], timedelta(seconds=60))
        if where == "wait":
            symmem.all_reduce(x)
            print("END", x[0].item())
        elif where == "all_reduce":
            try:
                symmem.all_reduce(x)
            except symmem.AbortedError:
                print("END AbortedError")
        return
    work = symmem.all_reduce(x, async_op=True) if where == "wait" else None
    begin = time.monotonic()
    # Send the signal while the main thread is in the library.
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        if where == "init":
            symmem.init(backend="host", timeout=60)
        elif work is not None:
            work.wait()
        else:
            symmem.all_reduce(x)
    except KeyboardInterrupt:
        print("END KeyboardInterrupt", time.monotonic() - begin < 4)
    store.set("interrupted", "yes")
    if work is not None:
        work.wait()
        print("AFTER", x[0].item())


def handler() -> None:
    """The program's own signal handlers still run."""
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
    """The process group is destroyed before symmem is finalized."""
    with symmem.use(opened()):
        x = symmem.empty(1000).fill_(1)
    dist.destroy_process_group()
    symmem.all_reduce(x)
    del x
    symmem.finalize()
    print("END")


def line_of(marker: str) -> int:
    """Return the number of the line of this file that ends with a comment."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.endswith(f"# {marker}\n"))


def diverge(level: str, scoped: str) -> None:
    """Rank 1 allocates an extra tensor, and the error shows the lines of both sides."""
    world = opened(check=level, callsites=True)
    try:
        with symmem.use(world) if scoped == "in a scope" else contextlib.nullcontext():
            a = symmem.empty(1 << 20)
            if RANK == 1:
                b = symmem.empty(1 << 18)  # the extra tensor
            c = symmem.empty(1 << 20)  # the other side
        symmem.all_reduce(c)
        print("END no error", a.numel(), b.numel() if RANK == 1 else 0)
    except symmem.DivergenceError as e:
        found = {s.ranks: s.site.rpartition("/")[2] for s in e.sides}
        want = {(0,): "the other side", (1,): "the extra tensor"}
        lines = {ranks: f"endings.py:{line_of(marker)}" for ranks, marker in want.items()}
        print("END DivergenceError", found == lines, found, lines)


def collected() -> None:
    """Garbage collection frees a tensor in a reference cycle, first on rank 1."""
    gc.disable()
    world = opened()
    try:
        with symmem.use(world):
            cycle: list[Any] = [symmem.empty(1 << 18)]
            cycle.append(cycle)
            del cycle
            if RANK == 1:
                gc.collect()
            x = symmem.empty(1 << 20)
        symmem.all_reduce(x)
    except symmem.DivergenceError as e:
        print("END DivergenceError", "garbage collection" in str(e))


class Squares(torch.utils.data.Dataset[int]):
    """A data set that tries to use symmem in worker processes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        try:
            symmem.empty(10)
        except symmem.ForkedError:
            return index * index
        return -1


def loader() -> None:
    """A DataLoader forks workers while symmem is initialized."""
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
    """Rank 1 does not call a collective, and the error on rank 0 names it."""
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


def forced() -> None:
    """A tensor survives a forced close, and is ordinary memory from then on."""
    with symmem.use(opened()):
        x = symmem.empty(1 << 20).fill_(3)
    view = x[5:9]
    symmem.finalize(force=True)
    x.mul_(2)
    outcome = "no error"
    try:
        symmem.all_reduce(x)
    except symmem.ClosedError:
        outcome = "ClosedError"
    symmem.init(backend="host", timeout=20)
    with symmem.use():
        y = symmem.empty(1 << 20).fill_(1)
    symmem.all_reduce(y)
    own = x.data_ptr() != y.data_ptr()
    print("END", outcome, x[-1].item(), y[0].item(), own)
    del x, view
    gc.collect()
    symmem.all_reduce(y)
    print("AFTER", y[0].item())


def absent(timeout: str = "") -> None:
    """Rank 1 never initializes symmem. The timeout is the process group's or the caller's."""
    seconds = {"timeout": float(timeout)} if timeout else {}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = dist.new_group(timeout=timedelta(seconds=2))  # Sometimes the ranks start further apart.
    store = dist.distributed_c10d._get_default_store()
    if RANK == 1:
        store.wait(["heard"], timedelta(seconds=60))
        print("END")
        return
    begin = time.monotonic()
    try:
        symmem.init(group, backend="host", **seconds)
    except symmem.AbsentError as e:
        print("END AbsentError", e.missing, int(time.monotonic() - begin) < 20, e)
    store.set("heard", "yes")


def lost_world() -> None:
    """A rank of the trainer is killed, and the engine on the other ranks continues."""
    world = opened()
    engine = symmem.open_world([0, 1], backend="host", timeout=10) if RANK < 2 else None
    symmem.all_reduce(torch.ones(1))
    if engine is None:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(1)
    try:
        symmem.all_reduce(x)
        symmem.barrier(world)
    except symmem.RankLostError as e:
        print("END RankLostError", e.ranks)
    y = symmem.full((1 << 14,), 1.0, group=engine)
    symmem.all_reduce(y, group=engine)
    symmem.finalize(force=True)
    symmem.all_reduce(y, group=engine)
    print("ENGINE", y[-1].item(), engine.error())
    del y
    engine.close()


if __name__ == "__main__":
    way, *rest = sys.argv[1:]
    globals()[way](*rest)
