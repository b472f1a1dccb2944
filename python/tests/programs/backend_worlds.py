"""Tests process groups of the backend "symmem" with a gloo default group, on four ranks."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

PAIR = [RANK // 2 * 2, RANK // 2 * 2 + 1]


def group(ranks: list[int], seconds: float = 60) -> dist.ProcessGroup:
    made = dist.new_group(
        ranks,
        backend="symmem",
        timeout=timedelta(seconds=seconds),
        use_local_synchronization=True,
    )
    assert isinstance(made, dist.ProcessGroup)
    return made


def total(process_group: dist.ProcessGroup, count: int = 3) -> float:
    x = torch.full((count,), float(RANK))
    dist.all_reduce(x, group=process_group)
    return float(x[-1].item())


@check
def a_group_of_some_ranks_precedes_one_of_all() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    pair = group(PAIR)
    assert total(pair) == sum(PAIR)
    everyone = group(list(range(SIZE)))
    assert total(everyone) == sum(range(SIZE))
    x = torch.ones(1 << 16)
    for each in (pair, everyone, pair):
        dist.all_reduce(x, group=each)
    assert x.eq(2.0 * SIZE * 2).all()
    backend = pair._get_backend(torch.device("cpu"))
    tensor = backend.allocate_tensor(100, dtype=torch.float32, device=torch.device("cpu"))
    dist.all_reduce(tensor.fill_(RANK), group=pair)
    assert tensor.eq(sum(PAIR)).all()
    del backend, tensor
    crossing = group([0, 3]) if RANK in (0, 3) else group([1, 2])
    assert total(crossing) == 3
    dist.destroy_process_group(pair)
    assert total(everyone, 1 << 16) == sum(range(SIZE))
    dist.destroy_process_group(everyone)
    assert total(crossing) == 3
    dist.destroy_process_group(crossing)
    assert not symmem.is_initialized()


@check
def a_group_uses_the_main_world_or_its_own() -> None:
    if RANK < 2:
        symmem.init([0, 1], backend="host", timeout=60)
    inside, outside = group(PAIR), group([RANK % 2, RANK % 2 + 2])
    assert total(inside) == sum(PAIR)
    assert total(outside) == 2 * (RANK % 2) + 2
    dist.destroy_process_group(inside)
    assert symmem.is_initialized() == (RANK < 2)
    symmem.finalize(force=True)
    assert total(outside) == 2 * (RANK % 2) + 2
    dist.destroy_process_group(outside)


@check
def the_timeout_error_names_the_late_rank() -> None:
    for inside in (False, True):
        if inside:
            symmem.init(backend="host", timeout=600)
        pair = group(PAIR, 1)
        dist.barrier()
        if RANK % 2 == 0:
            begin = time.monotonic()
            error = raises(dist.DistBackendError, lambda pair=pair: total(pair))
            took = time.monotonic() - begin
            late = RANK + 1 if inside else 1  # its rank in the world of the group
            assert re.search(rf"for (world )?rank {late}\b", str(error)), error
            print(f"named after {took:.2f} s", flush=True)
        dist.barrier()
        dist.destroy_process_group(pair)
    assert total(group(list(range(SIZE)))) == sum(range(SIZE))
    symmem.finalize(force=True)


if __name__ == "__main__":
    main()
