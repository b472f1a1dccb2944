"""Opening and closing the rank of this process, and finding its groups."""

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
    """Open this process as one rank, and return the group of all ranks. Collective.

    If symmem is open already with the same arguments, nothing is done and the world is returned.

    If torch.distributed is initialised, the ranks and the store in which they meet come from the
    process group that is given, or from the default one. Otherwise they come from the environment
    of the launcher: torchrun, Open MPI, MPICH, Slurm or `symmem launch`.

    Args:
        process_group: the ranks of torch.distributed that are to be symmem's world, all of them
            unless given: a process group, a mesh of one dimension such as `mesh["tp"]`, a mesh and
            a dimension, a sequence of ranks, or PyTorch's name of a process group.
        device: the CUDA device; PyTorch's current one unless given.
        backend: "auto", "nccl" or "host".
        check: how much ranks compare: "off", "registration" or "every". The default is "every"
            if all ranks are on one machine: symmem does not see how PyTorch divides segments, so an
            extra tensor on one rank moves others, and only a comparison of collectives finds it.
            Otherwise the backend chooses a cheap level.
        path: who chooses the path of collectives: "auto" (the tuning table), or one of "plain",
            "window", "direct" and "two-level", to be taken wherever it can be.
        deterministic: every reduction gives the bits of one formula, whatever the size, the memory
            and the path, or raises UnsupportedError: True or "ranks" adds in the order of ranks,
            "tree" and "rounded-tree" in pairs (docs/reference/deterministic.md). False or "any" is
            none, and overrides SYMMEM_DETERMINISTIC. All ranks pass the same.
        tuning: the file of a tuning table, as `symmem tune` writes it, or "built-in".
        timeout: the longest wait for another rank, in seconds, in this call and in all others; that
            of the process group unless given, else 10 minutes. A warning
            names a late rank much earlier.
        reserve: bytes of the world's memory to make and register now, as `symmem.reserve` does.
        capacity: the most bytes that the world's memory may grow to; 0 is no limit.
        first_segment: the bytes of the first segment; each further one doubles the memory.
        callsites: note the lines of Python that make tensors and call collectives, for errors, as
            SYMMEM_CALLSITES=1 does. A number up to 8 notes as many lines of each call, so that a
            helper does not hide its callers.
        trace: a folder in which this rank writes a trace of its events for `symmem diff`, as
            SYMMEM_TRACE does.
        options: further options of `symmem_open`, as symmem.h lists them. With "rank" and "size"
            the ranks are not those of torch.distributed, and meet in the "store" of the options.

    Raises:
        LibraryError: libsymmem.so cannot be loaded.
        AbsentError: ranks did not arrive; it names them, and is a TimeoutError.
        UnsupportedError: the backend cannot work here, as "nccl" without a GPU.
        InvalidError: symmem is open already, with other ranks or options; this rank is not in the
            process group; or an argument is none of those above.
    """
    asked = _asked(locals())
    if (already := session.opened_alike(process_group, asked)) is not None:
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
    """Open another world, and return the group of its ranks. Collective over these ranks only.

    A process can be a rank of several worlds, such as that of a trainer and that of an engine, with
    or without the world of `symmem.init`. A fault of one world does not affect the others, and each
    is closed separately: `close` of the group that is returned closes its world. Pass that group as
    the `group` of calls. Tensors of one world are ordinary tensors in the calls of others.

    Args:
        process_group: as `init` takes it. The process group then also stands for the group that is
            returned.
        device: as `init` takes it; the same in all worlds.
        backend: as `init` takes it.
        check: as `init` takes it.
        path: as `init` takes it.
        deterministic: as `init` takes it.
        tuning: as `init` takes it.
        timeout: as `init` takes it.
        capacity: as `init` takes it.
        first_segment: as `init` takes it.
        name: the name of the group, which is in no error; made from the ranks unless given.
        options: as `init` takes them. Their "store" may be a Store of torch.distributed that only
            the "size" ranks use, each with its "rank": they meet through it.

    Raises:
        AbsentError: ranks did not arrive; it names them, and is a TimeoutError.
        InvalidError: this rank is not in the process group, or an argument is none of those above.
    """
    opened = session.open_world(process_group, _asked(locals()), name)
    if loaded():
        operators.register()
    return opened


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Collect what `init` or `open_world` was given, for `symmem_open`."""
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
    """Close the world of `init`: leave its groups and return its memory. Do nothing if not open.

    Worlds of `open_world` stay open.

    It waits for work that is queued. Rank 0 also waits for the others to close or end, up to the
    timeout of `init`, if it serves their store (no launcher of symmem does). A program need not
    call it before it exits.

    Args:
        force: close although tensors are live, and wait for other ranks for a second at most. The
            memory of live tensors stays mapped until they are freed.
            The device is waited for, for two seconds at most: one may have a kernel that hangs.

    Raises:
        InvalidError: tensors are live still.
    """
    session.close(force)


def is_initialized() -> bool:
    """Report whether the world of `init` is open in this process."""
    return session.is_open


def library_path() -> str:
    """Name the file of the C library, for programs that load it themselves; symmem.h describes it.

    Its `nccl_alloc_plug`, `nccl_free_plug` and `nccl_allocator_register_segments_with_comm` are
    those of the library that SGLang compiles.
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
    """Find a group; open it if this is its first use. Opening is collective over its ranks.

    Every function that takes a group takes what this one takes, so groups need not be opened
    beforehand unless they are to have a domain.

    Args:
        which: a process group of PyTorch, a sequence of world ranks, the name of a group that is
            open, a group, or None for the world.
        domain: the group whose memory its scopes use: it promises that all ranks of the domain make
            the same tensors in these scopes. Unless given, a group shares memory with groups of the
            same ranks only.
        name: the name of a group that is given by ranks, where there are several with these ranks.
        timeout: the longest wait for another rank of the group, in seconds, here and in later
            calls; that of the world unless given. `Group.set_timeout` changes it.
        world: any group of the world to open the group in; that of `symmem.init` unless given.
    """
    return session.find(which, New(domain, name, timeout), world)
