"""Calls that torch.compile traces: they become operators of `torch.ops.symmem`.

The compiler follows these functions, so they use nothing that it cannot trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank.session import find
from symmem._rank.work import FinishedWork, Work
from symmem._torch.pytorch import compiling, factor_of, modules, reduction_of

if TYPE_CHECKING:
    import torch


def operators() -> Any:
    """Return `torch.ops.symmem`."""
    return modules["torch"].ops.symmem


def op_name(op: Any) -> str:
    """Name a reduction for an operator: the compiler cannot hash a ReduceOp."""
    if op is None:
        return "sum"
    if isinstance(op, str):
        return op
    if compiling():
        return str(op.name).lower()
    name = reduction_of(op).name.lower()
    return f"{name}:{factor_of(op)}" if name == "premul_sum" else name


def group_name(group: Any) -> str:
    """Name a group for an operator, which finds it when it runs.

    A process group has PyTorch's name.
    """
    if isinstance(group, str):
        return group
    if _is_process_group(group):
        return str(group.group_name)
    return find(group).name


def root_in(group: Any, src: int | None, group_src: int | None) -> int:
    """Turn a root, by its number among all ranks or in the group, into one in the group."""
    if not _is_process_group(group) or (src is None) == (group_src is None):
        return find(group).root(src, group_src)
    if group_src is not None:
        return group_src
    ranks = modules["torch"].distributed.get_process_group_ranks(group)
    if src not in ranks:
        raise errors.InvalidError(f"rank {src} is not in the process group of {ranks}")
    return int(ranks.index(src))


def finished(
    async_op: bool,
    name: str,
    writes: Sequence[torch.Tensor],
    reads: Sequence[torch.Tensor] = (),
) -> Work | None:
    """Return what the call returns: compiled code waits for every collective.

    A backward pass raises where it reaches a tensor that the collective has written.

    Args:
        async_op: whether the caller wants a work.
        name: the function that was called.
        writes: the tensors that it has written, and may have read.
        reads: the other tensors that it has read.
    """
    torch = modules["torch"]
    if torch.is_grad_enabled():
        followed = [t for t in writes if t.requires_grad and not t.is_leaf]
        followed += [t for t in reads if t.requires_grad]
        for tensor in writes if followed else ():
            if not (tensor.requires_grad and tensor.is_leaf):
                copy = operators().refused(
                    tensor.detach(), followed[0], f"{name}, which writes in place,"
                )
                tensor.copy_(copy)
    return FinishedWork(list(writes)) if async_op else None


def _is_process_group(group: Any) -> bool:
    return isinstance(group, modules["torch"].distributed.ProcessGroup)
