"""Opening and closing the rank of this process, and finding its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import operators
from symmem._c.constants import check_level, formula, path_choice
from symmem._c.library import where
from symmem._rank import origin
from symmem._rank.group import Group
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
            "window" and "direct", to be taken wherever it can be.
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
        options: further options of `symmem_open`, as symmem.h lists them. With "rank" and "size"
            the ranks are not those of torch.distributed, and meet in the "store" of the options.

    Raises:
        LibraryError: libsymmem.so cannot be loaded.
        AbsentError: ranks did not arrive; it names them, and is a TimeoutError.
        UnsupportedError: the backend cannot work here, as "nccl" without a GPU.
        InvalidError: symmem is open already, with other ranks or options; this rank is not in the
            process group; or an argument is none of those above.
    """
    pool = {"capacity": capacity, "first_segment": first_segment}
    given: dict[str, Any] = {
        "device": device,
        "backend": None if backend == "auto" else backend,
        "path": None if path is None else path_choice(path).name.lower(),
        "deterministic": None if deterministic is None else formula(deterministic),
        "tuning": tuning,
        "check": None if check is None else check_level(check).name.lower(),
        "callsites": callsites,
        "pool": {k: v for k, v in pool.items() if v} or None,
    }
    if timeout is not None:
        if not 0 < timeout <= origin.LONGEST_TIMEOUT:
            raise errors.InvalidError(
                f"timeout {timeout!r} is not a number of seconds above 0, up to a day"
            )
        given["timeout_ms"] = max(1, round(timeout * 1000))
    asked = origin.merged(given, options or {})
    if (already := session.opened_alike(process_group, asked)) is not None:
        return already
    world = session.open(process_group, asked)
    if loaded():
        operators.register()
    if reserve:
        world.reserve(reserve, world.runtime.stream())
    return world


def finalize(*, force: bool = False) -> None:
    """Close this rank: leave all groups and give all memory back. Does nothing if not open.

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
    """Report whether symmem is open in this process."""
    return session.is_open


def library_path() -> str:
    """Name the file of the C library, for programs that load it themselves; symmem.h describes it.

    Its `nccl_alloc_plug`, `nccl_free_plug` and `nccl_allocator_register_segments_with_comm` are
    those of the library that SGLang compiles.
    """
    return str(where())


def world() -> Group:
    """Return the group of all ranks."""
    return session.groups.find()


def group(
    which: GroupLike = None, *, domain: Group | None = None, name: str | None = None
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
    """
    return session.groups.find(which, domain=domain, name=name)
