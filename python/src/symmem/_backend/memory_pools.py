"""Implements `register_mem_pool` of the backend, which programs call on the backend object."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._backend.create import device_handle
from symmem._backend.register import NAME
from symmem._c.library import library
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

_logged: set[str] = set()
"""The messages that were logged."""


def register_mem_pool(backend: Any, pool: torch.cuda.MemPool, symm: bool = False) -> None:
    """Register the memory of a MemPool with the process group of a backend.

    A call is required only before a capture of calls on new memory, because other calls register
    memory of symmem themselves. Memory of other allocators, such as that of Megatron-Core for NCCL,
    cannot be registered: symmem's calls use it as ordinary memory.

    Collective over the process group for memory of symmem.

    Args:
        backend: the backend of a process group for tensors on GPUs.
        pool: a pool of PyTorch.
        symm: ignored, because memory of symmem is always symmetric.
    """
    _require(backend, "register_mem_pool")
    register(pool, device_handle(backend))


def register(pool: torch.cuda.MemPool, group: int) -> None:
    """Register the memory of a MemPool with a group. See `register_mem_pool`.

    Args:
        pool: a pool of PyTorch.
        group: the handle of the group. It is 0 for a process group of split_group, whose calls
            register the memory.
    """
    numbers = set()
    for segment in pool.snapshot():  # type: ignore[no-untyped-call]
        try:
            numbers.add(library().json("symmem_locate", segment["address"])["pool"])
        except errors.MemoryUseError:
            _log_once(
                "register_mem_pool: the memory of the pool is not symmem's, so symmem does not "
                "register it, and its collectives use it as ordinary memory"
            )
    if group == 0:
        return
    torch = pytorch()
    cuda = torch.module.cuda
    stream = torch.raw_stream(cuda.current_device()) if cuda.is_available() else 0
    for number in sorted(numbers):
        library().call("symmem_register_pending", group, number, stream)


def deregister_mem_pool(backend: Any, pool: torch.cuda.MemPool) -> None:
    """Do nothing: memory of symmem is deregistered when it is unmapped or the group is closed."""
    _require(backend, "deregister_mem_pool")


def _require(backend: Any, name: str) -> None:
    """Raise the error for a missing method if the backend is not symmem's.

    The methods are added to the base class of all backends.
    """
    if backend.name() != NAME:
        raise AttributeError(f"{type(backend).__name__!r} object has no attribute {name!r}")


def _log_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        logging.getLogger("symmem").warning(message)
