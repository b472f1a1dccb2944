"""Sends a signal while one rank waits for the other: interrupts.py WHERE WHO FOLDER."""

from __future__ import annotations

import array
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from harness import RANK, SIZE

import symmem
from symmem._c.constants import Path as Way
from symmem._c.constants import Type
from symmem._c.terms import Reduction

WHERE, WHO, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
PATIENCE = 60
COUNT = 1000


def opened() -> symmem.Group:
    return symmem.init(backend="host", timeout=PATIENCE)


def await_file(name: str) -> None:
    """Wait until another rank has reached a point."""
    late = time.monotonic() + PATIENCE
    while not (FOLDER / name).exists():
        assert time.monotonic() < late, f"no rank has reached {name}"
        time.sleep(0.01)


def all_reduce(group: symmem.Group, block: symmem.Block) -> None:
    at = block.address
    group.library.call(
        "symmem_all_reduce",
        group.handle,
        COUNT,
        Type.FLOAT32,
        Reduction.SUM,
        Way.DEFAULT,
        at,
        at,
        0,
    )
    group.library.call("symmem_stream_synchronize", 0)


def memory(group: symmem.Group) -> symmem.Block:
    block = symmem.alloc(4 * COUNT, group)
    values = memoryview(block.view).cast("B").cast("f")
    values[:] = memoryview(array.array("f", [RANK + 1.0] * COUNT))
    return block


def scope(world: symmem.Group) -> None:
    with symmem.use(world):
        symmem.alloc(1 << 20)


PLACES: dict[str, Callable[[symmem.Group], object]] = {
    "group": lambda world: symmem.group(list(range(SIZE)), name="another"),
    "scope": scope,
    "reserve": lambda world: symmem.reserve(1 << 20),
    "trim": lambda world: symmem.trim(),
    "check": lambda world: symmem.check(),
    "set_check": lambda world: symmem.set_check("registration"),
    "set_path": lambda world: symmem.set_path("plain"),
    "collective": lambda world: all_reduce(world, memory(world)),
    "barrier": lambda world: symmem.barrier(),
}


def when_waiting(number: int) -> list[float]:
    """Send a signal when the main thread is in the library. The result will hold the time."""
    main, sent = threading.main_thread().ident, []

    def watch() -> None:
        while True:
            assert main is not None
            frame = sys._current_frames().get(main)
            if frame is not None and frame.f_code.co_filename.endswith("_c/library.py"):
                break
            time.sleep(0.01)
        time.sleep(0.2)  # By then it usually sleeps there. Any other moment is fine, too.
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
    return sent


def ends_in_time(call: Callable[[], object]) -> None:
    """Expect that a call raises KeyboardInterrupt soon after the signal."""
    sent = when_waiting(signal.SIGINT)
    try:
        call()
    except KeyboardInterrupt:
        print(f"INTERRUPTED {time.monotonic() - sent[0]:.3f}", flush=True)


def interrupted() -> None:
    """Rank WHO waits for the other rank, which arrives only after the interrupt."""
    if WHERE == "init":
        if RANK == WHO:
            ends_in_time(opened)
            (FOLDER / "over").touch()
            print("OPEN", symmem.is_initialized())
        else:
            await_file("over")
        return
    world = opened()
    if WHERE == "finalize":
        finalize(world)
        return
    call = PLACES[WHERE]
    if RANK == WHO:
        ends_in_time(lambda: call(world))
        (FOLDER / "over").touch()
    else:
        await_file("over")
    if WHERE == "group":
        return  # The other rank would wait for a rank that has given up.
    try:
        call(world)
        print("AFTER", WHERE)
    except symmem.SymmemError as e:
        print("AFTER", type(e).__name__, e)


def finalize(world: symmem.Group) -> None:
    """Finalize while a queued collective waits for the other rank."""
    if RANK != WHO:
        await_file("over")
        return
    world.library.call("symmem_barrier", world.handle, 0)
    ends_in_time(symmem.finalize)
    (FOLDER / "over").touch()


def handled() -> None:
    """A handler runs during a wait and returns, and the wait continues."""
    world = opened()
    seen: list[bool] = []

    def handler(_: int, frame: FrameType | None) -> None:
        seen.append(symmem.is_initialized())
        (FOLDER / "handled").touch()

    signal.signal(signal.SIGUSR1, handler)
    if RANK == WHO:
        when_waiting(signal.SIGUSR1)
    else:
        await_file("handled")
    block = memory(world)
    all_reduce(world, block)
    value = memoryview(block.view).cast("B").cast("f")[0]
    print("SUM", value, seen)


def nested() -> None:
    """A handler that interrupts a wait for the other rank also waits for it."""
    world = opened()
    block = memory(world)

    def handler(_: int, frame: FrameType | None) -> None:
        (FOLDER / "handled").touch()
        print("GROUP", symmem.group([0, 1]).size)

    signal.signal(signal.SIGUSR1, handler)
    if RANK == WHO:
        when_waiting(signal.SIGUSR1)
    else:
        await_file("handled")
        time.sleep(0.5)  # The other rank's wait polls a few times meanwhile.
        print("GROUP", symmem.group([0, 1]).size)
    all_reduce(world, block)
    print("SUM", memoryview(block.view).cast("B").cast("f")[0])


def late() -> None:
    """A warning names a late rank, which arrives after the other rank got the warning."""
    world = symmem.init(backend="host", timeout=PATIENCE, options={"warn_after_ms": 100})
    block = memory(world)
    if RANK != WHO:
        await_file("warned")
        all_reduce(world, block)
        return

    def note(warning: Warning | str, *_: object, **__: object) -> None:
        assert isinstance(warning, symmem.LateWarning)
        print("WARNED", warning.ranks, warning.waited > 0, "rank 1" in str(warning), flush=True)
        (FOLDER / "warned").touch()

    warnings.showwarning = note
    warnings.simplefilter("once", symmem.LateWarning)
    if WHERE == "late on a thread":
        thread = threading.Thread(target=all_reduce, args=(world, block), daemon=True)
        thread.start()
        thread.join(PATIENCE)
    else:
        all_reduce(world, block)
    print("SUM", memoryview(block.view).cast("B").cast("f")[0])


def late_is_an_error() -> None:
    """A filter turns the warning into an exception, which ends the wait."""
    world = symmem.init(backend="host", timeout=PATIENCE, options={"warn_after_ms": 100})
    if RANK != WHO:
        await_file("over")
        return
    warnings.simplefilter("error", symmem.LateWarning)
    try:
        symmem.check(world)
    except symmem.LateWarning as e:
        print("RAISED", e.ranks)
    (FOLDER / "over").touch()


SCENES: dict[str, Callable[[], None]] = {
    "handled": handled,
    "nested": nested,
    "late": late,
    "late on a thread": late,
    "late is an error": late_is_an_error,
}

if __name__ == "__main__":
    # Python installs no handler if SIGINT is ignored, as in background jobs of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    SCENES.get(WHERE, interrupted)()
