"""Symmetric tensors, and symmetric memory without PyTorch."""

from __future__ import annotations

import ctypes as c
import math
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank.group import Group
from symmem._rank.runtime import CURRENT, ORDINARY, Runtime
from symmem._torch.factories import scratch
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch


class Block:
    """A block of symmetric memory on the host backend, freed with its last view.

    `view` is the block as a ctypes array, which exports the buffer protocol: memoryview(view),
    numpy.frombuffer and torch.frombuffer all share its memory and keep it alive.
    """

    __slots__ = ("address", "nbytes", "view")

    def __init__(self, runtime: Runtime, pool: int, nbytes: int):
        raw = c.c_void_p(0)
        previous = runtime.set_site() if runtime.callsites else None
        try:
            runtime.library.call("symmem_alloc", pool, max(nbytes, 1), 0, c.byref(raw))
        finally:
            if previous is not None:
                runtime.library.raw.symmem_set_site(previous)
        assert raw.value is not None
        self.address = raw.value
        self.nbytes = nbytes
        self.view = _owning(max(nbytes, 1)).from_address(self.address)
        self.view.owner = _Owner(runtime, self.address)


class _Owner:
    """Frees a block when its last reference is dropped."""

    __slots__ = ("_address", "_runtime")

    def __init__(self, runtime: Runtime, address: int):
        self._runtime = runtime
        self._address = address

    def __del__(self) -> None:
        if not self._runtime.forked:
            # The memory may have outlived a forced close. Failures are ignored because the
            # interpreter may be shutting down.
            self._runtime.library.raw.symmem_free(self._address)


def _owning(nbytes: int) -> Any:
    """Return an array type whose instances can have attributes."""
    return type("Bytes", (c.c_char * nbytes,), {})


def allocate(runtime: Runtime, group: Group | None, nbytes: int) -> Block:
    """Allocate a block on the host backend.

    It comes from the group's pool or, if the group is None, from the pool of the innermost scope.
    """
    runtime.require()
    if runtime.backend != "host":
        raise errors.UnsupportedError("only the host backend has blocks; on GPUs, allocate tensors")
    return Block(runtime, _pool(runtime, group), nbytes)


def _pool(runtime: Runtime, group: Group | None) -> int:
    if group is not None:
        return group.pool
    pools = runtime.current.pools
    return pools[-1][1] if pools else ORDINARY


def empty(
    runtime: Runtime,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    group: Group | None,
) -> torch.Tensor:
    """Allocate an uninitialized tensor from a group's pool or, without a group, from the scope's.

    Outside all scopes, a tensor without a group is an ordinary one.
    """
    runtime.require()
    module = pytorch().module
    dtype = dtype or module.get_default_dtype()
    if runtime.backend == "host":
        return _empty_on_host(runtime, shape, dtype, group)
    device = module.device("cuda", runtime.device)
    tensor: torch.Tensor
    if group is None or group.router is None:
        tensor = module.empty(shape, dtype=dtype, device=device)
        return tensor
    group.router.enter()
    try:
        tensor = module.empty(shape, dtype=dtype, device=device)
    finally:
        group.router.leave()
    return tensor


def empty_in_scope(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate a tensor for a PyTorch function that is called in a scope on the host backend."""
    runtime, pool = CURRENT.pools[-1]
    return _on_host(runtime, pool, shape, dtype)


def _empty_on_host(
    runtime: Runtime, shape: tuple[int, ...], dtype: torch.dtype, group: Group | None
) -> torch.Tensor:
    return _on_host(runtime, _pool(runtime, group), shape, dtype)


def _on_host(
    runtime: Runtime, pool: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    module = pytorch().module
    count = math.prod(shape)
    if count == 0 or pool == ORDINARY:
        plain: torch.Tensor = module.empty(shape, dtype=dtype)
        return plain
    block = Block(runtime, pool, count * dtype.itemsize)
    flat: torch.Tensor = module.frombuffer(block.view, dtype=dtype, count=count)
    if len(shape) == 1:
        return flat
    # The result must not be a view, so that autograd can discard the history of a buffer.
    tensor = scratch((0,), flat)
    tensor.set_(flat.untyped_storage(), 0, shape, flat.view(shape).stride())
    return tensor
