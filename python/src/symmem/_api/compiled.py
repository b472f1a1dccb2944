"""Converts calls that torch.compile traces to operators of `torch.ops.symmem`.

torch.compile traces these functions too, so they use only what it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank.session import find
from symmem._rank.work import FinishedWork, Work
from symmem._torch.autograd import refuse
from symmem._torch.pytorch import compiling, factor_of, modules, reduction_of

if TYPE_CHECKING:
    import torch


untraced: dict[str, Callable[..., Any]] = {}
"""Functions that are not operators, by name. See `between_graphs`."""


def operators() -> Any:
    """Return `torch.ops.symmem`."""
    _require_operators()
    return modules["torch"].ops.symmem


def between_graphs(name: str) -> Callable[..., Any]:
    """Return a function that compiled code calls between its graphs."""
    _require_operators()
    return untraced[name]


def _require_operators() -> None:
    if not untraced:  # The compiler shows the line that raises an error, but not the message.
        raise errors.ClosedError("symmem has no operators yet: import torch, then call symmem.init")


def op_name(op: Any) -> str:
    """Return the name of a reduction for an operator. The compiler cannot hash a ReduceOp."""
    if op is None:
        return "sum"
    if isinstance(op, str):
        return op
    if compiling():
        return str(op.name).lower()
    name = reduction_of(op).name.lower()
    return f"{name}:{factor_of(op)}" if name == "premul_sum" else name


def group_name(group: Any) -> str:
    """Return the name by which an operator finds the group when it runs.

    For a process group, this is PyTorch's name.
    """
    if isinstance(group, str):
        return group
    if _is_process_group(group):
        return str(group.group_name)
    return find(group).name


def root_in(group: Any, src: int | None, group_src: int | None) -> int:
    """Return the root's rank in the group, given its global rank or its rank in the group."""
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
    """Return the result of a call. Compiled code has already waited for the collective.

    A backward pass that reaches a tensor written by the collective raises an error.

    Args:
        async_op: whether to return a work.
        name: the name of the function that was called.
        writes: the tensors that the collective has written, and may have read.
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


def refusing(name: str, written: torch.Tensor, read: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor whose backward pass raises an error if autograd follows the tensor `read`.

    It is for views of a tensor of bytes, which autograd cannot follow.

    Args:
        name: the name of the function that was called.
        written: a tensor that the function has written. In eager code the result shares its memory.
        read: the tensor from which the values come.
    """
    if read is None or not (read.requires_grad and modules["torch"].is_grad_enabled()):
        return written
    result = written.detach()
    if compiling():
        result = operators().refused(result, read, name)
    else:
        refuse(name, [result])
    return result


def _is_process_group(group: Any) -> bool:
    return isinstance(group, modules["torch"].distributed.ProcessGroup)
