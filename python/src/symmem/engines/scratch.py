"""Symmetric tensors that an engine reuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symmem._rank import memory
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

    from symmem._rank.group import Group


class Scratch:
    """Caches symmetric tensors of a group by their use. All ranks must request the same tensors.

    A tensor that is too small is replaced by one with at least twice as many rows. The old tensor
    stays allocated, because a captured graph may use it.
    """

    def __init__(self, group: Group):
        self._group = group
        self._tensors: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def tensor(
        self, use: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Return the first rows of the tensor for a use. Collective if it must be allocated.

        If it would have to be allocated while CUDA captures a graph, return None on all ranks.
        """
        tensors = self._tensors.setdefault((*use, shape[1:], dtype), [])
        rows = tensors[-1].shape[0] if tensors else 0
        if rows < shape[0]:
            if self._group.runtime.device is not None and pytorch().is_capturing():
                return None
            wanted = (max(shape[0], 2 * rows), *shape[1:])
            with self._group.scope:
                tensors.append(memory.empty(self._group.runtime, wanted, dtype, self._group))
        return tensors[-1][: shape[0]]
