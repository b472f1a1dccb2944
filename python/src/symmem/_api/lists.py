"""Collectives on lists of tensors."""

from __future__ import annotations

import ctypes as c
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, member, outside
from symmem._api.collectives import check_size, counts_of, numbers, same_type
from symmem._c.arguments import Arguments
from symmem._c.constants import Path
from symmem._c.terms import Operation, Reduction
from symmem._rank.group import Group
from symmem._rank.work import Work
from symmem._torch.pytorch import compiling, factor_of, modules, pytorch
from symmem._torch.tensors import require_memory

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike, OpLike


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Gather the tensors of all ranks into a list, like `torch.distributed.all_gather`.

    `all_gather_into_tensor` and `all_gather_v` avoid a copy.

    Args:
        tensor_list: receives the tensor of each rank. The sizes must be the same on all ranks.
        tensor: this rank's tensor.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` instead of waiting. On the host backend, calls that copy their
            outputs wait nevertheless.
    """
    if compiling():
        _check_types("tensor_list", tensor_list, tensor)
        counts, source = [t.numel() for t in tensor_list], tensor.detach().reshape(-1)
        name, found = compiled.group_name(group), compiled.operators()
        if _equal(counts):  # The operator must be that of eager code, whose calls it meets.
            check_size("tensor", tensor, counts[0])
            flat = found.all_gather_into_tensor(source, name, False)
        else:
            flat = found.all_gather_v(source, counts, name, False)
        return _traced("all_gather", async_op, tensor_list, flat, [tensor])
    if (g := member(group, "all_gather")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    source = call.read("tensor", tensor)
    counts = _counts(g, "tensor_list", tensor_list, tensor)
    check_size("tensor", tensor, counts[g.rank])
    target = call.write_parts("tensor_list", tensor_list)
    places = source.data_ptr(), target.data_ptr()
    kind, counts = pytorch().element(source.dtype), _real(tensor, counts)
    if _equal(counts):
        return call.run("symmem_all_gather", counts[0], kind, Path.DEFAULT, *places)
    return call.run("symmem_all_gather_v", g.size, numbers(counts), None, kind, *places)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: OpLike = None,
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce a list and keep this rank's tensor, like `torch.distributed.reduce_scatter`.

    `reduce_scatter_tensor` and `reduce_scatter_v` avoid a copy.

    Args:
        output: receives the reduction, over all ranks, of the tensors for this rank.
        input_list: a tensor for each rank. The sizes must be the same on all ranks.
        op: a `torch.distributed.ReduceOp` or its name; the default is the sum. premul_sum needs
            tensors of equal size.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` instead of waiting. On the host backend, calls that copy their
            outputs wait nevertheless.
    """
    if compiling():
        _check_types("input_list", input_list, output)
        counts = [t.numel() for t in input_list]
        names = compiled.op_name(op), compiled.group_name(group)
        flat, found = _flat(input_list), compiled.operators()
        if _equal(counts):
            check_size("output", output, counts[0])
            result = found.reduce_scatter_tensor(flat, *names, False)
        else:
            result = found.reduce_scatter_v(flat, counts, *names, False)
        return _traced("reduce_scatter", async_op, [output], result, input_list)
    if (g := member(group, "reduce_scatter")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    target = call.write("output", output)
    counts = _counts(g, "input_list", input_list, output)
    check_size("output", output, counts[g.rank])
    source = call.read_parts("input_list", input_list)
    places = source.data_ptr(), target.data_ptr()
    kind, reduction = pytorch().reduction(output.dtype, op)
    counts = _real(output, counts)
    if not _equal(counts):
        if reduction is Reduction.PREMUL_SUM:
            raise errors.UnsupportedError(
                "premul_sum does not support parts of different sizes; scale the input instead"
            )
        arguments = numbers(counts), None, kind, reduction, *places
        return call.run("symmem_reduce_scatter_v", g.size, *arguments)
    path = int(Path.DEFAULT)
    if reduction is Reduction.PREMUL_SUM:
        first = Operation.REDUCE_SCATTER, counts[0], kind, factor_of(op), 0
        return call.run("symmem_premul_sum", *first, path, *places)
    return call.run("symmem_reduce_scatter", counts[0], kind, reduction, path, *places)


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Send each rank a tensor of a list, like `torch.distributed.all_to_all`.

    `all_to_all_single` avoids two copies.

    Args:
        output_tensor_list: receives a tensor from each rank.
        input_tensor_list: the tensor for each rank. A tensor may be empty, and must have the size
            that the receiver expects.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` instead of waiting. On the host backend, calls that copy their
            outputs wait nevertheless.
    """
    outputs, inputs = output_tensor_list, input_tensor_list
    if compiling():
        _check_types("output_tensor_list", outputs, outputs[0])
        _check_types("input_tensor_list", inputs, outputs[0])
        receives, sends = ([t.numel() for t in tensors] for tensors in (outputs, inputs))
        flat = compiled.operators().all_to_all_single(
            _flat(inputs), receives, sends, compiled.group_name(group), False
        )
        return _traced("all_to_all", async_op, outputs, flat, inputs)
    if (g := member(group, "all_to_all")) is None:
        return outside(async_op)
    receives = _counts(g, "output_tensor_list", outputs)
    sends = _counts(g, "input_tensor_list", inputs, outputs[0])
    check_size("this rank's tensor in output_tensor_list", outputs[g.rank], sends[g.rank])
    call = Call(g, async_op)
    source = call.read_parts("input_tensor_list", inputs)
    target = call.write_parts("output_tensor_list", outputs)
    lists = [numbers(_real(source, counts)) for counts in (sends, receives)]
    dtype = source.dtype.to_real() if source.dtype.is_complex else source.dtype
    last = pytorch().element(dtype), source.data_ptr(), target.data_ptr()
    return call.run("symmem_all_to_all_v", g.size, lists[0], None, lists[1], None, *last)


def _counts(
    group: Group, name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor | None = None
) -> list[int]:
    """Return the sizes of a list's tensors.

    Raise `InvalidError` unless there is one for each rank, of the dtype of another tensor.
    """
    if len(tensors) != group.size:
        raise errors.InvalidError(
            f"{name} has {len(tensors)} tensors; want {group.size}, one for each rank"
        )
    for each in tensors:
        require_memory(f"a tensor of {name}", each, group.runtime.device)
    _check_types(name, tensors, tensors[0] if like is None else like)
    return [tensor.numel() for tensor in tensors]


def _check_types(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    """Raise `InvalidError` unless tensors have the dtype of another one."""
    for each in tensors:
        if each.dtype is not like.dtype:
            raise errors.InvalidError(
                f"a tensor of {name} has dtype {each.dtype}; want {like.dtype}"
            )


def _equal(counts: list[int]) -> bool:
    """Return whether all numbers are the same."""
    return counts.count(counts[0]) == len(counts) if counts else True


def _real(tensor: torch.Tensor, counts: list[int]) -> list[int]:
    """Convert numbers of elements to those of the real numbers that are moved."""
    return [2 * count for count in counts] if tensor.is_complex() else counts


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors in compiled code."""
    flat: torch.Tensor = modules["torch"].cat([t.detach().reshape(-1) for t in tensors])
    return flat


def _traced(
    name: str, async_op: bool, outputs: list[torch.Tensor], flat: torch.Tensor, inputs: Any
) -> Work | None:
    """Copy consecutive parts of a result to the outputs of a compiled call."""
    parts = modules["torch"].split(flat.reshape(-1), [output.numel() for output in outputs])
    for output, part in zip(outputs, parts, strict=True):
        output.detach().copy_(part.view(output.shape))
    return compiled.finished(async_op, f"symmem.{name}", outputs, inputs)


def all_gather_v_list(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    sizes: Sequence[int],
    group: GroupLike = None,
    async_op: bool = False,
) -> Work | None:
    """Gather several tensors, which may differ in dtype and shape, in one call.

    On GPUs whose kernels can access each other's memory, one launch gathers up to eight tensors.

    Args:
        outputs: for each tensor, receives the parts of all ranks in rank order, sum(sizes) rows.
        inputs: this rank's part of each tensor.
        sizes: the number of rows that each rank contributes to each tensor. If the lists differ
            between ranks, all ranks get a `DivergenceError`.
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
    """
    if len(outputs) != len(inputs) or not inputs:
        raise errors.InvalidError(
            f"got {len(inputs)} inputs and {len(outputs)} outputs; want at least one input, and an "
            "output for each"
        )
    if compiling():
        name = compiled.group_name(group)
        compiled.operators().all_gather_v_list_(list(outputs), list(inputs), sizes, name)
        results = list(outputs), list(inputs)
        return compiled.finished(async_op, "symmem.all_gather_v_list", *results)
    if (g := member(group, "all_gather_v_list")) is None:
        return outside(async_op)
    call = Call(g, async_op)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for output, input in zip(outputs, inputs, strict=True):
        pairs.append((call.read("input", input), call.write("output", output)))
        same_type(input, output)
    key = g.handle, *sizes, *[(s.shape, s.dtype, t.shape) for s, t in pairs]
    template = _templates.get(key)
    if template is None:
        template = _template(g, pairs, sizes)
        if len(_templates) >= MAX_TEMPLATES:
            _templates.clear()
        _templates[key] = template
    calls = type(template).from_buffer_copy(template)
    place = Arguments.send.offset
    for source, target in pairs:
        _ADDRESSES.pack_into(calls, place, source.data_ptr(), target.data_ptr())
        place += SIZE
    _ADDRESS.pack_into(calls, Arguments.stream.offset, call.stream)
    _ADDRESS.pack_into(calls, Arguments.more.offset, c.addressof(calls) + SIZE)
    return call.queue("symmem_call", calls)


SIZE = c.sizeof(Arguments)
_ADDRESS, _ADDRESSES = struct.Struct("@Q"), struct.Struct("@QQ")

MAX_TEMPLATES = 1024
_templates: dict[tuple[object, ...], c.Array[Arguments]] = {}
"""The arguments of earlier lists, without addresses, keyed by the group and the shapes."""


def _template(
    group: Group, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], sizes: Sequence[int]
) -> c.Array[Arguments]:
    """Check the sizes of a list, and return its arguments without addresses."""
    calls = (Arguments * len(pairs))()
    for one, (source, target) in zip(calls, pairs, strict=True):
        counts = counts_of(group.size, target, sizes)
        check_size("input", source, counts[group.rank])
        kind = pytorch().element(source.dtype)
        one.size, one.operation, one.type = SIZE, Operation.ALL_GATHER_V, kind
        one.ranks, one.recv_counts = group.size, numbers(counts)
    calls[0].group, calls[0].more_count = group.handle, len(calls) - 1
    return calls
