"""Groups of ranks that communicate and share pools of memory."""

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
"""The library's maximum timeout, in seconds."""


def milliseconds(timeout: float) -> int:
    """Convert a timeout from seconds to milliseconds. Raise `InvalidError` if it is invalid."""
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise errors.InvalidError(
            f"timeout {timeout!r} is not a number of seconds above 0 and up to a day"
        )
    return max(1, round(timeout * 1000))


class WindowTable:
    """A copy of a group's windows. Until they change, queries need not call the library.

    Attributes:
        words: the words of the library.
        copy: `Word.WINDOWS` at the time of the copy, and the start and end addresses of the
            windows, sorted by address. It is replaced as a whole, because other threads read it.
    """

    __slots__ = ("_handle", "_library", "copy", "words")

    def __init__(self, library: Library, handle: int):
        self._library = library
        self._handle = handle
        self.words = library.words
        self.copy: tuple[int, list[int], list[int]] = (NEVER_SEEN, [], [])

    def refresh(self) -> tuple[int, list[int], list[int]]:
        """Update the copy and return it."""
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
    """A group's scopes, one for each combination of arguments of `symmem.use`."""

    plain: AbstractContextManager[Group]
    disabled: AbstractContextManager[Group]
    threads: AbstractContextManager[Group]


class Group:
    """A group of ranks that communicate.

    Groups are created by `symmem.init`, `symmem.open_world` and `symmem.group`, not by the
    constructor. Groups of a world that have the same ranks share memory. Other groups do not,
    unless they have a `domain`.

    Attributes:
        name: the group's name, which is the same on all ranks.
        rank: this rank's number in the group.
        ranks: the world ranks of the members, in group order.
        pool: the number of the pool from which the group's scopes allocate, as shown by `stats`.
        values: the packed arguments of calls on values, by instruction, name, operation and site.
        close_world: closes the world if `symmem.open_world` returned this group; otherwise None.
        agreed: the packed arguments of the latest `agree` for each name, with the instruction that
            made the call. Most names are used by a single instruction.
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
        """List the public names. The others are for this package."""
        return [*_PUBLIC, *(n for n in object.__dir__(self) if n.startswith("__"))]

    def __repr__(self) -> str:
        """Return a description with the name and the ranks."""
        state = "closed " if self.closed else ""
        return f"<{state}symmem.Group {self.name!r}: rank {self.rank} of {list(self.ranks)}>"

    def torch_rank(self, rank: int) -> int:
        """Convert a rank of the group to its global rank in torch.distributed."""
        world = self.ranks[rank]
        numbers = self.runtime.torch_ranks
        return world if numbers is None else numbers[world]

    def root(self, src: int | None, group_src: int | None, name: str = "src") -> int:
        """Return the group rank of a root that is given by its global or its group rank.

        Args:
            src: the global rank.
            group_src: the rank in the group, as an alternative to src.
            name: the caller's name for src.
        """
        if (src is None) == (group_src is None):
            raise errors.InvalidError(f"pass either {name} or group_{name}")
        if group_src is not None:
            if not 0 <= group_src < self.size:
                raise errors.InvalidError(
                    f"group_{name} is {group_src}, but the group has {self.size} ranks"
                )
            return group_src
        world, numbers = src, self.runtime.torch_ranks
        if numbers is not None:
            # The numbering of torch.distributed may differ from that of symmem's world.
            world = numbers.index(src) if src in numbers else -1
        if world not in self.ranks:
            raise errors.InvalidError(f"rank {src} is not in {self!r}")
        return self.ranks.index(world)

    def reserve(self, nbytes: int, stream: int) -> None:
        """Map and register memory for a stream."""
        if nbytes < 0:
            raise errors.InvalidError(f"cannot reserve {nbytes} bytes")
        self.library.call("symmem_reserve_on", self.pool, nbytes, stream, self.handle)
        self.end_scope(stream)

    def end_scope(self, stream: int) -> None:
        """Register new segments. Collective if there are any."""
        self.seen = self.library.number("symmem_scope_end", self.handle, stream)

    def pending(self) -> bool:
        """Return whether memory may have to be registered, without calling the library."""
        return bool(self.library.words[Word.PENDING] != self.seen)

    def error(self) -> errors.SymmemError | None:
        """Return the fault that made the group fail, or None."""
        return self.library.group_error(self.handle)

    def abort(self) -> None:
        """Fail the group on all its ranks. Pending calls raise `AbortedError`."""
        self.library.call("symmem_group_abort", self.handle)

    def abort_if_interrupted(self, error: BaseException) -> None:
        """Fail the group if a signal handler interrupted the wait for one of its collectives.

        Otherwise the other ranks might wait for calls that this rank never makes.
        """
        if not isinstance(error, Exception) or not isinstance(error, errors.SymmemError):
            self.library.raw.symmem_group_abort(self.handle)

    def set_path(self, path: int) -> None:
        """Set the path of collectives, or let the tuning table choose it. Collective."""
        self.library.call("symmem_group_set_path", self.handle, path)

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of this rank's later waits for other ranks of the group.

        It may be 1 ms to a day. If a rank does not arrive in time, the group fails with a
        `TimeoutError` that names the rank. The initial timeout is that of the world, or the one
        passed to `symmem.group`.
        """
        self.library.call("symmem_group_set_timeout", self.handle, milliseconds(seconds))

    def describe(self) -> dict[str, Any]:
        """Return the library's description of the group."""
        return self.library.json("symmem_group_describe", self.handle)

    def close(self, *, force: bool = False) -> None:
        """Leave the group without waiting for other ranks. Its CUDA graphs become invalid.

        If `symmem.open_world` returned this group, `close` closes the world, as `symmem.finalize`
        closes the world of `symmem.init`. Other worlds are not affected.

        Args:
            force: as in `symmem.finalize`, for the group of a world.
        """
        if self.close_world is not None and not self.closed:
            self.close_world(force)
        elif not self.closed:
            self.library.call("symmem_group_close", self.handle)
            if self.runtime.device is None:
                self.runtime.streams.forget(self.lanes)
            self.retire()

    def retire(self) -> None:
        """Mark the group as closed, so that its scopes raise an error."""
        self.closed = True
        self.stop_diverting()

    def stop_diverting(self) -> None:
        """Make scopes of the group check that symmem is open before they divert."""
        if self.router is not None:
            self.router.first = None
