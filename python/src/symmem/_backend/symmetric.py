"""Provides symmem's memory to PyTorch's symmetric memory as the backend "SYMMEM"."""

from __future__ import annotations

import ctypes as c
from functools import cache

from symmem import errors
from symmem._backend.create import INTERPRETER, load
from symmem._c.library import where
from symmem._rank.session import session
from symmem._torch.pytorch import pytorch, set_memory_backend

NAME = "SYMMEM"


def use_symm_mem() -> None:
    """Make `torch.distributed._symmetric_memory` allocate from symmem's pools.

    From then on, `symm_mem.empty` returns memory from the main world's pool, or from the pool of
    the group that is passed, and `symm_mem.rendezvous` registers the memory with the group. The
    operators in `torch.ops.symm_mem`, and kernels that use PyTorch's handles, therefore run on
    memory whose placement the ranks have compared. All ranks of the world must allocate the same
    sizes in the same order. Each handle has its own signal pad. PyTorch rejects operators that need
    multicast.

    Call this after `init_process_group("symmem")` or `symmem.init`. It does not communicate.
    PyTorch uses one backend for the whole process, and does not accept another one after the first
    allocation.

    Raises:
        ClosedError: symmem is not initialized.
        UnsupportedError: the package has no C++ backend for this version of PyTorch.
    """
    if not offer():
        raise errors.UnsupportedError(
            "symmetric memory of PyTorch needs symmem's C++ backend, which the package does not "
            f"have for PyTorch {pytorch().module.__version__}"
        )
    set_memory_backend("cpu" if session.runtime.device is None else "cuda", NAME)


def offer() -> bool:
    """Make the backend available to PyTorch, and return whether there is a C++ backend for it."""
    found = pytorch()
    if not load(found):
        return False
    _offer(session.runtime.device is not None)
    return True


@cache
def _offer(on_gpus: bool) -> None:
    allocate(on_gpus)
    pytorch().module.ops.symmem_c10d.offer_memory(on_gpus)


@cache
def allocate(on_gpus: bool) -> None:
    """Create the allocator for PyTorch's symmetric memory and for handles, on CPUs or GPUs."""
    pytorch().module.ops.symmem_c10d.make_allocator(
        *(str(where()), on_gpus, INTERPRETER, [c.cast(f, c.c_void_p).value for f in _WORLD])
    )


def _pool() -> int:
    """Return the number of the main world's pool; -1 if it is closed."""
    return session.groups.world.pool if session.is_open else -1


def _group(name: bytes, size: int, text: int) -> int:
    """Return the group of a process group. On an error, write its message and return 0."""
    try:
        found = pytorch().group_named(name.decode())
        if found is None:
            raise errors.InvalidError("torch.distributed has no process group with this name")
        return session.find(found).handle
    except Exception as e:  # The caller is C++ code, which cannot handle Python exceptions.
        data = str(e).encode()[: size - 1] + b"\0"
        c.memmove(text, data, len(data))
        return 0


_WORLD = (
    c.CFUNCTYPE(c.c_int)(_pool),
    c.CFUNCTYPE(c.c_uint64, c.c_char_p, c.c_size_t, c.c_void_p)(_group),
)
"""The functions that the C++ backend calls."""
