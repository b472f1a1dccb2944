"""Creates the backend of a process group, which is a symmem group wrapped in a C++ object."""

from __future__ import annotations

import ctypes as c
import logging
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symmem._api import operators
from symmem._backend import joining
from symmem._backend.joining import close_or_warn, members_of_main, opening_options, timeout_ms
from symmem._backend.memory_pools import groups_by_name
from symmem._c.constants import OK, Code
from symmem._c.library import library, where
from symmem._rank import origin
from symmem._rank.session import prepare_from, session
from symmem._torch.pytorch import Torch, allocate_from_groups, devices_of, pytorch

if TYPE_CHECKING:
    from symmem._api.terms import Backend

SWITCH = "SYMMEM_COMM_MEMORY"
"""If set to 1, DDP and FSDP2 allocate communication buffers in symmetric memory."""


def create(options: Any) -> Any:
    """Create the backend of a process group for torch.distributed. Collective.

    The backend is implemented in C++ or, if the package has no C++ backend for this version of
    PyTorch, in Python.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
    """
    torch = pytorch()
    operators.register()
    spec = joining.spec_of(options)
    is_default = not options.global_ranks_in_group
    if not load(torch):
        from symmem._backend.python_group import PythonGroup

        group, close = joining.join(spec, options.group_id, is_default=is_default)
        return PythonGroup(group, close, options)
    if os.environ.get(SWITCH, "0") != "0":
        allocate_from_groups("symmem")
    on_cpus, on_gpus = _devices(torch)
    name = options.group_id
    device = _join(spec, name, "nccl", is_default=is_default) if on_gpus else []
    host: list[int] = []
    if on_cpus:
        host_spec = spec
        if on_gpus:
            # Use separate keys of the store for the two groups.
            store = torch.distributed.PrefixStore("host", spec.store)
            host_spec = origin.WorldSpec(spec.ranks, spec.rank, store, spec.timeout)
        host = _join(host_spec, name, "host", is_default=is_default and not on_gpus)
    groups_by_name[name] = [numbers[0] for numbers in (device, host) if numbers]
    model = torch.distributed.ProcessGroup(spec.store, spec.rank, len(spec.ranks))
    boxed = torch.module.ops.symmem_c10d.make(
        str(where()),
        model.boxed(),
        name,
        host,
        device,
        timeout_ms(spec),
        INTERPRETER,
    )
    return torch.backend_of(torch.distributed.ProcessGroup.unbox(boxed))


def _devices(torch: Torch) -> tuple[bool, bool]:
    """Return whether the new process group serves CPUs, and whether it serves GPUs."""
    devices = devices_of("symmem")
    on_gpus = "cuda" in devices and torch.module.cuda.is_available()
    return "cpu" in devices or not on_gpus, on_gpus


def _join(spec: origin.WorldSpec, name: str, backend: Backend, *, is_default: bool) -> list[int]:
    """Open the group of a process group, for tensors on CPUs or on GPUs.

    Return the handles of the group and its world, the pool for the group's tensors (-1 to open one
    on first use), and the world ranks of the group's members.

    The default process group opens the world of symmem.init, or uses it if it is already open.
    Another process group becomes a group of that world if the world contains all its ranks, and a
    separate world otherwise.
    """
    options = {**opening_options(spec), "backend": backend}
    if is_default and not session.is_open:
        world = session.open_from(spec, options)
        return _opened(world.handle, spec, world.pool)
    members = members_of_main(spec, backend)
    if members is None:
        handle = library().number("symmem_world_open", *prepare_from(spec, options).text())
        return _opened(handle, spec, -1)
    main = session.groups.world
    if is_default and members == list(range(main.size)):
        return [main.handle, main.handle, main.pool, *members]
    return _part(main.handle, members, spec, name)


def _opened(world: int, spec: origin.WorldSpec, pool: int) -> list[int]:
    """Return the group of all ranks of a world that is opened and closed with the process group."""
    library().call("symmem_group_set_timeout", world, timeout_ms(spec))
    _worlds.add(world)
    return [world, world, pool, *range(len(spec.ranks))]


def _part(world: int, members: list[int], spec: origin.WorldSpec, name: str) -> list[int]:
    """Open a group of the given ranks of a world."""
    text = f"torch.distributed {name}".encode()
    handle = library().number(
        "symmem_world_group_open",
        *(world, len(text), text),
        *(len(members), (c.c_int32 * len(members))(*members), timeout_ms(spec)),
    )
    return [handle, world, -1, *members]


_worlds: set[int] = set()
"""The worlds that process groups have opened."""


def _closed(handle: int) -> None:
    """Close the group of a process group that is being destroyed."""
    # The caller is C++ code, which cannot handle Python exceptions.
    close_or_warn(lambda: _close(handle))


def _close(handle: int) -> None:
    main = session.world.handle if session.world is not None else 0
    opened = handle in _worlds
    _worlds.discard(handle)
    for name in [n for n, handles in groups_by_name.items() if handle in handles]:
        del groups_by_name[name]
    if handle == main:
        if opened:  # A process group opened it, not symmem.init.
            session.close(True)
    elif opened:
        library().call("symmem_world_close", handle, 1)
    else:
        code = library().raw.symmem_group_close(handle)
        if code not in (OK, Code.CLOSED, Code.NOT_OPEN):
            raise library().error(code)


def _interrupted() -> int:
    """Discard the exception of a signal handler, and return 1 if it is a KeyboardInterrupt."""
    return int(isinstance(library().answers.take(), KeyboardInterrupt))


_CLOSED = c.CFUNCTYPE(None, c.c_uint64)(_closed)
_INTERRUPTED = c.CFUNCTYPE(c.c_int)(_interrupted)
INTERPRETER = [
    c.cast(function, c.c_void_p).value
    for function in (_CLOSED, _INTERRUPTED, c.pythonapi.PyErr_SetInterrupt)
]
"""The addresses of the functions that the C++ backend calls."""


RELEASE = re.compile(r"\d+\.\d+\.\d+(\+\w+)?")
"""Matches PyTorch releases. In other builds of the same version, C++ classes may differ."""


@cache
def load(torch: Torch) -> bool:
    """Load the C++ backend for this version of PyTorch, and return whether there is one."""
    major, minor = torch.version
    version = torch.module.__version__
    path = Path(__file__).with_name(f"libsymmem_torch_{major}.{minor}.so")
    if path.exists() and RELEASE.fullmatch(version):
        torch.module.ops.load_library(str(path))
        return True
    built = sorted(p.stem.rpartition("_")[2] for p in path.parent.glob("libsymmem_torch_*.so"))
    logging.getLogger("symmem").warning(
        'the package has no C++ backend "symmem" for PyTorch %s%s; process groups use the Python '
        "implementation, which is slower",
        version,
        f", only for {', '.join(built)}" if built else "",
    )
    return False
