"""Collectives on tensors, with the arguments of `torch.distributed`."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api.call import Call, checked, member, nothing
from symmem._c.constants import Path
from symmem._rank.group import Group
from symmem._rank.session import find, session
from symmem._rank.work import Work
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

_AUTO = int(Path.DEFAULT)


def all_reduce(
    tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
) -> Work | None:
    """Combine a tensor over all ranks, in place."""
    g = member(group, "all_reduce")
    if g is None:
        return nothing() if async_op else None
    call = Call(g, async_op)
    flat = call.write("tensor", tensor, reads=True)
    kind, reduction = pytorch().reduction(tensor.dtype, op)
    address = flat.data_ptr()
    return call.run("symmem_all_reduce", flat.numel(), kind, reduction, _AUTO, address, address)


def all_reduce_out(output: torch.Tensor, tensor: torch.Tensor, op: Any, group: Any) -> None:
    """Combine a tensor over all ranks into another one."""
    call = Call(find(group), False)
    source, target = call.read("input", tensor), call.write("output", output)
    _same(tensor, output)
    _sized("output", target, source.numel())
    kind, reduction = pytorch().reduction(tensor.dtype, op)
    call.run(
        "symmem_all_reduce",
        source.numel(),
        kind,
        reduction,
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: Any = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Combine rows, add them to a residual and normalize it, in two kernels."""
    g = find(group)
    output = pytorch().module.empty_like(tensor) if out is None else out
    named = {"tensor": tensor, "residual": residual, "weight": weight, "out": output}
    bfloat16 = pytorch().module.bfloat16
    call = Call(g, False)
    for name, each in named.items():
        if not checked(g, name, each):
            raise errors.InvalidError(f"{name} is not contiguous: pass {name}.contiguous()")
        call.read(name, each)
        if each.dtype is not bfloat16:
            raise errors.InvalidError(f"{name} is of {each.dtype}: only bfloat16 can be normalized")
    hidden = weight.numel()
    if tensor.dim() == 0 or tensor.shape[-1] != hidden or weight.dim() != 1:
        raise errors.InvalidError(
            f"weight is {tuple(weight.shape)}, which are no rows of {tuple(tensor.shape)}"
        )
    for name in ("residual", "out"):
        if named[name].shape != tensor.shape:
            raise errors.InvalidError(
                f"{name} is {tuple(named[name].shape)}, tensor is {tuple(tensor.shape)}"
            )
    call.run(
        "symmem_all_reduce_rms_norm",
        tensor.numel() // max(hidden, 1),
        hidden,
        eps,
        tensor.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
    )
    return output


def all_gather_into_tensor(
    output: torch.Tensor, tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Gather a tensor of each rank into one."""
    g = member(group, "all_gather_into_tensor")
    if g is None:
        return nothing() if async_op else None
    call = Call(g, async_op)
    source, target = call.read("input", tensor), call.write("output", output)
    _same(tensor, output)
    count = source.numel()
    if target.numel() != count * g.size:
        raise errors.InvalidError(
            f"output has {target.numel()} elements, {count * g.size} are needed: {g.size} parts of "
            f"{count}, as long as this rank's; parts of different lengths are gathered by "
            "symmem.all_to_all_single with split sizes"
        )
    return call.run(
        "symmem_all_gather",
        count,
        pytorch().element(source.dtype),
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def reduce_scatter_tensor(
    output: torch.Tensor,
    tensor: torch.Tensor,
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Combine a tensor over all ranks and keep this rank's part."""
    g = member(group, "reduce_scatter_tensor")
    if g is None:
        return nothing() if async_op else None
    call = Call(g, async_op)
    source, target = call.read("input", tensor), call.write("output", output)
    _same(tensor, output)
    count = target.numel()
    _sized("input", source, count * g.size)
    kind, reduction = pytorch().reduction(tensor.dtype, op)
    return call.run(
        "symmem_reduce_scatter",
        count,
        kind,
        reduction,
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy a tensor of one rank to all."""
    g = member(group, "broadcast")
    if g is None:
        return nothing() if async_op else None
    root = g.root(src, group_src)
    call = Call(g, async_op)
    flat = call.write("tensor", tensor, reads=True)
    address = flat.data_ptr()
    return call.run(
        "symmem_broadcast",
        flat.numel(),
        pytorch().element(flat.dtype),
        root,
        _AUTO,
        address,
        address,
    )


def all_to_all_single(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    equal_splits: bool = False,
) -> Work | None:
    """Send a part of a tensor to each rank, and gather the parts of all."""
    g = member(group, "all_to_all_single")
    if g is None:
        return nothing() if async_op else None
    call = Call(g, async_op)
    source, target = call.read("input", tensor), call.write("output", output)
    _same(tensor, output)
    sends = _counts(g, source, input_split_sizes)
    receives = _counts(g, target, output_split_sizes)
    if sends[g.rank] != receives[g.rank]:
        raise errors.InvalidError(
            f"this rank sends itself {sends[g.rank]} elements, expects {receives[g.rank]}"
        )
    kind = pytorch().element(source.dtype)
    places = source.data_ptr(), target.data_ptr()
    if equal_splits:
        if output_split_sizes or input_split_sizes:
            raise errors.InvalidError("equal_splits is for calls without split sizes on any rank")
        return call.run("symmem_all_to_all", sends[g.rank], kind, _AUTO, *places)
    # No rank knows whether others were given splits.
    lists = (_numbers(sends), None, _numbers(receives), None)
    return call.run("symmem_all_to_all_v", g.size, *lists, kind, *places)


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> Work | None:
    """Wait on the current stream until all ranks have come; on the host backend, here."""
    g = member(group, "barrier")
    if g is None:
        return nothing() if async_op else None
    device = g.runtime.device
    if device_ids is not None and list(device_ids) != [device]:
        ours = "the host" if device is None else f"device {device}"
        raise errors.InvalidError(f"device_ids {device_ids!r}: symmem was opened on {ours}")
    return Call(g, async_op).run("symmem_barrier")


def synchronize() -> None:
    """Wait for the current stream; on the host backend for those of all groups."""
    world = session.groups.world
    runtime = world.runtime
    runtime.require()
    if runtime.device is not None:
        runtime.library.call("symmem_stream_synchronize", runtime.stream())
        return
    failed = None
    # Calls without async_op have waited.
    for stream in {world.lanes.main, *runtime.streams.busy}:
        try:
            runtime.streams.synchronize(stream)
        except errors.SymmemError as e:
            failed = failed or e
    if failed is not None:
        raise failed


def _same(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.dtype is not target.dtype:
        raise errors.InvalidError(f"input is of {source.dtype}, output of {target.dtype}")


def _sized(name: str, tensor: torch.Tensor, want: int) -> None:
    if tensor.numel() != want:
        raise errors.InvalidError(f"{name} has {tensor.numel()} elements, {want} are needed")


def _counts(group: Group, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
    """Turn the parts of a tensor, which are counted in rows, into numbers of elements."""
    if not splits:
        if tensor.numel() % group.size:
            raise errors.InvalidError(
                f"{tensor.numel()} elements cannot be split for {group.size} ranks"
            )
        return [tensor.numel() // group.size] * group.size
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(splits) != group.size or sum(splits) != rows or min(splits) < 0:
        raise errors.InvalidError(f"{splits} does not split {rows} rows for {group.size} ranks")
    row = tensor.numel() // max(rows, 1)
    return [int(n) * row for n in splits]


def _numbers(counts: list[int]) -> Any:
    return (c.c_int64 * len(counts))(*counts)
