"""Tests the kernels of handles' barriers and signals, emulated on the CPU in real processes."""

from __future__ import annotations

import ctypes as c
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import ptx
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem import errors
from symmem._device.queued import (
    BODIES,
    CHANNELS,
    RANKS,
    RECORD,
    ROW,
    STOPPED,
    TIMEOUT,
    Operation,
    Queued,
    _retired,
)
from symmem._rank.streams import HostEvent

LAST = SIZE - 1
CHANNEL = 2


def run(
    channel: int = 0,
    seconds: float = 30,
    stop: int = 0,
    operation: Operation = Operation.BARRIER,
    peer: int = RANK,
    earlier: Sequence[int] = (),
) -> list[int]:
    """Run a kernel, and return what it has written to the host after what earlier ones have."""
    record = (c.c_int32 * RECORD)(*earlier)
    barrier, put = operation is Operation.BARRIER, operation is Operation.PUT
    word = 4 * ROW + 4 * (channel * SIZE + (RANK if put else peer))
    ptx.run(
        BODIES[operation],
        ok=1,
        pads=c.addressof(pads),
        row=channel * ROW if barrier else word,
        timeout=int(seconds * 1e9),
        stop=stop,
        record=c.addressof(record),
        pad=peer if put else RANK,
        size=SIZE,
        channel=channel,
        peer=peer,
    )
    return list(record)


def failing(record: list[int]) -> Any:
    """Return the error that a handle raises for what a kernel has written."""
    made: Any = Queued.__new__(Queued)
    made._group, made.record = symmem.world(), record
    return made._failure()


@check
def barriers_wait_for_all_ranks() -> None:
    global pads
    world = symmem.init(timeout=60)
    pads = (c.c_uint64 * SIZE)()
    world.library.call("symmem_signal_words_open", world.handle, 4 * ROW, SIZE, pads)
    for round in range(5):
        for channel in (0, 3):
            if round % SIZE == RANK:
                time.sleep(0.02)
            assert run(channel) == [0] * RECORD


@check
def a_missing_rank_is_named() -> None:
    if RANK != LAST:
        record = run(CHANNEL, seconds=0.3)
        want = [1, CHANNEL, 0, 0, *[TIMEOUT if r == LAST else 0 for r in range(RANKS)]]
        assert record == want, record
        error = failing(record)
        assert isinstance(error, errors.TimeoutError)
        assert error.data["timeout"]["missing"] == [LAST]
        text = (
            f"in a barrier on channel {CHANNEL} of a handle of group world, and rank {LAST} has not"
        )
        assert text in str(error), error
    symmem.barrier()


@check
def operations_after_a_failure_do_not_wait() -> None:
    failed = [1, CHANNEL, 0, 0, TIMEOUT, *[0] * (RANKS - 1)]
    assert run(3, operation=Operation.WAIT, earlier=failed) == failed


@check
def invalid_arguments_are_refused() -> None:
    made: Any = Queued.__new__(Queued)
    made._group, made._pad_bytes = symmem.world(), 4 * SIZE
    for operation, peer, channel, timeout in (
        (Operation.BARRIER, RANK, CHANNELS, 0),
        (Operation.PUT, SIZE, 0, 0),
        (Operation.WAIT, RANK, 1, 0),
        (Operation.WAIT, RANK, 0, -1),
        (Operation.BARRIER, RANK, 0, 1 << 50),
    ):
        raises(symmem.InvalidError, partial(made._pack, operation, peer, channel, timeout))


@check
def a_late_rank_does_not_wait() -> None:
    if RANK == LAST:
        assert run(CHANNEL, seconds=5) == [0] * RECORD
    symmem.barrier()
    assert run(CHANNEL) == [0] * RECORD
    symmem.barrier()


@check
def the_host_can_stop_a_barrier() -> None:
    if RANK != LAST:
        word = c.c_uint32(1)
        record = run(CHANNEL, stop=c.addressof(word))
        assert (record[0], record[4 + LAST]) == (1, STOPPED), record
        with patch("symmem._device.queued._AGREEMENT_LIMIT", 0.1):  # no fault follows
            assert isinstance(failing(record), errors.AbortedError)
    symmem.barrier()


@check
def signals_are_taken_once() -> None:
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for channel in (1, 2):
        for _ in range(3):
            assert run(channel, operation=Operation.PUT, peer=following) == [0] * RECORD
            assert run(channel, operation=Operation.WAIT, peer=previous) == [0] * RECORD
    symmem.barrier()


@check
def missing_and_untaken_signals_are_named() -> None:
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    record = run(3, 0.2, operation=Operation.WAIT, peer=previous)
    text = f"rank {RANK} waited for a signal on channel 3 of a handle of group world, and rank "
    assert f"{text}{previous} has not sent it" in str(failing(record)), failing(record)
    symmem.barrier()
    assert run(3, operation=Operation.PUT, peer=following) == [0] * RECORD
    record = run(3, 0.2, operation=Operation.PUT, peer=following)
    text = f"rank {following} has not taken the previous signal"
    assert text in str(failing(record)), failing(record)
    symmem.barrier()
    assert run(3, operation=Operation.WAIT, peer=previous) == [0] * RECORD


class Memory:
    """The memory of a record."""


class Collected:
    """An event during whose check another handle is deleted."""

    def done(self) -> bool:
        _retired.clear()
        return True


def deleted_handle(stream: int, home: int) -> Any:
    made: Any = Queued.__new__(Queued)
    made._group, made._memory, made._home = symmem.world(), Memory(), home
    made._configs = {stream: None}
    made.retire()
    return weakref.ref(made._memory)


@check
def handles_can_be_deleted_at_the_same_time() -> None:
    entry: Any = ([Collected()], None)
    _retired.append(entry)
    deleted_handle(76, 75)
    assert not _retired
    symmem.barrier()


@check
def records_are_kept_until_their_kernels_have_ended() -> None:
    world, gate = symmem.world(), symmem.group(list(range(SIZE)), name="gate")
    late, home = 77, 78

    if RANK != LAST:
        world.library.call("symmem_barrier", world.handle, late)  # waits for the last rank
        waiting = deleted_handle(late, home)
        deleted_handle(79, home)
        assert waiting() is not None
        end = HostEvent(world.library, home)
        assert not end.done(), "the pad, which is freed on this stream, is still in use"
    symmem.barrier(gate)
    if RANK == LAST:
        world.library.call("symmem_barrier", world.handle, late)
        waiting, end = deleted_handle(late, home), HostEvent(world.library, home)
    end.wait()
    deleted_handle(79, home)
    assert waiting() is None
    symmem.barrier()


if __name__ == "__main__":
    main()
