"""Gives symmem's memory to PyTorch's symmetric memory, as its backend "SYMMEM"."""

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
    """Let `torch.distributed._symmetric_memory` allocate from symmem's pools.

    Then `symm_mem.empty` returns memory of the main world's pool, or of a pool of the group that is
    given, and `symm_mem.rendezvous` registers it with the group. So PyTorch's operators of
    `torch.ops.symm_mem`, and kernels over its handles, run on memory whose places the ranks have
    compared. All ranks of the world must allocate the same sizes in the same order. Every handle
    has a signal pad that belongs to its group and allocation alone. The operators that need
    multicast are refused by PyTorch.

    symmem must be open: call it after `init_process_group("symmem")` or `symmem.init`. It does not
    communicate. PyTorch keeps the choice for the whole process, and refuses it after the first
    allocation of another backend.

    Raises:
        ClosedError: symmem is not open.
        UnsupportedError: there is no part in C++ for this version of PyTorch.
    """
    if not offer():
        raise errors.UnsupportedError(
            "PyTorch's symmetric memory needs symmem's part in C++, which there is not for PyTorch "
            f"{pytorch().module.__version__}"
        )
    set_memory_backend("cpu" if session.runtime.device is None else "cuda", NAME)


def offer() -> bool:
    """Make the backend available to PyTorch, or report that there is no part in C++ for it."""
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
    """Make the allocator of PyTorch's symmetric memory and of handles, for CPUs or GPUs."""
    pytorch().module.ops.symmem_c10d.make_allocator(
        *(str(where()), on_gpus, INTERPRETER, [c.cast(f, c.c_void_p).value for f in _WORLD])
    )


def _pool() -> int:
    """Return the number of the main world's pool; -1 if it is closed."""
    return session.groups.world.pool if session.is_open else -1


def _group(name: bytes, size: int, text: int) -> int:
    """Return the group of a process group, or 0 after an error, whose text is written."""
    try:
        found = pytorch().group_named(name.decode())
        if found is None:
            raise errors.InvalidError("torch.distributed has no process group of this name")
        return session.find(found).handle
    except Exception as e:  # The caller is C++, which handles no exceptions of Python.
        data = str(e).encode()[: size - 1] + b"\0"
        c.memmove(text, data, len(data))
        return 0


_WORLD = (
    c.CFUNCTYPE(c.c_int)(_pool),
    c.CFUNCTYPE(c.c_uint64, c.c_char_p, c.c_size_t, c.c_void_p)(_group),
)
"""The functions that the part in C++ calls."""
