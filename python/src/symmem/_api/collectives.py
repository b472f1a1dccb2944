"""Collectives on tensors, with the arguments of `torch.distributed`.

Each function runs its collective immediately, unless torch.compile is tracing the caller, in which
case it emits the operator of the same name. These functions do not support autograd: a backward
pass through a tensor that one of them has written raises `UnsupportedError`. Use
`symmem.functional` for collectives with gradients.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, member, outside
from symmem._c.constants import Path
from symmem._c.terms import Operation, Reduction
from symmem._rank.session import find
from symmem._rank.work import Work
from symmem._torch.pytorch import compiling, factor_of, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike, OpLike

_AUTO = int(Path.DEFAULT)
_FUNCTIONS = {
    Operation.ALL_REDUCE: "symmem_all_reduce",
    Operation.REDUCE_SCATTER: "symmem_reduce_scatter",
}


@overload
def all_reduce(
    tensor: torch.Tensor, op: OpLike = ..., group: GroupLike = ..., async_op: Literal[False] = ...
) -> None: ...


@overload
def all_reduce(
    tensor: torch.Tensor, op: OpLike = ..., group: GroupLike = ..., async_op: Literal[True] = ...
) -> Work: ...


@overload
def all_reduce(
    tensor: torch.Tensor, op: OpLike = ..., group: GroupLike = ..., async_op: bool = ...
) -> Work | None: ...


def all_reduce(
    tensor: torch.Tensor, op: OpLike = None, group: GroupLike = None, async_op: bool = False
) -> Work | None:
    """Reduce a tensor across all ranks, in place, like `torch.distributed.all_reduce`.

    Args:
        tensor: a tensor on the rank's device. It need not be symmetric, but symmetric tensors are
            faster. A tensor that is not contiguous is copied before and after the call.
        op: a `torch.distributed.ReduceOp` or its name; the default is the sum. For PREMUL_SUM, pass
            the name with the factor, such as "premul_sum:0.5", or the result of
            `_make_nccl_premul_sum`. The factor must be the same on all ranks.
        group: any argument that `symmem.group` accepts; the default is the world. On a rank outside
            the group, the call does nothing and issues a warning.
        async_op: return a `Work` immediately instead of waiting. In compiled code the `Work` has
            already completed.
    """
    if compiling():
        compiled.operators().all_reduce_(tensor, compiled.op_name(op), compiled.group_name(group))
        return compiled.finished(async_op, "symmem.all_reduce", [tensor])
    if (g := member(group, "all_reduce")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    flat = call.write("tensor", tensor, reads=True)
    address = flat.data_ptr()
    return _reduce(call, Operation.ALL_REDUCE, flat.numel(), tensor, op, address, address)


def all_reduce_into(output: torch.Tensor, tensor: torch.Tensor, op: Any, group: Any) -> None:
    """Reduce a tensor across all ranks into another tensor."""
    call = Call(find(group), False)
    source, target = call.read("input", tensor), call.write("output", output)
    same_type(tensor, output)
    check_size("output", target, source.numel())
    places = source.data_ptr(), target.data_ptr()
    _reduce(call, Operation.ALL_REDUCE, source.numel(), tensor, op, *places)


def _reduce(
    call: Call, operation: Operation, count: int, like: torch.Tensor, op: Any, *places: int
) -> Work | None:
    """Run an all-reduce or a reduce-scatter."""
    kind, reduction = pytorch().reduction(like.dtype, op)
    if reduction is Reduction.PREMUL_SUM:
        factor = factor_of(op)
        return call.run("symmem_premul_sum", operation, count, kind, factor, 0, _AUTO, *places)
    name = _FUNCTIONS[operation]
    return call.run(name, count, kind, reduction, _AUTO, *places)


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
    async_op: Literal[True] = ...,
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
    """Gather the tensors of all ranks, like `torch.distributed.all_gather_into_tensor`."""
    if compiling():
        name = compiled.group_name(group)
        compiled.operators().all_gather_into_tensor_(output_tensor, input_tensor, name)
        return compiled.finished(
            async_op, "symmem.all_gather_into_tensor", [output_tensor], [input_tensor]
        )
    if (g := member(group, "all_gather_into_tensor")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source, target = call.read("input", input_tensor), call.write("output", output_tensor)
    same_type(input_tensor, output_tensor)
    count, size = source.numel(), g.size
    if target.numel() != count * size:
        raise errors.InvalidError(
            f"output has {target.numel()} elements but needs {count * size}: {size} parts of "
            f"{count} elements, the length of this rank's input. To gather parts of different "
            "lengths, use symmem.all_gather_v"
        )
    kind = pytorch().element(source.dtype)
    return call.run("symmem_all_gather", count, kind, _AUTO, source.data_ptr(), target.data_ptr())


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
    async_op: Literal[True] = ...,
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
    """Reduce and keep this rank's part, like `torch.distributed.reduce_scatter_tensor`."""
    if compiling():
        names = compiled.op_name(op), compiled.group_name(group)
        compiled.operators().reduce_scatter_tensor_(output, input, *names)
        return compiled.finished(async_op, "symmem.reduce_scatter_tensor", [output], [input])
    if (g := member(group, "reduce_scatter_tensor")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source, target = call.read("input", input), call.write("output", output)
    same_type(input, output)
    count = target.numel()
    check_size("input", source, count * g.size)
    places = source.data_ptr(), target.data_ptr()
    return _reduce(call, Operation.REDUCE_SCATTER, count, input, op, *places)


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
    async_op: Literal[True] = ...,
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
    """Copy one rank's tensor to all ranks, like `torch.distributed.broadcast`.

    Args:
        tensor: the tensor to send on the root, and to overwrite on the other ranks.
        src: the root's global rank.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
        group_src: the root's rank in the group, as an alternative to src.
    """
    if compiling():
        root = compiled.root_in(group, src, group_src)
        compiled.operators().broadcast_(tensor, root, compiled.group_name(group))
        return compiled.finished(async_op, "symmem.broadcast", [tensor])
    if (g := member(group, "broadcast")) is None:
        return outside(async_op)
    root = g.root(src, group_src)
    call = Call(g, async_op)
    flat = call.write("tensor", tensor, reads=True)
    kind, address = pytorch().element(flat.dtype), flat.data_ptr()
    return call.run("symmem_broadcast", flat.numel(), kind, root, _AUTO, address, address)


def broadcast_into(output: torch.Tensor, tensor: torch.Tensor, root: int, group: Any) -> None:
    """Copy the root's tensor to another tensor on each rank."""
    call = Call(find(group), False)
    source, target = call.read("input", tensor), call.write("output", output)
    kind, places = pytorch().element(source.dtype), (source.data_ptr(), target.data_ptr())
    call.run("symmem_broadcast", source.numel(), kind, root, _AUTO, *places)


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
    async_op: Literal[True] = ...,
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
    """Exchange parts with every rank, like `torch.distributed.all_to_all_single`.

    Parts may have any length, including zero. Some ranks may pass split sizes while others do not,
    as long as each rank sends as much as the receiver expects. Otherwise no tensor is written, and
    all ranks get a `DivergenceError` that names the pair of ranks.

    Args:
        output: receives the parts from all ranks, in rank order.
        input: the parts for all ranks, in rank order.
        output_split_sizes: the number of rows received from each rank; the default is equal parts.
        input_split_sizes: the number of rows sent to each rank; the default is equal parts.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting. In compiled code the `Work` has
            already completed.
        equal_splits: promise that no rank passes split sizes, which makes the exchange faster on
            GPUs. All ranks must pass the same value.
    """
    splits = output_split_sizes, input_split_sizes
    if compiling():
        name = compiled.group_name(group)
        compiled.operators().all_to_all_single_(output, input, *splits, name, equal_splits)
        return compiled.finished(async_op, "symmem.all_to_all_single", [output], [input])
    if (g := member(group, "all_to_all_single")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source, target = call.read("input", input), call.write("output", output)
    same_type(input, output)
    size, rank = g.size, g.rank
    receives, sends = counts_of(size, target, splits[0]), counts_of(size, source, splits[1])
    if sends[rank] != receives[rank]:
        raise errors.InvalidError(
            f"this rank sends {sends[rank]} elements to itself but expects {receives[rank]}"
        )
    kind = pytorch().element(source.dtype)
    places = source.data_ptr(), target.data_ptr()
    if equal_splits:
        if output_split_sizes or input_split_sizes:
            raise errors.InvalidError("equal_splits cannot be combined with split sizes")
        return call.run("symmem_all_to_all", sends[rank], kind, _AUTO, *places)
    # Another rank may have been given split sizes.
    lists = (numbers(sends), None, numbers(receives), None)
    return call.run("symmem_all_to_all_v", size, *lists, kind, *places)


def all_gather_v(
    output: torch.Tensor,
    input: torch.Tensor,
    sizes: Sequence[int],
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Gather parts of different sizes along the first dimension.

    Args:
        output: receives the parts of all ranks in rank order, sum(sizes) rows in total.
        input: this rank's part.
        sizes: the number of rows of each rank's part. If the lists differ between ranks, all ranks
            get a `DivergenceError` that shows them, in elements.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
    """
    if compiling():
        compiled.operators().all_gather_v_(output, input, sizes, compiled.group_name(group))
        return compiled.finished(async_op, "symmem.all_gather_v", [output], [input])
    if (g := member(group, "all_gather_v")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source, target = call.read("input", input), call.write("output", output)
    same_type(input, output)
    counts = counts_of(g.size, target, sizes)
    check_size("input", source, counts[g.rank])
    kind, lists = pytorch().element(source.dtype), (numbers(counts), None)
    places = source.data_ptr(), target.data_ptr()
    return call.run("symmem_all_gather_v", g.size, *lists, kind, *places)


def reduce_scatter_v(
    output: torch.Tensor,
    input: torch.Tensor,
    sizes: Sequence[int],
    op: OpLike = None,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce and keep this rank's part, where parts may have different sizes.

    Args:
        output: receives this rank's part of the result.
        input: the parts for all ranks in rank order, sum(sizes) rows in total.
        sizes: the number of rows of each rank's part, as in `all_gather_v`.
        op: a `torch.distributed.ReduceOp` or its name; the default is the sum.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
    """
    if compiling():
        names = compiled.op_name(op), compiled.group_name(group)
        compiled.operators().reduce_scatter_v_(output, input, sizes, *names)
        return compiled.finished(async_op, "symmem.reduce_scatter_v", [output], [input])
    if (g := member(group, "reduce_scatter_v")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source, target = call.read("input", input), call.write("output", output)
    same_type(input, output)
    counts = counts_of(g.size, source, sizes)
    check_size("output", target, counts[g.rank])
    kind, lists = pytorch().reduction(input.dtype, op), (numbers(counts), None)
    if kind[1] is Reduction.PREMUL_SUM:
        raise errors.UnsupportedError(
            "premul_sum does not support parts of different sizes; scale the input instead"
        )
    places = source.data_ptr(), target.data_ptr()
    return call.run("symmem_reduce_scatter_v", g.size, *lists, *kind, *places)


def same_type(source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise `InvalidError` unless both tensors have the same dtype."""
    if source.dtype is not target.dtype:
        raise errors.InvalidError(f"input has dtype {source.dtype}, but output has {target.dtype}")


def check_size(name: str, tensor: torch.Tensor, want: int) -> None:
    """Raise `InvalidError` unless a tensor has the wanted number of elements."""
    if tensor.numel() != want:
        raise errors.InvalidError(f"{name} has {tensor.numel()} elements but needs {want}")


def counts_of(size: int, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
    """Convert split sizes in rows to numbers of elements."""
    if not splits:
        if tensor.numel() % size:
            raise errors.InvalidError(
                f"{tensor.numel()} elements cannot be divided evenly among {size} ranks"
            )
        return [tensor.numel() // size] * size
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise errors.InvalidError(
            f"split sizes {splits} do not divide {rows} rows among {size} ranks"
        )
    row = tensor.numel() // max(rows, 1)
    return [int(n) * row for n in splits]


def numbers(counts: list[int]) -> Any:
    return (c.c_int64 * len(counts))(*counts)
