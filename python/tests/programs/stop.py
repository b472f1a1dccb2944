"""Tests that ranks stop after the same step: stop.py WAY."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from harness import RANK, SIZE

import symmem

WHEN = 5
"""The step before which the last rank is asked to stop."""

LAST = SIZE - 1


def steps(ask: Callable[[], None]) -> None:
    """Run a loop until all ranks stop, and print the last step."""
    symmem.init(backend="host", timeout=60)
    step = 0
    while not symmem.should_stop():
        step += 1
        if step == WHEN and RANK == LAST:
            ask()
        symmem.barrier()
    print("STOPPED", step, symmem.should_stop(), flush=True)
    symmem.finalize()


def call() -> None:
    steps(symmem.request_stop)


def another_thread() -> None:
    def ask() -> None:
        thread = threading.Thread(target=symmem.request_stop)
        thread.start()
        thread.join()

    steps(ask)


def terminated() -> None:
    steps(lambda: os.kill(os.getpid(), signal.SIGTERM))


def terminated_twice() -> None:
    """A scheduler and a launcher may both send the signal."""
    steps(lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)] and None)


def own_handler() -> None:
    """The program's own handler stays installed and can request a stop."""
    seen: list[int] = []

    def handler(number: int, _: object) -> None:
        seen.append(number)
        symmem.request_stop()

    signal.signal(signal.SIGTERM, handler)
    steps(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert seen == [signal.SIGTERM] * (RANK == LAST)


def child() -> None:
    """The first signal terminates a forked child."""
    symmem.init(backend="host", timeout=60)
    assert not symmem.should_stop()
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, signal.SIGTERM)
    print("CHILD", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), symmem.should_stop())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
