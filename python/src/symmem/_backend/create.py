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
from symmem._rank.session import session
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

    The first group of a process opens the rank, unless symmem.init has. Other groups are groups of
    that rank's world.
    """
    if not session.is_open:
        return session.open_from(of, {}).handle, _CLOSE_RANK
    runtime = session.runtime
    everyone = runtime.torch_ranks or tuple(range(runtime.size))
    missing = [rank for rank in of.ranks if rank not in everyone]
    if missing:
        raise errors.UnsupportedError(
            f"ranks {missing} of the process group are not in symmem's world, {list(everyone)}: "
            'make the default process group with backend "symmem", or close the groups of symmem '
            "that are open"
        )
    if of.ranks == everyone and runtime.torch_ranks is None:
        return session.groups.world.handle, _KEEP
    members = (c.c_int32 * len(of.ranks))(*(everyone.index(rank) for rank in of.ranks))
    text = f"torch.distributed {name}".encode()
    arguments = len(text), text, len(of.ranks), members
    return library().number("symmem_group_open", *arguments), _CLOSE_GROUP


def _close_rank(_: int) -> None:
    """Close the rank, when the process group that opened it is destroyed."""
    _warn_of(lambda: session.close(True))


def _close_group(handle: int) -> None:
    """Close the group of a process group that is destroyed."""
    if session.is_open:
        _warn_of(lambda: library().call("symmem_group_close", handle))


def _keep(_: int) -> None:
    """Leave the world of symmem.init open."""


_CLOSE_RANK, _CLOSE_GROUP, _KEEP = _CLOSED(_close_rank), _CLOSED(_close_group), _CLOSED(_keep)


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
