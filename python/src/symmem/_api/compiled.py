"""Calls that torch.compile traces: they become operators of `torch.ops.symmem`.

The compiler follows these functions, so they use nothing that it cannot trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank.session import find
from symmem._rank.work import FinishedWork, Work
from symmem._torch.pytorch import modules

if TYPE_CHECKING:
    import torch


def operators() -> Any:
    """Return `torch.ops.symmem`."""
    return modules["torch"].ops.symmem


def op_name(op: Any) -> str:
    """Name a reduction for an operator: the compiler cannot hash a ReduceOp."""
    if op is None:
        return "sum"
    return op if isinstance(op, str) else str(op.name).lower()


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


def finished(async_op: bool, output: torch.Tensor) -> Work | None:
    """Return what the call returns: compiled code waits for every collective."""
    return FinishedWork([output]) if async_op else None


def _is_process_group(group: Any) -> bool:
    return isinstance(group, modules["torch"].distributed.ProcessGroup)
