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

    `view` is its bytes as a ctypes array, which exports the buffer protocol: memoryview(view),
    numpy.frombuffer and torch.frombuffer all share the memory and keep it alive.
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
    """Frees a block when the last reference to it is gone."""

    __slots__ = ("_address", "_runtime")

    def __init__(self, runtime: Runtime, address: int):
        self._runtime = runtime
        self._address = address

    def __del__(self) -> None:
        if not self._runtime.forked:
            # This includes memory that outlived a forced close. A failure is ignored, since the
            # interpreter may be ending.
            self._runtime.library.raw.symmem_free(self._address)


def _owning(nbytes: int) -> Any:
    """Make an array type whose instances have room for an attribute."""
    return type("Bytes", (c.c_char * nbytes,), {})


def allocate(runtime: Runtime, group: Group | None, nbytes: int) -> Block:
    """Allocate from a group's pool, else from that of the innermost scope, on the host backend."""
    runtime.require()
    if runtime.backend != "host":
        raise errors.UnsupportedError("blocks are of the host backend; on GPUs make tensors")
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
    """Make an uninitialised tensor in a group's memory, else in that of the innermost scope.

    Without a group and a scope it is an ordinary tensor.
    """
    runtime.require()
    module = pytorch().module
    dtype = dtype or module.get_default_dtype()
    if runtime.backend == "host":
        return _empty_on_host(runtime, shape, dtype, group)
    device = module.device("cuda", runtime.device)
    made: torch.Tensor
    if group is None or group.router is None:
        made = module.empty(shape, dtype=dtype, device=device)
        return made
    group.router.enter()
    try:
        made = module.empty(shape, dtype=dtype, device=device)
    finally:
        group.router.leave()
    return made


def made_inside(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make a tensor that PyTorch makes inside of a scope on the host backend."""
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
    # It is no view, so that autograd can let a buffer forget what it had before.
    made = scratch((0,), flat)
    made.set_(flat.untyped_storage(), 0, shape, flat.view(shape).stride())
    return made
