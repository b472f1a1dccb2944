"""Tests the ways to specify the ranks of `symmem.init`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

EVERYONE = list(range(SIZE))


def opened(which: Any = None, **options: Any) -> symmem.Group:
    return symmem.init(which, **{"backend": "host", "timeout": 60, **options})


def total(which: Any = None, **options: Any) -> float:
    """Initialize symmem, return the sum of the global ranks, and finalize it."""
    opened(which, **options)
    x = symmem.full((3,), float(RANK))
    symmem.all_reduce(x)
    found = float(x[0].item())
    del x
    symmem.finalize()
    return found


@check
def every_type_in_the_annotation_is_accepted() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    refused = raises(symmem.InvalidError, lambda: opened(EVERYONE))
    assert "call init_process_group before symmem.init" in str(refused)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    grid = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    ways: list[Any] = [
        None,
        dist.group.WORLD,
        init_device_mesh("cpu", (SIZE,)),
        grid["tp"],
        (grid, "tp"),
        (grid, 1),
        "0",
        EVERYONE,
        tuple(EVERYONE),
        torch.arange(SIZE),
        dist.new_group(EVERYONE[::-1]),
        EVERYONE[::-1],
    ]
    for way in ways:
        assert total(way) == sum(EVERYONE), way


@check
def a_world_of_some_ranks_can_precede_one_of_all() -> None:
    pairs = [[r, r + 1] for r in range(0, SIZE, 2)]
    mine = pairs[RANK // 2]
    assert total(mine) == sum(mine)
    assert total(dist.new_group(mine, use_local_synchronization=True)) == sum(mine)
    assert total() == sum(EVERYONE)
    if RANK < 2:
        assert total([1, 0]) == 1
    assert total() == sum(EVERYONE)


@check
def invalid_worlds_are_rejected() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    gone = dist.new_group(EVERYONE)
    dist.destroy_process_group(gone)
    closed = opened()
    symmem.finalize()
    wrong: list[tuple[Any, str]] = [
        (7, "is not a group"),
        (object(), "is not a group"),
        (b"0", "is not a group"),
        ({"a": 1}, "is not a group"),
        ([0.5], "is not a group"),
        ([], "distinct global ranks"),
        ([0, 0], "distinct global ranks"),
        ([0, SIZE], "distinct global ranks"),
        ("no such", "PyTorch has no process group named 'no such'"),
        (grid, "a mesh with 2 dimensions"),
        ((grid, "pp"), "has no dimension 'pp'"),
        (gone, "it was destroyed"),
        (closed, "needs a PyTorch process group"),
    ]
    for which, words in wrong:
        error = raises(symmem.InvalidError, lambda which=which: opened(which))
        assert words in str(error), (which, error)
        assert not symmem.is_initialized()
    others = [r for r in EVERYONE if r != RANK]
    inside = dist.new_group([0])
    for which in (others, inside) if RANK else (others,):
        error = raises(symmem.InvalidError, lambda which=which: opened(which))
        assert "is not in" in str(error), error


@check
def all_names_of_the_open_world_return_it() -> None:
    world = opened()
    group = dist.new_group(EVERYONE)
    for way in (None, EVERYONE, dist.group.WORLD, group, "0", world):
        assert symmem.init(way) is world
    error = raises(symmem.InvalidError, lambda: symmem.init([RANK]))
    assert f"on ranks {tuple(EVERYONE)} instead of ({RANK},)" in str(error), error
    symmem.finalize()


@check
def options_are_applied_or_rejected() -> None:
    pair, place = divmod(RANK, 2)
    options: dict[str, Any] = {"rank": place, "size": 2}
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: opened(options=options), "but no store"),
        (lambda: opened(EVERYONE, options=options), "pass only one of them"),
        (lambda: opened(options={"size": 2}), "pass both a rank and a size"),
        (lambda: opened(options={"rank": 0}), "pass both a rank and a size"),
        (lambda: opened(options={"timeout_ms": 5}), "timeout_ms 60000 as an argument, but 5"),
        (lambda: opened(options={"backend": "nccl"}), "backend 'host' as an argument, but 'nccl'"),
        (lambda: opened(capacity=5, options={"pool": {"capacity": 6}}), "capacity 5"),
        (lambda: opened(options={"no_such": 5}), "no_such"),
    ]
    for call, words in wrong:
        error = raises(symmem.InvalidError, call)
        assert words in str(error), error
    store = f"unix:@symmem-{dist.get_world_size()}-{pair}-{options_token()}"
    assert total(options={**options, "store": store}) == 4 * pair + 1
    assert total(options={"rank": 0, "size": 1}) == RANK
    assert total(backend="auto", options={"backend": "host", "timeout_ms": 60000}) == sum(EVERYONE)


def options_token() -> str:
    """Return a unique name, the same on all ranks."""
    import secrets

    found = [secrets.token_hex(8)]
    dist.broadcast_object_list(found, src=0)
    return found[0]


if __name__ == "__main__":
    main()
