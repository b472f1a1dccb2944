"""Makes the backend of a process group: a group of symmem, as an object of PyTorch's in C++."""

from __future__ import annotations

import ctypes as c
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from symmem import errors
from symmem._c.constants import OK, Code
from symmem._c.library import library, where
from symmem._rank import origin
from symmem._rank.group import LONGEST_TIMEOUT
from symmem._rank.session import prepare_from, session
from symmem._torch.pytorch import Torch, allocate_from_groups, pytorch

SWITCH = "SYMMEM_COMM_MEMORY"
"""The variable by which DDP and FSDP2 keep the buffers of collectives in symmetric memory."""


def create(options: Any) -> Any:
    """Make the backend of a process group that torch.distributed opens. Collective.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
    """
    torch = pytorch()
    _load(torch)
    if os.environ.get(SWITCH, "0") != "0":
        allocate_from_groups("symmem")
    of = _origin(options)
    joined = _join(of, options.group_id, is_default=not options.global_ranks_in_group)
    meeting = torch.distributed.ProcessGroup(of.store, of.rank, len(of.ranks))
    made = torch.module.ops.symmem_c10d.make(
        str(where()),
        meeting.boxed(),
        options.group_id,
        joined.handle,
        joined.world,
        joined.members,
        joined.pool,
        _timeout_ms(of),
        [
            c.cast(f, c.c_void_p).value
            for f in (_CLOSED, _INTERRUPTED, c.pythonapi.PyErr_SetInterrupt)
        ],
    )
    return torch.backend_of(torch.distributed.ProcessGroup.unbox(made))


class Joined(NamedTuple):
    """An open group.

    Attributes:
        handle: the group.
        world: its world.
        members: its ranks, by their numbers in the world.
        pool: the pool of its tensors; -1 for one that is opened when it is needed.
    """

    handle: int
    world: int
    members: list[int]
    pool: int


def _origin(options: Any) -> origin.Origin:
    """Describe the ranks of a process group, by their numbers in torch.distributed."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    timeout: float = options.timeout.total_seconds()
    return origin.Origin(ranks, options.group_rank, options.store, timeout)


OPENING_MS = 60_000
"""The shortest timeout in milliseconds for opening a world, whose processes may be starting."""


def _timeout_ms(of: origin.Origin) -> int:
    return round(1000 * min(of.timeout or origin.DEFAULT_TIMEOUT, LONGEST_TIMEOUT))


def _join(of: origin.Origin, name: str, *, is_default: bool) -> Joined:
    """Open the group of a process group.

    The default process group opens the world of symmem.init, or takes it if it is open. Other
    process groups are groups of that world if it has all of their ranks, else separate worlds.
    """
    options = {"timeout_ms": max(_timeout_ms(of), OPENING_MS)}
    if is_default and not session.is_open:
        world = session.open_from(of, options)
        return _opened(world.handle, of, world.pool)
    if session.is_open:
        main = session.groups.world
        ranks = session.runtime.torch_ranks or tuple(range(main.size))
        if is_default and of.ranks == ranks:
            return Joined(main.handle, main.handle, list(range(main.size)), main.pool)
        if set(of.ranks) <= set(ranks):
            return _part(main.handle, [ranks.index(rank) for rank in of.ranks], of, name)
    handle = library().number("symmem_world_open", *prepare_from(of, options).text())
    return _opened(handle, of, -1)


def _opened(world: int, of: origin.Origin, pool: int) -> Joined:
    """Return the group of all ranks of a world that the process group has opened, and closes."""
    library().call("symmem_group_set_timeout", world, _timeout_ms(of))
    _worlds.add(world)
    return Joined(world, world, list(range(len(of.ranks))), pool)


def _part(world: int, members: list[int], of: origin.Origin, name: str) -> Joined:
    """Open a group of some ranks of a world."""
    text = f"torch.distributed {name}".encode()
    handle = library().number(
        "symmem_world_group_open",
        *(world, len(text), text),
        *(len(members), (c.c_int32 * len(members))(*members), _timeout_ms(of)),
    )
    return Joined(handle, world, members, -1)


_worlds: set[int] = set()
"""The worlds that process groups have opened."""


def _closed(handle: int) -> None:
    """Close the group of a process group that is destroyed."""
    try:
        _close(handle)
    except errors.AbortedError:
        pass  # Works have reported it.
    except errors.SymmemError as e:  # The caller is C++, which handles no exceptions of Python's.
        warnings.warn(f"closing a process group of symmem: {e}", RuntimeWarning, stacklevel=2)


def _close(handle: int) -> None:
    main = session.world.handle if session.world is not None else 0
    opened = handle in _worlds
    _worlds.discard(handle)
    if handle == main:
        if opened:  # by a process group, not by symmem.init
            session.close(True)
    elif opened:
        library().call("symmem_world_close", handle, 1)
    else:
        code = library().raw.symmem_group_close(handle)
        if code not in (OK, Code.CLOSED, Code.NOT_OPEN):
            raise library().error(code)


def _interrupted() -> int:
    """Forget the exception of a signal handler; return 1 if it was a KeyboardInterrupt."""
    return int(isinstance(library().answers.take(), KeyboardInterrupt))


_CLOSED = c.CFUNCTYPE(None, c.c_uint64)(_closed)
_INTERRUPTED = c.CFUNCTYPE(c.c_int)(_interrupted)


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
