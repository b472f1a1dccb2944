"""Tests symmem process groups with a gloo default group. Each is a separate world."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

CPU = torch.device("cpu")


def sum_of(group: Any) -> float:
    tensor = torch.full((1000,), float(RANK + 1))
    dist.all_reduce(tensor, group=group)
    assert tensor.min() == tensor.max()
    return tensor[0].item()


def sum_by_ranks(ranks: list[int]) -> float:
    return float(sum(rank + 1 for rank in ranks))


@check
def only_members_open_a_group() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=200))
    first, rest = [0, 1], list(range(1, SIZE))
    groups = [dist.new_group(ranks, backend="symmem") for ranks in (first, rest)]
    for group, ranks in zip(groups, (first, rest), strict=True):
        if RANK in ranks:
            assert sum_of(group) == sum_by_ranks(ranks)
    assert sum_of(None) == sum_by_ranks(list(range(SIZE)))
    assert not symmem.is_initialized()


@check
def destroying_a_group_does_not_affect_others() -> None:
    everyone = list(range(SIZE))
    trainer, engine = (dist.new_group(everyone, backend="symmem") for _ in range(2))
    assert sum_of(trainer) == sum_of(engine) == sum_by_ranks(everyone)
    dist.destroy_process_group(trainer)
    assert sum_of(engine) == sum_by_ranks(everyone)


@check
def ranks_may_use_groups_in_different_orders() -> None:
    pairs = {
        (a, b): dist.new_group([a, b], backend="symmem") for a in range(SIZE) for b in range(a)
    }
    mine = sorted((pair for pair in pairs if RANK in pair), key=lambda pair: RANK * sum(pair) % 5)
    tensors = [torch.full((10,), float(RANK + 1)) for _ in mine]
    works = [
        dist.all_reduce(tensor, group=pairs[pair], async_op=True)
        for pair, tensor in zip(mine, tensors, strict=True)
    ]
    for pair, tensor, work in zip(mine, tensors, works, strict=True):
        work.wait()
        assert tensor[0].item() == sum_by_ranks(list(pair))


@check
def a_late_rank_is_named_after_the_timeout() -> None:
    everyone = list(range(SIZE))
    group = dist.new_group(everyone, backend="symmem", timeout=timedelta(seconds=2))
    other = dist.new_group(everyone, backend="symmem")
    if RANK < SIZE - 1:
        begin = time.monotonic()
        error = raises(dist.DistBackendError, lambda: sum_of(group))
        assert time.monotonic() - begin < 30
        assert " Timed out " in str(error)
        cause = symmem.last_error()
        assert isinstance(cause, symmem.TimeoutError)
        missing = cause.data["timeout"]["missing"]
        assert SIZE - 1 in missing  # On a loaded machine, another rank may be late as well.
        assert str(SIZE - 1) in str(error), error
    dist.barrier()
    assert sum_of(other) == sum_by_ranks(everyone)


@check
def set_timeout_changes_the_timeout() -> None:
    group = dist.new_group(list(range(SIZE)), backend="symmem")
    if RANK > 0:
        group._get_backend(CPU).set_timeout(timedelta(seconds=0.5))
        raises(dist.DistBackendError, lambda: sum_of(group))
    dist.barrier()


@check
def monitored_barrier_names_a_late_rank() -> None:
    group = dist.new_group(list(range(SIZE)), backend="symmem")
    backend = group._get_backend(CPU)
    backend.monitored_barrier(timedelta(seconds=100), wait_all_ranks=True)
    if RANK != 1:
        error = raises(
            dist.DistBackendError,
            lambda: backend.monitored_barrier(timedelta(seconds=2), wait_all_ranks=True),
        )
        # On a loaded machine, another rank may be late as well.
        want = r"Ranks? 1\b.* failed" if RANK == 0 else "errors while waiting"
        assert re.search(want, str(error)), error
    dist.barrier()
    assert sum_of(group) == sum_by_ranks(list(range(SIZE)))


@check
def aborting_a_group_ends_waits() -> None:
    group = dist.new_group(list(range(SIZE)), backend="symmem")
    backend = group._get_backend(CPU)
    if RANK == 0:
        work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
        dist.barrier()
        backend.abort()
        error = raises(dist.DistBackendError, work.wait)
        assert "abort" in str(error), error
    else:
        dist.barrier()
    dist.barrier()


@check
def groups_can_be_split() -> None:
    group = dist.new_group(list(range(SIZE)), backend="symmem")
    backend = group._get_backend(CPU)
    assert backend.supports_splitting
    if hasattr(backend, "split"):  # since PyTorch 2.14
        ranks = list(range(1, SIZE))
        part = backend.split(dist.HashStore(), ranks, backend.options)
        assert (part is None) == (RANK == 0)
        if part is not None:
            tensor = torch.full((10,), float(RANK + 1))
            part.allreduce([tensor], dist.AllreduceOptions()).wait()
            assert tensor[0].item() == sum_by_ranks(ranks)
    assert sum_of(group) == sum_by_ranks(list(range(SIZE)))


@check
def all_groups_are_destroyed() -> None:
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
