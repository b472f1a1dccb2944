"""Initializes symmem with each kind of PyTorch store: stores.py KIND FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from harness import RANK, SIZE, raises

import symmem

LATE = 1.5
"""The delay of the last rank in seconds, which exceeds any single wait for a store."""


def tcp(port: int) -> dist.Store:
    """Connect to a TCPStore of rank 0."""
    return dist.TCPStore("127.0.0.1", port, SIZE, RANK == 0, timedelta(seconds=60))


def store_of(kind: str, folder: Path) -> dist.Store:
    """Return a store of the given kind."""
    if kind == "file":
        return dist.FileStore(str(folder / "store"), SIZE)
    if kind == "hash":
        return dist.HashStore()
    port = int(os.environ["MASTER_PORT"])
    if kind == "tcp":
        return tcp(port)
    if kind == "prefix of file":
        return dist.PrefixStore("a", dist.PrefixStore("b", store_of("file", folder)))
    raise SystemExit(f"no kind of store is called {kind!r}")


def late(kind: str, folder: Path) -> None:
    """Rank 0 arrives long before the last rank."""
    store = store_of(kind, folder)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=timeout)
    if RANK == SIZE - 1:
        time.sleep(LATE)
    symmem.init(backend="host", timeout=60)
    symmem.all_reduce(x := torch.ones(3))
    print("SUM", x[0].item())


def warned(folder: Path) -> None:
    """The last rank arrives after the others have been warned about it."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    store = dist.distributed_c10d._get_default_store()
    others = [f"warned/{rank}" for rank in range(SIZE - 1)]
    if RANK == SIZE - 1:
        store.wait(others, timedelta(seconds=60))
        symmem.init(backend="host", timeout=60)
        print("END")
        return
    seen: list[symmem.LateWarning] = []

    def show(message: Warning | str, *_: object) -> None:
        assert isinstance(message, symmem.LateWarning)
        if message.ranks == [SIZE - 1]:  # The other ranks also start at different times.
            seen.append(message)
            store.set(others[RANK], "yes")

    warnings.showwarning = show
    symmem.init(backend="host", timeout=60, options={"warn_after_ms": 50})
    print("END", seen[0].ranks, seen[0].waited > 0, seen[0])


def stopped(folder: Path) -> None:
    """Rank 0, which serves the store, is stopped while rank 1 initializes symmem."""
    pid = folder / "pid"
    if RANK == 0:
        pid.write_text(str(os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if RANK == 0:
        time.sleep(60)
    os.kill(server := int(pid.read_text()), signal.SIGSTOP)
    begin = time.monotonic()
    try:
        error = raises(symmem.TimeoutError, lambda: symmem.init(backend="host", timeout=1))
    finally:
        os.kill(server, signal.SIGKILL)
    print("END", time.monotonic() - begin < 50, error, flush=True)
    os._exit(0)  # At exit, PyTorch would wait for the server.


def fake() -> None:
    """A fake process group, where one process pretends to be many, has no usable store."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    print("END", raises(symmem.SymmemError, lambda: symmem.init(backend="host", timeout=1)))


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "stopped":
        stopped(where)
    elif what == "warned":
        warned(where)
    elif what == "fake":
        fake()
    else:
        late(what, where)
