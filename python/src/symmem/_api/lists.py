"""Collectives on several tensors in one call."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, member, outside
from symmem._api.collectives import check_size, counts_of, numbers, same_type
from symmem._c.arguments import Arguments
from symmem._c.terms import Operation
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
    calls = (Arguments * len(inputs))()
    for one, output, input in zip(calls, outputs, inputs, strict=True):
        source, target = call.read("input", input), call.write("output", output)
        same_type(input, output)
        counts = counts_of(g.size, target, sizes)
        check_size("input", source, counts[g.rank])
        one.size, one.operation = c.sizeof(Arguments), Operation.ALL_GATHER_V
        one.type, one.ranks, one.recv_counts = (
            pytorch().element(source.dtype),
            g.size,
            numbers(counts),
        )
        one.send, one.recv = source.data_ptr(), target.data_ptr()
    calls[0].group, calls[0].stream = g.handle, call.stream
    calls[0].more_count = len(calls) - 1
    if len(calls) > 1:
        calls[0].more = c.pointer(calls[1])
    return call.queue("symmem_call", c.byref(calls[0]))
