"""Tests suspending and resuming the memory of groups."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem


def symmetric() -> torch.Tensor:
    """Return a symmetric tensor of ones."""
    with symmem.use():
        return symmem.ones(1000, dtype=torch.float32)


@check
def tensors_keep_their_addresses() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    symmem.init(backend="host", timeout=20)
    tensor = symmetric()
    address = tensor.data_ptr()
    for cycle in range(5):
        assert symmem.suspend() > 0
        symmem.resume()
        assert tensor.data_ptr() == address
        assert not tensor.any()
        tensor.fill_(cycle + RANK)
        symmem.all_reduce(tensor)
        assert tensor.eq(SIZE * cycle + SIZE * (SIZE - 1) / 2).all()


@check
def contents_can_be_kept() -> None:
    tensor = symmetric()
    symmem.suspend(keep=True)
    symmem.resume()
    assert tensor.eq(1).all()


@check
def calls_are_rejected_while_suspended() -> None:
    tensor = symmetric()
    symmem.suspend()
    raises(symmem.errors.SuspendedError, lambda: symmem.all_reduce(tensor))
    symmem.resume()
    symmem.all_reduce(tensor)


@check
def a_refusal_leaves_nothing_suspended() -> None:
    tensor = symmetric()
    message = torch.full((1000,), 3.0)
    if RANK == 0:
        work = symmem.isend(message, 1)
    dist.barrier()
    raises(symmem.errors.BusyError, symmem.suspend)
    if RANK == 0:
        work.wait()
    if RANK == 1:
        symmem.recv(message, 0)
    tensor.fill_(1)
    symmem.all_reduce(tensor)
    assert tensor.eq(SIZE).all()


if __name__ == "__main__":
    main()
