"""Inputs of the ranks whose collectives have known results, and their sums."""

from __future__ import annotations

import torch
from harness import SIZE

WORLD = range(SIZE)


def numbers(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor whose values differ between ranks and elements."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 50 + rank + 1).to(dtype).view(shape)


def total(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sum((numbers(r, *shape, dtype=dtype) for r in WORLD), torch.zeros(shape, dtype=dtype))
