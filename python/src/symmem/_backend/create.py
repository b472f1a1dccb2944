"""Makes the backend of a process group: a group of symmem, as an object of PyTorch's in C++."""

from __future__ import annotations

import ctypes as c
import logging
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem._backend import joining
from symmem._backend.joining import close_or_warn, members_of_main, opening_options, timeout_ms
from symmem._c.constants import OK, Code
from symmem._c.library import library, where
from symmem._rank import origin
from symmem._rank.session import prepare_from, session
from symmem._torch.pytorch import Torch, allocate_from_groups, devices_of, pytorch

if TYPE_CHECKING:
    from symmem._api.terms import Backend

SWITCH = "SYMMEM_COMM_MEMORY"
"""The variable by which DDP and FSDP2 keep the buffers of collectives in symmetric memory."""


def create(options: Any) -> Any:
    """Make the backend of a process group that torch.distributed opens. Collective.

    It is an object of the part in C++ if there is one for this version of PyTorch, else a process
    group in Python.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
    """
    torch = pytorch()
    of = joining.origin_of(options)
    is_default = not options.global_ranks_in_group
    if not load(torch):
        from symmem._backend.python_group import PythonGroup

        group, close = joining.join(of, options.group_id, is_default=is_default)
        return PythonGroup(group, close, options)
    if os.environ.get(SWITCH, "0") != "0":
        allocate_from_groups("symmem")
    on_cpus, on_gpus = _devices(torch)
    name = options.group_id
    device = _join(of, name, "nccl", is_default=is_default) if on_gpus else NONE
    host = NONE
    if on_cpus:
        apart = of
        if on_gpus:
            store = torch.distributed.PrefixStore("host", of.store)
            apart = origin.Origin(of.ranks, of.rank, store, of.timeout)
        host = _join(apart, name, "host", is_default=is_default and not on_gpus)
    meeting = torch.distributed.ProcessGroup(of.store, of.rank, len(of.ranks))
    made = torch.module.ops.symmem_c10d.make(
        str(where()),
        meeting.boxed(),
        name,
        host.numbers,
        device.numbers,
        host.pool,
        timeout_ms(of),
        INTERPRETER,
    )
    return torch.backend_of(torch.distributed.ProcessGroup.unbox(made))


def _devices(torch: Torch) -> tuple[bool, bool]:
    """Report whether the process group that is being made has tensors on CPUs, and on GPUs."""
    devices = devices_of("symmem")
    on_gpus = "cuda" in devices and torch.module.cuda.is_available()
    return "cpu" in devices or not on_gpus, on_gpus


class Joined(NamedTuple):
    """An open group.

    Attributes:
        numbers: the group, its world, and its ranks by their numbers in the world; empty for none.
        pool: the pool of its tensors; -1 for one that is opened when it is needed.
    """

    numbers: list[int]
    pool: int


NONE = Joined([], -1)


def _join(of: origin.Origin, name: str, backend: Backend, *, is_default: bool) -> Joined:
    """Open the group of a process group for tensors on CPUs or on GPUs.

    The default process group opens the world of symmem.init, or takes it if it is open. Other
    process groups are groups of that world if it has all of their ranks, else separate worlds.
    """
    options = {**opening_options(of), "backend": backend}
    if is_default and not session.is_open:
        world = session.open_from(of, options)
        return _opened(world.handle, of, world.pool)
    members = members_of_main(of, backend)
    if members is None:
        handle = library().number("symmem_world_open", *prepare_from(of, options).text())
        return _opened(handle, of, -1)
    main = session.groups.world
    if is_default and members == list(range(main.size)):
        return Joined([main.handle, main.handle, *members], main.pool)
    return _part(main.handle, members, of, name)


def _opened(world: int, of: origin.Origin, pool: int) -> Joined:
    """Return the group of all ranks of a world that the process group has opened, and closes."""
    library().call("symmem_group_set_timeout", world, timeout_ms(of))
    _worlds.add(world)
    return Joined([world, world, *range(len(of.ranks))], pool)


def _part(world: int, members: list[int], of: origin.Origin, name: str) -> Joined:
    """Open a group of some ranks of a world."""
    text = f"torch.distributed {name}".encode()
    handle = library().number(
        "symmem_world_group_open",
        *(world, len(text), text),
        *(len(members), (c.c_int32 * len(members))(*members), timeout_ms(of)),
    )
    return Joined([handle, world, *members], -1)


_worlds: set[int] = set()
"""The worlds that process groups have opened."""


def _closed(handle: int) -> None:
    """Close the group of a process group that is destroyed."""
    close_or_warn(
        lambda: _close(handle)
    )  # The caller is C++, which handles no exceptions of Python.


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
INTERPRETER = [
    c.cast(function, c.c_void_p).value
    for function in (_CLOSED, _INTERRUPTED, c.pythonapi.PyErr_SetInterrupt)
]
"""The addresses of the functions that the part in C++ calls."""


RELEASE = re.compile(r"\d+\.\d+\.\d+(\+\w+)?")
"""Matches releases of PyTorch. Other builds of a version may have other classes in C++."""


@cache
def load(torch: Torch) -> bool:
    """Load the part in C++ that was built for this version of PyTorch, or report that none was."""
    major, minor = torch.version
    version = torch.module.__version__
    path = Path(__file__).with_name(f"libsymmem_torch_{major}.{minor}.so")
    if path.exists() and RELEASE.fullmatch(version):
        torch.module.ops.load_library(str(path))
        return True
    built = sorted(p.stem.rpartition("_")[2] for p in path.parent.glob("libsymmem_torch_*.so"))
    logging.getLogger("symmem").warning(
        'the backend "symmem" has no part in C++ for PyTorch %s (it has: %s): process groups are '
        "in Python, which is slower",
        version,
        ", ".join(built) or "none",
    )
    return False
