"""Compares messages and exchanges with splits to those of torch.distributed with gloo."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

LONGEST = 60.0
LARGEST = int(os.environ.get("SYMMEM_TEST_MIB", "8")) << 20
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))
    symmem.init(backend="host", timeout=LONGEST)


# ---- Exchanges -------------------------------------------------------------------------------


def table(draw: random.Random, most: int) -> list[list[int]]:
    """Draw the number of rows that each rank sends to each rank. All ranks draw the same."""
    empty = draw.random() < 0.3
    return [[draw.randrange(most + 1) * (not empty or draw.random() < 0.3) for _ in range(SIZE)]
            for _ in range(SIZE)]  # fmt: skip


def exchange(
    rows: list[list[int]],
    *shape: int,
    given: tuple[bool, bool] = (True, True),
    make: Callable[..., torch.Tensor] = torch.empty,
    **options: Any,
) -> None:
    """Exchange rows, and compare the result with that of torch.distributed."""
    sends, receives = rows[RANK], [rows[r][RANK] for r in range(SIZE)]
    source, got = make(sum(sends), *shape), make(sum(receives), *shape)
    values = torch.arange(source.numel()).reshape(source.shape)
    source.copy_((values * 7 + 13 * RANK) % 251)
    splits = receives if given[0] else None, sends if given[1] else None
    work = symmem.all_to_all_single(got, source, *splits, **options)
    if work is not None:
        assert work.wait()
    want = torch.empty(got.shape, dtype=got.dtype)
    dist.all_to_all_single(want, source, receives, sends)
    assert got.equal(want), (rows, shape)


@check
def random_splits_are_exchanged() -> None:
    draw = random.Random(1)
    for k in range(100):
        dtype = draw.choice([torch.float32, torch.int64, torch.uint8, torch.bfloat16])
        shape = draw.choice([(), (1,), (3,), (2, 5)])
        make = draw.choice([torch.empty, symmem.empty])
        exchange(
            table(draw, draw.choice([1, 5, 100])),
            *shape,
            make=partial(make, dtype=dtype),
            async_op=k % 3 == 0,
        )


@check
def a_thousand_small_exchanges_are_correct() -> None:
    draw = random.Random(2)
    for _ in range(1000):
        rows = table(draw, 6)
        sends, receives = rows[RANK], [rows[r][RANK] for r in range(SIZE)]
        source = torch.cat([torch.full((n,), 10.0 * RANK + r) for r, n in enumerate(sends)])
        got = torch.empty(sum(receives))
        symmem.all_to_all_single(got, source, receives, sends)
        want = [torch.full((n,), 10.0 * r + RANK) for r, n in enumerate(receives)]
        assert got.equal(torch.cat(want))


@check
def some_ranks_may_omit_splits() -> None:
    # Only the part that a rank sends to itself differs, which no other rank sees.
    for own in ([2] * SIZE, [2 + r for r in range(SIZE)], [0] * SIZE):
        rows = [[own[r] if to == r else 2 for to in range(SIZE)] for r in range(SIZE)]
        exchange(rows, 3)
    even = [[4] * SIZE for _ in range(SIZE)]
    for given in ((False, False), (True, False), (False, True), (RANK == 0, RANK == 0)):
        exchange(even, 5, given=given)
        exchange(even, given=given, make=symmem.empty)
    exchange(even, 5, given=(False, False), equal_splits=True)
    exchange(even, given=(False, False), equal_splits=True, async_op=True)
    rows = [[2 if to != r or r == 0 else 5 for to in range(SIZE)] for r in range(SIZE)]
    exchange(rows, given=(RANK > 0, RANK > 0))


@check
def parts_may_have_any_size() -> None:
    sizes = [1 << 10, (64 << 10) + 4, 1 << 20, (2 << 20) + 12, LARGEST]
    for size in sizes:
        for rows in (
            [[size if to != r else 1 for to in range(SIZE)] for r in range(SIZE)],
            [[size if r == 0 else 2 for _ in range(SIZE)] for r in range(SIZE)],
        ):
            exchange(rows, make=partial(torch.empty, dtype=torch.uint8))


@check
def invalid_splits_are_rejected() -> None:
    x = torch.zeros(2 * SIZE, 3)
    wrong: list[Any] = [
        ([2] * (SIZE + 1), None),
        ([3] * SIZE, None),
        (None, [2] * (SIZE - 1) + [3]),
        ([-1] + [2] * (SIZE - 2) + [5], None),
        (None, [2 * SIZE if r == RANK else 0 for r in range(SIZE)]),
    ]
    for splits in wrong:
        raises(symmem.InvalidError, partial(symmem.all_to_all_single, x.clone(), x, *splits))
    both = partial(symmem.all_to_all_single, x.clone(), x, [2] * SIZE, equal_splits=True)
    raises(symmem.InvalidError, both)
    symmem.barrier()


@check
def mismatched_splits_are_detected_before_any_write() -> None:
    doomed = symmem.group(list(range(SIZE)), name="doomed")
    sends = [3 if RANK == 0 and to == 1 else 2 for to in range(SIZE)]
    got = torch.full((2 * SIZE,), 7.0)
    source = torch.ones(sum(sends))
    call = partial(symmem.all_to_all_single, got, source, [2] * SIZE, sends, doomed)
    e = raises(symmem.MessageError, call)
    assert "rank 0" in str(e), e
    assert "rank 1" in str(e), e
    assert e.fault == "splits differ"
    assert e.ends == [symmem.MessageEnds(0, 1, 0, 0, 3, 2)], e.ends
    assert got.eq(7).all()
    symmem.barrier()  # the world is still usable


# ---- Messages --------------------------------------------------------------------------------


@check
def messages_travel_around_a_ring() -> None:
    for count in (0, 1, 1000, 100_000, LARGEST // 4):
        x, y = torch.full((count,), float(RANK)), torch.empty(count)
        work = symmem.isend(x, RIGHT)
        assert symmem.recv(y, LEFT) == LEFT
        assert work.wait()
        assert y.eq(LEFT).all()


@check
def messages_travel_in_both_directions_at_once() -> None:
    for count in (10, LARGEST // 4):
        x, y = torch.full((count,), float(RANK)), torch.empty(count)
        symmem.send(x, RIGHT)  # no rank has called recv yet
        symmem.recv(y, LEFT)
        assert y.eq(LEFT).all()
        receives = symmem.irecv(y.zero_(), LEFT)
        sends = symmem.isend(x, RIGHT)
        symmem.all_reduce(z := torch.ones(3))
        assert z.eq(SIZE).all()
        for work in (receives, sends):
            assert work.wait()
        assert y.eq(LEFT).all()
        assert receives.source_rank() == LEFT
        raises(symmem.InvalidError, sends.source_rank)


@check
def tags_distinguish_messages() -> None:
    tags = list(range(20))
    random.Random(RANK).shuffle(tags)
    works = [symmem.isend(torch.full((50,), float(100 * RANK + t)), RIGHT, tag=t) for t in tags]
    random.Random(RANK + 100).shuffle(tags)
    for t in tags:
        symmem.recv(y := torch.empty(50), LEFT, tag=t)
        assert y.eq(100 * LEFT + t).all()
    assert all(work.wait() for work in works)


@check
def messages_with_one_tag_arrive_in_order() -> None:
    works: list[Any] = []
    for k in range(100):
        works.append(symmem.isend(torch.full((1 + k,), float(k)), RIGHT))
    tensors = [torch.empty(1 + k) for k in range(100)]
    receives = [symmem.irecv(t, LEFT) for t in tensors]
    for k in reversed(range(100)):
        assert receives[k].wait()
        assert tensors[k].eq(k).all()
    assert all(work.wait() for work in works)


@check
def messages_can_be_received_from_any_rank() -> None:
    if RANK:
        for _ in range(5):
            symmem.send(torch.full((100,), float(RANK)), 0, tag=5)
    else:
        seen = []
        for k in range(5 * (SIZE - 1)):
            y = torch.empty(100)
            if k % 2:
                source = symmem.recv(y, tag=5)
            else:
                work = symmem.irecv(y, tag=5)
                assert work.wait()
                source = work.source_rank()
            assert y.eq(source).all()
            seen.append(source)
        assert sorted(seen) == sorted(5 * list(range(1, SIZE)))
    symmem.barrier()


@check
def receives_from_different_ranks_are_independent() -> None:
    if RANK == 0:
        y = [torch.empty(10) for _ in range(SIZE)]
        works = {r: symmem.irecv(y[r], r) for r in range(1, SIZE)}
        for r in reversed(range(1, SIZE)):
            assert works[r].wait()
            assert y[r].eq(r).all()
            if r > 1:
                symmem.send(torch.ones(1), r - 1)  # the previous rank sends only after this
    else:
        if RANK < SIZE - 1:
            symmem.recv(torch.empty(1), 0)
        symmem.send(torch.full((10,), float(RANK)), 0)
    symmem.barrier()


@check
def messages_and_collectives_can_share_memory() -> None:
    for _ in range(20):
        x = torch.full((5000,), float(RANK))
        y = torch.empty(5000)
        works = [symmem.irecv(y, LEFT)]
        symmem.all_reduce(x, async_op=True)
        works.append(symmem.isend(x, RIGHT))  # after the sum
        symmem.all_reduce(y, async_op=True)  # after the message
        for work in works:
            work.wait()
        symmem.synchronize()
        total = sum(range(SIZE))
        assert x.eq(total).all()
        assert y.eq(total * SIZE).all()


@check
def dropped_messages_keep_tensors_alive() -> None:
    for _ in range(100):
        symmem.irecv(torch.empty(200), LEFT, tag=1)
        mine = torch.full((200,), 7.0)
        symmem.isend(torch.zeros(200), RIGHT, tag=1)
        other = torch.full((200,), 8.0)
        symmem.barrier()
        assert mine.eq(7).all()
        assert other.eq(8).all()
    symmem.synchronize()


@check
def threads_can_send_and_receive() -> None:
    failed: list[BaseException] = []

    def run(tag: int) -> None:
        try:
            for k in range(50):
                work = symmem.isend(torch.full((1000 + k,), float(tag + k)), RIGHT, tag=tag)
                symmem.recv(y := torch.empty(1000 + k), LEFT, tag=tag)
                assert y.eq(tag + k).all()
                work.wait()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(t,), daemon=True) for t in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()
    assert not failed, failed


@check
def messages_support_layouts_types_and_groups() -> None:
    x = torch.arange(12.0).view(3, 4) + RANK
    symmem.send(x.t(), RIGHT)
    symmem.recv(y := torch.zeros(3, 4).t(), LEFT)
    assert y.equal((x - RANK + LEFT).t())
    raises(symmem.InvalidError, lambda: symmem.irecv(y, LEFT))
    symmem.send(z := torch.full((5,), complex(RANK, 1)), RIGHT)
    symmem.recv(z, LEFT)
    assert z.eq(complex(LEFT, 1)).all()
    turned = symmem.group(list(reversed(range(SIZE))))
    work = symmem.isend(x, RIGHT, turned)
    got = torch.empty(3, 4)
    assert symmem.recv(got, LEFT, turned) == LEFT
    assert got.equal(x - RANK + LEFT)
    work.wait()
    work = symmem.isend(x, group=turned, group_dst=(turned.rank + 1) % SIZE)
    receive = symmem.irecv(x.clone(), group=turned, group_src=(turned.rank - 1) % SIZE)
    receive.wait()
    assert receive.source_rank() == (turned.rank - 1) % SIZE
    work.wait()
    symmem.barrier()


@check
def invalid_messages_are_rejected() -> None:
    x = torch.ones(4)
    raises(symmem.InvalidError, lambda: symmem.send(x))
    raises(symmem.InvalidError, lambda: symmem.send(x, 99))
    raises(symmem.InvalidError, lambda: symmem.send(x, RIGHT, group_dst=1))
    tags: list[Any] = [-1, 1 << 31, "a", 1.5]
    for tag in tags:
        raises(symmem.InvalidError, partial(symmem.isend, x, RIGHT, tag=tag))
        raises(symmem.InvalidError, partial(symmem.irecv, x, LEFT, tag=tag))
    symmem.barrier()
    symmem.synchronize()


if __name__ == "__main__":
    main()
