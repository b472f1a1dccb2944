"""Groups: ranks that communicate, with a pool of memory."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple

from symmem import errors
from symmem._c.constants import NEVER_SEEN, Word
from symmem._c.library import Library
from symmem._rank.runtime import Runtime
from symmem._rank.streams import Lanes

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
    "set_timeout",
    "size",
)


LONGEST_TIMEOUT = 24 * 60 * 60.0
"""The longest timeout of the library, in seconds: a day."""


def milliseconds(timeout: float) -> int:
    """Convert a timeout in seconds, or raise if it is none."""
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise errors.InvalidError(
            f"timeout {timeout!r} is not a number of seconds above 0, up to a day"
        )
    return max(1, round(timeout * 1000))


class WindowTable:
    """A copy of a group's windows, so that a query makes no call until they change.

    Attributes:
        words: the words of the library.
        copy: `Word.WINDOWS` at the time of the copy, and the beginnings and ends of the windows in
            the order of addresses. It is replaced as a whole, because other threads read it.
    """

    __slots__ = ("_handle", "_library", "copy", "words")

    def __init__(self, library: Library, handle: int):
        self._library = library
        self._handle = handle
        self.words = library.words
        self.copy: tuple[int, list[int], list[int]] = (NEVER_SEEN, [], [])

    def refresh(self) -> tuple[int, list[int], list[int]]:
        """Copy the windows again."""
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


class Scopes(NamedTuple):
    """The scopes of a group, by the arguments of `symmem.use`."""

    plain: AbstractContextManager[Group]
    disabled: AbstractContextManager[Group]
    threads: AbstractContextManager[Group]


class Group:
    """Ranks that communicate; rank numbers count within the group.

    `symmem.init`, `symmem.open_world` and `symmem.group` make groups; do not call the class. Groups
    of a world with the same ranks share memory; others do not, unless they were given a `domain`.

    Attributes:
        name: the same on all of its ranks.
        rank: this rank's number in the group.
        ranks: the numbers in the world, in group order.
        pool: the number of the pool that its scopes allocate from, as `stats` lists them.
        values: packed arguments of calls of values, by instruction, name, operation and site.
        close_world: closes the world of which this is the group of all ranks; None unless
            `symmem.open_world` opened it.
        agreed: those of the latest `agree` under a name, with its instruction: most names have one.
    """

    def __init__(
        self,
        runtime: Runtime,
        handle: int,
        name: str,
        ranks: tuple[int, ...],
        pool: int,
        scopes_of: Callable[[Group], Scopes],
    ):
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
        self.router = runtime.router(pool)
        self.lanes = Lanes(handle, runtime.main and handle == runtime.world)
        self.values: dict[tuple[int, int, str, int, int], tuple[bytes, CodeType]] = {}
        self.agreed: dict[str, tuple[bytes, CodeType | None, int]] = {}
        self.closed = False
        self.close_world: Callable[[bool], None] | None = None
        self.scopes = scopes_of(self)
        self.scope = self.scopes.plain

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def __dir__(self) -> list[str]:
        """List the public names; the others are for the package."""
        return [*_PUBLIC, *(n for n in object.__dir__(self) if n.startswith("__"))]

    def __repr__(self) -> str:
        """Describe the group for people."""
        state = "closed " if self.closed else ""
        return f"<{state}symmem.Group {self.name!r}: rank {self.rank} of {list(self.ranks)}>"

    def torch_rank(self, rank: int) -> int:
        """Convert a rank of the group to its number in torch.distributed."""
        world = self.ranks[rank]
        numbers = self.runtime.torch_ranks
        return world if numbers is None else numbers[world]

    def root(self, src: int | None, group_src: int | None, name: str = "src") -> int:
        """Convert a root, given by its global or its group rank, to its rank in the group.

        Args:
            src: the number among all ranks.
            group_src: the number in the group; instead of src.
            name: the caller's name of src.
        """
        if (src is None) == (group_src is None):
            raise errors.InvalidError(f"give {name} or group_{name}, one of them")
        if group_src is not None:
            if not 0 <= group_src < self.size:
                raise errors.InvalidError(f"group_{name} {group_src}: the group has {self.size}")
            return group_src
        world, numbers = src, self.runtime.torch_ranks
        if numbers is not None:
            # A number of torch.distributed is not one of symmem, even if both exist.
            world = numbers.index(src) if src in numbers else -1
        if world not in self.ranks:
            raise errors.InvalidError(f"rank {src} is not in {self!r}")
        return self.ranks.index(world)

    def reserve(self, nbytes: int, stream: int) -> None:
        """Make and register memory for a stream."""
        if nbytes < 0:
            raise errors.InvalidError(f"reserving {nbytes} bytes: give 0 or more")
        self.library.call("symmem_reserve_on", self.pool, nbytes, stream, self.handle)
        self.end_scope(stream)

    def end_scope(self, stream: int) -> None:
        """Register new segments. Collective if there are any."""
        self.seen = self.library.number("symmem_scope_end", self.handle, stream)

    def pending(self) -> bool:
        """Report whether memory may have to be registered. It makes no call."""
        return bool(self.library.words[Word.PENDING] != self.seen)

    def error(self) -> errors.SymmemError | None:
        """Return the fault that ended the group, or None."""
        return self.library.group_error(self.handle)

    def abort(self) -> None:
        """Fail the group on all its ranks: calls that wait raise `AbortedError`."""
        self.library.call("symmem_group_abort", self.handle)

    def broken_off(self, error: BaseException) -> None:
        """Fail the group if a handler of a signal ended the wait for one of its collectives.

        Otherwise the other ranks could wait for calls that this rank never makes.
        """
        if not isinstance(error, Exception) or not isinstance(error, errors.SymmemError):
            self.library.raw.symmem_group_abort(self.handle)

    def set_path(self, path: int) -> None:
        """Set who chooses the path of collectives. Collective."""
        self.library.call("symmem_group_set_path", self.handle, path)

    def set_timeout(self, seconds: float) -> None:
        """Bound later waits of this rank for other ranks of the group, by 1 ms to a day.

        A rank that is late by more fails the group with a `TimeoutError` that names the rank. At
        first the timeout is that of the world, or the one that `symmem.group` was given.
        """
        self.library.call("symmem_group_set_timeout", self.handle, milliseconds(seconds))

    def describe(self) -> dict[str, Any]:
        """Describe the group as the library sees it."""
        return self.library.json("symmem_group_describe", self.handle)

    def close(self, *, force: bool = False) -> None:
        """Leave the group without waiting for others. CUDA graphs over it have no results then.

        The group that `symmem.open_world` returned closes its world, as `symmem.finalize` closes
        the world of `symmem.init`. Other worlds continue.

        Args:
            force: for a world: as `symmem.finalize` takes it.
        """
        if self.close_world is not None and not self.closed:
            self.close_world(force)
        elif not self.closed:
            self.library.call("symmem_group_close", self.handle)
            if self.runtime.device is None:
                self.runtime.streams.forget(self.lanes)
            self.retire()

    def retire(self) -> None:
        """Mark the group closed: its scopes raise from now on."""
        self.closed = True
        self.stop_diverting()

    def stop_diverting(self) -> None:
        """Make scopes of the group check that symmem is open before they divert."""
        if self.router is not None:
            self.router.first = None
