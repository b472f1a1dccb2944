"""Symmetric tensors that an engine uses again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symmem._rank import memory
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

    from symmem._rank.group import Group


class Scratch:
    """Keeps symmetric tensors of a group by their use; the group's ranks ask for the same ones.

    A tensor that is too small is replaced by one of twice as many rows. It stays allocated, since
    a captured graph may use it.
    """

    def __init__(self, group: Group):
        self._group = group
        self._made: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def tensor(
        self, use: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Return the first rows of the tensor of a use. Collective where it is made.

        Returns None, on all ranks, if it would have to be made while CUDA captures a graph.
        """
        made = self._made.setdefault((*use, shape[1:], dtype), [])
        rows = made[-1].shape[0] if made else 0
        if rows < shape[0]:
            if self._group.runtime.device is not None and pytorch().is_capturing():
                return None
            wanted = (max(shape[0], 2 * rows), *shape[1:])
            with self._group.scope:
                made.append(memory.empty(self._group.runtime, wanted, dtype, self._group))
        return made[-1][: shape[0]]
