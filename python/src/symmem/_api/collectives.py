"""Collectives on tensors, with the arguments of `torch.distributed`.

Each function runs its collective at once, except where torch.compile traces the caller: there it
calls the operator of the same name. The functions of `symmem.functional` have gradients. These have
none: a backward pass that reaches a tensor which they have written raises `UnsupportedError`.
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
    """Combine a tensor over all ranks, in place: `torch.distributed.all_reduce`.

    Args:
        tensor: on the rank's device; symmetric or not, which affects its speed alone. One
            that is not contiguous is copied before and after.
        op: a ReduceOp of torch.distributed, or its name; the sum unless given. `PREMUL_SUM` is
            "premul_sum:0.5" with the factor, or what `_make_nccl_premul_sum` returns. All ranks
            pass the same factor.
        group: as `symmem.group` takes it; the world unless given. A rank that is not in it is
            warned and does nothing.
        async_op: return at once, with a Work to wait for; in compiled code one that is done.
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
    """Combine a tensor over all ranks into another one."""
    call = Call(find(group), False)
    source, target = call.read("input", tensor), call.write("output", output)
    same_type(tensor, output)
    check_size("output", target, source.numel())
    places = source.data_ptr(), target.data_ptr()
    _reduce(call, Operation.ALL_REDUCE, source.numel(), tensor, op, *places)


def _reduce(
    call: Call, operation: Operation, count: int, like: torch.Tensor, op: Any, *places: int
) -> Work | None:
    """Run a reduction of tensors of one type."""
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
    """Gather a tensor of each rank: `torch.distributed.all_gather_into_tensor`."""
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
            f"output has {target.numel()} elements, {count * size} are needed: {size} parts of "
            f"{count}, as long as this rank's; parts of different lengths are gathered by "
            "symmem.all_gather_v"
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
    """Combine and keep this rank's part: `torch.distributed.reduce_scatter_tensor`."""
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
    """Copy one rank's tensor to all: `torch.distributed.broadcast`.

    Args:
        tensor: read on the root, written on the other ranks.
        src: the root, by its number in torch.distributed.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
        group_src: the root, by its number in the group; instead of src.
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
    """Copy the root's tensor to another one of each rank."""
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
    """Send a part to each rank and gather the parts: `torch.distributed.all_to_all_single`.

    Parts may have any length, also none, and splits may be given on some ranks and not on others,
    as long as each rank sends what the receiver expects. Otherwise no tensor is written, and the
    ranks get a `DivergenceError` that names the pair.

    Args:
        output: the parts of all ranks, in their order.
        input: the parts for all ranks, in their order.
        output_split_sizes: how many rows each rank sends; the same number unless given.
        input_split_sizes: how many rows go to each rank; the same number unless given.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for; in compiled code one that is done.
        equal_splits: all ranks pass this, and no split sizes. On GPUs the exchange is faster then.
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
            f"this rank sends itself {sends[rank]} elements, expects {receives[rank]}"
        )
    kind = pytorch().element(source.dtype)
    places = source.data_ptr(), target.data_ptr()
    if equal_splits:
        if output_split_sizes or input_split_sizes:
            raise errors.InvalidError("equal_splits is for calls without split sizes on any rank")
        return call.run("symmem_all_to_all", sends[rank], kind, _AUTO, *places)
    # No rank knows whether others were given splits.
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
        output: the parts of all ranks, in their order: sum(sizes) rows.
        input: this rank's part.
        sizes: the number of rows of each rank, the same list on all ranks. Ranks whose lists
            differ get a `DivergenceError` that shows the lists, in elements.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
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
    """Combine and keep this rank's part, where parts have different sizes.

    Args:
        output: this rank's part.
        input: the parts for all ranks, in their order: sum(sizes) rows.
        sizes: the number of rows of each rank, as for `all_gather_v`.
        op: a ReduceOp of torch.distributed, or its name; the sum unless given.
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
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
            "parts of different sizes have no premul_sum: scale the input"
        )
    places = source.data_ptr(), target.data_ptr()
    return call.run("symmem_reduce_scatter_v", g.size, *lists, *kind, *places)


def same_type(source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise an error unless both tensors have the same type of elements."""
    if source.dtype is not target.dtype:
        raise errors.InvalidError(f"input is of {source.dtype}, output of {target.dtype}")


def check_size(name: str, tensor: torch.Tensor, want: int) -> None:
    """Raise an error unless a tensor has the number of elements that the call needs."""
    if tensor.numel() != want:
        raise errors.InvalidError(f"{name} has {tensor.numel()} elements, {want} are needed")


def counts_of(size: int, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
    """Turn the parts of a tensor, which are counted in rows, into numbers of elements."""
    if not splits:
        if tensor.numel() % size:
            raise errors.InvalidError(f"{tensor.numel()} elements cannot be split for {size} ranks")
        return [tensor.numel() // size] * size
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise errors.InvalidError(f"{splits} does not split {rows} rows for {size} ranks")
    row = tensor.numel() // max(rows, 1)
    return [int(n) * row for n in splits]


def numbers(counts: list[int]) -> Any:
    return (c.c_int64 * len(counts))(*counts)
