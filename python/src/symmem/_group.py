"""Groups: ranks that communicate, and the memory that they share."""

from __future__ import annotations

import ctypes as c
import operator
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._constants import NEVER_SEEN, Word
from symmem._library import Library
from symmem._scope import Scopes
from symmem._streams import Lanes
from symmem._torch import loaded, pytorch

if TYPE_CHECKING:
    from symmem._routing import Router
    from symmem._runtime import Runtime


_PUBLIC = (
    "abort",
    "close",
    "closed",
    "describe",
    "error",
    "name",
    "pool",
    "rank",
    "ranks",
    "set_path",
    "size",
)


class NotAMemberError(errors.InvalidError):
    """This rank is not in the group."""


class WindowTable:
    """The windows of a group, copied, so that asking costs no call while they stand.

    Attributes:
        words: those of the library.
        copy: the value of `Word.WINDOWS` that the copy is of, and where windows begin and end, in
            the order of addresses. It is replaced as a whole: other threads read it meanwhile.
    """

    __slots__ = ("_handle", "_library", "copy", "words")

    def __init__(self, library: Library, handle: int):
        self._library = library
        self._handle = handle
        self.words = library.words
        self.copy: tuple[int, list[int], list[int]] = (NEVER_SEEN, [], [])

    def refresh(self) -> tuple[int, list[int], list[int]]:
        """Copy the windows anew."""
        seen = self.words[Word.WINDOWS]
        pairs = self._read()
        fresh = (seen, [a for a, _ in pairs], [a + n for a, n in pairs])
        self.copy = fresh
        return fresh

    def _read(self) -> list[tuple[int, int]]:
        capacity = 64
        while True:
            pairs = (c.c_int64 * (2 * capacity))()
            count = self._library.number("symmem_windows", self._handle, capacity, pairs)
            if count <= capacity:
                flat = list(pairs[: 2 * count])
                return list(zip(flat[::2], flat[1::2], strict=True))
            capacity = 2 * count


class Group:
    """Ranks that communicate; rank numbers count within the group.

    Groups come from `symmem.init` and `symmem.group`, never from calling the class. A group whose
    ranks are those of another group shares that one's memory; any other has memory of its own
    unless it was given a `domain`.

    Attributes:
        name: the same on all of its ranks.
        rank: this rank's number in the group.
        ranks: the numbers in the world, in group order.
        pool: the number of the pool that its scopes allocate from, as `stats` lists them.
    """

    def __init__(self, runtime: Runtime, handle: int, name: str, ranks: tuple[int, ...], pool: int):
        self.runtime = runtime
        self.library = runtime.library
        self.handle = handle
        self.name = name
        self.ranks = ranks
        self.rank = ranks.index(runtime.rank)
        self.pool = pool
        self.seen = NEVER_SEEN
        self.warned = NEVER_SEEN
        self.windows = WindowTable(self.library, handle)
        self.router: Router | None = runtime.router(pool)
        self.scopes = Scopes.of(self, self.router, runtime.callsites)
        self.scope = self.scopes.plain
        self.lanes = Lanes(handle, name == "world")
        self.closed = False

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def __dir__(self) -> list[str]:
        """List what is public; the rest is the package's own."""
        return [*_PUBLIC, *(n for n in object.__dir__(self) if n.startswith("__"))]

    def __repr__(self) -> str:
        """Describe the group for people."""
        state = "closed " if self.closed else ""
        return f"<{state}symmem.Group {self.name!r}: rank {self.rank} of {list(self.ranks)}>"

    def end_scope(self, stream: int) -> None:
        """Register what is new. Collective, if something is."""
        self.seen = self.library.number("symmem_scope_end", self.handle, stream)

    def pending(self) -> bool:
        """Tell whether something may have to be registered; it costs no call."""
        return bool(self.library.words[Word.PENDING] != self.seen)

    def error(self) -> errors.SymmemError | None:
        """Return the fault that has ended the group, or None while it is open."""
        return self.library.group_error(self.handle)

    def abort(self) -> None:
        """Fail the group on all its ranks: calls that wait raise `AbortedError`."""
        self.library.call("symmem_group_abort", self.handle)

    def broken_off(self, error: BaseException) -> None:
        """Fail the group where a handler of a signal has ended the wait for a collective of it.

        The collective would go on without its caller, and the other ranks with what this one may
        never take part in.
        """
        if not isinstance(error, Exception) or not isinstance(error, errors.SymmemError):
            self.library.raw.symmem_group_abort(self.handle)

    def set_path(self, path: int) -> None:
        """Set who chooses the path of collectives. Collective."""
        self.library.call("symmem_group_set_path", self.handle, path)

    def describe(self) -> dict[str, Any]:
        """Describe the group as the library sees it."""
        return self.library.json("symmem_group_describe", self.handle)

    def close(self) -> None:
        """Leave the group. Waits for nobody. CUDA graphs over it end without a result then."""
        if not self.closed:
            self.library.call("symmem_group_close", self.handle)
            if self.runtime.device is None:
                self.runtime.streams.forget(self.lanes)
            self.retire()
            self.runtime.groups.pop(self.name, None)

    def retire(self) -> None:
        """Make scopes of the group raise instead of diverting."""
        self.closed = True
        if self.router is not None:
            self.router.first = None


def open_group(library: Library, name: str, ranks: tuple[int, ...]) -> int:
    """Open a group of world ranks, collective over them, and return its handle."""
    text = name.encode()
    array = (c.c_int32 * len(ranks))(*ranks)
    return library.number("symmem_group_open", len(text), text, len(ranks), array)


def process_group_of(which: Any, names: list[str]) -> Any:
    """Find PyTorch's process group for what `symmem.group` was given; None if that is ranks."""
    if isinstance(which, str):
        found = _resolved(which)
        if found is None:
            raise errors.InvalidError(f"no group is named {which!r}: {names}")
        return found
    dist = pytorch().distributed if loaded() else None
    if dist is None:
        return None
    if isinstance(which, dist.ProcessGroup) or which is dist.GroupMember.NON_GROUP_MEMBER:
        return which
    mesh, dimension = which if isinstance(which, tuple) and len(which) == 2 else (which, None)
    if not isinstance(mesh, dist.device_mesh.DeviceMesh):
        return None
    if mesh.ndim > 1 and dimension is None:
        raise errors.InvalidError(
            f"a mesh of {mesh.ndim} dimensions is no group: pass (mesh, dimension), or one group "
            "of it by mesh.get_group(dimension)"
        )
    if mesh.get_coordinate() is None:
        raise NotAMemberError(f"this rank is not in {mesh}")
    return mesh.get_group(dimension or 0)


def _resolved(name: str) -> Any:
    """Find a process group by the name that PyTorch gave it, such as "0"."""
    dist = pytorch().distributed if loaded() else None
    if dist is None or not dist.is_initialized():
        return None
    try:
        return dist.distributed_c10d._resolve_process_group(name)
    except (LookupError, ValueError, RuntimeError):
        return None


def ranks_of(which: Any) -> tuple[int, ...]:
    """Read the ranks of a group."""
    try:
        if not isinstance(which, bytes | bytearray):
            return tuple(operator.index(r) for r in which)
        raise TypeError
    except TypeError:
        raise errors.InvalidError(
            f"{which!r} is no group: pass a process group or a mesh of PyTorch, a sequence of "
            "ranks, the name of a group that is open, or a symmem.Group"
        ) from None
