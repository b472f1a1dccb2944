"""Tests checked pads: the instructions of the primitives run on the CPU, on real processes."""

from __future__ import annotations

import ctypes as c
import os
import signal
import sys
import time
from unittest import mock

import ptx
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._device import layout
from symmem._device.ptx import instructions

SITES = ("start", "before the sum", "after the sum", "last")
WORLD = range(SIZE)
LAST = SIZE - 1


def call(
    pad: symmem.CheckedPad,
    name: str,
    channel: int,
    site: int = 0,
    peer: int = 0,
    changes: dict[str, str] | None = None,
) -> bool:
    """Run a primitive as a kernel would, with changed instructions if there are changes."""
    text = instructions(name, "ok", "pad", "channel", "site", "peer")
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return ptx.run(text, pad=pad.address, channel=channel, site=site, peer=peer)


@check
def barriers_work_in_any_number() -> None:
    symmem.init(timeout=60)
    pad = symmem.checked_pad(sites=SITES)
    for round in range(5):
        for channel in (0, 7, layout.CHANNELS - 1):
            assert call(pad, "barrier", channel, round % 4)
    call(pad, "arrive", 3, 1)
    assert call(pad, "wait", 3, 1)
    pad.check()
    assert pad.explain() == "no signals are pending"
    symmem.barrier()
    pad.close()
    raises(symmem.ClosedError, pad.check)


@check
def signals_have_channels_and_peers() -> None:
    pad = symmem.checked_pad()
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for channel in range(3):
        call(pad, "signal", channel, 1, following)
    symmem.barrier()
    assert pad.explain().count(f"rank {previous} has signalled on channel") == 3, pad.explain()
    for channel in reversed(range(3)):
        assert call(pad, "peek_signal", channel, 1, previous)
        assert call(pad, "wait_signal", channel, 1, previous)
    pad.check()
    symmem.barrier()
    pad.close()


@check
def epochs_may_wrap() -> None:
    pad = symmem.checked_pad()
    for name in (layout.ARRIVALS, layout.ARRIVALS + 4):
        c.c_uint32.from_address(pad.address + name).value = (1 << 32) - 3
    symmem.barrier()
    for site in range(6):
        assert call(pad, "barrier", 0, site)
    pad.check()
    symmem.barrier()


def fault(group: object = None, timeout: float = 0.4) -> symmem.CheckedPad:
    """Return a pad with a short timeout, for ranks that arrive at the same time."""
    found = symmem.group(group)
    before = found.describe()["timeout_ms"] / 1000
    found.set_timeout(timeout)
    pad = symmem.checked_pad(found, sites=SITES)
    found.set_timeout(before)
    symmem.barrier()
    return pad


def end(pad: symmem.CheckedPad) -> None:
    """Check that a failed pad stays failed, quickly, and that the group works."""
    start = time.monotonic()
    assert not call(pad, "barrier", 9)
    assert not call(pad, "wait_signal", 9, 0, LAST)
    raises(symmem.SymmemError, pad.check)
    assert time.monotonic() - start < 20
    symmem.barrier()
    symmem.check()
    pad.close()


@check
def a_missing_rank_is_named() -> None:
    pad = fault()
    if RANK != LAST:
        assert not call(pad, "barrier", 3, 2)
    symmem.barrier()
    error = raises(symmem.TimeoutError, pad.check)
    assert error.missing == [LAST], error
    for text in (f"rank {LAST} has not arrived", "channel 3", 'site 2 ("after the sum")', "400 ms"):
        assert text in str(error), error
    end(pad)


@check
def waits_end_after_any_number_of_polls() -> None:
    pad = fault()
    if RANK == 0:  # the number of polls wraps every fourth time, and is then 64 again
        changes = {
            "mov.b32 polls, 0;": f"mov.b32 polls, {64 + (3 << 30)};",
            "add.u32 polls, polls, 1;": f"add.u32 polls, polls, {1 << 30};",
        }
        start = time.monotonic()
        assert not call(pad, "wait_signal", 3, 2, LAST, changes)
        assert time.monotonic() - start >= 0.4
    symmem.barrier()
    raises(symmem.TimeoutError, pad.check)
    end(pad)


@check
def swapped_order_is_named() -> None:
    pad = fault(timeout=60)
    sites = (2, 1) if RANK == LAST else (1, 2)
    assert not all(call(pad, "barrier", 3, site) for site in sites)
    symmem.barrier()
    error = raises(symmem.DivergenceError, pad.check)
    for text in ('site 1 ("before the sum")', 'site 2 ("after the sum")', f"rank {LAST}"):
        assert text in str(error), error
    assert {side.ranks for side in error.sides} >= {(LAST,)}, error.sides
    end(pad)


@check
def swapped_channels_are_named() -> None:
    pad = fault()
    assert not call(pad, "barrier", 5 if RANK == LAST else 3, 1)
    symmem.barrier()
    error = raises(symmem.TimeoutError, pad.check)
    for text in ("channel 3", "channel 5", "instead"):
        assert text in str(error), error
    end(pad)


@check
def signals_on_another_channel_are_named() -> None:
    pad = fault()
    if RANK == LAST:
        call(pad, "signal", 8, 1, 0)
    symmem.barrier()
    if RANK == 0:
        assert not call(pad, "wait_signal", 6, 1, LAST)
        error = raises(symmem.TimeoutError, pad.check)
        assert f"rank {LAST} has not signalled on channel 6" in str(error), error
        assert f"rank {LAST} has signalled on channel 8" in str(error), error
        assert error.missing == [LAST]
    symmem.barrier()
    end(pad)


@check
def a_signal_of_another_group_is_named() -> None:
    twin = symmem.group(list(WORLD), name="twin")
    one, two = fault(), fault(twin)
    mine = two if RANK == LAST else one
    assert not call(mine, "barrier", 3, 1)
    symmem.barrier()
    error = raises(symmem.TimeoutError, one.check if RANK != LAST else two.check)
    assert "of group twin instead" in str(error) or RANK == LAST, error
    assert "of group world instead" in str(error) or RANK != LAST, error
    symmem.barrier()
    raises(symmem.SymmemError, mine.check)
    symmem.barrier()
    one.close()
    two.close()


@check
def a_signal_that_is_not_taken_is_not_overwritten_in_silence() -> None:
    pad = fault(timeout=60)
    if RANK == LAST:
        call(pad, "signal", 4, 1, 0)
        call(pad, "signal", 4, 1, 0)
    symmem.barrier()
    if RANK == 0:
        assert not call(pad, "wait_signal", 4, 1, LAST)
    symmem.barrier()
    error = raises(symmem.DivergenceError, pad.check)
    assert f"rank {LAST} signalled again before rank 0" in str(error), error
    assert "channel 4" in str(error), error
    end(pad)


@check
def arrivals_may_be_one_ahead_but_not_two() -> None:
    pad = fault(timeout=60)
    if RANK == LAST:
        call(pad, "arrive", 4, 1)
        call(pad, "arrive", 4, 2)
    else:
        call(pad, "arrive", 4, 1)
    symmem.barrier()
    assert call(pad, "wait", 4, 1)
    symmem.barrier()
    pad.check()
    if RANK == LAST:
        call(pad, "arrive", 4, 1)
        call(pad, "arrive", 4, 1)
    symmem.barrier()
    if RANK == 0:
        assert not call(pad, "wait", 4, 2)
    symmem.barrier()
    error = raises(symmem.DivergenceError, pad.check)
    assert f"rank {LAST} arrived again before rank 0" in str(error), error
    end(pad)


@check
def data_that_are_still_read_are_not_overwritten_in_silence() -> None:
    pad = fault(timeout=60)
    if RANK == LAST:
        assert call(pad, "mark", 2, 3, 0)
        call(pad, "signal", 2, 3, 0)
    if RANK == 0:
        assert call(pad, "wait_signal", 2, 3, LAST)
        assert call(pad, "unchanged", 2, 3, LAST)
    symmem.barrier()
    if RANK == LAST:
        assert call(pad, "mark", 2, 3, 0)
    symmem.barrier()
    if RANK == 0:
        assert not call(pad, "unchanged", 2, 3, LAST)
    symmem.barrier()
    error = raises(symmem.DivergenceError, pad.check)
    assert f"rank {LAST} wrote its next values before rank 0" in str(error), error
    end(pad)


@check
def blocks_that_peek_check_their_data() -> None:
    pad = fault(timeout=60)
    for site in (1, 2):
        if RANK == LAST:
            assert call(pad, "mark", 2, site, 0)
            call(pad, "signal", 2, site, 0)
        if RANK == 0:
            assert call(pad, "peek_signal", 2, site, LAST)
            assert call(pad, "peek_unchanged", 2, site, LAST)
            if site == 1:
                assert call(pad, "wait_signal", 2, site, LAST)
        symmem.barrier()
    pad.check()
    if RANK == LAST:
        assert call(pad, "mark", 2, 2, 0)
    symmem.barrier()
    if RANK == 0:
        assert not call(pad, "peek_unchanged", 2, 2, LAST)
    symmem.barrier()
    error = raises(symmem.DivergenceError, pad.check)
    assert f"rank {LAST} wrote its next values before rank 0" in str(error), error
    end(pad)


@check
def a_failed_group_stops_its_kernels() -> None:
    twin = symmem.group(list(WORLD), name="stopped")
    pad = symmem.checked_pad(twin, sites=SITES)
    word = c.c_uint32(0)
    c.c_uint64.from_address(pad.address + layout.STOP).value = c.addressof(word)
    symmem.barrier()
    if RANK == 0:
        twin.abort()
    raises(symmem.AbortedError, lambda: symmem.barrier(twin))
    word.value = 1
    if RANK != LAST:
        assert not call(pad, "barrier", 3, 2)
        error = raises(symmem.AbortedError, pad.check)
        assert "was waiting on channel 3" in str(error), error
    symmem.barrier()
    raises(symmem.AbortedError, pad.check)


@check
def a_close_that_failed_can_be_repeated() -> None:
    pad = symmem.checked_pad()
    symmem.barrier()
    late = symmem.TimeoutError("closing a pool")
    with mock.patch.object(pad.group.library, "call", side_effect=late):
        raises(symmem.TimeoutError, pad.close)
    pad.check()
    pad.close()
    raises(symmem.ClosedError, pad.check)
    pad.close()


@check
def invalid_channels_sites_and_peers_are_refused() -> None:
    for channel, site, peer in ((layout.CHANNELS, 1, 0), (3, layout.SITES, 0), (3, 1, SIZE)):
        pad = fault(timeout=60)
        if RANK == 0:
            assert not call(pad, "wait_signal", channel, site, peer)
        symmem.barrier()
        text = str(raises(symmem.InvalidError, pad.check))
        assert f"channel {channel}, site {site}" in text, text
        end(pad)


def killed() -> None:
    """The last rank is killed. The others must name it."""
    symmem.init(timeout=3)
    pad = symmem.checked_pad(sites=SITES)
    assert call(pad, "barrier", 3, 1)
    if RANK == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    assert not call(pad, "barrier", 3, 2)
    error = raises(symmem.RankLostError, pad.check)
    print("END", error.ranks, "channel 3" in str(error), SITES[2] in str(error))


if __name__ == "__main__":
    killed() if "killed" in sys.argv else main()
