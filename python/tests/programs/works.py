"""Tests the works of asynchronous collectives on the host backend."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._c import interrupt

TOTAL = SIZE * (SIZE + 1) / 2
LONGEST = 20.0


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, with a deadline."""
    deadline = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.0005)


def late(call: Callable[[], Any], before: Callable[[], None]) -> Any:
    """Let rank 0 call first, and run `before` there before the other ranks call."""
    if RANK:
        dist.barrier()
        return call()
    made = call()
    try:
        before()
    finally:
        dist.barrier()
    return made


def ones(count: int = 1 << 16) -> torch.Tensor:
    return torch.full((count,), float(RANK + 1))


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))
    symmem.init(backend="host", timeout=LONGEST, options={"warn_after_ms": 100})


@check
def dropping_a_work_does_not_corrupt_other_memory() -> None:
    for _ in range(300):
        late(lambda: symmem.all_reduce(torch.ones(200), async_op=True), lambda: None)
        mine = torch.full((200,), 7.0)  # gets the same memory from malloc if it was freed
        symmem.barrier()
        assert mine.eq(7).all()


@check
def hundreds_of_large_works_can_be_dropped() -> None:
    for _ in range(100):
        symmem.all_reduce(torch.ones(1 << 18), async_op=True)
        mine = torch.full((1 << 18,), 7.0)
        assert mine.eq(7).all()
    symmem.synchronize()
    assert mine.eq(7).all()


@check
def an_exception_before_a_wait_does_no_harm() -> None:
    def step() -> None:
        x = torch.ones(200)
        work = symmem.all_reduce(x, async_op=True)
        dist.barrier()
        if RANK == 0:
            raise ValueError("the loader failed")
        work.wait()

    for _ in range(50):
        try:
            step()
        except ValueError:
            assert RANK == 0
        mine = [torch.full((200,), 7.0) for _ in range(3)]
        symmem.barrier()
        assert all(m.eq(7).all() for m in mine)


@check
def tensors_of_dropped_works_are_freed_on_completion() -> None:
    seen = []
    for _ in range(20):
        x = torch.ones(1000)
        seen.append(weakref.ref(x))
        symmem.all_reduce(x, async_op=True)
        del x

    def one_more() -> bool:
        symmem.all_reduce(torch.ones(1), async_op=True)
        return not any(one() is not None for one in seen)

    # All ranks make as many calls as the slowest rank needs.
    for _ in range(1000):
        gone = torch.tensor([one_more()], dtype=torch.uint8)
        dist.all_reduce(gone, dist.ReduceOp.MIN)
        if gone.item():
            return
    raise AssertionError(f"{sum(one() is not None for one in seen)} tensors of 20 are held")


@check
def symmetric_tensors_of_dropped_works_are_freed_consistently() -> None:
    for k in range(200):
        for _ in range(3):
            symmem.all_reduce(symmem.empty(1000 + 100 * (k % 60)).fill_(1), async_op=True)
        if (k + RANK) % 3 == 0:
            time.sleep(0.001)  # works complete at different times on different ranks
        y = symmem.empty(500)
        symmem.all_reduce(y.fill_(1), async_op=True).wait()
        assert y.eq(SIZE).all()
    symmem.check()
    symmem.synchronize()
    del y
    gc.collect()
    assert symmem.stats()["pools"][0]["live"] == 0


@check
def a_work_completes_without_wait() -> None:
    x = ones()
    works: list[Any] = []

    def call() -> Any:
        works.append(symmem.all_reduce(x, async_op=True))
        return works[0]

    def before() -> None:
        assert not works[0].is_completed()
        assert works[0].exception() is None
        assert not works[0].is_success()

    work = late(call, before)
    until(work.is_completed)
    assert x.eq(TOTAL).all()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait()


@check
def a_future_completes_with_the_collective() -> None:
    x = ones()
    futures: list[Any] = []

    def call() -> Any:
        work = symmem.all_reduce(x, async_op=True)
        futures.append(work.get_future())
        futures.append(futures[0].then(lambda f: f.value()[0].sum()))
        futures.append(work.get_future_result())
        return work

    late(call, lambda: raises(AssertionError, lambda: _is(futures[0].done())))
    assert futures[0].wait()[0] is x
    assert futures[1].wait() == TOTAL * x.numel()
    assert futures[2].wait() == 0


@check
def a_warning_raised_as_an_error_does_not_end_a_future() -> None:
    seen, warn = threading.Event(), interrupt.warn

    def fail(warning: Warning, *, again: bool) -> None:
        seen.set()
        raise warning

    interrupt.warn = fail
    try:
        work = late(
            lambda: symmem.all_reduce(ones(), async_op=True).get_future(),
            lambda: until(seen.is_set),
        )
        until(work.done)
    finally:
        interrupt.warn = warn
    assert work.value()[0].eq(TOTAL).all()


def _is(value: bool) -> None:
    assert value


@check
def a_wait_can_have_its_own_timeout() -> None:
    x = ones()
    works: list[Any] = []

    def call() -> Any:
        works.append(symmem.all_reduce(x, async_op=True))
        return works[0]

    def before() -> None:
        start = time.monotonic()
        raises(symmem.TimeoutError, lambda: works[0].wait(timedelta(seconds=0.1)))
        assert time.monotonic() - start < LONGEST / 2

    work = late(call, before)
    assert work.wait(timedelta(seconds=LONGEST))
    assert x.eq(TOTAL).all()


@check
def a_work_is_a_torch_distributed_work() -> None:
    x = ones()
    work = symmem.all_reduce(x, async_op=True)
    assert isinstance(work, symmem.Work)
    assert isinstance(work, dist.Work)
    work.block_current_stream()
    assert x.eq(TOTAL).all()
    assert work.result()[0] is x
    assert dist.Work.unbox(work.boxed()).wait()
    raises(symmem.InvalidError, work.source_rank)
    theirs = {n for n in dir(dist.Work) if not n.startswith("_")}
    inherited = {"boxed", "unbox", "timeout"}  # the timeout of PyTorch 2.15 raises an error
    assert theirs <= set(dir(symmem.Work)) | inherited
    barrier = symmem.barrier(async_op=True)
    assert barrier is not None
    assert barrier.wait()
    assert symmem.barrier() is None


@check
def works_can_be_waited_for_in_any_order() -> None:
    x, part, whole = ones(), torch.empty(4), torch.empty(4 * SIZE)
    source = torch.arange(4.0 * SIZE)
    works = [
        symmem.all_reduce(x, async_op=True),
        symmem.broadcast(y := ones(), group_src=SIZE - 1, async_op=True),
        symmem.reduce_scatter_tensor(part, source, async_op=True),
        symmem.all_gather_into_tensor(whole, torch.full((4,), float(RANK)), async_op=True),
        symmem.all_to_all_single(z := torch.empty(4 * SIZE), source, async_op=True),
    ]
    for work in reversed(works):
        assert work is not None
        assert work.wait()
    assert x.eq(TOTAL).all()
    assert y.eq(SIZE).all()
    assert part.equal(source.view(SIZE, 4)[RANK] * SIZE)
    assert whole.view(SIZE, 4).eq(torch.arange(SIZE)[:, None]).all()
    assert z.view(SIZE, 4).eq(source.view(SIZE, 4)[RANK]).all()


@check
def a_work_has_the_error_of_its_collective() -> None:
    doomed = symmem.group(list(range(SIZE)), name="doomed")
    x = ones()
    works: list[Any] = []
    assert not symmem.failed()

    def call() -> Any:
        if RANK:
            doomed.abort()
            return None
        works.append(symmem.all_reduce(x, group=doomed, async_op=True))
        return works[0]

    work = late(call, lambda: None)
    if work is not None:
        future, outcome = work.get_future(), work.get_future_result()
        until(work.is_completed)
        assert not work.is_success()
        assert isinstance(work.exception(), symmem.AbortedError)
        raises(symmem.AbortedError, work.wait)
        raises(symmem.AbortedError, future.wait)
        assert outcome.wait() == 2
    until(symmem.failed)
    symmem.barrier()  # the world is still usable


@check
def groups_are_ordered_on_shared_memory() -> None:
    ranks = list(range(SIZE))
    a, b = (symmem.group(ranks, name=n) for n in "ab")
    for k in range(50):
        x = ones(5000)
        first = symmem.all_reduce(x, group=a, async_op=True)
        second = symmem.all_reduce(x, "max", group=b, async_op=True)
        third = symmem.all_reduce(x[1000:], group=a, async_op=True)
        if k % 2:
            symmem.broadcast(x, group_src=0)
        for work in (third, second, first):
            work.wait()
        assert x[:1000].eq(TOTAL).all(), (k, x[:3])
        assert x[1000:].eq(TOTAL * SIZE).all(), (k, x[1000:1003])


@check
def a_failed_work_does_not_affect_other_groups() -> None:
    """A dropped work has failed and completed before another group uses its tensor."""
    ranks = list(range(SIZE))
    for keeps in (True, False):
        doomed, other = (symmem.group(ranks, name=f"{n} {keeps}") for n in ("doomed", "other"))
        x = ones()
        dist.barrier()
        if RANK:
            doomed.abort()
        else:
            work = symmem.all_reduce(x, group=doomed, async_op=True)
            until(work.is_completed)
            if not keeps:
                del work
                # This releases completed works before it is rejected.
                raises(symmem.AbortedError, lambda g=doomed: symmem.isend(ones(), 1, group=g))
        dist.barrier()
        raises(symmem.AbortedError, lambda g=other, t=x: symmem.all_reduce(t, group=g))
        assert x.eq(RANK + 1).all()
    symmem.barrier()  # the world is still usable


@check
def the_process_may_exit_with_pending_works() -> None:
    dist.barrier()
    for _ in range(50):
        symmem.all_reduce(torch.ones(1 << 16), async_op=True)


if __name__ == "__main__":
    main()
