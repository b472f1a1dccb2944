"""Symmetric GPU memory for collectives, for programs that use PyTorch.

Tensors that are made in a scope lie at the same place on every rank, in memory that is registered
with NCCL, so collectives on them read and write peers directly; and ranks that differ get an error
that says where, instead of wrong sums or a hang.

    import symmem

    torch.distributed.init_process_group("nccl")
    symmem.init()
    with symmem.use():
        x = torch.empty(1024, 8192, device="cuda", dtype=torch.bfloat16)
    symmem.all_reduce(x)

The guides are in `docs` next to the sources. `import symmem` imports neither torch nor the library.
"""

# The packages, from below to above: each imports those alone that stand before it here, also for
# types and inside functions.
#
#   errors: what symmem raises
#   _c: the C library
#   _torch: PyTorch and its CUDA allocator
#   _rank: this process as a rank, with its groups
#   _api: what programs call
#   _version: the version
#   __init__: the names that are public
#   verify: a program

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from symmem._api import operators
from symmem._api.barriers import barrier, synchronize
from symmem._api.collectives import (
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    broadcast,
    reduce_scatter_tensor,
)
from symmem._api.make import alloc, empty, empty_like, full, ones, zeros
from symmem._api.memory import Block
from symmem._api.messages import irecv, isend, recv, send
from symmem._api.norms import all_reduce_rms_norm
from symmem._api.questions import Explanation, check, explain, is_symmetric, set_check, stats
from symmem._api.stop import request_stop, should_stop
from symmem._api.values import agree, combine, step
from symmem._c.constants import check_level, formula, path_choice
from symmem._c.library import where
from symmem._rank import origin
from symmem._rank.group import Group
from symmem._rank.scope import Nothing
from symmem._rank.session import find, session
from symmem._rank.work import Work
from symmem._torch.cuda import NO_POOL, live_pools
from symmem._torch.pytorch import DYNAMO, compiling, loaded, modules, pytorch
from symmem._version import __version__
from symmem.errors import (
    AbortedError,
    AbsentError,
    CapturingError,
    ClosedError,
    DeadlockError,
    DivergenceError,
    ForkedError,
    GrowthInCaptureWarning,
    InternalError,
    InvalidError,
    LateWarning,
    LibraryError,
    MemoryUseError,
    MessageEnds,
    MessageError,
    MismatchError,
    OutOfMemoryError,
    OutOfRangeError,
    RankLostError,
    SymmemError,
    TorchError,
    UnsupportedError,
)
from symmem.errors import InterruptedError as InterruptedError
from symmem.errors import TimeoutError as TimeoutError

if TYPE_CHECKING:
    from symmem._api.terms import (
        Backend,
        CheckLevel,
        Deterministic,
        GroupLike,
        PathChoice,
        WorldLike,
    )

__all__ = [
    "AbortedError",
    "AbsentError",
    "Block",
    "CapturingError",
    "ClosedError",
    "DeadlockError",
    "DivergenceError",
    "Explanation",
    "ForkedError",
    "Group",
    "GrowthInCaptureWarning",
    "InternalError",
    "InvalidError",
    "LateWarning",
    "LibraryError",
    "MemoryUseError",
    "MessageEnds",
    "MessageError",
    "MismatchError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "RankLostError",
    "SymmemError",
    "TorchError",
    "UnsupportedError",
    "Work",
    "__version__",
    "agree",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_rms_norm",
    "all_to_all_single",
    "alloc",
    "attach",
    "barrier",
    "broadcast",
    "check",
    "combine",
    "detach",
    "empty",
    "empty_like",
    "explain",
    "failed",
    "finalize",
    "forget_stream",
    "full",
    "group",
    "init",
    "irecv",
    "is_initialized",
    "is_symmetric",
    "isend",
    "library_path",
    "ones",
    "recv",
    "reduce_scatter_tensor",
    "request_stop",
    "reserve",
    "send",
    "set_check",
    "set_path",
    "should_stop",
    "stats",
    "step",
    "synchronize",
    "trim",
    "use",
    "world",
    "zeros",
]


_SHADOWING = ["InterruptedError", "TimeoutError"]
"""Public names that Python has, too, so `from symmem import *` leaves them out."""


def __dir__() -> list[str]:
    """List what is public."""
    return sorted([*__all__, *_SHADOWING])


# ---- Opening and closing ---------------------------------------------------------------------


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

    If symmem is open already, with all that is given here, nothing is done and the world returned.

    Where torch.distributed is initialised ranks and their meeting place come from it: from its
    default process group, or from the one that is given. Else they come from the environment:
    torchrun, Open MPI, MPICH, Slurm or `symmem launch`.

    Args:
        process_group: the ranks of torch.distributed that are to be symmem's world, all of them
            unless given: a process group, a mesh of one dimension such as `mesh["tp"]`, a mesh and
            a dimension, a sequence of ranks, or PyTorch's name of a process group.
        device: the CUDA device; PyTorch's current one unless given.
        backend: "auto", "nccl" or "host".
        check: how much ranks compare: "off", "registration" or "every". The default is "every"
            where all ranks are on one machine, since PyTorch divides up our memory on its own: a
            tensor too many on one rank moves tensors without our seeing it, until a collective on
            them is compared. Elsewhere it is what the backend finds cheap.
        path: who chooses the path of collectives: "auto" (the tuning table), or one of "plain",
            "window" and "direct", to be taken wherever it can be.
        deterministic: every reduction gives the bits of one formula, whatever the size, the memory
            and the path, or raises UnsupportedError: True or "ranks" adds in the order of ranks,
            "tree" and "rounded-tree" in pairs (docs/reference/deterministic.md). False or "any" is
            none, also where SYMMEM_DETERMINISTIC says otherwise. All ranks give the same.
        tuning: the file of a tuning table, as `symmem tune` writes it, or "built-in".
        timeout: the longest wait for another rank, in seconds, in this call and in all others; that
            of the process group unless given, else 10 minutes. A rank that lives and does not come
            is warned of much earlier.
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
        AbsentError: ranks did not come; it names them, and is a TimeoutError.
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
            raise InvalidError(f"timeout {timeout!r} is no number of seconds above 0, up to a day")
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
            the same tensors in these scopes. Unless given, a group shares the memory of groups with
            the same ranks, and has memory of its own otherwise.
        name: the name of a group that is given by ranks, where there are several with these ranks.
    """
    return session.groups.find(which, domain=domain, name=name)


# ---- Memory ----------------------------------------------------------------------------------


def use(
    group: GroupLike = None, disabled: bool = False, *, all_threads: bool = False
) -> AbstractContextManager[Group | None]:
    """Open a scope: tensors that are made inside are symmetric among the ranks of the group.

    All ranks of the group's domain make the same tensors inside, in the same order. The end of the
    scope registers memory that is new; that is collective over the group, rare, and costs nothing
    when nothing is new. A scope that is left by an exception registers nothing.

    Scopes nest, of one group or several; the innermost counts. In the capture of a CUDA graph
    tensors come from memory that belongs to the graph. On GPUs every tensor that PyTorch allocates
    on this thread is meant; on the host backend those of `symmem.empty`, since PyTorch lets nobody
    divert tensors of the processor.

    Args:
        group: as `symmem.group` takes it; the world unless given.
        disabled: make ordinary tensors, even inside another scope. For code whose ranks have
            tensors of different shapes on some calls.
        all_threads: also for tensors that other threads make meanwhile, as `backward()` does. No
            thread but one allocates at a time then, or the order differs between ranks.
    """
    if DYNAMO in modules and compiling():
        return Nothing()
    found = group if group.__class__ is Group else find(group)
    if disabled:
        return found.scopes.disabled
    return found.scopes.threads if all_threads else found.scope


def reserve(nbytes: int, group: GroupLike = None, *, stream: Any = None) -> None:
    """Make and register memory, so that so many more bytes need no growth. Collective.

    Memory belongs to a stream, as PyTorch's does, so this is for tensors that are made on that
    stream. What a CUDA graph needs is reserved before its capture, on the stream of the capture,
    because nothing can be registered meanwhile. Graphs with private pools of their own need memory
    for each. PyTorch asks for 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB.

    Args:
        nbytes: how many more bytes.
        group: whose memory; the world's unless given.
        stream: a CUDA stream; the current one unless given.
    """
    found = find(group)
    runtime = found.runtime
    runtime.require()
    runtime.attachments.wait_idle(found.handle)
    number = runtime.stream() if stream is None else int(stream.cuda_stream)
    previous = runtime.set_site() if runtime.callsites else None
    try:
        found.reserve(nbytes, number)
    finally:
        if previous is not None:
            runtime.library.raw.symmem_set_site(previous)


def trim(keep: int = 0, group: GroupLike = None) -> None:
    """Give memory without tensors back to the device. Collective over the group's domain.

    It waits for the device, and PyTorch's cache of the group's memory is emptied. What CUDA graphs
    use of it goes with the graphs.

    Args:
        keep: the bytes that stay mapped at least.
        group: whose memory; the world's unless given.
    """
    found = find(group)
    runtime = found.runtime
    if runtime.cuda is not None and found.router is not None:
        runtime.cuda.torch.module.cuda.synchronize()
        alive = live_pools(runtime.cuda.torch)
        # Whether a graph without a private pool lives cannot be seen, so it is taken to.
        found.router.forget(lambda key: key in alive or key[0] == NO_POOL)
        found.router.reset()
        runtime.cuda.torch.module.cuda.empty_cache()
    runtime.attachments.wait_idle(found.handle)
    if runtime.cuda is None:
        found.library.call("symmem_trim", found.pool, keep)
        return
    # PyTorch has waited for the device, so no stream is asked about: one may be destroyed.
    found.library.call("symmem_streams_idle", 1)
    try:
        found.library.call("symmem_trim", found.pool, keep)
    finally:
        found.library.call("symmem_streams_idle", 0)


# ---- Faults and paths -------------------------------------------------------------------------


def failed() -> bool:
    """Report whether a group of this rank has failed since `init`: its last results are none.

    It reads a word and calls nothing, so a loop that replays graphs can ask in every round. The
    word changes within 50 ms of what a kernel reports. `check`, `synchronize` or the next call on
    the group raises the fault.
    """
    runtime = session.runtime
    return bool(runtime.library.words[2] != runtime.faults)  # Word.FAULTS


def forget_stream(stream: Any) -> None:
    """Let go of a CUDA stream that is about to be destroyed, when its work is done.

    symmem keeps what it knows of each stream that it was used on until symmem is closed. Streams of
    PyTorch's own come from a few that live as long as the process, and need not be forgotten.

    Args:
        stream: a CUDA stream, or its address as a number.
    """
    runtime = session.runtime
    runtime.require()
    if runtime.device is None:
        raise UnsupportedError("the host backend has no streams of others that could be forgotten")
    number = int(getattr(stream, "cuda_stream", stream))
    runtime.library.call("symmem_stream_forget", number)


def set_path(path: PathChoice, group: GroupLike = None) -> None:
    """Set who chooses a group's paths: auto, plain, window or direct. Collective."""
    find(group).set_path(path_choice(path))


# ---- PyTorch's own communicators -------------------------------------------------------------


def attach(process_group: GroupLike = None) -> Group:
    """Register the group's memory with PyTorch's own communicator, too. Collective.

    Calls of torch.distributed on this process group then run on windows wherever their tensors were
    made in scopes of the group that is returned, without a change. NCCL decides by itself then:
    symmem's tuning table and its comparison of calls do not apply.

    The process group is on the "nccl" backend of PyTorch, and nothing is under way on it on other
    streams. Detach it before it is destroyed.
    """
    runtime = session.runtime
    runtime.require()
    if runtime.device is None:
        raise UnsupportedError("attach is for NCCL communicators; symmem runs on the host backend")
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    found = find(pg)
    runtime.attachments.attach(pg, found.handle, runtime.device)
    return found


def detach(process_group: GroupLike = None) -> bool:
    """Undo `attach` on this rank, and report whether there was anything to undo."""
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    return session.runtime.attachments.detach(pg)
