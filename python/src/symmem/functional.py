"""Collectives with gradients, with the names and arguments of `torch.distributed.nn.functional`.

    import symmem.functional as F

    y = F.all_reduce(x)
    y.sum().backward()  # on all ranks

Gradients are those of the sum of the losses of all ranks. The backward pass of a collective is
therefore another collective, which every rank must run. Reductions other than sum, avg and
premul_sum have no gradient, so `backward` raises `UnsupportedError`. Results are new tensors, which
are symmetric inside `symmem.use` and ordinary elsewhere. torch.compile supports the functions.

Each `group` is any argument that `symmem.group` accepts; the default is the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from symmem import errors
from symmem._api import compiled
from symmem._rank.session import session
from symmem._torch.autograd import write_tracked
from symmem._torch.pytorch import modules

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike, OpLike


def all_reduce(tensor: torch.Tensor, op: OpLike = None, group: GroupLike = None) -> torch.Tensor:
    """Return the reduction of a tensor across all ranks."""
    name, _ = _group(group)
    return _tensor(compiled.operators().all_reduce(tensor, compiled.op_name(op), name, False))


def all_gather(tensor: torch.Tensor, group: GroupLike = None) -> tuple[torch.Tensor, ...]:
    """Return the tensors of all ranks, which must have the same shape."""
    name, size = _group(group)
    rows = compiled.operators().all_gather_into_tensor(tensor, name, False)
    return _rows(rows.reshape(size, *tensor.shape), size)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: OpLike = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Reduce the tensors for each rank across all ranks, and return this rank's result.

    Args:
        output: receives the result, and becomes part of the autograd graph.
        input_list: one tensor per rank, each with the shape of `output`.
        op: a reduction; the default is the sum.
        group: see the module's description.
    """
    name, size = _group(group)
    rows = _stack("input_list", input_list, size)
    part = compiled.operators().reduce_scatter_tensor(rows, compiled.op_name(op), name, False)
    return _write(output, part[0])


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: GroupLike = None,
) -> tuple[torch.Tensor, ...]:
    """Send one tensor to each rank, and return the tensors received from all ranks.

    Args:
        output_tensor_list: receive the results, and become part of the autograd graph, except for
            views, such as chunks, that PyTorch does not allow to be modified in place.
        input_tensor_list: one tensor per rank, of any shape.
        group: see the module's description.
    """
    name, size = _group(group)
    _require_parts("output_tensor_list", output_tensor_list, size)
    _require_parts("input_tensor_list", input_tensor_list, size)
    flat = modules["torch"].cat([t.reshape(-1) for t in input_tensor_list])
    sends = [t.numel() for t in input_tensor_list]
    receives = [t.numel() for t in output_tensor_list]
    parts = compiled.operators().all_to_all_single(flat, receives, sends, name, False)
    outputs = zip(output_tensor_list, parts.split(receives), strict=True)
    return tuple(_write(o, part.reshape(o.shape)) for o, part in outputs)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Send some rows of a tensor to each rank, and return the rows received from all ranks.

    Args:
        output: receives the result, and becomes part of the autograd graph.
        input: the rows for all ranks, in rank order.
        output_split_sizes: the number of rows received from each rank; the default is equal parts.
        input_split_sizes: the number of rows sent to each rank; the default is equal parts.
        group: see the module's description.
    """
    name, size = _group(group)
    sends, receives = input_split_sizes or None, output_split_sizes or None
    if receives is None and (sends is not None or output.shape[0] != input.shape[0]):
        if output.shape[0] % size:
            raise errors.InvalidError(
                f"{output.shape[0]} rows cannot be divided evenly among {size} ranks"
            )
        receives = [output.shape[0] // size] * size
    result = compiled.operators().all_to_all_single(input, receives, sends, name, False)
    return _write(output, result)


def broadcast(tensor: torch.Tensor, src: int, group: GroupLike = None) -> torch.Tensor:
    """Return the tensor of the rank whose global rank is src."""
    name, _ = _group(group)
    root = compiled.root_in(group, src, None)
    return _tensor(compiled.operators().broadcast(tensor, root, name, False))


def reduce(
    tensor: torch.Tensor, dst: int, op: OpLike = None, group: GroupLike = None
) -> torch.Tensor:
    """Return the reduction of a tensor on rank dst, and zeros on the other ranks."""
    name, _ = _group(group)
    root = compiled.root_in(group, dst, None)
    return _tensor(compiled.operators().reduce(tensor, compiled.op_name(op), root, name, False))


def gather(tensor: torch.Tensor, dst: int = 0, group: GroupLike = None) -> tuple[torch.Tensor, ...]:
    """Return the tensors of all ranks on rank dst, and zeros on the other ranks."""
    name, size = _group(group)
    root = compiled.root_in(group, dst, None)
    return _rows(compiled.operators().gather(tensor, root, name, False), size)


def scatter(tensors: Sequence[torch.Tensor], src: int = 0, group: GroupLike = None) -> torch.Tensor:
    """Return the tensor that rank src has passed for this rank.

    Args:
        tensors: one tensor per rank, all with the same shape. On ranks other than src, only the
            shape is used, and the gradients are 0.
        src: the sender's global rank.
        group: see the module's description.
    """
    name, size = _group(group)
    root = compiled.root_in(group, src, None)
    rows = _stack("tensors", tensors, size)
    return _tensor(compiled.operators().scatter(rows, root, name, False))


def _group(group: GroupLike) -> tuple[str, int]:
    """Return the name by which operators find a group, and the number of its ranks."""
    name = compiled.group_name(group)
    return name, session.place(name).size


def _tensor(result: object) -> torch.Tensor:
    return cast("torch.Tensor", result)


def _rows(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Return the rows of a tensor. Unlike the results of unbind, they can be modified in place."""
    return tuple(tensor[i] for i in range(count))


def _stack(name: str, tensors: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """Return a tensor whose rows are the tensors, one for each rank."""
    _require_parts(name, tensors, size)
    if any(t.shape != tensors[0].shape for t in tensors):
        shapes = [tuple(t.shape) for t in tensors]
        raise errors.InvalidError(f"{name} has tensors of different shapes: {shapes}")
    return _tensor(modules["torch"].stack(list(tensors)))


def _require_parts(name: str, tensors: Sequence[torch.Tensor], size: int) -> None:
    if len(tensors) != size:
        raise errors.InvalidError(
            f"{name} has {len(tensors)} tensors but needs {size}, one for each rank"
        )


def _write(output: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy the result to the caller's tensor, and return a tensor that autograd tracks."""
    if output.shape != result.shape:
        raise errors.InvalidError(
            f"output has shape {tuple(output.shape)}, but the result has {tuple(result.shape)}"
        )
    return _tensor(write_tracked(output, result))
