"""Tensors and memory in pools, as programs make them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank import memory
from symmem._rank.group import Group
from symmem._rank.memory import Block
from symmem._rank.runtime import CURRENT, Runtime
from symmem._rank.session import find, session
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike


def empty(
    *shape: Any,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Make an uninitialised symmetric tensor, on GPUs and on the host backend.

    It is registered at the end of the next scope of its group, or by the first collective on it.

    Args:
        shape: the lengths, one by one or as a sequence.
        size: the lengths as a sequence, instead.
        dtype: the element type; PyTorch's default type unless given.
        device: the rank's own, which it is unless given; any other is refused.
        group: whose memory; that of the innermost scope, else the world's.
    """
    lengths = _lengths(shape, size)
    runtime, found = _place(group)
    _own(runtime, device)
    return memory.empty(runtime, lengths, dtype, found)


def zeros(
    *shape: Any,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Make a symmetric tensor of zeros, with the arguments of `empty`."""
    return empty(*shape, size=size, dtype=dtype, device=device, group=group).zero_()


def ones(
    *shape: Any,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Make a symmetric tensor of ones, with the arguments of `empty`."""
    return empty(*shape, size=size, dtype=dtype, device=device, group=group).fill_(1)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Make a symmetric tensor of one value: `torch.full`.

    Args:
        size: the lengths, as a sequence.
        fill_value: the value.
        dtype: the element type; that of the value unless given.
        device: as `empty` takes it.
        group: as `empty` takes it.
    """
    kind = dtype or pytorch().module.tensor(fill_value).dtype
    return empty(size=size, dtype=kind, device=device, group=group).fill_(fill_value)


def empty_like(tensor: torch.Tensor, *, group: GroupLike = None) -> torch.Tensor:
    """Make an uninitialised symmetric tensor of another one's shape and type."""
    return empty(tuple(tensor.shape), dtype=tensor.dtype, group=group)


def alloc(nbytes: int, group: GroupLike = None) -> Block:
    """Allocate symmetric bytes on the host backend, without PyTorch."""
    length = _length(nbytes)
    runtime, found = _place(group)
    return memory.allocate(runtime, found, length)


def _place(group: GroupLike) -> tuple[Runtime, Group | None]:
    """Find the rank and the group whose memory is used; no group is that of the innermost scope."""
    if group is None:
        if CURRENT.pools:
            return CURRENT.pools[-1][0], None
        if (runtime := session.anyone).diverted():
            return runtime, None
    found = find(group)
    return found.runtime, found


def _lengths(shape: tuple[Any, ...], size: Any) -> tuple[int, ...]:
    """Read the lengths of a tensor, as PyTorch takes them."""
    if size is not None and shape:
        raise errors.InvalidError("give the lengths or size, one of them")
    if size is not None:
        shape = (size,)
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = tuple(shape[0])
    return tuple(_length(n) for n in shape)


def _length(value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise errors.InvalidError(f"{value!r} is no length: it is not a whole number") from None
    if found < 0:
        raise errors.InvalidError(f"{found} is no length: it is negative")
    return found


def _own(runtime: Runtime, device: Any) -> None:
    """Refuse another device than the rank's."""
    if device is None:
        return
    asked = pytorch().module.device(device)
    kind = "cpu" if runtime.device is None else "cuda"
    if asked.type != kind or asked.index not in (None, runtime.device or 0):
        ours = "the host" if runtime.device is None else f"cuda:{runtime.device}"
        raise errors.InvalidError(f"device {asked}: symmem was opened on {ours}")
