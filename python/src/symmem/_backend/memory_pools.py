"""Implements `register_mem_pool` and `mem_allocator` of the backend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._c.library import library
from symmem._rank.session import session
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

groups_by_name: dict[str, list[int]] = {}
"""The groups of each process group by its name: for tensors on GPUs, then for those on CPUs."""

_logged: set[str] = set()
"""The messages that were logged."""


def register_mem_pool(backend: Any, pool: torch.cuda.MemPool) -> None:
    """Register the memory of a MemPool with the process group of a backend.

    A call is required only before a capture of collectives on new memory, because otherwise
    collectives register memory of symmem themselves. Memory of other allocators, such as that of
    Megatron-Core for NCCL, cannot be registered: symmem uses it as ordinary memory.

    Collective over the process group if the pool has memory of symmem.

    Args:
        backend: the backend of a process group for tensors on GPUs.
        pool: a pool of PyTorch.
    """
    groups = groups_by_name.get(pytorch().name_of(backend), [])
    register(pool, groups[0] if groups else 0)


def register(pool: torch.cuda.MemPool, group: int) -> None:
    """Register the memory of a MemPool with a group. See `register_mem_pool`.

    Args:
        pool: a pool of PyTorch.
        group: the handle of the group. It is 0 for a process group that split_group created, and
            then nothing is registered: the collectives register the memory.
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


def mem_allocator(backend: Any) -> Any:
    """Return an allocator of symmetric memory for `torch.cuda.MemPool`, or None on CPUs.

    It allocates from the pool of `symmem.use(group)`, so all ranks of the group must
    allocate the same sizes in the same order. Collective over the process group.

    Args:
        backend: the backend of the default process group, or of a group of its ranks.
    """
    torch = pytorch()
    cuda = session.runtime.cuda
    if cuda is None:
        return None
    group = session.find(torch.group_named(torch.name_of(backend)))
    return cuda.allocator(group.pool).allocator()


def _log_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        logging.getLogger("symmem").warning(message)
