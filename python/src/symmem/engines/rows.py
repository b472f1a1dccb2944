"""Collectives on rows of tensors, with the results that vLLM and SGLang expect of theirs.

Each function asks the takeover first. It returns None, on all ranks, if the call is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symmem._api import collectives, lists
from symmem._torch.pytorch import compiling, modules

if TYPE_CHECKING:
    import torch

    from symmem._rank.group import Group
    from symmem.engines.takeover import Takeover


def all_reduce(made: Takeover, tensor: torch.Tensor) -> torch.Tensor | None:
    """Sum a tensor over all ranks into a new one."""
    if not made.takes("all_reduce", tensor, None):
        return None
    output: torch.Tensor = modules["torch"].empty_like(tensor)
    if compiling():
        output.copy_(tensor)
        collectives.all_reduce(output, group=made.which())
    else:
        collectives.all_reduce_into(output, tensor, None, made.group)
    return output


def all_gather(made: Takeover, tensor: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Gather a tensor of each rank, all of the same shape, along a dimension."""
    if made.group is None or tensor.dim() == 0:
        return None
    size = made.size
    if not made.takes("all_gather", tensor, size * tensor.shape[0]):
        return None
    shape = tuple(tensor.shape)
    output = tensor.new_empty((size * shape[0], *shape[1:]))
    collectives.all_gather_into_tensor(output, tensor.contiguous(), made.which())
    dim %= len(shape)
    parts = output.reshape((size, *shape)).movedim(0, dim)
    return parts.reshape((*shape[:dim], size * shape[dim], *shape[dim + 1 :]))


def all_gather_rows(
    made: Takeover,
    tensors: list[torch.Tensor],
    sizes: Sequence[int] | None,
    output: torch.Tensor | None = None,
) -> list[torch.Tensor] | None:
    """Gather the rows of several tensors.

    Args:
        made: the takeover of the group.
        tensors: the rows of this rank.
        sizes: how many rows each rank has in each tensor; the same number unless given.
        output: where the rows of a single tensor go; a new tensor unless given.
    """
    group = made.group
    if group is None or not tensors:
        return None
    counts = _counts(group, tensors[0].shape[0], sizes)
    if counts[group.rank] != tensors[0].shape[0]:
        return None  # The engine's own check raises.
    total = sum(counts)
    alone = len(tensors) == 1 and _even(counts)
    if alone and not made.takes("all_gather", tensors[0], total if output is None else output):
        return None
    if not alone and not all(made.takes_rows("all_gather_v", t, total) for t in tensors):
        return None
    outputs = [output] if output is not None else []
    outputs = outputs or [tensor.new_empty((total, *tensor.shape[1:])) for tensor in tensors]
    if alone:
        collectives.all_gather_into_tensor(outputs[0], tensors[0], group)
    else:
        lists.all_gather_v_list(outputs, tensors, counts, group)
    return outputs


def reduce_scatter_rows(
    made: Takeover,
    tensor: torch.Tensor,
    sizes: Sequence[int] | None,
    output: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Sum rows over all ranks, and keep this rank's.

    Args:
        made: the takeover of the group.
        tensor: the rows for all ranks, in the order of ranks.
        sizes: how many rows each rank keeps; the same number unless given.
        output: where this rank's rows go; a new tensor unless given.
    """
    group = made.group
    if group is None or tensor.dim() == 0:
        return None
    counts = _counts(group, tensor.shape[0] // group.size, sizes)
    if sum(counts) != tensor.shape[0]:
        return None  # The engine's own check raises.
    mine = counts[group.rank]
    even = _even(counts)
    if even and not made.takes("reduce_scatter", tensor, mine if output is None else output):
        return None
    if not even and not made.takes_rows("reduce_scatter_v", tensor, sum(counts)):
        return None
    if output is None:
        output = tensor.new_empty((mine, *tensor.shape[1:]))
    if even:
        collectives.reduce_scatter_tensor(output, tensor.contiguous(), None, made.which())
    else:
        collectives.reduce_scatter_v(output, tensor, counts, None, group)
    return output


def _counts(group: Group, each: int, sizes: Sequence[int] | None) -> list[int]:
    """List how many rows each rank has."""
    return [each] * group.size if sizes is None else list(sizes)


def _even(counts: Sequence[int]) -> bool:
    """Report whether all ranks have the same number of rows."""
    return counts.count(counts[0]) == len(counts)
