"""Tests that after attach, unchanged calls of torch.distributed run NCCL's symmetric kernels."""

from __future__ import annotations

import sys

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, is_symmetric_kernel, verdict

import symmem


def kernels(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[str]:
    """Return the names of the kernels that an all-reduce of torch.distributed runs."""
    return common.kernels(lambda: dist.all_reduce(tensor, group=group))


def world() -> None:
    """Attach the default process group."""
    group = symmem.attach()
    with symmem.use(group):
        x = torch.empty(4 * MIB, device=DEVICE, dtype=torch.bfloat16)
    plain = torch.ones(4 * MIB, device=DEVICE, dtype=torch.bfloat16)
    x.fill_(RANK + 1)
    dist.all_reduce(x)
    right = bool((x == SUM).all())
    ours, theirs = kernels(x), kernels(plain)
    verdict("dist.all_reduce after attach is right", right)
    verdict("it runs a symmetric kernel", is_symmetric_kernel(ours), ours)
    verdict("ordinary tensors do not", not is_symmetric_kernel(theirs), theirs)


def later() -> None:
    """Check that later memory is registered at the end of its scope."""
    group = symmem.attach()
    with symmem.use(group):
        x = torch.full((128 * MIB,), RANK + 1.0, device=DEVICE)
    names = kernels(x)
    verdict("memory made after attach", is_symmetric_kernel(names), names)


def several() -> None:
    """Attach a second process group over the same memory."""
    ranks = list(range(SIZE))
    second = dist.new_group(ranks, backend="nccl")
    group = symmem.attach(second)
    with symmem.use(group):
        x = torch.full((4 * MIB,), RANK + 1.0, device=DEVICE)
    names = kernels(x, second)
    right = bool((x == SUM).all())
    verdict("two communicators over one memory", right and is_symmetric_kernel(names), names)
    verdict("detach", symmem.detach(second) and not symmem.detach(second))
    dist.destroy_process_group(second)


def destroyed() -> None:
    """Check that scopes work after a process group is destroyed without detach."""
    third = dist.new_group(list(range(SIZE)), backend="nccl")
    group = symmem.attach(third)
    dist.destroy_process_group(third)
    with symmem.use(group):
        x = torch.full((256 * MIB,), RANK + 1.0, device=DEVICE)
    symmem.all_reduce(x)
    verdict("a process group that is gone", bool((x == SUM).all()))


if __name__ == "__main__":
    if not common.attachable():
        common.say("SKIP, not supported here: attach needs NCCL 2.30.7 or newer")
        sys.exit(0)
    common.log_kernels()
    common.start()
    for part in (world, later, several, destroyed):
        attempt(part.__name__, part)
    common.leave()
