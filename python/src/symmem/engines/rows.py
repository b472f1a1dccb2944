"""Collectives with the semantics that vLLM and SGLang expect.

Each function asks the takeover whether symmem should run the call. If not, it returns None on all
ranks, and the engine runs the call.
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


def all_reduce(takeover: Takeover, tensor: torch.Tensor) -> torch.Tensor | None:
    """Sum a tensor over all ranks into a new one."""
    if not takeover.takes("all_reduce", tensor, None):
        return None
    output: torch.Tensor = modules["torch"].empty_like(tensor)
    if compiling():
        output.copy_(tensor)
        collectives.all_reduce(output, group=takeover.group_argument())
    else:
        collectives.all_reduce_into(output, tensor, None, takeover.group)
    return output


def all_gather(takeover: Takeover, tensor: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Gather tensors of the same shape from all ranks along a dimension."""
    if takeover.group is None or tensor.dim() == 0:
        return None
    size = takeover.size
    if not takeover.takes("all_gather", tensor, size * tensor.shape[0]):
        return None
    shape = tuple(tensor.shape)
    output = tensor.new_empty((size * shape[0], *shape[1:]))
    collectives.all_gather_into_tensor(output, tensor.contiguous(), takeover.group_argument())
    dim %= len(shape)
    parts = output.reshape((size, *shape)).movedim(0, dim)
    return parts.reshape((*shape[:dim], size * shape[dim], *shape[dim + 1 :]))


def all_gather_rows(
    takeover: Takeover,
    tensors: list[torch.Tensor],
    sizes: Sequence[int] | None,
    output: torch.Tensor | None = None,
) -> list[torch.Tensor] | None:
    """Gather the rows of several tensors.

    Args:
        takeover: the takeover of the group.
        tensors: the rows of this rank.
        sizes: the number of rows of each rank; the default is the same number on all ranks.
        output: the output if there is only one tensor; the default is a new tensor.
    """
    group = takeover.group
    if group is None or not tensors:
        return None
    counts = _counts(group, tensors[0].shape[0], sizes)
    if counts[group.rank] != tensors[0].shape[0]:
        return None  # The engine's own check raises.
    total = sum(counts)
    alone = len(tensors) == 1 and _even(counts)
    if alone and not takeover.takes("all_gather", tensors[0], total if output is None else output):
        return None
    if not alone and not takeover.takes_rows("all_gather_v", tensors, total):
        return None
    outputs = [output] if output is not None else []
    outputs = outputs or [tensor.new_empty((total, *tensor.shape[1:])) for tensor in tensors]
    if alone:
        collectives.all_gather_into_tensor(outputs[0], tensors[0], group)
    else:
        lists.all_gather_v_list(outputs, tensors, counts, group)
    return outputs


def reduce_scatter_rows(
    takeover: Takeover,
    tensor: torch.Tensor,
    sizes: Sequence[int] | None,
    output: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Sum rows over all ranks, and return this rank's part.

    Args:
        takeover: the takeover of the group.
        tensor: the rows for all ranks, in rank order.
        sizes: the number of rows of each rank; the default is the same number on all ranks.
        output: the output; the default is a new tensor.
    """
    group = takeover.group
    if group is None or tensor.dim() == 0:
        return None
    counts = _counts(group, tensor.shape[0] // group.size, sizes)
    if sum(counts) != tensor.shape[0]:
        return None  # The engine's own check raises.
    mine = counts[group.rank]
    even = _even(counts)
    if even and not takeover.takes("reduce_scatter", tensor, mine if output is None else output):
        return None
    if not even and not takeover.takes_rows("reduce_scatter_v", [tensor], sum(counts)):
        return None
    if output is None:
        output = tensor.new_empty((mine, *tensor.shape[1:]))
    if even:
        collectives.reduce_scatter_tensor(
            output, tensor.contiguous(), None, takeover.group_argument()
        )
    else:
        collectives.reduce_scatter_v(output, tensor, counts, None, group)
    return output


def _counts(group: Group, each: int, sizes: Sequence[int] | None) -> list[int]:
    """Return the number of rows of each rank."""
    return [each] * group.size if sizes is None else list(sizes)


def _even(counts: Sequence[int]) -> bool:
    """Return whether all ranks have the same number of rows."""
    return counts.count(counts[0]) == len(counts)
