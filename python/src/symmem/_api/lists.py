"""Collectives on several tensors in one call."""

from __future__ import annotations

import ctypes as c
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, member, outside
from symmem._api.collectives import check_size, counts_of, numbers, same_type
from symmem._c.arguments import Arguments
from symmem._c.terms import Operation
from symmem._rank.group import Group
from symmem._rank.work import Work
from symmem._torch.pytorch import compiling, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike


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
