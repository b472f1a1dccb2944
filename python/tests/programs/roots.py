"""Tests roots in a world that contains only some of torch.distributed's ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem


@check
def roots_are_global_ranks() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    members = list(range(1, SIZE))
    group = dist.new_group(members)
    if RANK == 0:
        return
    symmem.init(group, backend="host", timeout=20)
    for src in members:
        symmem.broadcast(x := torch.full((3,), float(RANK)), src=src)
        assert x.eq(src).all()
        symmem.broadcast(x := torch.full((3,), float(RANK)), group_src=src - 1, group=group)
        assert x.eq(src).all()
    for src in (0, SIZE, -1):
        x = torch.full((3,), float(RANK))
        raises(symmem.InvalidError, lambda src=src, x=x: symmem.broadcast(x, src=src))
        raises(ValueError, lambda src=src, x=x: symmem.broadcast(x, src, group))
        assert x.eq(RANK).all()
    raises(symmem.InvalidError, lambda: symmem.broadcast(x, group_src=SIZE - 1))
    symmem.barrier()


if __name__ == "__main__":
    main()
