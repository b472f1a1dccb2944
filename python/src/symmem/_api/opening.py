"""Functions that open and close this process's rank and find its groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from symmem._api import operators
from symmem._c.constants import check_level, formula, path_choice
from symmem._c.library import where
from symmem._rank import origin
from symmem._rank.group import Group, milliseconds
from symmem._rank.groups import New
from symmem._rank.session import session
from symmem._torch.pytorch import loaded

if TYPE_CHECKING:
    from symmem._api.terms import (
        Backend,
        CheckLevel,
        Deterministic,
        GroupLike,
        PathChoice,
        WorldLike,
    )


def init(
    process_group: WorldLike = None,
    *,
    device: Any = None,
    backend: Backend = "auto",
    check: CheckLevel | None = None,
    path: PathChoice | None = None,
    deterministic: Deterministic | None = None,
    tuning: str | None = None,
    timeout: float | None = None,
    reserve: int = 0,
    capacity: int = 0,
    first_segment: int = 0,
    callsites: bool | int | None = None,
    trace: str | None = None,
    options: dict[str, Any] | None = None,
) -> Group:
    """Initialize symmem in this process and return the group of all ranks. Collective.

    If symmem is already initialized with the same arguments, `init` only returns the world.

    If torch.distributed is initialized, the ranks and their store are those of the given process
    group, or of the default one. Otherwise they are taken from the environment variables of the
    launcher: torchrun, Open MPI, MPICH, Slurm or `symmem launch`.

    Args:
        process_group: the ranks of torch.distributed that form symmem's world; the default is all
            of them. It may be a process group, a one-dimensional mesh such as `mesh["tp"]`, a tuple
            of a mesh and a dimension, a sequence of ranks, or PyTorch's name of a process group.
        device: the CUDA device; the default is PyTorch's current device.
        backend: "auto", "nccl" or "host".
        check: how much ranks compare: "off", "registration" or "every". If all ranks are on one
            machine, the default is "every": symmem does not see how PyTorch divides segments, so
            only a comparison of collectives can find an extra tensor on one rank that moves the
            following ones. On several machines the backend chooses a cheaper level.
        path: the path of collectives. "auto" lets the tuning table choose; "plain", "window",
            "direct" and "two-level" are used wherever they are possible.
        deterministic: make every reduction return the bits of one formula, whatever the size,
            memory and path, or raise UnsupportedError. True or "ranks" adds in rank order, "tree"
            and "rounded-tree" add in pairs (docs/reference/deterministic.md). False or "any"
            requires no formula and overrides SYMMEM_DETERMINISTIC. All ranks must pass the same.
        tuning: the path of a tuning table written by `symmem tune`, or "built-in".
        timeout: the longest wait for another rank in this and all other calls, in seconds. The
            default is the timeout of the process group, or 10 minutes without one. A warning names
            a late rank much earlier.
        reserve: the number of bytes to map and register now, as `symmem.reserve` does.
        capacity: the maximum size of the world's memory in bytes; 0 means no limit.
        first_segment: the size of the first segment in bytes. Each further segment doubles the
            memory.
        callsites: record the Python lines that allocate tensors and call collectives, so that
            errors can show them, as SYMMEM_CALLSITES=1 does. A number from 1 to 8 records that many
            stack frames of each call, so that a helper function does not hide its callers.
        trace: a folder to which this rank writes a trace of its events for `symmem diff`, as
            SYMMEM_TRACE does.
        options: other options of `symmem_open`, listed in symmem.h. If they contain "rank" and
            "size", symmem ignores the ranks of torch.distributed and uses the "store" of the
            options.

    Raises:
        LibraryError: libsymmem.so cannot be loaded.
        AbsentError: some ranks, which the error names, did not arrive. It is a TimeoutError.
        UnsupportedError: the backend cannot run here; for example, "nccl" without a GPU.
        InvalidError: symmem is already initialized with other ranks or options, this rank is not in
            the process group, or an argument is invalid.
    """
    asked = _asked(locals())
    if (already := session.matching_world(process_group, asked)) is not None:
        return already
    world = session.open(process_group, asked)
    if loaded():
        operators.register()
    if reserve:
        world.reserve(reserve, world.runtime.stream())
    return world


def open_world(
    process_group: WorldLike = None,
    *,
    device: Any = None,
    backend: Backend = "auto",
    check: CheckLevel | None = None,
    path: PathChoice | None = None,
    deterministic: Deterministic | None = None,
    tuning: str | None = None,
    timeout: float | None = None,
    capacity: int = 0,
    first_segment: int = 0,
    name: str | None = None,
    options: dict[str, Any] | None = None,
) -> Group:
    """Open another world and return the group of its ranks. Collective over these ranks only.

    A process can be a rank of several worlds, for example one of a trainer and one of an inference
    engine, with or without the world of `symmem.init`. A fault in one world does not affect the
    others. Pass the returned group to calls as their `group`; its `close` method closes the world.
    In the calls of one world, tensors of other worlds are ordinary tensors.

    Args:
        process_group: as in `init`. Calls also accept this process group in place of the returned
            group.
        device: as in `init`; must be the same in all worlds.
        backend: as in `init`.
        check: as in `init`.
        path: as in `init`.
        deterministic: as in `init`.
        tuning: as in `init`.
        timeout: as in `init`.
        capacity: as in `init`.
        first_segment: as in `init`.
        name: the name of the group; the default is derived from the ranks. Errors do not show it.
        options: as in `init`. Their "store" may also be a torch.distributed Store shared by exactly
            the "size" ranks of the world, each of which passes its "rank".

    Raises:
        AbsentError: some ranks, which the error names, did not arrive. It is a TimeoutError.
        InvalidError: this rank is not in the process group, or an argument is invalid.
    """
    opened = session.open_world(process_group, _asked(locals()), name)
    if loaded():
        operators.register()
    return opened


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments of `init` or `open_world` to options of `symmem_open`."""
    given = {name: arguments.get(name) for name in ("device", "tuning", "callsites", "trace")}
    if arguments["backend"] != "auto":
        given["backend"] = arguments["backend"]
    for name, read in _READERS.items():
        if (value := arguments[name]) is not None:
            given[name] = read(value)
    pool = {name: arguments[name] for name in ("capacity", "first_segment") if arguments[name]}
    given["pool"] = pool or None
    if arguments["timeout"] is not None:
        given["timeout_ms"] = milliseconds(arguments["timeout"])
    return origin.merged(given, arguments["options"] or {})


_READERS: dict[str, Callable[[Any], str]] = {
    "path": lambda path: path_choice(path).name.lower(),
    "deterministic": formula,
    "check": lambda level: check_level(level).name.lower(),
}


def finalize(*, force: bool = False) -> None:
    """Close the world of `init`, leaving its groups and returning its memory.

    `finalize` does nothing if symmem is not initialized. Worlds of `open_world` stay open. A
    program need not call it before it exits.

    `finalize` waits for queued work. If rank 0 serves the store, as it does without
    `symmem launch`, it also waits up to the timeout of `init` for the other ranks to close or exit.

    Args:
        force: close even if tensors are live; their memory stays mapped until they are freed. Wait
            at most one second for other ranks, and at most two for the device, which may be running
            a kernel that hangs.

    Raises:
        InvalidError: tensors are still live.
    """
    session.close(force)


def is_initialized() -> bool:
    """Return whether the world of `init` is open in this process."""
    return session.is_open


def library_path() -> str:
    """Return the path of the C library, for programs that load it themselves. See symmem.h.

    The library also exports `nccl_alloc_plug`, `nccl_free_plug` and
    `nccl_allocator_register_segments_with_comm`, the functions of the allocator that SGLang
    compiles.
    """
    return str(where())


def world() -> Group:
    """Return the group of all ranks of the world of `init`."""
    return session.groups.find()


def group(
    which: GroupLike = None,
    *,
    domain: Group | None = None,
    name: str | None = None,
    timeout: float | None = None,
    world: Group | None = None,
) -> Group:
    """Return a group, opening it on its first use. Opening is collective over the group's ranks.

    Every function with a `group` argument accepts the same values as `which`, so a program needs to
    call this function only to set a group's domain, name or timeout.

    Args:
        which: a PyTorch process group, a sequence of world ranks, the name of an open group, a
            `Group`, or None for the world.
        domain: the group whose memory is used in this group's scopes. The caller promises that all
            ranks of the domain allocate the same tensors in these scopes. By default, a group
            shares memory only with groups of the same ranks.
        name: distinguishes several groups of the same ranks.
        timeout: the longest wait for another rank of the group, in seconds, in this and later
            calls; the default is the world's. `Group.set_timeout` changes it.
        world: any group of the world in which to open the group; the default is the world of
            `symmem.init`.
    """
    return session.find(which, New(domain, name, timeout), world)
