"""Makes the backend of a process group: a group of symmem, as an object of PyTorch's in C++."""

from __future__ import annotations

import ctypes as c
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from symmem import errors
from symmem._c.library import library, where
from symmem._rank import origin
from symmem._rank.group import LONGEST_TIMEOUT, milliseconds
from symmem._rank.session import prepare_from, session
from symmem._torch.pytorch import Torch, pytorch

_CLOSED = c.CFUNCTYPE(None, c.c_uint64)


def create(options: Any) -> Any:
    """Make the backend of a process group that torch.distributed opens. Collective.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
    """
    torch = pytorch()
    _load(torch)
    of = _origin(options)
    handle, closed = _join(of, options.group_id)
    meeting = torch.distributed.ProcessGroup(of.store, of.rank, len(of.ranks))
    made = torch.module.ops.symmem_c10d.make(
        str(where()),
        meeting.boxed(),
        handle,
        round(1000 * (of.timeout or origin.DEFAULT_TIMEOUT)),
        c.cast(closed, c.c_void_p).value,
    )
    return torch.backend_of(torch.distributed.ProcessGroup.unbox(made))


def _origin(options: Any) -> origin.Origin:
    """Describe the ranks of a process group, by their numbers in torch.distributed."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    timeout: float = options.timeout.total_seconds()
    return origin.Origin(ranks, options.group_rank, options.store, timeout)


def _join(of: origin.Origin, name: str) -> tuple[int, Any]:
    """Open the group, and return its handle and the function that closes it.

    The default process group opens the rank of the main world, unless symmem.init has. Other
    process groups are groups of that world if it has their ranks. Otherwise each is a world.
    """
    if not session.is_open and not pytorch().initialized():
        return session.open_from(of, {}).handle, _CLOSE_RANK
    everyone: tuple[int, ...] = ()
    if session.is_open:
        runtime = session.runtime
        everyone = runtime.torch_ranks or tuple(range(runtime.size))
    if not set(of.ranks) <= set(everyone):
        options = prepare_from(of, {}).text()
        return library().number("symmem_world_open", *options), _CLOSE_WORLD
    if of.ranks == everyone and runtime.torch_ranks is None:
        return session.groups.world.handle, _KEEP
    members = (c.c_int32 * len(of.ranks))(*(everyone.index(rank) for rank in of.ranks))
    text = f"torch.distributed {name}".encode()
    limit = milliseconds(min(of.timeout or origin.DEFAULT_TIMEOUT, LONGEST_TIMEOUT))
    arguments = runtime.world, len(text), text, len(of.ranks), members, limit
    return library().number("symmem_world_group_open", *arguments), _CLOSE_GROUP


def _close_rank(_: int) -> None:
    """Close the rank, when the process group that opened it is destroyed."""
    _warn_of(lambda: session.close(True))


def _close_group(handle: int) -> None:
    """Close the group of a process group that is destroyed."""
    if session.is_open:
        _warn_of(lambda: library().call("symmem_group_close", handle))


def _close_world(handle: int) -> None:
    """Close the world of a process group that is destroyed."""
    _warn_of(lambda: library().call("symmem_world_close", handle, 1))


def _keep(_: int) -> None:
    """Leave the world of symmem.init open."""


_CLOSE_RANK, _CLOSE_GROUP = _CLOSED(_close_rank), _CLOSED(_close_group)
_CLOSE_WORLD, _KEEP = _CLOSED(_close_world), _CLOSED(_keep)


def _warn_of(close: Any) -> None:
    """Make a warning of an error: the caller is C++, which handles no exceptions of Python's."""
    try:
        close()
    except errors.SymmemError as e:
        warnings.warn(f"closing a process group of symmem: {e}", RuntimeWarning, stacklevel=2)


@cache
def _load(torch: Torch) -> None:
    """Load the part in C++ that was built for this version of PyTorch."""
    major, minor = torch.version
    path = Path(__file__).with_name(f"libsymmem_torch_{major}.{minor}.so")
    if not path.exists():
        built = sorted(p.stem.rpartition("_")[2] for p in path.parent.glob("libsymmem_torch_*.so"))
        raise errors.TorchError(
            f'the backend "symmem" was built for PyTorch {", ".join(built) or "(none)"}, not for '
            f"{torch.module.__version__}: install one of these, or build it with "
            "python/scripts/backend.sh"
        )
    torch.module.ops.load_library(str(path))
