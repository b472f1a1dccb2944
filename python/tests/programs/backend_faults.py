"""Tests errors of the backend "symmem", and operations after them, on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

OTHER = 1 - RANK


def total() -> float:
    """Return the sum of all ranks, each plus 1."""
    tensor = torch.full((3,), RANK + 1.0)
    dist.all_reduce(tensor)
    return float(tensor.sum().item() / 3)


@check
def an_error_in_a_batch_does_not_affect_collectives() -> None:
    dist.init_process_group("symmem", timeout=timedelta(seconds=200))
    gaps = torch.empty(4, 2)[:, 0]
    batch = [
        dist.P2POp(dist.isend, torch.ones(4), OTHER),
        dist.P2POp(dist.irecv, gaps, OTHER),
    ]
    raises(ValueError, lambda: dist.batch_isend_irecv(batch))
    assert total() == 3
    got = torch.empty(4)
    dist.recv(got, OTHER)  # the message of the batch
    assert got.tolist() == [1, 1, 1, 1]


@check
def overlapping_outputs_are_rejected() -> None:
    one, row, wide = torch.ones(1), torch.ones(4), torch.ones(4 * SIZE)
    expanded = one.expand(4)
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(expanded),
        lambda: dist.all_reduce(expanded, async_op=True),
        lambda: dist.broadcast(expanded, 0),
        lambda: dist.all_reduce_coalesced([row, expanded]),
        lambda: dist.all_gather([expanded] * SIZE, row),
        lambda: dist.all_gather_into_tensor(one.expand(4 * SIZE), row),
        lambda: dist.reduce_scatter_tensor(expanded, wide),
        lambda: dist.all_to_all_single(expanded, row),
        lambda: dist.recv(expanded, OTHER),
    ]
    for call in calls:
        error = raises(ValueError, call)
        assert "share memory" in str(error) or "contiguous" in str(error), error
    assert total() == 3
    assert one.item() == 1


@check
def inputs_may_be_expanded() -> None:
    expanded, output = torch.full((1,), float(RANK)).expand(4), torch.empty(4 * SIZE)
    dist.all_gather_into_tensor(output, expanded)
    assert output.tolist() == [0.0] * 4 + [1.0] * 4
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, expanded)
    assert part.tolist() == [1, 1]
    dist.all_reduce(one := torch.full((1,), RANK + 1.0).expand(1))
    assert one.item() == 3


@check
def a_wait_with_a_timeout_can_be_repeated() -> None:
    store = dist.distributed_c10d._get_default_store()
    tensor, got = torch.ones(3), torch.empty(3)
    if RANK == 0:
        works = [dist.all_reduce(tensor, async_op=True), dist.irecv(got, 1)]
        for work in works:
            error = raises(
                dist.DistBackendError, lambda work=work: work.wait(timedelta(milliseconds=20))
            )
            assert "Timed out" in str(error), error
            assert "20 ms" in str(error), error
            assert not work.is_completed()
        store.set("timed out", "")
        for work in works:
            work.wait(timedelta(seconds=200))
        assert got.tolist() == [5, 5, 5]
    else:
        store.wait(["timed out"])
        dist.all_reduce(tensor)
        dist.send(torch.full((3,), 5.0), 0)
    assert tensor.tolist() == [2, 2, 2]


@check
def tensors_outlive_the_group() -> None:
    group = dist.new_group(backend="symmem")
    backend = group._get_backend(torch.device("cpu"))
    for step in range(2):
        tensor = backend.allocate_tensor(100, dtype=torch.float32, device=torch.device("cpu"))
        tensor.fill_(RANK)
        dist.all_reduce(tensor, group=group)
        if step == 0:
            del tensor
    if RANK == 0:
        backend.set_timeout(timedelta(seconds=1))
        error = raises(dist.DistBackendError, partial(dist.all_reduce, tensor, group=group))
        assert "timeout (of the process group" in str(error), error
    dist.barrier()
    del backend
    dist.destroy_process_group(group)
    del group
    assert tensor.eq(1).all()
    tensor.fill_(7)
    dist.destroy_process_group()
    assert tensor.eq(7).all()
    del tensor
    dist.init_process_group("symmem", timeout=timedelta(seconds=200))
    assert total() == 3


@check
def nonexistent_ranks_are_rejected() -> None:
    dist.destroy_process_group()
    for rank, size in ((0, 0), (0, -1), (1, 1), (-1, 2), (True, "2"), (0, 1.5), ("0", 1)):
        options = {"rank": rank, "size": size}
        error = raises(
            symmem.InvalidError,
            lambda options=options: symmem.init(backend="host", options=options),
        )
        assert "above 0" in str(error), error


if __name__ == "__main__":
    main()
