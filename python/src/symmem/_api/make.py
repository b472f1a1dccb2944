"""Functions that allocate symmetric tensors and memory."""

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
    """Return an uninitialized symmetric tensor, on a GPU or on the host backend.

    The tensor is registered at the end of the group's next scope, or by the first collective on it.

    Args:
        shape: the shape, as separate integers or as a sequence.
        size: the shape as a sequence, as an alternative to shape.
        dtype: the element type; the default is PyTorch's default type.
        device: must be the rank's device, which is the default.
        group: the group whose memory is used; the default is the group of the innermost scope, or
            the world outside of scopes.
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
    """Return a symmetric tensor of zeros. The arguments are those of `empty`."""
    return empty(*shape, size=size, dtype=dtype, device=device, group=group).zero_()


def ones(
    *shape: Any,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Return a symmetric tensor of ones. The arguments are those of `empty`."""
    return empty(*shape, size=size, dtype=dtype, device=device, group=group).fill_(1)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: GroupLike = None,
) -> torch.Tensor:
    """Return a symmetric tensor filled with a value, like `torch.full`.

    Args:
        size: the shape, as a sequence.
        fill_value: the value.
        dtype: the element type; the default is that of the value.
        device: as in `empty`.
        group: as in `empty`.
    """
    kind = dtype or pytorch().module.tensor(fill_value).dtype
    return empty(size=size, dtype=kind, device=device, group=group).fill_(fill_value)


def empty_like(tensor: torch.Tensor, *, group: GroupLike = None) -> torch.Tensor:
    """Return an uninitialized symmetric tensor with the shape and dtype of another tensor."""
    return empty(tuple(tensor.shape), dtype=tensor.dtype, group=group)


def alloc(nbytes: int, group: GroupLike = None) -> Block:
    """Allocate nbytes bytes of symmetric memory on the host backend, without PyTorch."""
    length = _length(nbytes)
    runtime, found = _place(group)
    return memory.allocate(runtime, found, length)


def _place(group: GroupLike) -> tuple[Runtime, Group | None]:
    """Return the runtime and group whose memory is used. None means the innermost scope's group."""
    if group is None:
        if CURRENT.pools:
            return CURRENT.pools[-1][0], None
        if (runtime := session.anyone).diverted():
            return runtime, None
    found = find(group)
    return found.runtime, found


def _lengths(shape: tuple[Any, ...], size: Any) -> tuple[int, ...]:
    """Parse a shape in the forms that PyTorch accepts."""
    if size is not None and shape:
        raise errors.InvalidError("pass the shape either as positional arguments or as size")
    if size is not None:
        shape = (size,)
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = tuple(shape[0])
    return tuple(_length(n) for n in shape)


def _length(value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise errors.InvalidError(f"length {value!r} is not an integer") from None
    if found < 0:
        raise errors.InvalidError(f"length {found} is negative")
    return found


def _own(runtime: Runtime, device: Any) -> None:
    """Raise `InvalidError` unless the device is the rank's."""
    if device is None:
        return
    asked = pytorch().module.device(device)
    kind = "cpu" if runtime.device is None else "cuda"
    if asked.type != kind or asked.index not in (None, runtime.device or 0):
        ours = "the host" if runtime.device is None else f"cuda:{runtime.device}"
        raise errors.InvalidError(f"device is {asked}, but symmem was initialized on {ours}")
