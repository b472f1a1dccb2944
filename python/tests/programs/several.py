"""Tests several worlds in one process, and timeouts of groups, on four ranks."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

EVERYONE = list(range(SIZE))


def opened(which: Any = None, **more: Any) -> symmem.Group:
    return symmem.open_world(which, **{"backend": "host", "timeout": 60, **more})


def total(group: symmem.Group | None = None) -> float:
    """Return the sum of the global ranks of the group."""
    x = symmem.full((3,), float(RANK), group=group)
    symmem.all_reduce(x, group=group)
    return float(x[0].item())


def left_behind() -> tuple[list[str], bool]:
    """Return the files in shared memory, and whether memory of symmem is mapped."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(os.listdir("/dev/shm")), "memfd:symmem" in maps


@check
def a_world_does_not_need_a_main_world() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    before = left_behind()
    if RANK < 2:
        pair = opened([0, 1])
        assert not symmem.is_initialized()
        assert (pair.rank, pair.size) == (RANK, 2)
        assert total(pair) == 1
        work = symmem.all_reduce(torch.ones(5), group=pair, async_op=True)
        assert work is not None
        work.wait()
        with symmem.use(pair):
            x = symmem.zeros(7)
        assert symmem.is_symmetric(x, pair)
        del x, work
        symmem.synchronize()
        pair.close()
        pair.close()
        raises(symmem.ClosedError, lambda: total(pair))
        raises(symmem.ClosedError, lambda: symmem.group([0], world=pair))
    symmem.init(backend="host", timeout=60)
    assert total() == sum(EVERYONE)
    symmem.finalize()
    dist.barrier()
    assert left_behind() == before


@check
def open_world_accepts_the_same_ranks_as_init() -> None:
    mine = [RANK // 2 * 2, RANK // 2 * 2 + 1]
    half = dist.new_group(mine, use_local_synchronization=True)
    for which in (half, mine[::-1]):
        world = opened(which)
        assert total(world) == sum(mine)
        if which is half:
            assert symmem.group(half) is world
        world.close()
    group_store = dist.PrefixStore(f"half {RANK // 2}", dist.group.WORLD.get_group_store())
    for _ in range(2):
        options = {"rank": RANK % 2, "size": 2, "store": group_store}
        world = opened(options=options)
        assert total(world) == sum(mine)
        world.close()


@check
def closing_a_world_does_not_affect_others() -> None:
    before = left_behind()
    symmem.init(backend="host", timeout=60)
    engine = opened(EVERYONE[::-1], check="off")
    second = opened(EVERYONE)
    assert engine.rank == SIZE - 1 - RANK
    assert len({engine.name, second.name, symmem.world().name}) == 3
    assert engine.pool not in (0, second.pool)
    x = symmem.full((1 << 14,), 1.0)
    works = []
    for group in (None, engine, second, None):  # The worlds take turns to reduce one tensor.
        works.append(symmem.all_reduce(x, group=group, async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    assert x.eq(float(SIZE**4)).all()
    with symmem.use(), symmem.use(engine):
        y = symmem.zeros(9)
    assert symmem.is_symmetric(y, engine)
    assert not symmem.is_symmetric(y)
    assert symmem.stats()["check"] == "every"
    assert symmem.stats(engine)["check"] == "off"
    symmem.set_check("registration", engine)
    assert symmem.stats(engine)["check"] == "registration"
    ends = symmem.group([0, SIZE - 1], world=engine) if RANK in (0, SIZE - 1) else None
    if ends is not None:
        assert total(ends) == SIZE - 1
    raises(symmem.InvalidError, symmem.finalize)
    del x, works, work
    symmem.synchronize()
    symmem.finalize()
    raises(symmem.ClosedError, total)
    assert total(engine) == sum(EVERYONE)
    symmem.init(backend="host", timeout=60)
    raises(symmem.InvalidError, engine.close)  # y is live
    del y
    engine.close()
    assert total() == total(second) == sum(EVERYONE)
    symmem.finalize()
    second.close()
    assert not symmem.is_initialized()
    dist.barrier()
    assert left_behind() == before


@check
def the_group_with_the_short_timeout_names_the_late_rank() -> None:
    symmem.init(backend="host", timeout=600)
    given = symmem.group([0, 1, 2], name="given", timeout=1) if RANK < 3 else None
    later = symmem.group([0, 1, 2], name="later") if RANK < 3 else None
    dist.barrier()
    if given is not None and later is not None:
        assert given.describe()["timeout_ms"] == 1000
        later.set_timeout(0.5)
        for group, limit in ((given, 1), (later, 0.5)):
            if RANK == 2:
                continue
            begin = time.monotonic()
            error = raises(symmem.TimeoutError, lambda group=group: total(group))
            took = time.monotonic() - begin
            assert error.data["timeout"]["missing"] == [2], error
            print(f"a rank late by {limit} s was named after {took:.2f} s", flush=True)
        raises(symmem.InvalidError, lambda: later.set_timeout(0))
        raises(symmem.InvalidError, lambda: symmem.group([RANK], name="x", timeout=-1))
    dist.barrier()
    assert total() == sum(EVERYONE)
    symmem.finalize(force=True)


@check
def a_rank_that_joins_late_is_named() -> None:
    symmem.init(backend="host", timeout=600)
    if RANK < 2:
        error = raises(symmem.AbsentError, lambda: symmem.group([0, 1, 2], timeout=0.5))
        assert error.data["timeout"]["missing"] == [2], error
        error = raises(symmem.AbsentError, lambda: opened([0, 1, 3], timeout=0.5))
        assert error.data["timeout"]["missing"] == [2], error
    dist.barrier()
    assert total() == sum(EVERYONE)
    symmem.finalize(force=True)


if __name__ == "__main__":
    main()
