"""The collectives, as programs call them.

Compiled code takes them as operators of PyTorch's; other code runs them at once. Autograd does not
see them, as it does not see those of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from symmem._api import collectives, operators
from symmem._rank.work import Work
from symmem._torch.pytorch import compiling, modules

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike, OpLike


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
) -> None: ...


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: OpLike,
    group: GroupLike,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    async_op: bool = ...,
) -> Work | None: ...


def all_reduce(
    tensor: torch.Tensor,
    op: OpLike = None,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Combine a tensor over all ranks, in place: `torch.distributed.all_reduce`.

    Args:
        tensor: on the rank's device; symmetric or not, which affects its speed alone. One whose
            elements do not lie side by side is copied before and after.
        op: a ReduceOp of torch.distributed, or its name; the sum unless given.
        group: as `symmem.group` takes it; the world unless given. A rank that is not in it is
            warned and does nothing.
        async_op: return at once, with a Work to wait for; in compiled code one that is done.
    """
    if compiling():
        return operators.all_reduce_(tensor, op, group, async_op)
    return collectives.all_reduce(tensor, op, group, async_op)


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Combine rows over all ranks, add them to a residual and normalize it.

    It is two kernels, the second of which does what is left; measured faster than one. It does
    what these lines do, to the bit in the residual, up to the order of the sum in the norm:

        y = all_reduce(tensor)
        residual += y
        r = residual.float()
        return (r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).bfloat16()

    Args:
        tensor: [..., hidden] of bfloat16, contiguous, symmetric or not; hidden is a multiple of 8
            up to 16384. This and all other tensors lie on addresses of 16.
        residual: of the same shape, the same on all ranks; it is written.
        weight: [hidden].
        eps: what is added to the mean of squares.
        group: as `symmem.group` takes it; the world unless given.
        out: where the result goes, which may be `tensor`; a new tensor unless given.

    Raises:
        UnsupportedError: on all ranks alike, where there is no direct path, or where more than
            about 7 MiB of rows are not symmetric, both `tensor` and `out`: then take these lines.
    """
    if compiling():
        output = modules["torch"].empty_like(tensor) if out is None else out
        operators.all_reduce_rms_norm_(output, residual, tensor, weight, eps, group)
        return output
    return collectives.all_reduce_rms_norm(tensor, residual, weight, eps, group, out)


@overload
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
) -> None: ...


@overload
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GroupLike,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GroupLike = ...,
    async_op: bool = ...,
) -> Work | None: ...


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Gather a tensor of each rank: `torch.distributed.all_gather_into_tensor`."""
    if compiling():
        return operators.all_gather_into_tensor_(output_tensor, input_tensor, group, async_op)
    return collectives.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


@overload
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
) -> None: ...


@overload
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
) -> Work: ...


@overload
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: OpLike,
    group: GroupLike,
    async_op: Literal[True],
) -> Work: ...


@overload
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: OpLike = ...,
    group: GroupLike = ...,
    async_op: bool = ...,
) -> Work | None: ...


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: OpLike = None,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Combine and keep this rank's part: `torch.distributed.reduce_scatter_tensor`."""
    if compiling():
        return operators.reduce_scatter_tensor_(output, input, op, group, async_op)
    return collectives.reduce_scatter_tensor(output, input, op, group, async_op)


@overload
def broadcast(
    tensor: torch.Tensor,
    src: int | None = ...,
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
    group_src: int | None = ...,
) -> None: ...


@overload
def broadcast(
    tensor: torch.Tensor,
    src: int | None = ...,
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
    group_src: int | None = ...,
) -> Work: ...


@overload
def broadcast(
    tensor: torch.Tensor,
    src: int | None,
    group: GroupLike,
    async_op: Literal[True],
    group_src: int | None = ...,
) -> Work: ...


@overload
def broadcast(
    tensor: torch.Tensor,
    src: int | None = ...,
    group: GroupLike = ...,
    async_op: bool = ...,
    group_src: int | None = ...,
) -> Work | None: ...


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy one rank's tensor to all: `torch.distributed.broadcast`.

    Args:
        tensor: what is read on the root and written elsewhere.
        src: the root, by its number in torch.distributed.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
        group_src: the root, by its number in the group; instead of src.
    """
    if compiling():
        return operators.broadcast_(tensor, src, group, group_src, async_op)
    return collectives.broadcast(tensor, src, group, async_op, group_src)


@overload
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = ...,
    input_split_sizes: Sequence[int] | None = ...,
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
    *,
    equal_splits: bool = ...,
) -> None: ...


@overload
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = ...,
    input_split_sizes: Sequence[int] | None = ...,
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
    equal_splits: bool = ...,
) -> Work: ...


@overload
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: GroupLike,
    async_op: Literal[True],
    *,
    equal_splits: bool = ...,
) -> Work: ...


@overload
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = ...,
    input_split_sizes: Sequence[int] | None = ...,
    group: GroupLike = ...,
    async_op: bool = ...,
    *,
    equal_splits: bool = ...,
) -> Work | None: ...


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    *,
    equal_splits: bool = False,
) -> Work | None:
    """Send a part to each rank and gather the parts: `torch.distributed.all_to_all_single`.

    Parts may have any length, also none, and splits may be given on some ranks and not on others,
    as long as what a rank sends to another is what that one expects; else no tensor is written and
    the ranks get `DivergenceError`, which names the pair.

    Args:
        output: the parts of all ranks, in their order.
        input: the parts for all ranks, in their order.
        output_split_sizes: how many rows each rank sends; the same number unless given.
        input_split_sizes: how many rows go to each rank; the same number unless given.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for; in compiled code one that is done.
        equal_splits: all ranks pass this, and no split sizes. On GPUs the exchange is faster then.
    """
    if compiling():
        return operators.all_to_all_single_(
            output, input, output_split_sizes, input_split_sizes, group, async_op, equal_splits
        )
    return collectives.all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group, async_op, equal_splits
    )


@overload
def barrier(
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
    device_ids: Sequence[int] | None = ...,
) -> None: ...


@overload
def barrier(
    group: GroupLike = ...,
    *,
    async_op: Literal[True],
    device_ids: Sequence[int] | None = ...,
) -> Work: ...


@overload
def barrier(
    group: GroupLike, async_op: Literal[True], device_ids: Sequence[int] | None = ...
) -> Work: ...


@overload
def barrier(
    group: GroupLike = ..., async_op: bool = ..., device_ids: Sequence[int] | None = ...
) -> Work | None: ...


def barrier(
    group: GroupLike = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> Work | None:
    """Wait until all ranks have come: on GPUs the current stream waits, on the host the caller.

    Args:
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
        device_ids: the rank's own device, as torch.distributed takes it, or None.
    """
    return collectives.barrier(group, async_op, device_ids)


def synchronize() -> None:
    """Wait for the current stream, and raise the first error of symmem's work on it.

    On the host backend, where tensors have no stream, it waits for the work of all groups.
    """
    collectives.synchronize()
