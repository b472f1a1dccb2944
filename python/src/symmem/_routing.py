"""Which pool of PyTorch's a thread allocates from.

PyTorch keeps, for each device, a list of pools that divert allocations. A pool may stand in it only
once, whichever thread put it there, so two threads cannot divert to one pool at the same time. They
do in practice: a scope around `backward()` on one thread, a scope inside a custom backward function
on another. So a domain has several *lanes*, each a MemPool of PyTorch's over the same pool of ours,
and a thread takes the lowest lane that no other thread holds. Which one that is depends only on who
is inside a scope at that point of the program, which ranks share.

While a CUDA graph is captured allocations go to lanes that belong to the graph's own private pool
and serve nobody else, so what a graph wrote on its last replay is never handed to anyone while the
graph lives, and graphs share memory exactly where the caller made them share PyTorch's.

Nothing here calls the C library: entering and leaving a scope costs two or three calls into PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

EAGER: tuple[int, int] = (-1, -1)
"""The key of lanes outside graph capture."""


class Hooks(Protocol):
    """What routing needs of PyTorch; tests give their own."""

    def new_pool(self) -> Any:
        """Make a MemPool over symmem's memory. It has an attribute `id`."""

    def begin(self, pool_id: tuple[int, int]) -> None:
        """Divert this thread's allocations to a pool."""

    def begin_all(self, pool_id: tuple[int, int]) -> None:
        """Divert the allocations of all threads to a pool."""

    def end(self, pool_id: tuple[int, int]) -> None:
        """Stop diverting to a pool, and drop the reference that beginning took."""

    def capturing(self) -> bool:
        """Tell whether this thread's current stream is being captured."""

    def capture_key(self) -> tuple[int, int]:
        """Name the private pool of the capture under way; it costs a call into CUDA."""


class Lane:
    """One MemPool of PyTorch's: free, or held by one thread's open scope."""

    __slots__ = ("key", "pool", "pool_id", "taken")

    def __init__(self, pool: Any, key: tuple[int, int]):
        self.pool = pool
        self.pool_id: tuple[int, int] = pool.id
        self.key = key
        self.taken = False


class _Local(threading.local):
    """The lanes that this thread's open scopes hold, outermost first; None is ordinary memory."""

    def __init__(self) -> None:
        self.stack: list[Lane | None] = []


class Router:
    """The lanes of one domain on one device.

    It is safe for concurrent use. Lanes are made on first use and kept: PyTorch gives segments of a
    live MemPool back only when the MemPool ends.
    """

    def __init__(self, hooks: Hooks, local: _Local, older_first: bool = False):
        self.hooks = hooks
        self.lanes: dict[tuple[int, int], list[Lane]] = {EAGER: []}
        self._local = local
        self._lock = threading.Lock()
        self._older_first = older_first

    def enter(self, all_threads: bool = False) -> Lane | None:
        """Divert this thread to the domain's memory, and return what `leave` wants.

        It returns None where the thread is diverted there already.
        """
        hooks = self.hooks
        key = hooks.capture_key() if hooks.capturing() else EAGER
        stack = self._local.stack
        held = stack[-1] if stack else None
        if held is not None and held.key == key and held in self.lanes.get(key, ()):
            return None
        lane = self._take(key)
        if held is not None:
            hooks.end(held.pool_id)
        try:
            (hooks.begin_all if all_threads else hooks.begin)(lane.pool_id)
        except BaseException:
            lane.taken = False
            if held is not None:
                hooks.begin(held.pool_id)
            raise
        stack.append(lane)
        return lane

    def leave(self, lane: Lane) -> None:
        """Undo `enter`: the thread is diverted to what it was diverted to before."""
        stack = self._local.stack
        stack.pop()
        self.hooks.end(lane.pool_id)
        lane.taken = False
        if stack and (outer := stack[-1]) is not None:
            self.hooks.begin(outer.pool_id)

    def _take(self, key: tuple[int, int]) -> Lane:
        """Take the lowest free lane of a key, and make one if there is none."""
        with self._lock:
            lanes = self.lanes.setdefault(key, [])
            for lane in lanes:
                if not lane.taken:
                    lane.taken = True
                    return lane
            lane = Lane(self.hooks.new_pool(), key)
            lane.taken = True
            lanes.append(lane)
            return lane

    def forget(self, alive: Callable[[tuple[int, int]], bool]) -> int:
        """Drop the lanes of graphs that are gone, and return how many those were.

        Their memory goes back to the domain's pool. Ranks forget in the same places.
        """
        with self._lock:
            gone = [k for k in self.lanes if k != EAGER and not alive(k)]
            return sum(len(self.lanes.pop(k)) for k in sorted(gone))
