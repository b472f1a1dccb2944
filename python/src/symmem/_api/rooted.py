"""Reduce, gather and scatter, with the arguments of `torch.distributed`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, member, outside
from symmem._api.collectives import check_size, same_type
from symmem._c.constants import Path
from symmem._c.terms import Operation, Reduction
from symmem._rank.session import find
from symmem._rank.work import Work
from symmem._torch.pytorch import compiling, factor_of, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike, OpLike
    from symmem._rank.group import Group


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: OpLike = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce a tensor across all ranks into one rank's tensor, like `torch.distributed.reduce`.

    The tensors of the other ranks do not change.
    """
    if compiling():
        root = compiled.root_in(group, dst, group_dst)
        names = compiled.op_name(op), root, compiled.group_name(group)
        compiled.operators().reduce_(tensor, *names)
        return compiled.finished(async_op, "symmem.reduce", [tensor])
    if (g := member(group, "reduce")) is None:
        return outside(async_op)
    root = g.root(dst, group_dst, "dst")
    call = Call(g, async_op)
    flat = call.write("tensor", tensor, reads=True)
    address = flat.data_ptr()
    return _reduce(call, flat.numel(), tensor, op, root, address, address)


def reduce_into(output: torch.Tensor, tensor: torch.Tensor, op: Any, root: int, group: Any) -> None:
    """Reduce a tensor into another tensor on the root, and write zeros on the other ranks."""
    call = Call(find(group), False)
    source, target = call.read("input", tensor), call.write("output", output)
    _reduce(call, source.numel(), tensor, op, root, source.data_ptr(), target.data_ptr())
    if call.group.rank != root:
        output.zero_()


def _reduce(
    call: Call, count: int, like: torch.Tensor, op: Any, root: int, *places: int
) -> Work | None:
    kind, reduction = pytorch().reduction(like.dtype, op)
    if reduction is Reduction.PREMUL_SUM:
        factor = factor_of(op)
        arguments = Operation.REDUCE, count, kind, factor, root, int(Path.DEFAULT), *places
        return call.run("symmem_premul_sum", *arguments)
    return call.run("symmem_reduce", count, kind, reduction, root, int(Path.DEFAULT), *places)


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Gather the tensors of all ranks into a list on one rank, like `torch.distributed.gather`.

    Args:
        tensor: must have the same shape on all ranks.
        gather_list: one tensor per rank on the receiving rank; None on the others.
        dst: the global rank of the receiver; the default is 0.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
        group_dst: the receiver's rank in the group, as an alternative to dst.
    """
    dst = 0 if dst is None and group_dst is None else dst
    if compiling():
        root, parts = compiled.root_in(group, dst, group_dst), gather_list or []
        name = compiled.group_name(group)
        rows = compiled.operators().gather(tensor.detach(), root, name, False)
        for part, row in zip(parts, rows, strict=False):
            part.detach().copy_(row)
        return compiled.finished(async_op, "symmem.gather", parts, [tensor])
    if (g := member(group, "gather")) is None:
        return outside(async_op)
    root = g.root(dst, group_dst, "dst")
    call = Call(g, async_op)
    source = call.read("tensor", tensor)
    target = 0
    if _parts_of_root(g, root, "gather_list", gather_list, tensor):
        target = call.write_parts("gather_list", gather_list or []).data_ptr()
    kind, count = pytorch().element(source.dtype), source.numel()
    return call.run("symmem_gather", count, kind, root, source.data_ptr(), target)


def gather_into(output: torch.Tensor, tensor: torch.Tensor, root: int, group: Any) -> None:
    """Gather the tensors of all ranks as rows of the root's output; write zeros on other ranks."""
    call = Call(find(group), False)
    source = call.read("input", tensor)
    target = call.write("output", output)
    if call.group.rank != root:
        output.zero_()
    kind, places = pytorch().element(source.dtype), (source.data_ptr(), target.data_ptr())
    call.run("symmem_gather", source.numel(), kind, root, *places)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send one rank's list of tensors, one to each rank, like `torch.distributed.scatter`.

    Args:
        tensor: receives this rank's tensor. It must have the same shape on all ranks.
        scatter_list: one tensor per rank on the sending rank; None on the others.
        src: the global rank of the sender; the default is 0.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
        group_src: the sender's rank in the group, as an alternative to src.
    """
    src = 0 if src is None and group_src is None else src
    if compiling():
        root, parts = compiled.root_in(group, src, group_src), scatter_list or []
        compiled.operators().scatter_(tensor, parts, root, compiled.group_name(group))
        return compiled.finished(async_op, "symmem.scatter", [tensor], parts)
    if (g := member(group, "scatter")) is None:
        return outside(async_op)
    root = g.root(src, group_src)
    call = Call(g, async_op)
    target = call.write("tensor", tensor)
    source = 0
    if _parts_of_root(g, root, "scatter_list", scatter_list, tensor):
        source = call.read_parts("scatter_list", scatter_list or []).data_ptr()
    kind, count = pytorch().element(target.dtype), target.numel()
    return call.run("symmem_scatter", count, kind, root, source, target.data_ptr())


def scatter_into(output: torch.Tensor, rows: torch.Tensor, root: int, group: Any) -> None:
    """Send one row of the root's tensor to each rank."""
    call = Call(find(group), False)
    source, target = call.read("input", rows), call.write("output", output)
    kind, places = pytorch().element(target.dtype), (source.data_ptr(), target.data_ptr())
    call.run("symmem_scatter", target.numel(), kind, root, *places)


def _parts_of_root(
    group: Group, root: int, name: str, parts: list[torch.Tensor] | None, part: torch.Tensor
) -> bool:
    """Check the list of a gather or scatter, and return whether this rank is the root."""
    if group.rank != root:
        if parts:
            raise errors.InvalidError(
                f"only rank {root} of the group may pass {name}; pass None on other ranks"
            )
        return False
    if not parts or len(parts) != group.size:
        raise errors.InvalidError(f"{name} must have {group.size} tensors, one for each rank")
    for each in parts:
        same_type(part, each)
        check_size(f"a tensor of {name}", each, part.numel())
    return True
