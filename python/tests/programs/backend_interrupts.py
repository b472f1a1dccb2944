"""Sends a signal while rank 0 waits for rank 1: backend_interrupts.py PLACE FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from harness import RANK

import symmem  # noqa: F401

WHERE, FOLDER = sys.argv[1], Path(sys.argv[2])
PATIENCE = 60


def interrupted(call: Callable[[], object]) -> None:
    """Expect that a call raises KeyboardInterrupt soon after the signal."""
    sent = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # By then the main thread is usually in the call. An earlier signal would end it as well.
    threading.Timer(0.5, send).start()
    try:
        try:
            call()
        except dist.DistBackendError as e:
            print("raised", e, flush=True)
    except KeyboardInterrupt:
        print(f"INTERRUPTED {time.monotonic() - sent[0]:.3f}", flush=True)
    (FOLDER / "over").touch()


def await_rank_0() -> None:
    late = time.monotonic() + PATIENCE
    while not (FOLDER / "over").exists():
        assert time.monotonic() < late
        time.sleep(0.01)


def first() -> None:
    """Wait on rank 0, in the given place."""
    tensor = torch.ones(3)
    if WHERE == "call":
        interrupted(lambda: dist.all_reduce(tensor))
    elif WHERE == "monitored barrier":
        world = dist.group.WORLD  # dist.monitored_barrier supports symmem only since PyTorch 2.14
        interrupted(lambda: world.monitored_barrier(timedelta(seconds=PATIENCE)))
    elif WHERE == "message":
        work = dist.irecv(tensor, 1)
        interrupted(work.wait)
        work.wait()
        assert tensor.tolist() == [5, 5, 5]
        print("AFTER ok")
    else:
        work = dist.all_reduce(tensor, async_op=True)
        if WHERE == "work":
            interrupted(work.wait)
            work.wait()
            assert tensor.tolist() == [2, 2, 2]
            print("AFTER ok")
        else:
            interrupted(lambda: dist.all_reduce(torch.ones(3)))


def second() -> None:
    """Arrive on rank 1 after rank 0 has been interrupted."""
    await_rank_0()
    if WHERE == "message":
        dist.send(torch.full((3,), 5.0), 0)
    elif WHERE == "work":
        dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group("symmem", timeout=timedelta(seconds=PATIENCE))
    if RANK == 0:
        first()
    else:
        second()
